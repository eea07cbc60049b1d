"""Random letters of words that the writing tools' rules know, and random corrections of them."""

from itertools import chain

from specstream_mlx.apps.writing_tools.english import DATES, EXCHANGES, FORMS, PATTERNS, WORDS

OTHERS = (
    "hello Hey dear Thanks regards greets Ana ana Ben Mr. st. bob@x.org €5 5:30 1.249,50 4c 12/11 "
    "\u0663 ² friday's wensday I'll don't don\u2019t isn't über _x_ ... # wifi need needs"
)
KNOWN = {*chain(*WORDS.values(), *DATES.values(), *FORMS, *chain(*EXCHANGES))}
VOCABULARY = sorted({*KNOWN, *map(str.title, KNOWN), *OTHERS.split()})


def random_letter(rng):
    """With lists, short and long lines, perhaps a greeting and a closing."""
    lines = [rng.choice(["", "hi ana,", "Dear Mr. Miller,\n", "Hey,"])]
    for _ in range(rng.randint(1, 9)):
        front = rng.choice(["", "", "", "\n", "- ", "\n* ", "1. ", "# ", "> [ ] "])
        words = rng.choices(VOCABULARY, k=rng.randint(1, rng.choice([6, 14, 30])))
        lines.append(front + " ".join(words) + rng.choice(["", ".", "!", ":", ","]))
    lines.append(rng.choice(["", "", "\nkind regards\nBen", "\ncheers,\nAna Miller", " \n"]))
    return "\n".join(lines)


def random_correction(rng):
    """A letter, where some words of it begin and end, and what stands there instead."""
    before = random_letter(rng)
    words = [found.span() for found in PATTERNS["word"].finditer(before)]
    first = rng.randrange(len(words))
    last = min(len(words) - 1, first + rng.choice([0, 0, 0, 1, 4]))
    start, end = words[first][0], words[last][1]
    old = before[start:end]
    others = " ".join(rng.choices(VOCABULARY, k=rng.randint(1, 5)))
    near = [old.lower(), old.title(), old[:-1], f"{old}s", f"{old}.", old.replace("'", ""), ""]
    return before, start, end, rng.choice([others, rng.choice(near)])
