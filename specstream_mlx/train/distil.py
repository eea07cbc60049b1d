"""Self-distilled data: the base's own answers, which its streams have to predict."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.sampling import keyed_sampler
from ..errors import MOST, UserError, shown
from ..files import append, prompt_lines, read_json, read_json_lines, staged_file
from ..generation.batch_generate import batch_generate
from ..loading.speculative_model import SpeculativeModel
from ..prompts import chat_prompt
from .settings import check_identity

SHIPPED = Path(__file__).parent / "prompts.txt"
"""A few hundred prompts for general use, one a line."""

_CLAIM = "answers.json"
_HELD_OUT = 20  # of so many prompts one is for validation, of fewer than 100 five in all

Answer = Callable[[Sequence[str], Sequence[int]], list[str]]
"""A function of prompts and some of their indices; yields a JSON line for each index."""


def read_prompts(path: Path) -> list[str]:
    """Read the different prompts of a file, in order: one a line, or JSONL in mlx-lm's formats."""
    if path.suffix != ".jsonl":
        return list(dict.fromkeys(prompt_lines(path)))
    prompts = []
    for number, value in read_json_lines(path):
        prompt = _prompt_of(value)
        if prompt is None:
            raise UserError(
                f"{path}, line {number} is {shown(value)}, expected a prompt, or messages with "
                "one of the user"
            )
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{path} is empty, expected a prompt on each line")
    return list(dict.fromkeys(prompts))


def _prompt_of(value: Any) -> str | None:
    match value:
        case {"prompt": str(prompt)} if prompt.strip():
            return prompt
        case {"messages": [*messages]} if value.get("prompt") is None:
            said = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
            return _prompt_of({"prompt": said[0].get("content")}) if said else None
    return None


@dataclass(frozen=True)
class Answering:
    """How a base answers; ``lora`` is the digest of its LoRA."""

    max_tokens: int = 256
    temp: float = 0.0
    batch_size: int = 32
    seed: int = 0
    template: str | None = None
    lora: str | None = None

    def at_once(self, count: int) -> int:
        """Return how many answers are written at once: few, so interruptions lose little."""
        return min(self.batch_size, max(4, count // 16))


def distil(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str],
    directory: Path,
    how: Answering,
    show: Callable[[float, float], None] = lambda done, total: None,
) -> None:
    """Let the base answer prompts, see ``keep_answers``."""

    def answer(wanted: Sequence[str], places: Sequence[int]) -> list[str]:
        chosen, samplers = [wanted[place] for place in places], None
        if how.temp:  # what is drawn follows from a prompt's place
            samplers = [keyed_sampler(how.seed + place, how.temp) for place in places]
        response = batch_generate(
            model,
            tokenizer,
            [chat_prompt(tokenizer, prompt, how.template) for prompt in chosen],
            max_tokens=how.max_tokens,
            completion_batch_size=how.batch_size,
            samplers=samplers,
            speculation=False,
            return_token_ids=True,
        )
        names = "prompt", "completion", "tokens", "finish_reason"
        columns = chosen, response.texts, response.token_ids or (), response.finish_reasons
        lines = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]

    keep_answers(prompts, directory, asdict(how), answer, how.at_once(len(prompts)), show)


def held_out(prompts: Sequence[Any]) -> Sequence[Any]:
    """Return the prompts whose answers are for validation, and so for the comparison."""
    every = min(_HELD_OUT, max(4, len(prompts) // 5))
    return prompts[every - 1 :: every] or prompts[-1:]


def answers_left(prompts: Sequence[str], directory: Path, how: Answering) -> int:
    """Count the prompts that have no answer yet; nothing is written."""
    path, wanted = directory / _CLAIM, _claimed(prompts, asdict(how))
    if path.exists():
        check_identity(path, read_json(path), wanted)
    files = (directory / "train.jsonl", directory / "valid.jsonl")
    done = sum(file.read_bytes().count(b"\n") for file in files if file.exists())
    return max(0, len(prompts) - done)


def keep_answers(
    prompts: Sequence[str],
    directory: Path,
    settings: Mapping[str, Any],
    answer: Answer,
    at_once: int,
    show: Callable[[float, float], None] = lambda done, total: None,
) -> None:
    """Have prompts answered, to ``train.jsonl`` and ``valid.jsonl`` in a directory.

    Answers are written after every ``at_once``, so an interrupted call goes on where it ended.
    Prompts and settings are written there too, and others are refused.
    """
    claim(directory / _CLAIM, _claimed(prompts, settings))
    valid = held_out(prompts)
    parts = {"train": [p for p in prompts if p not in set(valid)], "valid": valid}
    answered = {
        name: {value["prompt"] for value in whole_lines(directory / f"{name}.jsonl", prompt=str)}
        for name in parts
    }
    done = sum(len(answered[name] & set(wanted)) for name, wanted in parts.items())
    show(done, len(prompts))
    for name, wanted in parts.items():
        left = [place for place, prompt in enumerate(wanted) if prompt not in answered[name]]
        for start in range(0, len(left), at_once):
            group = left[start : start + at_once]
            lines = answer(wanted, group)
            append(directory / f"{name}.jsonl", "".join(lines))
            done += len(group)
            show(done, len(prompts))


def _claimed(prompts: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    if len(prompts) < 2:
        raise UserError(
            f"{len(prompts)} of the prompts can be answered, expected at least 2: one to learn "
            "from and one to try"
        )
    digest = hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:16]
    return {"prompts": digest, **settings}


def claim(path: Path, wanted: Mapping[str, Any]) -> None:
    """Write the settings of texts to a JSON file, or compare them with those that it holds."""
    if not path.exists():
        with staged_file(path) as unfinished:
            unfinished.write_text(json.dumps(wanted, indent=2) + "\n")
    check_identity(path, read_json(path), wanted)


def whole_lines(path: Path, **fields: type) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of lines, which have these fields.

    An incomplete last line is removed from the file.
    """
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):  # a process was killed
        with staged_file(path) as unfinished:
            unfinished.write_bytes(whole[:end])
    for number, value in read_json_lines(path):
        numbers = [value.get(name) for name in fields] if isinstance(value, dict) else [None]
        integers = (n for n in numbers if isinstance(n, int))
        if [*map(type, numbers)] != [*fields.values()] or not all(0 <= n <= MOST for n in integers):
            raise UserError(
                f"{path}, line {number} is {shown(value)}, expected an object with "
                f"{' and '.join(fields)}, as train writes it; without the file it is written anew"
            )
        yield value
