"""The demonstration model's tokenizer: byte-level BPE trained on the mixture's text."""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specstream_mlx.staging import staged_directory

from . import mixture, tasks

CONTEXT = 2048
"""Tokens: a text of 3,000 characters and its correction have some 1,700."""

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def _corpus(items: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(items):
        item = mixture.draw(rng, None)
        yield tasks.instructed(item)
        yield item.target


def train_tokenizer(
    vocab_size: int = 6144, items: int = 40_000, seed: int = 0
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on the mixture's text; every digit is a token of its own.

    Args:
        vocab_size: number of tokens.
        items: training items to learn from.
        seed: seed of the items.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(items, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def save_tokenizer(directory: Path, seed: int = 0) -> PreTrainedTokenizerFast:
    """Train the tokenizer with its defaults and write its Hugging Face files to ``directory``."""
    tokenizer = train_tokenizer(seed=seed)
    with staged_directory(directory) as scratch:
        tokenizer.save_pretrained(scratch)
    return tokenizer
