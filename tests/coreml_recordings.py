"""Recordings of a package's calls, for hosts that must make the same ones."""

import json

import mlx.core as mx
import numpy as np
from coreml_packages import SIZES, Runner
from specstream_mlx.convert.to_coreml.package import METADATA

from specstream_mlx.drafting.best_first import best_first
from specstream_mlx.drafting.guesses import NO_GUESSES, StreamGuesses
from specstream_mlx.engine.noise import Noise
from specstream_mlx.engine.sampling import Sampling, drawn_tokens, normalized
from specstream_mlx.engine.verify.rule import follow

FORMAT = 1


class Recording:
    """A package that writes down what it is asked, and whose streams are often right.

    Random streams hardly ever are, so some guesses are replaced by what is known to come.

    Args:
        package: from ``evaluate``.
        text: prompt and continuation; ``None``: the guesses stay as they are.
        seed: of where the true tokens go.
    """

    def __init__(self, package, text=None, seed=0):
        self.calls, self.metadata = [], package.metadata
        self._package, self._text = package, text
        self._rng, self._hidden = np.random.default_rng(seed), None

    def states(self):
        return self._package.states()

    def call(self, name, inputs, states=None):
        found = self._package.call(name, inputs, states)
        found = {key: np.array(value) for key, value in found.items()}
        if self._text is not None:
            self._foretell(inputs, found)
        self.calls.append(
            {
                "function": name,
                "inputs": {key: np.asarray(value).tolist() for key, value in inputs.items()},
                "outputs": {key: value.tolist() for key, value in found.items()},
            }
        )
        return found

    def _foretell(self, inputs, found):
        if "streamHidden" in found:
            self._step, self._hidden = inputs, found["streamHidden"]
        if "candidates" not in found:
            return
        if "streamHidden" in inputs:
            same = (self._hidden == inputs["streamHidden"]).all((1, 2))
            (last,), inputs = np.flatnonzero(same)[:1], self._step
        else:
            last = found["last"].item()
        next_one = inputs["length"].item() + int(inputs["ancestors"][last].sum()) + 1
        coming = self._text[next_one:][: len(found["candidates"])]
        rank = int(self._rng.integers(0, 2))
        for depth, token in enumerate(coming[: self._rng.integers(0, 4)]):
            guesses = found["candidates"][depth]
            if "candidateParents" in found:
                guesses = guesses[0]
                if depth:
                    found["candidateParents"][depth, 0] = rank
            rank = rank if depth == 0 else 0
            guesses[guesses == token] = guesses[rank]  # no token comes twice
            guesses[rank] = token


def decode(package, adapter, turns, *, tree_size, temperature, seed, max_tokens, stop_tokens):
    """Write a text behind each turn, on the rows of the texts before.

    Args:
        package: from ``evaluate``, or a ``Recording`` of it.
        adapter: its name.
        turns: token ids.
        tree_size: nodes besides the root.
        temperature, seed, max_tokens, stop_tokens: of all texts.

    Yields:
        The prompt, which is all that came before, and the tokens of each text.
    """
    facts = json.loads(package.metadata[METADATA])
    context, streams = facts["sizes"]["context"], facts["adapters"][adapter]
    runner, text, reusable = Runner(package, adapter), [], 0
    for turn in turns:
        prompt = [*text, *turn]
        runner.length, runner.order = reusable, sorted(runner.order)
        runner.prefill(prompt[reusable:-1])
        reusable = runner.length
        tokens, guesses, root, noise = [], NO_GUESSES, prompt[-1], Noise(seed or 0)
        most = min(max_tokens, context - len(prompt) + 1)
        while len(tokens) < most:
            tree = best_first(root, guesses.behind, tree_size)
            nodes = min(count for count in SIZES.nodes if count >= len(tree))
            found, last, predictions = _step(
                runner, tree, nodes, streams, temperature, noise, len(tokens)
            )
            if streams.get("mode") != "shared":
                reusable = runner.length
            path = tree.path(last)
            root = int(predictions[last])
            written = [*tree.tokens[path[1:]].tolist(), root]
            ends = [place for place, token in enumerate(written) if token in stop_tokens]
            tokens += written[: ends[0] if ends else None]
            if ends:
                break
            runner.commit(path)
            if "candidates" in found:
                parents = found.get("candidateParents")
                guesses = StreamGuesses(found["candidates"], found["logProbs"], parents)
        tokens = tokens[:most]
        text = [*prompt, *tokens]
        yield prompt, tokens


def _step(runner, tree, nodes, streams, temperature, noise, first):
    """The streams' guesses, the last accepted node and the target's token after each node."""
    inputs = runner.inputs(tree, nodes)
    if not temperature:
        found = runner.call(f"step{nodes}", inputs, runner.states)
        return found, found["last"].item(), found["predictions"]
    del inputs["parents"]
    found = runner.call(f"logits{nodes}", inputs, runner.states)
    log_probs = normalized(mx.array(found["logits"][: len(tree)]))
    drawn = drawn_tokens(Sampling(temperature), noise, log_probs, first, tree.depths)
    arrays = (mx.array(array) for array in (tree.tokens, tree.parents, tree.ancestors))
    last, drawn = follow(*arrays, drawn).item(), np.array(drawn)
    if "streamHidden" not in found:
        return {}, last, drawn
    wanted = {"streamHidden": found["streamHidden"][last]}
    if streams["stream_head"] == "conditioned":
        wanted["token"] = drawn[[last]]
    return runner.call("draft", wanted), last, drawn


def recorded(pair, adapter, turns, **settings):
    """Runs of a package, some of whose drafts are right.

    Args:
        pair: of ``coreml_packages``.
        adapter, turns, settings: see ``decode``.

    Returns:
        Runs in the format of recordings; each but the first goes on where the one before ended.
    """
    settings = {"temperature": 0.0, "seed": None, "max_tokens": 24, "stop_tokens": [], **settings}
    plain = list(decode(pair.package, adapter, turns, **settings))
    prompt, tokens = plain[-1]
    recording, runs = Recording(pair.package, [*prompt, *tokens]), []
    for number, (prompt, tokens) in enumerate(decode(recording, adapter, turns, **settings)):
        assert (prompt, tokens) == plain[number]
        run = {"adapter": adapter, "prompt": prompt, "settings": settings, "tokens": tokens}
        runs.append(run | {"continues": number > 0, "calls": recording.calls})
        recording.calls = []
    return runs
