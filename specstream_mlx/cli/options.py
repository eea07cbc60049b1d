"""The commands' options, in groups."""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import demonstration, options
from ..adapters.description import describe
from ..errors import UserError
from ..files import decoded
from ..loading.model_paths import (
    adapter_named,
    check_head,
    local_directory,
    model_directory,
    read_config,
    streams_for,
)
from ..options import DIRECTORY, FLAG, HEAD, HELD, MODEL, NAME, TEXT, choice, option
from ..terminal.notes import note
from . import launched

if TYPE_CHECKING:
    from mlx_lm.sample_utils import LogitsProcessor
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..drafting.settings import DraftSettings, Proposers
    from ..engine.sampling import KeyedSampler
    from ..generation.kv_store import PromptCache
    from ..loading.speculative_model import SpeculativeModel


JSON = option(False, FLAG, "One JSON object on stdout.", "--json")
_AS_STORED = (
    "Also time mlx_lm on the weights as the files have them, which is slow on a CPU; on a GPU it "
    "is always timed."
)
AS_STORED = option(False, FLAG, _AS_STORED, "--as-stored")
WEIGHTS = option(
    "auto", HELD, "How quantized weights are kept; auto: whichever is faster here, see doctor."
)


@dataclass(frozen=True)
class Source:
    """The directories of a model and an adapter, and the names that the user gave them."""

    model: str | Path
    model_name: str
    adapter: Path | None
    adapter_name: str | None
    options: "ModelOptions"
    by_default: bool = False  # the adapter is streams, mounted because they fit
    head: Path | None = None  # the directory of a draft head

    @property
    def weights(self) -> str:
        return self.options.weights

    def load(
        self, tokenizer_config: dict[str, Any] | None = None, reproducible: bool = False
    ) -> "tuple[SpeculativeModel, TokenizerWrapper]":
        from ..loading.load import load

        return load(
            self.model,
            tokenizer_config,
            adapter_path=self.adapter,
            weights=self.weights,
            group=launched.group(),
            draft_head=self.head,
            compiled=self.options.compiled,
            reproducible=reproducible,
        )


@dataclass(frozen=True)
class ModelOptions:
    """A model, an adapter, and the form of the weights in memory."""

    PANEL: ClassVar[str] = "Model"

    model: str | None = option(
        None,
        MODEL,
        "A published model, one in MLX format, or a GGUF file, which is converted once. "
        "Default: smollm2, which is SmolLM2-135M-Instruct.",
        metavar="DIR|REPO|GGUF",
    )
    adapter: str | None = option(
        None,
        NAME,
        "An adapter's name: proofread, summarize, sql, describe, ..; `adapters list` lists them.",
        without=("adapter_path",),
    )
    adapter_path: Path | None = option(None, DIRECTORY, "An adapter directory.")
    no_streams: bool = option(
        False,
        FLAG,
        "Do not use the bundled or added streams that fit the model.",
        without=("adapter", "adapter_path", "draft_head"),
    )
    draft_head: str | None = option(
        None,
        HEAD,
        "A published EAGLE-3 head instead of streams; auto: the one published for the model, "
        "which is downloaded once.",
    )
    weights: str = WEIGHTS
    compiled: bool | None = option(
        None,
        FLAG,
        "Compile steps, so that Python builds each shape of them once. Default: on a GPU.",
        "--compile/--no-compile",
    )

    def check(self) -> None:
        """Check, early and without MLX, that model and adapter exist or may be downloaded."""
        named = self.model or ""
        if not demonstration.is_meant(self.model) and demonstration.gguf_file(named) is None:
            local_directory(named)
        if self.draft_head is not None:
            check_head(self.draft_head)
        if self.adapter is not None:
            adapter_named(self.adapter)
        if self.adapter_path is not None:
            describe(self.adapter_path)

    def source(self, quiet: bool = False) -> Source:
        """Locate both; a base that known streams fit gets them if no adapter is named."""
        self.check()
        say = demonstration.silent if quiet else note
        path = demonstration.model_path(self.model, say)
        name = demonstration.NAME if demonstration.is_meant(self.model) else str(path)
        head: Path | None = None
        if self.draft_head is not None:
            from specstream_mlx.convert.to_mlx.draft_head import runnable_head

            from ..loading.model_paths import head_directory

            path = model_directory(path)
            head = head_directory(self.draft_head, path, read_config(path), say)
            head = runnable_head(head, path)
        if self.adapter is not None:
            adapter = adapter_named(self.adapter)
            return Source(path, name, adapter, self.adapter, self, head=head)
        if self.adapter_path is not None:
            return Source(path, name, self.adapter_path, str(self.adapter_path), self, head=head)
        if self.draft_head is None and not self.no_streams:
            path = model_directory(path)
            if streams := streams_for(read_config(path)):
                return Source(path, name, *streams, self, by_default=True)
        return Source(path, name, None, None, self, head=head)


THINKING = option(
    True, FLAG, "Let the model answer at once, if it is one that thinks first.", panel="Text"
)


@dataclass(frozen=True)
class WritingModelOptions(ModelOptions):
    """A model whose texts are read, not timed."""

    reproducible: bool = option(
        False,
        FLAG,
        "Let no timing decide what is drafted: in 16 bit, too, a prompt then has the same text on "
        "this machine however often it is written.",
    )


@dataclass(frozen=True)
class PromptOptions:
    """The prompt, and its template."""

    PANEL: ClassVar[str] = "Text"

    prompt: str = option(
        "-", TEXT, "The text; '-' reads standard input.", "--prompt", "-p", metavar="TEXT"
    )
    ignore_chat_template: bool = option(
        False, FLAG, "Use the raw prompt, without the tokenizer's or the adapter's template."
    )
    thinking: bool = THINKING

    def text(self) -> str:
        """The user's text, read from standard input for ``-``."""
        if self.prompt == "-":
            if launched.group() is not None:
                raise UserError(
                    "the prompt comes from standard input, expected --prompt under mlx.launch"
                )
            return standard_input()
        return decoded(self.prompt.encode(errors="surrogateescape"), "--prompt")

    def encoded(
        self,
        text: str,
        tokenizer: "TokenizerWrapper",
        template: str | None,
        cache: "PromptCache | None" = None,
    ) -> list[int]:
        """Token ids of the prompt, those of a prompt cache first as far as they are known."""
        from ..control_tokens import encoded
        from ..prompts import chat_prompt, chat_suffix, encode_prompt

        raw, thinking = self.ignore_chat_template, None if self.thinking else False
        if cache is None and raw:
            return encode_prompt(tokenizer, text)
        if cache is None:
            return chat_prompt(tokenizer, text, template, thinking)
        if raw:
            return [*cache.tokens, *encoded(tokenizer, text, add_special_tokens=False)]
        return [*cache.tokens, *chat_suffix(tokenizer, text, template, thinking)]


def standard_input() -> str:
    """The text on standard input."""
    if sys.stdin.isatty():
        note("Reading the prompt from the terminal; Ctrl-D on a new line ends it")
    return decoded(sys.stdin.buffer.read(), "standard input")


@dataclass(frozen=True)
class CliSamplingOptions(options.SamplingOptions):
    """The sampler's options, under mlx_lm's names."""

    def sampler(self, tokenizer: "TokenizerWrapper") -> "KeyedSampler | None":
        """The sampler; ``None`` without a temperature."""
        from ..engine.sampling import KeyedSampler, Sampling

        if not self.temp:
            return None
        special: tuple[int, ...] = ()
        if self.xtc_probability:
            special = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
        shared = {each.name: getattr(self, each.name) for each in fields(options.SamplerOptions)}
        sampling = Sampling(**shared, xtc_special_tokens=special)
        return KeyedSampler(secrets.randbits(32) if self.seed is None else self.seed, sampling)

    def logits_processors(self, vocab_size: int) -> "Sequence[LogitsProcessor]":
        """The functions that change the logits before a token is drawn."""
        from mlx_lm.sample_utils import make_logits_processors

        for token in self.logit_bias or ():
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"--logit-bias has token {token}, expected one of 0 to {vocab_size - 1}"
                )
        return make_logits_processors(self.logit_bias, self.repetition_penalty)


VERIFY = option(
    None,
    choice("greedy", "keyed", "rejection", "typical"),
    "How drafts are accepted. greedy and keyed write what plain decoding writes in float32, keyed "
    "with the same --seed. rejection draws the drafts too (full trees only): another text, of the "
    "same distribution. typical is LOSSY: the text is not distributed as the model's. Default: "
    "greedy, with --temp keyed.",
    panel=options.DraftOptions.PANEL,
)


def draft_settings(verify: Any, drafts: dict[str, Any]) -> "DraftSettings | Proposers | None":
    """Make the settings of drafts, see ``chosen_drafts``."""
    from ..drafting.settings import chosen_drafts, names_of

    if "tree_width" in drafts:  # without a size it asks for a full tree
        drafts = {"tree_size": None} | drafts
    settings = chosen_drafts(verify, **drafts)
    if settings is not None and "lookup" not in names_of(settings):
        for name in drafts.keys() & {"lookup_size", "lookup_ngram"}:
            raise UserError(f"--{name.replace('_', '-')} was given, expected with --lookup")
    return settings


@dataclass(frozen=True)
class OutputOptions:
    """The options of the output."""

    PANEL: ClassVar[str] = "Output"

    as_json: bool = option(
        False, FLAG, "Print one JSON object.", "--json", without=("show_drafts",)
    )
    show_drafts: bool = option(False, FLAG, "Mark each step's accepted drafts.")
    compare: bool = option(
        False,
        FLAG,
        "Also run plain mlx_lm on the same model, in the same dtype: both rates, and whether the "
        "output is the same, where the verify rule draws as mlx_lm does.",
    )
    as_stored: bool = option(False, FLAG, _AS_STORED, needs=("compare",))
    verbose: bool = option(False, FLAG, "All statistics.", "--verbose", "-v", without=("quiet",))
    quiet: bool = option(
        False, FLAG, "No statistics and no notes before the text.", "--quiet", "-q"
    )
