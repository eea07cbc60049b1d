"""Tokenizers of many kinds, as files have them; ``tiny_models``'s special tokens come first."""

from mlx_lm.tokenizer_utils import load
from tiny_models import CHAT_TEMPLATE, END, PAD, SPECIAL_TOKENS
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LETTERS = [chr(code) for code in range(33, 127)]
WORDS = [*LETTERS, "▁", '▁"', '":', '",', "▁{", "▁a", "▁▁", "é", "▁é", "a>", "▁noon", "red", "▁red"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
SPACED = [*ALPHABET, 'Ġ"', '":', '",', "Ġ{", "Ġa", "Ġred", "Ã©", "âĤ", "noon", "Ġnoon", "Ġ."]
REPLACE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
STRIP = decoders.Strip(" ", 1, 0)


def _pieces(words):
    return {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL_TOKENS, *words]))}


def _fallback(decoder, words=WORDS):
    made = Tokenizer(models.BPE(_pieces([*words, *BYTES]), [], byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    return made, decoder


def _bytes(decoder, before=None):
    made = Tokenizer(models.BPE(_pieces(SPACED), []))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([before, byte_level]) if before else byte_level
    return made, decoder


def _unigram(decoder, words=WORDS):
    made = Tokenizer(models.Unigram([(word, -1.0) for word in _pieces(words)], unk_id=0))
    return made, decoder


def _words(model, decoder, words, **options):
    return Tokenizer(model(_pieces(words), **options)), decoder


_NEVER = decoders.Metaspace(prepend_scheme="never")
FOLLOWED = {
    "byte-level": lambda: _bytes(decoders.ByteLevel()),
    "byte-level, in a sequence": lambda: _bytes(decoders.Sequence([decoders.ByteLevel()])),
    "byte-level, SentencePiece's decoder": lambda: _bytes(decoders.Sequence([*REPLACE, STRIP])),
    "byte-level, Metaspace's decoder": lambda: _bytes(_NEVER, pre_tokenizers.Digits()),
    "byte-level, no decoder": lambda: _bytes(None),
    "Llama 2's": lambda: _fallback(decoders.Sequence([*REPLACE, STRIP])),
    "Gemma's": lambda: _fallback(decoders.Sequence(REPLACE)),
    "Metaspace after ByteFallback": lambda: _fallback(
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "Metaspace before ByteFallback": lambda: _fallback(
        decoders.Sequence([_NEVER, decoders.ByteFallback(), decoders.Fuse()])
    ),
    "Unigram, Metaspace": lambda: _unigram(decoders.Metaspace()),
    "Unigram, Metaspace without a first space": lambda: _unigram(_NEVER),
}
"""Kinds of which each text is what its tokens' bytes say."""

REFUSED = {
    "WordPiece": lambda: _words(
        models.WordPiece,
        decoders.WordPiece(),
        [*LETTERS, *(f"##{x}" for x in LETTERS)],
        unk_token=PAD,
    ),
    "ends of words": lambda: _words(
        lambda pieces: models.BPE(pieces, [], end_of_word_suffix="</w>"),
        decoders.BPEDecoder("</w>"),
        [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)],
    ),
    "repeats are dropped": lambda: _words(models.WordLevel, decoders.CTC(), LETTERS, unk_token=PAD),
    "words alone": lambda: _words(models.WordLevel, None, LETTERS, unk_token=PAD),
    "no braces": lambda: _unigram(_NEVER, [word for word in WORDS if "{" not in word]),
}


def wrapped(made, folder, size=0):
    """Write a tokenizer of ``size`` or more tokens, and read it as a model's is read by mlx_lm."""
    tokenizer, decoder = made
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL_TOKENS])
    tokenizer.add_tokens([f"word{number}" for number in range(tokenizer.get_vocab_size(), size)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=PAD,
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    return load(folder, {}, eos_token_ids=[SPECIAL_TOKENS.index(END)])
