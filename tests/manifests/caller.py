"""``python -m tests.manifests.caller URL SECONDS``: one call over HTTP from within a network namespace. A body on standard
input is sent as JSON; the status and the answer's body are written to standard output."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request


def main() -> None:
    url, timeout = sys.argv[1], float(sys.argv[2])
    body = sys.stdin.buffer.read() or None
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        status, text = refused.code, refused.read()
    print(status)
    print(text.decode())


if __name__ == "__main__":
    main()
