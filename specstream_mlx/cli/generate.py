"""``specstream-mlx generate``."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..demonstration import MODEL
from ..errors import UserError
from ..hardware import blas
from ..options import PATH, DraftOptions, KVCacheOptions, LengthOptions, option
from ..terminal.notes import note
from . import launched, reporting
from .continued_prompt import ContinuedPrompt
from .draft_marks import DraftMarks
from .generate_coreml import compare_package, package_run, refuse_beside_coreml
from .options import (
    ModelOptions,
    OutputOptions,
    PromptOptions,
    RuleOptions,
    SamplingOptions,
    Source,
)

if TYPE_CHECKING:
    from ..responses import GenerationResponse
    from .comparison import Comparison
    from .generate_coreml import PackageRun
    from .run import Run


Names = tuple[str, str | None]
"""What the user calls the model and the adapter."""


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
        PATH,
        "A prompt cache, of PromptCache.save or mlx_lm: its text comes before --prompt. Default of "
        "--model: the model that made it.",
        metavar="FILE",
        panel=KVCacheOptions.PANEL,
    ),
    output: OutputOptions,
    coreml: Path | None = option(
        None,
        PATH,
        "Run a package of export-coreml, with --adapter for one of its adapters: by Core ML on a "
        "Mac, elsewhere by numpy, which is slow.",
        metavar="PACKAGE",
        panel=ModelOptions.PANEL,
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
    launched.refuse(
        coreml=coreml is not None,
        prompt_cache_file=prompt_cache_file is not None,
        compare=output.compare,
    )
    if coreml is not None:
        refuse_beside_coreml(drafts, model, prompt, kv_cache, output)
        if prompt_cache_file is not None:
            raise UserError("--coreml and --prompt-cache-file were both given, expected one")
        package = package_run(coreml, model, prompt, length, sampling, drafts, rule)
        if not (package.on_device or output.quiet):
            note("Core ML runs on a Mac alone: here numpy executes the package, which is slow")
        compared = partial(compare_package, package, model)
        _answer(package, (str(coreml), package.adapter), output, compared)
        return
    if prompt_cache_file is not None and output.compare:
        raise UserError("--prompt-cache-file and --compare were both given, expected at most one")
    cached = ContinuedPrompt(prompt_cache_file)
    model = replace(model, model=cached.model_name(model.model))
    source = model.source(output.quiet)
    if not output.quiet:
        _note_what_is_used(model, source)
    text = prompt.text()

    from ..engine.profile import NO_PROFILE, Profile
    from ..engine.verify.by_name import find_rule
    from ..hardware import device
    from ..loading import load_draft_model, model_directory
    from .run import CommonArguments, Run

    if device.slow_blas() and not output.quiet:
        note(blas.OPENBLAS_HINT)
    settings = rule.settings(drafts)
    if settings is not None and settings.draft_model is not None and launched.is_first():
        model_directory(settings.draft_model)  # or fail before the model is loaded
    loaded, tokenizer = source.load(cached.tokenizer_config)
    if settings is not None and settings.draft_model is not None and loaded.decides:
        settings = replace(settings, draft_model=load_draft_model(settings.draft_model, tokenizer))
    kv_cache = cached.open(loaded, str(source.model), kv_cache)
    sampler = sampling.sampler(tokenizer)
    run = Run(
        model=loaded,
        tokenizer=tokenizer,
        prompt=cached.prompt(tokenizer, text, loaded, prompt.ignore_chat_template),
        common=CommonArguments(
            max_tokens=length.max_tokens,
            prefill_step_size=prompt.prefill_step_size,
            sampler=sampler,
            logits_processors=sampling.logits_processors(loaded.config["vocab_size"]),
            kv_bits=kv_cache.kv_bits,
            kv_group_size=kv_cache.kv_group_size,
            quantized_kv_start=kv_cache.quantized_kv_start,
        ),
        settings=settings,
        rule=find_rule(rule.verify, sampler),
        stop=tuple(length.stop or ()),
        prompt_cache=cached.cache,
        profile=Profile() if output.profile else NO_PROFILE,
    )
    run.check()
    if not (output.quiet or model.no_streams):
        _note_missing_streams(run, source)
    _answer(run, (source.model_name, source.adapter_name), output, partial(_compare, run))


def _compare(run: "Run", tokens: list[int]) -> "Comparison":
    from .comparison import compare

    return compare(run, tokens)


def _answer(
    run: "Run | PackageRun",
    names: Names,
    output: OutputOptions,
    compare: "Callable[[list[int]], Comparison]",
) -> None:
    """Generate, and print what ``output`` asks for."""
    written, comparison = _Written(), None
    try:
        _write(run, output, written)
        if output.compare:
            comparison = compare(written.tokens)
    except KeyboardInterrupt:
        _report(run, names, output, written, None)
        raise
    _report(run, names, output, written, comparison)


def _report(
    run: "Run | PackageRun",
    names: Names,
    output: OutputOptions,
    written: "_Written",
    comparison: "Comparison | None",
) -> None:
    """Print the result of a run, which may have been interrupted."""
    last = written.last
    if last is None:
        return
    if output.as_json:
        _print(json.dumps(_values(names, run, written.text, last, comparison)) + "\n")
        return
    if last.finish_reason == "length":
        reporting.cut(last.generation_tokens, run.max_tokens)
    if not output.quiet:
        reporting.statistics(
            last,
            run.drafts,
            run.verify,
            run.seed,
            everything=output.verbose,
            rate=comparison is None or comparison.pairs is None,
        )
    if output.profile:
        reporting.profile(run.profile.report())
    if comparison is not None:
        reporting.comparison(comparison)


def _note_what_is_used(model: ModelOptions, source: Source) -> None:
    """Name the model or streams that the user did not name."""
    if model.model is None:
        adapter = f" with {source.adapter_name}" if source.adapter else ""
        note(f"Using {MODEL}{adapter}")
    elif source.unasked:
        note("The bundled streams fit this model; --no-streams leaves them out")


def _note_missing_streams(run: "Run", source: Source) -> None:
    """Say that there are no streams, where that makes a difference."""
    if run.model.guessing is not None:
        return
    if run.settings is not None and run.settings.makers:
        return
    drafts = "only lookup may draft" if run.settings is None else "nothing is drafted"
    if run.model.adapter:
        note(f"The adapter {source.adapter_name} has no streams, so {drafts}")
    else:
        note(f"No streams are mounted, so {drafts}: see --adapter-path")


@dataclass
class _Written:
    """The result of a run: tokens, text and the last response, which has the figures."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    last: "GenerationResponse | None" = None


def _write(run: "Run | PackageRun", output: OutputOptions, written: _Written) -> None:
    """Run a generation to its end and print its text as it comes, unless JSON is printed later."""
    from ..terminal.progress import progress

    marks = DraftMarks() if output.show_drafts else None
    if marks:
        note(marks.legend())
    with progress("Reading the prompt") as show:
        responses = run.responses(show)
        first = next(responses)
    silent: Any = progress("Generating") if output.as_json else nullcontext()
    with silent as show:
        try:
            for response in chain([first], responses):
                written.tokens.append(response.token)
                written.text += response.text
                written.last = response
                if output.as_json:
                    show(response.generation_tokens, run.max_tokens)
                else:
                    text = response.text
                    _print(marks.mark(text, response.from_draft) if marks else text)
        finally:
            if not output.as_json:
                _print((marks.close() if marks else "") + "\n")


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _values(
    names: Names,
    run: "Run | PackageRun",
    text: str,
    last: "GenerationResponse",
    comparison: "Comparison | None",
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    values: dict[str, Any] = {
        "text": text,
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "generation_tokens": last.generation_tokens,
        "target_calls": last.target_calls,
        "accepted_length": last.accepted_length,
        "generation_tps": last.generation_tps,
        "peak_memory": last.peak_memory,
        "model": names[0],
        "adapter": names[1],
        "mode": run.mode,
        "tree": run.drafts,
        "verify": run.verify,
        "seed": run.seed,
    }
    parts = run.profile.report()
    if parts:
        values["profile"] = parts
    if comparison is not None:
        pairs, pair, difference = comparison.pairs, comparison.shown, comparison.first_difference
        values |= {
            "generation_tps": last.generation_tps if pairs is None else pair and pair.ours,
            "plain": {"text": comparison.plain_text, "generation_tps": pair and pair.plain},
            "speedup": pair and pair.speedup,
            "speedup_range": [pairs[0].speedup, pairs[-1].speedup] if pairs else None,
            "pairs": len(pairs or ()),
            "dtype": comparison.dtype,
            "mlx_lm_dtype": comparison.own_dtype,
            "identical": comparison.identical,
            "first_difference": difference and asdict(difference),
        }
    return values
