"""Prompts that a base answers: as long as its context holds."""

from types import SimpleNamespace

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import tiny_llama_config, tiny_tokenizer

from specstream_mlx.prompts import chat_prompt, check_prompt
from specstream_mlx.train.distil import Answering, fitting


@pytest.mark.parametrize("scaled", [False, True])
def test_prompts_are_as_long_as_the_context_is_with_its_scaling(scaled):
    """YaRN reaches beyond ``max_position_embeddings`` where that is the original length."""
    config = tiny_llama_config(max_position_embeddings=32)
    if scaled:
        config["rope_scaling"] = {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        }  # fmt: skip
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    prompts = ["a", "b c d " * 8, "e f g " * 99]
    lengths = [len(chat_prompt(tokenizer, prompt)) for prompt in prompts]
    assert lengths[0] < 32 < lengths[1] < 128 < lengths[2]
    found = fitting(SimpleNamespace(config=config), tokenizer, prompts, Answering(), 512)
    assert found == prompts[: 1 + scaled]
    for prompt in found:  # what generation reads
        check_prompt(chat_prompt(tokenizer, prompt), config)
