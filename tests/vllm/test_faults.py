"""Encoders that die, hang and lie on order, with vLLM as the engine: each fault has its code and leaves no trace."""

from __future__ import annotations

import pytest

from tests.chaos.test_faults_end_to_end import (  # noqa: F401
    cleared,
    services,
    test_a_bad_item_fails_its_own_request_only,
    test_a_fault_has_its_code_and_leaves_no_trace,
    test_a_harmless_fault_is_harmless,
)

pytestmark = pytest.mark.vllm
