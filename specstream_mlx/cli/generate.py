"""``specstream-mlx generate``."""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specstream_mlx.apps.writing_tools import tools

from .. import demonstration
from ..errors import UserError
from ..hardware import blas
from ..loading.model_paths import check_prompt_cache_file, local_directory
from ..options import FILE, PATH, DraftOptions, KVCacheOptions, LengthOptions, option
from ..terminal.dimmed import Dimmed
from ..terminal.notes import note
from ..terminal.progress import progress
from . import launched
from .options import (
    VERIFY,
    CliSamplingOptions,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    WritingModelOptions,
    draft_settings,
)

if TYPE_CHECKING:
    from ..drafting.settings import DraftSettings, Proposers
    from ..generation.kv_store import PromptCache
    from ..generation.request import Progress
    from ..generation.text import GenerationResponse
    from ..thoughts import ThoughtTokens
    from .comparison import Comparison


@dataclass(frozen=True)
class GenerationRun:
    """A generation, by MLX or by an exported package; ``hint`` is said before its text."""

    model: str
    adapter: str | None
    mode: str
    drafts: str
    verify: str
    seed: int | None
    max_tokens: int
    responses: "Callable[[Progress], Iterator[GenerationResponse]]"
    compare: "Callable[[list[int]], Comparison] | None" = None
    hint: str | None = None
    steps: Callable[[], str] | None = None
    cache: "PromptCache | None" = None
    thoughts: "ThoughtTokens | None" = None


def generate(
    *,
    model: WritingModelOptions,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: CliSamplingOptions,
    drafts: Annotated[dict[str, Any], DraftOptions],
    verify: Any = VERIFY,
    kv_cache: KVCacheOptions,
    prompt_cache_file: Path | None = option(
        None,
        FILE,
        "A file whose text comes before --prompt and is not read again: one made by "
        "mlx_lm.cache_prompt or PromptCache.save. Default of --model: the model that made it.",
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
            *("kv_bits", "kv_group_size", "quantized_kv_start", "reproducible"),
        ),
    ),
) -> None:
    r"""Generate text.

    The text goes to standard output as it comes, statistics to standard error.

    Examples:

    Correct a message with a bundled adapter:

        specstream-mlx generate --adapter proofread \
            -p "The parcel have arrived this morning but the box were open."

    Summarize a file, and say how much faster that was than plain mlx_lm:

        specstream-mlx generate --adapter summarize --compare < dialogue.txt

    Use your own model and streams:

        specstream-mlx generate --model my-model --adapter-path streams -p Hello

    Sample, and repeat that another time:

        specstream-mlx generate --adapter professional --temp 0.8 --top-p 0.95 --seed 1 \
            -p "hey, can u send me the report by noon? need it for the meeting"
    """
    launched.refuse(coreml=coreml, prompt_cache_file=prompt_cache_file, compare=output.compare)
    quiet = output.quiet
    if coreml is None:
        model.check()  # before MLX is imported, which takes a while
    if "draft_model" in drafts and launched.is_first():  # which alone has one
        local_directory(drafts["draft_model"])
    if prompt_cache_file is not None:
        check_prompt_cache_file(prompt_cache_file)
    settings = draft_settings(verify, drafts)
    if coreml is not None:
        parts = prompt, length, sampling, settings, verify
        return _generate(_package_run(coreml, model.adapter, *parts, quiet), output)
    from ..drafting.settings import USUAL, describe

    made_by: str | None = None
    tokenizer_config: dict[str, Any] = {}
    if prompt_cache_file is not None:
        from ..generation.kv_store import read_metadata

        made_by, tokenizer_config = read_metadata(prompt_cache_file)
    if model.model is None and made_by != str(demonstration.directory()):
        model = replace(model, model=made_by)
    source = model.source(quiet)
    if model.model is None and not quiet:
        note(
            f"Using {demonstration.MODEL}"
            + (f" with {source.adapter_name}" if source.adapter else "")
        )
    elif source.by_default and not quiet:
        note(f"T{str(source.adapter_name)[1:]} fit this model; --no-streams leaves them out")
    text = prompt.text()
    objection = tools.objection(source.adapter, text)
    if objection and not (quiet or prompt.ignore_chat_template):
        note(f"{objection}: what follows is made up")
    if not prompt.ignore_chat_template:
        text = tools.read(source.adapter, text)

    from ..engine.verify.by_name import find_rule
    from ..generation.kv_store import PromptCache
    from ..hardware import device
    from ..heads.published_heads import head_for
    from ..loading.load import load_draft_model
    from ..loading.model_paths import model_directory
    from ..thoughts import ThoughtTokens
    from .comparison import ComparedDecoding, compare

    if device.slow_blas() and not quiet:
        note(blas.OPENBLAS_HINT)
    if settings is not None and settings.draft_model is not None and launched.is_first():
        model_directory(settings.draft_model)  # or fail before the model is loaded
    loaded, tokenizer = source.load(tokenizer_config, model.reproducible)
    if settings is not None and settings.draft_model is not None and loaded.decides:
        settings = replace(settings, draft_model=load_draft_model(settings.draft_model, tokenizer))
    cache = None
    if prompt_cache_file is not None:
        cache = PromptCache.load(prompt_cache_file, loaded, str(source.model))
        kv_cache = _as_cached(kv_cache, cache, prompt_cache_file)
    sampler = sampling.sampler(tokenizer)
    found_rule = find_rule(verify, sampler)
    ids = prompt.encoded(text, tokenizer, loaded.prompt_template, cache)
    decoding = ComparedDecoding(
        loaded,
        tokenizer,
        ids,
        common={
            "max_tokens": length.max_tokens,
            "sampler": sampler,
            "logits_processors": sampling.logits_processors(loaded.config["vocab_size"]),
            **asdict(kv_cache),
        },
        extra={
            "settings": settings,
            "stop": tuple(length.stop or ()),
            "verify": found_rule,
            "prompt_cache": cache,
        },
    )
    guessing, hint = None if loaded.guessing is None else "streams", None
    if loaded.head is not None:
        guessing = f"the {loaded.head.config.kind} head"
    elif guessing is None and not (model.no_streams or (settings is not None and settings.makers)):
        drafts_left = "only lookup may draft" if settings is None else "nothing is drafted"
        hint = f"No streams are mounted, so {drafts_left}: see --adapter-path"
        if loaded.adapter is None and (head := head_for(loaded.path, loaded.config)):
            hint += f", or let --draft-head auto get the published {head}"
        if loaded.adapter:
            hint = f"The adapter {source.adapter_name} has no streams, so {drafts_left}"
    run = GenerationRun(
        source.model_name,
        source.adapter_name,
        loaded.mode,
        describe(settings or USUAL, guessing),
        found_rule.name,
        None if sampler is None else sampler.seed,
        length.max_tokens,
        decoding.responses,
        partial(compare, decoding, output.as_stored),
        hint,
        None if loaded.compiled is None else loaded.compiled.sentence,
        cache,
        ThoughtTokens(tokenizer, ids),
    )
    _generate(run, output)


def _package_run(
    path: Path,
    adapter: str | None,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: CliSamplingOptions,
    settings: "DraftSettings | Proposers | None",
    verify: Any,
    quiet: bool,
) -> GenerationRun:
    """A generation by an exported package instead of a model and its adapter."""
    from specstream_mlx.convert.to_coreml.contents import Contents, model_file, require_coremltools

    require_coremltools("generate --coreml")
    model_file(path)  # before coremltools is imported, which takes a while
    from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
    from specstream_mlx.convert.to_coreml.executors import executor_of, has_core_ml

    from ..drafting.settings import describe
    from ..generation.request import Request

    contents = Contents.read(path)
    chosen, text, tokenizer = contents.adapter(adapter), prompt.text(), contents.read_tokenizer()
    decoder = PackageDecoder(contents, executor_of(path), chosen.name)
    request = decoder.fitted(
        Request(
            prompt.encoded(text, tokenizer, chosen.prompt_template),
            settings,
            max_tokens=length.max_tokens,
            end_tokens=tokenizer.eos_token_ids,
            sampler=sampling.sampler(tokenizer),
            logits_processors=sampling.logits_processors(contents.vocab_size),
            verify=verify,
        )
    )
    if not (has_core_ml() or quiet):
        note("Core ML runs on a Mac alone: here numpy executes the package, which is slow")

    def responses(progress: "Progress") -> "Iterator[GenerationResponse]":
        unit = 1 if sys.platform == "darwin" else 1024  # of the peak
        followed = replace(request, progress=progress)
        for response in decoder.responses(tokenizer, followed, tuple(length.stop or ())):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
            yield replace(response, peak_memory=peak)

    drafting: Any = request.drafting  # of a fitted request
    return GenerationRun(
        str(path),
        chosen.name,
        chosen.mode,
        describe(drafting, "streams" if chosen.num_streams else None),
        request.rule.name,
        getattr(request.sampler, "seed", None),
        length.max_tokens,
        responses,
    )


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


class _DraftMarks:
    """Marks each step's accepted drafts, by colour or in brackets where stdout shows none."""

    def __init__(self) -> None:
        from rich.console import Console

        console = Console()
        in_colour = console.color_system is not None and not console.no_color
        self._marks = ("\x1b[1;32m", "\x1b[0m") if in_colour else ("[", "]")
        self._is_open = False
        shown = "accepted in one step".join(self._marks)
        note(f"Drafts: {shown} then the target's own token")

    def mark(self, text: str, from_draft: bool) -> str:
        """The text that came with a token, marked."""
        if not from_draft:
            return self.close() + text
        if not text or self._is_open:
            return text
        self._is_open = True
        return self._marks[0] + text

    def close(self) -> str:
        """Close the marks of a step that ended without the target's own token."""
        mark = self._marks[1] if self._is_open else ""
        self._is_open = False
        return mark


def _generate(run: GenerationRun, output: OutputOptions) -> None:
    """Generate, and print what ``output`` asks for, also if the text is interrupted."""
    marks: _DraftMarks | None = None
    dimmed = Dimmed()
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
        if output.show_drafts:
            marks = _DraftMarks()
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
                        if run.thoughts is not None and marks is None:
                            shown = dimmed.turn(run.thoughts.add(last.text)) + shown
                        print(shown, end="", flush=True)
            finally:
                if not output.as_json:
                    print(marks.close() if marks else dimmed.turn(False), flush=True)
        if run.compare is not None and output.compare:
            if not output.quiet:
                note("Timing this text: mlx_lm and specstream-mlx in turn, several times each")
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
    run: GenerationRun, text: str, last: "GenerationResponse", comparison: "Comparison | None"
) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    figures = (
        *("finish_reason", "prompt_tokens", "generation_tokens", "target_calls"),
        *("accepted_length", "generation_tps", "peak_memory"),
    )
    values: dict[str, Any] = {"text": text, **{name: getattr(last, name) for name in figures}}
    values |= {"model": run.model, "adapter": run.adapter, "mode": run.mode}
    values |= {"tree": run.drafts, "verify": run.verify, "seed": run.seed}
    values["seen"] = last.draft_stats and last.draft_stats.values()
    return values | (comparison.values if comparison else {})


def _report(
    run: GenerationRun,
    last: "GenerationResponse",
    output: OutputOptions,
    comparison: "Comparison | None",
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
        read = ""
        if run.cache is not None and run.cache.reused:
            read = f" {last.prompt_tokens - run.cache.reused} of them read,"
        note(f"Prompt: {last.prompt_tokens} tokens,{read} {last.prompt_tps:.3f} tokens-per-sec")
        rate = "" if comparison else f", {last.generation_tps:.3f} tokens-per-sec"
        seed = "" if run.seed is None else f", seed {run.seed}"
        note(f"Generation: {count} tokens{rate}{seed}")
        if output.verbose and run.steps is not None:
            note(f"Steps: {run.steps()}")
        if output.verbose:
            note(f"Peak memory: {last.peak_memory:.3f} GB")
            accepted = f"{last.accepted_tokens} of {last.drafted_tokens} drafted tokens accepted"
            note(f"Tree: {run.drafts}" + (f"; {accepted}" if last.drafted_tokens else ""))
        if run.verify == "typical":
            note("Verify: typical, LOSSY: the text is not distributed as the model's")
        elif output.verbose:
            note(f"Verify: {run.verify}")
        note(
            f"Target calls: {last.target_calls} instead of {count}, "
            f"call reduction {count / last.target_calls:.2f}"
        )
        if output.verbose and last.draft_stats is not None and last.draft_stats.sentence:
            note(last.draft_stats.sentence)
    if comparison is not None:
        comparison.show()
