"""``specstream-mlx cache-prompt``."""

from pathlib import Path

from ..options.fields import option
from ..options.generation import KVCacheOptions
from ..options.kinds import PATH, TEXT
from ..terminal.commands import grouped
from ..terminal.notes import note
from .options import ModelOptions, PromptOptions, quantization


@grouped()
def cache_prompt(
    *,
    prompt_cache_file: Path = option(
        ..., PATH, "Where to: a name that ends in .safetensors.", metavar="FILE"
    ),
    model: ModelOptions,
    prompt: PromptOptions,
    eos_token: str | None = option(
        None, TEXT, "End of sequence token for the tokenizer.", metavar="TOKEN"
    ),
    kv_cache: KVCacheOptions,
) -> None:
    """Read the beginning of a prompt once, for generate --prompt-cache-file to go on from.

    The file is one of mlx_lm's: either program goes on from the other's.

    [bold]Examples[/bold]

    Read a long document once, and ask about it:

    [cyan]  specstream-mlx cache-prompt --model my-model --prompt-cache-file doc.safetensors < doc.txt[/cyan]

    [cyan]  specstream-mlx generate --model my-model --prompt-cache-file doc.safetensors -p "Summarize it."[/cyan]
    """  # noqa: E501
    source = model.source()

    from ..prompt_cache_files import check_target

    check_target(prompt_cache_file)
    text = prompt.text()

    from ..loop import fill
    from ..prompt_cache import PromptCache
    from ..prompts import chat_prefix, check_prompt, encode_prompt
    from ..terminal.progress import progress

    tokenizer_config = {} if eos_token is None else {"eos_token": eos_token}
    loaded, tokenizer = source.load(tokenizer_config)
    if prompt.ignore_chat_template:
        ids = encode_prompt(tokenizer, text)
    else:
        ids = chat_prefix(tokenizer, text, loaded.prompt_template)
    check_prompt(ids, loaded.config)
    cache = PromptCache()
    with progress("Reading the prompt") as show:
        fill(cache, loaded, ids, prompt.prefill_step_size, quantization(kv_cache), show)
    cache.save(prompt_cache_file, loaded, str(source.model), tokenizer_config)
    size = prompt_cache_file.stat().st_size / 1e6
    note(f"Cached {cache.rows} tokens in {prompt_cache_file} ({size:.1f} MB)")
