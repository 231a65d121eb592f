"""What a plan is made from: what one encoder and one language service can do, what they are asked, and what is wanted.

Read from TOML.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from services.loadtest.scenario import Seconds, Share

Shares = tuple[tuple[int, float], ...]


def _shares(value: object) -> object:
    """A number for all requests, or a table of numbers and how many requests have them; shares that add up to 1."""
    if isinstance(value, Mapping):
        try:
            given = sorted((int(number), float(weight)) for number, weight in value.items())
        except (TypeError, ValueError) as error:
            raise ValueError('write it as { "0" = 1, "1" = 4 }: numbers of pictures and relative weights') from error
    elif isinstance(value, int):
        given = [(value, 1.0)]
    else:
        return value
    total = sum(weight for _, weight in given)
    good = all(number >= 0 and 0 <= weight < math.inf for number, weight in given) and 0 < total < math.inf
    if not good:
        raise ValueError(
            'numbers of pictures and their weights are at least 0, and one weight is more, as in { "0" = 1, "1" = 4 }'
        )
    return tuple((number, weight / total) for number, weight in given if weight)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Traffic(_Part):
    """What is asked for."""

    rate: float = Field(gt=0)
    """Requests a second, which come at random (Poisson)."""
    pictures: Annotated[Shares, BeforeValidator(_shares)] = ((1, 1.0),)
    """Pictures in a request, and the share of requests that have so many."""
    repeated: Share = 0.0
    """Share of pictures whose embeddings a language service has already: no encoder is asked."""
    text_tokens: int = Field(32, gt=0)
    """Tokens of a prompt beside its pictures that must be computed; those that the prefix cache has are left out."""
    answer_tokens: int = Field(128, gt=0)
    tokens_per_picture: int = Field(256, gt=0)
    picture_bytes: int = Field(200_000, gt=0)
    """Bytes of a picture's file, which goes to the encoder."""
    variation: float = Field(0.0, ge=0)
    """Squared coefficient of variation of the time that pictures take: 0 where all are alike, 1 where they are exponential."""

    @property
    def mean_pictures(self) -> float:
        """Pictures in a request."""
        return sum(number * share for number, share in self.pictures)

    @property
    def mean_pairs(self) -> float:
        """The mean of n (n - 1) for requests with n pictures."""
        return sum(number * (number - 1) * share for number, share in self.pictures)


class Encoder(_Part):
    """What one encoder does. A picture alone takes ``seconds`` and ``seconds_per_token`` for each of its tokens: all from its
    call's arrival until it is sent."""

    seconds: Seconds = 0.005
    seconds_per_token: Seconds = 0.0
    batch_gain: Share = 0.0
    """Share of that which is spent once a batch: a batch of n takes gain + n (1 - gain) times as long as a picture alone."""
    max_batch: int = Field(16, gt=0)
    max_items: int = Field(256, gt=0)

    def alone(self, tokens: int) -> float:
        """Seconds of a picture of so many tokens that has the encoder for itself."""
        return self.seconds + tokens * self.seconds_per_token

    @model_validator(mode="after")
    def _some_time(self) -> Encoder:
        if not self.alone(1):
            raise ValueError("seconds or seconds_per_token must be more than 0")
        return self


class Language(_Part):
    """What one language service does. A step of its engine in which n answers go on takes ``step_seconds`` and n times
    ``step_seconds_per_answer``, and as much longer as the prompts in it take."""

    request_seconds: Seconds = 0.002
    """Work on a request outside of the engine, one request after another: HTTP, template, tokenizing."""
    prefill_tokens_per_second: float = Field(10_000.0, gt=0)
    step_seconds: Seconds = 0.01
    step_seconds_per_answer: Seconds = 0.0005
    max_running: int = Field(64, gt=0)
    """Answers that go on at once."""
    max_batch_tokens: int = Field(1024, gt=0)
    """Tokens of prompts in one step."""

    def step(self, running: float) -> float:
        """Seconds of a step without prompts."""
        return self.step_seconds + running * self.step_seconds_per_answer

    @model_validator(mode="after")
    def _some_time(self) -> Language:
        if not self.step(1):
            raise ValueError("step_seconds or step_seconds_per_answer must be more than 0")
        return self


class Embeddings(_Part):
    """How large embeddings are: ``hidden_size`` numbers of ``bytes_per_number`` a token, and as many again for each of
    ``deepstack_levels``."""

    hidden_size: int = Field(2048, gt=0)
    deepstack_levels: int = Field(0, ge=0)
    bytes_per_number: int = Field(2, gt=0)

    @property
    def bytes_per_token(self) -> int:
        return self.hidden_size * (1 + self.deepstack_levels) * self.bytes_per_number


class Network(_Part):
    """The way between the services. 0 bytes a second: as if it took no time, as where they share memory."""

    bytes_per_second: float = Field(1.25e9, ge=0)
    """Of one service's link, in each direction."""
    seconds: Seconds = 0.0002
    """One way, of the smallest message."""


class Failure(_Part):
    """How long it takes to know that an encoder is lost."""

    crash_seconds: Seconds = 0.1
    hang_seconds: Seconds = 2.0
    """``EPD_LIVENESS_TIMEOUT``."""


class Fleet(_Part):
    """How many of each there are. What is left out is chosen."""

    encoders: int | None = Field(None, gt=0, le=100_000)
    languages: int | None = Field(None, gt=0, le=100_000)


class Goals(_Part):
    """What a chosen fleet must keep to."""

    utilisation: float = Field(0.7, gt=0, lt=1)
    """The most that a stage may be used."""
    spare_encoders: int = Field(1, ge=0)
    """Encoders that may be lost and the rest still keeps to all of this."""
    ttft_p95: Seconds | None = None


class Inputs(_Part):
    """Everything."""

    traffic: Traffic
    encoder: Encoder = Encoder()
    language: Language = Language()
    embeddings: Embeddings = Embeddings()
    network: Network = Network()
    failure: Failure = Failure()
    fleet: Fleet = Fleet()
    goals: Goals = Goals()


EXAMPLE = "example.toml"
NOTHING: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def example() -> str:
    """A file to begin with."""
    return (resources.files("services.loadtest.capacity") / EXAMPLE).read_text()


def read(path: Path | None, changes: Sequence[str] = (), measured: Mapping[str, Mapping[str, Any]] = NOTHING) -> Inputs:
    """The inputs of a file, with what was ``measured`` in place of its own, and then ``changes``, each ``section.key=value``.

    Raises:
        ValueError: something is wrong with them; the message says what to change.
        OSError: there is no such file.
    """
    tables: dict[str, dict[str, Any]] = {}
    for source in (_parsed(path), measured, *map(_change, changes)):
        for section, table in source.items():
            if not isinstance(table, Mapping):
                raise ValueError(f"{section} = {table!r} is in no section: keys are in [traffic], [encoder] and so on")
            tables.setdefault(section, {}).update(table)
    try:
        return Inputs.model_validate(tables)
    except ValidationError as error:
        lines = [f"  {_key(each['loc'])}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors()]
        raise ValueError("\n".join(["the inputs are not complete, or not right:", *lines])) from error


def written(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of numbers as TOML."""
    return "\n".join(
        line for name, table in tables.items() for line in (f"[{name}]", *(f"{key} = {table[key]}" for key in table), "")
    )


def _parsed(path: Path | None) -> dict[str, Any]:
    try:
        return {} if path is None else tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def _change(text: str) -> dict[str, Any]:
    section, _, rest = text.partition(".")
    key, equals, value = rest.partition("=")
    if not (section and key.strip() and equals):
        raise ValueError(f"{text!r} is no change: write it as traffic.rate=50")
    try:
        return {section.strip(): {key.strip(): tomllib.loads(f"value = {value}")["value"]}}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f'{value!r} in {text!r} is no value: write numbers as 50, durations as "2s"') from error


def _key(where: tuple[int | str, ...]) -> str:
    return ".".join(str(each) for each in where[:2]) or "inputs"
