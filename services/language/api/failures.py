"""The failures that clients have met, shown to whoever operates the service."""

from __future__ import annotations

from fastapi import FastAPI

from services.language.failures import FailureList, RecentFailures


def install_failure_routes(app: FastAPI, failures: RecentFailures) -> None:
    """Adds ``/v1/failures`` to ``app``."""

    @app.get("/v1/failures", tags=["encoders"], summary="How many requests failed by code, and the last 100 of them")
    async def recent() -> FailureList:
        return failures.view()
