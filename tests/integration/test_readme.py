"""The README's commands do what the README says."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys

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


def test_the_readmes_schema_is_what_the_answer_keeps_to(pair: Pair) -> None:
    readme = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(from pydantic .*?)```", readme, re.DOTALL)
    assert example is not None
    picture = base64.b64encode((ROOT / "examples" / "scene.png").read_bytes()).decode()
    here = example[1].replace("https://host/scene.png", f"data:image/png;base64,{picture}")
    begin = f"import openai\nclient = openai.OpenAI(base_url='{pair.language.url}/v1', api_key='none', max_retries=0)\n"
    # The example ends with the value that it gives.
    *before, last = here.strip().splitlines()
    script = "\n".join([begin, *before, f"print(type({last}).__name__)"])
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert (said.returncode, said.stdout.decode()) == (0, "Scene\n"), said.stderr.decode()
