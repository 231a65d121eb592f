"""The README's commands do what the README says."""

from __future__ import annotations

import json
import re
import subprocess

from tests.conftest import Pair
from tests.processes import ROOT


def test_the_readmes_curl_gets_the_readmes_answer(pair: Pair) -> None:
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"```bash\n(curl .*?)```", readme, re.DOTALL)
    answer = re.search(r"answers `(A red circle [^`]*)`", readme)
    assert command is not None
    assert answer is not None
    here = command[1].replace("http://127.0.0.1:8000", pair.language.url)
    said = subprocess.run(["bash", "-c", here], cwd=ROOT, capture_output=True, check=True, timeout=30).stdout
    assert json.loads(said)["choices"][0]["message"]["content"] == answer[1]
