"""An installation whose base is tiny and random, with adapters of the package and others."""

from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import generate, load
from specstream_mlx.prompts import chat_prompt

TEXT = "please send the report"
TEMPLATE = "Fix this: {text}"


def install_in(root):
    """Write ``base``, ``streams``, ``adapters/fix``, and adapters that are not of the package."""
    base = tiny_llama_directory(root / "base")
    stream_adapter_directory(root / "streams", base)
    fields = {"mode": "shared", "lora_rank": 4, "lora_scale": 2.0}
    stream_adapter_directory(root / "adapters/fix", base, prompt_template=TEMPLATE, **fields)
    stream_adapter_directory(root / "mine", base, seed=5, **fields)
    other = tiny_llama_directory(root / "other", hidden_size=32)
    stream_adapter_directory(root / "strange", other)
    return root


def expected(root, adapter, max_tokens=8, text=TEXT):
    model, tokenizer = load(root / "base", adapter_path=adapter)
    prompt = chat_prompt(tokenizer, text, model.prompt_template)
    return generate(model, tokenizer, prompt, max_tokens=max_tokens)
