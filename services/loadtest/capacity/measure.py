"""Measures the inputs of a plan at a running pair that nobody else uses, from what it tells of where the time went."""

from __future__ import annotations

import base64
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from services.loadtest.capacity.inputs import Encoder
from services.loadtest.traffic.png import Template

ROUNDS = 5
"""How many times as many requests there are in all as at once."""
ANSWERS = 8
"""Answers at once."""
SMALL, LARGE = 64, 448  # pixels of a side
TOKENS = 32  # of an answer
_PUBLISHED = "epd_encoder_published_bytes_total"
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Pair:
    """Base URLs of a language service and of its encoder, which it can be asked for; the key and the model, if it must be given
    one, and if it has several."""

    url: str
    encoder: str | None = None
    api_key: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class EncoderFigures:
    """As in ``inputs.Encoder``."""

    seconds: float
    seconds_per_token: float
    batch_gain: float


@dataclass(frozen=True, slots=True)
class LanguageFigures:
    """As in ``inputs.Language``."""

    request_seconds: float
    prefill_tokens_per_second: float
    step_seconds: float
    step_seconds_per_answer: float


@dataclass(frozen=True, slots=True)
class EmbeddingFigures:
    """As in ``inputs.Embeddings``; ``hidden_size`` counts the levels of deepstack, too."""

    hidden_size: int
    deepstack_levels: int
    bytes_per_number: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one encoder and one language service. ``embeddings`` is None where the encoder's metrics cannot be had."""

    encoder: EncoderFigures
    language: LanguageFigures
    embeddings: EmbeddingFigures | None

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sections of a file of inputs."""
        return {name: table for name, table in asdict(self).items() if table is not None}


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one request took, in seconds by stage, and in all as the client saw it; and its tokens."""

    stages: dict[str, float]
    elapsed: float
    prompt_tokens: int
    answer_tokens: int
    media_tokens: int

    @property
    def outside(self) -> float:
        """Seconds that were spent on it neither by encoders nor by the engine, the client's own included."""
        return self.elapsed - sum(self.stages.get(stage, 0.0) for stage in ("embeddings", "prefill", "decode"))

    @property
    def step(self) -> float:
        """Seconds of one token after the first."""
        return self.stages["decode"] / max(1, self.answer_tokens - 1)


def measure(pair: Pair, alone: int = 12, busy: int = 32) -> Measured:
    """Asks a running pair for answers: of each kind ``alone`` one after the other, of which the median counts, and pictures
    ``busy`` at once, which must be enough to keep its encoders busy.

    Raises:
        ValueError: it cannot be reached, does not tell where the time went, or answers errors; the message says which.
    """
    with _Client(pair, alone) as client:
        for _ in range(3):
            client.ask(_text(8), TOKENS)
            client.ask(client.picture(SMALL), 1)
        # First, so that all threads of the encoder have worked before: what is alone later is as it is between others.
        _, crowded = client.at_once(busy, ROUNDS * busy, lambda: client.ask(client.picture(SMALL), 1))
        language = _language(client)
        published = client.published()
        small, large = client.alone(SMALL), client.alone(LARGE)
        more = client.published()
        sent = alone * (small.media_tokens + large.media_tokens)
        return Measured(
            _encoder(small, large, crowded * client.encoders),
            language,
            None if published is None or more is None else client.embeddings((more - published) / sent),
        )


def _language(client: _Client) -> LanguageFigures:
    short = client.median_of(lambda: client.ask(_text(8), TOKENS))
    long = client.median_of(lambda: client.ask(_text(client.words), 1))
    together = client.at_once(ANSWERS, ANSWERS, lambda: client.ask(_text(8), 2 * TOKENS))[0]
    one, many = short.step, statistics.median(answer.step for answer in together)
    each = max(0.0, (many - one) / (ANSWERS - 1))
    more = max(1e-6, long.stages["prefill"] - short.stages["prefill"])
    outside = client.alone(SMALL).outside
    return LanguageFigures(
        request_seconds=_rounded(outside),
        prefill_tokens_per_second=_rounded((long.prompt_tokens - short.prompt_tokens) / more),
        step_seconds=_rounded(max(one - each, 1e-6)),
        step_seconds_per_answer=_rounded(each),
    )


def _encoder(small: _Answer, large: _Answer, busy: float) -> EncoderFigures:
    """From pictures of two sizes alone, and the seconds from one small picture to the next where one encoder is kept busy."""
    alone, tokens = small.stages["embeddings"], large.media_tokens - small.media_tokens
    each = max(0.0, large.stages["embeddings"] - alone) / tokens if tokens > 0 else 0.0
    each = min(each, alone / small.media_tokens)
    alone = max(alone, busy)  # of the two, capacity counts: what is slower in a crowd is taken to be so always
    saved = 1 - busy / alone
    most = Encoder.model_fields["max_batch"].default
    return EncoderFigures(
        seconds=_rounded(alone - small.media_tokens * each),
        seconds_per_token=_rounded(each),
        batch_gain=_rounded(max(0.0, min(0.99, saved * most / (most - 1)))),
    )


class _Client:
    def __init__(self, pair: Pair, alone: int) -> None:
        self._alone = alone
        self._url = pair.url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {pair.api_key}"} if pair.api_key else {}
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.Client(headers=headers, timeout=120, trust_env=False, limits=limits)
        self._encoder = pair.encoder
        self._model = pair.model

    def __enter__(self) -> _Client:
        models = self._get(f"{self._url}/v1/models").json()["data"]
        chosen = next((each for each in models if self._model in (None, each["id"])), None)
        if chosen is None:
            raise ValueError(f"{self._url} has no model {self._model!r}")
        self._model = chosen["id"]
        self.words = min(400, int(chosen.get("max_model_len") or 2048) // 8)
        """Of a long text: it has several tokens a word."""
        ready = [each for each in self._get(f"{self._url}/v1/encoders").json()["data"] if each["state"] == "ready"]
        if not ready:
            raise ValueError(f"{self._url} has no encoder that is ready: there is nothing to be measured")
        self.encoders = len(ready)
        self._encoder = self._encoder or (ready[0]["url"] if len(ready) == 1 else None)
        self._dtype = str(ready[0]["dtype"])
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, content: Sequence[dict[str, Any]], tokens: int) -> _Answer:
        """One answer of so many tokens. Raises ValueError where there is none, or without timings."""
        body = {
            "model": self._model,
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_timings": True,
            "messages": [{"role": "user", "content": content}],
        }
        began = time.perf_counter()
        try:
            answer = self._http.post(f"{self._url}/v1/chat/completions", json=body)
        except httpx.TransportError as error:
            raise ValueError(f"{self._url} broke off: {error}") from error
        elapsed = time.perf_counter() - began
        if not answer.is_success:
            raise ValueError(f"{self._url} answered {answer.status_code}: {answer.text[:300]}")
        said = answer.json()
        if "timings" not in said:
            raise ValueError(f"{self._url} does not tell where the time went: only a pair of this project can be measured")
        usage, timings = said["usage"], said["timings"]
        media = sum(item["tokens"] for item in timings["items"])
        return _Answer(timings["stages"], elapsed, usage["prompt_tokens"], usage["completion_tokens"], media)

    def picture(self, size: int) -> list[dict[str, Any]]:
        """Contents with a picture that no cache knows, ``size`` pixels a side."""
        drawn = Template(np.full((size, size, 3), 128, np.uint8), size // 8).png(os.urandom(3 * size))
        url = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
        return [{"type": "image_url", "image_url": {"url": url}}, *_text(4)]

    def alone(self, size: int) -> _Answer:
        """The median answer to a picture."""
        return self.median_of(lambda: self.ask(self.picture(size), 1))

    def median_of(self, ask: Callable[[], _Answer]) -> _Answer:
        """The answers to as many requests as are asked alone, each figure the median of all."""
        answers = [ask() for _ in range(self._alone)]
        middle = statistics.median
        return _Answer(
            {stage: middle(answer.stages.get(stage, 0.0) for answer in answers) for stage in answers[0].stages},
            middle(answer.elapsed for answer in answers),
            *(round(middle(getattr(answer, name) for answer in answers)) for name in _Answer.__slots__[2:]),
        )

    def at_once(self, count: int, total: int, ask: Callable[[], _Answer]) -> tuple[list[_Answer], float]:
        """``total`` answers, ``count`` at a time, and the seconds from one to the next, the first and last ones left out."""
        ends: list[float] = []

        def one(_: int) -> _Answer:
            answer = ask()
            ends.append(time.perf_counter())
            return answer

        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(one, range(total)))
        inner = sorted(ends)[min(count, total // 4) : max(total - count, total * 3 // 4) + 1]
        return answers, (inner[-1] - inner[0]) / max(1, len(inner) - 1)

    def published(self) -> float | None:
        """Bytes of embeddings that the encoder has sent; None where it cannot be asked."""
        try:
            text = self._get(f"{self._encoder}/metrics").text if self._encoder else ""
            families = list(text_string_to_metric_families(text))
        except ValueError:
            return None
        found = [sample.value for family in families for sample in family.samples if sample.name == _PUBLISHED]
        return sum(found) if found else None

    def embeddings(self, bytes_per_token: float) -> EmbeddingFigures:
        """How large they are."""
        size = _SIZES.get(self._dtype, 4)
        return EmbeddingFigures(max(1, round(bytes_per_token / size)), 0, size)

    def _get(self, url: str) -> httpx.Response:
        try:
            answer = self._http.get(url)
        except httpx.TransportError as error:
            raise ValueError(f"{url} cannot be had: {error}") from error
        if not answer.is_success:
            raise ValueError(f"{url} answered {answer.status_code}: {answer.text[:300]}")
        return answer


def _text(words: int) -> list[dict[str, Any]]:
    """Contents with a text that no prefix cache knows."""
    rng = random.Random(os.urandom(8))
    return [{"type": "text", "text": " ".join(str(rng.randrange(1000)) for _ in range(words))}]


def _rounded(value: float) -> float:
    """Four digits: more are noise."""
    return float(f"{value:.4g}")
