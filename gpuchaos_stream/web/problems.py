"""Errors as RFC 9457 says them: what is wrong, where, and what to do."""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.web.views import Problem

MEDIA: Final = "application/problem+json"
_WORDS: Final = {
    400: "the body cannot be read",
    401: "no token, or nobody's",
    403: "this server is read-only, or the request is another site's",
    404: "no such cluster, experiment or node",
    408: "the rest of the body did not come",
    413: "the body is too large",
    415: "the body is no JSON",
    421: "this server does not answer under the name that was asked for",
    422: "a value is wrong: `field` says which",
    429: "too many wrong tokens from this address",
    503: "no broker took it in time",
}


class ProblemError(Exception):
    """An answer that is an error. `field` is what of the request is wrong, `fix` what to do."""

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, fix: str | None = None, **headers: str
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            title=http.HTTPStatus(status).phrase, status=status, detail=detail, field=field, fix=fix or None
        )
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The response that says `problem`."""
    body = problem.model_dump_json(exclude_none=True)
    return Response(body, status_code=problem.status, media_type=MEDIA, headers=dict(headers or {}))


def answers(*codes: int, **words: str) -> dict[int | str, dict[str, Any]]:
    """The description of errors for a route; `words` as `_503="why"` say it otherwise."""
    said = _WORDS | {int(code.strip("_")): text for code, text in words.items()}
    return {code: {"model": Problem, "description": said[code]} for code in codes}


def install(app: FastAPI) -> None:
    """Makes every error of `app` one of these, and its description say so."""
    app.openapi = _described(app.openapi)  # type: ignore[method-assign]

    @app.exception_handler(ProblemError)
    async def said(_: Request, error: ProblemError) -> Response:
        return answer(error.problem, error.headers)

    @app.exception_handler(UserError)
    async def user(_: Request, error: UserError) -> Response:
        return answer(ProblemError(422, error.problem, field=error.where.lstrip("-"), fix=error.fix).problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            said = first.get("ctx", {}).get("error", "it ends too early")
            return answer(ProblemError(422, f"the body is no JSON: {said}", field="body").problem)
        where = ".".join(str(part) for part in first["loc"] if part not in {"body", "query", "path"}) or "body"
        return answer(ProblemError(422, str(first["msg"]), field=where).problem)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        detail = {
            404: f"nothing is at {request.url.path}",
            405: f"{request.method} is not for {request.url.path}",
        }.get(error.status_code, str(error.detail))
        return answer(ProblemError(error.status_code, detail).problem, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> Response:
        return answer(ProblemError(500, "a fault of this server; its log says which").problem)


def _described(made: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The description with the media type that errors really have, and no error where nothing can be wrong."""

    def openapi() -> dict[str, Any]:
        found = made()
        for operations in found["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                if "parameters" not in operation:
                    responses.pop("404", None)
                if "requestBody" not in operation and all(p["in"] == "path" for p in operation.get("parameters", ())):
                    responses.pop("422", None)
                for code, response in responses.items():
                    content = response.get("content", {})
                    if code >= "4" and "application/json" in content:
                        content[MEDIA] = content.pop("application/json")
        return found

    return openapi
