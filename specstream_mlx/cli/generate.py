"""``specstream-mlx generate``."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..config import UserError
from ..hardware import blas
from . import numbers, reporting
from .cache_options import KVBits, KVGroupSize, PromptCacheFile, QuantizedKVStart
from .cached_prompt import CachedPrompt
from .draft_options import (
    DraftThreshold,
    Lookup,
    LookupNgram,
    LookupSize,
    MaxNodes,
    NoSpeculation,
    NoTune,
    NumStreams,
    PruneThreshold,
    StreamNodes,
    Tree,
    TreeSize,
    TreeWidth,
    Verify,
)
from .drafts import DraftMarks
from .inputs import Source, choose_source, read_prompt
from .sampling_options import (
    LogitBias,
    MinP,
    MinTokensToKeep,
    RepetitionPenalty,
    Seed,
    Temp,
    TopK,
    TopP,
    XtcProbability,
    XtcThreshold,
    checked_bias,
    sampler_of,
)
from .tune import MEASURING

if TYPE_CHECKING:
    from ..generation import GenerationResponse
    from .comparison import Comparison
    from .request import Request

_MODEL, _TEXT, _OUTPUT = "Model", "Text", "Output"


def generate(
    model: Annotated[
        str | None,
        Option(
            metavar="DIR|REPO",
            help="A model in MLX format: a directory or a Hugging Face repository. "
            "Default: the bundled demonstration model.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="A bundled adapter: proofread, summarize, sql, describe, ..; doctor lists them.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    adapter_path: Annotated[
        Path | None,
        Option(metavar="DIR", help="An adapter directory.", rich_help_panel=_MODEL),
    ] = None,
    mode: Annotated[
        Literal["lossless", "shared"] | None,
        Option(
            help="Insist on this mode; it comes from the adapter, without one it is lossless.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    weights: Annotated[
        Literal["auto", "packed", "expanded"],
        Option(
            help="How quantized weights are held; auto: what runs faster here, see doctor.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto",
    prompt: Annotated[
        str,
        Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="The text; '-' reads standard input.",
            rich_help_panel=_TEXT,
        ),
    ] = "-",
    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            "-m",
            parser=numbers.at_least(1),
            metavar="N",
            help="Maximum number of tokens to generate.",
            rich_help_panel=_TEXT,
        ),
    ] = 256,
    stop: Annotated[
        list[str] | None,
        Option(
            metavar="TEXT",
            help="End before this text; may be given several times.",
            rich_help_panel=_TEXT,
        ),
    ] = None,
    ignore_chat_template: Annotated[
        bool,
        Option(
            "--ignore-chat-template",
            help="Use the raw prompt, without the tokenizer's or the adapter's template.",
            rich_help_panel=_TEXT,
        ),
    ] = False,
    prefill_step_size: Annotated[
        int,
        Option(
            parser=numbers.at_least(1),
            metavar="N",
            help="Number of prompt tokens to process at a time.",
            rich_help_panel=_TEXT,
        ),
    ] = 2048,
    temp: Temp = 0.0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    min_tokens_to_keep: MinTokensToKeep = 1,
    top_k: TopK = 0,
    xtc_probability: XtcProbability = 0.0,
    xtc_threshold: XtcThreshold = 0.1,
    repetition_penalty: RepetitionPenalty = None,
    logit_bias: LogitBias = None,
    seed: Seed = None,
    num_streams: NumStreams = None,
    tree_width: TreeWidth = None,
    tree_size: TreeSize = None,
    draft_threshold: DraftThreshold = None,
    tree: Tree = None,
    lookup: Lookup = False,
    lookup_size: LookupSize = None,
    lookup_ngram: LookupNgram = None,
    max_nodes: MaxNodes = None,
    prune_threshold: PruneThreshold = None,
    stream_nodes: StreamNodes = None,
    no_speculation: NoSpeculation = False,
    no_tune: NoTune = False,
    verify: Verify = None,
    kv_bits: KVBits = None,
    kv_group_size: KVGroupSize = 64,
    quantized_kv_start: QuantizedKVStart = 5000,
    prompt_cache_file: PromptCacheFile = None,
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help="Print one JSON object instead of the text.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    show_drafts: Annotated[
        bool,
        Option("--show-drafts", help="Mark each step's accepted drafts.", rich_help_panel=_OUTPUT),
    ] = False,
    compare: Annotated[
        bool,
        Option(
            "--compare",
            help="Then run plain mlx_lm on the same model: both rates, and whether the "
            "output is the same; with --temp the rates alone.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    profile: Annotated[
        bool,
        Option(
            "--profile",
            help="Then say what each part of the generation took. It runs slower for that.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
) -> None:
    """Generate text.

    The text goes to standard output as it comes, statistics to standard error.

    [bold]Examples[/bold]

    Correct a message with the bundled model:

    [cyan]  specstream-mlx generate --adapter proofread -p "pleas send teh report"[/cyan]

    Summarize a file, and say how much faster that was than plain mlx_lm:

    [cyan]  specstream-mlx generate --adapter summarize --compare < dialogue.txt[/cyan]

    Use your own model and streams:

    [cyan]  specstream-mlx generate --model my-model --adapter-path streams -p Hello[/cyan]

    Sample, and repeat that another time:

    [cyan]  specstream-mlx generate --adapter describe --temp 0.8 --top-p 0.95 --seed 1 -p ..[/cyan]
    """
    if as_json and show_drafts:
        raise UserError("--json and --show-drafts were both given, expected at most one")
    if not lookup and (lookup_size is not None or lookup_ngram is not None):
        raise UserError("--lookup-size or --lookup-ngram was given, expected with --lookup")
    if prompt_cache_file is not None and compare:
        raise UserError("--prompt-cache-file and --compare were both given, expected at most one")
    cached = CachedPrompt(prompt_cache_file)
    model = cached.model_name(model)
    if profile and compare:
        raise UserError("--profile, which slows a run down, was given with --compare, expected one")
    source = choose_source(model, adapter, adapter_path)
    if model is None:
        reporting.note(f"Using the bundled demonstration model ({source.adapter_name})")
    text = read_prompt(prompt)

    import mlx.core as mx
    from mlx_lm.sample_utils import make_logits_processors

    from ..drafting.settings import draft_settings
    from ..drafting.static_tree import StaticTree
    from ..engine.profile import NO_PROFILE, Profile
    from ..engine.verify.rules import rule_name
    from ..hardware import device
    from ..loading import load
    from .comparison import compare as run_both
    from .request import Request

    if device.slow_blas():
        reporting.note(blas.OPENBLAS_HINT)
    fields = {
        "num_streams": num_streams,
        "tree_size": tree_size,
        "draft_threshold": draft_threshold,
        "max_nodes": max_nodes,
        "prune_threshold": prune_threshold,
        "stream_nodes": stream_nodes,
        "lookup_size": lookup_size,
        "lookup_ngram": lookup_ngram,
        "static_tree": tree and StaticTree.load(tree),
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    said = fields or tree_width or lookup or no_speculation or verify == "rejection"
    if tree_width is not None:
        fields |= {"tree_width": tree_width, "tree_size": tree_size}
    settings = draft_settings(
        verify == "rejection",
        **fields,
        lookup=lookup,
        speculation=not no_speculation,
    )
    loaded, tokenizer = load(
        source.model, cached.tokenizer_config, adapter_path=source.adapter, weights=weights
    )
    if mode is not None and mode != loaded.mode:
        owner = f"the adapter {source.adapter_name}" if loaded.adapter else "a bare model"
        raise UserError(f"--mode is {mode}, expected {loaded.mode}, the mode of {owner}")
    kv_cache = {
        "kv_bits": kv_bits,
        "kv_group_size": kv_group_size,
        "quantized_kv_start": quantized_kv_start,
    }
    kv_cache = cached.open(loaded, str(source.model), kv_cache)
    ids = cached.prompt(tokenizer, text, loaded, ignore_chat_template)
    sampler = sampler_of(
        tokenizer,
        temp=temp,
        top_p=top_p,
        min_p=min_p,
        min_tokens_to_keep=min_tokens_to_keep,
        top_k=top_k,
        xtc_probability=xtc_probability,
        xtc_threshold=xtc_threshold,
    )
    request = Request(
        loaded,
        tokenizer,
        ids,
        settings,
        max_tokens,
        tuple(stop or ()),
        prefill_step_size,
        kv_cache,
        sampler,
        make_logits_processors(
            checked_bias(logit_bias, loaded.config["vocab_size"]), repetition_penalty
        ),
        rule_name(verify, sampler),
        cached.cache,
        profile=Profile() if profile else NO_PROFILE,
    )
    responses = request.responses()
    if not said and not no_tune:  # only now, as the request has been found to be sound
        request = _tuned(request, adapts=seed is None)
        settings, responses = request.settings, request.responses()
    if seed is not None:
        mx.random.seed(seed)
    if loaded.streams is None and (request.tuned or not settings.drafts_with(None)):
        drafts = "only lookup may draft" if request.tuned else "nothing is drafted"
        reporting.note(
            f"The adapter {source.adapter_name} has no streams, so {drafts}"
            if loaded.adapter
            else f"No streams are mounted, so {drafts}: see --adapter-path"
        )
    marks = DraftMarks() if show_drafts else None
    if marks:
        reporting.note(marks.legend())
    tokens, output = [], ""
    for response in responses:
        tokens.append(response.token)
        output += response.text
        if not as_json:
            _print(marks.mark(response.text, response.from_draft) if marks else response.text)
    if not as_json:
        _print((marks.close() if marks else "") + "\n")
        reporting.statistics(response, request.drafts, request.verify)
        if profile:
            reporting.profile(request.profile.report())
    comparison = run_both(request, tokens) if compare else None
    if as_json:
        _print(json.dumps(_report(source, request, output, response, comparison)) + "\n")
    elif comparison:
        reporting.comparison(comparison)


def _tuned(request: "Request", adapts: bool) -> "Request":
    """The request with drafts as tuned; what adapts follows the clock, which no seed repeats."""
    from ..autotune.tuning import tune

    note = partial(reporting.note, MEASURING)
    try:
        tuned = tune(
            request.model, request.tokenizer, on_measuring=note, quantization=request.quantization
        )
    except UserError as error:  # of a calibration text, not of this request
        reporting.note(f"Not tuned: {error}")
        return request
    return replace(request, settings=tuned.settings, tuned=tuned if adapts else None)


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"standard output cannot be written: {error.strerror}") from None


def _report(
    source: Source,
    request: "Request",
    text: str,
    last: "GenerationResponse",
    comparison: "Comparison | None",
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    values = {
        "text": text,
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "generation_tokens": last.generation_tokens,
        "target_calls": last.target_calls,
        "accepted_length": last.accepted_length,
        "generation_tps": last.generation_tps,
        "peak_memory": last.peak_memory,
        "model": source.model_name,
        "adapter": source.adapter_name,
        "mode": request.model.mode,
        "tree": request.drafts,
        "verify": request.verify,
    }
    parts = request.profile.report()
    if parts:
        values["profile"] = parts
    if comparison is not None:
        values |= {
            "generation_tps": comparison.generation_tps,
            "plain": {"text": comparison.plain_text, "generation_tps": comparison.plain_tps},
            "speedup": comparison.speedup,
            "identical": comparison.identical,
        }
    return values
