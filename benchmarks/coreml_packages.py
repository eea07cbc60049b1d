"""Does an exported package write what MLX writes? Typed texts of the bundled adapters.

    python -m benchmarks.coreml_packages --work runs/coreml
    python -m benchmarks.coreml_packages --work runs/coreml --texts 1 --max-tokens 6

The demonstration model's adapters and its lossless streams become one package, which numpy executes
with every operation rounded to half precision, as on a device. Each text is compared, token for
token, with MLX's in float32, one token a step. ``least`` is the smallest gap between the two
likeliest tokens of MLX's texts. Where a text parts, ``largest gap`` is by how much MLX prefers its
own token; more than 0.1 is no near-tie, and the program exits with 1.

Every finished text is a line of ``texts.jsonl`` in the work directory; the same command resumes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.export import export
from specstream_mlx.convert.to_coreml.faithful import NEAR_TIE
from specstream_mlx.convert.to_coreml.supported import Sizes

from specstream_mlx import DraftSettings, bundled, demonstration, load, stream_generate
from specstream_mlx.generation.request import Request
from specstream_mlx.options import PATH, integer, option
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import ResultStore, table
from .texts import INSTRUCTIONS, task_items

SIZES = Sizes(context=512, nodes=(8,))
STREAMS = "streams"

COLUMNS = {
    "adapter": "{adapter}",
    "texts": "{texts}",
    "tokens": "{tokens}",
    "same text": "{same}",
    "least": "{least:.3f}",
    "largest gap": "{gap:.3f}",
}


def prompts_of(name: str, texts: int) -> list[tuple[str, str | None]]:
    """Typed texts of an adapter; for the streams one of each task, with its instruction."""
    if name != STREAMS:
        return [(text, None) for text, _ in task_items("dev", name, texts)]
    tasks = sorted(INSTRUCTIONS)[:texts]
    return [(task_items("dev", t, 1)[0][0], INSTRUCTIONS[t] + "\n{text}") for t in tasks]


def rows_of(work: Path, texts: int, max_tokens: int) -> Iterator[dict[str, Any]]:
    """One row a text, read from the work directory where it is finished."""
    package = work / "bundled.mlpackage"
    paths = [bundled.adapter_path(name) for name in bundled.adapter_names()]
    paths.append(bundled.streams_path())
    if not package.exists():
        export(demonstration.base_path(), package, paths, SIZES)
    done = ResultStore(work / "texts.jsonl", [max_tokens])
    contents, executor = Contents.read(package), Package(package, "fp16")
    model, tokenizer = load(demonstration.base_path())
    model.model.set_dtype(mx.float32)
    for path in paths:
        model.swap_adapter(path)
        items = prompts_of(path.name, texts)
        for number, (text, around) in enumerate(track(items, path.name)):
            prompt = chat_prompt(tokenizer, text, around or model.prompt_template)

            def measure(name: str = path.name, prompt: list[int] = prompt) -> dict[str, Any]:
                expected, log_probs = [], []
                for response in stream_generate(
                    model, tokenizer, prompt, max_tokens, settings=DraftSettings(speculation=False)
                ):
                    expected.append(response.token)
                    log_probs.append(np.array(response.logprobs.astype(mx.float32)))
                request = Request(prompt, max_tokens=max_tokens, end_tokens=tokenizer.eos_token_ids)
                decoder = PackageDecoder(contents, executor, name)
                tokens = [r.token for r in decoder.responses(tokenizer, request)]
                return {"adapter": name} | compared(tokens, expected, np.stack(log_probs))

            yield done.get([path.name, number], measure)


def compared(tokens: list[int], expected: list[int], log_probs: np.ndarray) -> dict[str, Any]:
    """A text's figures: whether it is MLX's, and where it parts the gap to the token there."""
    pairs = enumerate(zip(tokens, expected, strict=False))
    place = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
    two = np.sort(log_probs)[:, -2:]
    gap = 0.0
    if place is not None:
        gap = float(log_probs[place, expected[place]] - log_probs[place, tokens[place]])
    least = float((two[:, 1] - two[:, 0]).min())
    return {"same": tokens == expected, "gap": gap, "least": least, "tokens": len(expected)}


def main(
    work: Path = option(..., PATH, "Directory of the package and of what is done."),
    texts: int = option(5, integer(1), "Of each adapter."),
    max_tokens: int = option(48, integer(1), "Of a text."),
) -> None:
    """Compare a package of the bundled adapters with MLX (resumable)."""
    work.mkdir(parents=True, exist_ok=True)
    rows = list(rows_of(work, texts, max_tokens))
    summed = []
    for name in dict.fromkeys(row["adapter"] for row in rows):
        of_adapter = [row for row in rows if row["adapter"] == name]
        values: dict[str, Any] = {"adapter": name, "texts": len(of_adapter)}
        values |= {key: sum(row[key] for row in of_adapter) for key in ("tokens", "same")}
        values["least"] = min(row["least"] for row in of_adapter)
        values["gap"] = max(row["gap"] for row in of_adapter)
        summed.append(values)
    print("\n".join(table(COLUMNS, summed)))
    if not all(row["gap"] <= NEAR_TIE for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    program(main)()
