"""Names that the tasks share: people, companies, products, places, and small numbers' words.

Proper names are partly synthesised from syllables, so that a model has to copy them from its
input instead of knowing them by heart.
"""

import random

FIRST_NAMES = """Ada Adam Ahmed Aisha Alan Alice Amara Amir Amy Ana Andre Anika Anna Arjun Ava Ben
Bianca Bruno Camila Carl Carlos Carmen Chen Chloe Clara Claire Cora Dalia Dan Dana Daniel David
Dev Diana Diego Dina Edith Elena Eli Elias Ella Emil Emma Erik Eva Farah Felix Fiona Frank Freya
George Gina Grace Greta Hana Hannah Hassan Heidi Helen Henry Hugo Ian Ida Igor Ines Ingrid Iris
Isaac Isabel Ivan Jack Jade James Jana Jane Jasmine Javier Jo Joan Joel John Jonas Joy Juan Julia
Kai Karen Karim Kate Keiko Ken Kira Kofi Lara Lars Laura Lea Leah Lena Leo Lila Lily Lin Lisa Liu
Louis Lucas Lucia Lucy Luis Luna Maja Malik Mara Marco Maria Marie Mario Mark Marta Martin Mary
Max Maya Mei Mia Mike Mila Mina Mira Mohan Mona Nadia Nate Neha Nia Nick Nico Nina Noah Noor Nora
Olga Oliver Olivia Omar Oscar Otto Owen Pablo Paul Paula Pedro Petra Pia Priya Quinn Rachel Rafael
Raj Rana Ravi Rita Robin Rosa Ruth Ryan Sam Samir Sana Sara Sasha Sean Selma Simon Sofia Sonia
Stella Sven Tara Theo Tim Tina Tom Tomas Tony Uma Vera Victor Viktor Vivian Wendy Will Yara Yasmin
Yuki Yusuf Zara Zoe""".split()

_ONSETS = "b br c ch cl d dr f fl g gr h j k kr l m n p pl qu r s sh st t tr v w z".split()
_VOWELS = "a e i o u ai ea ia io oa".split()
_CODAS = ["", "", "l", "m", "n", "r", "s", "t", "nd", "rk", "x", "sk"]


def person(rng: random.Random) -> str:
    """A first name."""
    return rng.choice(FIRST_NAMES)


def people(rng: random.Random, count: int) -> list[str]:
    """``count`` different first names."""
    return rng.sample(FIRST_NAMES, count)


def coined(rng: random.Random, syllables: int | None = None) -> str:
    """A capitalised proper name made of syllables, such as ``Brelandi`` or ``Tosk``."""
    count = syllables or rng.choice((2, 2, 2, 3))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count))
    return (word + rng.choice(_CODAS)).capitalize()


def surname(rng: random.Random) -> str:
    """A coined family name."""
    return coined(rng, 2)
