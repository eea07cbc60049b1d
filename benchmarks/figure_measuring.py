"""What the figures show: the points of each, measured on the bundled base."""

import json
import shlex
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from rich.progress import Progress
from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.to_mlx.adapter import convert_adapter

from specstream_mlx import DraftSettings, Sampling, UserError, bundled
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS
from specstream_mlx.engine.verify_rules import VerifyName
from specstream_mlx.prompts import chat_prompt

from .figure_points import Point, PointFile
from .metrics import score
from .paired_runs import Method, Paired, paired
from .plain_baseline import Bundled
from .timed_runs import run_plain, run_streams

TOP_K = (1, 2, 5, 10, 20, 50, 0)  # 0: all tokens
VERIFIED: dict[str, tuple[VerifyName, DraftSettings]] = {
    "sample, likely tree": ("sample", LIKELY_DRAFTS),
    "sample, chain": ("sample", DRAWN_DRAFTS),
    "rejection, chain": ("rejection", DRAWN_DRAFTS),
}
GAMMAS = WIDTHS = (1, 2, 3, 4)
MSA_LAYERS = (1, 2, 4, 6, 8)
MODES = ("lossless", "shared")


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        tasks: of ``temperature``; the first one is that of ``streams``.
        items: held-out items for a point.
        quality_items: the same for ``msa-layers``.
        max_tokens: for an item.
        max_nodes: nodes that pruning keeps.
    """

    tasks: tuple[str, ...]
    items: int
    quality_items: int
    max_tokens: int
    max_nodes: int


class Measuring:
    """Measures the groups of points that a file does not have yet.

    Args:
        demo: the bundled base.
        sizes: how much is measured.
        progress: gets a line for each figure.
    """

    def __init__(self, demo: Bundled, sizes: Sizes, progress: Progress):
        self._demo, self._sizes, self._progress = demo, sizes, progress

    def temperature(self, file: PointFile) -> None:
        """T = 1 over top-k, by task, mode and verify rule."""
        groups = {
            f"{task}, {mode}, {top_k}": partial(self._top_k, task, mode, top_k)
            for task in self._sizes.tasks
            for mode in MODES
            for top_k in TOP_K
        }
        self._add(file, "temperature", groups)

    def streams(self, file: PointFile) -> None:
        """Full trees of gamma streams, with and without pruning, greedy."""
        groups = {
            f"{mode}, {gamma}, {width}": partial(self._full_trees, mode, gamma, width)
            for mode in MODES
            for gamma in GAMMAS
            for width in WIDTHS
        }
        self._add(file, "streams", groups)

    def msa_layers(self, file: PointFile, adapters: dict[int, Path]) -> None:
        """Adapters of SQL by their number of MSA layers, greedy."""
        groups = {
            f"{layers}": partial(self._adapter, layers, adapter)
            for layers, adapter in adapters.items()
        }
        self._add(file, "msa-layers", groups)

    def _add(self, file: PointFile, name: str, groups: dict[str, partial[list[Point]]]) -> None:
        for group, measure in self._progress.track(groups.items(), description=name):
            file.add(group, measure, self._demo.facts())

    def _top_k(self, task: str, mode: str, top_k: int) -> list[Point]:
        mx.random.seed(0)
        sampler = Sampling(temp=1.0, top_k=top_k)
        plain = self._demo.mount(adapter_of(task, mode))
        methods = {
            name: self._ours(settings, sampler, verify)
            for name, (verify, settings) in VERIFIED.items()
        }
        found = self._paired(task, self._sizes.items, plain, methods, sampler)
        label = {0: "all", 1: "1\n(greedy)"}.get(top_k, top_k)
        return [Point.of(f"{task}, {mode}", name, label, one) for name, one in found.items()]

    def _full_trees(self, mode: str, gamma: int, width: int) -> list[Point]:
        task = self._sizes.tasks[0]
        plain = self._demo.mount(adapter_of(task, mode))
        tree = DraftSettings(num_streams=gamma, tree_width=width, tree_size=None)
        pruned = replace(tree, max_nodes=self._sizes.max_nodes)
        methods = {f"gamma {gamma}": self._ours(tree), f"gamma {gamma}, pruned": self._ours(pruned)}
        found = self._paired(task, self._sizes.items, plain, methods)
        return [Point.of(f"{task}, {mode}", name, width, one) for name, one in found.items()]

    def _adapter(self, layers: int, adapter: Path) -> list[Point]:
        items = self._sizes.quality_items
        with tempfile.TemporaryDirectory() as scratch:
            plain = self._demo.mount(mlx_adapter(adapter, Path(scratch) / "adapter"))
            trained = self._demo.model.streams.config.num_msa_layers
            if trained != layers:
                raise UserError(
                    f"{adapter} has {trained} MSA layers, expected {layers} by its name"
                )
            methods = {"likely tree": self._ours(LIKELY_DRAFTS), "chain": self._ours(DRAWN_DRAFTS)}
            found = self._paired("sql", items, plain, methods)
        targets = [item.target for item in tasks.held_out("sql", items)]
        points = []
        for name, one in found.items():
            _, quality = score("sql", [run.text for run in one.runs], targets)
            points.append(Point.of("sql, shared", name, layers, one, quality))
        return points

    def _ours(
        self,
        settings: DraftSettings,
        sampler: Sampling | None = None,
        verify: VerifyName | None = None,
    ) -> Method:
        demo, most = self._demo, self._sizes.max_tokens
        return lambda ids: run_streams(
            demo.model, demo.tokenizer, ids, most, settings, sampler, verify
        )

    def _paired(
        self,
        task: str,
        items: int,
        plain: nn.Module,
        methods: dict[str, Method],
        sampler: Sampling | None = None,
    ) -> dict[str, Paired]:
        """The methods beside mlx_lm on ``plain``, on held-out items."""
        tokenizer, most = self._demo.tokenizer, self._sizes.max_tokens
        template = tasks.prompt_template(task)
        held_out = tasks.held_out(task, items)
        return paired(
            [chat_prompt(tokenizer, item.content, template) for item in held_out],
            lambda ids: run_plain(plain, tokenizer, ids, most, sampler),
            methods,
        )[1]


def adapter_of(task: str, mode: str) -> Path:
    """The bundled adapter of a task, or the lossless streams."""
    return bundled.adapter_path(task) if mode == "shared" else bundled.streams_path()


def mlx_adapter(directory: Path, target: Path) -> Path:
    """``directory`` if it is an MLX adapter already, or else its conversion, ``target``."""
    config = json.loads((directory / "adapter_config.json").read_text())
    if "speculative_streaming" in config:
        return directory
    convert_adapter(directory, bundled.base_path(), target)
    return target


def find_adapters(directory: Path | None) -> dict[int, Path]:
    """The adapter directories in ``directory/nsN`` by N.

    Raises:
        UserError: there are none; the sentence says how to train them.
    """
    found: dict[int, Path] = {}
    for path in directory.glob("ns*") if directory else ():
        inner = (path / "sql" / "adapter", path / "adapter", path)
        usable = [one for one in inner if (one / "adapter_config.json").exists()]
        if usable and path.name[2:].isdigit():
            found[int(path.name[2:])] = usable[0]
    if not found:
        where = directory or Path("runs/msa")
        loop = (
            f"for n in {' '.join(map(str, MSA_LAYERS))}; do python -m "
            "specstream_mlx.convert.demo_model.train_adapters --base runs/base/model --work "
            f"{shlex.quote(str(where))}/ns$n --shared-msa-layers $n --iters 400 base sql; done"
        )
        raise UserError(
            f"msa-layers found no adapters ns1, ns2, .. in --adapters {where}, train them with: "
            f"{loop}"
        )
    return dict(sorted(found.items()))
