"""Warnings of libraries that are useless to a user, or that commands word better."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_stray_warnings() -> Iterator[None]:
    """Run a command in the block without them; all other warnings are shown.

    They are of a text longer than the tokenizer's maximum (prompts are checked against the model's
    context), of missing PyTorch, of calls in libraries, and of coremltools off the Mac.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for name in ("transformers.tokenization_utils_base", "coremltools"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
        yield
