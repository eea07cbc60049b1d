"""What the demonstration model's streams learn from: its own answers, and those of its adapters.

The base is asked what it draws as its user's words: freely; after the first words of prompts of
general use, which are more various; and about passages, which are earlier answers, since a text to
summarize or to be asked about is longer than a draw. All of it goes on where it was stopped.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specstream_mlx.errors import UserError
from specstream_mlx.files import read_json_lines, staged_directory, staged_file
from specstream_mlx.prompts import chat_prompt, encode_prompt
from specstream_mlx.train.data import messages_of
from specstream_mlx.train.distil import SHIPPED, claim, keep_answers, read_prompts
from specstream_mlx.train.self_prompts import fault_of

from ..pytorch.generation import AnswerWriter, WrittenAnswer

ANSWER_TOKENS, PROMPTED_TOKENS = 220, 256
"""Most tokens of the base's answers, to itself and to people; longer ones are cut."""
_SAMPLED_OF = 5
"""One in so many of people's prompts is answered at temperature 1."""
TRAIN, VALID = "train.jsonl", "valid.jsonl"
_AT_ONCE = 2048
"""Prompts that are answered before their answers are written."""
_OPENING_WORDS, _SHARE_WITH_OPENING = 2, 0.375
_FEWEST_WORDS, _MOST_WORDS = 20, 120
"""Fewest and most words of a passage."""
_ANSWERS_A_PASSAGE = 3
"""One in so many answers becomes a passage."""
_REQUESTS = (
    "Summarize: ",
    "Summarize this in two sentences: ",
    "Give me the key points of this text:\n",
    "Rewrite this in simpler words: ",
    "Correct the mistakes in this text: ",
)
"""Requests for half of the passages; about the other half the base draws questions."""


def write_base_answers(
    writer: AnswerWriter, directory: Path, draws: int, seed: int, prompts: Path | None = None
) -> None:
    """Let the base draw prompts and answer them, and requests and questions about its answers.

    It answers what people wrote, too, ``train.jsonl`` and ``valid.jsonl`` in ``prompts``. Passages
    are answers that streams learn from, so what is held out holds none of these. ``directory``,
    with both files, is complete once it is there.
    """
    work = directory.with_name(f"{directory.name}-unfinished")
    people = {name: prompts / name for name in (TRAIN, VALID)} if prompts else {}
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in people.values())).hexdigest()
    claim(work / "draws.json", {"draws": draws, "seed": seed, "prompts": digest})
    drawn = _written_once(work / "prompts.jsonl", lambda: _prompts(writer, draws, seed))
    write_answers(writer, drawn, work / "own", ANSWER_TOKENS)
    answers = [value["completion"] for _, value in read_json_lines(work / "own" / TRAIN)]
    about = _written_once(work / "about.jsonl", lambda: _about(writer, answers, seed))
    if len(about) > 1:
        write_answers(writer, about, work / "about", ANSWER_TOKENS)
    parts = {
        TRAIN: [work / "own" / TRAIN, *sorted((work / "about").glob("*.jsonl"))],
        VALID: [work / "own" / VALID],
    }
    for name, path in people.items():
        parts[name] += write_prompted_answers(writer, path, work / f"people-{path.stem}", seed)
    with staged_directory(directory) as scratch:
        for name, paths in parts.items():
            (scratch / name).write_bytes(b"".join(path.read_bytes() for path in paths))
    shutil.rmtree(work)


def write_answers(
    writer: AnswerWriter,
    prompts: Sequence[str],
    directory: Path,
    most: int,
    template: str | None = None,
) -> None:
    """Let a base answer different prompts, to ``train.jsonl`` and ``valid.jsonl``."""

    def answer(wanted: Sequence[str], places: Sequence[int]) -> list[str]:
        chosen = [wanted[place] for place in places]
        encoded = [chat_prompt(writer.tokenizer, prompt, template) for prompt in chosen]
        answers = zip(chosen, writer.answers(encoded, most), strict=True)
        return [_line(prompt, answer) for prompt, answer in answers if answer.text]

    keep_answers(prompts, directory, {"max_tokens": most, "template": template}, answer, _AT_ONCE)
    if not (directory / TRAIN).stat().st_size:
        raise UserError(f"{directory}: all answers are empty, expected some text to learn from")


def write_prompted_answers(
    writer: AnswerWriter, prompts: Path, directory: Path, seed: int
) -> list[Path]:
    """Let the base answer prompts that people wrote; returns the files, one a part of ``prompts``.

    Lines of JSON have a ``prompt``, or ``turns`` of the user's, and their ``source``. Every fifth
    is answered at temperature 1, the others by the likeliest tokens. In a conversation each answer
    stands before the user's next turn, and each is a line of its own.
    """
    wanted, parts = [value for _, value in read_json_lines(prompts)], []
    for start in range(0, len(wanted), _AT_ONCE):
        parts.append(part := directory / f"{start:06}.jsonl")
        if part.exists():
            continue
        lines, together = [], wanted[start : start + _AT_ONCE]
        for sampled in (False, True):
            torch.manual_seed(seed + start)
            chosen = [v for i, v in enumerate(together) if (i % _SAMPLED_OF == 0) == sampled]
            lines += _conversations(writer, chosen, sampled)
        with staged_file(part) as scratch:
            scratch.write_text("".join(lines))
    return parts


def _conversations(
    writer: AnswerWriter, wanted: Sequence[dict[str, Any]], sampled: bool
) -> list[str]:
    """A line of JSON for each answer that is not empty, turn by turn of all conversations."""
    turns = [value.get("turns") or [value["prompt"]] for value in wanted]
    said: list[list[str]] = [[] for _ in turns]
    lines = []
    for number in range(max(map(len, turns), default=0)):
        places = [i for i, own in enumerate(turns) if number < len(own) and len(said[i]) % 2 == 0]
        for i in places:
            said[i].append(turns[i][number])
        encoded = [encode_prompt(writer.tokenizer, messages_of(said[i])) for i in places]
        answers = writer.answers(encoded, PROMPTED_TOKENS, sampled=sampled)
        for i, answer in zip(places, answers, strict=True):
            *earlier, prompt = said[i]
            if answer.text:  # without one, the conversation ends
                source = wanted[i]["source"]
                lines.append(_line(prompt, answer, earlier=earlier, source=source))
                said[i].append(answer.text)
    return lines


def _prompts(writer: AnswerWriter, draws: int, seed: int) -> list[str]:
    """What the base draws, freely and after openings."""
    rng = random.Random(seed)
    openings = [" ".join(prompt.split()[:_OPENING_WORDS]) for prompt in read_prompts(SHIPPED)]
    opened = round(_SHARE_WITH_OPENING * draws)
    return writer.draw([""] * (draws - opened) + rng.choices(openings, k=opened), seed)


def _about(writer: AnswerWriter, answers: Sequence[str], seed: int) -> list[str]:
    """Requests and questions about some of the answers."""
    rng = random.Random(seed)
    texts = dict.fromkeys(" ".join(answer.split()[:_MOST_WORDS]) for answer in answers)
    passages = [text for text in texts if _is_passage(text)]
    rng.shuffle(passages)
    passages = passages[: len(answers) // _ANSWERS_A_PASSAGE]
    half = len(passages) // 2
    requests = [rng.choice(_REQUESTS) + passage for passage in passages[:half]]
    return requests + writer.draw([f"{passage}\n" for passage in passages[half:]], seed + 1)


def _is_passage(text: str) -> bool:
    return len(text.split()) >= _FEWEST_WORDS and fault_of(text, True, (), "latin") is None


def _written_once(path: Path, draw: Callable[[], list[str]]) -> list[str]:
    """The prompts of a file, which is written if it is missing."""
    if not path.exists():
        lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in draw()]
        with staged_file(path) as scratch:
            scratch.write_text("".join(lines))
    return [value["prompt"] for _, value in read_json_lines(path)]


def _line(prompt: str, answer: WrittenAnswer, **more: Any) -> str:
    """The line of JSON of an answer, as training reads it."""
    reason = "stop" if answer.ended else "length"
    line = {"prompt": prompt, "completion": answer.text, "finish_reason": reason, **more}
    return json.dumps(line, ensure_ascii=False) + "\n"
