"""Checks that ask outside: PromQL through prometheus-api-client, HTTP through httpx, services in their own words.

An answer is in tolerance, out of it, or unknown; a question that fails is unknown, and nothing here raises for
it. A check whose answers come less often than every 2.5 s reads as silence (`recovery/series.py`): ask each
once a second.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

import httpx

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.observation import CheckState, ProbeResult
from gpuchaos_stream.experiments.plan import HttpCheck, JsonField, Plan, PromqlCheck, SteadyCheck
from gpuchaos_stream.experiments.services import Answer, ask_postgres, ask_redis, ask_tcp, ask_tls

#: PromQL runs in threads, as its client blocks; a server that drips may hold one, never all of the loop.
_THREADS: Final = 8
#: The client's own timeout is per read; after this much more the answer is not waited for, seconds.
_GRACE_S: Final = 0.5
#: The longest page that is read for a field of it, bytes.
_MOST_BYTES: Final = 1 << 20


class Prober:
    """Asks the checks of plans. Use as an async context manager."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(follow_redirects=False)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="promql")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; questions under way are not waited for."""
        await self._http.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, experiment_id: str, cluster: str, plan: Plan, now: float) -> list[ProbeResult]:
        """Asks all checks of `plan` that telemetry does not answer; each result carries `now`, when it was asked."""
        checks = [check for check in plan.checks if check.reading is None]
        answers = await asyncio.gather(*(self._one(check, now) for check in checks))
        return list(_results(experiment_id, cluster, checks, answers, now))

    async def _one(self, check: SteadyCheck, now: float) -> Answer:
        if check.promql is not None:
            return await self._promql(check.promql)
        if check.http is not None:
            return await self._get(check.http)
        if check.tcp is not None:
            return await ask_tcp(check.tcp)
        if check.tls is not None:
            return await ask_tls(check.tls, now)
        if check.postgres is not None:
            return await ask_postgres(check.postgres)
        if check.redis is not None:
            return await ask_redis(check.redis)
        return CheckState.UNKNOWN, None, "the check asks nothing"

    async def _promql(self, check: PromqlCheck) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(check.timeout + _GRACE_S):
                result = await loop.run_in_executor(self._threads, _query, check.url, check.query, check.timeout)
        except TimeoutError:
            return CheckState.UNKNOWN, None, f"no answer within {check.timeout:g} s"
        except Exception as error:  # noqa: BLE001  (whatever the client raises, the answer is unknown)
            return CheckState.UNKNOWN, None, _text(error)
        value, problem = one_sample(result)
        if value is None:
            return CheckState.UNKNOWN, None, problem
        return (CheckState.OK if check.op.holds(value, check.value) else CheckState.BAD), value, ""

    async def _get(self, check: HttpCheck) -> Answer:
        try:
            async with (
                asyncio.timeout(check.timeout),
                self._http.stream("GET", check.url, timeout=check.timeout) as response,
            ):
                status = response.status_code
                page = await _page(response) if check.field is not None and status == check.status else b""
        except TimeoutError:
            return CheckState.UNKNOWN, None, f"no answer within {check.timeout:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return CheckState.UNKNOWN, None, _text(error)
        ok = status == check.status
        if ok and check.field is not None:
            return one_field(page, check.field)
        return (CheckState.OK if ok else CheckState.BAD), float(status), "" if ok else f"status {status}"


async def _page(response: httpx.Response) -> bytes:
    page = b""
    async for part in response.aiter_bytes():
        page += part
        if len(page) > _MOST_BYTES:
            raise ValueError(f"the page is longer than {_MOST_BYTES} bytes")
    return page


def one_field(page: bytes, field: JsonField) -> Answer:
    """What a JSON page says to a question for one field of it; unknown where it does not have it."""
    try:
        found: Any = json.loads(page)
        for part in field.path.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        return CheckState.UNKNOWN, None, f"no {field.path} in the answer ({_text(error)})"
    holds = field.holds(found)
    value, _ = _number(found) if isinstance(found, int | float) else (None, "")
    if holds is None:
        return CheckState.UNKNOWN, value, f"{field.path} is {_short(found)}, which {field.op} cannot compare"
    return (CheckState.OK if holds else CheckState.BAD), value, "" if holds else f"{field.path} is {_short(found)}"


def _short(found: Any) -> str:
    return repr(found)[:100]


def one_sample(result: Any) -> tuple[float | None, str]:
    """The one finite number of an instant query's result; else None, and why not."""
    if isinstance(result, list) and len(result) == 2 and isinstance(result[0], int | float):
        return _number(result[1])  # a scalar
    if not isinstance(result, list) or not all(isinstance(item, dict) for item in result):
        return None, "not the result of an instant query"
    if len(result) != 1:
        return None, f"{len(result)} samples where one is wanted"
    value = result[0].get("value")
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None, "no instant sample in the result"
    return _number(value[1])


def _number(raw: Any) -> tuple[float | None, str]:
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None, f"{raw!r} is no number"
    return (value, "") if math.isfinite(value) else (None, f"the answer is {raw}")


def _query(url: str, query: str, timeout: float) -> Any:
    # Imported here: only a plan that asks Prometheus pays for it.
    from prometheus_api_client import PrometheusConnect  # noqa: PLC0415
    from urllib3.util.retry import Retry  # noqa: PLC0415

    client = PrometheusConnect(url=url.rstrip("/"), retry=Retry(total=0), timeout=timeout)
    return client.custom_query(query)


def _results(
    experiment_id: str, cluster: str, checks: Iterable[SteadyCheck], answers: Iterable[Answer], now: float
) -> Iterable[ProbeResult]:
    for check, (state, value, detail) in zip(checks, answers, strict=True):
        yield ProbeResult(
            id=stable_id("probe", experiment_id, check.name, now),
            time=now,
            cluster=cluster,
            experiment_id=experiment_id,
            check=check.name,
            state=state,
            value=value,
            detail=detail,
        )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300].removesuffix(": ")
