"""What cannot be exported is refused with one sentence, from the configuration alone."""

import pytest
from specstream_mlx.convert.to_coreml.supported import Sizes, check_adapter, check_base, check_names

from specstream_mlx.errors import UserError
from specstream_mlx.stream_config import StreamConfig

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 512}
LLAMA |= {"rms_norm_eps": 1e-5}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
SIZES = Sizes(context=128)


def base(**fields):
    return lambda: check_base(LLAMA | fields, SIZES)


def adapter(fields=None, **streams):
    config = StreamConfig("shared", 1, 8, 2, **streams)
    return lambda: check_adapter("a", config, fields or {}, SIZES)


def sizes(**fields):
    return lambda: Sizes(**{"context": 128, **fields})


def lora_on(name):
    return {"lora_parameters": {"keys": [name]}}


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (base(model_type="gemma2"), "model_type is 'gemma2', expected one of llama, "),
        (base(**WINDOWS), "sliding_window is 9, expected at least the context of 128"),
        (base(model_type="mistral", sliding_window=64), "sliding_window is 64, expected at least"),
        (base(rope_traditional=True), "rope_traditional is True, expected False"),
        (base(quantization={"mode": "mxfp4"}), "mode is 'mxfp4', expected 'affine'"),
        (base(rms_norm_eps=1e-8), "rms_norm_eps is 1e-08, expected at least 6e-08"),
        (adapter(stream_keys=4), "a: stream_keys is 4, expected 0"),
        (adapter(draft_vocabulary=3), "a: draft_vocabulary is 3, expected at least the 4"),
        (adapter({"fine_tune_type": "dora"}), "a: fine_tune_type is 'dora', expected 'lora'"),
        (adapter(lora_on("model.embed_tokens")), "a: LoRA is on embed_tokens"),
        (adapter(lora_on("lm_head"), draft_vocabulary=30), "a: LoRA is on lm_head .* draft_voc"),
        (sizes(nodes=(8, 65)), "expected numbers from 1 to 64"),
        (sizes(context=40), "context is 40, expected at least 64, the most rows of a call"),
        (lambda: check_names(["my-sql"]), "the adapter's name is 'my-sql', expected letters"),
        (lambda: check_names(["sql", "sql"]), "two adapters are called sql, expected different"),
    ],
)
def test_refused(check, sentence):
    with pytest.raises(UserError, match=sentence):
        check()


def test_exported():
    base()()
    base(model_type="mistral", sliding_window=128)()
    base(model_type="qwen2", sliding_window=9, use_sliding_window=False)()
    adapter(draft_vocabulary=30)()
    check_names(["sql", "key_points"])
