"""The commands' options, in groups.

Each group checks those that depend on each other when it is made, and turns them into the values
that the rest of the program takes. MLX is imported only for that.
"""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from .. import bundled, options
from ..errors import UserError
from ..files import decoded
from ..options import FLAG, PATH, TEXT, PrefillOptions, choice, option
from ..terminal.notes import note
from . import launched

if TYPE_CHECKING:
    from mlx_lm.sample_utils import LogitsProcessor
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..drafting.settings import DraftSettings, Proposers
    from ..engine.sampling import KeyedSampler
    from ..loading import SpeculativeModel


JSON = option(False, FLAG, "One JSON object on stdout.", "--json")
"""``--json`` of commands that print nothing else then."""


def base_model(help: str) -> Any:
    """Make the option ``--model`` of commands that take no adapter with it."""
    return option(None, TEXT, help, metavar="DIR|REPO")


# Model and adapter ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The places of a model and an adapter, and the names that the user knows them by.

    Attributes:
        model, model_name: the model.
        adapter, adapter_name: the adapter; ``None``: none is mounted.
        weights: form of the weights in memory.
        unasked: whether the adapter is the bundled streams, mounted because they fit.
        draft_head: directory of a draft head; ``None``: none is mounted.
    """

    model: str | Path
    model_name: str
    adapter: Path | None
    adapter_name: str | None
    weights: str
    unasked: bool = False
    draft_head: Path | None = None

    def load(
        self, tokenizer_config: dict[str, Any] | None = None
    ) -> "tuple[SpeculativeModel, TokenizerWrapper]":
        """Load both; see ``loading.load``."""
        from ..loading import load

        return load(
            self.model,
            tokenizer_config,
            adapter_path=self.adapter,
            weights=self.weights,
            group=launched.group(),
            draft_head=self.draft_head,
        )


@dataclass(frozen=True)
class ModelOptions:
    """A model, an adapter, and the form of the weights in memory."""

    PANEL: ClassVar[str] = "Model"
    HAVE_NO_STREAMS: ClassVar[tuple[str, ...]] = ("adapter", "adapter_path", "draft_head")
    """What is mounted without the bundled streams, so that ``--no-streams`` says nothing."""

    model: str | None = option(
        None,
        TEXT,
        "A model in MLX format: a directory or a Hugging Face repository. Default: smollm2, which "
        "is SmolLM2-135M-Instruct.",
        metavar="DIR|REPO",
    )
    adapter: str | None = option(
        None,
        TEXT,
        "An adapter's name: proofread, summarize, sql, describe, ..; `adapters list` lists them.",
        metavar="NAME",
    )
    adapter_path: Path | None = option(None, PATH, "An adapter directory.", metavar="DIR")
    no_streams: bool = option(
        False, FLAG, "Leave out the bundled streams, which a model that they fit has otherwise."
    )
    draft_head: Path | None = option(
        None,
        PATH,
        "A published EAGLE-3 head for the model: a directory with its safetensors, which convert "
        "makes of torch's files. It guesses in the place of streams.",
        metavar="DIR",
    )
    weights: str = option(
        "auto",
        choice("auto", "packed", "expanded"),
        "How quantized weights are held; auto: what runs faster here, see doctor.",
    )

    def __post_init__(self) -> None:
        if self.adapter is not None and self.adapter_path is not None:
            raise UserError("--adapter and --adapter-path were both given, expected at most one")
        for name in self.HAVE_NO_STREAMS if self.no_streams else ():
            if getattr(self, name) is not None:
                raise UserError(
                    f"--no-streams and {_flag(name)} were both given, expected at most one: the "
                    "bundled streams are mounted without"
                )

    def source(self, quiet: bool = False) -> Source:
        """Locate both; a base that the bundled streams fit gets them if no adapter is named."""
        return launched.in_turn(lambda: self._located(quiet))

    def _located(self, quiet: bool) -> Source:
        from .. import demonstration
        from ..loading import adapter_named, model_directory, read_config

        adapter, adapter_name, unasked = None, None, False
        if self.adapter is not None:
            adapter, adapter_name = adapter_named(self.adapter), self.adapter
        elif self.adapter_path is not None:
            adapter, adapter_name = self.adapter_path, str(self.adapter_path)
        tell = demonstration.silent if quiet else note
        path = demonstration.model_path(self.model, tell)
        name = demonstration.NAME if demonstration.is_meant(self.model) else str(path)
        if adapter is None and self.draft_head is None and not self.no_streams:
            path = model_directory(path)
            adapter = bundled.streams_for(read_config(path))
            unasked = adapter is not None
            adapter_name = "the bundled streams" if unasked else None
        return Source(path, name, adapter, adapter_name, self.weights, unasked, self.draft_head)


# Text -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptOptions(PrefillOptions):
    """The prompt, and how it is read."""

    prompt: str = option(
        "-", TEXT, "The text; '-' reads standard input.", "--prompt", "-p", metavar="TEXT"
    )
    ignore_chat_template: bool = option(
        False, FLAG, "Use the raw prompt, without the tokenizer's or the adapter's template."
    )

    def text(self) -> str:
        """The user's text, read from standard input for ``-``, without newlines at its end."""
        if self.prompt == "-":
            launched.refuse_standard_input()
            return standard_input()
        return decoded(self.prompt.encode(errors="surrogateescape"), "--prompt")


def standard_input() -> str:
    """The text on standard input."""
    if sys.stdin.isatty():
        note("Reading the prompt from the terminal; Ctrl-D on a new line ends it")
    return decoded(sys.stdin.buffer.read(), "standard input")


# Sampling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingOptions(options.SamplingOptions):
    """The sampler's options, under mlx_lm's names."""

    def sampler(self, tokenizer: "TokenizerWrapper") -> "KeyedSampler | None":
        """Make the sampler; ``None`` without a temperature."""
        from ..engine.sampling import KeyedSampler, Sampling

        special: tuple[int, ...] = ()
        if self.xtc_probability:
            special = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
        shared = {each.name: getattr(self, each.name) for each in fields(options.SamplerOptions)}
        sampling = Sampling(**shared, xtc_special_tokens=special)
        if not sampling.temp:
            return None
        return KeyedSampler(secrets.randbits(32) if self.seed is None else self.seed, sampling)

    def logits_processors(self, vocab_size: int) -> "Sequence[LogitsProcessor]":
        """Make the functions that change the logits before a token is drawn."""
        from mlx_lm.sample_utils import make_logits_processors

        for token in self.logit_bias or ():
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"--logit-bias has token {token}, expected one of 0 to {vocab_size - 1}"
                )
        return make_logits_processors(self.logit_bias, self.repetition_penalty)


# Drafts -----------------------------------------------------------------------------------------


_READ_BY = {
    "lookup_size": "lookup",
    "lookup_ngram": "lookup",
    "num_draft_tokens": "draft-model",
}
"""What reads an option that is of one proposer alone."""

Verify = Literal["greedy", "keyed", "rejection", "typical"]


@dataclass(frozen=True)
class RuleOptions:
    """The verify rule, and a tree that is always the same."""

    PANEL: ClassVar[str] = "Drafts"

    verify: Verify | None = option(
        None,
        choice(*get_args(Verify)),
        "How drafts are accepted. greedy and keyed write what plain decoding writes in float32, "
        "keyed with the same --seed; in less precision near-ties may fall otherwise. rejection "
        "draws the drafts too (full trees only): another text, of the same distribution. typical "
        "is LOSSY: it takes what is plausible, so the text is not distributed as the model's. "
        "Default: greedy, with --temp keyed.",
    )

    def settings(self, drafts: dict[str, Any]) -> "DraftSettings | Proposers | None":
        """Make the settings of drafts, see ``chosen_drafts``."""
        from ..drafting.fixed import names_of
        from ..drafting.settings import chosen_drafts

        if drafts.get("speculation") is False:
            for field in drafts.keys() - {"speculation"}:
                raise UserError(
                    f"--no-speculation and {_flag(field)} were both given, expected at most one"
                )
        if "tree_width" in drafts:  # without a size it asks for a full tree
            drafts = {"tree_size": None} | drafts
        settings = chosen_drafts(self.verify, **drafts)
        for field, name in _READ_BY.items():
            if field in drafts and settings is not None and name not in names_of(settings):
                raise UserError(f"{_flag(field)} was given, expected with --{name}")
        return settings


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


# Output -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputOptions:
    """The form of what is printed."""

    PANEL: ClassVar[str] = "Output"

    as_json: bool = option(False, FLAG, "Print one JSON object instead of the text.", "--json")
    show_drafts: bool = option(False, FLAG, "Mark each step's accepted drafts.")
    compare: bool = option(
        False,
        FLAG,
        "Then run plain mlx_lm on the same model, in the same dtype: both rates, and whether the "
        "output is the same. rejection and typical draw otherwise: the rates alone. With --coreml: "
        "MLX in float32, token for token; --model and --adapter-path say what the package was made "
        "of.",
    )
    profile: bool = option(
        False, FLAG, "Then say what each part of the generation took. It runs slower for that."
    )
    verbose: bool = option(
        False, FLAG, "All statistics, not three lines of them.", "--verbose", "-v"
    )
    quiet: bool = option(
        False, FLAG, "No statistics and no notes before the text.", "--quiet", "-q"
    )

    def __post_init__(self) -> None:
        if self.as_json and self.show_drafts:
            raise UserError("--json and --show-drafts were both given, expected at most one")
        if self.verbose and self.quiet:
            raise UserError("--verbose and --quiet were both given, expected at most one")
        if self.profile and self.compare:
            raise UserError(
                "--profile, which slows a run down, was given with --compare, expected one"
            )
