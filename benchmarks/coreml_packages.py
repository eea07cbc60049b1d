"""Does an exported package decode as the engine does? Many texts of the demonstration model.

    python -m benchmarks.coreml_packages --work runs/coreml
    python -m benchmarks.coreml_packages --work runs/coreml --texts 1 --forms int8 \\
        --max-tokens 6

Packages of the demonstration model (int4, int8, fp16) with its lossless streams and two shared
adapters are executed by numpy and compared with the engine on the weights that they hold: greedy
and drawn at temperature 1, with trees of 8 and 16 nodes. ``logits`` and ``guesses`` are the largest
differences in float32 as a share of max(1, the largest), of the main stream and of the streams'
candidates. ``half`` is the same package with every operation rounded to half precision, as on a
device: how many of its greedy texts are the same, and how far its outputs are off where it is given
the same inputs. Random models of other families, and what a package that is broken on purpose is
off by, are tests (tests/convert/to_coreml).

Every finished text is a line of ``texts.jsonl`` in the work directory; the same command resumes.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
from specstream_mlx.convert.to_coreml import vectors
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.package import PackageBuilder, save
from specstream_mlx.convert.to_coreml.reference_model import decoded_model, decoded_streams
from specstream_mlx.convert.to_coreml.supported import Sizes
from specstream_mlx.convert.to_coreml.vectors import EXACT, Asked

from specstream_mlx import DraftSettings, bundled, demonstration, keyed_sampler
from specstream_mlx.adapters.files import read_adapter
from specstream_mlx.adapters.mounting import as_mounted, mount
from specstream_mlx.drafting.fixed import FixedDrafting, FixedTrees
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.hardware import device
from specstream_mlx.loading import read_config, read_model, read_tokenizer
from specstream_mlx.loop import Request, Step, prefill, steps
from specstream_mlx.models.streams import Streams
from specstream_mlx.options import PATH, TEXT, integer, option
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, Kept, commit, machine_suffix, measured_on, table, write_report
from .texts import INSTRUCTIONS, names_in, task_items

FORMS = {"int4": 4, "int8": 8, "fp16": None}
SIZES = Sizes(context=512, nodes=(8, 16), chunk=64, candidates=4)
ADAPTERS = ("streams", "describe", "summarize")
DRAWN = "temperature 1"

COLUMNS = {
    "package": "{package}",
    "adapter": "{adapter}",
    "nodes": "{nodes}",
    "decoded": "{how}",
    "texts": "{texts}",
    "same text": "{same_text}",
    "calls": "{calls}",
    "same trees": "{same_trees}",
    "logits": "{logits:.1e}",
    "guesses": "{guesses:.1e}",
    "half: same text": "{half_text}",
    "half: off by": "{half:.1e}",
}


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


class Subject:
    """The demonstration model, its package and what that was made of.

    Args:
        form: of its weights, one of ``FORMS``.
        work: where the package is, or will be.
    """

    def __init__(self, form: str, work: Path):
        self.name, self.path = f"bundled, {form}", work / f"bundled-{form}.mlpackage"
        self._bits, self._base = FORMS[form], demonstration.base_path()
        self._config = read_config(self._base)
        self._tokenizer = read_tokenizer(self._base, read_model(self._base, to_run=False)[1])
        self.end_tokens = tuple(sorted(self._tokenizer.eos_token_ids))

    def models(self, adapter: str) -> tuple[nn.Module, Streams]:
        """Make the modules anew that are exported of an adapter."""
        base = decoded_model(read_model(self._base, to_run=False)[0], {})
        if self._bits:
            nn.quantize(base, group_size=64, bits=self._bits)
        path = bundled.streams_path() if adapter == "streams" else bundled.adapter_path(adapter)
        streams = mount(base, as_mounted(base, read_adapter(path, base, self._config)))
        assert streams is not None
        return base, streams

    def prompts(self, adapter: str, texts: int) -> list[list[int]]:
        """Token ids of so many texts of an adapter's task, of all tasks for the streams."""
        tasks = [adapter] if adapter != "streams" else list(INSTRUCTIONS)
        template = self.models(adapter)[1].config.prompt_template
        found = []
        for task in tasks:
            around = template or INSTRUCTIONS[task] + "\n{text}"
            items = task_items("dev", task, -(-texts // len(tasks)))
            found += [chat_prompt(self._tokenizer, text, around) for text, _ in items]
        return found[:texts]

    def write(self) -> None:
        """Export, unless it has been before."""
        if self.path.exists():
            return
        builder = PackageBuilder(SIZES, sampling=True)
        for adapter in ADAPTERS:
            builder.add(adapter, *self.models(adapter))
        base = {
            "vocab_size": self._config["vocab_size"],
            "end_tokens": list(self.end_tokens),
            "fingerprint": self.name,
        }
        scratch = self.path.with_name(f"unfinished-{self.path.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        save(builder.model({"base": base, "tokenizer": "none"}), scratch)
        scratch.rename(self.path)

    @cached_property
    def package(self) -> Package:
        """In float32."""
        return Package(self.path)

    @cached_property
    def half(self) -> Package:
        """In half precision."""
        return Package(self.path, "fp16")

    @cached_property
    def contents(self) -> Contents:
        """The package's description of itself."""
        return Contents.read(self.path)

    def engine(self, adapter: str) -> Callable[[], Decoder]:
        """A maker of decoders over the weights that the package holds."""
        model, streams = self.models(adapter)
        model = decoded_model(model, self.package.weights(f"{adapter}_logits{SIZES.nodes[0]}"))
        streams = decoded_streams(streams)
        return lambda: Decoder(model, streams, make_caches(model, self._config))


# Texts --------------------------------------------------------------------------------------------


def compared(
    subject: Subject,
    adapter: str,
    engine: Callable[[], Callable[[], Decoder]],
    prompt: Sequence[int],
    *,
    nodes: int,
    drawn: bool,
    max_tokens: int,
) -> dict[str, Any]:
    """One text, decoded by the engine, by the package, and by the package in half precision.

    Args:
        subject, adapter: what the package is and which part of it is meant.
        engine: returns a maker of decoders.
        prompt: token ids.
        nodes: of a tree.
        drawn: at temperature 1.
        max_tokens: of the text.
    """
    settings = DraftSettings(tree_size=nodes - 1, tree_width=SIZES.candidates, lookup=True)
    ways: dict[str, Any] = {"sampler": keyed_sampler(1), "verify": WithoutNoise} if drawn else {}
    request = Request(
        prompt, settings, max_tokens=max_tokens, end_tokens=subject.end_tokens, **ways
    )
    request = PackageDecoder(subject.contents, subject.package, adapter).fitted(request)
    expected = list(_engine_steps(engine()(), request))
    found = list(PackageDecoder(subject.contents, subject.package, adapter).decode(request))
    pairs = list(zip(found, expected, strict=False))
    same = [_same_tree(*pair) for pair in pairs]
    alike = [pair for pair, equal in zip(pairs, same, strict=True) if equal]
    values = {
        "same_text": _tokens(found) == _tokens(expected),
        "calls": len(expected),
        "same_trees": sum(same),
        "guesses": max((_guesses_apart(*pair) for pair in alike), default=0.0),
    }
    if drawn:  # greedy functions return no logits
        logits = [(a.result.logits, b.result.logits) for a, b in alike]
        return values | {"logits": max((_apart(*pair) for pair in logits), default=0.0)}
    half = list(PackageDecoder(subject.contents, subject.half, adapter).decode(request))
    return values | {"half_text": _tokens(half) == _tokens(found)}


def _engine_steps(decoder: Decoder, request: Request) -> Iterator[Step]:
    settings, streams = request.drafting, decoder.streams
    assert isinstance(settings, DraftSettings)
    proposers = [make(Material(request.prompt)) for make in settings.makers]
    drafter = FixedTrees(settings, streams is not None, proposers)
    for _ in prefill(decoder, request.prompt[:-1], request.prefill_step_size):
        pass
    plan_of = settings.plans(None if streams is None else streams.config)
    return steps(decoder, request, FixedDrafting(drafter, plan_of))


def _tokens(found: Sequence[Step]) -> list[int]:
    return [token for step in found for token in step.tokens]


def _same_tree(ours: Step, theirs: Step) -> bool:
    return all(
        np.array_equal(getattr(ours.tree, name), getattr(theirs.tree, name))
        for name in ("tokens", "parents")
    )


def _guesses_apart(ours: Step, theirs: Step) -> float:
    found, expected = ours.result.streams, theirs.result.streams
    if found is None or expected is None:
        return 0.0
    return _apart(found.log_probs, expected.log_probs)


def _apart(found: Any, expected: Any) -> float:
    """The largest difference as a share of max(1, the largest)."""
    found, expected = np.array(found, np.float64), np.array(expected, np.float64)
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def half_off(subject: Subject, adapter: str, prompt: Sequence[int], max_tokens: int) -> float:
    """By how much floats are off in half precision, given the inputs of a drawn text in float32."""
    asked = [Asked(adapter, prompt, max_tokens, temperature=1.0)]
    recorded = vectors.record(subject.contents, subject.package, asked)
    differences = vectors.replay(recorded, subject.half, exact=False).differences
    return max(found.largest for found in differences if found.largest is not None)


# The study ----------------------------------------------------------------------------------------


def rows_of(subject: Subject, kept: Kept, texts: int, max_tokens: int) -> list[dict[str, Any]]:
    """The table's rows of a subject."""
    rows = []
    for adapter in ADAPTERS:
        prompts = subject.prompts(adapter, texts)
        engine = cache(partial(subject.engine, adapter))  # made where a text is not known yet
        far = partial(half_off, subject, adapter, max_tokens=max_tokens)
        title = f"{subject.name}, {adapter}"
        off = [
            kept.get((title, "half", number), partial(far, prompt))
            for number, prompt in enumerate(track(prompts, f"{title}, half precision"))
        ]
        for nodes, drawn in product(SIZES.nodes, (False, True)):
            how = DRAWN if drawn else "greedy"
            options = {"nodes": nodes, "drawn": drawn, "max_tokens": max_tokens}
            measure = partial(compared, subject, adapter, engine, **options)
            of = (title, f"{nodes} nodes", how)
            found = [
                kept.get((*of, number), partial(measure, prompt))
                for number, prompt in enumerate(track(prompts, ", ".join(of)))
            ]
            names = {"package": subject.name, "adapter": adapter, "nodes": nodes, "how": how}
            rows.append(names | _summed(found) | {"half": max(off) if drawn else None})
    return rows


def _summed(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of texts; what was not measured is ``None``."""
    values: dict[str, Any] = {"texts": len(found)}
    for name in ("same_text", "calls", "same_trees", "half_text"):
        values[name] = sum(text[name] for text in found) if name in found[0] else None
    for name in ("logits", "guesses"):
        values[name] = max(text[name] for text in found) if name in found[0] else None
    return values


def main(
    work: Path = option(..., PATH, "Directory of packages and of what is done."),
    texts: int = option(50, integer(1), "Of each adapter."),
    forms: str = option("", TEXT, "Of the weights, with commas."),
    max_tokens: int = option(64, integer(1), "Of a text."),
    output: Path = OUTPUT,
) -> None:
    """Compare packages of the demonstration model with the engine (resumable)."""
    chosen = names_in(forms, list(FORMS), "form")
    work.mkdir(parents=True, exist_ok=True)
    kept = Kept(work / "texts.jsonl", (max_tokens, commit()))
    rows = []
    for form in chosen:
        subject = Subject(form, work)
        subject.write()
        rows += rows_of(subject, kept, texts, max_tokens)
    facts = device.describe() | {"commit": commit(), "max_tokens": max_tokens}
    about = (
        f"{measured_on(facts)}; {commit()}. Texts of up to {max_tokens} tokens behind prompts read "
        f"in chunks of {SIZES.chunk}; the bound of float32 is {EXACT:g}."
    )
    name = f"coreml-packages-{machine_suffix(facts)}"
    lines = [about, "", *table(COLUMNS, rows)]
    print(write_report(output, name, {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
