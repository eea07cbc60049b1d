"""Savings and cost of streams that see fewer keys: ``stream_keys`` and ``stream_window``.

The first is top-p key selection (arXiv 2402.11131, App. H.1), the second the last keys and the
first few.

    python -m benchmarks.studies.stream_keys
    python -m benchmarks.studies.stream_keys --contexts 512,32768 --keys 16
    python -m benchmarks.studies.stream_keys --streams DIR    # streams that were trained for it
    python -m benchmarks.studies.stream_keys --no-timing      # quality alone, on a busy machine

Time is that of a step of the decoder itself with deferred streams: a chain of drafts through a
random Llama behind random rows, and the streams of the accepted node. Both kinds alternate.

Quality is that of lossless streams on the demonstration model, or on one of yours, with either
switched on at decoding. A prompt is texts of a task with their answers, cut at the front
so that prompt and text fill the context, and one more text. The target's text is the same
whatever the streams see, so it is decoded once with each, the streams guessing behind every token,
and chains of their first guesses are replayed on it. Contexts beyond the model's own have no
quality.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx import DraftSettings, SpeculativeModel, UserError, bundled, demonstration, load
from specstream_mlx.engine.step import Decoder
from specstream_mlx.hardware import device
from specstream_mlx.models.streams import Streams
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import FLAG, PATH, TEXT, choice, integer
from specstream_mlx.prompt_cache import PromptCache
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from ..random_llama import random_llama, untrained_streams
from ..report import OUTPUT, machine_suffix, measured_on, table, write_report
from ..runner import streams_of
from ..step_cost import check_both
from ..texts import INSTRUCTIONS, TextSet, task_items
from ..timed_steps import filled_caches, step_milliseconds
from .drafting_rule import Recording, record

LAYERS, HIDDEN, VOCABULARY, KV_HEADS = 8, 512, 4096, 2
MAIN_ROWS, STREAMS = 5, 4
MSA_LAYERS = 2, 6
_TEXTS = 64
"""Of a task, with which the longest prompts are filled."""


def seeing(model: SpeculativeModel, *, keys: int = 0, window: int = 0) -> SpeculativeModel:
    """The model with the same streams, which see the likeliest or the last so many keys; 0: all."""
    trained = streams_of(model)
    streams = Streams(replace(trained.config, stream_keys=keys, stream_window=window))
    streams.update(trained.parameters())
    return replace(model, streams=streams)


# Time -----------------------------------------------------------------------------------------


def random_model(msa_layers: int) -> SpeculativeModel:
    """A random Llama with untrained lossless streams in its upper layers."""
    model, config = random_llama(LAYERS, HIDDEN, VOCABULARY, KV_HEADS)
    streams = untrained_streams(
        config,
        mode="lossless",
        num_streams=STREAMS,
        num_msa_layers=msa_layers,
        pruner_rank=0,
        stream_mlp="base+adapter",
        stream_adapter_rank=8,
    )
    return SpeculativeModel(model, config, Path("in memory"), streams=streams)


def milliseconds(model: SpeculativeModel, context: int, keys: int, runs: int) -> dict[str, float]:
    """Of a step with deferred streams behind ``context`` random rows, with all keys and with few.

    Args:
        model: with lossless streams.
        context: committed rows.
        keys: selected keys.
        runs: timed steps of each kind.
    """
    caches = filled_caches(model.model, model.config, context)
    kinds = {}
    for kind, count in (("all", 0), ("few", keys)):
        decoder = Decoder(model.model, seeing(model, keys=count).streams, caches)
        kinds[kind] = decoder, DraftSettings(tree_width=1)
    return step_milliseconds(kinds, MAIN_ROWS, runs)


# Quality --------------------------------------------------------------------------------------


def long_prompts(
    tokenizer: TokenizerWrapper, texts: TextSet, task: str, length: int, count: int
) -> list[list[int]]:
    """Prompts of ``length`` tokens: texts with their answers, then a text without.

    Args:
        tokenizer: of the model.
        texts: where they are from.
        task: theirs.
        length: tokens; a last text that is longer makes no prompt.
        count: prompts at the most.

    Returns:
        Those that the task's texts are enough for.
    """
    turns, ends = [], list(tokenizer.eos_token_ids)[:1]
    for text, answers in task_items(texts, task, _TEXTS):
        prompt = chat_prompt(tokenizer, text, INSTRUCTIONS[task] + "\n{text}")
        turns.append((prompt, tokenizer.encode(answers[0], add_special_tokens=False) + ends))
    lengths = [0, *accumulate(len(prompt) + len(answer) for prompt, answer in turns)]
    found = []
    for number in reversed(range(len(turns))):
        prompt = turns[number][0]
        if len(prompt) <= length <= lengths[number] + len(prompt):
            earlier = [token for turn in turns[:number] for part in turn for token in part]
            room = length - len(prompt)
            found.append([*earlier[len(earlier) - room :], *prompt])
    return found[:count]


def replayed(text: Recording, streams: int) -> tuple[int, int, list[int], list[int]]:
    """Chains of the streams' first guesses on a text that is known.

    Args:
        text: and what was guessed behind each of its tokens.
        streams: gamma.

    Returns:
        Tokens written and calls taken by a chain draft at every step; and, behind every token, how
        often each stream was right where those before it were, and how often it was asked.
    """
    right, asked, in_a_row = [0] * streams, [0] * streams, []
    for at, guesses in enumerate(text.guesses[: len(text.tokens) - 1]):
        following = text.tokens[at + 1 : at + 1 + streams]
        in_a_row.append(0)
        for depth, token in enumerate(following):
            asked[depth] += 1
            guessed = guesses.behind(tuple(following[:depth]))
            if not guessed or guessed[0][0] != token:
                break
            right[depth] += 1
            in_a_row[-1] += 1
    at = calls = 0
    while at + streams < len(in_a_row):  # a step near the end has no room for all its drafts
        at, calls = at + 1 + in_a_row[at], calls + 1
    return at, calls, right, asked


def quality(texts: Sequence[Recording], streams: int) -> dict[str, Any]:
    """Accepted length of a chain, and how often each stream is right, over all texts.

    Args:
        texts: and what was guessed behind each of their tokens.
        streams: gamma.

    Raises:
        UserError: no text is long enough.
    """
    found = [replayed(text, streams) for text in texts]
    tokens, calls = (sum(column) for column in list(zip(*found, strict=True))[:2])
    if not calls:
        raise UserError(f"no text got more than {streams} tokens, expected one to draft for")
    right, asked = (np.sum([text[place] for text in found], axis=0) for place in (2, 3))
    return {
        "accepted": round(tokens / calls, 3),
        "right": [round(float(share), 3) for share in right / np.maximum(asked, 1)],
        "tokens": tokens,
    }


# The table ------------------------------------------------------------------------------------

COLUMNS = {
    "context": "{context}",
    **{
        name: cell
        for layers in MSA_LAYERS
        for name, cell in (
            (f"step, {layers} MSA layers", f"{{all_{layers}:.1f}}"),
            (f"p keys / all, {layers} MSA layers", f"{{ratio_{layers}:.2f}}"),
        )
    },
    "accepted length, all keys": "{accepted_all:.2f}",
    "p keys": "{accepted_few:.2f}",
    "last keys": "{accepted_near:.2f}",
    "right by stream, all keys": "{right_all}",
    "right, p keys": "{right_few}",
    "right, last keys": "{right_near}",
}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row's values; ``None`` where nothing was measured."""
    kinds = "all", "few", "near"
    values: dict[str, Any] = dict.fromkeys(
        f"{what}_{kind}" for what in ("accepted", "right") for kind in kinds
    )
    values["context"] = row["context"]
    for layers in MSA_LAYERS:
        times = row["times"].get(str(layers))
        values[f"all_{layers}"] = times and times["all"]
        values[f"ratio_{layers}"] = times and times["few"] / times["all"]
    for kind, found in row["quality"].items():
        values[f"accepted_{kind}"] = found["accepted"]
        values[f"right_{kind}"] = " ".join(f"{share:.2f}" for share in found["right"])
    return values


def markdown(rows: list[dict[str, Any]], facts: dict[str, Any]) -> list[str]:
    """The lines of the report."""
    return [
        f"{measured_on(facts)}. p = {facts['keys']}, last keys: {facts['window']}. Steps in "
        f"milliseconds, without drift: a random Llama of {LAYERS} layers x {HIDDEN}, {KV_HEADS} "
        f"heads for keys and values, {MAIN_ROWS} main rows, {STREAMS} deferred streams. Quality: "
        f"{facts['streams']}, {facts['items']} prompts a task of texts ({facts['texts']}) in a "
        f"row, at most {facts['max_tokens']} tokens each; chains of the streams' first guesses, "
        "each right where those before it are.",
        "",
        *table(COLUMNS, map(shown, rows)),
    ]


def contexts_in(text: str, keys: int) -> list[int]:
    """The comma-separated contexts of ``--contexts``.

    Raises:
        UserError: one is no number, or leaves nothing to select.
    """
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if not part.isdecimal() or not keys < int(part) <= 1 << 20:
            raise UserError(
                f"contexts has {part!r}, expected numbers above --keys {keys}, up to {1 << 20}"
            )
    return [int(part) for part in found]


def main(
    contexts: str = option("256,1024,2048,8192,32768", TEXT, "Tokens."),
    keys: int = option(64, integer(1), "p, the keys a stream attends to."),
    window: int = option(512, integer(1), "The last keys that it attends to, instead."),
    model_path: Path | None = option(
        None, PATH, "MLX model directory; the demonstration model.", "--model"
    ),
    streams: Path | None = option(None, PATH, "Lossless streams; the bundled ones."),
    texts: TextSet = option("dev", choice("test", "dev"), "Where the prompts are from."),
    items: int = option(4, integer(1), "Prompts of a task."),
    max_tokens: int = option(48, integer(8), "Tokens of a text at most."),
    runs: int = option(25, integer(1), "Timed steps of each kind."),
    timing: bool = option(True, FLAG, "Time nothing: the machine is busy."),
    output: Path = OUTPUT,
) -> None:
    """Measure what it saves and costs that streams see fewer keys."""
    if model_path is not None:
        check_both(model_path, streams)
    chosen = contexts_in(contexts, keys)
    streams_path = streams or bundled.streams_path()
    base, tokenizer = load(model_path or demonstration.base_path(), adapter_path=streams_path)
    if base.streams is None or base.mode != "lossless":
        raise UserError(f"{streams_path} has no lossless streams, expected some that only draft")
    limit = base.config.get("max_position_embeddings") or 0
    rows: list[dict[str, Any]] = [
        {"context": context, "times": {}, "quality": {}} for context in chosen
    ]
    ends = list(tokenizer.eos_token_ids)
    kinds = {"all": base, "few": seeing(base, keys=keys), "near": seeing(base, window=window)}
    for row in [row for row in rows if row["context"] <= limit]:
        length = row["context"] - max_tokens
        prompts = [
            prompt
            for task in INSTRUCTIONS
            for prompt in long_prompts(tokenizer, texts, task, length, items)
        ]
        written: dict[str, list[Recording]] = {kind: [] for kind in kinds}
        for prompt in track(prompts, f"{row['context']} tokens"):
            read = PromptCache()  # reading takes most of the time, and is the same for all
            for kind, model in kinds.items():
                written[kind].append(record(model, prompt, max_tokens, ends, read))
        for kind, found in written.items() if prompts else ():
            row["quality"][kind] = quality(found, streams_of(base).config.num_streams)
    for layers in MSA_LAYERS if timing else ():
        model = random_model(layers)
        for row in track(rows, f"steps, {layers} MSA layers"):
            row["times"][str(layers)] = milliseconds(model, row["context"], keys, runs)
    facts: dict[str, Any] = device.describe() | {"keys": keys, "window": window, "items": items}
    facts |= {"max_tokens": max_tokens, "streams": streams_path.name, "texts": texts}
    summary = {"facts": facts, "rows": rows}
    name = f"stream-keys-{machine_suffix(facts)}"
    print(write_report(output, name, summary, markdown(rows, facts)))


if __name__ == "__main__":
    program(main)()
