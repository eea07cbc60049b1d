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
from specstream_mlx.convert.pytorch.losses import Batch
from specstream_mlx.convert.pytorch.losses import n_gram_loss as torch_loss
from torch_tiny import tiny_model

from specstream_mlx.loading import read_config, read_model
from specstream_mlx.models.architectures import architecture_of
from specstream_mlx.models.streams import Streams
from specstream_mlx.train.batches import Item
from specstream_mlx.train.forward import StreamForward
from specstream_mlx.train.loss import n_gram_loss
from specstream_mlx.train.parameters import Trained
from specstream_mlx.train.sequences import places_of, sequences_of
from specstream_mlx.train.settings import default_alphas

LENGTHS, STREAM_FROM = (21, 26, 17), (9, 12, 1)


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

    def found(self, segment=4, checkpoint=False):
        """Our loss and its gradients by name."""
        forward = StreamForward(self.model, self.config, self.streams, checkpoint)
        exits = bool(self.streams.config.pruner_rank)
        places = places_of(self.streams.vocabulary, self.config["vocab_size"])
        step = sequences_of(self.items, self.alphas, segment, exits, places)
        trained = Trained(self.model, self.streams)

        def loss_of(*step):
            loss = n_gram_loss(forward, *step)
            return loss.total, loss.per_stream, loss.pruner

        parameters = trained.trainable_parameters()
        losses, gradients = nn.value_and_grad(trained, loss_of)(*step)
        mx.eval(losses, gradients)
        trained.update(parameters)
        return losses, {n.partition(".")[2]: np.array(g) for n, g in tree_flatten(gradients)}
