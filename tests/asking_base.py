"""A tiny base that asks itself: a random model of whole words."""

from itertools import product
from pathlib import Path

import mlx.core as mx
from tiny_models import CHAT_TEMPLATE, END, SPECIAL_TOKENS, tiny_llama_directory
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["".join(pair) for pair in product(("ba", "de", "ki", "lo", "mu", "re"), repeat=2)]


def asking_base(directory: Path) -> Path:
    """Write the base, whose draws are prompts more often than not; returns its directory."""
    names = [*SPECIAL_TOKENS, *WORDS]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, SPECIAL_TOKENS[0]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tiny_llama_directory(directory, vocab_size=len(names), tie_word_embeddings=False)
    path = directory / "model.safetensors"
    weights = dict(mx.load(str(path)))
    weights["model.embed_tokens.weight"][:, 0] = 10.0  # so that the head's column is a bias
    weights["lm_head.weight"] *= 0.5
    weights["lm_head.weight"][:, 0] = mx.array([-2.0, 0.2, -2.0, -2.0] + [0.0] * len(WORDS))
    mx.eval(weights)
    mx.save_safetensors(str(path), weights, {"format": "mlx"})
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token=END,
        pad_token=SPECIAL_TOKENS[0],
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)
    return directory
