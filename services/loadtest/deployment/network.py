"""Network conditions as commands of ``tc`` and ``iptables``. Nothing here runs them.

Packets are dropped by iptables in the part's own network namespace, both ways, on everything but its loopback. They vanish:
the other side hears nothing at all, where a link that is down would be an error at once. Bandwidth, and latency where the
kernel can, are made by ``tc`` at both ends of the part's link, since a queue only ever holds up what leaves.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.loadtest.scenario import seconds

Command = tuple[str, ...]

PROBE: Command = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
"""Fails where the kernel has no netem; for a network namespace that is thrown away after."""

NO_NETEM = "latency and jitter need the kernel's netem (module sch_netem), which is missing here; bandwidth and loss do not"

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?bit", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_WAYS = (("INPUT", "-i"), ("OUTPUT", "-o"))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What becomes of the packets of a part: each way, so that the round trip takes twice the latency."""

    latency: float = 0.0
    """Seconds."""
    jitter: float = 0.0
    loss: float = 0.0
    """Share of packets, up to 1."""
    bandwidth: float | None = None
    """Bits a second."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Conditions:
        """The conditions that an action's options say, as in ``latency=50ms jitter=10ms loss=1% bandwidth=20mbit``.

        Raises:
            ValueError: one is none; the message says how to write it.
        """
        found = cls(
            _time(options.get("latency", "0s")),
            _time(options.get("jitter", "0s")),
            _share(options.get("loss", "0")),
            None if "bandwidth" not in options else _rate(options["bandwidth"]),
        )
        if found == cls():
            raise ValueError("say how slow: latency=50ms, jitter=10ms, loss=1% or bandwidth=20mbit")
        if found.jitter and not found.latency:
            raise ValueError("jitter varies a latency: give one, as in latency=50ms jitter=10ms")
        return found

    @property
    def delays(self) -> bool:
        """Whether it needs netem; the rest can be done without."""
        return self.latency > 0


def partition() -> list[Command]:
    """No packet passes."""
    return [("iptables", "-w", "-I", chain, "!", way, "lo", "-j", "DROP") for chain, way in _WAYS]


def heal() -> list[Command]:
    """Undoes ``partition``."""
    return [("iptables", "-w", "-D", chain, "!", way, "lo", "-j", "DROP") for chain, way in _WAYS]


def lose(conditions: Conditions, netem: bool) -> list[Command]:
    """Some packets do not pass, in the part's namespace; nothing where there is netem, which does that in ``shape``."""
    return [("iptables", "-w", "-A", chain, *rule) for chain, rule in _losses(conditions, netem)]


def lose_no_more(conditions: Conditions, netem: bool) -> list[Command]:
    """Undoes ``lose``."""
    return [("iptables", "-w", "-D", chain, *rule) for chain, rule in _losses(conditions, netem)]


def shape(device: str, conditions: Conditions, netem: bool) -> list[Command]:
    """What leaves by a device is held up. ``netem`` says whether the kernel has it."""
    add = ("tc", "qdisc", "replace", "dev", device, "root")
    rate = conditions.bandwidth
    if netem:
        words: list[str] = []
        if conditions.latency:
            words += ["delay", _ms(conditions.latency)]
            words += [_ms(conditions.jitter)] if conditions.jitter else []
        words += ["loss", f"{conditions.loss * 100:g}%"] if conditions.loss else []
        words += ["rate", f"{rate:.0f}bit"] if rate else []
        # As many packets as are under way at a gigabit and 100 ms; the default of 1000 would lose some of a burst.
        return [(*add, "netem", "limit", "10000", *words)]
    if rate is None:
        return []
    # The bucket fills once a timer tick (100 a second and more), and takes a whole packet of loopback's size.
    burst = max(64 * 1024, math.ceil(rate / 8 / 100))
    return [(*add, "tbf", "rate", f"{rate:.0f}bit", "burst", f"{burst}b", "latency", "400ms")]


def unshape(device: str, conditions: Conditions, netem: bool) -> list[Command]:
    """Undoes ``shape``."""
    return [("tc", "qdisc", "del", "dev", device, "root")] if shape(device, conditions, netem) else []


def script(commands: Sequence[Command]) -> str:
    """The commands as one line for ``sh -c``, which ends at the first that fails."""
    return " && ".join(shlex.join(command) for command in commands) or "true"


def _losses(conditions: Conditions, netem: bool) -> list[tuple[str, Command]]:
    if netem or not conditions.loss:
        return []
    dice = ("-m", "statistic", "--mode", "random", "--probability", f"{conditions.loss:g}")
    return [(chain, ("!", way, "lo", *dice, "-j", "DROP")) for chain, way in _WAYS]


def _time(text: str) -> float:
    found = seconds(text)
    if not isinstance(found, float):
        raise ValueError(f"{text!r} is no duration; write it as 50ms")
    return found


def _share(text: str) -> float:
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"loss={text} is no share: write it as 1% or 0.01") from None
    if not 0 <= share <= 1:
        raise ValueError(f"loss={text} must be between 0% and 100%")
    return share


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise ValueError(f"bandwidth={text} is none: write it in bits a second, as 20mbit, 500kbit or 1gbit")
    return float(found[1]) * _FACTORS[(found[2] or "").lower()]


def _ms(value: float) -> str:
    return f"{value * 1000:g}ms"
