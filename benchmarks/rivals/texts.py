"""The classes of texts that methods compete on, see ``compare``."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor

from specstream_mlx import UserError, bundled
from specstream_mlx.prompts import chat_prompt

from ..runner import Mounted
from ..spec_bench import TASKS
from ..texts import INSTRUCTIONS, PROSE, Texts

SPEC_BENCH, TYPED, ADAPTERS, CONTROL = "spec-bench", "typed", "adapters", "unpredictable"
GROUPS = (SPEC_BENCH, TYPED, PROSE, CONTROL, ADAPTERS)

OF_BASE = (SPEC_BENCH, TYPED, PROSE)
"""Groups whose means say which method is first."""

_WORDS = 120  # of a text that nobody can foresee


@dataclass(frozen=True)
class TextClass:
    """A class of texts; those without ``prompts`` are Spec-Bench's questions."""

    name: str  # what reports call it
    group: str  # one of ``GROUPS``
    task: str  # its name within the group
    adapter: str | None = None  # the bundled adapter that is mounted; ``None``: the base answers
    prompts: Callable[[Mounted, int], list[list[int]]] | None = None
    dictated: bool = False  # whether the text is dictated, see ``dictation``


def classes_of(chosen: str, adapters: Collection[str], questions: bool) -> list[TextClass]:
    """List the classes, those with adapters last; ``chosen``: groups, classes or tasks."""
    every = [TextClass(task, SPEC_BENCH, task) for task in TASKS if questions]
    every += [TextClass(t, TYPED, t, prompts=partial(_typed, t)) for t in INSTRUCTIONS]
    every.append(TextClass(PROSE, PROSE, PROSE, prompts=partial(_typed, PROSE)))
    every.append(TextClass(CONTROL, CONTROL, CONTROL, prompts=unforeseen, dictated=True))
    for task in INSTRUCTIONS:
        if task in adapters:
            every.append(TextClass(f"{task}, adapter", ADAPTERS, task, task, partial(_typed, task)))
    names = [name.strip() for name in chosen.split(",")] if chosen else list(GROUPS)
    for name in names if chosen else ():
        if any(name in (cls.group, cls.task, cls.name) for cls in every):
            continue
        if name in (SPEC_BENCH, *TASKS):
            raise UserError(f"the class {name} needs --questions, expected both")
        known = ", ".join(dict.fromkeys([cls.group for cls in every] + [cls.task for cls in every]))
        raise UserError(f"there is no class of texts {name!r} for this model, expected {known}")
    return [cls for cls in every if {cls.group, cls.task, cls.name} & set(names)]


def fitting_adapters(config: dict) -> Collection[str]:
    """List the bundled adapters that fit a base, by its ``config.json``."""
    return bundled.adapter_names() if bundled.streams_for(config) is not None else ()


def _typed(task: str, mounted: Mounted, count: int) -> list[list[int]]:
    texts = Texts("test", count).of_task(mounted.model, mounted.tokenizer, task)
    return [text.prompt for text in texts]


def unforeseen(mounted: Mounted, count: int) -> list[list[int]]:
    """Make prompts of tokens drawn at random."""
    rng = random.Random(0)
    known = sorted(mounted.tokenizer.get_vocab().values())
    words = (mounted.tokenizer.decode(rng.choices(known, k=_WORDS)) for _ in range(count))
    return [chat_prompt(mounted.tokenizer, text, None) for text in words]


def dictation(mounted: Mounted, prompt: Sequence[int]) -> LogitsProcessor:
    """Make a logits processor that leaves no choice: tokens in an order drawn for the prompt."""
    ends = set(mounted.tokenizer.eos_token_ids)
    order = sorted(set(mounted.tokenizer.get_vocab().values()) - ends)
    random.Random(sum(prompt)).shuffle(order)
    follower = np.full(1 + max((*order, *prompt)), order[0])
    follower[order] = np.roll(order, -1)
    followers = mx.array(follower)

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        dictated = mx.arange(logits.shape[-1]) == followers[tokens[-1]]
        return mx.where(dictated, logits, -mx.inf)

    return process
