"""``generate``'s options for sampling, under mlx_lm's names, and what they come to."""

import json
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from ..config import UserError
from . import numbers

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..engine.sampling import Sampling

_SAMPLING = "Sampling"


def _bias(text: str) -> dict[int, float]:
    """A parser of a JSON object from token ids to numbers."""
    if isinstance(text, dict):  # click hands in what is parsed already
        return text
    try:
        return {int(token): float(value) for token, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise BadParameter(
            f'found {text}, expected a JSON object from token ids to numbers, such as {{"5": -2}}'
        ) from None


Temp = Annotated[
    float,
    Option(
        metavar="T",
        help="Sampling temperature; 0 takes the likeliest token.",
        rich_help_panel=_SAMPLING,
    ),
]
TopP = Annotated[
    float,
    Option("--top-p", metavar="P", help="Sampling top-p; 0 or 1: all.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float, Option("--min-p", metavar="P", help="Sampling min-p; 0: all.", rich_help_panel=_SAMPLING)
]
MinTokensToKeep = Annotated[
    int,
    Option(metavar="N", help="Minimum tokens to keep for min-p.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[
    int, Option("--top-k", metavar="K", help="Sampling top-k; 0: all.", rich_help_panel=_SAMPLING)
]
XtcProbability = Annotated[
    float,
    Option(
        metavar="P",
        help="Probability that XTC leaves out the likeliest tokens, tossed for each token.",
        rich_help_panel=_SAMPLING,
    ),
]
XtcThreshold = Annotated[
    float,
    Option(
        metavar="P",
        help="Probability above which XTC leaves out all tokens but the least likely.",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(0),
        metavar="N",
        help="Repeats an own run with the same options; mlx_lm draws otherwise.",
        rich_help_panel=_SAMPLING,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    Option(
        parser=numbers.positive,
        metavar="X",
        help="Divides the logits of the last 20 tokens by this; above 1 repeats less.",
        rich_help_panel=_SAMPLING,
    ),
]
LogitBias = Annotated[
    dict | None,
    Option(
        parser=_bias,
        metavar="JSON",
        help='What to add to tokens\' logits, such as {"5": -2}.',
        rich_help_panel=_SAMPLING,
    ),
]
VERIFY_HELP = (
    "How drafts are accepted. greedy and sample follow the target's own tokens, rejection draws "
    "the drafts too (full trees only); all three are exact. typical is LOSSY: it takes what is "
    "plausible, so the text is not distributed as the model's. Default: greedy, with --temp sample."
)


def checked_bias(bias: dict[int, float] | None, vocab_size: int) -> dict[int, float] | None:
    """``--logit-bias`` if all of its tokens exist; mlx would write outside of the logits.

    Raises:
        UserError: one does not.
    """
    for token in bias or ():
        if not 0 <= token < vocab_size:
            raise UserError(
                f"--logit-bias has token {token}, expected one of 0 to {vocab_size - 1}"
            )
    return bias


def sampler_of(tokenizer: "TokenizerWrapper", **fields: float) -> "Sampling | None":
    """The sampler of the fields of ``Sampling``; XTC spares what it spares in mlx_lm's CLI."""
    from ..engine.sampling import Sampling

    special: tuple[int, ...] = ()
    if fields["xtc_probability"]:
        special = (*tokenizer.encode("\n"), *tokenizer.eos_token_ids)
    sampling = Sampling(**fields, xtc_special_tokens=special)
    return sampling if sampling.temp else None
