"""A tiny checkpoint of every family, served by the real pair: its tokens are those of the undivided model, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from tests.chats import Part, Undivided, user
from tests.families import BUILDERS, FILMED, NEED_TORCHVISION, NOT_MIXED, SOUNDED, make
from tests.families.media import film, picture, sound
from tests.families.midashenglm import Undivided as UndividedMiDasheng
from tests.processes import UNCACHED, Service

TOKENS = 12
Cases: TypeAlias = dict[str, list[Part]]

PICTURES: Cases = {
    "text only": ["Hello! What can you do?"],
    "one picture": [picture(1), "What is in the picture?"],
    "another picture": [picture(2), "What is in the picture?"],
    "two adjacent pictures": [picture(3), picture(4), "Which one is larger?"],
    "picture after text": ["Look at this: ", picture(5), " What is it?"],
    "between lines": ["Above\n", picture(6), "\n\nbelow", picture(7), "\n"],
    "different sizes": [picture(8, 200, 90), picture(9, 40, 150), "\n", picture(10, 64, 64), picture(11, 20, 13), "All?"],
    "nothing but a picture": [picture(12)],
}
SOUNDS: Cases = {
    "text only": ["Hello! What can you do?"],
    "one sound": [sound(1), "What is this?"],
    "another sound": [sound(2), "What is this?"],
    "two adjacent sounds": [sound(3), sound(4), "Which one is louder?"],
    "sound after text": ["Listen: ", sound(5), " What is it?"],
    "different lengths": [sound(6, 0.25), sound(7, 1.9), "\n", sound(8, 1.2), "All?"],
    "another rate": [sound(9, 0.5, rate=44_100), "And this?"],
    "nothing but a sound": [sound(10)],
}
FILMS: Cases = {
    "one video": [film(1), "What happens?"],
    "another video": [film(2), "What happens?"],
    "two adjacent videos": [film(3), film(4, 40, 10, 96, 64), "Which one is longer?"],
    "video after text": ["See: ", film(5, 9), "\nWhat is it?"],
    "nothing but a video": [film(6)],
}
ALIKE: Cases = {
    # Of several videos, transformers tells SmolVLM that each has as many frames as the longest.
    "two adjacent videos": [film(3), film(4, 20, 8, 96, 64), "Which one is larger?"],
}
MIXED: Cases = {
    "picture before a video": [picture(13), film(7), "Is it the same?"],
    "picture after a video": [film(8), picture(14), "Is it the same?"],
}


@dataclass(frozen=True)
class Served:
    """A running pair of one family, and the undivided model of the same checkpoint."""

    name: str
    encoder: Service
    language: Service
    client: httpx.Client
    undivided: Undivided | UndividedMiDasheng

    def wait_until_ready(self) -> None:
        self.encoder.wait_until_ready()
        self.language.wait_until_ready(encoders=1)

    def ask(self, parts: list[Part]) -> tuple[list[int], list[int]]:
        """Token ids of the expanded prompt and of the answer."""
        asked = user(*parts, model="model", max_tokens=TOKENS, return_token_ids=True)
        response = self.client.post("/v1/chat/completions", json=asked)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body["prompt_token_ids"], body["choices"][0]["token_ids"]

    def check(self, cases: Cases) -> None:
        """All of ``cases``, one after the other and at once: the tower takes items of several requests together, and the
        decoder's steps mix them."""
        wanted = {name: self.undivided.answer(parts, TOKENS) for name, parts in cases.items()}
        for name, parts in cases.items():
            assert self.ask(parts) == wanted[name], name
        with ThreadPoolExecutor(len(cases)) as threads:
            assert dict(zip(cases, threads.map(self.ask, cases.values()), strict=True)) == wanted
        assert len({tuple(answer) for _, answer in wanted.values()}) == len(cases), "answers do not depend on what is shown"


def _params(names: tuple[str, ...], needed: tuple[str, ...] = NEED_TORCHVISION) -> Any:
    marked = [pytest.param(name, marks=[pytest.mark.torchvision] if name in needed else []) for name in names]
    return pytest.mark.parametrize("served", marked, indirect=True, scope="module")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start(request.param, tmp_path_factory.mktemp(request.param)) as running:
        running.wait_until_ready()
        yield running


@contextmanager
def start(name: str, folder: Path, **options: int) -> Iterator[Served]:
    """A pair that is about to be ready, with the tiny checkpoint called ``name``, which is built with ``options``."""
    model = make(name, folder / "model", **options)
    with (
        Service("encoder", folder, model=model, **UNCACHED).start(wait=False) as encoder,
        Service("language", folder, model=model, encoders=encoder.url).start(wait=False) as language,
        httpx.Client(base_url=language.url, timeout=60, trust_env=False) as client,
    ):
        undivided = UndividedMiDasheng(model) if name == "midashenglm" else Undivided(model)
        yield Served(name, encoder, language, client, undivided)


@_params(tuple(BUILDERS))
def test_the_tokens_are_those_of_the_undivided_model(served: Served) -> None:
    served.check(SOUNDS if served.name in SOUNDED else PICTURES)


@_params(FILMED, needed=FILMED)
def test_the_tokens_are_those_of_the_undivided_model_with_videos(served: Served) -> None:
    cases = FILMS | ALIKE if served.name == "smolvlm" else FILMS
    served.check(cases if served.name in NOT_MIXED else cases | MIXED)
