"""``generate --coreml``: an exported package in the place of a model and its adapter."""

import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..options import LengthOptions
from ..terminal.notes import note
from .options import PromptOptions, SamplingOptions, Verify
from .run import Run

if TYPE_CHECKING:
    from ..drafting.settings import DraftSettings, Proposers
    from ..request import Progress
    from ..responses import GenerationResponse


def package_run(
    path: Path,
    adapter: str | None,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    settings: "DraftSettings | Proposers | None",
    verify: Verify | None,
    quiet: bool,
) -> Run:
    """Open a package and say what is to be generated."""
    from specstream_mlx.convert.to_coreml.contents import Contents, model_file, require_coremltools

    require_coremltools("generate --coreml")
    model_file(path)  # before coremltools is imported, which takes a while
    from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
    from specstream_mlx.convert.to_coreml.executors import executor_of, has_core_ml

    from ..drafting.settings import describe
    from ..request import Request

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
        stop, followed = tuple(length.stop or ()), replace(request, progress=progress)
        for response in decoder.responses(tokenizer, followed, stop):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
            yield replace(response, peak_memory=peak)

    drafting: Any = request.drafting  # of a fitted request
    return Run(
        str(path),
        chosen.name,
        chosen.mode,
        describe(drafting, "streams" if chosen.num_streams else None),
        request.rule.name,
        getattr(request.sampler, "seed", None),
        length.max_tokens,
        responses,
    )
