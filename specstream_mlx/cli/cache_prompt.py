"""``specstream-mlx cache-prompt``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from . import numbers, reporting
from .inputs import choose_source, read_prompt


def cache_prompt(
    prompt_cache_file: Annotated[
        Path, Option(metavar="FILE", help="Where to: a name that ends in .safetensors.")
    ],
    model: Annotated[
        str | None,
        Option(metavar="DIR|REPO", help="A model in MLX format. Default: the bundled one."),
    ] = None,
    adapter: Annotated[str | None, Option(metavar="NAME", help="A bundled adapter.")] = None,
    adapter_path: Annotated[
        Path | None, Option(metavar="DIR", help="An adapter directory.")
    ] = None,
    weights: Annotated[
        Literal["auto", "packed", "expanded"],
        Option(help="How quantized weights are held; auto: what runs faster here, see doctor."),
    ] = "auto",
    prompt: Annotated[
        str,
        Option("--prompt", "-p", metavar="TEXT", help="The text; '-' reads standard input."),
    ] = "-",
    ignore_chat_template: Annotated[
        bool,
        Option(
            "--ignore-chat-template",
            help="Use the raw prompt, without the tokenizer's or the adapter's template.",
        ),
    ] = False,
    prefill_step_size: Annotated[
        int,
        Option(
            parser=numbers.at_least(1),
            metavar="N",
            help="Number of prompt tokens to process at a time.",
        ),
    ] = 2048,
    eos_token: Annotated[
        str | None, Option(metavar="TOKEN", help="End of sequence token for the tokenizer.")
    ] = None,
    kv_bits: Annotated[
        int | None,
        Option(
            parser=numbers.one_of(4, 8),
            metavar="N",
            help="Quantize the KV cache to 4 or 8 bits. Default: not at all.",
        ),
    ] = None,
    kv_group_size: Annotated[
        int,
        Option(
            parser=numbers.one_of(32, 64, 128),
            metavar="N",
            help="With --kv-bits: elements that share a scale; 32, 64 or 128.",
        ),
    ] = 64,
    quantized_kv_start: Annotated[
        int,
        Option(
            parser=numbers.at_least(0),
            metavar="N",
            help="With --kv-bits: tokens from which on the cache is quantized; 0: all of them.",
        ),
    ] = 5000,
) -> None:
    """Read the beginning of a prompt once, for generate --prompt-cache-file to go on from.

    The file is one of mlx_lm's: either program goes on from the other's.

    [bold]Examples[/bold]

    Read a long document once, and ask about it:

    [cyan]  specstream-mlx cache-prompt --model my-model --prompt-cache-file doc.safetensors < doc.txt[/cyan]

    [cyan]  specstream-mlx generate --model my-model --prompt-cache-file doc.safetensors -p "Summarize it."[/cyan]
    """  # noqa: E501
    source = choose_source(model, adapter, adapter_path)

    from .. import prompt_cache_files

    prompt_cache_files.check_target(prompt_cache_file)
    text = read_prompt(prompt)

    from ..engine.kv_quantization import KVQuantization
    from ..loading import load
    from ..loop import fill
    from ..prompt_cache import PromptCache
    from ..prompts import chat_prefix, check_prompt, encode_prompt

    tokenizer_config = {} if eos_token is None else {"eos_token": eos_token}
    loaded, tokenizer = load(source.model, tokenizer_config, source.adapter, weights=weights)
    if ignore_chat_template:
        ids = encode_prompt(tokenizer, text)
    else:
        ids = chat_prefix(tokenizer, text, loaded.prompt_template)
    check_prompt(ids, loaded.config)
    cache = PromptCache()
    fill(
        cache,
        loaded,
        ids,
        prefill_step_size,
        KVQuantization(kv_bits, kv_group_size, quantized_kv_start),
    )
    prompt_cache_files.save(prompt_cache_file, cache, loaded, str(source.model), tokenizer_config)
    size = prompt_cache_file.stat().st_size / 1e6
    reporting.note(f"Cached {cache.rows} tokens in {prompt_cache_file} ({size:.1f} MB)")
