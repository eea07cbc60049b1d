"""``specstream-mlx write``: one adapter as a filter, from standard input to standard output."""

import json
import sys
from pathlib import Path

from ..files import decoded
from ..options import FILE, FLAG, MODEL, NAME, most_tokens, option
from ..terminal.notes import note
from .options import ModelOptions, standard_input


def write(
    *,
    adapter: str = option(
        ..., NAME, "An adapter: proofread, ..; `adapters list` lists them.", positional=True
    ),
    file: Path | None = option(None, FILE, "The text. Default: standard input.", "--file", "-f"),
    as_json: bool = option(False, FLAG, "Print one JSON object, with figures.", "--json"),
    max_tokens: int = most_tokens(1024, "Tokens at most."),
    model: str | None = option(None, MODEL, "The adapter's base. Default: smollm2."),
) -> None:
    """Do one task with a text: read it, and write the result as it comes.

    Standard output has the result and nothing else. Exit codes: 0, all is written; 1, the result
    was cut off at --max-tokens; 2, something was wrong, and nothing is written.

    Examples:

        specstream-mlx write proofread < message.txt

        specstream-mlx write key_points --file dialogue.txt --json
    """
    from ..generation import stream_generate
    from ..prompts import chat_prompt
    from ..responses import decoding_rate

    source = ModelOptions(model, adapter=adapter).source(quiet=True)
    text = standard_input() if file is None else decoded(file.read_bytes(), str(file))
    loaded, tokenizer = source.load()
    prompt = chat_prompt(tokenizer, text, loaded.prompt_template)
    written = ""
    for response in stream_generate(loaded, tokenizer, prompt, max_tokens):
        written += response.text
        if not as_json:
            sys.stdout.write(response.text)
            sys.stdout.flush()
    if as_json:
        figures = {
            "adapter": adapter,
            "text": written,
            "finish_reason": response.finish_reason,
            "generation_tokens": response.generation_tokens,
            "generation_tps": decoding_rate(response),
            "accepted_length": response.accepted_length,
        }
        print(json.dumps(figures), flush=True)
    else:
        print(flush=True)
    if response.finish_reason == "length":
        note(f"The result was cut off at --max-tokens {max_tokens}")
        raise SystemExit(1)
