"""Trees of the shape that a user gave, made of all proposers."""

from collections.abc import Callable, Sequence
from functools import cache

from ..engine.guess import Guesses, Path, StreamGuesses
from ..engine.plan import NOTHING_VERIFIED, DraftTree, Plan, Verified, root_only
from ..engine.verify.rule import VerifyRule
from ..loading.speculative_model import SpeculativeModel
from . import Planner
from .best_first import all_nodes, best_nodes, tree_of, with_paths
from .calibration import StreamAverages, pool
from .proposer import FREE, MOST_NODES, Material, Proposer
from .settings import DraftSettings


class FixedPlanner(Planner):
    """A planner with the same settings in every step.

    With proposers the streams' probabilities are corrected by their hits, or streams that are surer
    than right would take the nodes of a copy.
    """

    def __init__(
        self,
        settings: DraftSettings,
        plan_of: Callable[[DraftTree], Plan],
        streams: bool,
        proposers: Sequence[Proposer] = (),
    ):
        self._plan_of, self._proposers, self._averages = plan_of, proposers, StreamAverages()
        self._width, self._threshold = settings.tree_width, settings.draft_threshold
        self._full, self._most_nodes = settings.full, cache(settings.most_nodes)
        self._depth = settings.num_streams if streams and settings.speculates else 0

    def first(self, root: int) -> Plan:
        return self._plan_of(root_only(root))

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        if self._proposers:
            self._averages.accept(tokens)
        for proposer in self._proposers:
            proposer.accept(tokens)

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        return self._plan_of(self.grow(root, guesses, verified))

    def grow(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> DraftTree:
        """Grow the full tree, or the likeliest nodes of all."""
        for proposer in self._proposers:
            proposer.begin(verified, FREE)
        depth = guesses.depth if self._depth is None else min(guesses.depth, self._depth)
        next_of = guesses.after
        if self._proposers:
            self._averages.take(guesses)
            next_of = self._averages.after

        def guessed(path: Path) -> Guesses:
            return next_of(path)[: self._width] if len(path) < depth else []

        children = pool(self._proposers, guessed) if self._proposers else guessed
        if self._full:
            return tree_of(root, list(all_nodes(children)))
        nodes = best_nodes(children, self._most_nodes(depth), self._threshold)
        paths = [path for proposer in self._proposers for path in proposer.required()]
        return tree_of(root, with_paths(nodes, paths))

    def finish(self) -> None:
        for proposer in self._proposers:
            proposer.finish()


def fixed_planner(
    settings: DraftSettings,
    model: SpeculativeModel,
    prompt: Sequence[int],
    rule: VerifyRule | None = None,
) -> FixedPlanner:
    """Make the planner of a sequence with the same settings in every step."""
    streams, nodes = model.guessing, settings.tree_size or MOST_NODES
    material = Material(prompt, model, rule, settings.tree_width, nodes)
    proposers = [make(material) for make in settings.makers]
    return FixedPlanner(settings, settings.plans(streams), streams is not None, proposers)
