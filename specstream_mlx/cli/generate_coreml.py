"""``generate --coreml``: an exported package in the place of a model and its adapter."""

import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError
from ..options import KVCacheOptions, LengthOptions
from .options import ModelOptions, OutputOptions, PromptOptions, RuleOptions, SamplingOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from specstream_mlx.convert.to_coreml.decoder import PackageDecoder

    from ..engine.profile import Profile
    from ..errors import Mode
    from ..request import Progress, Request
    from ..responses import GenerationResponse
    from .comparison import Comparison
    from .run import Run

_WITHOUT_PACKAGE: dict[type, tuple[str, ...]] = {
    ModelOptions: ("model", "adapter_path", "no_streams", "draft_head", "weights"),
    PromptOptions: ("prefill_step_size",),
    KVCacheOptions: tuple(field.name for field in fields(KVCacheOptions)),
    OutputOptions: ("profile",),
}
"""Options that are about MLX's own model, by group."""

_DRAFTS_WITHOUT_PACKAGE = "max_nodes", "prune_threshold", "draft_model"
"""The same of ``DraftOptions``."""


def refuse_beside_coreml(drafts: dict[str, Any], *groups: Any) -> None:
    """Check that no option was given that a package cannot follow."""
    compares = any(isinstance(group, OutputOptions) and group.compare for group in groups)
    needed = ("model", "adapter_path") if compares else ()
    given = [
        field.name
        for group in groups
        for field in fields(group)
        if field.name in _WITHOUT_PACKAGE[type(group)]
        and field.name not in needed
        and getattr(group, field.name) != field.default
    ]
    for name in (*given, *(name for name in _DRAFTS_WITHOUT_PACKAGE if name in drafts)):
        flag = "--" + name.replace("_", "-")
        raise UserError(f"--coreml and {flag} were both given, expected at most one")


@dataclass(frozen=True)
class PackageRun:
    """A prompt and how a package goes on from it; in the place of ``run.Run``.

    Attributes:
        decoder: one adapter of the package.
        tokenizer: the package's.
        request: within the package's sizes.
        max_tokens: the most tokens that were asked for.
        stop: strings that end the text.
        on_device: whether Core ML runs the package.
    """

    decoder: "PackageDecoder"
    tokenizer: "TokenizerWrapper"
    request: "Request"
    max_tokens: int
    stop: tuple[str, ...]
    on_device: bool

    @property
    def adapter(self) -> str:
        """The adapter's name."""
        return self.decoder.adapter.name

    @property
    def mode(self) -> "Mode":
        """The adapter's mode."""
        return self.decoder.adapter.mode

    @property
    def drafts(self) -> str:
        """The drafting in a few words."""
        from ..drafting.fixed import describe

        settings: Any = self.request.drafting  # of a fitted request
        return describe(settings, self.decoder.adapter.num_streams > 0)

    @property
    def verify(self) -> str:
        """The verify rule."""
        return self.request.rule.name

    @property
    def seed(self) -> int | None:
        """Seed of the draws; ``None``: nothing is drawn."""
        return getattr(self.request.sampler, "seed", None)

    @property
    def profile(self) -> "Profile":
        """No profile: a package's parts cannot be timed."""
        return self.request.profile

    def responses(self, progress: "Progress | None" = None) -> "Iterator[GenerationResponse]":
        """The package's responses; ``progress`` is told how far the prompt has been read."""
        request = replace(self.request, progress=progress)
        for response in self.decoder.responses(self.tokenizer, request, self.stop):
            yield replace(response, peak_memory=_peak_gigabytes())


def package_run(
    path: Path,
    model: ModelOptions,
    prompt: PromptOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    drafts: dict[str, Any],
    rule: RuleOptions,
) -> PackageRun:
    """Open a package and say what is to be generated."""
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

    from ..prompts import chat_prompt, encode_prompt
    from ..request import Request

    contents = Contents.read(path)
    adapter = model.adapter
    if model.adapter_path is not None:  # to compare with
        adapter = function_name(model.adapter_path)
    chosen, text, tokenizer = contents.adapter(adapter), prompt.text(), contents.read_tokenizer()
    if prompt.ignore_chat_template:
        ids = encode_prompt(tokenizer, text)
    else:
        ids = chat_prompt(tokenizer, text, chosen.prompt_template)
    request = Request(
        ids,
        rule.settings(drafts),
        max_tokens=length.max_tokens,
        end_tokens=tokenizer.eos_token_ids,
        sampler=sampling.sampler(tokenizer),
        logits_processors=sampling.logits_processors(contents.vocab_size),
        verify=rule.verify,
    )
    decoder = PackageDecoder(contents, executor_of(path), chosen.name)
    return PackageRun(
        decoder,
        tokenizer,
        decoder.fitted(request),
        length.max_tokens,
        tuple(length.stop or ()),
        has_core_ml(),
    )


def compare_package(package: PackageRun, model: ModelOptions, tokens: list[int]) -> "Comparison":
    """Compare a package's output with MLX's; see ``_reference``."""
    from .comparison import compare_texts

    return compare_texts(_reference(package, model), tokens)


def _reference(package: PackageRun, model: ModelOptions) -> "Run":
    """The same text by MLX, in float32 and one token a step.

    Args:
        package: the package's run.
        model: names what the package was made of, where that is not the demonstration model and
            an adapter that has a name.

    Raises:
        UserError: that is not known, or of another architecture.
    """
    import mlx.core as mx

    from specstream_mlx.convert.to_coreml.export import BASE, function_name

    from .. import bundled, demonstration
    from ..drafting.settings import DraftSettings
    from ..loading import load, named_adapters
    from ..models.fingerprint import fingerprint
    from .run import CommonArguments, Run

    adapters = {function_name(path): path for path in named_adapters().values()}
    if demonstration.is_meant(model.model):
        adapters["streams"] = bundled.streams_path()
    directory = model.adapter_path or adapters.get(package.adapter)
    if directory is None and package.adapter != BASE:
        raise UserError(
            f"--compare does not know the adapter {package.adapter}, expected --adapter-path with "
            "the directory that the package was made of"
        )
    loaded, tokenizer = load(demonstration.model_path(model.model))
    if fingerprint(loaded.config) != package.decoder.contents.fingerprint:
        raise UserError(
            f"--model is {loaded.path}, of another architecture than the package's base, expected "
            "the model that the package was made of"
        )
    loaded.model.set_dtype(mx.float32)
    loaded.swap_adapter(directory)
    request = package.request
    return Run(
        model=loaded,
        tokenizer=tokenizer,
        prompt=list(request.prompt),
        common=CommonArguments(
            max_tokens=request.max_tokens or package.max_tokens,
            prefill_step_size=request.prefill_step_size,
            sampler=cast(Any, request.sampler),
            logits_processors=request.logits_processors or (),
            kv_bits=None,
            kv_group_size=64,
            quantized_kv_start=0,
        ),
        settings=DraftSettings(speculation=False),
        rule=request.rule,
        stop=package.stop,
    )


def _peak_gigabytes() -> float:
    """The most memory that this process has had, in GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
