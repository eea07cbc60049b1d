"""Recordings of a package's calls, for hosts that must make the same ones."""

import numpy as np

from specstream_mlx import DraftSettings, keyed_sampler
from specstream_mlx.request import Request


class Recording:
    """An executor that writes down what it is asked; some guesses are made right by the text."""

    def __init__(self, package, text, seed=0):
        self.title, self.calls = "numpy, recorded", []
        self._package, self._text = package, text
        self._rng = np.random.default_rng(seed)
        self._step, self._hidden = None, None  # of the call of ``logits`` before ``draft``

    def states(self):
        return self._package.states()

    def call(self, name, inputs, states=None):
        found = self._package.call(name, inputs, states)
        found = {key: np.array(value) for key, value in found.items()}
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


def texts(decoder, turns, *, tree_size, temperature, seed, max_tokens, stop_tokens):
    """Write a text behind each turn, on the rows of those before; yields prompts and tokens."""
    text = []
    for turn in turns:
        prompt = [*text, *turn]
        request = Request(
            prompt,
            DraftSettings(tree_size=tree_size),
            max_tokens=max_tokens,
            end_tokens=stop_tokens,
            sampler=keyed_sampler(seed, temperature) if temperature else None,
        )
        request = decoder.fitted(request)
        tokens = [token for step in decoder.decode(request) for token in step.tokens]
        stops = [place for place, token in enumerate(tokens) if token in stop_tokens]
        tokens = tokens[: min([request.max_tokens, *stops])]
        text = [*prompt, *tokens]
        yield prompt, tokens


def recorded(pair, adapter, turns, **settings):
    """Runs of a package, some of whose drafts are right."""
    settings = {"temperature": 0.0, "seed": None, "max_tokens": 24, "stop_tokens": [], **settings}
    plain = list(texts(pair.package_decoder(adapter), turns, **settings))
    prompt, tokens = plain[-1]
    recording, runs = Recording(pair.package, [*prompt, *tokens]), []
    decoder = pair.package_decoder(adapter, recording)
    for number, (prompt, tokens) in enumerate(texts(decoder, turns, **settings)):
        assert (prompt, tokens) == plain[number]
        run = {"adapter": adapter, "prompt": prompt, "settings": settings, "tokens": tokens}
        runs.append(run | {"continues": number > 0, "calls": recording.calls})
        recording.calls = []
    return runs
