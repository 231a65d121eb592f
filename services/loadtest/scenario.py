"""Scenarios: what traffic runs, what is done to the deployment meanwhile, and what must hold. Read from TOML."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|min|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(text: object) -> object:
    """``"1.5s"``, ``"200 ms"``, ``"3m"``, ``"2h"`` as seconds; numbers stay.

    Raises:
        ValueError: it is no duration.
    """
    if not isinstance(text, str):
        return text
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write it as 10s, 200ms, 3m or 2h")
    return float(found["number"]) * _UNITS[found["unit"]]


Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Mix(_Part):
    """How many requests of each kind there are, relative to the others."""

    text: float = Field(0, ge=0)
    image: float = Field(0, ge=0)
    """One new picture."""
    images: float = Field(0, ge=0)
    """Two or three new pictures, and a question about one of them."""
    repeated: float = Field(0, ge=0)
    """A picture of a few that come again and again."""
    huge: float = Field(0, ge=0)
    """One new picture of several megapixels."""
    broken: float = Field(0, ge=0)
    """Bytes that are no picture: a client's error."""

    @model_validator(mode="after")
    def _something(self) -> Mix:
        if not any(self.model_dump().values()):
            raise ValueError("the mix is empty: give at least one kind a share, such as text = 1")
        return self

    @property
    def new_pictures(self) -> bool:
        """Whether there are requests that no cache can answer."""
        return bool(self.image or self.images or self.huge)


class Step(_Part):
    """From ``at`` on, ``load`` arrivals a second or users; between steps it changes evenly where ``ramp`` is set."""

    at: Seconds
    load: float = Field(ge=0)


class Traffic(_Part):
    """What clients do. With ``rate`` the loop is open: requests come at random, so many a second, whatever becomes of them.
    With ``users`` it is closed: each asks, waits for the answer, thinks, and asks again."""

    rate: float | None = Field(None, gt=0)
    users: int | None = Field(None, gt=0)
    steps: tuple[Step, ...] = ()
    """Later loads in place of ``rate`` or ``users``."""
    ramp: bool = False
    """Whether the load changes evenly from one step to the next, rather than at once."""
    think: Seconds = 0.0
    """Mean pause of a user between an answer and the next request."""
    mix: Mix
    streaming: Share = 0.5
    hang_up: Share = 0.0
    """Share of clients that leave before the answer is there."""
    deadline: Seconds = 10.0
    """Seconds that each request may take; sent along as ``x-request-timeout``."""
    max_tokens: int = Field(32, gt=0)
    most_open: int = Field(2000, gt=0)
    """Requests that may be open at once in one generator process; past it, they are skipped and counted."""

    @model_validator(mode="after")
    def _one_loop(self) -> Traffic:
        if (self.rate is None) == (self.users is None):
            raise ValueError("give either rate (requests a second) or users")
        return self

    @property
    def open_loop(self) -> bool:
        return self.rate is not None

    def load_at(self, at: float) -> float:
        """Arrivals a second, or users, at a time."""
        load = float(self.rate if self.rate is not None else self.users or 0)
        steps = [Step(at=0, load=load), *sorted(self.steps, key=lambda step: step.at)]
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            if after is None or at < after.at:
                if self.ramp and after is not None and after.at > step.at:
                    share = max(0.0, (at - step.at) / (after.at - step.at))
                    return step.load + share * (after.load - step.load)
                return step.load
        return load


class Action(_Part):
    """One line of a timeline: ``10s kill encoder-1`` or ``20s corrupt encoder-* probability=0.1 for 5s``.

    It names what is done, to whom (names or patterns of the deployment's parts; every encoder where none is named), with which
    parameters, and, with ``for``, after how long it is undone.
    """

    at: float
    line: str
    verb: str
    targets: tuple[str, ...]
    options: dict[str, str]
    lasts: float | None

    @classmethod
    def parse(cls, text: str) -> Action:
        """Raises ValueError where a line is none."""
        words = shlex.split(text)
        if len(words) < 2:
            raise ValueError(f"{text!r} needs a time and an action, as in '10s kill encoder-1'")
        at = seconds(words[0])
        rest, lasts = words[1:], None
        if "for" in rest:
            where = rest.index("for")
            if len(rest) != where + 2:
                raise ValueError(f"{text!r} must end with its duration, as in 'for 5s'")
            lasts = seconds(rest[-1])
            rest = rest[:where]
        options = dict(word.split("=", 1) for word in rest[1:] if "=" in word)
        targets = tuple(word for word in rest[1:] if "=" not in word)
        assert isinstance(at, float)
        assert lasts is None or isinstance(lasts, float)
        return cls(
            at=at,
            line=" ".join(words[1:]),
            verb=rest[0],
            targets=targets or ("encoder-*",),
            options=options,
            lasts=lasts,
        )


def _action(text: object) -> object:
    return Action.parse(text) if isinstance(text, str) else text


class Verdicts(_Part):
    """What must hold; a promise whose bound is "off" is not judged. The bounds are those of the failure contract."""

    grace: Seconds = 1.0
    """Seconds past its deadline in which a request may still be answered."""
    wrong: int = Field(0, ge=0)
    """Answers about another picture than the request's that may be."""
    codes: tuple[str, ...] = (
        "encoder_unavailable",
        "encoder_failed",
        "encoder_lost",
        "encoder_overloaded",
        "embedding_timeout",
        "embedding_incomplete",
        "embedding_corrupt",
        "embedding_incompatible",
        "engine_overloaded",
    )
    """Codes that a 503 may have here."""
    must_see: tuple[str, ...] = ()
    """Codes that must come, or the faults did nothing; ``ok`` is one, too. Of ``a | b`` one is enough."""
    calm_success: Share | Literal["off"] = 1.0
    """Least share of requests that succeed while no fault is in effect, nor its recovery."""
    fault_success: Share | Literal["off"] = "off"
    """Least share of requests with pictures that succeed of those sent, or under way, while faults are in effect; 1 where
    others must take over."""
    text_success: Share | Literal["off"] = 1.0
    """Least share of texts that succeed, at any time."""
    text_p99_ratio: float | Literal["off"] = 1.2
    """p99 of texts while faults of encoders are in effect, and no surge of load, over that in calm."""
    first_503: Seconds | Literal["off"] = "off"
    """Seconds in which a disabling fault must have become a 503 or another encoder's answer, for requests under way and for
    later ones."""
    recovered: Seconds | Literal["off"] = 4.0
    """Seconds from a fault's end to the first 200 about a new picture."""
    p99: Seconds | Literal["off"] = "off"
    """p99 of successful requests in calm."""
    no_leftovers: bool = True
    """Whether nothing may be held a moment after the end."""
    late_p99: Seconds = 0.25
    """Seconds by which the generator may be late."""


class Pair(_Part):
    """The pair that is started where no other target is given."""

    encoders: int = Field(1, gt=0)
    encoder_module: str = "services.encoder"
    """What runs as an encoder, by ``python -m``: another one to try out an implementation, or this tool."""
    language_module: str = "services.language"
    encoder: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Settings of encoders, by their name without ``EPD_``."""
    language: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Scenario(_Part):
    """One scenario."""

    name: str
    title: str
    about: str = ""
    """What it shows, for a reader of the report."""
    lasts: Seconds
    repeat: Seconds | None = None
    """The timeline begins anew every so often."""
    traffic: Traffic
    timeline: tuple[Annotated[Action, BeforeValidator(_action)], ...] = ()
    verdicts: Verdicts = Verdicts()
    pair: Pair = Pair()

    @model_validator(mode="after")
    def _in_time(self) -> Scenario:
        round_ = min(self.lasts, self.repeat or self.lasts)
        late = [action.line for action in self.timeline if action.at >= round_]
        if late:
            raise ValueError(f"{late[0]!r} comes after the end; {self._round} lasts {round_:g} s")
        return self

    @property
    def _round(self) -> str:
        return "the scenario" if self.repeat is None else "a round"

    def lasting(self, length: float) -> Scenario:
        """The same scenario for another time.

        Raises:
            ValueError: its timeline does not fit in.
        """
        late = [action for action in self.timeline if action.at >= length]
        if late:
            raise ValueError(f"{self.name} does {late[0].line!r} at {late[0].at:g} s: it must last longer than that")
        return self.model_copy(update={"lasts": length})

    def actions(self) -> list[Action]:
        """The whole timeline in order of time, repeats written out."""
        rounds = 1 if self.repeat is None else max(1, int(self.lasts // self.repeat))
        every = self.repeat or 0.0
        found = [
            action.model_copy(update={"at": action.at + every * turn}) for turn in range(rounds) for action in self.timeline
        ]
        return sorted(found, key=lambda action: action.at)


def shipped() -> dict[str, Path]:
    """The scenarios that come with the tool, by name."""
    folder = resources.files("services.loadtest") / "scenarios"
    return {path.stem: path for path in sorted(Path(str(folder)).glob("*.toml"))}


def load(name: str) -> Scenario:
    """A shipped scenario by its name, or one from a file.

    Raises:
        ValueError: there is none, or it is not one; the message says what to change.
    """
    path = shipped().get(name, Path(name))
    if not path.is_file():
        raise ValueError(f"there is no scenario {name!r}: name a TOML file, or one of {', '.join(shipped())}")
    try:
        return Scenario.model_validate({"name": path.stem, **tomllib.loads(path.read_text())})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}" for each in error.errors()]
        raise ValueError("\n".join([f"{path} is no scenario:", *lines])) from error
