// The page: what its buttons do.

import { Changes } from "./changes.js";
import { element } from "./elements.js";
import { figuresOf, memoryOf, Panel, stepElement } from "./panel.js";
import { race, replay } from "./race.js";
import { Record } from "./record.js";
import { models, written } from "./server.js";

const at = (id) => document.getElementById(id);
const [text, output, status] = [at("text"), at("output"), at("status")];
const toolButtons = [...document.querySelectorAll("[data-tool]")];
const panel = new Panel(at("panel"));

const EXAMPLE = `hi ana,

can you send me the sales report for march? we needs it on friday, and i has not seen it yet.

thanks, ben`;

let running = null; // the AbortController of what is being written
let repeat = () => apply("proofread"); // what Ctrl+Enter does
let result = null; // () => the text that Replace and Copy take
let isComplete = false; // whether nothing of the result is missing
let changes = null; // of proofreading
let source = null; // {value, start, end}: the text, and which part of it the result is of
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

// The text, or what of it is selected, if there is any; else the user is told.
function given() {
  const { value, selectionStart, selectionEnd } = text;
  const isPart = value.slice(selectionStart, selectionEnd).trim() !== "";
  const [start, end] = isPart ? [selectionStart, selectionEnd] : [0, value.length];
  if (value.trim()) {
    source = { value, start, end };
    return value.slice(start, end);
  }
  status.classList.remove("error");
  status.textContent = "Write or paste a text first.";
  text.focus();
  return null;
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
  panel.clear();
  [at("lanes").hidden, at("replay").hidden] = [true, true]; // the race was another answer's
  at("verdict").textContent = "";
  result = changes = null;
  showActions();
}

function showActions() {
  for (const id of ["take-all", "leave-all"]) at(id).hidden = !changes?.changes.length;
  at("grammar").hidden = !changes;
  at("copy").disabled = !result;
  const isOld = source !== null && text.value !== source.value;
  const isEmpty = !result || (changes !== null && !changes.count(true));
  at("replace").disabled = isEmpty || !isComplete || isOld;
  at("replace").title = isOld ? "Your text has changed since: use the tool again." : "";
}

// One tool ------------------------------------------------------------------------------------

function apply(tool) {
  const before = given();
  if (before === null) return;
  repeat = () => apply(tool);
  begin(nameOf(tool));
  const record = new Record();
  const show = tool === "proofread" ? showChanges(before) : showText();
  run(async (signal) => {
    for await (const piece of written([`base:${tool}`], before, signal, reading)) {
      record.add(piece);
      show(record);
      panel.update(record);
    }
    const cut = record.reason === "length" ? "The answer was cut, it is too long. " : "";
    return `${cut}${show(record)}${figuresOf(record)}`;
  });
}

// These show a record as it grows, and return what there is to say of it.

function showText() {
  const shown = output.appendChild(element("span", { className: "written" }));
  return (record) => {
    shown.textContent = record.text.trimStart();
    result = () => record.text.trim();
    showActions();
    return "";
  };
}

function showChanges(before) {
  const told = () => {
    const [all, taken, left] = [own.changes.length, own.count(true), own.count(false)];
    const others = own.leftOut ? `${own.leftOut} with other words left out. ` : "";
    if (!all) return `Nothing to correct. ${others}`;
    const open = all - taken - left;
    const check = own.toCheck ? `${own.toCheck} change what the text says: check them. ` : "";
    const counts = `${taken} taken, ${left} left, ${open} open`;
    return `${all} ${all === 1 ? "change" : "changes"}: ${counts}. ${check}${others}`;
  };
  const own = new Changes(output, before, at("grammar-only").checked, () => {
    if (!running) status.textContent = told();
    showActions();
  });
  changes = own;
  result = () => own.text;
  return (record) => {
    own.update(record.text, record.reason === "stop");
    showActions();
    return told();
  };
}

// All tools -----------------------------------------------------------------------------------

function applyAll() {
  const before = given();
  if (before === null) return;
  repeat = applyAll;
  begin("All at once");
  const tools = toolButtons.filter((button) => !button.closest(".more"));
  const cards = tools.map((button) => {
    const record = new Record();
    const shown = element("p", { className: "answer tokens" });
    const note = element("p", { className: "note", textContent: "Waiting…" });
    const copy = element("button", { type: "button", className: "quiet", textContent: "Copy" });
    copy.ariaLabel = `Copy: ${button.textContent}`;
    copy.addEventListener("click", () => copied(record.text.trim(), copy));
    const head = element("div", { className: "head" }, element("h3", { textContent: button.textContent }), copy);
    at("cards").append(element("article", { className: "card" }, head, shown, note));
    return { record, shown, note };
  });
  const whole = new Record(); // the steps of all, in the order in which they came
  run(async (signal) => {
    const names = tools.map((one) => `base:${one.dataset.tool}`);
    for await (const piece of written(names, before, signal, reading)) {
      const { record, shown, note } = cards[piece.number];
      record.add(piece);
      whole.add(piece);
      if (piece.step?.length) shown.append(stepElement(record.steps.at(-1)));
      note.textContent = figuresOf(record);
      panel.showFigures(whole);
    }
    return `${cards.length} answers. ${figuresOf(whole)}`;
  });
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
  setText(value.slice(0, start) + result() + value.slice(end));
  begin("Result");
  status.textContent = "Your text is replaced. Undo brings the old one back.";
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
  const before = given();
  if (before === null) return;
  const pressed = toolButtons.find((one) => one.ariaPressed === "true");
  const model = `base:${(pressed ?? toolButtons[0]).dataset.tool}`;
  const lanes = at("lanes").querySelectorAll(".tokens");
  at("lanes").hidden = false;
  at("replay").hidden = true;
  at("verdict").textContent = "First with drafts, then without…";
  run(async (signal) => {
    let said = "";
    try {
      const { records, verdict } = await race(model, before, lanes, signal);
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
at("example").addEventListener("click", () => setText(EXAMPLE));
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
  (found) => (at("memory").textContent = memoryOf(found)),
  (error) => (status.textContent = error.message),
);
