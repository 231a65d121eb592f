"""``python -m services.serve.announce URL``: waits until a request with a picture would succeed, and says so."""

from __future__ import annotations

import sys
import time

import httpx


def wait_until_ready(base_url: str, timeout: float, pause: float = 0.1) -> bool:
    """Whether the pair at ``base_url`` became ready for pictures within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    with httpx.Client(base_url=base_url, timeout=2.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            try:
                answer = client.get("/ready")
                if answer.status_code == httpx.codes.OK and answer.json()["encoders_ready"] > 0:
                    return True
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(pause)
    return False


def main() -> None:
    base_url = sys.argv[1]
    if wait_until_ready(base_url, timeout=600):
        print(f"ready: {base_url}", flush=True)
    else:
        sys.exit(f"not ready after ten minutes: {base_url}; see the log above")


if __name__ == "__main__":
    main()
