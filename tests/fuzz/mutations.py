"""What can be wrong with a message: changes of its header's text and fields, of its frames, and of both so that they agree."""

from __future__ import annotations

import contextlib
import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import xxhash

from shared.wire import DTYPES, MAX_HEADER_BYTES
from tests.fuzz.spelling import Pairs, Raw, parse, spell

Frames = list[bytes]

DIGEST = re.compile(rb'("digest":\s*")[^"]*(")')
_INTEGERS = (-1, 0, 1, 2, 3, 4, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**400)
_RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "-0",
    "0.0",
    "1E0",
    "1e400",
    "-1e400",
    "1e-400",
    "9" * 4300,
    "9" * 4301,
    "01",
    "+1",
    "0x1",
)
_TEXTS = (
    "",
    "\0",
    "a" * 129,
    "a" * 5000,
    "é",
    "\U0001f600",
    "\u2028",
    '"',
    "\\",
    "../..",
    "epd-x-1",
    "embeds",
    "shm",
    "cuda_ipc",
)
_RAW_TEXTS = (r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '"\x01"', r'"\x"', "'a'", '"a')


def mutated(rng: random.Random, frames: Frames) -> Frames:
    """The same message with one thing wrong, or a few. Half of the time its digest is right for what it is now."""
    frames = list(frames)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        rng.choice(_MUTATIONS)(rng, frames)
    return with_digest(frames) if rng.random() < 0.5 else frames


def with_digest(frames: Frames) -> Frames:
    """The same message with the digest that it should have, if it has one at all."""
    blank = DIGEST.sub(rb"\1\2", frames[0], count=1)
    digest = xxhash.xxh3_128(blank)
    for frame in frames[1:]:
        digest.update(frame)
    return [DIGEST.sub(rb"\g<1>%b\2" % digest.hexdigest().encode(), frames[0], count=1), *frames[1:]]


def hostile(rng: random.Random) -> Any:
    """A value that a field hardly ever has."""
    return rng.choice(
        (
            lambda: None,
            lambda: rng.choice((True, False)),
            lambda: rng.choice(_INTEGERS) * rng.choice((1, -1)),
            lambda: rng.choice((0.5, -0.0, 1e308, 5e-324, 1.0)),
            lambda: Raw(rng.choice(_RAW)),
            lambda: rng.choice(_TEXTS),
            lambda: Raw(rng.choice(_RAW_TEXTS)),
            lambda: [],
            lambda: Pairs(),
            lambda: [0] * rng.choice((1, 2, 3, 8, 9, 65)),
            lambda: Raw("[" * 64 + "]" * 64),
            lambda: Raw('{"a":' * 64 + "0" + "}" * 64),
            lambda: Raw("[" * rng.choice((200, 300, 5000))),
        )
    )()


def _places(tree: Any) -> Iterator[tuple[Any, int]]:
    """Every place in a tree that can hold another value: a list, or the pairs of an object, and the index there."""
    if isinstance(tree, list):
        for index, value in enumerate(tree):
            yield tree, index
            yield from _places(value[1] if isinstance(tree, Pairs) else value)


def _get(holder: Any, index: int) -> Any:
    return holder[index][1] if isinstance(holder, Pairs) else holder[index]


def _set(holder: Any, index: int, value: Any) -> None:
    holder[index] = (holder[index][0], value) if isinstance(holder, Pairs) else value


def _of_header(change: Callable[[random.Random, Any, Frames], None]) -> Callable[[random.Random, Frames], None]:
    """A change of the header as a tree. Where it is none any more, or lacks what is to be changed, nothing happens."""

    def changed(rng: random.Random, frames: Frames) -> None:
        with contextlib.suppress(ValueError, LookupError, StopIteration, TypeError, AttributeError, RecursionError):
            tree = parse(frames[0])
            if isinstance(tree, Pairs):
                change(rng, tree, frames)
                frames[0] = spell(tree).encode()

    return changed


@_of_header
def _field(rng: random.Random, tree: Any, frames: Frames) -> None:
    """One field, anywhere, is another."""
    holder, index = _pick(rng, list(_places(tree)))
    value = _get(holder, index)
    change = rng.randrange(8)
    if change == 0:
        del holder[index]
    elif change == 1:
        holder.insert(index, holder[index])
    elif change == 2 and isinstance(holder, Pairs):
        holder.insert(rng.randrange(len(holder) + 1), (holder[index][0], hostile(rng)))  # a key that comes twice
    elif change == 3 and isinstance(holder, Pairs):
        holder[index] = (rng.choice((*_TEXTS, holder[rng.randrange(len(holder))][0])), value)
    elif change == 4:
        other_holder, other = _pick(rng, list(_places(tree)))
        _set(holder, index, copy.deepcopy(_get(other_holder, other)))
    elif change == 5 and isinstance(value, int):
        _set(holder, index, value + rng.choice((-1, 1, 2, -(2**31), 2**32, 2**63)))
    elif change == 6 and isinstance(value, str) and value:
        at = rng.randrange(len(value))
        _set(holder, index, value[:at] + rng.choice("0fz\0é") + value[at + rng.randrange(2) :])
    else:
        _set(holder, index, hostile(rng))


@_of_header
def _order(rng: random.Random, tree: Any, frames: Frames) -> None:
    """Fields in another order: still the same header."""
    rng.shuffle(tree)


@_of_header
def _shape(rng: random.Random, tree: Any, frames: Frames) -> None:
    """A tensor's shape is another, often with the same number of values, or with none."""
    spec = _pick(rng, _value(tree, "tensors"))
    shape = _value(spec, "shape")
    change = rng.randrange(6)
    if change == 0:
        shape.reverse()
    elif change == 1:
        shape[:] = [1] * rng.randrange(8) + shape
    elif change == 2:
        shape[:] = [-size for size in shape]
    elif change == 3:
        shape[:] = [0, rng.choice(_INTEGERS), rng.choice(_INTEGERS)]
    elif change == 4 and len(shape) == 2:
        shape[:] = [shape[0] * 2, shape[1] // 2]
    else:
        shape[:] = [rng.choice(_INTEGERS) for _ in range(rng.randrange(10))]


@_of_header
def _place(rng: random.Random, tree: Any, frames: Frames) -> None:
    """The memory that tensors are said to lie in is another, or another part of it, or lent for another message."""
    place = _value(tree, "place")
    lease, offsets = _value(place, "lease"), _value(place, "offsets")
    change = rng.randrange(6)
    if change == 0:
        _put(lease, "ledger", copy.deepcopy(_value(place, "segment")))
    elif change == 1:
        _put(place, "segment", copy.deepcopy(_value(lease, "ledger")))
    elif change == 2:
        memory = rng.choice((_value(place, "segment"), _value(lease, "ledger")))
        _put(memory, rng.choice(("pid", "fd", "size")), rng.choice((1, 2, 3, 4, 8, 4096, 2**30)))
        _put(memory, "name", f"epd-other-{rng.getrandbits(32)}")
    elif change == 3:
        _put(lease, "slot", _value(lease, "slot") + rng.choice((-1, 1, 2**12, 2**63)))
    elif change == 4:
        _put(lease, "generation", _value(lease, "generation") + rng.choice((-1, 1, 2**60)))
    else:
        offsets[_pick(rng, list(range(len(offsets))))] += rng.choice((-1, 1, 4, 2**16, -(2**16), 2**63))


@_of_header
def _whole(rng: random.Random, tree: Any, frames: Frames) -> None:
    """Another item altogether, with nothing wrong: another grid, and tensors that fit it."""
    height, width = rng.randrange(1, 5), rng.randrange(1, 5)
    tokens, dtype = height * width, rng.choice(list(DTYPES))
    _put(tree, "grid_thw", [1, 2 * height, 2 * width])
    _put(tree, "num_tokens", tokens)
    for number, spec in enumerate(_value(tree, "tensors"), 1):
        hidden = min(max(1, _value(spec, "shape")[-1]), 512)
        _put(spec, "dtype", dtype)
        _put(spec, "shape", [tokens, hidden])
        values = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
        frames[number] = values.to(DTYPES[dtype]).view(torch.uint8).numpy().tobytes()


def _text(rng: random.Random, frames: Frames) -> None:
    """The header's bytes, whatever they mean."""
    text = bytearray(frames[0])
    at = rng.randrange(len(text) + 1)
    change = rng.randrange(9)
    if change == 0 and text:
        text[at % len(text)] ^= 1 << rng.randrange(8)
    elif change == 1:
        del text[at:]
    elif change == 2:
        text[at:at] = rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\0", b"\xef\xbb\xbf", b",", b"}", b"//"))
    elif change == 3:
        text[at:at] = bytes(rng.getrandbits(8) for _ in range(rng.randrange(16)))
    elif change == 4:
        text += b" " * (MAX_HEADER_BYTES + rng.choice((-1, 0, 1)) - len(text))
    elif change == 5:
        text[:] = rng.choice((b"[", b'{"version":3,"a":')) * rng.choice((1, 64, 200, 4000))
    elif change == 6:
        text[:] = b"".join((b"\xef\xbb\xbf", text)) if rng.random() < 0.5 else text.decode("latin-1").encode("utf-16")
    elif change == 7:
        text += bytes(text)
    else:
        text[:] = bytes(rng.getrandbits(8) for _ in range(rng.randrange(64)))
    frames[0] = bytes(text)


def _frame(rng: random.Random, frames: Frames) -> None:
    """A frame's bytes, or which frames there are."""
    if len(frames) < 2:
        frames.append(bytes(rng.randrange(64)))
        return
    at = rng.randrange(1, len(frames))
    frame = bytearray(frames[at])
    change = rng.randrange(9)
    if change == 0 and frame:
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    elif change == 1:
        del frame[rng.randrange(len(frame) + 1) :]
    elif change == 2:
        frame += bytes(rng.randrange(1, 9))
    elif change == 3 and len(frame) >= 4:
        place = 4 * rng.randrange(len(frame) // 4)
        frame[place : place + 4] = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f"))
    elif change == 4:
        del frames[at]
        return
    elif change == 5:
        frames.insert(at, frames[at])
        return
    elif change == 6:
        frames.insert(rng.randrange(1, len(frames) + 1), b"")
        return
    elif change == 7:
        other = rng.randrange(1, len(frames))
        frames[at], frames[other] = frames[other], frames[at]
        return
    else:
        frame = bytearray(b"\xff\xff\x7f\x7f" * (len(frame) // 4))  # finite each, but not their sum
    frames[at] = bytes(frame)


def _pick(rng: random.Random, options: Any) -> Any:
    """One of a list, which a broken header may not have, or empty."""
    if not isinstance(options, list) or not options:
        raise LookupError
    return rng.choice(options)


def _value(pairs: Any, key: str) -> Any:
    return next(value for name, value in pairs if name == key)


def _put(pairs: Any, key: str, value: Any) -> None:
    pairs[[name for name, _ in pairs].index(key)] = (key, value)


_MUTATIONS = (_field, _field, _field, _order, _shape, _place, _whole, _text, _frame)
