"""Does an exported package decode as the engine does? Many texts, and what happens if it is broken.

    python -m benchmarks.studies.coreml_packages --work runs/coreml
    python -m benchmarks.studies.coreml_packages --work runs/coreml --texts 1 --random-prompts 1 \\
        --forms int8 --max-tokens 6

Packages of the demonstration model (int4, int8, fp16) with its lossless streams and two shared
adapters, of a random Qwen3 and of a random untied Llama with biases are executed by numpy and
compared with the engine on the weights that they hold: greedy and drawn at temperature 1, with
trees of 8 and 16 nodes. ``logits`` and ``guesses`` are the largest differences in float32 as a
share of max(1, the largest), of the main stream and of the streams' candidates. ``half`` is the
same package with every operation rounded to half precision, as on a device: how many of its greedy
texts are the same, and how far its outputs are off where it is given the same inputs. Controls are
broken on purpose; they must be off by far more than the bound.

Every finished text is a line of ``texts.jsonl`` in the work directory; the same command resumes.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import typer
from coremltools.converters.mil.mil import Builder as mb
from mlx.utils import tree_map_with_path
from specstream_mlx.convert.to_coreml import functions, vectors
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoded import decoded_model, decoded_streams
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.package import PackageBuilder, save
from specstream_mlx.convert.to_coreml.supported import Sizes
from specstream_mlx.convert.to_coreml.vectors import EXACT, Asked

from specstream_mlx import DraftSettings, UserError, bundled, demonstration, keyed_sampler
from specstream_mlx.adapters.files import read_adapter
from specstream_mlx.adapters.mounting import mount
from specstream_mlx.checked_files import read_json_lines
from specstream_mlx.config import StreamConfig
from specstream_mlx.drafting.fixed import FixedDrafting, FixedTrees
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.keyed import KeyedRule
from specstream_mlx.hardware import device
from specstream_mlx.loading import read_config, read_model, read_tokenizer
from specstream_mlx.loop import Request, Step, prefill, steps
from specstream_mlx.models.streams import Streams
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.errors import one_line_errors
from specstream_mlx.terminal.progress import track

from ..report import RESULTS, commit, machine_suffix, measured_on, table, write_report
from ..texts import INSTRUCTIONS, names_in, task_items

FORMS = {"int4": 4, "int8": 8, "fp16": None}
SIZES = Sizes(context=512, nodes=(8, 16), chunk=64, candidates=4)
BUNDLED = ("streams", "sql", "summarize")
VOCABULARY = 512
RANDOM = {
    "random Qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "random Llama": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
RANDOM_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
}
DRAWN = "temperature 1"
CONTROL_TOKENS = 24
"""Enough for a path that does not lie at the front of its tree, without which a commit that is left
out changes nothing."""

COLUMNS = {
    "package": "{package}",
    "adapter": "{adapter}",
    "nodes": "{nodes}",
    "decoded": "{how}",
    "texts": "{texts}",
    "same text": "{same_text}",
    "calls": "{calls}",
    "same trees": "{same_trees}",
    "logits": "{logits}",
    "guesses": "{guesses}",
    "half: same text": "{half_text}",
    "half: off by": "{half}",
}
CONTROLS = {"control": "{control}", "off by": "{off:.2g}", "times the bound": "{ratio:.0f}"}


class WithoutNoise(KeyedRule):
    """``keyed`` with the guesses of a package, which knows nothing of the noise."""

    strengths = (0.0,)


@dataclass
class Subject:
    """A package and what it was made of.

    Attributes:
        name: of the package.
        path: where it is.
        config: the base's.
        models: function of an adapter's name that returns what was exported, made anew.
        prompts: function of an adapter's name that returns token ids of all its texts.
        end_tokens: that end a text.
        adapters: their names.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    models: Callable[[str], tuple[nn.Module, Streams | None]]
    prompts: Callable[[str], list[list[int]]]
    end_tokens: tuple[int, ...]
    adapters: Sequence[str]

    def write(self) -> None:
        """Export, unless it has been before."""
        if self.path.exists():
            return
        builder = PackageBuilder(SIZES, sampling=True)
        for adapter in self.adapters:
            builder.add(adapter, *self.models(adapter))
        base = {
            "vocab_size": self.config["vocab_size"],
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
        """What it says of itself."""
        return Contents.read(self.path)

    def engine(self, adapter: str) -> Callable[[], Decoder]:
        """A maker of decoders over the weights that the package holds."""
        model, streams = self.models(adapter)
        model = decoded_model(model, self.package.weights(f"{adapter}_logits{SIZES.nodes[0]}"))
        streams = streams and decoded_streams(streams)
        return lambda: Decoder(model, streams, make_caches(model, self.config))


# Subjects -----------------------------------------------------------------------------------------


def bundled_subject(form: str, work: Path, texts: int) -> Subject:
    """The demonstration model in ``form``."""
    directory = demonstration.base_path()
    config = read_config(directory)
    tokenizer = read_tokenizer(directory, read_model(directory, to_run=False)[1])

    def models(adapter: str) -> tuple[nn.Module, Streams]:
        base, _ = read_model(directory, to_run=False)
        base = decoded_model(base, {})
        if FORMS[form]:
            nn.quantize(base, group_size=64, bits=FORMS[form])
        path = bundled.streams_path() if adapter == "streams" else bundled.adapter_path(adapter)
        return base, mount(base, read_adapter(path, base, config), None)

    def prompts(adapter: str) -> list[list[int]]:
        tasks = [adapter] if adapter != "streams" else list(INSTRUCTIONS)
        template = models(adapter)[1].config.prompt_template
        found = []
        share = -(-texts // len(tasks))
        for task in tasks:
            around = template or INSTRUCTIONS[task] + "\n{text}"
            items = task_items("held-out", task, share)
            found += [chat_prompt(tokenizer, text, around) for text, _ in items]
        return found[:texts]

    ends = tuple(sorted(tokenizer.eos_token_ids))
    path = work / f"bundled-{form}.mlpackage"
    return Subject(f"bundled, {form}", path, config, models, prompts, ends, BUNDLED)


def random_subject(name: str, work: Path, count: int) -> Subject:
    """A random model with random shared streams, in int8."""
    config = {**RANDOM_CONFIG, **RANDOM[name]}

    def models(adapter: str) -> tuple[nn.Module, Streams]:
        module = import_module(f"mlx_lm.models.{config['model_type']}")
        model = module.Model(module.ModelArgs.from_dict(config))
        rng = np.random.default_rng(0)
        model.update(tree_map_with_path(lambda p, w: _drawn(rng, p, w.shape), model.parameters()))
        nn.quantize(model, group_size=64, bits=8)
        fields = {"num_hidden_layers": config["num_hidden_layers"]}
        fields |= {"hidden_size": config["hidden_size"], "num_streams": 4, "num_msa_layers": 2}
        streams = Streams(StreamConfig(mode="shared", **fields))
        drawn = tree_map_with_path(lambda p, w: _drawn(rng, p, w.shape), streams.parameters())
        streams.update(drawn)
        return model, streams

    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 3 * SIZES.chunk, count).tolist()
    # A second half like the first gives lookup something to draft.
    halves = [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]
    path = work / f"{name.replace(' ', '-').lower()}.mlpackage"
    texts = [half + half for half in halves]
    return Subject(name, path, config, models, lambda adapter: texts, (), ("shared",))


def _drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> mx.array:
    """A random parameter: sharp attention, so that a wrong mask shows, and logits of spread 2."""
    if len(shape) == 1:
        low, high = (0.8, 1.2) if "norm" in name else (-0.4, 0.4)
        return mx.array(rng.uniform(low, high, shape), mx.float32)
    std = shape[-1] ** -0.5
    for part, factor in (("embed", 2), ("lm_head", 2), ("q_proj", 4), ("o_proj", 2)):
        std *= factor if part in name else 1
    return mx.array(rng.normal(0, std, shape), mx.float32)


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
    ways = {"sampler": keyed_sampler(1), "verify": WithoutNoise} if drawn else {}
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
    drafter = FixedTrees(request.drafting, decoder.streams is not None, request.prompt)
    for _ in prefill(decoder, request.prompt[:-1], request.prefill_step_size):
        pass
    plan_of = request.drafting.plans(decoder.streams and decoder.streams.config)
    return steps(decoder, request, FixedDrafting(drafter, plan_of))


def _tokens(found: Sequence[Step]) -> list[int]:
    return [token for step in found for token in step.tokens]


def _same_tree(ours: Step, theirs: Step) -> bool:
    return all(
        np.array_equal(getattr(ours.tree, name), getattr(theirs.tree, name))
        for name in ("tokens", "parents")
    )


def _guesses_apart(ours: Step, theirs: Step) -> float:
    pair = ours.result.streams.log_probs, theirs.result.streams.log_probs
    return 0.0 if pair[0] is None else _apart(*pair)


def _apart(found: Any, expected: Any) -> float:
    """The largest difference as a share of max(1, the largest)."""
    found, expected = np.array(found, np.float64), np.array(expected, np.float64)
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def half_off(
    subject: Subject, adapter: str, prompt: Sequence[int], max_tokens: int
) -> dict[str, float]:
    """By how much floats are off in half precision, given the inputs of a drawn text in float32."""
    asked = [Asked(adapter, prompt, max_tokens, temperature=1.0)]
    recorded = vectors.record(subject.contents, subject.package, asked)
    return {"off": _largest(vectors.replay(recorded, subject.half, exact=False))}


def _largest(replay: vectors.Replay, output: str | None = None) -> float:
    return max(
        found.largest
        for found in replay.differences
        if found.largest is not None and output in (None, found.output)
    )


# Controls -----------------------------------------------------------------------------------------


class Broken:
    """An executor that changes what it is given.

    Args:
        package: what computes.
        change: function of a function's name and inputs that returns others.
    """

    title = "broken"

    def __init__(
        self,
        package: Package,
        change: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]],
    ):
        self._package, self._change = package, change

    def states(self) -> Any:
        """Empty caches."""
        return self._package.states()

    def call(
        self, name: str, inputs: Mapping[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        """Run a function on other inputs."""
        name, inputs = self._change(name, dict(inputs))
        return self._package.call(name, inputs, states)


def _commit_left_out(name: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if "commit" in inputs:
        inputs["commit"] = np.arange(SIZES.most_nodes, dtype=np.int32)
    return name, inputs


def _one_row_too_far_back(name: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if "commit" in inputs:
        inputs["length"] = inputs["length"] - 1
        inputs["positions"] = np.maximum(inputs["positions"] - 1, 0)  # 0: nodes that fill up
    return name, inputs


def _swapped(name: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return name.replace("sql_", "summarize_", 1), inputs


def controls(subject: Subject, work: Path) -> list[dict[str, Any]]:
    """By how much a package with one thing wrong is off, for each such thing."""
    prompts = subject.prompts("sql")[:2]
    asked = [Asked("sql", prompt, CONTROL_TOKENS, temperature=1.0) for prompt in prompts]
    recorded = vectors.record(subject.contents, subject.package, asked)
    changes = {
        "commit left out": _commit_left_out,
        "one row too far back": _one_row_too_far_back,
        "adapters swapped": _swapped,
    }
    found = {
        name: _largest(
            vectors.replay(recorded, Broken(subject.package, change), exact=True), "logits"
        )
        for name, change in changes.items()
    }
    corrupted = work / "corrupted.mlpackage"
    found["64 bytes of weights inverted"] = _largest(
        vectors.replay(recorded, _corrupted(subject, corrupted), exact=True), "logits"
    )
    shifted = _with_shifted_streams(subject, work)
    found["streams shifted"] = _largest(
        vectors.replay(recorded, shifted, exact=True), "streamHidden"
    )
    return [{"control": name, "off": off, "ratio": off / EXACT} for name, off in found.items()]


def _corrupted(subject: Subject, path: Path) -> Package:
    """The package with 64 bytes of the first layer's output projection inverted."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(subject.path, path)
    name, function = "model_layers_0_self_attn_o_proj", subject.package.functions["sql_logits8"]
    op = next(op for op in function.operations if op.name == name)
    start = op.inputs["data"].val.tobytes()[:64]
    (file,) = path.rglob("weight.bin")
    content = file.read_bytes()
    place = content.index(start)
    broken = bytes(255 - byte for byte in start)
    file.write_bytes(content[:place] + broken + content[place + 64 :])
    return Package(path)


def _with_shifted_streams(subject: Subject, work: Path) -> Package:
    """The same model exported with all streams one position too far on."""
    own = functions._Beside.positions

    def further(self: Any, main: Any) -> Any:
        positions = own(self, main)
        nodes = main.shape[0]
        shift = np.array([0] * nodes + [1] * (positions.shape[0] - nodes), np.int32)
        return mb.add(x=positions, y=shift)

    other = replace(subject, path=work / "shifted.mlpackage", adapters=("sql",))
    with patch.object(functions._Beside, "positions", further):
        other.write()
    return Package(other.path)


# The study ----------------------------------------------------------------------------------------


class Kept:
    """What has been measured, a line each, so that a command that was broken off goes on.

    Args:
        path: the file.
        facts: what all of it depends on.

    Raises:
        UserError: the file was begun with other options.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]):
        self._path, self._facts = path, dict(facts)
        self._values: dict[str, dict[str, Any]] = {}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"facts": self._facts}) + "\n")
        lines = [value for _, value in read_json_lines(path)]
        if lines[0]["facts"] != self._facts:
            raise UserError(f"{path} was begun with {lines[0]['facts']}, expected {self._facts}")
        self._values = {line["key"]: line["values"] for line in lines[1:]}

    def get(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``measure`` returned under this key, now or before."""
        if key not in self._values:
            self._values[key] = measure()
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "values": self._values[key]}) + "\n")
        return self._values[key]


def rows_of(subject: Subject, kept: Kept, max_tokens: int) -> list[dict[str, Any]]:
    """The table's rows of a subject."""
    rows = []
    for adapter in subject.adapters:
        prompts = subject.prompts(adapter)
        engine = cache(partial(subject.engine, adapter))  # made where a text is not known yet
        far = partial(half_off, subject, adapter, max_tokens=max_tokens)
        title = f"{subject.name}, {adapter}"
        off = [
            kept.get(f"{title}, half, {number}", partial(far, prompt))["off"]
            for number, prompt in enumerate(track(prompts, f"{title}, half precision"))
        ]
        for nodes, drawn in product(SIZES.nodes, (False, True)):
            how = DRAWN if drawn else "greedy"
            options = {"nodes": nodes, "drawn": drawn, "max_tokens": max_tokens}
            measure = partial(compared, subject, adapter, engine, **options)
            of = f"{title}, {nodes} nodes, {how}"
            found = [
                kept.get(f"{of}, {number}", partial(measure, prompt))
                for number, prompt in enumerate(track(prompts, of))
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


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the table has it."""
    floats = ("logits", "guesses", "half")
    return {
        name: "" if value is None else f"{value:.1e}" if name in floats else value
        for name, value in row.items()
    }


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Directory of packages and of what is done.")],
    texts: Annotated[
        int, typer.Option(help="Of each adapter of the demonstration model.", min=1)
    ] = 50,
    random_prompts: Annotated[int, typer.Option(help="Of each random model.", min=0)] = 20,
    forms: Annotated[str, typer.Option(help="Of the demonstration model, with commas.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Of a text.", min=1)] = 64,
    output: Annotated[Path, typer.Option(help="Directory of the result files.")] = RESULTS,
) -> None:
    """Compare packages with the engine, and break one on purpose (resumable)."""
    chosen = names_in(forms, list(FORMS), "form")
    kept = Kept(work / "texts.jsonl", {"max_tokens": max_tokens, "commit": commit()})
    subjects = [bundled_subject(form, work, texts) for form in chosen]
    if random_prompts:
        subjects += [random_subject(name, work, random_prompts) for name in RANDOM]
    rows, broken = [], []
    for subject in subjects:
        subject.write()
        rows += rows_of(subject, kept, max_tokens)
        if subject.name == "bundled, int8":
            one = kept.get(
                "controls",
                lambda subject=subject: {"rows": controls(subject, work)},
            )
            broken = one["rows"]
    facts = device.describe() | {"commit": commit(), "max_tokens": max_tokens}
    about = (
        f"{measured_on(facts)}; {commit()}. Texts of up to {max_tokens} tokens behind prompts read "
        f"in chunks of {SIZES.chunk}; the bound of float32 is {EXACT:g}."
    )
    lines = [about, "", *table(COLUMNS, map(_shown, rows))]
    if broken:
        lines += ["", *table(CONTROLS, broken)]
    name = f"coreml-packages-{machine_suffix(facts)}"
    print(write_report(output, name, {"facts": facts, "rows": rows, "controls": broken}, lines))


if __name__ == "__main__":
    typer.run(main)
