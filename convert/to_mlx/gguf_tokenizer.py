"""The tokenizer of a GGUF file, as ``transformers`` reads it from a directory."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from specstream_mlx.errors import shown
from specstream_mlx.files import reason

from .gguf_header import Header

_KEY = "tokenizer.ggml"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""What GGUF and ``transformers`` call special tokens."""
_SPECIAL = (*_NAMED, "eot", "eom")
_ENDS = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>"),
    *("<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>"),
    "<\N{FULLWIDTH VERTICAL LINE}end\u2581of\u2581sentence\N{FULLWIDTH VERTICAL LINE}>",
)
"""Names of tokens that end a text: a file has one id for it, and models more such tokens."""
_LONGEST = 512
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True)
class _Split:
    """Rule by which text is cut into words before merges."""

    pattern: str | None = None  # of a word; None: GPT-2's
    single_digits: bool = False  # digits stand alone, before anything else is cut
    whole_words: bool = False  # a word that is a token is taken without merging
    begins: bool = False  # a text begins with the token for it where the file does not say
    composed: bool = False  # the text is brought to Unicode's form NFC


_LLAMA3 = _Split(rf"{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACES}", whole_words=True, begins=True)
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_SYMBOLS_AND_SPACES}"
_DIGITS = _Split(single_digits=True)
_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "smaug-bpe": _Split(_LLAMA3.pattern),
    "tekken": _Split(
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        whole_words=True,
        begins=True,
    ),
    "qwen2": _Split(_QWEN2, composed=True),
    "deepseek-r1-qwen": _Split(_QWEN2),
}
"""By ``tokenizer.ggml.pre``, a published list of names; one that is missing here is refused."""


def read_gguf_tokenizer(header: Header) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """The tokenizer with its special tokens and chat template, and the tokens that end a text."""
    tokens = header.texts(f"{_KEY}.tokens")
    kinds = header.array(f"{_KEY}.token_type", len(tokens)).copy()
    named = [
        number
        for number, token in enumerate(tokens)
        if token in _ENDS and (kinds[number] in (_CONTROL, _USER_DEFINED) or token.startswith("<|"))
    ]
    kinds[named] = _CONTROL  # which some files have as words
    model = header.text(f"{_KEY}.model")
    if model == "gpt2":
        tokenizer, begins = _byte_level(header, tokens)
    elif model == "llama":
        tokens = _spelled(tokens, kinds)
        tokenizer, begins = _sentencepiece(header, tokens, kinds), True
    else:
        raise header.refuse(f"{_KEY}.model is {shown(model)}, expected gpt2 or llama")
    tokenizer.add_tokens(
        [
            AddedToken(tokens[number], normalized=False, special=bool(kinds[number] == _CONTROL))
            for number in np.flatnonzero(np.isin(kinds, (_CONTROL, _USER_DEFINED)))
            if tokens[number].strip(_SPACE)  # runs of spaces are made by merges
        ]
    )
    special = {name: _special(header, name, tokens) for name in _SPECIAL}
    around = [
        special["bos"] if header.flag(f"{_KEY}.add_bos_token", begins) else None,
        special["eos"] if header.flag(f"{_KEY}.add_eos_token", False) else None,
    ]
    if any(number is not None for number in around):
        tokenizer.post_processor = _surrounded(tokens, *around)
    if special["eos"] is None:
        raise header.refuse(f"{_KEY}.eos_token_id is missing, expected the token that ends a text")
    template = header.text("tokenizer.chat_template")
    known = {name: number for name, number in special.items() if number is not None}
    names = {
        f"{short}_token": tokens[known[name]] for name, short in _NAMED.items() if name in known
    }
    ends = [known[name] for name in ("eos", "eot", "eom") if name in known] + named
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **names,
    )
    return result, list(dict.fromkeys(ends))


def _special(header: Header, name: str, tokens: list[str]) -> int | None:
    key = f"{_KEY}.{name}_token_id"
    if key not in header.metadata:
        return None
    number = header.integer(key)
    if number >= len(tokens):
        raise header.refuse(f"{key} is {number}, expected one of {len(tokens)} tokens")
    return number


def _surrounded(
    tokens: list[str], begin: int | None, end: int | None
) -> processors.TemplateProcessing:
    """Post-processor that puts tokens before and after a text."""
    around = {name: n for name, n in (("begin", begin), ("end", end)) if n is not None}
    pieces = [name for name in ("begin", "$A", "end") if name in around or name == "$A"]
    second = [name.replace("$A", "$B") + ":1" for name in pieces]
    special = [{"id": name, "ids": [n], "tokens": [tokens[n]]} for name, n in around.items()]
    return processors.TemplateProcessing(
        single=pieces, pair=pieces + second, special_tokens=special
    )


def _bpe(
    header: Header, tokens: list[str], merges: list[tuple[str, str]], **options: Any
) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise header.refuse(f"{_KEY}.tokens has {shown(twice)} twice, expected each token once")
    try:
        return Tokenizer(models.BPE(vocabulary, merges, **options))
    except Exception as error:  # tokenizers raises no narrower one
        raise header.refuse(f"its tokens and merges do not fit: {reason(error)}") from None


def _byte_level(header: Header, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """A byte-level BPE, and whether texts begin with a token where the file does not say."""
    name = header.text(f"{_KEY}.pre")
    if name not in _SPLITS:
        raise header.refuse(
            f"{_KEY}.pre is {shown(name)}, which is not known here, "
            f"expected one of {', '.join(_SPLITS)}"
        )
    split = _SPLITS[name]
    merges = []
    for merge in header.texts(f"{_KEY}.merges"):
        left, _, right = merge[1:].partition(" ")  # a first character may be a space itself
        merges.append((merge[:1] + left, right))
    tokenizer = _bpe(header, tokens, merges, ignore_merges=split.whole_words)
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if split.composed:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer, split.begins


def _spelled(tokens: list[str], kinds: np.ndarray) -> list[str]:
    """The tokens with spaces spelled as in all other tokens: Gemma's runs of them are not."""
    return [
        token.replace(" ", _SPACE) if kind == _USER_DEFINED and not token.strip(" ") else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def _sentencepiece(header: Header, tokens: list[str], kinds: np.ndarray) -> Tokenizer:
    """A BPE of sentencepiece's, whose merges follow from its tokens and their scores."""
    longest = max(tokens, key=len, default="")
    if len(longest) > _LONGEST:  # each token is cut at every place
        raise header.refuse(
            f"{_KEY}.tokens has one of {len(longest)} characters, expected at most {_LONGEST}"
        )
    scores = header.array(f"{_KEY}.scores", len(tokens)).astype(np.float64)
    if header.text("general.architecture") == "gemma3":  # its tokens are in the merges' order
        scores = -np.arange(len(tokens), dtype=np.float64)
    rank = {
        tokens[number]: (-scores[number], number)
        for number in np.flatnonzero(np.isin(kinds, (_NORMAL, _USER_DEFINED))).tolist()
    }
    merges = sorted(
        (place, left, right)
        for token, place in rank.items()
        for left, right in _halves(token, rank)
    )
    unknown = np.flatnonzero(kinds == _UNKNOWN).tolist()
    tokenizer = _bpe(
        header,
        tokens,
        [(left, right) for _, left, right in merges],
        unk_token=tokens[unknown[0]] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefix = header.flag(f"{_KEY}.add_space_prefix", True)
    spaces: normalizers.Normalizer = normalizers.Replace(" ", _SPACE)
    decoded = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoded.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decoded)
    return tokenizer


def _halves(token: str, rank: Container[str]) -> Iterator[tuple[str, str]]:
    """The pairs of tokens that a token may be merged of."""
    for place in range(1, len(token)):
        if token[:place] in rank and token[place:] in rank:
            yield token[:place], token[place:]
