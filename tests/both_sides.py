"""One random model with streams in PyTorch and in MLX, and a training step of both."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from architecture_models import random_model
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from peft import LoraConfig, get_peft_model
from specstream_mlx.convert.pytorch.backbone import linear_layers
from specstream_mlx.convert.pytorch.losses import n_gram_loss as torch_loss
from specstream_mlx.convert.pytorch.training_run import collate
from torch_tiny import tiny_model

from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.models.architectures import architecture_of
from specstream_mlx.models.streams import Streams
from specstream_mlx.train.batches import Item
from specstream_mlx.train.forward import StreamForward
from specstream_mlx.train.loss import n_gram_loss
from specstream_mlx.train.sequences import places_of, sequences_of
from specstream_mlx.train.settings import default_alphas
from specstream_mlx.train.start import Trained

_RNG = np.random.default_rng(0)
ITEMS = [Item(_RNG.integers(0, 90, n).tolist(), start) for n, start in ((21, 9), (26, 12), (17, 1))]


class Sides:
    """One model with streams in PyTorch and in MLX."""

    def __init__(self, case, directory, mode="lossless", **fields):
        base = random_model(case)
        base.save_pretrained(directory)
        if mode == "shared":
            torch.manual_seed(0)
            targets = linear_layers(base)
            base = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
        self.torch_model = tiny_model(mode, base=base.eval(), **fields)
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

    def expected(self, loss="cross_entropy", items=ITEMS):
        """PyTorch's loss, and its gradients by our names."""
        self.torch_model.zero_grad()
        loss = torch_loss(self.torch_model, collate(items), self.alphas, loss)
        loss.total.backward()
        gradients = {name: p.grad for name, p in self.torch_model.named_parameters()}
        found = {ours: gradients[name].numpy() for ours, name in self.torch_names.items()}
        return loss, {name: g.T if "lora_" in name else g for name, g in found.items()}

    def found(self, segment=4, checkpoint=False, loss="cross_entropy", items=ITEMS):
        """Our loss and its gradients by name."""
        forward = StreamForward(self.model, self.config, self.streams, checkpoint)
        exits = bool(self.streams.config.pruner_rank)
        places = places_of(self.streams.vocabulary, self.config["vocab_size"])
        step = sequences_of(items, self.alphas, segment, exits, places)
        trained = Trained(self.model, self.streams)

        def loss_of(*step):
            per_stream, pruner = n_gram_loss(forward, *step, loss)
            return per_stream.sum() + pruner, per_stream, pruner

        parameters = trained.trainable_parameters()
        losses, gradients = nn.value_and_grad(trained, loss_of)(*step)
        mx.eval(losses, gradients)
        trained.update(parameters)
        return losses, {n.partition(".")[2]: np.array(g) for n, g in tree_flatten(gradients)}
