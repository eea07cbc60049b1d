"""Keys and noise by seed and position, and how far a stream's guesses follow the noise."""

import mlx.core as mx
import numpy as np
import pytest

from specstream_mlx import UserError
from specstream_mlx.engine.guess import normalized
from specstream_mlx.engine.noise import STRENGTHS, Coupling, Noise


def test_a_seed_means_the_same_in_every_version():
    """Users note seeds."""
    uses = ((0, "token"), (1, "token"), (0, "coin"))
    found = [Noise(7).number(*use) for use in uses]
    assert found == [0xB8B4C2977EABCE45, 0x591A5CA9608CC826, 0xA65305FD338EC8FE]
    expected = [1.9693776, 1.307017, -0.16295965]
    assert np.array(Noise(7).gumbel(0, 1, 3))[0] == pytest.approx(expected, rel=1e-5)
    coins = np.array(Noise(0).coins(0, 2000))
    assert ((coins >= 0) & (coins < 1)).all()
    assert coins.mean() == pytest.approx(0.5, abs=0.03)
    for seed in (-1, 2**64, 1.5, None):
        with pytest.raises(UserError, match="expected an integer of at least 0 and below"):
            Noise(seed)


def test_noise_without_a_number_is_none(monkeypatch):
    """MLX's own is -inf where its uniform number is 0, and then a lone candidate would lose."""
    monkeypatch.setattr(mx.random, "gumbel", lambda shape, **_: mx.full(shape, -mx.inf))
    assert np.isfinite(np.array(Noise(0).gumbel(0, 1, 3))).all()


# Drafts under the noise --------------------------------------------------------------------------

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
    alone, noise = losses(True, (0.0,)), losses(True, (1.0,))
    assert noise.mean() < 0.5 * alone.mean()
    assert losses(True)[50:] == pytest.approx(noise[50:], abs=1e-5)
    alone, noise = losses(False, (0.0,)), losses(False, (1.0,))
    assert noise.mean() > alone.mean() + 0.5
    assert losses(False)[50:] == pytest.approx(alone[50:], abs=1e-5)


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
