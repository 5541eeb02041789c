"""The node as strategies see it (`inject.base.Env`): made of the settings, and handed to the dead man's switch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent import clock
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.inject.base import Bmc, Env

#: What cannot be written down: an undo needs none of it.
_CALLABLE: Final = frozenset({"job_of", "gpu_pci", "gpu_of"})


def of(
    settings: AgentSettings,
    *,
    brokers: tuple[str, ...] = (),
    gpu_pci: Callable[[str], str | None] = lambda _index: None,
) -> Env:
    """The environment of these settings; `brokers` are the agent's own Kafka addresses."""
    return Env(
        node=settings.node,
        boot_id=clock.boot_id(settings.procfs),
        procfs=settings.procfs,
        kmsg=settings.kmsg,
        protected=frozenset(settings.protected),
        any_process=settings.any_process,
        job_of=settings.job_of,
        gpu_pci=gpu_pci,
        gpu_of=settings.gpu_of,
        sysfs=settings.sysfs,
        state_dir=settings.state_dir,
        brokers=brokers,
        **settings.reach(),
    )


def packed(env: Env) -> str:
    """All that undoing needs, as text. Of a BMC's password only the file's name."""
    plain = {item.name: getattr(env, item.name) for item in fields(env) if item.name not in _CALLABLE}
    plain["bmc"] = _bmc_fields(env.bmc)
    plain["bmcs"] = {node: _bmc_fields(bmc) for node, bmc in env.bmcs.items()}
    return json.dumps(plain, default=_plain)


def unpacked(text: str) -> Env:
    """The environment that `packed` wrote."""
    found: dict[str, Any] = json.loads(text)
    return Env(
        node=found["node"],
        boot_id=found["boot_id"],
        procfs=Path(found["procfs"]),
        kmsg=Path(found["kmsg"]),
        sysfs=Path(found["sysfs"]),
        state_dir=Path(found["state_dir"]),
        any_process=found["any_process"],
        protected=frozenset(found["protected"]),
        brokers=tuple(found["brokers"]),
        bmc=_bmc(found["bmc"]),
        bmcs={node: bmc for node, fields_ in found["bmcs"].items() if (bmc := _bmc(fields_)) is not None},
        reload_commands={name: tuple(words) for name, words in found["reload_commands"].items()},
        corruptible=tuple(map(Path, found["corruptible"])),
    )


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _bmc_fields(bmc: Bmc | None) -> dict[str, Any] | None:
    return None if bmc is None else {item.name: getattr(bmc, item.name) for item in fields(bmc)}


def _bmc(found: dict[str, Any] | None) -> Bmc | None:
    if found is None:
        return None
    paths = {name: Path(value) for name, value in found.items() if value is not None and name.endswith("_file")}
    return Bmc(**{**found, **paths})
