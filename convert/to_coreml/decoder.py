"""Decoding through a package: forward passes call its functions, all else is the engine's.

``PackageDecoder`` has the interface by which the generation loop uses ``engine.step.Decoder``, so
drafting, trees, acceptance, keyed draws and the loop are the same code. What differs is fixed in
the package: streams run next to every node, nothing is pruned, and a sampled text's streams guess
their own likeliest tokens, without the noise of ``engine.noise``. None of it changes a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx.drafting.fixed import FixedPlanner
from specstream_mlx.drafting.proposer import Material
from specstream_mlx.drafting.settings import USUAL, DraftSettings, Proposers
from specstream_mlx.engine.plan import DraftTree, Plan, StreamPlace
from specstream_mlx.engine.rows import TreeNodes, shapes_of
from specstream_mlx.engine.sampling import sampling_of
from specstream_mlx.engine.step import StepResult, StreamResult
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.errors import UserError
from specstream_mlx.files import check_tokens
from specstream_mlx.generation.batch import steps_of
from specstream_mlx.generation.request import Request
from specstream_mlx.generation.sequence import Step, TokenSequence
from specstream_mlx.generation.text import GenerationResponse, respond

from .contents import Contents
from .executors import Executor, call

_GUESSES = ("candidates", "logProbs", "candidateParents")


class PackageDecoder:
    """One adapter of a package, by its name, with its states: a decoder for ``TokenSequence``."""

    def __init__(self, contents: Contents, executor: Executor, adapter: str | None = None):
        self.contents, self.adapter = contents, contents.adapter(adapter)
        self.caches: list[Any] = []  # the states are the executor's
        self._executor, self._states = executor, executor.states()
        self._in_order = np.arange(contents.sizes.most_nodes, dtype=np.int32)
        self._rows: list[int] = []  # tokens of the rows, those of the last step's path included
        self._reusable = 0  # rows at the front that a later prompt may use again
        self._start, self._order = 0, self._in_order  # what the next step commits
        self._tree: DraftTree | None = None  # of the last step

    # A text ------------------------------------------------------------------------------------

    def responses(
        self, tokenizer: TokenizerWrapper, request: Request, stop: Sequence[str] = ()
    ) -> Iterator[GenerationResponse]:
        """Generate text, one response per token, as ``stream_generate`` does."""
        return respond(self._sequence(self.fitted(request)), tokenizer, stop)

    def decode(self, request: Request) -> Iterator[Step]:
        """Generate from a fitted request, one ``Step`` per call, as ``decode`` does.

        A prompt that begins as an earlier one did, or, in lossless mode, as that and its text did,
        is read from there on.
        """
        yield from steps_of(self._sequence(request))

    def _sequence(self, request: Request) -> TokenSequence:
        reused, drafting = self._begin(request.prompt), request.drafting
        if isinstance(drafting, DraftSettings):
            proposers = [make(Material(request.prompt)) for make in drafting.makers]
            streams = self.adapter.num_streams
            width = drafting.tree_width if drafting.speculates else 0
            place: StreamPlace = "nodes" if streams else "none"
            plan_of = partial(Plan, place=place, streams=streams, width=width)
            drafting = FixedPlanner(drafting, plan_of, streams > 0, proposers)
        return TokenSequence(None, replace(request, drafting=drafting), self, reused)

    def fitted(self, request: Request) -> Request:
        """A request within the package's sizes: its trees, its chunks and its context.

        ``drafting`` may be settings, ``None`` for the package's own, or a planner whose trees have
        no more nodes than the package's largest.
        """
        contents, sizes, prompt = self.contents, self.contents.sizes, list(request.prompt)
        if not prompt:
            raise UserError("the prompt is empty, expected at least one token")
        if len(prompt) > sizes.context:
            raise UserError(
                f"the prompt has {len(prompt)} tokens, the package's context holds {sizes.context}"
            )
        check_tokens("the prompt", prompt, contents.vocab_size)
        if request.prompt_cache is not None or request.quantization.bits is not None:
            raise UserError(
                "a prompt cache or kv_bits was given, expected neither: a package has its own rows"
            )
        if request.rule.name == "rejection":
            raise UserError(
                "verify is 'rejection', expected another rule: its drafts are drawn, a package "
                "returns the likeliest ones"
            )
        sampling = sampling_of(request.sampler)
        if sampling is not None:
            sampling.check(contents.vocab_size)
        processed = request.rule is not VerifyRule or request.logits_processors
        if processed and not contents.sampling:
            raise UserError(
                f"{contents.path} has no functions that return logits, which a temperature and "
                "logits processors need: export it with --sampling"
            )
        room = sizes.context - len(prompt) + 1  # the last token of all is not read any more
        drafting = request.drafting
        if drafting is None or isinstance(drafting, DraftSettings | Proposers):
            drafting = self._settings(drafting)
        return replace(
            request,
            drafting=drafting,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            prefill_step_size=sizes.chunk,
        )

    def _settings(self, settings: DraftSettings | Proposers | None) -> DraftSettings:
        """Settings of drafts within the package's sizes.

        Without a shape, streams and lookup fill the smallest tree, since its rows are computed
        anyway.
        """
        sizes, streams = self.contents.sizes, self.adapter.num_streams
        if sizes.most_nodes == 1:
            return DraftSettings(speculation=False)
        if settings is None or isinstance(settings, Proposers):
            least = min(count for count in sizes.nodes if count > 1)
            fields = vars(settings or USUAL)
            looks_up = fields["lookup"] is not False
            settings = DraftSettings(tree_size=least - 1, **fields | {"lookup": looks_up})
        for name in ("max_nodes", "prune_threshold", "stream_nodes", "proposers", "draft_model"):
            if getattr(settings, name):
                raise UserError(
                    f"{name} is given, expected none: a package drafts by streams at every node "
                    "and lookup, and prunes nothing"
                )
        depth = streams if settings.num_streams is None else settings.num_streams
        if depth > streams:
            raise UserError(f"num_streams is {depth}, the adapter has {streams}")
        settings = replace(settings, tree_width=min(settings.tree_width, sizes.candidates))
        most = sizes.most_nodes - 1
        return replace(settings, tree_size=most) if settings.most_nodes(depth) > most else settings

    def _begin(self, prompt: Sequence[int]) -> int:
        """Go back to the rows that a prompt has in common with those that are there."""
        # The last path is in its place only once a further step has committed it.
        known = self._rows[: self._start]
        if self.adapter.mode == "shared":  # rows of a text have seen their streams
            known = known[: self._reusable]
        pairs = enumerate(zip(known, prompt[:-1], strict=False))
        least = min(len(known), len(prompt) - 1)
        reused = next((number for number, (ours, theirs) in pairs if ours != theirs), least)
        self._rows, self._reusable = self._rows[:reused], reused
        self._settle()
        return reused

    # The loop's decoder -------------------------------------------------------------------------

    def prefill(self, tokens: mx.array) -> None:
        """Commit prompt tokens (n,), at most a chunk, without streams."""
        chunk, read = self.contents.sizes.chunk, np.array(tokens, np.int32)
        inputs = {"inputIds": np.pad(read, (0, chunk - read.size)), "length": self._length}
        self._call(f"prefill{chunk}", inputs, self._states)
        self._rows += read.tolist()
        self._reusable = len(self._rows)
        self._settle()

    def step(self, plans: Sequence[Plan], rules: Sequence[VerifyRule]) -> list[StepResult]:
        """Verify a tree and let the accepted node's streams guess; see ``Decoder.step``."""
        [plan], [rule] = plans, rules
        self._tree, tree, nodes = plan.tree, plan.tree, len(plan.tree)
        count = min(size for size in self.contents.sizes.nodes if size >= nodes)
        inputs = self._inputs(tree, count)
        guesses = self.adapter.num_streams > 0 and plan.width > 0
        if not rule.is_greedy:
            del inputs["parents"]
            found = self._call(f"logits{count}", inputs, self._states)
            result = self._verified(rule, tree, mx.array(found["logits"][:nodes]))
            if guesses:
                last = int(np.array(result.last))
                hidden = {"streamHidden": found["streamHidden"][last]}
                if self.adapter.stream_head == "conditioned":
                    hidden["token"] = np.array(result.predictions)[[last]].astype(np.int32)
                found = self._call("draft", hidden)
        else:
            found = self._call(f"step{count}", inputs, self._states)
            predictions = mx.array(found["predictions"][:nodes])
            result = StepResult(mx.array(found["last"].item()), predictions, None)
        if guesses:
            arrays = (mx.array(found[name]) for name in _GUESSES if name in found)
            result = replace(result, streams=StreamResult(*arrays))
        self._settle()  # the call has committed; if no commit follows, it adds nothing
        return [result]

    def commit(self, paths: Sequence[Sequence[int]], kept_paths: Sequence[Sequence[int]]) -> None:
        """Let the next step commit the accepted rows; see ``Decoder.commit``."""
        [path] = paths
        assert self._tree is not None  # the step was of one
        others = [row for row in range(self._in_order.size) if row not in path]
        self._order = np.array([*path, *others], np.int32)
        self._rows += self._tree.tokens[list(path)].tolist()

    @property
    def _length(self) -> np.ndarray:
        return np.array([len(self._rows)], np.int32)

    def _settle(self) -> None:
        """All rows so far are in their places: the next step has nothing to commit."""
        self._start, self._order = len(self._rows), self._in_order

    def _call(
        self, name: str, inputs: dict[str, np.ndarray], states: Any = None
    ) -> dict[str, np.ndarray]:
        return call(self._executor, f"{self.adapter.name}_{name}", inputs, states)

    def _inputs(self, tree: DraftTree, count: int) -> dict[str, np.ndarray]:
        """The inputs of ``step<count>``; the tree is filled up to ``count`` nodes."""
        nodes, missing = len(tree), count - len(tree)
        ancestors = np.eye(count, dtype=np.int32)
        ancestors[:nodes, :nodes] = tree.ancestors
        inputs = {
            "inputIds": np.pad(tree.tokens, (0, missing)),
            "positions": np.pad(len(self._rows) + tree.depths, (0, missing)),
            "parents": np.pad(tree.parents, (0, missing), constant_values=-1),
            "ancestors": ancestors,
            "length": self._length,
            "start": np.array([self._start]),
            "commit": self._order,
        }
        return {name: value.astype(np.int32) for name, value in inputs.items()}

    def _verified(self, rule: VerifyRule, tree: DraftTree, logits: mx.array) -> StepResult:
        shapes = shapes_of([tree])
        positions = len(self._rows) + shapes.depths
        tokens = mx.array(tree.tokens)[None]
        nodes = TreeNodes(tokens, shapes.parents, shapes.ancestors, positions).of(0, len(tree))
        return StepResult(*rule.verify(tree, nodes, logits))
