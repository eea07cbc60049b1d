"""What the demonstration model's streams learn from: its own answers, and those of its adapters.

The base is asked what it draws as its user's words: freely; behind the first words of prompts of
general use, which are more various; and about passages, which are earlier answers, since a text to
summarize or to be asked about is longer than a draw.
"""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from specstream_mlx.staging import staged_file
from specstream_mlx.train.distil import SHIPPED, read_prompts

from ..pytorch.writing import Writer, Written
from . import tasks

ANSWER_TOKENS = 220
"""Of an answer of the base; longer ones are cut there."""
_OPENING_WORDS = 2
_BEHIND_OPENINGS, _OF_PASSAGES = 0.3, 0.2
"""Shares of the base's prompts."""
_PASSAGE_WORDS = 120
_HELD_OUT = 40
"""Of so many answers one is held out."""
_REQUESTS = (
    "Summarize: ",
    "Summarize this in two sentences: ",
    "Give me the key points of this text:\n",
    "Rewrite this in simpler words: ",
    "Correct the mistakes in this text: ",
)
"""For half of the passages; of the other half the base draws a question about them."""


def write_own_answers(writer: Writer, directory: Path, count: int, seed: int) -> None:
    """Let the base draw some ``count`` prompts and answer them.

    Args:
        writer: the base.
        directory: of ``train.jsonl`` and ``valid.jsonl``, prompts and completions.
        count: draws, of which about four in five are fit.
        seed: of the draws.
    """
    rng = random.Random(seed)
    shipped = read_prompts(SHIPPED)
    openings = [" ".join(prompt.split()[:_OPENING_WORDS]) for prompt in shipped]
    behind, of_passages = round(_BEHIND_OPENINGS * count), round(_OF_PASSAGES * count)
    begun = [""] * (count - behind - of_passages) + rng.choices(openings, k=behind)
    prompts = writer.draw_prompts(begun, seed)
    found = writer.answers(prompts, None, ANSWER_TOKENS)
    passages = [" ".join(answer.text.split()[:_PASSAGE_WORDS]) for answer in found]
    rng.shuffle(passages)
    passages = passages[:of_passages]
    half = len(passages) // 2
    # Passages may be alike, and no prompt must come to be learned and held out.
    about = list(dict.fromkeys(rng.choice(_REQUESTS) + passage for passage in passages[:half]))
    about += writer.draw_prompts([f"{passage}\n\n" for passage in passages[half:]], seed + 1)
    found += writer.answers(about, None, ANSWER_TOKENS)
    every = list(zip(prompts + about, found, strict=True))
    rng.shuffle(every)
    held_out = len(every) // _HELD_OUT
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "valid.jsonl", every[:held_out])
    _write(directory / "train.jsonl", every[held_out:])


def write_answers_of(
    writer: Writer, path: Path, task: str, contents: Sequence[str], most_tokens: int
) -> None:
    """Let a task's tuned base answer.

    Args:
        writer: the base with the task's LoRA.
        path: JSONL file of prompts and completions.
        task: its name.
        contents: what users type.
        most_tokens: of an answer.
    """
    template = tasks.prompt_template(task)
    found = writer.answers(contents, template, most_tokens)
    _write(path, zip(contents, found, strict=True))


def _write(path: Path, pairs: Iterable[tuple[str, Written]]) -> None:
    with staged_file(path) as scratch, scratch.open("w") as file:
        for prompt, answer in pairs:
            if answer.text:
                reason = "stop" if answer.ended else "length"
                line = {"prompt": prompt, "completion": answer.text, "finish_reason": reason}
                print(json.dumps(line, ensure_ascii=False), file=file)
