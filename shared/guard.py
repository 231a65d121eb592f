"""Routes that look at who calls before anything of the call's body is read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute


def guarded(check: Callable[[Request], None]) -> APIRouter:
    """A router on whose every route ``check`` comes first. What it raises is the answer.

    A dependency would come too late: the body is read and parsed before those are.
    """

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def checked(request: Request) -> Response:
                check(request)
                return await answer(request)

            return checked

    return APIRouter(route_class=Guarded)
