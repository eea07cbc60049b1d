"""Random models as Core ML packages, and MLX models of the same decoded weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import mlx.nn as nn
import tiny_models
from mlx.utils import tree_map
from mlx_lm.utils import dequantize_model
from random_models import LLAMA3, put_random_lora, sharpened
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.export import PackageBuilder
from specstream_mlx.convert.to_coreml.supported import Sizes
from specstream_mlx.convert.to_coreml.weights import operation_name

from specstream_mlx.drafting.fixed import FixedPlanner
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.generation.batch import steps_of
from specstream_mlx.generation.sequence import TokenSequence
from specstream_mlx.stream_config import StreamConfig

VOCAB_SIZE = 97
SIZES = Sizes(context=96, nodes=(5, 8), chunk=8, candidates=3)
HIDDEN, LAYERS = 64, 3
SMALL = {"num_hidden_layers": LAYERS, "vocab_size": VOCAB_SIZE}
LORA_KEYS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")


@dataclass(frozen=True)
class Case:
    """A random model and its streams."""

    family: str = "llama"
    bits: int | None = 8
    fields: dict = field(default_factory=dict)
    streams: dict | None = field(default_factory=dict)
    lora: Sequence[str] = ()
    shortlists: bool | None = None
    seed: int = 0

    @property
    def config(self):
        config = tiny_models.tiny_llama_config(**SMALL, model_type=self.family)
        return config | self.fields


SHARED = {"mode": "shared"}
ADAPTER = {"stream_mlp": "adapter", "stream_adapter_rank": 4}
BESIDE = {"stream_mlp": "base+adapter", "stream_adapter_rank": 4}
CONDITIONED = {**ADAPTER, "stream_head": "conditioned", "stream_head_rank": 6}
UNTIED = {"tie_word_embeddings": False}
CASES = {
    "Llama, int8, lossless": Case(streams=ADAPTER),
    "Llama, int4, shared, LoRA, linear": Case(
        bits=4, lora=LORA_KEYS, streams={**SHARED, "stream_init": "linear", "stream_init_rank": 3}
    ),
    "Llama, fp16, untied, biases, value rotation": Case(
        bits=None,
        fields={**UNTIED, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        streams={**ADAPTER, "stream_init": "value_rotation", "value_rotation_epsilon": 0.4},
    ),
    "Llama 3 rope, int6, one stream": Case(
        bits=6, fields={"rope_scaling": LLAMA3}, streams={**SHARED, "num_streams": 1}
    ),
    "Qwen2, untied, draft vocabulary, every layer": Case(
        "qwen2",
        fields=UNTIED,
        streams={**BESIDE, **SHARED, "draft_vocabulary": 60, "num_msa_layers": 3},
        lora=LORA_KEYS,
    ),
    "Qwen3, int4, shared": Case("qwen3", bits=4, fields={"head_dim": 32}, streams=SHARED),
    "Mistral, int4, untied, no streams": Case("mistral", bits=4, fields=UNTIED, streams=None),
    "Mistral, conditioned, one stream, a LoRA that stays": Case(
        "mistral", fields=UNTIED, streams={**CONDITIONED, "num_streams": 1}, lora=LORA_KEYS
    ),
    "Qwen3, conditioned, shortlists": Case(
        "qwen3", streams={**CONDITIONED, "draft_vocabulary": 60}, shortlists=True
    ),
    "Llama, untied, conditioned, shortlists, LoRA on the head": Case(
        fields=UNTIED,
        streams={**CONDITIONED, "mode": "shared"},
        lora=(*LORA_KEYS, "lm_head"),
        shortlists=True,
    ),
}
PAIRS = {
    "lossless": (CASES.pop("Llama, int8, lossless"),),
    "conditioned": (CASES.pop("Qwen3, conditioned, shortlists"),),
    "bare": (CASES.pop("Mistral, int4, untied, no streams"),),
    "shared": (Case(streams=SHARED, lora=LORA_KEYS), (("one", 1), ("other", 5))),
}
"""Those of which several tests need a package; in the last one two adapters share a base."""


def random_model(case):
    """An mlx-lm model with random weights, quantized, without LoRA."""
    model = sharpened(tiny_models.tiny_llama(case.config, seed=case.seed), case.seed)
    if case.bits is not None:
        nn.quantize(model, group_size=32, bits=case.bits)
    return model


def decoded_model(model, weights):
    """A model in float32 with what a package holds of its weights: ``Package.weights``."""
    model = dequantize_model(model)
    model.update(tree_map(halved, model.parameters()))
    for name, part in model.named_modules():
        found = weights.get(operation_name(name.removesuffix(".linear")))
        if isinstance(part, nn.Linear | nn.Embedding) and found is not None:
            assert found.shape == part.weight.shape, name
            part.weight = mx.array(found)
    return model


def halved(p):
    """Floats rounded to half precision, in float32."""
    return p.astype(mx.float16).astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p


def random_streams(case, seed=1):
    if case.streams is None:
        return None
    fields = {"mode": "lossless", "num_streams": 3, "num_msa_layers": 2, **case.streams}
    config = StreamConfig(hidden_size=HIDDEN, num_hidden_layers=LAYERS, **fields)
    return tiny_models.random_streams(config, seed=case.seed + seed)


FACTS = {
    "base": {"vocab_size": VOCAB_SIZE, "end_tokens": [], "fingerprint": "of no file"},
    "tokenizer": "none.tokenizer",
}
SETTINGS = DraftSettings(tree_width=SIZES.candidates, tree_size=SIZES.most_nodes)


class Pair:
    """A saved package and the MLX engine over the weights that it holds."""

    def __init__(self, path, case, adapters=(("one", 1),)):
        self.case, self.path, self._models = case, path, {}
        for name, seed in adapters:
            model = random_model(case)
            if case.lora:
                put_random_lora(model, seed, case.lora)
            self._models[name] = model, random_streams(case, seed)
        if not path.exists():
            builder = PackageBuilder(SIZES, sampling=True)
            for name, model_and_streams in self._models.items():
                builder.add(name, *model_and_streams, case.shortlists)
            builder.save(path, FACTS)
        self.package, self.contents = Package(path), Contents.read(path)
        for name, (model, streams) in self._models.items():
            weights = self.package.weights(f"{name}_logits{SIZES.nodes[0]}")
            if streams is not None:
                streams.update(tree_map(halved, streams.parameters()))
            self._models[name] = decoded_model(model, weights), streams

    def decoder(self, adapter="one"):
        """The MLX side."""
        model, streams = self._models[adapter]
        caches = make_caches(model, self.case.config)
        return Decoder(model, streams, caches, shortlists=self.case.shortlists)

    def package_decoder(self, adapter="one", executor=None):
        """The package's side."""
        return PackageDecoder(self.contents, executor or self.package, adapter)


def by_engine(decoder, request, planner):
    """The engine's steps."""
    request = replace(request, drafting=planner, prefill_step_size=SIZES.chunk)
    return list(steps_of(TokenSequence(None, request, decoder)))


def plain_text(decoder, request):
    """The tokens that a request ends up with, one a step."""
    plan_of = SETTINGS.plans(decoder.streams and decoder.streams.config)
    planner = FixedPlanner(DraftSettings(speculation=False), plan_of, streams=False)
    return [token for step in by_engine(decoder, request, planner) for token in step.tokens]
