"""The kinds of errors that people make, by name."""

from .grammar import disagreeing, missing, wrong_preposition, wrong_verb
from .signs import misplaced_apostrophe, wrong_capital, wrong_mark
from .source import Kind
from .words import confused, doubled, misspelt, slipped, wrong_space

KINDS: dict[str, Kind] = {
    "misspelling": misspelt,
    "slip": slipped,
    "confusion": confused,
    "verb": wrong_verb,
    "agreement": disagreeing,
    "apostrophe": misplaced_apostrophe,
    "capital": wrong_capital,
    "mark": wrong_mark,
    "missing": missing,
    "preposition": wrong_preposition,
    "space": wrong_space,
    "doubled": doubled,
}
