"""Errors as RFC 9457 says them: what is wrong, where, and what to do."""

from __future__ import annotations

import http
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.web.views import Problem

MEDIA = "application/problem+json"


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


def install(app: FastAPI) -> None:
    """Makes every error of `app` one of these."""

    @app.exception_handler(ProblemError)
    async def said(_: Request, error: ProblemError) -> Response:
        return answer(error.problem, error.headers)

    @app.exception_handler(UserError)
    async def user(_: Request, error: UserError) -> Response:
        return answer(ProblemError(422, error.problem, field=error.where.lstrip("-"), fix=error.fix).problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
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
