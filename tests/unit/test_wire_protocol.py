"""The page that describes the wire is right to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import torch
import xxhash
from zmq.utils import z85

from shared.control import EncodeRequest, EncodeResponse, EncoderStatus, Memory, Subscription
from shared.security import control_token, curve_pair, derive_key
from shared.wire import VERSION, Header, Heartbeat, SharedMemory, pack, read_header, read_tensors
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "wire-protocol.md").read_text()
SECRET = b"an example, not a secret"


def blocks(kind: str) -> list[str]:
    """What stands between fences of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_is_a_good_message() -> None:
    [head], [frame] = blocks("header"), blocks("frame")
    raw = head.removesuffix("\n").encode()
    header = read_header(raw)
    assert isinstance(header, Header)
    message = read_tensors(header, [bytes.fromhex(frame)])
    assert torch.equal(message.tensors["embeds"], torch.tensor([[1.0, -2.0]]))
    assert pack(header, message.tensors)[0] == raw


def test_the_digest_is_what_the_page_says_it_is() -> None:
    [head], [frame] = blocks("header"), blocks("frame")
    raw = head.removesuffix("\n").encode()
    told = json.loads(raw)["digest"]
    without = raw.replace(told.encode(), b"")
    assert xxhash.xxh3_128_hexdigest(without + bytes.fromhex(frame)) == told


def test_the_header_of_somebody_who_writes_json_another_way_is_as_good() -> None:
    [head], [frame] = blocks("header"), blocks("frame")
    fields = {name: value for name, value in json.loads(head).items() if name not in ("place", "failure", "kind")}
    without = json.dumps(fields | {"digest": ""}, indent=1).encode()
    digest = xxhash.xxh3_128_hexdigest(without + bytes.fromhex(frame)).encode()
    header = read_header(without.replace(b'"digest": ""', b'"digest": "' + digest + b'"'))
    assert isinstance(header, Header)
    assert read_tensors(header, [bytes.fromhex(frame)]).header.digest == digest.decode()


def test_the_keys_are_what_the_page_says_they_are() -> None:
    [keys] = blocks("keys")
    told = dict(line.split() for line in keys.splitlines())
    assert told == {
        purpose: derive_key(SECRET, purpose).hex() for purpose in ("control-token", "curve/language", "curve/encoder")
    }
    assert told["control-token"] == control_token(SECRET)
    for end in ("language", "encoder"):
        assert z85.decode(curve_pair(SECRET, end).secret).hex() == told[f"curve/{end}"]


def test_the_table_lists_all_fields_of_a_header_and_no_other() -> None:
    table = PAGE[PAGE.index("| field | type") : PAGE.index("**The digest**")]
    listed = [name for line in table.splitlines()[2:] if line for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(listed) == sorted(Header.model_fields)
    assert f"version {VERSION}" in PAGE.splitlines()[0]


def examples() -> Iterator[dict[str, object]]:
    yield from (json.loads(block) for block in blocks("json"))


@pytest.mark.parametrize(
    ("schema", "field"),
    [(Subscription, "interval"), (EncoderStatus, "info"), (EncodeRequest, "items"), (SharedMemory, "segment")],
)
def test_the_examples_follow_the_schemas(
    schema: type[Subscription | EncoderStatus | EncodeRequest | SharedMemory], field: str
) -> None:
    [example] = [example for example in examples() if field in example]
    read = schema.model_validate_json(json.dumps(example))
    assert set(example) <= set(schema.model_fields)
    assert read.model_dump(exclude_unset=True, mode="json").keys() == example.keys()


@pytest.mark.parametrize(
    ("schema", "listed"),
    [
        (Heartbeat, '{"version": 4, "kind": "heartbeat", "encoder_id", "state", "items_in_work", "max_items"}'),
        (EncodeResponse, '{"encoder_id", "items": '),
        (Memory, '{"name", "pid", "fd", "size"}'),
    ],
)
def test_what_is_listed_in_the_text_are_all_fields(schema: type[Heartbeat | EncodeResponse | Memory], listed: str) -> None:
    assert listed in " ".join(PAGE.split())
    named = set(re.findall(r'"(\w+)"', listed)) - {"heartbeat"}
    assert named == set(schema.model_fields)
