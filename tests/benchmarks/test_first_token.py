"""The benchmark of the first text: what it waits for."""

import pytest

from benchmarks import first_token

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", [first_token.OURS, first_token.MLX_LM])
def test_both_commands_come_to_text(way, toy):
    prompt = "Proofread this message.\nhi ana can you send me the report"
    assert 0.1 < first_token.seconds_to_text(way, toy / "base", prompt) < 300


def test_a_process_that_ends_without_text_is_no_measurement(tmp_path):
    with pytest.raises(RuntimeError, match="ended without text"):
        first_token.seconds_to_text(first_token.OURS, tmp_path / "none", "Hi")
