"""Faults in what a call is answered with."""

from __future__ import annotations

import pytest

from services.encoder.faults.answers import Error, Overload
from services.encoder.faults.base import Stage
from services.language.embeddings.dispatch import meaning_of
from shared.errors import EncoderOverloaded, EpdError, body_of, headers_of
from tests.unit.faults.calls import call, passes, setting


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "internal_error"),
        (502, "internal_error"),
        (503, "internal_error"),
        (404, "invalid_request"),
        (413, "invalid_request"),
    ],
)
async def test_error_answers_its_status_and_blames_nobody(status: int, code: str) -> None:
    fault = Error(status=status)
    faults, one = setting(fault), call(2)
    for stage in (Stage.FETCH, Stage.HASHED, Stage.PUBLISH):
        await passes(faults, stage, one)
    with pytest.raises(EpdError) as failure:
        await passes(faults, Stage.ADMIT, one)
    assert (failure.value.status, failure.value.code, failure.value.param) == (status, code, None)
    assert fault.fired == 1
    assert ("Retry-After" in headers_of(failure.value)) is (status == 503)


async def test_a_server_error_is_the_encoders_failure() -> None:
    with pytest.raises(EpdError) as failure:
        await passes(setting(Error(status=502)), Stage.ADMIT, call())
    body = body_of(failure.value).model_dump_json().encode()
    assert meaning_of(502, body, None, "http://encoder").code == "encoder_failed"


async def test_overload_refuses_as_for_load() -> None:
    with pytest.raises(EncoderOverloaded) as refusal:
        await passes(setting(Overload(retry_after=7)), Stage.ADMIT, call())
    assert headers_of(refusal.value) == {"Retry-After": "7"}
