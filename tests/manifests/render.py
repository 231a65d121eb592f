"""``python -m tests.manifests.render``: what Helm makes of a chart. A process of its own, since the library brings Go's runtime
along, whose threads and signal handlers are no company for tests that fork.

Standard input is a JSON object: ``chart`` (a folder), ``values``, ``name`` and ``namespace`` of the release. Standard output is
one too: ``manifests`` (texts by the templates' paths), ``findings`` of ``helm lint``, or ``error``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python as helm


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    chart, values = asked["chart"], asked["values"]
    try:
        with helm.Chart.load(chart) as loaded:
            loaded.validate_schema(values)
            manifests = loaded.render(values, name=asked["name"], namespace=asked["namespace"], is_install=True)
        findings = helm.lint(chart, values, strict=True, namespace=asked["namespace"])
    except helm.HelmError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    json.dump({"manifests": manifests, "findings": findings}, sys.stdout)


if __name__ == "__main__":
    main()
