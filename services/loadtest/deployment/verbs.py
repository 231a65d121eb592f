"""What can be done to a deployment, what undoes it, and how lines of a timeline say it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from services.loadtest.scenario import seconds

UNDONE_BY = {"kill": "start", "stop": "start", "pause": "resume", "disconnect": "connect", "slow": "restore"}
"""What begins, and what ends it. Whatever else begins is a kind of the encoder's fault route, or ``restart``, which ends by
itself."""
ENDINGS = frozenset({*UNDONE_BY.values(), "clear"})
VERBS = ENDINGS | UNDONE_BY.keys() | {"restart"}
NETWORK = frozenset({"disconnect", "connect", "slow", "restore"})

_ENDS_PROCESS = frozenset({"kill", "stop", "restart", "crash"})
_OPTIONS = {
    "slow": frozenset({"latency", "jitter", "loss", "bandwidth"}),
    "disconnect": frozenset({"by"}),
    "kill": frozenset({"by"}),
}


def is_kind(verb: str) -> bool:
    """Whether it is none of the tool's own verbs, and so a kind of fault of the encoder's ``/v1/faults``."""
    return verb not in VERBS


def disabling(verb: str, options: Mapping[str, str]) -> bool:
    """Whether a target certainly brings no embeddings of what it is asked for while this is in effect.

    ``hang`` does so if it takes hold of everything, for as long as it is set, before the tower. ``crash`` does not count: it
    waits for a first call, may let that one's embeddings out, and a supervisor starts another process without the fault.
    """
    if verb == "hang":
        values = fault_of(verb, options)
        del values["kind"]
        whole = values.pop("probability", 1) == 1
        return whole and values.pop("at", "fetch") == "fetch" and not values
    return verb in ("kill", "stop", "restart", "pause", "disconnect")


def ended(ending: str, going_on: Collection[str]) -> set[str]:
    """Which of the verbs that are in effect on one part end with another one on it.

    A new process has none of the old one's faults, and is not paused; its network stays what it was made.
    """
    kinds = {verb for verb in going_on if is_kind(verb)}
    if ending == "clear":
        return kinds
    if ending == "restart" or (ending == "start" and not _ENDS_PROCESS.isdisjoint(going_on)):
        return {verb for verb in going_on if verb in _ENDS_PROCESS or verb == "pause"} | kinds
    return {verb for verb in going_on if UNDONE_BY.get(verb) == ending}


def check_options(verb: str, options: Mapping[str, str]) -> None:
    """Raises ValueError where one of the tool's own verbs does not know an option."""
    known = _OPTIONS.get(verb, frozenset())
    for name in options:
        if name not in known:
            raise ValueError(f"{verb} has no option {name!r}" + (f"; it has {', '.join(sorted(known))}" if known else ""))
    if verb == "disconnect" and options.get("by", "iptables") not in ("network", "iptables"):
        raise ValueError(f"disconnect by={options['by']}: it is done by=network or by=iptables")
    if verb == "kill" and options.get("by", "process") not in ("node", "process"):
        raise ValueError(f"kill by={options['by']}: what is killed is a process, or by=node all that runs on the same machine")


def fault_of(kind: str, options: Mapping[str, str]) -> dict[str, object]:
    """The fault as ``/v1/faults`` takes it; ``p`` is short for probability."""
    return {"kind": kind} | {{"p": "probability"}.get(name, name): fault_value(text) for name, text in options.items()}


def fault_value(text: str) -> object:
    """An option's value: JSON where it is some, a duration in seconds, else the text."""
    try:
        return json.loads(text, parse_constant=_not_finite)
    except ValueError:
        pass
    try:
        return seconds(text)
    except ValueError:
        return text


def _not_finite(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
