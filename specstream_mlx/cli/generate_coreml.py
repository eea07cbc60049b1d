"""``generate --coreml``: an exported package in the place of a model and its adapter."""

import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..options import LengthOptions
from ..terminal.notes import note
from .options import ModelOptions, OutputOptions, PromptOptions, RuleOptions, SamplingOptions
from .run import Decoding, Run

if TYPE_CHECKING:
    from specstream_mlx.convert.to_coreml.decoder import PackageDecoder

    from ..loading import SpeculativeModel
    from ..request import Progress
    from ..responses import GenerationResponse
    from .comparison import Comparison


def package_run(
    path: Path,
    model: ModelOptions,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    drafts: dict[str, Any],
    rule: RuleOptions,
    output: OutputOptions,
) -> Run:
    """Open a package and say what is to be generated."""
    for name in () if output.compare else ("model", "adapter_path"):
        if getattr(model, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"--coreml and {flag} were both given, expected at most one")

    from specstream_mlx.convert.to_coreml.contents import (
        Contents,
        model_file,
        require_coremltools,
    )

    require_coremltools("generate --coreml")
    model_file(path)  # before coremltools is imported, which takes a while
    from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
    from specstream_mlx.convert.to_coreml.executors import executor_of, has_core_ml
    from specstream_mlx.convert.to_coreml.export import function_name

    from ..drafting.settings import DraftSettings, describe
    from ..request import Request
    from .comparison import compare_package

    contents = Contents.read(path)
    adapter = model.adapter
    if model.adapter_path is not None:  # to compare with
        adapter = function_name(model.adapter_path)
    chosen, text, tokenizer = contents.adapter(adapter), prompt.text(), contents.read_tokenizer()
    decoder = PackageDecoder(contents, executor_of(path), chosen.name)
    request = decoder.fitted(
        Request(
            prompt.encoded(text, tokenizer, chosen.prompt_template),
            rule.settings(drafts),
            max_tokens=length.max_tokens,
            end_tokens=tokenizer.eos_token_ids,
            sampler=sampling.sampler(tokenizer),
            logits_processors=sampling.logits_processors(contents.vocab_size),
            verify=rule.verify,
        )
    )
    stop = tuple(length.stop or ())
    if not (has_core_ml() or output.quiet):
        note("Core ML runs on a Mac alone: here numpy executes the package, which is slow")

    def responses(progress: "Progress") -> "Iterator[GenerationResponse]":
        unit = 1 if sys.platform == "darwin" else 1024  # of the peak
        for response in decoder.responses(tokenizer, replace(request, progress=progress), stop):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
            yield replace(response, peak_memory=peak)

    def compare(tokens: list[int]) -> "Comparison":
        common = {
            "max_tokens": request.max_tokens or length.max_tokens,
            "prefill_step_size": request.prefill_step_size,
            "sampler": request.sampler,
            "logits_processors": request.logits_processors or (),
        }
        one_token = DraftSettings(speculation=False)
        own = {"settings": one_token, "stop": stop, "verify": request.rule}
        loaded = _reference(decoder, model)
        return compare_package(
            Decoding(loaded, tokenizer, list(request.prompt), common, own), tokens
        )

    settings: Any = request.drafting  # of a fitted request
    return Run(
        str(path),
        chosen.name,
        chosen.mode,
        describe(settings, chosen.num_streams > 0),
        request.rule.name,
        getattr(request.sampler, "seed", None),
        length.max_tokens,
        responses,
        compare,
    )


def _reference(decoder: "PackageDecoder", options: ModelOptions) -> "SpeculativeModel":
    """Load what the package was made of, in float32; by default of the demonstration model."""
    import mlx.core as mx

    from specstream_mlx.convert.to_coreml.export import BASE, function_name

    from .. import bundled, demonstration
    from ..loading import load, named_adapters
    from ..models.fingerprint import fingerprint

    adapters, name = {function_name(p): p for p in named_adapters().values()}, decoder.adapter.name
    if demonstration.is_meant(options.model):
        adapters["streams"] = bundled.streams_path()
    directory = options.adapter_path or adapters.get(name)
    if directory is None and name != BASE:
        raise UserError(
            f"--compare does not know the adapter {name}, expected --adapter-path with the "
            "directory that the package was made of"
        )
    loaded, _ = load(demonstration.model_path(options.model))
    if fingerprint(loaded.config) != decoder.contents.fingerprint:
        raise UserError(
            f"--model is {loaded.path}, of another architecture than the package's base, expected "
            "the model that the package was made of"
        )
    loaded.model.set_dtype(mx.float32)
    loaded.swap_adapter(directory)
    return loaded
