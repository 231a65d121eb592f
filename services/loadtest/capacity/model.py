"""The model: what a fleet of a given size does under a load. Pure functions of the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.loadtest.capacity.delay import Delay, Wait, percentile, step_of
from services.loadtest.capacity.inputs import Inputs
from services.loadtest.capacity.queueing import queue_wait, shared_line
from services.loadtest.capacity.stages import Engine, Served, encoding, engine


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that may run out: how much of it is used, and the requests a second of the whole fleet at which all is."""

    name: str
    utilisation: float
    limit: float


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution in seconds; infinite where there is more to do than can be done."""

    mean: float
    p50: float
    p95: float
    p99: float


NEVER = Times(math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Wire:
    """Bytes: of one picture's embeddings; and a second, of embeddings and of pictures in the whole fleet, and of what goes in
    or out, whichever is more, at one encoder and one language service."""

    per_picture: int
    embeddings: float
    pictures: float
    encoder_link: float
    language_link: float


@dataclass(frozen=True, slots=True)
class Held:
    """What is in work at once on average, by Little's law: requests in the whole fleet, pictures at one encoder, answers that
    go on in one engine and the tokens that its cache of keys and values holds for them."""

    requests: float
    pictures: float
    answers: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What clients of a fleet see, and what it needs for that. ``ttft`` is the time to the first token of all requests, then of
    those with pictures (with as many as there are, on average) and of those without; ``embedding`` the wait for embeddings
    of one picture that is new, ``tpot`` the mean time of a token after the first, all in seconds."""

    rate: float
    encoders: int
    languages: int
    stages: tuple[Stage, ...]
    ttft: Times
    ttft_pictures: Times | None
    ttft_text: Times | None
    embedding: Times | None
    tpot: float
    wire: Wire
    held: Held

    @property
    def busiest(self) -> Stage:
        """What runs out first."""
        return max(self.stages, key=lambda stage: stage.utilisation)

    @property
    def limit(self) -> float:
        """Requests a second from which on queues grow without end."""
        return min(stage.limit for stage in self.stages)

    @property
    def stable(self) -> bool:
        return self.rate < self.limit


def predict(inputs: Inputs, encoders: int, languages: int) -> Prediction:
    """What so many encoders and language services do under the traffic of the inputs.

    A request is served by one language service, chosen evenly; it waits there for its turn before the engine (M/D/1), for the
    slowest of its pictures, and in the engine. Waits are taken to be independent of each other, as in a network of queues of
    Jackson's.
    """
    traffic, language = inputs.traffic, inputs.language
    share = traffic.rate / languages
    prompt_tokens = traffic.text_tokens + traffic.mean_pictures * traffic.tokens_per_picture
    front = _front(inputs, share, languages)
    encode = encoding(inputs, encoders)
    engines = engine(language, share, prompt_tokens, traffic.answer_tokens)
    links, transfer = _links(inputs, encoders, languages)
    stages = (
        Stage("encoders", encode.utilisation, encode.limit),
        Stage("engines", engines.utilisation, engines.limit * languages),
        Stage("language services outside of engines", front.utilisation, front.limit),
        *links,
    )
    times = _times(inputs, front, encode, engines, transfer)
    ttft = times[0]
    lasts = ttft.mean + traffic.answer_tokens * engines.tpot
    asked = traffic.rate * traffic.mean_pictures * (1 - traffic.repeated) / encoders
    held = Held(
        requests=traffic.rate * lasts,
        pictures=min(float(inputs.encoder.max_items), asked * (encode.seconds + encode.wait.mean)) if asked else 0.0,
        answers=engines.running,
        tokens=engines.running * (prompt_tokens + traffic.answer_tokens / 2),
    )
    return Prediction(traffic.rate, encoders, languages, stages, *times, engines.tpot, _wire(inputs, encoders, languages), held)


def _front(inputs: Inputs, rate: float, languages: int) -> Served:
    work = inputs.language.request_seconds
    waits = queue_wait(1, rate, work, 0.0)
    limit = languages / work if work else math.inf
    return Served(rate * work, limit, work, Wait(waits, max(1e-9, min(1.0, rate * work))))


def _wire(inputs: Inputs, encoders: int, languages: int) -> Wire:
    traffic = inputs.traffic
    asked = traffic.rate * traffic.mean_pictures * (1 - traffic.repeated)
    per_picture = traffic.tokens_per_picture * inputs.embeddings.bytes_per_token
    out, into = asked * per_picture, asked * traffic.picture_bytes
    # Pictures come to a language service with requests, also those that it knows, and go on to encoders.
    arriving = traffic.rate * traffic.mean_pictures * traffic.picture_bytes
    language = max(out + arriving, into)
    return Wire(per_picture, out, into, max(out, into) / encoders, language / languages)


def _links(inputs: Inputs, encoders: int, languages: int) -> tuple[list[Stage], float]:
    """The links of both services, and the mean time in seconds that one picture's bytes are on their way, there and back."""
    network, traffic = inputs.network, inputs.traffic
    asked = traffic.rate * traffic.mean_pictures * (1 - traffic.repeated)
    speed = network.bytes_per_second
    if not (speed and traffic.mean_pictures):
        return [], 2 * network.seconds
    wire = _wire(inputs, encoders, languages)
    stages = [
        Stage(name, used / speed, traffic.rate * speed / used if used else math.inf)
        for name, used in (("links of encoders", wire.encoder_link), ("links of language services", wire.language_link))
    ]
    there = shared_line(asked / encoders, traffic.picture_bytes / speed)
    back = shared_line(asked / encoders, wire.per_picture / speed)
    # At the language service's end only the wait for others counts: the bytes are the same.
    used = wire.language_link / speed
    crowded = wire.per_picture / speed * used / (1 - used) if used < 1 else math.inf
    return stages, 2 * network.seconds + there + back + crowded


def _times(
    inputs: Inputs, front: Served, encode: Served, engines: Engine, transfer: float
) -> tuple[Times, Times | None, Times | None, Times | None]:
    """Times to the first token of all requests, of those with and without pictures, and of one new picture's embeddings."""
    traffic = inputs.traffic
    ahead = (front.wait, engines.slot, engines.prefill)
    within = front.seconds + engines.prefill_seconds
    bring = encode.seconds + transfer
    flows = math.isfinite(sum(wait.mean for wait in ahead))
    brought = math.isfinite(encode.wait.mean + transfer)
    waits = (*(ahead if flows else ()), *((encode.wait,) if brought else ()))
    step = step_of((within if flows else 0.0) + (bring if brought else 0.0), waits)
    rest = Delay.of(within, ahead, step) if flows else None
    one = Delay.of(bring, [encode.wait], step) if brought else None
    known = one.unless(traffic.repeated) if one is not None and traffic.repeated else one

    def until_first(number: int) -> Delay | None:
        if rest is None:
            return None
        # The engine's figures are for a prompt of mean length.
        more = (number - traffic.mean_pictures) * traffic.tokens_per_picture / inputs.language.prefill_tokens_per_second
        own = replace(rest, fixed=rest.fixed + more)
        if not number:
            return own
        return None if known is None else known.longest_of(number).then(own)

    delays = [(share, number, until_first(number)) for number, share in traffic.pictures]
    pictures = [(share, delay) for share, number, delay in delays if number]
    text = [(share, delay) for share, number, delay in delays if not number]
    return (
        _summary([*pictures, *text]),
        _summary(pictures) if pictures else None,
        _summary(text) if text else None,
        _summary([(1.0, one)]) if pictures else None,
    )


def _summary(parts: Sequence[tuple[float, Delay | None]]) -> Times:
    """Of a mixture by shares, which are relative to each other; no delay is one without end."""
    total = sum(share for share, _ in parts)
    there = [(share / total, delay) for share, delay in parts if delay is not None]
    if len(there) < len(parts):
        return NEVER
    mean = sum(share * delay.mean for share, delay in there)
    return Times(mean, *(percentile(there, share) for share in (0.5, 0.95, 0.99)))
