import mlx.core as mx
import mlx.nn as nn
import pytest

from specstream_mlx.train.activation_checkpointing import Parts, checkpointed

WIDE = 4096


@pytest.fixture
def mlp():
    return {"up": nn.Linear(16, WIDE), "down": nn.Linear(WIDE, 16)}


def layer(modules):
    """Two outputs of one input with two rows for each sequence, and a constant with one."""

    def run(part, parameters, inputs, constants):
        for name, module in modules.items():
            module.update(parameters[name])
        hidden = modules["down"](mx.tanh(modules["up"](inputs[0])))
        return [hidden + mx.repeat(constants[0], 2, axis=0), hidden * hidden]

    return run


def gradients(modules, parts, inputs, constants):
    def loss(parameters, inputs):
        first, second = checkpointed(layer(modules), parts, parameters, [inputs], [constants])
        return (first * mx.arange(len(first))[:, None, None]).sum() + (second * first).sum()

    parameters = {name: module.trainable_parameters() for name, module in modules.items()}
    found = mx.value_and_grad(loss, argnums=(0, 1))(parameters, inputs)
    mx.eval(found)
    for name, module in modules.items():
        module.update(parameters[name])
    return found


def test_as_much_memory_as_a_part_needs(mlp):
    inputs, constants = mx.random.normal((128, 40, 16)), mx.random.normal((64, 40, 16))
    mx.eval(inputs, constants, [module.parameters() for module in mlp.values()])
    peaks = []
    for at_once in (64, 1):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        gradients(mlp, Parts(64, at_once), inputs, constants)
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < peaks[0] / 4
