"""The page of the writing tools in headless Chromium; all its adapters are the toy's."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving import serving
from specstream_mlx.apps.writing_tools.local_page import PAGE, page_app

from specstream_mlx import bundled, demonstration, generate, load
from specstream_mlx.prompts import chat_prompt

# Chromium, driven through chromedriver's HTTP interface (WebDriver) ------------------------------


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


class Browser:
    """One window, by the address of chromedriver's session."""

    def __init__(self, session):
        self._session = session

    def ask(self, path, **values):
        return ask(f"{self._session}/{path}", values)

    def open(self, address):
        """Open a page and wait until it is loaded."""
        self.ask("url", url=address)

    def run(self, script, *arguments):
        """What a script returns, or the promise that it returns."""
        return self.ask("execute/sync", script=script, args=arguments)

    def click(self, selector):
        """Click on the first element of a selector, as a user does: it must be in sight."""
        self._of_element(selector, "click")

    def type(self, selector, keys):
        self._of_element(selector, "value", text=keys)

    def _of_element(self, selector, action, **values):
        (found,) = self.ask("element", using="css selector", value=selector).values()
        self.ask(f"element/{found}/{action}", **values)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def until(self, script, seconds=20):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, script
            time.sleep(0.02)
        return value

    def messages(self):
        """What the console has said since the last time."""
        return [one["message"] for one in self.ask("se/log", type="browser")]


def ask(address, values=None, method="POST"):
    """The value that chromedriver answers with."""
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address, body, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)["value"]


# The page ----------------------------------------------------------------------------------------


TEXT = "table singers(name, age, city): for singers with city Lima, what is the age?"

CANNED = """
window.feed = null;
window.fetch = (path, request) => {
  window.asked = JSON.parse(request.body);
  const body = new ReadableStream({
    start(reply) {
      const send = (value) => reply.enqueue(new TextEncoder().encode(`data: ${value}\\n\\n`));
      const say = (choice, specstream) =>
        send(JSON.stringify({ choices: [{ index: 0, ...choice }], specstream }));
      window.tell = (comment) => reply.enqueue(new TextEncoder().encode(`: ${comment}\n\n`));
      window.feed = (text) =>
        say({ delta: { content: text } }, { step: [{ id: 1, text, drafted_by: "streams" }] });
      window.end = (reason) => {
        say({ delta: {}, finish_reason: reason }), send("[DONE]"), reply.close();
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
def window(tmp_path_factory):
    """A window of a new user."""
    if None in (CHROMIUM, DRIVER):
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    command = [DRIVER, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver, ExitStack() as end:
        end.callback(driver.terminate)
        lines = (re.search(r"on port (\d+)\.", line) for line in driver.stdout)
        root = next(f"http://127.0.0.1:{found[1]}/session" for found in lines if found)
        flags = [*_FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('user')}"]
        wanted = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = ask(root, {"capabilities": {"alwaysMatch": wanted}})
        session = f"{root}/{made['sessionId']}"
        end.callback(ask, session, method="DELETE")
        yield Browser(session)


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


def answered(page, text, reason="stop"):
    """Feed the rest of an answer."""
    page.run("feed(arguments[0]); end(arguments[1])", text, reason)
    page.until(WRITTEN)


def changes(page):
    """Pairs (old, new) of the corrections that are shown."""
    script = "[...document.querySelectorAll('.change')].map((one) => ['del', 'ins'].map("
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
    assert "tokens per step" in page.text("#status")
    assert page.text("[data-figure=tokens]").strip() == expected
    guessed = [int(page.text(f"dd[data-figure={who}]")) for who in ("streams", "lookup", "model")]
    assert sum(guessed[:2]) > 0 and guessed[2] > 0
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


def test_all_tools_write_at_once_and_stop(page):
    put(page, TEXT)
    cards = "[...document.querySelectorAll('.card .answer')].map((one) => one.textContent)"
    page.click("#all")
    page.until(f"{cards}.length == 6 && {cards}.every((text) => text.length > 0)")
    page.until(WRITTEN)
    whole = page.run(f"return {cards}")
    assert len(set(whole)) == 1  # all are the same adapter
    page.click("#all")
    page.until(f"{cards}.some((text) => text.length > 0)")
    page.click("#stop")
    page.until(WRITTEN)
    assert page.text("#status") == "Stopped."
    page.until("fetch('/health').then((reply) => reply.json()).then((said) => said.decoding == 0)")
    assert any(len(text) < len(whole[0]) for text in page.run(f"return {cards}"))


def test_corrections_grow_and_are_taken_one_by_one(page):
    before = "hi ana,\n\nwe needs it on <b>friday</b>\n\nben"
    asked(page, "proofread", before)
    page.run("feed('Hi ana, we nee'); feed('d it')")
    page.until("document.querySelector('.change')")
    assert changes(page) == [["hi", "Hi"]]  # the word behind 'need' may not be complete
    assert page.run("return asked.model") == "base:proofread"
    page.click(".change .take")
    page.run("feed(' on <b>Fri'); window.first = document.querySelector('.change')")
    page.until("document.querySelectorAll('.change').length == 2")
    assert changes(page) == [["hi", "Hi"], ["needs", "need"]]
    assert page.text(".unread").endswith("friday</b>\n\nben")
    answered(page, "day</b>. Ben")
    found = [["hi", "Hi"], ["needs", "need"], ["friday", "Friday"], ["", "."], ["ben", "Ben"]]
    assert changes(page) == found
    assert page.run("return first === document.querySelector('.change')")
    assert page.run("return document.querySelectorAll('#output b').length") == 0
    page.run("document.querySelectorAll('.leave')[1].click()")
    assert page.text("#status").startswith("5 changes: 1 taken, 1 left, 3 open.")
    page.run(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { window.copied = text }}})"
    )
    page.click("#copy")
    assert page.until("window.copied") == before.replace("hi ana", "Hi ana")
    assert taken(page) == "Hi ana,\n\nwe need it on <b>Friday</b>.\n\nBen"
    assert page.text("#output") == "" and page.text("#status").startswith("Your text is replaced")
    page.click("#undo")
    assert written(page) == before


def test_what_changes_the_meaning_is_taken_by_hand_alone(page):
    asked(page, "proofread", "we meets on sunday at noon\n\nBen")
    page.run("tell('512 of 4096 prompt tokens are read')")
    page.until("document.querySelector('#status').textContent == 'Reading your text, 13%…'")
    answered(page, "We meet on Saturday at noon.")
    marks = "[...document.querySelectorAll('.meaning')].map((one) => one.textContent)"
    assert page.run(f"return {marks}") == ["check: a weekday", "check: a line"]
    assert "2 change what the text says: check them." in page.text("#status")
    assert taken(page) == "We meet on sunday at noon\n\nBen"


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


def test_grammar_only_leaves_out_other_words(page):
    asked(page, "proofread", "hi ana,\n\nwe needs it very soon")
    answered(page, "Hello Ana, we need it soon.")
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
    put(window, TEXT * 400)
    window.click("[data-tool=friendly]")
    said = window.until("document.querySelector('#status.error')?.textContent")
    assert re.fullmatch(r"the prompt has \d+ tokens.*", said)
    assert all("status of 400" in message for message in window.messages())
    asked(window, "proofread", TEXT)
    answered(window, "How many", "length")
    assert window.text("#status").startswith("The answer was cut, it is too long. Nothing to")
    window.run("window.fetch = () => Promise.reject(new TypeError())")
    window.click("[data-tool=friendly]")
    window.until("document.querySelector('#status.error')")
    assert window.text("#status").startswith("The server does not answer.")
    assert window.messages() == []


def test_everything_has_a_name_and_nothing_is_wider_than_a_phone(page):
    page.run("document.querySelector('.more').open = true")
    names = page.run("return [...document.querySelectorAll('button')].map((one) => one.innerText)")
    assert {"Proofread", "Key points", "SQL", "Describe", "All at once"} < set(names)
    assert page.run("return document.querySelector('#text').labels[0].textContent") == "Your text"
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.ask("goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)
    assert page.run("return document.documentElement.scrollWidth") <= 360
    page.ask("goog/cdp/execute", cmd="Emulation.clearDeviceMetricsOverride", params={})


CASES = json.loads((Path(__file__).parents[1] / "corrections.json").read_text())
GRAMMAR = {"needs": "need", "recieve": "receive", "teh": "the", "friday": "Friday", "": "the "}
GRAMMAR |= {"i has": "I have", "team meet": "team meets,"}
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


def test_the_page_takes_nothing_from_elsewhere(address):
    for path in PAGE.iterdir():
        name = path.name.replace("index.html", "")
        with urllib.request.urlopen(f"{address}/{name}", timeout=10) as reply:
            text = reply.read().decode().replace("http://www.w3.org/2000/svg", "")
        assert reply.headers["content-security-policy"].startswith("default-src 'self';")
        assert "access-control-allow-origin" not in reply.headers
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|style=", text), path
