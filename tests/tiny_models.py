"""Tiny random models, tokenizers and adapters, written to directories as users have them.

The models' logits have a standard deviation of about 2, so that arg-maxes are not near-ties.
"""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import _get_classes, save_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specstream_mlx.adapters.files import LoraPart, write_adapter
from specstream_mlx.errors import VOCABULARY
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.models.streams import Streams
from specstream_mlx.stream_config import StreamConfig

VOCAB_SIZE = 320
END, PAD = "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, END, "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
CORPUS = [
    "the meeting is at noon, please send the report to the team",
    "could you check the numbers in the table before the meeting",
]
LOGIT_STD = 2.0


def tiny_tokenizer(corpus=CORPUS, vocab_size=VOCAB_SIZE):
    """A byte-level BPE of at most ``vocab_size`` tokens with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tokenizer_ending(*ends):
    """The same, wrapped as mlx_lm does, with these end tokens alone."""
    wrapper = TokenizerWrapper(tiny_tokenizer())
    wrapper.eos_token_ids = ends
    return wrapper


def tiny_llama_config(**fields):
    """A Llama ``config.json``."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    config |= {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB_SIZE}
    config |= {"max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
    config |= {"rope_theta": 10000.0, "eos_token_id": SPECIAL_TOKENS.index(END)} | fields
    return config | {"head_dim": config["hidden_size"] // config["num_attention_heads"]}


def tiny_llama(config, *, residual_scale=1.0, seed=0):
    """An mlx-lm Llama, or another of its models, in float32 with random weights.

    With a ``residual_scale`` near 0 and a tied head it repeats its last token, as streams draft.
    """
    generator = np.random.default_rng(seed)
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))

    def fill(path, weight):
        if weight.ndim == 1:
            return mx.array(generator.uniform(0.8, 1.2, weight.shape), mx.float32)
        std = weight.shape[1] ** -0.5
        if "embed_tokens" in path or "lm_head" in path:
            std *= LOGIT_STD
        elif "o_proj" in path or "down_proj" in path:
            std *= residual_scale
        return mx.array(generator.normal(0, std, weight.shape), mx.float32)

    model.update(tree_map_with_path(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


def tiny_llama_directory(
    directory, *, bits=None, group_size=32, residual_scale=1.0, seed=0, **config
):
    """Write a random Llama in MLX format with its tokenizer."""
    values = tiny_llama_config(**config)
    model = tiny_llama(values, residual_scale=residual_scale, seed=seed)
    return save_base(directory, model, values, tiny_tokenizer(), bits, group_size)


def save_base(directory, model, config, tokenizer, bits=None, group_size=32):
    directory.mkdir(parents=True, exist_ok=True)
    if bits is not None:
        nn.quantize(model, group_size=group_size, bits=bits)
        config |= {"quantization": {"group_size": group_size, "bits": bits}}
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    save_config(config, directory / "config.json")
    tokenizer.save_pretrained(directory)
    return directory


def tiny_streams(config, *, scale=1.0, seed=0):
    """Random tensors of ``config``: stream embeddings, stream adapters, pruner."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, shape in config.tensor_shapes().items():
        if name == VOCABULARY:
            ids = np.sort(generator.choice(shape[0] * 3 // 2, shape, replace=False))
            tensors[name] = mx.array(ids, mx.int32)
            continue
        std = 1.0 if name == "streams.embeddings" else shape[1] ** -0.5
        std *= 1.0 if ".down." in name else scale
        tensors[name] = mx.array(generator.normal(0, std, shape), mx.float32)
    return tensors


def random_streams(config, *, seed=0):
    """Streams that hold ``tiny_streams``."""
    streams = Streams(config)
    streams.load_weights(list(tiny_streams(config, seed=seed).items()))
    return streams


LORA_KEYS = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]


def tiny_lora(base_config, rank, seed):
    """Random LoRA tensors of all layers, both factors nonzero, under mlx-lm's names."""
    generator, tensors = np.random.default_rng(seed), {}
    shapes = tree_flatten(Model(ModelArgs.from_dict(base_config)).parameters(), destination={})
    for layer in range(base_config["num_hidden_layers"] if rank else 0):
        for key in (f"model.layers.{layer}.{name}" for name in LORA_KEYS):
            rows, columns = shapes[f"{key}.weight"].shape
            for name, shape in (("lora_a", (columns, rank)), ("lora_b", (rank, rows))):
                values = generator.normal(0, shape[0] ** -0.5, shape)
                tensors[f"{key}.{name}"] = mx.array(values, mx.float32)
    return tensors


def stream_adapter_directory(
    directory, base, *, lora_rank=0, lora_scale=0.5, scale=1.0, seed=0, **fields
):
    """Write an adapter directory with random streams for the base at ``base``."""
    directory.mkdir(parents=True, exist_ok=True)
    base_config = json.loads((base / "config.json").read_text())
    sizes = {name: base_config[name] for name in ("hidden_size", "num_hidden_layers")}
    usual = {"mode": "lossless", "num_streams": 4, "num_msa_layers": 2, "base_model": base.name}
    usual["base_fingerprint"] = fingerprint(base_config)
    config = StreamConfig(**{**usual, **sizes, **fields})
    count = base_config["num_hidden_layers"] if lora_rank else 0
    parameters = {"rank": lora_rank, "scale": lora_scale, "dropout": 0.0, "keys": LORA_KEYS}
    lora = LoraPart(tiny_lora(base_config, lora_rank, seed), parameters, count)
    write_adapter(directory, lora, config, tiny_streams(config, scale=scale, seed=seed))
    return directory
