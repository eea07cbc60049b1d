"""Warnings of libraries that are useless to a user, or that commands word better."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_stray_warnings() -> Iterator[None]:
    """Run a command in the block without them; all other warnings are shown.

    Left out are: a text longer than the tokenizer's maximum (prompts are checked against the
    model's context), missing PyTorch, libraries' calls of what is going to be renamed, and what of
    coremltools is missing off the Mac or newer than what it was tested with.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    names = "transformers.tokenization_utils_base", "coremltools"
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", category=FutureWarning, module=r"(transformers|peft)\."
            )
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
