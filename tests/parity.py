"""The same text in PyTorch and in MLX: adapters as PEFT saves them, logits, and layer by layer."""

import json

import mlx.core as mx
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from random_models import watch_layers
from specstream_mlx.convert.pytorch.load import load_adapter, load_base

from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import DraftTree, Plan
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.loading.load import load

BOUND = 1e-4
"""The largest difference allowed, relative to ``max(1, max |x|)``, in float32."""
TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]


def peft_directory(hf, directory, dtype=torch.float32, **config):
    """A PEFT adapter with random values, saved and loaded again by PEFT."""
    torch.manual_seed(1)
    model = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, "lora_alpha": 6} | config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name:
                parameter.normal_(std=0.2)
                parameter.data = parameter.to(dtype)
    model.save_pretrained(directory)
    return PeftModel.from_pretrained(load_base(hf), directory).eval()


def torch_logits(model, tokens=TOKENS):
    """Logits (tokens, vocabulary) of a PyTorch model after each token."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def mlx_logits(model, tokens=TOKENS):
    """Logits (tokens, vocabulary) of an mlx-lm model after each token."""
    return np.array(model(mx.array([tokens]))[0])


def close(expected, found):
    """Whether two arrays agree within the bound for MLX and PyTorch."""
    return np.abs(expected - found).max() <= BOUND * max(1.0, np.abs(expected).max())


def edit(path, part=None, **fields):
    """Change fields of a JSON file, or of an object in it."""
    values = json.loads(path.read_text())
    (values[part] if part else values).update(fields)
    path.write_text(json.dumps(values))


def differences(torch_base, torch_adapter, mlx_base, mlx_adapter, tokens, prompt_length):
    """The largest difference of each layer's main stream and streams, and of all logits, by name.

    They are relative to ``max(1, max |PyTorch|)``. MLX commits the prompt but for its last token
    and takes the rest as one chain with streams at every node, which is what the reference computes
    in one forward pass. The streams' logits are compared at the accepted node; those of a
    conditioned head at every node, on the tokens of the chain.
    """
    reference, found = load_adapter(torch_base, torch_adapter), {}

    def compare(name, expected, ours):
        expected = expected.detach().numpy()
        largest = float(np.abs(expected - np.array(ours)).max())
        found[name] = largest / max(1.0, float(np.abs(expected).max()))

    start = prompt_length - 1
    with torch.no_grad():
        sizes = torch.tensor([prompt_length]), torch.tensor([len(tokens)])
        expected = reference(torch.tensor([tokens]), *sizes, keep_layers=True)
    model, _ = load(mlx_base, adapter_path=mlx_adapter)
    config, head, seen = model.streams.config, model.streams.head, {}
    caches = make_caches(model.model, model.config)
    decoder = Decoder(model.model, model.streams, caches, shortlists=False)
    watch_layers(decoder.model, seen)
    if start:
        decoder.prefill(mx.array(tokens[:start]))
    chain = np.arange(len(tokens) - start, dtype=np.int32)
    tree = DraftTree(np.array(tokens[start:], np.int32), chain - 1, chain)
    plan = Plan(tree, "nodes", streams=config.num_streams, width=1)
    [result] = decoder.step([plan], [VerifyRule()])

    nodes, first = len(chain), config.first_msa_layer
    for number, (_, output) in sorted(seen.items()):
        main = expected.trunk.main_layers[number][0, start:]
        compare(f"layer {number} main", main, output[:nodes])
        if number >= first:
            streams = expected.trunk.stream_layers[number - first + 1][0]
            compare(f"layer {number} streams", streams, output[nodes:].reshape(streams.shape))
    compare("logits", expected.main_logits[0, start:], result.logits)
    if head is None:
        wanted, ours = expected.stream_logits[0, int(np.array(result.last))], result.streams.logits
    else:
        wanted = expected.stream_logits[0]
        features = seen[max(seen)][1][nodes:].reshape(*wanted.shape[:2], -1)
        places = mx.arange(nodes)[:, None] + mx.arange(1, config.num_streams + 1)
        before = mx.array(tokens[start:])[mx.minimum(places, nodes - 1)]  # the last one for all
        rows = head(features, decoder.model.embed(before)).flatten(0, 1)
        ours = decoder.model.stream_head(rows[None]).reshape(*wanted.shape[:2], -1)
    if model.streams.vocabulary is not None:
        wanted = wanted[..., torch.tensor(np.array(model.streams.vocabulary))]
    compare("stream logits", wanted, ours)
    if config.pruner_rank:
        exits = reference.early_exit_logits(expected.trunk.seed[0, start:])
        ours = decoder.model.early_exit(seen[first][0][None, :nodes])[0]
        compare("early-exit logits", exits, ours)
    return found
