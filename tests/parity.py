"""The same text through the PyTorch reference and through MLX, compared layer by layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import torch
from specstream_mlx.convert.pytorch.load import load_adapter, load_base, mount_lora

from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import DraftTree, Plan
from specstream_mlx.engine.step import Decoder
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.loading import load
from specstream_mlx.models.streams import ConditionedHead

BOUND = 1e-4
"""The largest difference allowed, relative to ``max(1, max |x|)``, in float32."""


class Converted(NamedTuple):
    """The directories of a base and its adapter, as PyTorch reads them and as MLX does.

    ``torch_adapter`` is the trainer's or PEFT's; ``mlx_base`` is not quantized.
    """

    torch_base: Path
    torch_adapter: Path
    mlx_base: Path
    mlx_adapter: Path


class Difference(NamedTuple):
    """The largest difference of two arrays; ``relative`` to ``max(1, max |PyTorch|)``."""

    name: str
    largest: float
    relative: float


def _difference(name: str, expected: torch.Tensor, found: mx.array) -> Difference:
    expected_array = expected.detach().numpy()
    largest = float(np.abs(expected_array - np.array(found)).max())
    return Difference(name, largest, largest / max(1.0, float(np.abs(expected_array).max())))


def layer_differences(
    converted: Converted, tokens: Sequence[int], prompt_length: int
) -> list[Difference]:
    """Compare every layer's main stream and streams, the final logits and the pruner's.

    MLX commits the prompt but for its last token and takes the rest as one chain with streams
    beside every node, which is what the reference computes in one forward pass. The streams' logits
    are compared beside the accepted node; those of a conditioned head beside every node, on the
    tokens of the chain.
    """
    reference = load_adapter(converted.torch_base, converted.torch_adapter)
    with torch.no_grad():
        expected = reference.forward(
            torch.tensor([list(tokens)]),
            torch.tensor([prompt_length]),
            torch.tensor([len(tokens)]),
            keep_layers=True,
        )
        early_exit = None
        if reference.config.pruner_rank:
            early_exit = reference.early_exit_logits(expected.trunk.seed[0, prompt_length - 1 :])

    model, _ = load(converted.mlx_base, adapter_path=converted.mlx_adapter)
    assert model.streams is not None
    config, head = model.streams.config, model.streams.head
    seen: dict[int, tuple[mx.array, mx.array]] = {}

    def observe(number: int, hidden: mx.array, output: mx.array) -> None:
        seen[number] = hidden[0], output[0]

    caches = make_caches(model.model, model.config)
    decoder = Decoder(model.model, model.streams, caches, shortlists=False)
    decoder.model.observe = observe
    start = prompt_length - 1
    if start:
        decoder.prefill(mx.array(list(tokens[:start])))
    chain = np.arange(len(tokens) - start, dtype=np.int32)
    tree = DraftTree(np.array(tokens[start:], np.int32), chain - 1, chain)
    plan = Plan(tree, "beside", streams=config.num_streams, width=1)
    [result] = decoder.step([plan], [VerifyRule()])

    nodes, first = len(chain), config.first_msa_layer
    differences = []
    for number, (_, output) in sorted(seen.items()):
        main = expected.trunk.main_layers[number][0, start:]
        differences.append(_difference(f"layer {number} main", main, output[:nodes]))
        if number >= first:
            streams = expected.trunk.stream_layers[number - first + 1][0]
            found = output[nodes:].reshape(streams.shape)
            differences.append(_difference(f"layer {number} streams", streams, found))
    guessed = result.streams
    assert result.logits is not None and guessed is not None
    differences.append(_difference("logits", expected.main_logits[0, start:], result.logits))
    if head is None:
        assert guessed.logits is not None
        wanted, found = expected.stream_logits[0, int(np.array(result.last))], guessed.logits
    else:
        wanted = expected.stream_logits[0]
        features = seen[max(seen)][1][nodes:].reshape(*wanted.shape[:2], -1)
        found = _conditioned_logits(head, decoder, features, tokens[start:])
        found = found.reshape(*wanted.shape[:2], -1)
    if model.streams.vocabulary is not None:
        wanted = wanted[..., torch.tensor(np.array(model.streams.vocabulary))]
    differences.append(_difference("stream logits", wanted, found))
    if early_exit is not None:
        found = decoder.model.early_exit(seen[first][0][None, :nodes])[0]
        differences.append(_difference("early-exit logits", early_exit, found))
    return differences


def _conditioned_logits(
    head: ConditionedHead, decoder: Decoder, features: mx.array, tokens: Sequence[int]
) -> mx.array:
    """The logits (1, nodes * gamma, vocab) of a conditioned head on the tokens before.

    ``features`` (nodes, gamma, h) are the streams' beside a chain of ``tokens``; after its end the
    last one stands for all.
    """
    nodes, gamma, _ = features.shape
    places = mx.arange(nodes)[:, None] + mx.arange(1, gamma + 1)
    before = mx.array(list(tokens))[mx.minimum(places, nodes - 1)]
    rows = head(features, decoder.model.embed(before))
    return decoder.model.stream_head(rows.reshape(1, nodes * gamma, -1))


def plain_difference(converted: Converted, tokens: Sequence[int]) -> Difference:
    """Compare the logits of a PEFT adapter without streams after every token."""
    base = load_base(converted.torch_base)
    reference = mount_lora(base, converted.torch_adapter).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([list(tokens)])).logits[0]
    model, _ = load(converted.mlx_base, adapter_path=converted.mlx_adapter)
    return _difference("logits", expected, model.model(mx.array([list(tokens)]))[0])
