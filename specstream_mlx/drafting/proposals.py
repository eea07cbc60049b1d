"""Proposals of next tokens beside the streams'; both ``fixed`` and ``auto`` draft them.

A new one is one file beside this one, with a class that is a ``Proposal``; a line in ``PROPOSALS``;
and its name in ``options.generation.DRAFTERS``, by which users choose it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path as FilePath

from ..config import UserError
from ..engine.guesses import Guesses, Path
from ..loading import SpeculativeModel, model_directory
from ..options.generation import DrafterOptions
from .best_first import Children
from .datastore import open_datastore
from .draft_model import DraftModel, check_draft_model
from .lookahead import Lookahead
from .lookup import Lookup
from .pld import PromptLookup
from .pooling import pooled
from .proposal import Material, Proposal
from .rest import Retrieval
from .suffix import Suffix


def _lookup(material: Material) -> Lookup:
    options = material.options
    return Lookup(material.prompt, options.lookup_ngram, options.lookup_size)


PROPOSALS: dict[str, Callable[[Material], Proposal]] = {
    "lookup": _lookup,
    "pld": PromptLookup,
    "suffix": Suffix,
    "draft-model": DraftModel,
    "lookahead": Lookahead,
    "rest": Retrieval,
}
"""Makers of proposals, by the names that users choose them by."""


def check_drafters_found(options: DrafterOptions) -> None:
    """Check that what drafters were given is there, which no model needs to be loaded for.

    Raises:
        UserError: it is not.
    """
    if isinstance(options.draft_model, str | FilePath):
        model_directory(options.draft_model)
    if options.datastore is not None:
        open_datastore(options.datastore)


def check_drafters_fit(options: DrafterOptions, model: SpeculativeModel) -> None:
    """Check that what drafters were given fits a model.

    Raises:
        UserError: it does not.
    """
    if options.draft_model is not None:
        check_draft_model(options.draft_model, model)
    if options.datastore is not None:
        store, count = open_datastore(options.datastore), model.config["vocab_size"]
        if store.most >= count:
            raise UserError(
                f"the datastore {store.path} has token {store.most}, expected those of the model, "
                f"0 to {count - 1}"
            )


def proposals_of(names: Sequence[str], material: Material) -> list[Proposal]:
    """Make the proposals of one text by their names."""
    return [PROPOSALS[name](material) for name in names]


def beside(proposals: Sequence[Proposal]) -> list[Path]:
    """List the paths that the tree must hold for some proposals' sake."""
    return [path for proposal in proposals for path in proposal.beside()]


def together(proposals: Sequence[Proposal], streams: Children | None = None) -> Children:
    """Pool the guesses of proposals and streams.

    Args:
        proposals: the proposals of one text.
        streams: function that returns the streams' guesses behind a path.
    """

    def children(path: Path) -> Guesses:
        guesses: Guesses = []
        for proposal in proposals:
            others = proposal.children(path)
            guesses = pooled(guesses, others) if guesses else others
        guessed = streams(path) if streams else []
        return pooled(guessed, guesses) if guessed else guesses

    return children
