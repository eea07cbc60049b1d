"""What the noise says about a stream's guesses, and how far it is believed."""

import mlx.core as mx
import numpy as np
import pytest

from specstream_mlx.engine.noise import STRENGTHS, Coupling, Noise
from specstream_mlx.engine.sampling import normalized

VOCAB, COUNT = 30, 150


def losses(knows, strengths=STRENGTHS):
    """(tokens,) losses in nats of one stream's guesses.

    The tokens are drawn from the guesses' own distribution, with the noise where the stream
    ``knows`` all there is to know, else without: by a target that is certain of them.
    """
    rng, noise, found = np.random.default_rng(0), Noise(0), []
    coupling, tokens = Coupling(strengths), []
    for position in range(COUNT):
        log_probs = normalized(mx.array(rng.normal(0, 1.5, (1, VOCAB)).astype(np.float32)))
        gumbel = noise.gumbel(position, 1, VOCAB)
        own = rng.gumbel(size=(1, VOCAB))
        tokens.append((np.array(log_probs) + (np.array(gumbel) if knows else own)).argmax())
        guesses = normalized(coupling.scores(log_probs, gumbel))
        found.append(-guesses[0, tokens[-1].item()].item())
        coupling.learn([tokens[position - 1].item()] if position else [0])
    return np.array(found)


def test_a_text_shows_how_much_the_noise_says():
    """With a stream that knows the target the noise is believed, else not at all."""
    alone, noise = losses(True, (0.0,)), losses(True, (1.0,))
    assert noise.mean() < 0.5 * alone.mean()
    assert losses(True)[50:] == pytest.approx(noise[50:], abs=1e-5)
    alone, noise = losses(False, (0.0,)), losses(False, (1.0,))
    assert noise.mean() > alone.mean() + 0.5
    assert losses(False)[50:] == pytest.approx(alone[50:], abs=1e-5)


def test_at_first_the_noise_is_not_believed():
    logits, noise = mx.array([[0.0, 1.0, 2.0]]), mx.array([[3.0, 0.0, 0.0]])
    assert Coupling().scores(logits, noise).tolist() == logits.tolist()
    coupling = Coupling((0.5,))
    for _ in range(3):
        assert coupling.scores(logits, noise).tolist() == [[1.5, 1.0, 2.0]]
        coupling.learn([2])


def test_guesses_are_judged_by_the_next_steps_first_token():
    logits, noise = mx.zeros((2, 4)), mx.array([[9.0, 0, 0, 0], [0, 9.0, 0, 0]])

    def believed(*steps):
        coupling = Coupling()
        coupling.scores(logits, noise)
        for tokens in steps:
            coupling.learn(tokens)
        return coupling.scores(logits, noise)[0, 0].item() > 0

    assert not believed([0]), "of the step itself, which is not what they are for"
    assert believed([3], [0, 1, 2, 3])
    assert believed([3], mx.array([0]))
    assert not believed([3], [1])
    assert not believed([3], [1], [0]), "a step without streams in between"
