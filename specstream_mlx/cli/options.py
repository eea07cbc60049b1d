"""The commands' options, in groups.

Each group says what its options are, checks those that depend on each other when it is made, and
turns them into the values that the rest of the program takes. MLX is imported only for that.
"""

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from typer import Option

from .. import bundled
from ..config import UserError
from ..terminal.notes import note
from ..terminal.parsing import at_least, between, one_of, positive, probability, token_bias

if TYPE_CHECKING:
    from mlx_lm.sample_utils import LogitsProcessor
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..drafting.settings import DraftSettings
    from ..engine.kv_quantization import KVQuantization
    from ..engine.sampling import KeyedSampler
    from ..loading import SpeculativeModel


def most_tokens(what: str) -> Any:
    """The option ``--max-tokens`` of commands that time what comes behind the first token."""
    return Option("--max-tokens", "-m", parser=at_least(2), metavar="N", help=what)


# Model and adapter ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where a model and an adapter are, and the names that the user knows them by.

    Attributes:
        model, model_name: the model.
        adapter, adapter_name: the adapter; ``None``: none is mounted.
        weights: how the weights are held.
        unasked: whether the adapter is the bundled streams, mounted because they fit.
    """

    model: str | Path
    model_name: str
    adapter: Path | None
    adapter_name: str | None
    weights: str
    unasked: bool = False

    def load(
        self, tokenizer_config: dict[str, Any] | None = None
    ) -> "tuple[SpeculativeModel, TokenizerWrapper]":
        """Load both; see ``loading.load``."""
        from ..loading import load

        return load(self.model, tokenizer_config, adapter_path=self.adapter, weights=self.weights)


@dataclass(frozen=True)
class ModelOptions:
    """Which model, which adapter, and how the weights are held.

    Raises:
        UserError: two adapters were given.
    """

    PANEL: ClassVar[str] = "Model"

    model: Annotated[
        str | None,
        Option(
            metavar="DIR|REPO",
            help="A model in MLX format: a directory or a Hugging Face repository. Default: "
            "smollm2, which is SmolLM2-135M-Instruct.",
        ),
    ] = None
    adapter: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="A bundled adapter: proofread, summarize, sql, describe, ..; doctor lists them.",
        ),
    ] = None
    adapter_path: Annotated[Path | None, Option(metavar="DIR", help="An adapter directory.")] = None
    no_streams: Annotated[
        bool,
        Option(
            "--no-streams",
            help="Leave out the bundled streams, which a model that they fit has otherwise.",
        ),
    ] = False
    weights: Annotated[
        Literal["auto", "packed", "expanded"],
        Option(help="How quantized weights are held; auto: what runs faster here, see doctor."),
    ] = "auto"

    def __post_init__(self) -> None:
        if self.adapter is not None and self.adapter_path is not None:
            raise UserError("--adapter and --adapter-path were both given, expected at most one")

    def source(self, quiet: bool = False) -> Source:
        """Where these are; a base that the bundled streams fit has them if no adapter is named.

        Args:
            quiet: do not say what takes a while.

        Raises:
            UserError: there is no such adapter or model, or the demonstration model cannot be made.
        """
        from .. import demonstration
        from ..loading import model_directory, read_config

        adapter, adapter_name, unasked = None, None, False
        if self.adapter is not None:
            adapter, adapter_name = bundled.adapter_path(self.adapter), self.adapter
        elif self.adapter_path is not None:
            adapter, adapter_name = self.adapter_path, str(self.adapter_path)
        tell = demonstration.silent if quiet else note
        path = demonstration.model_path(self.model, tell)
        name = demonstration.NAME if demonstration.is_meant(self.model) else str(path)
        if adapter is None and not self.no_streams:
            path = model_directory(path)
            adapter = bundled.streams_for(read_config(path))
            unasked = adapter is not None
            adapter_name = "the bundled streams" if unasked else None
        return Source(path, name, adapter, adapter_name, self.weights, unasked)


# Text -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptOptions:
    """What the prompt is, and how it is read."""

    PANEL: ClassVar[str] = "Text"

    prompt: Annotated[
        str,
        Option("--prompt", "-p", metavar="TEXT", help="The text; '-' reads standard input."),
    ] = "-"
    ignore_chat_template: Annotated[
        bool,
        Option(
            "--ignore-chat-template",
            help="Use the raw prompt, without the tokenizer's or the adapter's template.",
        ),
    ] = False
    prefill_step_size: Annotated[
        int,
        Option(
            parser=at_least(1), metavar="N", help="Number of prompt tokens to process at a time."
        ),
    ] = 2048

    def text(self) -> str:
        """The user's text, read from standard input for ``-``, without newlines at its end.

        Raises:
            UserError: the text is empty or is not UTF-8.
        """
        if self.prompt == "-":
            if sys.stdin.isatty():
                note("Reading the prompt from the terminal; Ctrl-D on a new line ends it")
            given, origin = sys.stdin.buffer.read(), "standard input"
        else:
            given, origin = self.prompt.encode(errors="surrogateescape"), "--prompt"
        try:
            text = given.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{origin} is not UTF-8 text: byte {given[error.start]:#04x} at {error.start}"
            ) from None
        text = text.rstrip("\r\n")
        if not text.strip():
            raise UserError(f"the prompt from {origin} is empty, expected some text")
        return text


@dataclass(frozen=True)
class LengthOptions:
    """Where the generated text ends."""

    PANEL: ClassVar[str] = "Text"

    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            "-m",
            parser=at_least(1),
            metavar="N",
            help="Maximum number of tokens to generate.",
        ),
    ] = 256
    stop: Annotated[
        list[str] | None,
        Option(metavar="TEXT", help="End before this text; may be given several times."),
    ] = None


# Sampling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn, under mlx_lm's names."""

    PANEL: ClassVar[str] = "Sampling"

    temp: Annotated[
        float, Option(metavar="T", help="Sampling temperature; 0 takes the likeliest token.")
    ] = 0.0
    top_p: Annotated[float, Option("--top-p", metavar="P", help="Sampling top-p; 0 or 1: all.")] = (
        1.0
    )
    min_p: Annotated[float, Option("--min-p", metavar="P", help="Sampling min-p; 0: all.")] = 0.0
    min_tokens_to_keep: Annotated[
        int, Option(parser=at_least(1), metavar="N", help="Minimum tokens to keep for min-p.")
    ] = 1
    top_k: Annotated[
        int, Option("--top-k", parser=at_least(0), metavar="K", help="Sampling top-k; 0: all.")
    ] = 0
    xtc_probability: Annotated[
        float,
        Option(
            metavar="P",
            help="Probability that XTC leaves out the likeliest tokens, tossed for each token.",
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        Option(
            metavar="P",
            help="Probability above which XTC leaves out all tokens but the least likely.",
        ),
    ] = 0.1
    repetition_penalty: Annotated[
        float | None,
        Option(
            parser=positive,
            metavar="X",
            help="Divides the logits of the last 20 tokens by this; above 1 repeats less.",
        ),
    ] = None
    logit_bias: Annotated[
        dict | None,
        Option(
            parser=token_bias,
            metavar="JSON",
            help='What to add to tokens\' logits, such as {"5": -2}.',
        ),
    ] = None
    seed: Annotated[
        int | None,
        Option(
            parser=between(0, 2**64 - 1),
            metavar="N",
            help="Draws the same text again, with any drafts or none. Default: another one each "
            "time, which the statistics name.",
        ),
    ] = None

    def sampler(self, tokenizer: "TokenizerWrapper") -> "KeyedSampler | None":
        """What draws tokens; ``None`` without a temperature.

        Args:
            tokenizer: XTC spares its newline and end tokens, as in mlx_lm's command line.

        Raises:
            UserError: a value out of range.
        """
        from ..engine.sampling import KeyedSampler, Sampling

        special: tuple[int, ...] = ()
        if self.xtc_probability:
            special = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
        sampling = Sampling(
            temp=self.temp,
            top_p=self.top_p,
            min_p=self.min_p,
            min_tokens_to_keep=self.min_tokens_to_keep,
            top_k=self.top_k,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            xtc_special_tokens=special,
        )
        if not sampling.temp:
            return None
        return KeyedSampler(secrets.randbits(32) if self.seed is None else self.seed, sampling)

    def logits_processors(self, vocab_size: int) -> "Sequence[LogitsProcessor]":
        """What changes the logits before a token is drawn.

        Raises:
            UserError: ``--logit-bias`` has a token that does not exist; mlx would write outside of
                the logits.
        """
        from mlx_lm.sample_utils import make_logits_processors

        for token in self.logit_bias or ():
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"--logit-bias has token {token}, expected one of 0 to {vocab_size - 1}"
                )
        return make_logits_processors(self.logit_bias, self.repetition_penalty)


# Drafts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftOptions:
    """Who drafts, which tree, what is kept of it, and how it is verified.

    Raises:
        UserError: an option that belongs to another one was given without it.
    """

    PANEL: ClassVar[str] = "Drafts"

    num_streams: Annotated[
        int | None,
        Option(
            parser=at_least(0),
            metavar="N",
            help="Tokens to draft ahead. Default: all that the adapter was trained for; 0: none.",
        ),
    ] = None
    tree_width: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Candidates per stream. Without --tree-size: children of every node in a full "
            "tree, 1 makes a chain.",
        ),
    ] = None
    tree_size: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Nodes to draft, most probable first. Default: 8, without --tree-width.",
        ),
    ] = None
    draft_threshold: Annotated[
        float | None,
        Option(
            parser=probability,
            metavar="P",
            help="Draft no node whose joint probability, by the streams, is below this. "
            "Default: 0.2, none with --tree-width or --tree-size.",
        ),
    ] = None
    lookup: Annotated[
        bool,
        Option(
            "--lookup",
            help="Prompt lookup: draft also what followed the newest n-gram in the prompt and the "
            "text so far, in one tree with the streams' drafts. Works without streams.",
        ),
    ] = False
    lookup_size: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="With --lookup: the most tokens to look up ahead; it may exceed --num-streams. "
            "Default: 10.",
        ),
    ] = None
    lookup_ngram: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="With --lookup: tokens of the longest n-gram to match. Default: 4.",
        ),
    ] = None
    max_nodes: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Nodes to keep after early-exit pruning, the root included. Default: all.",
        ),
    ] = None
    prune_threshold: Annotated[
        float | None,
        Option(
            parser=probability,
            metavar="P",
            help="Prune transitions less probable than this, and all behind them.",
        ),
    ] = None
    stream_nodes: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Lossless: run the streams in the same pass beside the N nodes that are most "
            "probably accepted last. Default: a second pass for the accepted node.",
        ),
    ] = None
    no_speculation: Annotated[bool, Option("--no-speculation", help="One token a step.")] = False
    verify: Annotated[
        Literal["greedy", "keyed", "rejection", "typical"] | None,
        Option(
            help="How drafts are accepted. greedy and keyed write what plain decoding writes in "
            "float32, keyed with the same --seed; in less precision near-ties may fall otherwise. "
            "rejection draws the drafts too (full trees only): another "
            "text, of the same distribution. typical is LOSSY: it takes what is plausible, so the "
            "text is not distributed as the model's. Default: greedy, with --temp keyed.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if not self.lookup and (self.lookup_size is not None or self.lookup_ngram is not None):
            raise UserError("--lookup-size or --lookup-ngram was given, expected with --lookup")

    def settings(self) -> "DraftSettings | None":
        """How to draft, by these options; ``None`` where none of them says anything about it.

        Raises:
            UserError: two options contradict each other.
        """
        from ..drafting.settings import draft_settings

        shape = self._given()
        if self.tree_width is not None:
            shape |= {"tree_width": self.tree_width, "tree_size": self.tree_size}
        # Of these rules the text depends on the drafts, which must not follow the clock then.
        repeatable = self.verify in ("rejection", "typical")
        if not (shape or self.lookup or self.no_speculation or repeatable):
            return None
        return draft_settings(
            self.verify == "rejection",
            **shape,
            lookup=self.lookup,
            speculation=not self.no_speculation,
        )

    def _given(self) -> dict[str, Any]:
        """The options that ``DraftSettings`` has under the same names, as far as they were given.

        ``tree_width`` is not among them: without ``tree_size`` it asks for a full tree.
        """
        names = ("num_streams", "tree_size", "draft_threshold", "max_nodes", "prune_threshold")
        names += ("stream_nodes", "lookup_size", "lookup_ngram")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


# KV cache ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KVCacheOptions:
    """When and how the KV cache is quantized, under mlx_lm's names.

    ``stream_generate``, ours and mlx_lm's, takes ``asdict`` of it as keyword arguments.
    """

    PANEL: ClassVar[str] = "KV cache"

    kv_bits: Annotated[
        int | None,
        Option(
            parser=one_of(4, 8),
            metavar="N",
            help="Quantize the KV cache to 4 or 8 bits. Default: not at all.",
        ),
    ] = None
    kv_group_size: Annotated[
        int,
        Option(
            parser=one_of(32, 64, 128),
            metavar="N",
            help="With --kv-bits: elements that share a scale; 32, 64 or 128.",
        ),
    ] = 64
    quantized_kv_start: Annotated[
        int,
        Option(
            parser=at_least(0),
            metavar="N",
            help="With --kv-bits: tokens from which on the cache is quantized; 0: all of them.",
        ),
    ] = 5000

    def quantization(self) -> "KVQuantization":
        """The same as one object."""
        from ..engine.kv_quantization import KVQuantization

        return KVQuantization(self.kv_bits, self.kv_group_size, self.quantized_kv_start)


# Output -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputOptions:
    """What is printed, and how.

    Raises:
        UserError: two options that exclude each other were given.
    """

    PANEL: ClassVar[str] = "Output"

    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object instead of the text.")
    ] = False
    show_drafts: Annotated[
        bool, Option("--show-drafts", help="Mark each step's accepted drafts.")
    ] = False
    compare: Annotated[
        bool,
        Option(
            "--compare",
            help="Then run plain mlx_lm on the same model, in the same dtype: both rates, and "
            "whether the output is the same. rejection and typical draw otherwise: the rates "
            "alone.",
        ),
    ] = False
    profile: Annotated[
        bool,
        Option(
            "--profile",
            help="Then say what each part of the generation took. It runs slower for that.",
        ),
    ] = False
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="All statistics, not three lines of them.")
    ] = False
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="No statistics and no notes before the text.")
    ] = False

    def __post_init__(self) -> None:
        if self.as_json and self.show_drafts:
            raise UserError("--json and --show-drafts were both given, expected at most one")
        if self.verbose and self.quiet:
            raise UserError("--verbose and --quiet were both given, expected at most one")
        if self.profile and self.compare:
            raise UserError(
                "--profile, which slows a run down, was given with --compare, expected one"
            )
