// The page: what its buttons do.

import { showAbout } from "./about.js";
import { Changes } from "./changes.js";
import { element } from "./elements.js";
import { BY_PARAGRAPH } from "./english.js";
import { memoryOf, Panel } from "./panel.js";
import { wrongForm } from "./parts.js";
import { race, replay } from "./race.js";
import { Record } from "./record.js";
import { models, written } from "./server.js";
import { Work } from "./work.js";

const at = (id) => document.getElementById(id);
const [text, output, status] = [at("text"), at("output"), at("status")];
const toolButtons = [...document.querySelectorAll("[data-tool]")];
const panel = new Panel(at("panel"));

let running = null; // the AbortController of what is being written
let repeat = () => apply("proofread"); // what Ctrl+Enter does
let result = null; // () => the text that Replace and Copy take
let isComplete = false; // whether nothing of the result is missing
let changes = null; // of proofreading
let source = null; // {value, start, end}: the text, and which part of it the result is of
let known = new Map(); // by name: what the server says of a tool
let raced = null; // {records, lanes} that can be replayed
const before = []; // texts that Undo brings back

const nameOf = (tool) => toolButtons.find((one) => one.dataset.tool === tool).textContent;

// Do `work(signal)` in the place of whatever is running, and say how it ended.
async function run(work) {
  running?.abort();
  const own = (running = new AbortController());
  isComplete = false;
  at("stop").hidden = false;
  document.body.dataset.state = "writing";
  status.classList.remove("error");
  status.textContent = "Writing…";
  try {
    const said = await work(own.signal);
    if (running === own) [status.textContent, isComplete] = [said, true];
  } catch (error) {
    if (running !== own) return;
    status.classList.toggle("error", error.name !== "AbortError");
    status.textContent = error.name === "AbortError" ? "Stopped." : error.message;
  } finally {
    if (running === own) {
      running = null;
      at("stop").hidden = true;
      document.body.dataset.state = "";
      showActions();
    }
  }
}

function reading(share) {
  status.textContent = share < 1 ? `Reading your text, ${Math.round(100 * share)}%…` : "Writing…";
}

function tell(sentence, isError) {
  status.classList.toggle("error", isError);
  status.textContent = sentence;
  return null;
}

// The work of a tool on the text, or on what of it is selected; null: the user is told why not.
function workOf(tool, instruction) {
  const { value, selectionStart, selectionEnd } = text;
  const isPart = value.slice(selectionStart, selectionEnd).trim() !== "";
  const [start, end] = isPart ? [selectionStart, selectionEnd] : [0, value.length];
  if (!value.trim()) {
    text.focus();
    return tell("Write or paste a text first.", false);
  }
  const before = value.slice(start, end);
  const wrong = tool && wrongForm(before, nameOf(tool), known.get(tool));
  if (wrong) return tell(wrong, true);
  try {
    return Object.assign(new Work(tool, before, instruction), { source: { value, start, end } });
  } catch (error) {
    return tell(error.message, true);
  }
}

function begin(title) {
  at("result-title").textContent = title;
  for (const button of toolButtons) button.ariaPressed = nameOf(button.dataset.tool) === title;
  const isAll = title === "All at once";
  at("all").ariaPressed = isAll;
  document.querySelector(".more").open = false;
  document.body.dataset.view = isAll ? "all" : "";
  [at("cards").hidden, output.hidden] = [!isAll, isAll];
  for (const id of ["replace", "copy"]) at(id).hidden = isAll;
  at("cards").replaceChildren();
  output.replaceChildren();
  showOriginal(false);
  panel.clear();
  [at("lanes").hidden, at("replay").hidden] = [true, true]; // the race was another answer's
  at("verdict").textContent = "";
  result = changes = null;
  showActions();
  // On a phone the answer would begin below what is in sight.
  const place = at("result");
  if (place.getBoundingClientRect().top > 0.7 * innerHeight) place.scrollIntoView();
}

function showOriginal(isShown) {
  at("original").ariaPressed = isShown;
  output.classList.toggle("original", isShown);
}

function showActions() {
  for (const id of ["take-all", "leave-all"]) at(id).hidden = !changes?.changes.length;
  if (!changes) at("original").hidden = true;
  at("grammar").hidden = !changes;
  at("copy").disabled = !result;
  const isOld = source !== null && text.value !== source.value;
  const isEmpty = !result || (changes !== null && !changes.count(true));
  at("replace").disabled = isEmpty || !isComplete || isOld;
  const isUntaken = isComplete && result && isEmpty;
  const why = isOld ? "Your text has changed since: use the tool again." : "Take a change first.";
  at("replace").title = isOld || isUntaken ? why : "";
}

// One tool ------------------------------------------------------------------------------------

function apply(tool, title = nameOf(tool), instruction = "") {
  const work = workOf(tool, instruction);
  if (!work) return;
  repeat = () => apply(tool, title, instruction);
  begin(title);
  source = work.source;
  const show = shown(work, output, () => {
    if (!running) status.textContent = show();
    showActions();
  });
  changes = show.changes ?? null;
  at("original").hidden = !changes;
  run(async (signal) => {
    show();
    for await (const { number, ...piece } of written(work.chats, signal, reading)) {
      work.add(number, piece);
      show();
      result = () => show.changes?.text ?? work.text;
      showActions();
      panel.update(work);
      const all = work.parts.length;
      if (all > 1) status.textContent = `Writing… ${work.ended} of ${all} parts are done.`;
    }
    return (work.isCut ? "The answer was cut, it is too long. " : "") + show();
  });
}

// What the user says in words of their own, the base does alone.
function ask() {
  const instruction = at("instruction").value.trim();
  if (instruction) apply(null, "Your own words", instruction);
  else at("instruction").focus();
}

// A function that shows a work as it grows, and returns what there is to say of it.
function shown(work, place, onDecision) {
  if (work.tool === "proofread") return showChanges(work, place, onDecision);
  if (work.tool === "key_points") return () => {
    const points = work.points.map((textContent) => element("li", { textContent }));
    place.replaceChildren(...(points.length ? [element("ul", {}, ...points)] : []));
    return "";
  };
  return () => {
    place.replaceChildren();
    let end = 0;
    const add = (textContent, className = "") => textContent && place.append(element("span", { className, textContent }));
    for (const part of BY_PARAGRAPH.has(work.tool) ? work.parts : []) {
      add(work.before.slice(end, part.start));
      const said = work.said(part);
      add(said || work.before.slice(part.start, part.end), said || part.record.reason ? "written" : "unread");
      end = part.end;
    }
    if (end) add(work.before.slice(end));
    else add(work.text, "written");
    return "";
  };
}

function showChanges(work, place, onDecision) {
  const own = new Changes(place, work.before, at("grammar-only").checked, onDecision);
  const show = () => {
    own.update(work.parts);
    const [all, taken, left] = [own.changes.length, own.count(true), own.count(false)];
    const others = own.leftOut ? `${own.leftOut} with other words left out. ` : "";
    if (!all) return `Nothing to correct. ${others}`;
    const open = all - taken - left;
    const check = own.toCheck ? `${own.toCheck} change what the text says: check them. ` : "";
    const counts = `${taken} taken, ${left} left, ${open} open`;
    return `${all} ${all === 1 ? "change" : "changes"}: ${counts}. ${check}${others}`;
  };
  return Object.assign(show, { changes: own });
}

// All tools -----------------------------------------------------------------------------------

function applyAll() {
  const tools = toolButtons.filter((button) => !button.closest(".more"));
  const works = tools.map((button) => workOf(button.dataset.tool));
  if (works.includes(null)) return;
  repeat = applyAll;
  begin("All at once");
  source = works[0].source;
  const cards = works.map((work, number) => cardOf(work, tools[number].textContent));
  const [records, whole] = [works.flatMap((one) => one.records), new Record()];
  const chats = cards.flatMap(({ work }, card) => work.chats.map((chat, number) => ({ ...chat, card, number })));
  run(async (signal) => {
    try {
      for await (const { number: chat, ...piece } of written(chats, signal, reading)) {
        const { card, number } = chats[chat];
        cards[card].work.add(number, piece);
        cards[card].update();
        whole.add(piece);
        panel.update({ records, whole });
      }
    } finally {
      for (const card of cards) card.update(true);
    }
    return `${cards.length} answers.`;
  });
}

function cardOf(work, name) {
  const place = element("div", { className: "answer" });
  const note = element("p", { className: "note", textContent: "Waiting…" });
  const update = (isOver) => {
    const said = show();
    const all = work.parts.length;
    const share = all > 1 ? ` ${work.ended} of ${all} parts are done.` : "";
    const how = isOver ? "Not complete." : work.isBegun ? "Writing…" : "Waiting…";
    note.textContent = work.isComplete ? said || "Done." : `${how}${share}`;
  };
  const show = shown(work, place, () => update());
  update();
  const button = (textContent, act) => {
    const made = element("button", { type: "button", className: "quiet", textContent });
    made.ariaLabel = `${textContent}: ${name}`;
    made.addEventListener("click", () => act(made));
    return made;
  };
  const buttons = [button("Copy", (made) => copied((show.changes ?? work).text.trim(), made))];
  if (show.changes) buttons.unshift(button("Take all", () => show.changes.decideAll(true)));
  const head = element("div", { className: "head" }, element("h3", { textContent: name }), ...buttons);
  at("cards").append(element("article", { className: "card" }, head, place, note));
  return { work, update };
}

// The text itself -----------------------------------------------------------------------------

const KEPT = "specstream writing tools";

// The text stays in this browser, for a page that is loaded again.
function keep() {
  try {
    localStorage.setItem(KEPT, text.value);
  } catch {
    // not every browser lets pages keep anything
  }
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

function setText(value) {
  before.push(text.value);
  at("undo").disabled = false;
  text.value = value;
  keep();
  showActions();
}

// Put the result in the place of what it was made of, and close it.
function replace() {
  const { value, start, end } = source;
  const made = changes ? `, with ${changes.count(true)} of ${changes.changes.length} changes` : "";
  setText(value.slice(0, start) + result() + value.slice(end));
  begin("Result");
  status.textContent = `Your text is replaced${made}. Undo brings the old one back.`;
}

function undo() {
  text.value = before.pop() ?? text.value;
  at("undo").disabled = !before.length;
  keep();
  showActions();
  text.focus();
}

async function copied(value, button) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(value);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = name), 1500);
}

// The race ------------------------------------------------------------------------------------

function startRace() {
  const pressed = toolButtons.find((one) => one.ariaPressed === "true") ?? toolButtons[0];
  const work = workOf(null); // of a long text its first part
  if (!work) return;
  const chat = { ...work.chats[0], model: `base:${pressed.dataset.tool}` };
  const lanes = at("lanes").querySelectorAll(".tokens");
  at("lanes").hidden = false;
  at("replay").hidden = true;
  at("verdict").textContent = "First with drafts, then without…";
  run(async (signal) => {
    let said = "";
    try {
      const { records, verdict } = await race(chat, lanes, signal);
      [raced, said] = [{ records, lanes }, verdict];
      at("replay").hidden = false;
      replay(records, lanes);
    } finally {
      at("verdict").textContent = said;
    }
    return "";
  });
}

for (const button of toolButtons) button.addEventListener("click", () => apply(button.dataset.tool));
at("all").addEventListener("click", applyAll);
at("ask").addEventListener("click", ask);
at("instruction").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) ask();
});
at("original").addEventListener("click", () => showOriginal(at("original").ariaPressed !== "true"));
at("stop").addEventListener("click", () => running?.abort());
at("take-all").addEventListener("click", () => changes.decideAll(true));
at("leave-all").addEventListener("click", () => changes.decideAll(false));
at("grammar-only").addEventListener("change", (event) => changes?.showGrammarOnly(event.target.checked));
at("replace").addEventListener("click", replace);
text.addEventListener("input", () => {
  keep();
  showActions();
});
at("copy").addEventListener("click", () => copied(result(), at("copy")));
at("undo").addEventListener("click", undo);
at("example").addEventListener("click", () => setText(known.get("proofread")?.example ?? text.value));
at("race").addEventListener("click", startRace);
at("replay").addEventListener("click", () => replay(raced.records, raced.lanes));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    repeat();
  } else if (event.key === "Escape") {
    running?.abort();
    document.querySelector(".more").open = false;
  }
});
text.value = kept();
models().then(
  (found) => {
    known = new Map(found.map((one) => [one.id.replace("base:", ""), one.specstream.tool]));
    showAbout(known, toolButtons, at("about"));
    at("memory").textContent = memoryOf(found);
  },
  (error) => (status.textContent = error.message),
);
