"""Words that exist nowhere, and the few rules of spelling that exchanged words need."""

import random
import re
import string

from .lists import entries

_ONSETS = """b bl br c ch cl cr d dr dw f fj fl fr g gl gn gr h hj j k kh kl kr l ll m mb mw n ng nd
ny p ph pl pr qu r rh s sc sch sh sk sl sm sn sp st str sv t th tr ts tw v vl w wh x y z zh
zw""".split()
_VOWELS = """a e i o u a e i o u a e i o aa ai au ea ee ei eu ia ie io oa oe oo ou ue ui y á é ö ü
å""".split()
_CODAS = """b ck d f g k l ll lm lt m mp n nd ng nk nt p r rd rk rn rt s sk ss st t th tt v x z
zk""".split()
_UNPRONOUNCEABLE = 0.12


def coined(rng: random.Random) -> str:
    """A lower-case word of 3 to 11 letters that exists nowhere; some cannot be pronounced."""
    if rng.random() < _UNPRONOUNCEABLE:
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))
    word = ""
    for _ in range(rng.choice((1, 2, 2, 2, 3))):
        word += rng.choice(_ONSETS) + rng.choice(_VOWELS)
    word += rng.choice(_CODAS) if rng.random() < 0.6 or len(word) < 3 else ""
    return word[:11]


def noun(rng: random.Random) -> str:
    """A lower-case word whose plural ends in "s": a rare one, or coined from plain letters."""
    if rng.random() < 0.6:
        word = rng.choice(entries("rare_words"))
    else:
        word = re.sub("[^a-z]", "", coined(rng))
    if len(word) < 3 or word[-1] in "sxzyfho":
        return noun(rng)
    return word


def like_code(code: str, rng: random.Random) -> str:
    """A random code of the same pattern: digits for digits, letters for letters."""
    made = []
    for at, sign in enumerate(code):
        if sign.isdigit():
            first = at == 0 or not code[at - 1].isdigit()
            made.append(rng.choice(string.digits[1:] if first and sign != "0" else string.digits))
        elif sign.isalpha():
            letters = string.ascii_uppercase if sign.isupper() else string.ascii_lowercase
            made.append(rng.choice(letters))
        else:
            made.append(sign)
    return "".join(made)


def email(rng: random.Random) -> str:
    """An address of coined and rare words."""
    ends = ("com", "org", "net", "co.uk", "eu", "io", "info")
    local = coined(rng)
    if rng.random() < 0.5:
        local += rng.choice((".", "_", "")) + rng.choice((coined(rng), str(rng.randrange(1, 999))))
    host = rng.choice((coined(rng), rng.choice(entries("rare_words"))))
    return f"{local}@{host}.{rng.choice(ends)}"


_LETTERS_WITH_VOWEL = frozenset("AEFHILMNORSX")


def takes_an(word: str) -> bool:
    """Tell whether "an" stands before a word or a number as it is spoken."""
    if word[0].isdigit():
        integer = re.split(r"[^\d,]", word, maxsplit=1)[0].replace(",", "")
        return integer[0] == "8" or (integer[:2] in ("11", "18") and len(integer) in (2, 5))
    head = re.split(r"[\W_]", word, maxsplit=1)[0]
    if head.isupper() and (len(head) < 4 or not re.search("[AEIOU]", head)):
        return head[0] in _LETTERS_WITH_VOWEL
    lower = head.lower()
    if re.match(r"(?:eu|uni(?!n)|use|usu|one\b|once|ou[ai]|ew)", lower):
        return False
    return lower[:1] in set("aeiouáéíóúåäöüøæ") or lower.startswith(("hour", "honest", "honour"))


def plural_form(word: str) -> str:
    """The regular plural of a lower-case noun."""
    if re.search(r"(?:s|x|z|ch|sh)$", word):
        return word + "es"
    return word[:-1] + "ies" if re.search(r"[^aeiou]y$", word) else word + "s"


def in_case_of(word: str, form: str) -> str:
    """``word`` with the capitals of ``form``: all, the first letter's, none or its own."""
    if len(form) > 1 and form.isupper():
        return word.upper()
    if form.islower():
        return word.lower()
    return word[:1].upper() + word[1:] if form[:1].isupper() else word
