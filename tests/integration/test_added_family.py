"""The family that docs/models.md adds, by the code that stands there."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.language.models.gemma3 import Gemma3LanguageHalf
from tests.chats import Undivided, user
from tests.families.added import llava_next
from tests.families.media import picture
from tests.processes import ROOT, Service

PAGE = (ROOT / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Undivided]]:
    folder = tmp_path_factory.mktemp("added")
    (folder / "my_families.py").write_text(BLOCKS[0])
    model = llava_next(folder / "model")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with (
            Service("encoder", folder, model=model, families="my_families").start(wait=False) as encoder,
            Service("language", folder, model=model, families="my_families", encoders=encoder.url).start() as language,
            httpx.Client(base_url=language.url, timeout=60, trust_env=False) as client,
        ):
            language.wait_until_ready(encoders=1)
            yield client, Undivided(model)


def test_the_page_adds_a_family_in_a_few_lines() -> None:
    assert max(len([line for line in block.splitlines() if line.strip()]) for block in BLOCKS) < 40
    assert BLOCKS[1].strip() == inspect.getsource(Gemma3LanguageHalf).strip()


@pytest.mark.parametrize(
    "parts",
    [
        [picture(1), "What is it?"],
        [picture(2), picture(3, 200, 90), "Which one is larger?"],
        ["Look: ", picture(4, 40, 150), " well?"],
        ["Hello!"],
    ],
    ids=["one", "two", "after text", "text only"],
)
def test_an_added_family_gives_the_tokens_of_the_undivided_model(
    added: tuple[httpx.Client, Undivided], parts: list[bytes | str]
) -> None:
    client, undivided = added
    asked = user(*parts, model="model", max_tokens=12, return_token_ids=True)
    body = client.post("/v1/chat/completions", json=asked).json()
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == undivided.answer(parts, 12)


def test_without_it_such_a_checkpoint_is_refused_with_a_sentence(tmp_path: Path) -> None:
    model = llava_next(tmp_path / "model")
    for kind in ("encoder", "language"):
        service = Service(kind, tmp_path, model=model)
        with service.start(wait=False):
            service.process.wait(60)
            assert "models of the family llava_next are not served" in service.log.read_text()
