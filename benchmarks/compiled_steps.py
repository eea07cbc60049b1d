"""Steps that MLX builds from a trace beside steps that Python builds, on the demonstration model.

    python -m benchmarks.compiled_steps

Tokens per second in turns, by a number of texts each way; then a conversation, whose steps, traces
and bytes are counted. What the host saves where a device waits for it: ``benchmarks.step_graphs``.
"""

import statistics
from pathlib import Path
from typing import Any

import mlx.core as mx

from specstream_mlx import Chat, DraftSettings, SpeculativeModel, load
from specstream_mlx.bundled import streams_path
from specstream_mlx.demonstration import base_path
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.hardware import device
from specstream_mlx.options import integer, option
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, commit, machine_suffix, measured_on, table, write_report
from .runner import fixed_ways, streams_of

TOPICS = "rivers bridges bread clocks trains bees maps wool salt glass".split()
TOKENS = 64


def rate(model: SpeculativeModel, prompt: list[int], settings: DraftSettings) -> tuple[Any, float]:
    """The tokens of a text, and its tokens per second from the second step on."""
    steps = list(decode(model, Request(prompt, settings, max_tokens=TOKENS)))
    tokens = [token for step in steps for token in step.tokens]
    return tokens, (len(tokens) - len(steps[0].tokens)) / sum(s.seconds for s in steps[1:])


def conversation(model: SpeculativeModel, tokenizer: Any, turns: int) -> dict[str, Any]:
    """Counts of a conversation in which the rule decides what is drafted."""
    before = mx.get_active_memory()
    chat = Chat(model, tokenizer)
    for number in track(range(turns), "turns"):
        topic = TOPICS[number % len(TOPICS)]
        for _ in chat.reply(f"Tell me one more thing about {topic}.", max_tokens=48):
            pass
    held = sum(cache.nbytes for cache in chat.cache.caches)
    steps = model.compiled
    return {
        "turns": turns,
        "traces": 0 if steps is None else len(steps),
        "steps": "built by Python" if steps is None else steps.sentence(),
        "bytes": mx.get_active_memory() - before - held,
    }


def main(
    turns: int = option(3, integer(1), "Texts each way."),
    talk: int = option(30, integer(1), "Turns of the conversation."),
    output: Path = OUTPUT,
) -> None:
    """Compare compiled steps with others: texts, tokens per second, traces and bytes."""
    pairs = {
        way: load(base_path(), adapter_path=streams_path(), compiled=way == "compiled")
        for way in ("by Python", "compiled")
    }
    model, tokenizer = pairs["compiled"]
    prompt = tokenizer.encode("Name five rivers of Europe and tell me where each of them ends.")
    rows = []
    for method, settings in fixed_ways(streams_of(model).config).items():
        rates: dict[str, list[float]] = {way: [] for way in pairs}
        texts = []
        for number in track(range(turns + 1), method):
            for way, (decoding, _) in pairs.items():
                tokens, speed = rate(decoding, prompt, settings)
                texts.append(tokens)
                if number:  # the first is a warm-up, in which steps are traced
                    rates[way].append(speed)
        python, compiled = (statistics.median(values) for values in rates.values())
        same = all(values == texts[0] for values in texts)
        row = {"method": method, "python": python, "compiled": compiled}
        rows.append(row | {"ratio": compiled / python, "same": "yes" if same else "no"})
    talks = [{"way": way} | conversation(*pair, talk) for way, pair in pairs.items()]
    facts = device.describe() | {"commit": commit()}
    columns = {
        "method": "{method}",
        "by Python, tokens/s": "{python:.1f}",
        "compiled": "{compiled:.1f}",
        "ratio": "{ratio:.2f}",
        "same text": "{same}",
    }
    counted = {
        "steps": "{way}",
        "traces": "{traces}",
        "how they were built": "{steps}",
        "bytes besides weights and KV rows": "{bytes:,}",
    }
    lines = [f"{measured_on(facts)}; {facts['commit']}.", "", *table(columns, rows)]
    lines += ["", f"A conversation of {talk} turns:", "", *table(counted, talks)]
    data = {"facts": facts, "rows": rows, "conversation": talks}
    print(write_report(output, f"compiled-steps-{machine_suffix(facts)}", data, lines))


if __name__ == "__main__":
    program(main)()
