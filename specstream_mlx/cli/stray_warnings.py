"""Warnings of transformers and PEFT that tell a user nothing, or what the commands say better."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_stray_warnings() -> Iterator[None]:
    """Run a command in the block without them; all other warnings are shown.

    Left out are: that a text is longer than the tokenizer's maximum, as a prompt is checked against
    the model's own context; that PyTorch is missing, which the commands that need it say; and that
    one of the libraries calls what another one is going to rename.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    lengths = logging.getLogger("transformers.tokenization_utils_base")
    before = lengths.level
    lengths.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", category=FutureWarning, module=r"(transformers|peft)\."
            )
            yield
    finally:
        lengths.setLevel(before)
