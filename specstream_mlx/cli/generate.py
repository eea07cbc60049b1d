"""``specstream-mlx generate``."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..demonstration import MODEL
from ..errors import UserError
from ..hardware import blas
from ..options import FILE, PATH, DraftOptions, KVCacheOptions, LengthOptions, option
from ..terminal.notes import note
from . import launched
from .draft_marks import DraftMarks
from .options import ModelOptions, OutputOptions, PromptOptions, RuleOptions, SamplingOptions
from .run import Decoding, Run

if TYPE_CHECKING:
    from ..drafting.settings import DraftSettings, Proposers
    from ..kv_store import PromptCache
    from ..loading import SpeculativeModel
    from ..responses import GenerationResponse
    from .comparison import Comparison


def generate(
    *,
    model: ModelOptions,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    drafts: Annotated[dict[str, Any], DraftOptions],
    rule: RuleOptions,
    kv_cache: KVCacheOptions,
    prompt_cache_file: Path | None = option(
        None,
        FILE,
        "A prompt cache, of PromptCache.save or mlx_lm: its text comes before --prompt. Default of "
        "--model: the model that made it.",
        panel=KVCacheOptions.PANEL,
        without=("compare",),
    ),
    output: OutputOptions,
    coreml: Path | None = option(
        None,
        PATH,
        "Run a package of export-coreml, with --adapter for one of its adapters: by Core ML on a "
        "Mac, elsewhere by numpy, which is slow.",
        metavar="PACKAGE",
        panel=ModelOptions.PANEL,
        without=(
            *("model", "adapter_path", "no_streams", "draft_head", "weights", "prefill_step_size"),
            *("max_nodes", "prune_threshold", "draft_model", "prompt_cache_file", "compare"),
            *("kv_bits", "kv_group_size", "quantized_kv_start"),
        ),
    ),
) -> None:
    r"""Generate text.

    The text goes to standard output as it comes, statistics to standard error.

    Examples:

    Correct a message with a bundled adapter:

        specstream-mlx generate --adapter proofread \
            -p "Hi Ana, can you sned me the reports on monday"

    Summarize a file, and say how much faster that was than plain mlx_lm:

        specstream-mlx generate --adapter summarize --compare < dialogue.txt

    Use your own model and streams:

        specstream-mlx generate --model my-model --adapter-path streams -p Hello

    Sample, and repeat that another time:

        specstream-mlx generate --adapter describe --temp 0.8 --top-p 0.95 --seed 1 \
            -p "name[Boston Museum], ticket[16 euros], fame[high], director[Maria Costa]"

    Run an exported package:

        specstream-mlx generate --coreml tools.mlpackage --adapter sql \
            -p "table t(name, city): for t with city Paris, what are the name?"
    """
    launched.refuse(coreml=coreml, prompt_cache_file=prompt_cache_file, compare=output.compare)
    settings, verify, quiet = rule.settings(drafts), rule.verify, output.quiet
    if coreml is not None:
        from .generate_coreml import package_run

        adapter = model.adapter
        run = package_run(coreml, adapter, prompt, length, sampling, settings, verify, quiet)
        _generate(run, output)
        return
    from .. import demonstration
    from ..drafting.settings import USUAL, describe

    made_by: str | None = None
    tokenizer_config: dict[str, Any] = {}
    if prompt_cache_file is not None:
        from ..kv_store import read_metadata

        made_by, tokenizer_config = read_metadata(prompt_cache_file)
    if model.model is None and made_by != str(demonstration.directory()):
        model = replace(model, model=made_by)
    source = model.source(quiet)
    if model.model is None and not quiet:
        note(f"Using {MODEL}" + (f" with {source.adapter_name}" if source.adapter else ""))
    elif source.by_default and not quiet:
        note("The bundled streams fit this model; --no-streams leaves them out")
    text = prompt.text()

    from ..engine.verify.by_name import find_rule
    from ..hardware import device
    from ..kv_store import PromptCache
    from ..loading import load_draft_model, model_directory
    from .comparison import compare

    if device.slow_blas() and not quiet:
        note(blas.OPENBLAS_HINT)
    if settings is not None and settings.draft_model is not None and launched.is_first():
        model_directory(settings.draft_model)  # or fail before the model is loaded
    loaded, tokenizer = source.load(tokenizer_config)
    if settings is not None and settings.draft_model is not None and loaded.decides:
        settings = replace(settings, draft_model=load_draft_model(settings.draft_model, tokenizer))
    cache = None
    if prompt_cache_file is not None:
        cache = PromptCache.load(prompt_cache_file, loaded, str(source.model))
        kv_cache = _as_cached(kv_cache, cache, prompt_cache_file)
    sampler = sampling.sampler(tokenizer)
    found_rule = find_rule(verify, sampler)
    decoding = Decoding(
        loaded,
        tokenizer,
        prompt.encoded(text, tokenizer, loaded.prompt_template, cache),
        common={
            "max_tokens": length.max_tokens,
            "sampler": sampler,
            "logits_processors": sampling.logits_processors(loaded.config["vocab_size"]),
            **asdict(kv_cache),
        },
        own={
            "settings": settings,
            "stop": tuple(length.stop or ()),
            "verify": found_rule,
            "prompt_cache": cache,
        },
    )
    guessing = None if loaded.guessing is None else "streams"
    if loaded.head is not None:
        guessing = f"the {loaded.head.config.kind} head"
    run = Run(
        source.model_name,
        source.adapter_name,
        loaded.mode,
        describe(settings or USUAL, guessing),
        found_rule.name,
        None if sampler is None else sampler.seed,
        length.max_tokens,
        decoding.responses,
        partial(compare, decoding),
        None if model.no_streams else _missing_streams(loaded, settings, source.adapter_name),
    )
    _generate(run, output)


def _as_cached(options: KVCacheOptions, cache: "PromptCache", file: Path) -> KVCacheOptions:
    """The options of a KV cache that begins with a file's rows."""
    if cache.quantized is None:
        return options
    bits, group_size = cache.quantized
    if options.kv_bits is not None and (options.kv_bits, options.kv_group_size) != cache.quantized:
        raise UserError(
            f"{file} has --kv-bits {bits} and --kv-group-size {group_size}, expected no others"
        )
    start = min(options.quantized_kv_start, cache.rows)  # what is quantized stays so
    return replace(options, kv_bits=bits, kv_group_size=group_size, quantized_kv_start=start)


def _missing_streams(
    model: "SpeculativeModel", settings: "DraftSettings | Proposers | None", adapter: str | None
) -> str | None:
    """Say that there are no streams, where that makes a difference."""
    if model.guessing is not None or (settings is not None and settings.makers):
        return None
    drafts = "only lookup may draft" if settings is None else "nothing is drafted"
    if model.adapter:
        return f"The adapter {adapter} has no streams, so {drafts}"
    return f"No streams are mounted, so {drafts}: see --adapter-path"


def _generate(run: Run, output: OutputOptions) -> None:
    """Generate, and print what ``output`` asks for, of an interrupted text too."""
    from ..terminal.progress import progress

    marks = DraftMarks() if output.show_drafts else None
    tokens, text = list[int](), ""
    last: GenerationResponse | None = None
    comparison: Comparison | None = None
    interrupt: KeyboardInterrupt | None = None
    try:
        with progress("Reading the prompt") as show:
            responses = run.responses(show)
            first = next(responses)
        if run.hint is not None and not output.quiet:
            note(run.hint)
        if marks:
            note(marks.legend())
        silent: Any = progress("Generating") if output.as_json else nullcontext()
        with silent as show:
            try:
                for last in chain([first], responses):
                    tokens.append(last.token)
                    text += last.text
                    if output.as_json:
                        show(last.generation_tokens, run.max_tokens)
                    else:
                        shown = marks.mark(last.text, last.from_draft) if marks else last.text
                        print(shown, end="", flush=True)
            finally:
                if not output.as_json:
                    print(marks.close() if marks else "", flush=True)
        if run.compare is not None and output.compare:
            comparison = run.compare(tokens)
    except KeyboardInterrupt as error:
        interrupt = error
    if last is not None and output.as_json:
        print(json.dumps(_values(run, text, last, comparison)), flush=True)
    elif last is not None:
        _report(run, last, output, comparison)
    if interrupt is not None:
        raise interrupt


def _values(
    run: Run, text: str, last: "GenerationResponse", comparison: "Comparison | None"
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    figures = (
        *("finish_reason", "prompt_tokens", "generation_tokens", "target_calls"),
        *("accepted_length", "generation_tps", "peak_memory"),
    )
    values: dict[str, Any] = {"text": text, **{name: getattr(last, name) for name in figures}}
    values |= {"model": run.model, "adapter": run.adapter, "mode": run.mode}
    values |= {"tree": run.drafts, "verify": run.verify, "seed": run.seed}
    return values | (comparison.values() if comparison else {})


def _report(
    run: Run, last: "GenerationResponse", output: OutputOptions, comparison: "Comparison | None"
) -> None:
    """The figures of a generation on stderr, mlx_lm's in mlx_lm's words."""
    count = last.generation_tokens
    if last.finish_reason == "length":
        at = f"at --max-tokens {count}"
        if count != run.max_tokens:
            at = f"after {count} tokens, where the context ends"
        note(f"The text was cut off {at}")
    if not output.quiet:
        note("=" * 10)
        note(f"Prompt: {last.prompt_tokens} tokens, {last.prompt_tps:.3f} tokens-per-sec")
        rate = "" if comparison else f", {last.generation_tps:.3f} tokens-per-sec"
        seed = "" if run.seed is None else f", seed {run.seed}"
        note(f"Generation: {count} tokens{rate}{seed}")
        if output.verbose:
            note(f"Peak memory: {last.peak_memory:.3f} GB")
            accepted = f"{last.accepted_tokens} of {last.drafted_tokens} drafted tokens accepted"
            note(f"Tree: {run.drafts}" + (f"; {accepted}" if last.drafted_tokens else ""))
            note(f"Accepted length: {last.accepted_length:.2f} tokens per target call")
        if run.verify == "typical":
            note("Verify: typical, LOSSY: the text is not distributed as the model's")
        elif output.verbose:
            note(f"Verify: {run.verify}")
        note(
            f"Target calls: {last.target_calls} instead of {count}, "
            f"call reduction {count / last.target_calls:.2f}"
        )
    if comparison is not None:
        comparison.show()
