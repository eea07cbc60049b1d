"""In trees of which shape does each drafter draft most, and in which is it fastest?

    python -m benchmarks.studies.tree_shapes --adapter-path STREAMS --draft-head DIR \\
        --draft-model DIR --valid convert/demo_model/text/answers/valid.jsonl --runs runs.jsonl

Chains, trees of the likeliest nodes, and the trees that the methods' authors published, each on the
same held-out prompts. *Tokens a call* are counted on all of them, which does not depend on the
machine. What a call takes is timed on the first ones, behind the second call, all methods and
shapes in turn; *speed* is tokens a call in the time that plain decoding takes for a token.
``--timed-items 0`` leaves that out, so that a busy machine can count first; with ``--runs`` the
same command goes on and takes over what was counted.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specstream_mlx import DraftSettings, PromptCache, SpeculativeModel, UserError, demonstration
from specstream_mlx.drafting import Drafting
from specstream_mlx.drafting.best_first import all_nodes, tree_of
from specstream_mlx.drafting.fixed import FixedDrafting
from specstream_mlx.drafting.proposal import NOTHING_VERIFIED, Verified
from specstream_mlx.drafting.proposals import check_drafters_fit
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.engine.draft_head import HeadConfig
from specstream_mlx.engine.guesses import Guesses, StreamGuesses
from specstream_mlx.engine.guesses import Path as Tokens
from specstream_mlx.engine.plan import Plan
from specstream_mlx.engine.tree import DraftTree
from specstream_mlx.loading import load_draft_model
from specstream_mlx.options.fields import option
from specstream_mlx.options.generation import most_tokens
from specstream_mlx.options.kinds import PATH, each, integer
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.data import read_split

from ..drift import without_drift
from ..report import OUTPUT, Kept, commit, machine_suffix, measured_on, table, write_report
from ..rival_methods import DRAFT_MODEL, STREAMS, Method, methods_of, mounted_heads
from ..runner import MLX_LM, Base, Compared, DraftingOf, Mounted, Run, Way, interleaved
from ..spec_bench import accept_lengths, depends_on, kept_way, mount_lossless, stamps
from ..speedup import Subject
from .chosen_answers import evenly_spread

Ranks = tuple[int, ...]
"""A path from the root by the ranks of its tokens among their parents' guesses, from 0 on."""

PROMPT_TOKENS = "prompt tokens"
CHAINS = (2, 3, 4, 5, 6)
SIZES = (8, 16, 32, 60)
_WIDTH = 10  # guesses behind a node at most, as in the published trees
_MOST_TOKENS = 512  # of a prompt with its answer


@dataclass(frozen=True)
class Published:
    """A tree of ranks that never changes.

    Attributes:
        children: how many guesses are drafted behind a node, the likeliest ones.
    """

    children: Mapping[Ranks, int]

    @property
    def nodes(self) -> int:
        """The number of drafted nodes."""
        return sum(self.children.values())

    @property
    def width(self) -> int:
        """The most guesses behind a node."""
        return max(self.children.values())

    @property
    def depth(self) -> int:
        """The number of tokens of the longest path."""
        return 1 + max(map(len, self.children))

    def expansion(self) -> list[list[int]]:
        """The numbers of the nodes that have children, depth by depth, as ``Plan.expand`` has them.

        They are counted over the guesses behind all nodes of the depth before that have children.
        """
        found: list[list[int]] = []
        above: list[Ranks] = [()]
        for depth in range(1, self.depth):
            inner = sorted(ranks for ranks in self.children if len(ranks) == depth)
            found.append([above.index(ranks[:-1]) * self.width + ranks[-1] for ranks in inner])
            above = inner
        return found


def _by_digits(children: Mapping[str, int]) -> Published:
    return Published({tuple(map(int, path)): count for path, count in children.items()})


MEDUSA_63 = _by_digits(
    {"": 10, "0": 10, "1": 7, "2": 3, "3": 2}
    | dict.fromkeys("456789", 1)
    | {"00": 10, "01": 3, "02": 2, "10": 2, "20": 1}
    | dict.fromkeys(("03", "04", "05", "06", "07"), 1)
    | {"000": 2}
)
"""``mc_sim_7b_63`` of FasterDecoding/Medusa, commit e2a5d20, which zankner/Hydra has too."""

EAGLE_25 = _by_digits(
    {"": 4, "0": 3, "1": 2, "2": 2, "3": 1, "00": 3, "01": 2, "02": 2, "10": 1, "000": 3, "0000": 2}
)
"""``mc_sim_7b_63`` of SafeAILab/EAGLE, branch v1, commit 4a9cf3a: EAGLE-1's, of 25 nodes."""

BITA_12 = _by_digits({"": 5, "0": 4, "00": 3})
"""The tree of BiTA's prompt tokens (arXiv 2401.12522), each depth below the likeliest node."""

EAGLE_2 = DraftSettings(tree_width=_WIDTH, tree_size=59)
"""EAGLE-2's: ten paths expanded a level, then the 59 likeliest nodes of all."""

PUBLISHED: Mapping[str, Mapping[str, Published | DraftSettings]] = {
    "medusa": {"Medusa's 63": MEDUSA_63},
    "hydra": {"Hydra's 63": MEDUSA_63},
    "eagle": {"EAGLE-1's 25": EAGLE_25, "EAGLE-2's 59": EAGLE_2},
    "eagle3": {"EAGLE-2's 59": EAGLE_2},
    PROMPT_TOKENS: {"BiTA's 12": BITA_12},
}
"""The published shapes by the kind of a head, or of streams, each with a name."""


class PublishedTrees:
    """A grower of trees of a published shape; see ``fixed.Drafter``.

    Args:
        shape: the shape.
    """

    def __init__(self, shape: Published):
        self._shape = shape

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: the shape does not depend on the text."""

    def grow(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> DraftTree:
        """Grow the tree, as far as there are guesses."""
        ranks: dict[Tokens, Ranks] = {(): ()}

        def children(path: Tokens) -> Guesses:
            own = ranks[path]
            found = guesses.behind(path)[: self._shape.children.get(own, 0)]
            ranks.update({(*path, token): (*own, i) for i, (token, _) in enumerate(found)})
            return found

        return tree_of(root, list(all_nodes(children)))

    def finish(self) -> None:
        """Do nothing: nothing outlives the text."""


def drafting_in(shape: Published) -> DraftingOf:
    """Make what drafts in a published shape, with the streams or the draft head of a model."""

    def begin(model: SpeculativeModel) -> Drafting:
        settings = DraftSettings(
            tree_width=shape.width, tree_size=shape.nodes, num_streams=shape.depth
        )
        plan_of = settings.plans(model.guessing)
        expand = tuple(np.array(numbers) for numbers in shape.expansion())

        def plan(tree: DraftTree) -> Plan:
            return replace(plan_of(tree), expand=expand)

        return FixedDrafting(PublishedTrees(shape), plan)

    return begin


# What competes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A method in trees of one shape.

    Attributes:
        method: its name.
        shape: the shape's name.
        way: how it decodes.
        depends_on: what its text's calls depend on besides the model, as JSON.
    """

    method: str
    shape: str
    way: Way
    depends_on: Sequence[Any]

    @property
    def name(self) -> str:
        """The names of both."""
        return f"{self.method}, {self.shape}"


def shapes_of(method: Method, model: SpeculativeModel) -> dict[str, DraftSettings | Published]:
    """List the shapes that a method is tried in, by their names; none is deeper than it drafts.

    Args:
        method: the method, nobody beside it.
        model: the base with the method's streams or head.
    """
    guessing = model.guessing if method.guesses else None
    deepest = max(CHAINS) if guessing is None else guessing.num_streams
    shapes: dict[str, DraftSettings | Published] = {}
    for depth in CHAINS:
        if depth <= deepest:
            streams = 0 if guessing is None else depth
            chain = replace(method.in_trees(depth), tree_width=1, num_streams=streams)
            shapes[f"chain of {depth}"] = chain
    for size in SIZES:
        shapes[f"{size} nodes"] = replace(method.in_trees(size), tree_width=_WIDTH)
    published: Mapping[str, DraftSettings | Published] = {}
    if isinstance(guessing, HeadConfig):
        published = PUBLISHED.get(guessing.kind, {})
    elif guessing is not None and guessing.stream_init == "embedding":
        published = PUBLISHED[PROMPT_TOKENS]
    for name, shape in published.items():
        if not isinstance(shape, Published) or shape.depth <= deepest:
            shapes[name] = shape
    return shapes


def entries_of(
    mounted: Mounted,
    methods: Sequence[Method],
    heads: Mapping[str, SpeculativeModel],
    files: Mapping[str, Path],
) -> list[Entry]:
    """List all methods in all their shapes.

    Args:
        mounted: the base, and its streams.
        methods: that draft, each alone.
        heads: a model with each draft head, or with other streams, by name.
        files: what methods were read from, by name.
    """
    found = []
    for method in methods:
        own = mounted if method.head is None else replace(mounted, model=heads[method.head])
        for name, shape in shapes_of(method, own.model).items():
            drafts = drafting_in(shape) if isinstance(shape, Published) else shape
            if isinstance(shape, Published):
                described: Any = sorted(map(list, shape.children.items()))
            else:
                given = vars(shape) | {"draft_model": None}  # whose file tells which it is
                described = sorted((key, repr(value)) for key, value in given.items())
            depends = [method.name, described, stamps(files.get(method.name))]
            found.append(Entry(method.name, name, own.ours(drafts), depends))
    return found


# Figures ------------------------------------------------------------------------------------


def accepted_in(found: Compared[str], entry: Entry) -> float:
    """Mean tokens of a call behind the one that ends the prompt, over all texts."""
    runs = found.first_runs(entry.name)
    lengths = [length for run in runs for length in accept_lengths(run)[1:]]
    return statistics.fmean(lengths) if lengths else 1.0


def call_seconds(run: Run) -> float | None:
    """Mean seconds of a call behind the second one; ``None``: there is none.

    The first ends the prompt; before the second a draft model reads the prompt, too.
    """
    lengths = accept_lengths(run)
    behind, calls = sum(lengths[:2]), len(lengths) - 2
    if calls < 1:
        return None
    return (run.arrivals[-1] - run.arrivals[behind - 1]) / calls


def costs_of(
    entries: Sequence[Entry], plain: Way, prompts: Sequence[Sequence[int]], rounds: int = 2
) -> list[float]:
    """Time what a call of each takes, in the time that plain decoding takes for a token.

    All take turns on every prompt, each time in another order, and the drift of the machine's speed
    is taken out.

    Args:
        entries: methods in their shapes.
        plain: mlx_lm's way.
        prompts: token ids.
        rounds: how often each prompt is decoded.

    Raises:
        UserError: a text was too short to time a third call.
    """
    ways = {MLX_LM: plain} | {entry.name: entry.way for entry in entries}
    for way in {MLX_LM: plain, **{entry.method: entry.way for entry in entries}}.values():
        way(prompts[0])  # warms up, once a method
    orders = random.Random(0)
    timings: list[tuple[tuple[str, int], float]] = []
    for _ in track(range(rounds), "timing, in rounds"):
        for number, prompt in enumerate(prompts):
            for name in orders.sample(list(ways), len(ways)):
                if seconds := call_seconds(ways[name](prompt)):
                    timings.append(((name, number), seconds))
    slow = without_drift(timings)
    costs = []
    for entry in entries:
        ratios = [
            slow[entry.name, number] / slow[MLX_LM, number]
            for number in range(len(prompts))
            if (entry.name, number) in slow and (MLX_LM, number) in slow
        ]
        if not ratios:
            raise UserError(
                f"{entry.name}: the timed texts ended within two calls, expected longer ones"
            )
        costs.append(statistics.median(ratios))
    return costs


def picks_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each method's best shape by tokens a call, and by speed where that is known."""
    picks = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        most = max(own, key=lambda row: row["accepted"])
        pick = {"method": method, "most": most["shape"], "accepted": most["accepted"]}
        pick |= dict.fromkeys(("fastest", "speed", "speed_of_most"))
        if all("speed" in row for row in own):
            fastest = max(own, key=lambda row: row["speed"])
            pick |= {"fastest": fastest["shape"], "speed": fastest["speed"]}
            pick["speed_of_most"] = most["speed"]
        picks.append(pick)
    return picks


PICKS = {
    "method": "{method}",
    "most tokens a call in": "{most}",
    "tokens a call": "{accepted:.2f}",
    "speed there": "{speed_of_most:.2f}x",
    "fastest in": "{fastest}",
    "speed": "{speed:.2f}x",
}


def by_shape(rows: Sequence[Mapping[str, Any]], figure: str, cell: str) -> list[str]:
    """The lines of a table of methods by shapes.

    Args:
        rows: one for each method and shape; some may lack the figure.
        figure: its name.
        cell: its format.
    """
    shapes = dict.fromkeys(row["shape"] for row in rows)
    cells = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["shape"]: row.get(figure) for row in rows if row["method"] == method}
        cells.append({f"c{i}": own.get(shape) for i, shape in enumerate(shapes)})
        cells[-1]["method"] = method
    columns = {"method": "{method}"}
    columns |= {shape: f"{{c{i}:{cell}}}" for i, shape in enumerate(shapes)}
    return table(columns, cells)


def report(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    """The lines of the report.

    Args:
        rows: one for each method and shape.
        facts: of the machine, the weights and the texts.
    """
    same, of = (sum(row[key] for row in rows) for key in ("same_output_as_plain", "items"))
    lines = [
        f"{measured_on(facts)}, {commit()}; weights {facts['weights']}; mlx_lm on "
        f"{facts['plain_weights']} weights. {facts['items']} held-out prompts, at most "
        f"{facts['max_tokens']} tokens each; calls timed on {facts['timed_items']} of them. {same} "
        f"of {of} texts are those of plain decoding. Each method alone, greedily.",
        "",
        "Tokens a call:",
        "",
        *by_shape(rows, "accepted", ".2f"),
    ]
    if facts["timed_items"]:
        lines += ["", "A call's time, in plain decoding's for a token:", ""]
        lines += by_shape(rows, "cost", ".1f")
        lines += ["", "Speed, tokens in the time that plain decoding takes for one:", ""]
        lines += by_shape(rows, "speed", ".2f")
    return [
        *lines,
        "",
        "The best shape of each method, by either:",
        "",
        *table(PICKS, picks_of(rows)),
    ]


# The command --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Competing:
    """What competes, see ``benchmark rivals``."""

    adapter_path: Path = option(..., PATH, "Directory of lossless streams.")
    model: Path | None = option(
        None, PATH, "Directory of their base in MLX format. Default: the demonstration model."
    )
    draft_head: list[Path] | None = option(
        None,
        each("directories", lambda value: isinstance(value, str | Path)),
        "A draft head, or other lossless streams; may be given several times.",
        metavar="DIR",
    )
    draft_model: Path | None = option(None, PATH, "Directory of a smaller model.")


def prompts_of(mounted: Mounted, valid: Path, items: int) -> list[list[int]]:
    """The prompts of held-out answers, evenly spread over their file.

    Args:
        mounted: the base.
        valid: JSONL of prompts and the base's answers.
        items: how many, at most.

    Raises:
        UserError: the file cannot be read, or has no short enough text.
    """
    config = mounted.model.config
    texts = read_split(valid, mounted.tokenizer, _MOST_TOKENS, config["vocab_size"]).items
    return [list(text.tokens[: text.stream_from]) for text in evenly_spread(texts, items)]


def main(
    *,
    competing: Competing,
    valid: Path = option(..., PATH, "JSONL of prompts and answers that nobody learned from."),
    items: int = option(6, integer(1), "Prompts on which drafts are counted."),
    timed_items: int = option(1, integer(0), "Prompts on which calls are timed, if any."),
    max_tokens: int = most_tokens(48, least=2),
    runs: Path | None = option(
        None, PATH, "Keep every counted run in this file as it comes.", metavar="FILE"
    ),
    output: Path = OUTPUT,
) -> None:
    """Count, and time, what each method drafts in chains and trees of several shapes."""
    directory = competing.model or demonstration.base_path()
    base = Base(directory, max_tokens, fastest_baseline=False)
    subject = Subject(directory, directory.name, competing.adapter_path)
    mounted = mount_lossless(base, subject)
    given, paths = Drafters(), competing.draft_head or []
    files = {path.resolve().name: path for path in paths}
    if competing.draft_model is not None:
        given = Drafters(draft_model=load_draft_model(competing.draft_model, mounted.tokenizer))
        files[DRAFT_MODEL] = competing.draft_model
    check_drafters_fit(given, mounted.model)
    heads, _ = mounted_heads(mounted.model, paths)
    names = [STREAMS, *heads, *([DRAFT_MODEL] if competing.draft_model else ())]
    methods = methods_of(given, list(heads), ",".join(names))
    prompts = prompts_of(mounted, valid, items)
    facts = base.facts() | {"max_tokens": max_tokens, "items": len(prompts)}
    facts["timed_items"] = min(timed_items, len(prompts))

    entries = entries_of(replace(mounted, read=PromptCache()), methods, heads, files)
    kept = Kept(runs, depends_on(facts, subject))
    ways = {MLX_LM: kept_way(kept, MLX_LM, mounted.mlx_lm())}
    ways |= {entry.name: kept_way(kept, entry.depends_on, entry.way) for entry in entries}
    found = interleaved(prompts, ways, warm_up=False)
    rows: list[dict[str, Any]] = [
        {
            "method": entry.method,
            "shape": entry.shape,
            "accepted": accepted_in(found, entry),
            "same_output_as_plain": found.same(entry.name, found.first_runs(MLX_LM)),
            "items": len(prompts),
        }
        for entry in entries
    ]
    if facts["timed_items"]:
        entries = entries_of(mounted, methods, heads, files)
        costs = costs_of(entries, mounted.mlx_lm(), prompts[:timed_items])
        for row, cost in zip(rows, costs, strict=True):
            row |= {"cost": cost, "speed": row["accepted"] / cost}
    values = {"facts": facts, "rows": rows, "picks": picks_of(rows)}
    name = f"tree-shapes-{machine_suffix(facts)}"
    print(write_report(output, name, values, report(rows, facts)))


if __name__ == "__main__":
    program(main)()
