"""The classes of texts that methods compete on, see ``compare``."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import LogitsProcessor

from specstream_mlx import UserError, bundled
from specstream_mlx.prompts import chat_prompt

from ..runner import Mounted
from ..spec_bench import TASKS
from ..texts import INSTRUCTIONS, PROSE, Texts, task_items

SPEC_BENCH, TYPED, ADAPTERS = "spec-bench", "typed", "adapters"
CONTROL, CONTEXT = "unpredictable", "context"
GROUPS = {
    SPEC_BENCH: "Spec-Bench's questions, answered by the base.",
    TYPED: "Texts that people typed, and the base is told what to do with.",
    ADAPTERS: "The same texts, answered by the base with each task's own adapter, whose streams "
    "are part of the model.",
    PROSE: "Beginnings of prose, which the base goes on with.",
    CONTROL: "A control: tokens drawn at random, dictated to the base, which nobody can foresee: "
    "drafts find nothing, and should cost little.",
    CONTEXT: "Reports on notes of so many tokens.",
}
"""What the classes of each group are."""

OF_BASE = (SPEC_BENCH, TYPED, PROSE)
"""Groups whose means say which method is first."""

NODES = (8,)
SQL_NODES = (4, 7, 8, 9)
"""Drafted nodes of the trees in which acceptance is counted; the papers have 4, 7 and 9 for SQL."""

_WORDS = 120  # of a text that nobody can foresee
_LONG = 1000  # tokens from which on reading a prompt takes long: trees are counted if asked for
_ABOUT = "Here are notes that several people wrote.\n\n{text}\n\nWrite a short report about them."


@dataclass(frozen=True)
class TextClass:
    """A class of texts.

    Attributes:
        name: what reports call it.
        group: one of ``GROUPS``.
        task: its name within the group.
        adapter: the bundled adapter that is mounted; ``None``: the base answers.
        prompts: makes so many prompts; ``None``: they are Spec-Bench's questions.
        nodes: sizes of the trees in which acceptance is counted.
        dictated: whether the text is dictated, see ``dictation``.
    """

    name: str
    group: str
    task: str
    adapter: str | None = None
    prompts: Callable[[Mounted, int], list[list[int]]] | None = None
    nodes: Sequence[int] = NODES
    dictated: bool = False


def classes_of(
    chosen: str,
    contexts: Sequence[int],
    adapters: Collection[str],
    questions: bool,
    sizes: Sequence[int] = (),
) -> list[TextClass]:
    """List the classes, those with adapters last.

    Args:
        chosen: names of groups, classes or tasks, with commas between; empty: all.
        contexts: tokens of prompts.
        adapters: names of the bundled adapters that fit the model.
        questions: whether there are Spec-Bench's.
        sizes: of the trees of all classes; empty: the usual ones.

    Raises:
        UserError: a name is not known here.
    """
    every = [TextClass(task, SPEC_BENCH, task) for task in TASKS if questions]
    for task in INSTRUCTIONS:
        every.append(
            TextClass(task, TYPED, task, prompts=partial(_typed, task), nodes=_nodes(task))
        )
    every.append(TextClass(PROSE, PROSE, PROSE, prompts=partial(_typed, PROSE)))
    every.append(TextClass(CONTROL, CONTROL, CONTROL, prompts=unforeseen, dictated=True))
    for size in dict.fromkeys(contexts):
        name, nodes = f"{CONTEXT} {size / 1000:g}k", NODES if size < _LONG else ()
        made = partial(long_prompts, size)
        every.append(TextClass(name, CONTEXT, CONTEXT, prompts=made, nodes=nodes))
    for task in INSTRUCTIONS:
        if task in adapters:
            name, made = f"{task}, adapter", partial(_typed, task)
            every.append(TextClass(name, ADAPTERS, task, task, made, _nodes(task)))
    if sizes:
        every = [replace(one, nodes=sizes) for one in every]
    names = [name.strip() for name in chosen.split(",")] if chosen else list(GROUPS)
    for name in names:
        if not chosen or any(name in (one.group, one.task, one.name) for one in every):
            continue
        if name in (SPEC_BENCH, *TASKS):
            raise UserError(f"{name} was asked for without --questions, expected both")
        known = ", ".join(dict.fromkeys([one.group for one in every] + [one.task for one in every]))
        raise UserError(f"there is no class of texts {name!r} for this model, expected {known}")
    return [one for one in every if {one.group, one.task, one.name} & set(names)]


def fitting_adapters(config: dict) -> Collection[str]:
    """List the bundled adapters that fit a base, by its ``config.json``."""
    return bundled.adapter_names() if bundled.streams_for(config) is not None else ()


def _nodes(task: str) -> Sequence[int]:
    return SQL_NODES if task == "sql" else NODES


def _typed(task: str, mounted: Mounted, count: int) -> list[list[int]]:
    texts = Texts("test", count).of_task(mounted.model, mounted.tokenizer, task)
    return [text.prompt for text in texts]


def unforeseen(mounted: Mounted, count: int) -> list[list[int]]:
    """Make prompts of tokens drawn at random."""
    rng = random.Random(0)
    known = sorted(mounted.tokenizer.get_vocab().values())
    words = (mounted.tokenizer.decode(rng.choices(known, k=_WORDS)) for _ in range(count))
    return [chat_prompt(mounted.tokenizer, one, None) for one in words]


def dictation(mounted: Mounted, prompt: Sequence[int]) -> LogitsProcessor:
    """Make a logits processor that leaves no choice: tokens in an order drawn for the prompt.

    The base by itself writes fluent text even behind tokens drawn at random. Here each token is a
    function of the one before, and none comes twice, so nothing that was read or trained tells it.
    """
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


def check_contexts(contexts: Sequence[int], mounted: Mounted) -> None:
    """Check that prompts of so many tokens and their answers fit a model.

    Raises:
        UserError: the model's context is shorter than prompt and answer.
    """
    longest = mounted.model.config.get("max_position_embeddings")
    if longest is not None and max(contexts) + mounted.max_tokens > longest:
        raise UserError(
            f"a context of {max(contexts)} tokens was asked for, expected at most "
            f"{longest - mounted.max_tokens} beside {mounted.max_tokens} new ones"
        )


def long_prompts(size: int, mounted: Mounted, count: int) -> list[list[int]]:
    """Make prompts of about ``size`` tokens: notes that people typed, and to report on them."""
    notes = [note for task in INSTRUCTIONS for note, _ in task_items("test", task, size)]
    random.Random(0).shuffle(notes)
    tokenizer, prompts = mounted.tokenizer, []
    around = len(chat_prompt(tokenizer, "", _ABOUT))
    for number in range(count):
        start = number * len(notes) // count
        body = tokenizer.encode("\n\n".join((*notes[start:], *notes[:start])))
        text = tokenizer.decode(body[: max(1, size - around)])
        prompts.append(chat_prompt(tokenizer, text, _ABOUT))
    return prompts
