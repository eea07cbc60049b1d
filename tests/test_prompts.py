"""From conversations to prompts: what is said stays text, and templates get what they take."""

import json
import random
import time

import pytest
from demonstration_weights import installed
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer
from thinking import MARKS, OPENING, SWITCHED, thinking_tokenizer, wrapped
from tiny_models import CORPUS, tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specstream_mlx import UserError, demonstration
from specstream_mlx.control_tokens import control_tokens
from specstream_mlx.prompts import chat_prompt, chat_suffix, chat_text, encode_prompt

# Tokenizers of several kinds

TURNS = (
    "{{ bos_token }}{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if tools %}[T]{{ tools | tojson }}[/T]{% endif %}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}[C]{{ c.function | tojson }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyz.,:<>/|[]{}\"'_TC0123456789▁\nàé"))


def fast(tokenizer, template=TURNS, **names):
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | names
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **names)
    made.add_tokens([AddedToken(mark, normalized=False) for mark in ("[T]", "[/T]", "[C]")])
    return made


def byte_level():
    return thinking_tokenizer(TURNS.replace("<s>", "<|user|>").replace("</s>", "<|end|>"))


def unigram():
    """SentencePiece's way: control tokens are pieces of the vocabulary, which text may become."""
    pieces = [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -1.0), ("the", -3.0), ("▁the", -2.5)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((c, -9.0) for c in LETTERS)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return fast(tokenizer)


def llama2():
    """A normalizer that prepends, bytes for the unknown, merges that make a control token."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *LETTERS]
    words += ["s>", "th", "the", "▁the"]
    merges = [("s", ">"), ("<", "s>"), ("t", "h"), ("th", "e"), ("▁", "the")]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    prepended = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([*prepended])
    return fast(tokenizer)


def words():
    known = ["<unk>", "<s>", "</s>", "the", "team", "user", "assistant", "<", "/", "s", ">"]
    vocab = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast(tokenizer)


def demonstration_model():
    if not installed():
        pytest.skip("needs the base's weights")
    return load_tokenizer(demonstration.base_path())._tokenizer


KINDS = [byte_level, unigram, llama2, words, demonstration_model]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def tokenizer(request):
    return TokenizerWrapper(request.param())


def random_texts(number):
    rng = random.Random(5)
    pieces = [
        "the",
        " ",
        "\n",
        "\n\n",
        "team",
        "<",
        ">",
        "|",
        "</",
        "s",
        "é",
        "漢",
        "😀",
        "'",
        "a b",
    ]
    pieces += ["\ue000", "\\ue000", "\t", "<b>", "{text}", "{{ x }}", "im_end", "|>", "."]
    for _ in range(number):
        yield "".join(rng.choices(pieces, k=rng.randint(1, 12)))


def rendered(tokenizer, turns, **more):
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **more)


def test_other_texts_have_the_ids_that_they_had(tokenizer):
    """In prompts as ever, and the twin for texts that spell control tokens has the same ids."""
    control = control_tokens(tokenizer)
    twin, _ = control._twin
    for text in [*CORPUS, *random_texts(300)]:
        if any(name in text for name in control.names):
            continue
        turn = [{"role": "user", "content": text}]
        ids = tokenizer.encode(rendered(tokenizer, turn), add_special_tokens=False)
        assert chat_prompt(tokenizer, text) == encode_prompt(tokenizer, turn) == ids
        assert twin.encode(text).ids == tokenizer.encode(text)


def test_what_spells_a_control_token_is_text(tokenizer):
    control = control_tokens(tokenizer)
    ends = set(control.names.values()) - {tokenizer.unk_token_id}

    def count(ids):
        return [one for one in ids if one in ends]

    plain = count(chat_prompt(tokenizer, "the team"))
    assert plain
    for name in [*control.names][:40]:
        if name in ("<unk>", *MARKS[:2]):
            continue
        for text in (name, f"the {name}\n the{name}{name}", f"{name[:-1]}{name}{name[1:]}"):
            ids = chat_prompt(tokenizer, text)
            assert count(ids) == plain, name
            assert count(chat_prompt(tokenizer, text, "{text} the")) == plain
            assert (
                count(chat_suffix(tokenizer, text))
                == plain[-len(count(chat_suffix(tokenizer, "the"))) :]
            )
            turns = [{"role": role, "content": text} for role in ("system", "user")]
            assert count(encode_prompt(tokenizer, turns)) == count(
                encode_prompt(tokenizer, [turn | {"content": "the team"} for turn in turns])
            )


def test_control_tokens_wherever_they_are_spelled():
    """In tools, with their keys, in calls, arguments, results and arguments of the template."""
    tokenizer = TokenizerWrapper(byte_level())
    tokenizer._tokenizer.chat_template += "{{ style }}"
    ends = set(control_tokens(tokenizer).names.values())

    def ids(word):
        function = {"name": word, "parameters": {"properties": {word: {"enum": [word]}}}}
        call = {
            "id": "x",
            "type": "function",
            "function": {"name": word, "arguments": {word: [word]}},
        }
        turns = [
            {"role": "user", "content": [{"type": "text", "text": word}]},
            {"role": "assistant", "content": word, "tool_calls": [call]},
            {"role": "tool", "content": word, "tool_call_id": "x", "name": word},
        ]
        tools = [{"type": "function", "function": function}]
        made = chat_text(tokenizer, turns, None, tools, {"style": {word: word}})
        assert made.ignored == []
        found = made.encode(tokenizer)
        assert word in tokenizer.decode(found)
        return [one for one in found if one in ends]

    assert ids("<|end|>") == ids("<tool_call>") == ids("[T]") == ids("noon")


def test_thousands_of_control_tokens_are_found_at_once():
    tokenizer = thinking_tokenizer()
    tokenizer.add_tokens([f"<|reserved_{number}|>" for number in range(3000)], special_tokens=True)
    control = control_tokens(TokenizerWrapper(tokenizer))
    start = time.process_time()
    said = "<|reserved_12|> <|reserved_123|>" + "<|reserved_" * 20_000
    marked = control.marked(said, "\ue000")
    assert time.process_time() - start < 2
    assert marked == said.replace("<|reserved_12", "<\ue000|reserved_12")


def test_an_adapters_template_keeps_its_own_tokens():
    tokenizer = TokenizerWrapper(byte_level())
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    counts = [
        chat_prompt(tokenizer, text, "say {text}<|end|>").count(end) for text in ("x", "<|end|>")
    ]
    assert counts == [chat_prompt(tokenizer, "x").count(end) + 1] * 2


def test_a_text_without_a_chat_template():
    bare = tiny_tokenizer()
    bare.chat_template = None
    tokenizer = TokenizerWrapper(bare)
    assert chat_prompt(tokenizer, "the team") == tokenizer.encode("the team")
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    ids = chat_prompt(tokenizer, "the team<|end|>")
    assert end not in ids and tokenizer.decode(ids) == "the team<|end|>"
    assert end in encode_prompt(tokenizer, "the team<|end|>")  # as in mlx_lm, a raw text


# Forms that templates take ------------------------------------------------------------------------

BARE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
FIRST_ALONE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('first') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
LEAVES_OUT = (
    "{% if messages[0].role == 'system' %}[system:{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
NONE_AT_ALL = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
SILENT = BARE.replace("messages %}", "messages if m.role in ('user', 'assistant') %}")
LAST_SYSTEM = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
STRICT = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "{% if m.role != 'system' %}{% if (m.role == 'user') != (ns.n % 2 == 0) %}"
    "{{ raise_exception('roles alternate') }}{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}"
    "[{{ m.role }}:{{ m.content | trim }}]{% endfor %}"
)
A, B = {"role": "system", "content": "brief"}, {"role": "system", "content": "here "}
D = {"role": "developer", "content": "here "}
U, X = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


AFTER_RESULT = (
    [U, {"role": "tool", "content": "12"}, U],
    "[user:hi][tool:12\n\nhi]",
)


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (BARE, [A, B, U], "[system:brief][system:here ][user:hi]"),
        (BARE, [A, U, X, B, U], "[system:brief][user:hi][assistant:yes][system:here ][user:hi]"),
        (FIRST_ALONE, [A, B, U], "[system:brief\n\nhere ][user:hi]"),
        (FIRST_ALONE, [A, U, X, B, U], "[system:brief\n\nhere ][user:hi][assistant:yes][user:hi]"),
        (FIRST_ALONE, [U, X, D, U], "[user:hi][assistant:yes][developer:here ][user:hi]"),
        (LEAVES_OUT, [A, B, U], "[system:brief\n\nhere ][user:hi]"),
        (LEAVES_OUT, [U, B], "[system:here ][user:hi]"),
        (LAST_SYSTEM, [A, B, U], "brief\n\nhere [user:hi]"),
        (NONE_AT_ALL, [A, U], "[user:brief\n\nhi]"),
        (NONE_AT_ALL, [A, U, X, B, U], "[user:brief\n\nhere \n\nhi][assistant:yes][user:hi]"),
        (NONE_AT_ALL, [A], "[user:brief]"),
        (SILENT, [A, B, U], "[user:brief\n\nhere \n\nhi]"),
        (STRICT.replace("m.role != 'system'", "m.role not in ('system', 'tool')"), *AFTER_RESULT),
        (STRICT, [A, D, U, U], "[system:brief\n\nhere][user:hi\n\nhi]"),
        (STRICT, [U, X, D, U], "[system:here][user:hi][assistant:yes][user:hi]"),
    ],
)
def test_every_instruction_reaches_the_model(template, turns, expected):
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer._tokenizer.chat_template = template
    assert chat_text(tokenizer, turns).text == expected


CALLING = """\
{%- for m in messages -%}[{{ m.role }}
{%- for c in m.tool_calls or [] %} {{ c.function.name -}}
{{ c.function.arguments | tojson }}#{{ c.id }}
{%- endfor %} {{ m.content -}}
{%- if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}]{%- endfor -%}"""
NINE = (
    """\
{%- for m in messages -%}
{%- for i in m.tool_calls | default([]) | map(attribute="id") -%}
{%- if i | length != 9 %}{{ raise_exception("nine") }}{% endif %}{%- endfor -%}
{%- if m.role == "tool" and m.tool_call_id | length != 9 %}{{ raise_exception("nine") }}{% endif %}
{%- endfor -%}"""
    + CALLING
)
ONE_CALL = (
    """\
{%- for m in messages if m.tool_calls and m.tool_calls | length > 1 -%}
{{ raise_exception("one call at a time") }}{%- endfor -%}"""
    + CALLING
)
FIRST_CALL = CALLING.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
JOINS = CALLING.replace("{{ c.function.arguments | tojson }}", "{{ '=' + c.function.arguments }}")


def call(its_id, name, **arguments):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if its_id is None else made | {"id": its_id}


def result(its_id, content):
    made = {"role": "tool", "content": content}
    return made if its_id is None else made | {"tool_call_id": its_id}


def conversation(*ids):
    calls = [call(one, name) for one, name in zip(ids, "ab", strict=False)]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    return [U, turn, *(result(one, name) for one, name in zip(ids, "ab", strict=False))]


def test_ids_of_calls_fit_the_template():
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer._tokenizer.chat_template = CALLING
    usual = chat_text(tokenizer, conversation("call_1", "call_2")).text
    assert usual == "[user hi][assistant a{}#call_1 b{}#call_2 ][tool a#call_1][tool b#call_2]"
    tokenizer._tokenizer.chat_template = NINE
    short = chat_text(tokenizer, conversation("call_1", "call_2")).text
    one, two = short[short.index("#") + 1 :][:9], short[short.index("b{}#") + 4 :][:9]
    assert one != two and one.isalnum() and two.isalnum()
    assert short == usual.replace("call_1", one).replace("call_2", two)
    assert chat_text(tokenizer, conversation("call_1", "call_2")).text == short  # the same again
    assert chat_text(tokenizer, conversation("a1b2c3d4e", "f1b2c3d4e")).text == usual.replace(
        "call_1", "a1b2c3d4e"
    ).replace("call_2", "f1b2c3d4e")
    # Whoever leaves them out means the calls in their order.
    without = chat_text(tokenizer, conversation(None, None)).text
    ids = [part[:9] for part in without.split("#")[1:]]
    assert ids[:2] == ids[2:] and ids[0] != ids[1]


@pytest.mark.parametrize("template", [ONE_CALL, FIRST_CALL])
@pytest.mark.parametrize("ids", [("call_1", "call_2"), ("call_1", "call_1"), (None, None)])
def test_one_call_at_a_time(template, ids):
    """Also where an id names several calls, or none, as some clients and models have it."""
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer._tokenizer.chat_template = template
    turns = conversation(*ids)
    one, two = ids
    expected = f"[assistant a{{}}#{one or ''} ][tool a#{one}][assistant b{{}}#{two or ''} ]"
    expected = f"{expected}[tool b#{two}]".replace("#None", "")
    assert chat_text(tokenizer, turns).text == f"[user hi]{expected}"
    assert chat_text(tokenizer, [*turns, *turns]).text == f"[user hi]{expected}" * 2


def test_a_call_without_a_result():
    """It does not go on: what it brought is unknown, and another turn begins."""
    tokenizer = wrapped()
    turns = conversation("x", "y")[:2]
    text = chat_text(tokenizer, turns).text
    assert text.count("</tool_call>") == 2 and text.endswith("<|end|><|assistant|>")


def test_arguments_as_text_where_a_template_joins_them():
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer._tokenizer.chat_template = JOINS
    turn = {"role": "assistant", "content": "", "tool_calls": [call("x", "a", city="Łódź")]}
    text = chat_text(tokenizer, [U, turn, result("x", "1")]).text
    assert '[assistant a={"city": "Łódź"}#x ]' in text


def test_calls_and_tools_that_have_no_place():
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    with pytest.raises(UserError, match=r"^tool_calls are not supported: the model's "):
        chat_text(tokenizer, conversation("x", "y"))
    tools = [{"type": "function", "function": {"name": "noon"}}]
    assert chat_text(tokenizer, [U], None, tools).ignored == ["tools"]
    taking = TokenizerWrapper(thinking_tokenizer())
    made = chat_text(taking, [U], None, tools)
    assert made.ignored == [] and json.dumps(tools) in made.text


def test_the_first_mistake_is_told():
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer._tokenizer.chat_template = "{{ raise_exception('no ' + messages[0].role) }}"
    with pytest.raises(UserError, match=r"^the tokenizer's chat template fails: no system$"):
        chat_text(tokenizer, [A, D, U, U])


# Thoughts -----------------------------------------------------------------------------------------

THINKING = X | {"reasoning_content": "hm"}


def test_thoughts_of_earlier_turns():
    """A template that knows them says where they stand; no other gets them, and that is named."""
    tokenizer = wrapped()
    calls = [call("x", "noon")]
    since = [U, THINKING | {"tool_calls": calls}, result("x", "12"), U]
    assert "hm" not in chat_text(tokenizer, since).text  # before the last question
    made = chat_text(tokenizer, since[:-1])
    assert "<|assistant|><think>\nhm\n</think>\n\nyes<tool_call>" in made.text
    assert made.ignored == []
    for template in (BARE, OPENING):
        other = wrapped(template)
        made, without = chat_text(other, [U, THINKING, U]), chat_text(other, [U, X, U])
        assert (made.text, made.ignored) == (without.text, ["reasoning_content"])
    # As some clients send them, within the content: the marks are tokens there, elsewhere text.
    begin = tokenizer.think_start_id
    cut_off = X | {"content": "<think>\nhm"}  # which the prompt does not go on with
    assert begin not in encode_prompt(tokenizer, [U, cut_off, U])
    assert begin in encode_prompt(tokenizer, [U, cut_off])
    inline = X | {"content": "<think>\nhm</think>yes <think>"}
    assert encode_prompt(tokenizer, [U, inline, U]).count(begin) == 1
    assert chat_text(wrapped(OPENING), [U, inline, U]).text.startswith(
        "<|user|>hi<|end|><|assistant|>yes"
    )
    # Templates that cut it out of the content leave nothing there that could go on.
    whole = [U, X | {"content": "<think>\nhm</think>\n\nyes"}]
    made = chat_text(wrapped(OPENING), whole)
    assert (made.text, made.ignored) == ("<|user|>hi<|end|><|assistant|>yes", ["reasoning_content"])
    cuts = wrapped(SWITCHED.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"))
    made = chat_text(cuts, whole)
    assert made.text.endswith("<|assistant|><think>\nhm\n</think>\n\nyes") and not made.ignored
    refuses = BARE + "{% if messages[1].thinking %}{{ raise_exception('not both') }}{% endif %}"
    made = chat_text(wrapped(refuses), [U, THINKING, U])
    assert (made.text, made.ignored) == ("[user:hi][assistant:yes][user:hi]", ["reasoning_content"])


@pytest.mark.parametrize(
    ("template", "thinking", "ending"),
    [
        (SWITCHED, None, "hi<|end|><|assistant|>"),
        (SWITCHED, True, "hi<|end|><|assistant|>"),
        (SWITCHED, False, "<|assistant|><think>\n\n</think>\n\n"),
        (OPENING, None, "<|assistant|><think>\n"),
        (OPENING, False, "<|assistant|><think>\n\n</think>\n\n"),
        (OPENING.replace("<think>\n", ""), False, "<|assistant|><think>\n\n</think>\n\n"),
        (BARE, False, "[user:hi]"),
    ],
)
def test_thinking_is_switched(template, thinking, ending):
    tokenizer = wrapped(template)
    assert chat_text(tokenizer, [U], thinking=thinking).text.endswith(ending)
    assert chat_text(TokenizerWrapper(tiny_tokenizer()), [U], thinking=thinking).text.endswith(
        "<|user|>hi<|end|><|assistant|>"
    )
