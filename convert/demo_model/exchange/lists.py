"""The lists of names and words, one entry a line in ``text/lists``."""

from functools import cache

from ..written import TEXT

PERSON_LISTS = ("women", "men")
LISTS = (*PERSON_LISTS, "surnames", "cities", "countries")

WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen
fourteen fifteen sixteen seventeen eighteen nineteen twenty""".split()


@cache
def entries(name: str) -> tuple[str, ...]:
    """The entries of a list, in the file's order."""
    return tuple((TEXT / "lists" / f"{name}.txt").read_text(encoding="utf-8").splitlines())


@cache
def list_of() -> dict[str, str]:
    """The list's name for each entry of the lists of proper names."""
    return {entry: name for name in LISTS for entry in entries(name)}


@cache
def things() -> dict[str, tuple[tuple[str, ...], int]]:
    """For each noun its interchangeable nouns, in the same number, and 0 for singulars, 1 for
    plurals. A line of ``things.txt`` is a group of ``singular/plural``."""
    found = {}
    for line in entries("things"):
        singulars, plurals = zip(*(word.split("/") for word in line.split()), strict=True)
        found.update(dict.fromkeys(singulars, (singulars, 0)))
        found.update(dict.fromkeys(plurals, (plurals, 1)))
    return found
