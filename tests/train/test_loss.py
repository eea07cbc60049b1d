import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specstream_mlx.train.loss import head_cross_entropy, rows_at_once


def test_slices_are_as_the_whole():
    mx.random.seed(0)
    hidden, weight = mx.random.normal((700, 6)), mx.random.normal((5000, 6))
    targets = mx.random.randint(0, 5000, (700,))
    assert rows_at_once(5000) < 700 / 3

    def by_slices(hidden):
        losses = head_cross_entropy(lambda rows: rows @ weight.T, hidden, targets, 5000)
        return (losses * mx.arange(700)).mean()

    def whole(hidden):
        return (nn.losses.cross_entropy(hidden @ weight.T, targets) * mx.arange(700)).mean()

    (loss, gradient), expected = (mx.value_and_grad(f)(hidden) for f in (by_slices, whole))
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-6)


def test_the_logits_of_all_rows_are_never_held():
    rows, vocab_size = 8192, 8192
    hidden, weight = mx.random.normal((rows, 8)), mx.random.normal((vocab_size, 8))
    targets = mx.random.randint(0, vocab_size, (rows,))
    mx.eval(hidden, weight, targets)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(
        mx.grad(
            lambda hidden: head_cross_entropy(
                lambda part: part @ weight.T, hidden, targets, vocab_size
            ).mean()
        )(hidden)
    )
    assert mx.get_peak_memory() - before < rows * vocab_size * 4 / 2
