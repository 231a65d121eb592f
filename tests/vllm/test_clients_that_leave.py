"""Clients that hang up, and deadlines that pass, with vLLM as the engine: what they held is free again."""

from __future__ import annotations

import pytest

from tests.chaos.test_clients_that_leave import (  # noqa: F401
    cleared,
    services,
    test_a_deadline_ends_an_answer_too,
    test_a_deadline_ends_the_work_on_both_sides,
    test_a_generous_timeout_changes_nothing,
    test_at_each_stage_of_the_encoder,
    test_in_the_engine,
    test_pictures_that_wait_leave_room_for_text,
)

pytestmark = pytest.mark.vllm
