"""The page of the writing tools in headless Chromium; all its adapters are the toy's."""

import json
import random
import re
import urllib.request
from pathlib import Path

import pytest
from random_letters import random_correction, random_letter
from serving import serving
from specstream_mlx.apps.writing_tools.corrections import Correction, is_grammar
from specstream_mlx.apps.writing_tools.english import BY_PARAGRAPH
from specstream_mlx.apps.writing_tools.local_page import PAGE, page_app
from specstream_mlx.apps.writing_tools.parts import TextInParts
from specstream_mlx.apps.writing_tools.tools import TOOLS

from benchmarks import browser
from specstream_mlx import bundled, demonstration, generate, load
from specstream_mlx.prompts import chat_prompt

# The page ----------------------------------------------------------------------------------------


TEXT = "table singers(name, age, city): for singers with city Lima, what is the age?"

CANNED = """
window.feed = null;
const id = 1;
window.fetch = (path, request) => {
  window.asked = JSON.parse(request.body);
  window.parts = (asked.chats ?? [asked]).map((chat) => chat.messages[0].content);
  const body = new ReadableStream({
    start(reply) {
      const send = (value) => reply.enqueue(new TextEncoder().encode(`data: ${value}\\n\\n`));
      const say = (choice, specstream) =>
        send(JSON.stringify({ choices: [choice], specstream }));
      window.tell = (comment) => reply.enqueue(new TextEncoder().encode(`: ${comment}\n\n`));
      window.feed = (text, index = 0) =>
        say({ index, delta: { content: text } }, { step: [{ id, text, drafted_by: "streams" }] });
      window.end = (reason) => {
        for (const index of parts.keys()) say({ index, delta: {}, finish_reason: reason });
        send("[DONE]"), reply.close();
      };
      const stopped = new DOMException("", "AbortError");
      request.signal.addEventListener("abort", () => reply.error(stopped));
    },
  });
  return Promise.resolve(new Response(body));
};
"""
"""A server that says what the test feeds it."""
OWN_TEXT = "document.querySelector('#text').value"
WRITTEN = "document.querySelector('#stop').hidden"
OUTPUT = "document.querySelector('#output').textContent"


@pytest.fixture(scope="module")
def address(tools, toy_directory):
    """Where the page is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "ROOT", tools)
        patch.setattr(demonstration, "base_path", lambda *_: toy_directory / "base")
        app = page_app()
    with serving(app) as address:
        yield address


@pytest.fixture(scope="module")
def window():
    """A window of a new user."""
    if None in (browser.CHROMIUM, browser.DRIVER):
        pytest.skip(browser.NEEDED)
    with browser.window() as window:
        yield window


@pytest.fixture
def page(window, address):
    """The page, newly opened; what it leaves in the console is an error."""
    window.open(address)
    window.until("document.querySelector('#memory').textContent")
    yield window
    window.run("localStorage.clear()")
    assert window.messages() == []


def put(page, text):
    page.run(f"{OWN_TEXT} = arguments[0]", text)


def written(page):
    return page.run(f"return {OWN_TEXT}")


def asked(page, tool, text):
    """Ask a tool for an answer that the test feeds."""
    page.run(CANNED)
    put(page, text)
    page.click(f"[data-tool={tool}]")
    page.until("!!window.feed")


def answered(page, *texts, reason="stop"):
    """Feed the rest of an answer, of each part of the text."""
    page.run(
        "arguments[0].forEach((text, part) => feed(text, part)); end(arguments[1])", texts, reason
    )
    page.until(WRITTEN)


def changes(page):
    """Pairs (old, new) of the corrections that are shown."""
    script = "[...document.querySelectorAll('#output .change')].map((one) => ['del', 'ins'].map("
    return page.run(f"return {script}(name) => one.querySelector(name)?.textContent ?? ''))")


def taken(page):
    """The user's text after all open changes are taken."""
    page.click("#take-all")
    page.click("#replace")
    return written(page)


def test_a_tool_streams_the_text_that_the_model_writes_alone_and_so_does_a_race(
    page, toy_directory
):
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / "adapters/sql")
    expected = generate(
        model, tokenizer, chat_prompt(tokenizer, TEXT, model.prompt_template)
    ).strip()
    page.click("#text")
    page.type("#text", TEXT)
    observed = "document.querySelector('#output'), {subtree: true, childList: true}"
    watch = f"new MutationObserver(() => seen.add({OUTPUT})).observe({observed})"
    page.run(f"window.seen = new Set(); {watch}")
    page.click("[data-tool=friendly]")
    page.until(WRITTEN)
    assert page.text("#output").strip() == expected
    assert page.run("return seen.size") > 2
    assert page.text("#status") == ""  # figures are for whoever opens the panel
    page.click("#panel > summary")
    assert float(page.text("dd[data-figure=length]")) > 1
    assert page.text("[data-figure=tokens]").strip() == expected
    guessed = [int(page.text(f"dd[data-figure={who}]")) for who in ("streams", "lookup", "model")]
    assert sum(guessed[:2]) > 0 and guessed[2] > 0
    assert re.match(r"Streams guessed in .*steps.*%\.$", page.text("p[data-figure=seen]"))
    page.click("#replace")
    assert written(page) == expected
    page.click("#undo")
    assert written(page) == TEXT
    page.run("document.querySelector('#output').replaceChildren()")
    page.type("#text", " \ue009\ue007")  # Ctrl+Enter
    page.until(f"{OUTPUT} && {WRITTEN}")
    assert page.text("#output").strip() == expected
    page.click("#race")
    page.until(WRITTEN)
    assert re.match(r"The same text, token for token \(\d+ tokens\): ", page.text("#verdict"))
    lanes = "[...document.querySelectorAll('#lanes .tokens')]"
    page.until(f"{lanes}.every((one) => one.textContent.trim() == {OUTPUT}.trim())")
    drafted, plain = page.run(f"return {lanes}.map((one) => one.childElementCount)")
    assert drafted < plain
    page.click("[data-tool=concise]")  # whose answer was in no race
    page.until(WRITTEN)
    shown = "['lanes', 'replay'].filter((id) => !document.getElementById(id).hidden).length"
    assert page.run(f"return {shown}") == 0 and page.text("#verdict") == ""


def test_what_a_tool_is_stands_beside_its_button(page, address):
    with urllib.request.urlopen(f"{address}/v1/models", timeout=10) as reply:
        models = {one["id"]: one["specstream"] for one in json.load(reply)["data"]}
    assert "tool" not in models.pop("base")
    for name, facts in models.items():
        tool = TOOLS[name.removeprefix("base:")]
        assert facts["tool"] == tool.facts()
        button = f"document.querySelector('[data-tool={tool.name}]')"
        page.run(f"document.querySelector('.more').open = true; {button}.focus()")
        said = page.text("#about")
        assert said == page.run(f"return {button}.title")
        for words in (tool.does, tool.takes, tool.example, tool.answer, "Apache-2.0"):
            assert words in said
        marked = page.run(f"return getComputedStyle({button}, '::after').content")
        assert ("*" in marked) == tool.is_experimental
        assert page.run(f"return !!{button}.closest('.more')") == tool.form
    page.click("#example")
    assert written(page) == TOOLS["proofread"].example


def test_all_tools_write_at_once_and_stop(page):
    put(page, TEXT)
    cards = "[...document.querySelectorAll('.card .answer')].map((one) => one.textContent)"
    page.click("#all")
    page.until(f"{cards}.length == 6 && {cards}.every((text) => text.length > 0)")
    page.until(WRITTEN)
    corrected, *whole = page.run(f"return {cards}")
    assert len(set(whole)) == 1  # all are the same adapter
    assert "check: " in corrected and "change" in page.text(".card .note")
    page.click("#all")
    page.until("document.querySelector('.card .written')")
    page.click("#stop")
    page.until(WRITTEN)
    assert page.text("#status") == "Stopped."
    page.until("fetch('/health').then((reply) => reply.json()).then((said) => said.decoding == 0)")
    notes = "[...document.querySelectorAll('.card .note')].map((one) => one.textContent)"
    assert "Not complete." in page.run(f"return {notes}")


def test_corrections_grow_and_are_taken_one_by_one(page):
    before = "hi ana,\n\nwe needs it on <b>friday</b>\n\nben"
    asked(page, "proofread", before)
    asked_for = page.run("return [parts, asked.chats[2].model]")
    assert asked_for == [["hi ana,", "we needs it on <b>friday</b>", "ben"], "base:proofread"]
    page.run("feed('We need i', 1); feed('t on', 1)")
    page.until("document.querySelector('.change')")
    assert changes(page) == [["we", "We"], ["needs", "need"]]
    assert page.text(".unread ~ .unread").startswith(" on <b>")  # which may not be complete
    assert (
        page.run("return getComputedStyle(document.querySelector('.choices')).visibility")
        == "hidden"
    )
    page.click(".mark")
    page.click(".take")
    page.run(
        "feed(' <b>Fri', 1); feed('Hi ana,', 0); feed('Ben', 2); tell('text 2 has ended: stop')"
    )
    page.until("document.querySelectorAll('.change').length == 4")
    assert changes(page) == [["hi", "Hi"], ["we", "We"], ["needs", "need"], ["ben", "Ben"]]
    assert page.run("return document.activeElement.ariaLabel") == "Take: “we” becomes “We”"
    assert page.text("#status") == "Writing… 1 of 3 parts are done."
    answered(page, "", "day</b>.", "")
    found = [["hi", "Hi"], ["we", "We"], ["needs", "need"], ["friday", "Friday"], ["", "."]]
    assert changes(page) == [*found, ["ben", "Ben"]]
    assert page.run("return document.querySelectorAll('#output b').length") == 0
    page.run("document.querySelectorAll('#output .mark')[2].focus()")
    page.type(":focus", "\ue017")  # Delete
    assert page.text("#status").startswith("6 changes: 1 taken, 1 left, 4 open.")
    page.click("#original")
    shown = "document.querySelector('#output').innerText"
    assert page.run(f"return {shown}") == before
    page.click("#original")
    page.run(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { window.copied = text }}})"
    )
    page.click("#copy")
    assert page.until("window.copied") == before.replace("we", "We")
    page.run("document.querySelectorAll('#output .mark')[2].focus()")
    page.type(":focus", "\ue017")  # open again
    assert taken(page) == "Hi ana,\n\nWe need it on <b>Friday</b>.\n\nBen"
    said = "Your text is replaced, with 6 of 6 changes. Undo brings the old one back."
    assert (page.text("#output"), page.text("#status")) == ("", said)
    page.click("#undo")
    assert written(page) == before


def test_what_changes_the_meaning_is_taken_by_hand_alone(page):
    asked(page, "proofread", "we meets on sunday at noon")
    page.run("tell('512 of 4096 prompt tokens are read')")
    page.until("document.querySelector('#status').textContent == 'Reading your text, 13%…'")
    page.click("#stop")
    asked(page, "proofread", "we meets on sunday at noon\n\nBen")
    answered(page, "We meet on Saturday at noon.", "")
    marks = "[...document.querySelectorAll('.meaning')].map((one) => one.textContent)"
    assert page.run(f"return {marks}") == ["check: a weekday", "line removed"]
    assert "2 change what the text says: check them." in page.text("#status")
    assert taken(page) == "We meet on sunday at noon.\n\nBen"


def test_what_the_user_wrote_is_never_lost(page):
    """Nor typing after an answer, nor all but a selection, nor a text when the page is reloaded."""
    replaceable = "!document.querySelector('#replace').disabled"
    put(page, "one. two. three.")
    page.run("document.querySelector('#text').setSelectionRange(5, 9)")
    page.run(CANNED)
    page.click("[data-tool=friendly]")
    page.until("!!window.feed")
    answered(page, "TWO.")
    assert page.run("return asked.messages[0].content") == "two."
    page.click("#replace")
    assert written(page) == "one. TWO. three."
    asked(page, "friendly", TEXT)
    page.run("feed('half an')")
    page.until(f"{OUTPUT} == 'half an'")
    page.click("#stop")
    page.until(WRITTEN)
    assert not page.run(f"return {replaceable}")
    asked(page, "friendly", TEXT)
    answered(page, "whole")
    assert page.run(f"return {replaceable}")
    page.type("#text", " four.")
    assert not page.run(f"return {replaceable}")
    page.run("location.reload()")
    page.until("document.querySelector('#memory')?.textContent")
    assert written(page) == f"{TEXT} four."


LETTER = """dear ms okafor,

we has met in march, at the fair in the north of the town
and you said that i could write.

please bring:
- the price list
2. three copy of the contract that we has signed in may

kind regards
Ben Miller
Head of sales, Acme
"""


def test_a_text_is_worked_on_in_parts(page):
    asked(page, "friendly", LETTER)
    met = LETTER.split("\n\n")[1]
    lent = "dear ms okafor,\n\n"  # by which Friendly knows whose requests these are
    assert page.run("return parts") == [
        f"{lent}{met}",
        f"{lent}three copy of the contract that we has signed in may",
    ]
    page.run("feed('Dear Ms Okafor, we', 0); feed(' met!', 0); feed('Dear ms', 1)")
    page.until(f"{OUTPUT} == {json.dumps(LETTER.replace(met, 'We met!'))}")
    assert page.run("return document.querySelector('.unread').textContent").startswith("three copy")
    answered(page, "", " okafor,\n\nthree copies of it")
    page.click("#replace")
    item = "three copy of the contract that we has signed in may"
    assert written(page) == LETTER.replace(met, "We met!").replace(item, "Three copies of it")
    asked(page, "proofread", "buy:\n- two bread")
    answered(page, "Buy:", "two breads.")
    assert changes(page) == [["buy", "Buy"], ["bread", "breads"]]  # items stay without a stop
    long = " ".join(["We meets on sunday, and we has to go."] * 150)
    for tool, most in (("proofread", 600), ("summarize", 4000)):
        asked(page, tool, long)
        sent = page.run("return parts")
        assert " ".join(sent) == long and all(most / 2 < len(one) <= most for one in sent[:-1])
        page.click("#stop")


def test_key_points_are_a_list_and_own_words_go_to_the_base(page):
    asked(page, "key_points", TEXT)
    answered(page, "- one; - two; - one")
    points = "[...document.querySelectorAll('#output li')].map((one) => one.textContent)"
    assert page.run(f"return {points}") == ["one", "two"]
    page.click("#replace")
    assert written(page) == "- one\n- two"
    page.type("#instruction", "Make it rhyme.\ue007")
    page.until("asked.model == 'base'")
    assert page.run("return parts") == ["Make it rhyme.\n\n- one\n- two"]
    page.click("#stop")


def test_cards_say_how_far_they_are(page):
    page.run(CANNED)
    put(page, "we meets on friday")
    page.click("#all")
    page.until("!!window.feed")
    page.run("feed('We meet on', 0); feed('We', 2)")
    notes = "[...document.querySelectorAll('.card .note')].map((one) => one.textContent)"
    page.until(f"{notes}[2] == 'Writing…'")
    assert page.run(f"return {notes}") == ["Writing…", "Waiting…"] + ["Writing…"] + ["Waiting…"] * 3
    answered(page, " Friday.")
    assert page.run(f"return {notes}[0]").startswith("4 changes: 0 taken, 0 left, 4 open.")
    page.click(".card button")
    assert page.run(f"return {notes}[0]").startswith("4 changes: 4 taken")


def test_grammar_only_leaves_out_other_words(page):
    asked(page, "proofread", "hi ana,\n\nwe needs it very soon")
    answered(page, "Hello Ana,", "we need it soon.")
    everything = changes(page)
    assert ["needs", "need"] in everything
    page.click("#grammar-only")
    assert changes(page) == [["ana", "Ana"], ["needs", "need"], ["", "."]]
    left_out = len(everything) - 3
    said = f"3 changes: 0 taken, 0 left, 3 open. {left_out} with other words left out."
    assert page.text("#status").strip() == said
    page.click("#grammar-only")
    assert changes(page) == everything
    page.click("#grammar-only")
    assert taken(page) == "hi Ana,\n\nwe need it very soon."


def test_what_goes_wrong_is_told_in_a_sentence(window, address):
    window.open(address)
    window.click("[data-tool=friendly]")
    assert window.text("#status") == "Write or paste a text first."
    window.run("document.querySelector('.more').open = true")
    put(window, "we meets on sunday")
    for tool in ("sql", "describe"):  # which know forms of their own alone
        window.click(f"[data-tool={tool}]")
        example = re.escape(TOOLS[tool].example)
        assert re.match(
            rf"(SQL|Describe) takes .*, such as “{example}”", window.text("#status.error")
        )
    put(window, TEXT * 4000)
    window.click("[data-tool=friendly]")
    said = window.text("#status.error")
    assert re.fullmatch(r"Your text has 304,000 characters, .* of \d\d,000 at most\.", said)
    asked(window, "proofread", TEXT)
    answered(window, "How many", reason="length")
    assert window.text("#status").startswith("The answer was cut, it is too long. Nothing to")
    window.run("window.fetch = () => Promise.reject(new TypeError())")
    window.click("[data-tool=friendly]")
    window.until("document.querySelector('#status.error')")
    assert window.text("#status").startswith("The server does not answer.")
    assert window.messages() == []


def test_everything_has_a_name_and_a_phone_shows_it(page):
    page.run("document.querySelector('.more').open = true")
    names = page.run("return [...document.querySelectorAll('button')].map((one) => one.innerText)")
    assert {"Proofread", "Key points", "SQL", "Describe", "All at once"} < set(names)
    assert page.run("return document.querySelector('#text').labels[0].textContent") == "Your text"
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.ask("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)
    assert page.run("return document.documentElement.scrollWidth") <= 360
    page.run("document.querySelector('.more').open = false")
    asked(page, "proofread", "i has a dog")
    place = "return document.querySelector('#output').getBoundingClientRect().top"
    assert 0 < page.run(place) < 500  # of 800
    answered(page, "I have a dog.")
    page.ask("goog/cdp/execute", cmd="Emulation.clearDeviceMetricsOverride", params={})


CASES = json.loads((Path(__file__).parent / "corrections.json").read_text())
PARTS = json.loads((Path(__file__).parent / "parts.json").read_text())
GRAMMAR = {"needs": "need", "recieve": "receive", "teh": "the", "friday": "Friday", "": "the "}
GRAMMAR |= {
    "dont": "don't",
    "Dont": "Do not",
    "i has": "I have",
    "team meet": "team meets,",
}
STYLE = {"use": "utilize", "hi": "Dear", "very": "", "": "kindly ", "big red": "red big", "not": ""}
SNED = "Hi,\ncan you sned teh x\n\nBye"
PAIRS = [
    (SNED, "Hi, can you send the x?  Bye.", "Hi,\ncan you send the x?\n\nBye."),
    ("I has alot , some thing", "I have a lot, something", "I have a lot, something"),
    ("send the the x", "send the x", "send the x"),
    ("a\nb", "a X b", "a X\nb"),
    ("a\nb", "a\nX b", "a\nX b"),
    ("a X\nb", "a b", "a\nb"),
    ("  x \n", "y", "  y \n"),
]

IN_PARTS = """
return import("/work.js").then(({ Work }) => arguments[0].map(({ tool, text, written }) => {
  const work = new Work(tool, text);
  work.parts.forEach((_, number) => work.add(number, { text: written[number] ?? "", step: [] }));
  return [work.chats.map((chat) => chat.text.trim()), work.text];
}));
"""

MEANINGS = """
return Promise.all([import("/meaning.js"), import("/grammar.js")]).then(
  ([{ meaningOf }, { isGrammar }]) => arguments[0].map(([before, start, end, text]) => [
    meaningOf(before, { start, end, text }), isGrammar(before.slice(start, end), text),
  ]));
"""

FUZZ = """
return import("/diff.js").then(({ difference, applied }) => {
  const pieces = ["a", "b", "c", "A", "the", ".", ",", "\\n", " ", "  ", "("];
  const words = (text) => (text.match(/[a-z]+|[.,(]/gi) ?? []).join(" ");
  let seed = 1;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648, (seed >> 16) % n);
  const text = () => Array.from({ length: random(14) },
    () => pieces[random(pieces.length)] + (random(3) ? " " : "")).join("");
  const wrong = [];
  for (let n = 0; n < 30000; n++) {
    const [a, b] = [text(), text()];
    const { changes } = difference(a, b);
    const places = changes.flatMap(({ start, end }) => [start, end]);
    if (places.some((place, k) => place < places[k - 1])) wrong.push(["order", a, b]);
    if (words(applied(a, changes)) !== words(b)) wrong.push(["words", a, b]);
    const beginning = a.slice(0, random(a.length + 1));
    if (difference(a, beginning, false).changes.length) wrong.push(["unread", a, beginning]);
  }
  return wrong.slice(0, 5);
});
"""


def test_what_the_page_computes(page):
    def values(module, call, cases):
        script = f"return import('/{module}.js').then((m) => arguments[0].map((p) => {call}))"
        return page.run(script, cases)

    assert values("grammar", "m.isGrammar(...p)", [*GRAMMAR.items()]) == [True] * len(GRAMMAR)
    assert values("grammar", "m.isGrammar(...p)", [*STYLE.items()]) == [False] * len(STYLE)
    for kind in CASES.values():
        changed = [
            (text, {"start": text.index(old), "end": text.index(old) + len(old), "text": new})
            for text, old, new, *_ in kind
        ]
        said = [(*case, None)[3] for case in kind]
        assert values("meaning", "m.meaningOf(...p)", changed) == said
    made = values("diff", "m.applied(p[0], m.difference(p[0], p[1]).changes)", PAIRS)
    assert made == [one for _, _, one in PAIRS]
    assert page.run(FUZZ) == []
    assert page.run(IN_PARTS, PARTS) == [[case["parts"], case["result"]] for case in PARTS]


def test_random_texts_are_handled_alike_by_the_page_and_in_python(page):
    rng = random.Random(1)
    corrected = [random_correction(rng) for _ in range(3000)]
    made = [Correction(*one) for one in corrected]
    expected = [[one.meaning, is_grammar(one.old, one.text)] for one in made]
    assert len({meaning for meaning, _ in expected}) == 13  # all that there are, and none
    for said, here, case in zip(page.run(MEANINGS, corrected), expected, corrected, strict=True):
        assert said == here, case

    cases, expected = [], []
    for _ in range(1000):
        tool = rng.choice([*BY_PARAGRAPH, "summarize", "key_points"])
        work = TextInParts(tool, random_letter(rng))
        written = [rng.choice([random_letter(rng), ""]) for _ in work.parts]
        for number, text in enumerate(written):
            work.add(number, text, True)
        cases.append({"tool": tool, "text": work.before, "written": written})
        expected.append([[one.strip() for one in work.prompts], work.result])
    for said, here, case in zip(page.run(IN_PARTS, cases), expected, cases, strict=True):
        assert said == here, case


def test_the_page_takes_nothing_from_elsewhere(address):
    for path in PAGE.iterdir():
        name = path.name.replace("index.html", "")
        with urllib.request.urlopen(f"{address}/{name}", timeout=10) as reply:
            text = reply.read().decode().replace("http://www.w3.org/2000/svg", "")
        assert reply.headers["content-security-policy"].startswith("default-src 'self';")
        assert "access-control-allow-origin" not in reply.headers
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|style=", text), path
