"""What the noise says about a stream's guesses, and how far it is believed."""

import mlx.core as mx
import numpy as np
import pytest

from specstream_mlx.engine.coupling import STRENGTHS, Coupling
from specstream_mlx.engine.noise import Noise
from specstream_mlx.engine.sampling import normalized

GAMMA, VOCAB, COUNT = 2, 30, 150


def losses(knows, strengths=STRENGTHS):
    """(tokens, gamma) losses in nats of guesses.

    The tokens are drawn from the guesses' own distribution, with the noise where the drafter
    ``knows`` all there is to know, else without: by a target that is certain of them.
    """
    rng, noise, found = np.random.default_rng(0), Noise(0), []
    coupling, expected = Coupling(strengths), []
    for position in range(COUNT):
        log_probs = normalized(mx.array(rng.normal(0, 1.5, (GAMMA, VOCAB)).astype(np.float32)))
        gumbel = noise.gumbel(position, GAMMA, VOCAB)
        own = rng.gumbel(size=(GAMMA, VOCAB))
        drawn = np.array(log_probs) + (np.array(gumbel) if knows else own)
        guesses = np.array(coupling.guesses(log_probs, gumbel))
        assert np.exp(guesses).sum(axis=1) == pytest.approx(1, abs=1e-4)
        tokens = drawn.argmax(axis=1).tolist()
        expected.append(tokens)
        found.append([-guesses[stream, token] for stream, token in enumerate(tokens)])
        coupling.learn(expected[position - 1] if position else [0])
    return np.array(found)


def test_a_text_shows_how_much_the_noise_says():
    """With streams that know the target the best guess is all but right, else no worse than s."""
    blind, certain = losses(True, (0.0,)), losses(True, (1.0,))
    assert certain.mean() < 0.5 * blind.mean()
    assert losses(True)[50:].mean() < certain[50:].mean() + 0.05
    blind, certain = losses(False, (0.0,)), losses(False, (1.0,))
    assert certain.mean() > blind.mean() + 0.5
    assert losses(False)[50:].mean() < blind[50:].mean() + 0.05


def test_one_strength_learns_nothing():
    coupling, logits = Coupling((0.5,)), mx.array([[0.0, 1.0, 2.0]])
    noise = mx.array([[3.0, 0.0, 0.0]])
    for _ in range(3):
        found = coupling.guesses(logits, noise)
        assert np.allclose(np.array(found), np.array(normalized(logits + 0.5 * noise)), atol=1e-6)
        coupling.learn([2])


def test_steps_without_streams_and_long_ones():
    """Guesses are judged by the next step's tokens, as many as there are, and by no later ones."""
    coupling, logits = Coupling(), mx.zeros((2, 4))
    noise = mx.array([[5.0, 0, 0, 0], [0, 5.0, 0, 0]])
    first = np.array(coupling.guesses(logits, noise))
    coupling.learn([3])  # of the step itself: not what these guesses are for
    coupling.learn(mx.array([0]))  # judges stream 1 alone
    coupling.learn([0, 1, 2, 3])
    second = np.array(coupling.guesses(logits, noise))
    assert second[0, 0] > first[0, 0] + 0.1
    assert second[1] == pytest.approx(first[1], abs=1e-6)
    coupling.learn([1])
    coupling.learn([0, 1, 2, 3])  # longer than there are streams
    assert np.array(coupling.guesses(logits, noise))[1, 1] > second[1, 1] + 0.1
