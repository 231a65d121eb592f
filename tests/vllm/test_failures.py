"""The failure contract with vLLM as the engine: every way in which embeddings fail to arrive, and nothing is run locally."""

from __future__ import annotations

import pytest

from tests.integration.test_failures import (  # noqa: F401
    encoder,
    healthy_again,
    language,
    test_a_late_message_does_not_answer_a_later_request,
    test_an_encoder_that_fails_for_one_picture_is_still_asked_for_the_next,
    test_each_failure_has_its_code,
    test_equal_request_ids_do_not_mix_requests_up,
    test_no_encoder_configured_is_encoder_unavailable,
    test_one_of_three_items_missing_fails_the_request,
    test_other_floating_dtypes_are_converted,
    test_repeated_late_and_foreign_messages_are_dropped_and_counted,
)

pytestmark = pytest.mark.vllm
