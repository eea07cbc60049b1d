"""Recordings of a package's calls, for hosts that must make the same ones."""

import numpy as np
from specstream_mlx.convert.to_coreml.recordings import Recorder, recorded_run

from specstream_mlx import DraftSettings, keyed_sampler
from specstream_mlx.request import Request


class SomeRight:
    """A package some of whose guesses are made right by the text that is coming."""

    def __init__(self, package, text, seed=0):
        self.title, self.states = "numpy, foretelling", package.states
        self._package, self._text = package, text
        self._rng = np.random.default_rng(seed)
        self._step, self._hidden = None, None  # of the call of ``logits`` before ``draft``

    def call(self, name, inputs, states=None):
        found = self._package.call(name, inputs, states)
        found = {key: np.array(value) for key, value in found.items()}
        if "streamHidden" in found:
            self._step, self._hidden = inputs, found["streamHidden"]
        if "candidates" in found:
            self._foretell(inputs, found)
        return found

    def _foretell(self, inputs, found):
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


def runs_of(pair, adapter, turns, executor, *, tree_size, max_tokens, stop_tokens, sampler):
    """Runs of one decoder: a text after each turn, on the rows of those before."""
    recorder, text, runs = Recorder(executor), [], []
    decoder = pair.package_decoder(adapter, recorder)
    for turn in turns:
        request = Request(
            [*text, *turn],
            DraftSettings(tree_size=tree_size),
            max_tokens=max_tokens,
            end_tokens=stop_tokens,
            sampler=sampler and sampler(),
        )
        run = recorded_run(decoder, recorder, request)
        text = [*run["prompt"], *run["tokens"]]
        run["settings"]["max_tokens"] = max_tokens  # where the context ends sooner, the host sees
        runs.append(run | {"continues": bool(runs)})
    return runs


def recorded(
    pair, adapter, turns, *, temperature=0.0, seed=None, max_tokens=24, stop_tokens=(), tree_size
):
    """Runs of a package, some of whose drafts are right."""
    settings = {"tree_size": tree_size, "max_tokens": max_tokens, "stop_tokens": stop_tokens}
    settings["sampler"] = (lambda: keyed_sampler(seed, temperature)) if temperature else None
    plain = runs_of(pair, adapter, turns, pair.package, **settings)
    text = [*plain[-1]["prompt"], *plain[-1]["tokens"]]
    runs = runs_of(pair, adapter, turns, SomeRight(pair.package, text), **settings)
    for key in ("prompt", "tokens"):
        assert [run[key] for run in runs] == [run[key] for run in plain]
    return runs
