"""The two stages that wait matters at: the encoders as one, and the engine of a language service."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.loadtest.capacity.delay import Wait
from services.loadtest.capacity.inputs import Encoder, Inputs, Language
from services.loadtest.capacity.queueing import (
    batch_latency,
    batch_size,
    erlang_c,
    group_wait,
    queue_wait,
    split_share,
)


@dataclass(frozen=True, slots=True)
class Served:
    """What a stage does under a load: it takes ``seconds`` of service, and ``wait`` before that. ``utilisation`` is its load
    as a share of the most that it can do, ``limit`` that most in requests a second of the whole fleet."""

    utilisation: float
    limit: float
    seconds: float
    wait: Wait


def picture_limit(encoder: Encoder, tokens: int) -> float:
    """Pictures a second that one encoder can do, in full batches."""
    gain, most = encoder.batch_gain, encoder.max_batch
    return most / (encoder.alone(tokens) * (gain + most * (1 - gain)))


def encoding(inputs: Inputs, encoders: int) -> Served:
    """The encoders, as a picture sees them that no cache knows.

    One encoder is a server of batches (``batch_latency``), to which pictures come as requests do, several of one together
    (``group_wait``). Several are between one queue for all and each its own (``split_share``): one queue's wait is as much less
    as in M/M/c. Pictures that differ wait longer by 1 + ``variation``, as in Pollaczek and Khinchine's formula.
    """
    traffic, encoder = inputs.traffic, inputs.encoder
    asked = traffic.mean_pictures * (1 - traffic.repeated)
    alone, gain = encoder.alone(traffic.tokens_per_picture), encoder.batch_gain
    limit = picture_limit(encoder, traffic.tokens_per_picture)
    if not asked:
        return Served(0.0, math.inf, alone, Wait(0.0, 1.0))
    rate = traffic.rate * asked / encoders
    fixed, each = gain * alone, (1 - gain) * alone
    own = batch_latency(rate, fixed, each, encoder.max_batch) - alone
    busy = min(1.0, rate * alone)
    all_busy = erlang_c(encoders, encoders * busy)
    split = split_share(encoders, gain)
    pooled = all_busy / (encoders * busy) if encoders > 1 else 1.0
    pairs = traffic.mean_pairs * ((1 - traffic.repeated) / encoders) ** 2
    groups = group_wait(rate, 1 / limit, asked / encoders, pairs)
    waits = (own * (split + (1 - split) * pooled) * (1 + traffic.variation)) + groups
    if math.isinf(waits):
        return Served(rate / limit, encoders * limit / asked, alone, Wait(math.inf, 1.0))
    # The time in one's own batch is no wait that varies; the rest is.
    batch = min(waits, each * (batch_size(rate, fixed, each, encoder.max_batch) - 1))
    chance = all_busy + split * (busy - all_busy) if encoders > 1 else busy
    return Served(rate / limit, encoders * limit / asked, alone + batch, Wait(waits - batch, max(chance, 1e-9)))


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine of one language service under a load: a token takes ``tpot`` seconds, ``running`` answers go on, ``slot`` is
    the wait for one to end where there are ``slots`` and no more, ``prefill`` what the prompt takes."""

    utilisation: float
    limit: float
    tpot: float
    running: float
    slots: float
    slot: Wait
    prefill_seconds: float
    prefill: Wait


def engine(language: Language, rate: float, prompt_tokens: float, answer_tokens: float) -> Engine:
    """One engine, to which ``rate`` requests a second come. ``limit`` is what it could do of these.

    Prompts take their share p of its time; the rest goes to steps, in which every answer goes on by a token. How many answers
    go on, and how long a step takes, depend on each other: n = rate x answer_tokens x tpot by Little's law, and
    tpot = (a + b + b n (c - 1) / c) / (1 - p), where a + n b is a step of n answers, of which an answer sees itself and, of c
    places, those of others that are taken. The wait for a place is that of M/M/c. A prompt waits for the step that is being
    computed, and goes into the next one with others that wait (``batch_latency``); one longer than a step goes alone (M/D/1).
    """
    prompts = prompt_tokens / language.prefill_tokens_per_second
    together = language.max_batch_tokens / prompt_tokens
    # More answers cannot go on than prompts get into steps while one answer lasts.
    slots = min(float(language.max_running), max(1.0, answer_tokens * together))
    limit = 1 / (prompts + max(answer_tokens / slots, 1 / together) * language.step(slots))
    others = answer_tokens * language.step_seconds_per_answer * (1 - 1 / slots)
    free = 1 - rate * (prompts + others)
    if rate >= limit:
        endless = Wait(math.inf, 1.0)
        return Engine(rate / limit, limit, math.inf, slots, slots, endless, math.inf, endless)
    tpot = language.step(1) / free
    running = min(rate * answer_tokens * tpot, slots)
    places = max(1, int(slots))
    holds = min(answer_tokens * tpot, places / rate * (1 - 1e-9))
    slot = Wait(queue_wait(places, rate, holds), max(1e-9, erlang_c(places, rate * holds)))
    step = language.step(running)
    if together >= 1:
        alone = step + prompts
        latency = batch_latency(rate, step, prompts, together)
    else:
        alone = prompts + step / together
        latency = alone + queue_wait(1, rate, alone, 0.0)
    busy = -math.expm1(-running)
    waits = latency - alone + busy * step / 2
    prefill = Wait(waits, max(1e-9, 1 - (1 - busy) * (1 - min(1.0, rate * alone)))) if waits < math.inf else Wait(math.inf, 1.0)
    return Engine(rate / limit, limit, tpot, running, slots, slot, alone, prefill)
