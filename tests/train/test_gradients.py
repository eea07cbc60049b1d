"""The loss of a step in MLX, and its gradients, against PyTorch on the same weights and batch."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from architecture_models import random_model
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from peft import LoraConfig, get_peft_model
from specstream_mlx.convert.pytorch.backbone import linear_layers
from specstream_mlx.convert.pytorch.losses import Batch
from specstream_mlx.convert.pytorch.losses import n_gram_loss as torch_loss
from torch_tiny import tiny_model

from specstream_mlx.loading import read_config, read_model
from specstream_mlx.models.architectures import ARCHITECTURES, architecture_of
from specstream_mlx.models.streams import Streams
from specstream_mlx.train import forward as forward_module
from specstream_mlx.train.forward import StreamForward
from specstream_mlx.train.items import Item
from specstream_mlx.train.loss import n_gram_loss
from specstream_mlx.train.sequences import places_of, sequences_of
from specstream_mlx.train.stream_settings import default_alphas

BOUND = 1e-4
"""Of each tensor's largest gradient, in float32."""

LENGTHS, STREAM_FROM = (21, 26, 17), (9, 12, 1)

FAMILIES = {
    "Llama 3.2, tied": "llama",
    "Mistral 0.1, window": "mistral",
    "Phi-2": "phi",
    "Phi-3 mini 4k, window": "phi3",
    "Qwen2, windows on the upper layers": "qwen2",
    "Qwen3 8B": "qwen3",
    "Gemma 2": "gemma2",
    "Gemma 3": "gemma3_text",
    "OPT": "opt",
}

SHARED = {"mode": "shared"}
VARIANTS = {
    "linear": {"stream_init": "linear", "stream_init_rank": 4, "stream_mlp": "base+adapter"},
    "value rotation": {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3},
    "conditioned head": {"stream_head": "conditioned", "stream_head_rank": 5},
    "selected keys": {"stream_keys": 5},
    "near keys": {"stream_window": 3},
    "near keys, shared": {"stream_window": 3, **SHARED},
    "selected keys, shared": {"stream_keys": 5, **SHARED},
    "literal pruner, every layer": {"pruner_form": "literal", "num_msa_layers": 4},
    "no pruner, one stream": {"pruner_rank": 0, "num_streams": 1},
    "conditioned head, shared": {"stream_head": "conditioned", "stream_head_rank": 5, **SHARED},
}


class Sides:
    """One model with streams in PyTorch and in MLX."""

    def __init__(self, case, directory, mode="lossless", **fields):
        base = random_model(case)
        base.save_pretrained(directory)
        if mode == "shared":
            torch.manual_seed(0)
            targets = linear_layers(base)
            base = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
        self.torch_model = tiny_model(mode, base=base.eval(), lora=False, **fields)
        self.model, _ = read_model(directory)
        self.config = read_config(directory)
        self.model.freeze()
        self.streams = Streams(self.torch_model.config)
        tensors = self.torch_model.stream_tensors().items()
        self.streams.load_weights([(name, mx.array(t.detach().numpy())) for name, t in tensors])
        self.torch_names = {name: name for name, _ in tensors if name != "streams.vocabulary"}
        if mode == "shared":
            self._copy_lora()

    def _copy_lora(self):
        settings = {"rank": 4, "scale": 2.0, "dropout": 0.0}
        linear_to_lora_layers(self.model, len(self.model.layers), settings)
        module_name = architecture_of(self.config["model_type"]).module_name
        weights = {}
        for name, parameter in self.torch_model.named_parameters():
            if "lora_" in name:
                short = name.removeprefix("base.base_model.model.").removesuffix(".default.weight")
                module, kind = short.rsplit(".", 1)
                ours = f"{module_name(module)}.{kind.lower()}"
                weights[ours] = mx.array(parameter.detach().numpy().T)
                self.torch_names[ours] = name
        assert weights.keys() == dict(tree_flatten(self.model.trainable_parameters())).keys()
        self.model.load_weights(list(weights.items()), strict=False)

    @property
    def alphas(self):
        config = self.torch_model.config
        return default_alphas(config.mode, config.num_streams)

    @property
    def items(self):
        rng = np.random.default_rng(0)
        return [
            Item(rng.integers(0, 90, length).tolist(), stream_from)
            for length, stream_from in zip(LENGTHS, STREAM_FROM, strict=True)
        ]

    def expected(self):
        """PyTorch's loss, and its gradients by our names."""
        tokens = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
        for row, item in zip(tokens, self.items, strict=True):
            row[: len(item.tokens)] = torch.tensor(item.tokens)
        batch = Batch(tokens, torch.tensor(STREAM_FROM), torch.tensor(LENGTHS))
        self.torch_model.zero_grad()
        loss = torch_loss(self.torch_model, batch, self.alphas)
        loss.total.backward()
        gradients = {name: p.grad for name, p in self.torch_model.named_parameters()}
        found = {}
        for ours, name in self.torch_names.items():
            gradient = gradients[name].numpy()
            found[ours] = gradient.T if "lora_" in ours else gradient
        return loss, found

    def found(self, segment=4, multiple=1, checkpoint=False, compiled=False):
        """Our loss and its gradients by name."""
        forward = StreamForward(self.model, self.config, self.streams, checkpoint)
        exits = bool(self.streams.config.pruner_rank)
        places = places_of(self.streams.vocabulary, self.config["vocab_size"])
        step = sequences_of(self.items, self.alphas, segment, multiple, exits, places)
        trained = [self.streams, self.model]

        def loss_of(parameters):
            for module, own in zip(trained, parameters, strict=True):
                module.update(own)
            loss = n_gram_loss(forward, *step)
            return loss.total, loss.per_stream, loss.pruner

        function = mx.value_and_grad(loss_of)
        if compiled:
            function = mx.compile(function)
        parameters = [module.trainable_parameters() for module in trained]
        losses, gradients = function(parameters)
        mx.eval(losses, gradients)
        for module, own in zip(trained, parameters, strict=True):
            module.update(own)
        flat = [dict(tree_flatten(gradient)) for gradient in gradients]
        found = {name: np.array(g) for part in flat for name, g in part.items()}
        found.pop("streams.vocabulary", None)
        return losses, found


def assert_equal(sides, **kind):
    expected, gradients = sides.expected()
    (total, per_stream, pruner), found = sides.found(**kind)
    assert total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    weighted = torch.tensor(sides.alphas) * expected.per_stream
    assert np.array(per_stream) == pytest.approx(weighted.numpy(), rel=1e-5)
    assert pruner.item() == pytest.approx(expected.pruner.item(), rel=1e-5)
    assert found.keys() == gradients.keys()
    off = {
        name: np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        for name, gradient in gradients.items()
    }
    assert max(off.values()) < BOUND, max(off.items(), key=lambda item: item[1])


def test_every_family_has_a_case():
    assert set(FAMILIES.values()) == set(ARCHITECTURES)


@pytest.mark.parametrize("case", FAMILIES)
def test_all_families(case, tmp_path):
    assert_equal(Sides(case, tmp_path))


OWN_CODE = ("Gemma 2", "OPT")
OTHERS = [pytest.param(c, marks=pytest.mark.slow) for c in FAMILIES if c not in OWN_CODE]


@pytest.mark.parametrize("case", [*OWN_CODE, *OTHERS])
def test_lora(case, tmp_path):
    assert_equal(Sides(case, tmp_path, "shared"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants(variant, tmp_path):
    fields = VARIANTS[variant]
    assert_equal(Sides("Mistral 0.1, window", tmp_path, **fields))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_a_draft_vocabulary(mode, tmp_path):
    sides = Sides("Gemma 2", tmp_path, mode, draft_vocabulary=40)
    assert_equal(sides)
    assert_equal(sides, **ALL_IN_ONE)


ALL_IN_ONE = {"checkpoint": True, "compiled": True, "multiple": 8, "segment": 3}


@pytest.mark.parametrize("rows", [1, 300], ids=["a sequence a part", "two"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_checkpointed_and_compiled(mode, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(forward_module, "_ROWS", rows)
    fields = {"stream_head": "conditioned", "stream_head_rank": 5, "stream_keys": 6}
    assert_equal(Sides("Gemma 2", tmp_path, mode, **fields), **ALL_IN_ONE)


@pytest.mark.parametrize(
    ("detail", "mode"),
    [("position", "lossless"), ("order", "shared"), ("window", "lossless"), ("segment", "shared")],
)
def test_a_wrong_detail_would_show(detail, mode, tmp_path, monkeypatch):
    """Negative control: what a row's place or its sight rests on."""
    visibility = forward_module.Visibility
    right = visibility.__init__

    def wrong(self, sequences, num_streams, shared, windows, *masks):
        right(self, sequences, num_streams, shared, windows, *masks)
        if detail == "position":
            self.positions = self.positions + (mx.arange(self.positions.shape[1]) == 0)
        elif detail == "order":
            self._own = self._own[:, ::-1, ::-1]
        elif detail == "window":
            self._seen = {window: self._within(None) for window in windows}

    monkeypatch.setattr(visibility, "__init__", wrong)
    if detail == "segment":
        monkeypatch.setattr(visibility, "in_segments", lambda self, whole: own(self, whole)[::-1])
    with pytest.raises(AssertionError):
        assert_equal(Sides("Mistral 0.1, window", tmp_path, mode))


own = forward_module.Visibility.in_segments
