// A text with its corrections in it: marked words, each to be taken or left.

import { applied, difference } from "./diff.js";
import { element } from "./elements.js";
import { isGrammar } from "./grammar.js";
import { meaningOf } from "./meaning.js";

export class Changes {
  // `onDecision` is called whenever a change was taken or left. With `grammarOnly`, changes that put
  // other words are left out.
  constructor(place, before, grammarOnly, onDecision) {
    [this.place, this.before, this.onDecision] = [place, before, onDecision];
    this.grammarOnly = grammarOnly;
    this.changes = [];
    this.leftOut = 0; // changes that are not shown
    this.newest = [];
    this.taken = new Map(); // by key: true, or false where it is left; undecided ones are not here
    this.pieces = []; // {key, node}: what is shown, in order
    place.replaceChildren();
  }

  // Show the corrections of `parts` [{start, end, record}, ..] of the text, which are still being
  // written until their records have a reason.
  update(parts) {
    this.newest = parts;
    const wanted = [];
    let [place, left] = [0, 0];
    this.changes = [];
    for (const { start, end, record, isItem } of parts) {
      const old = this.before.slice(start, end);
      const { changes, read } = difference(old, record.text, record.reason === "stop");
      for (const found of changes) {
        const change = { ...found, start: start + found.start, end: start + found.end };
        if (isItem && found.start === old.length && found.text === ".") continue; // as the others have none
        const isGone = !found.text.trim() && found.end - found.start === old.length;
        change.meaning = isGone ? "a line" : meaningOf(this.before, change);
        if (this.grammarOnly && !isGrammar(old.slice(found.start, found.end), found.text)) {
          left += 1;
          continue;
        }
        wanted.push(this.untouched(place, change.start));
        wanted.push({ key: keyOf(change), make: () => this.word(change) });
        this.changes.push(change);
        place = change.end;
      }
      wanted.push(this.untouched(place, start + read), this.untouched(start + read, end, "unread"));
      place = end;
    }
    wanted.push(this.untouched(place, this.before.length));
    this.leftOut = left;
    // What is there already stays, with the focus that may be in it.
    const nodes = new Map(this.pieces.map(({ key, node }) => [key, node]));
    this.pieces = wanted.filter(({ empty }) => !empty).map(({ key, make }) => {
      const node = nodes.get(key) ?? make();
      nodes.delete(key);
      return { key, node };
    });
    const shown = new Set(this.pieces.map(({ node }) => node));
    for (const node of [...this.place.childNodes]) if (!shown.has(node)) node.remove();
    let next = this.place.firstChild;
    for (const { node } of this.pieces) {
      if (node === next) next = next.nextSibling;
      else this.place.insertBefore(node, next);
    }
  }

  // Leave changes out that put other words, or show them again.
  showGrammarOnly(grammarOnly) {
    this.grammarOnly = grammarOnly;
    this.update(this.newest);
    this.onDecision();
  }

  // The text with the changes that were taken.
  get text() {
    return applied(this.before, this.changes.filter((one) => this.taken.get(keyOf(one))));
  }

  count(decision) {
    return this.changes.filter((one) => this.taken.get(keyOf(one)) === decision).length;
  }

  // Changes of what the text says are taken by hand alone; these are open.
  get toCheck() {
    return this.changes.filter((one) => one.meaning && !this.taken.has(keyOf(one))).length;
  }

  decideAll(isTaken) {
    for (const change of this.changes) {
      if (!isTaken || !change.meaning) this.taken.set(keyOf(change), isTaken);
    }
    for (const { key, node } of this.pieces) if (node.matches(".change")) this.mark(key, node);
    this.onDecision();
  }

  untouched(start, end, className = "") {
    const textContent = this.before.slice(start, end);
    return {
      empty: start >= end,
      key: `${start} ${end} untouched ${className}`,
      make: () => element("span", { className, textContent }),
    };
  }

  // A marked word, with its choices below it for whoever points at it, clicks it or comes to it by
  // keyboard.
  word(change) {
    const [old, text] = [this.before.slice(change.start, change.end), change.text];
    const said = sentenceOf(old.trim(), text.trim());
    const why = change.meaning ? `This changes ${change.meaning}. ` : "";
    const key = keyOf(change);
    const made = element("span", { className: "change" });
    const mark = element("span", { className: "mark", role: "button", tabIndex: 0, ariaLabel: `${said}. ${why}` });
    if (change.meaning) {
      const isGone = change.meaning === "a line" && !text.trim();
      const textContent = isGone ? "line removed" : `check: ${change.meaning}`;
      mark.append(element("span", { className: "meaning", textContent }));
    }
    if (old) mark.append(element("del", { textContent: old }));
    if (text) mark.append(element("ins", { textContent: text }));
    const decide = (isTaken) => {
      if (this.taken.get(key) === isTaken) this.taken.delete(key);
      else this.taken.set(key, isTaken);
      this.mark(key, made);
      this.onDecision();
    };
    const choices = element("span", { className: "choices", role: "group", ariaLabel: said });
    choices.append(element("span", { className: "said", textContent: `${why}${said}` }));
    for (const [word, isTaken] of [["Take", true], ["Leave", false]]) {
      const button = element("button", {
        type: "button", textContent: word, className: word.toLowerCase(), ariaLabel: `${word}: ${said}`,
      });
      button.addEventListener("click", () => decide(isTaken));
      choices.append(button);
    }
    made.append(mark, choices);
    for (const event of ["mouseenter", "focusin"]) made.addEventListener(event, () => put(choices, mark));
    mark.addEventListener("click", () => mark.focus());
    mark.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const isTaken = { Enter: true, " ": true, Delete: false, Backspace: false }[event.key];
      if (isTaken === undefined) return;
      event.preventDefault();
      decide(isTaken);
    });
    this.mark(key, made);
    return made;
  }

  mark(key, made) {
    const isTaken = this.taken.get(key);
    made.dataset.decision = isTaken === undefined ? "open" : isTaken ? "taken" : "left";
    made.querySelector(".take").ariaPressed = isTaken === true;
    made.querySelector(".leave").ariaPressed = isTaken === false;
  }
}

// Put choices below their mark, within the window.
function put(choices, mark) {
  const rows = mark.getClientRects();
  const [row, { width, height }] = [rows[rows.length - 1], choices.getBoundingClientRect()];
  const room = document.documentElement;
  const below = row.bottom + height <= room.clientHeight ? row.bottom : rows[0].top - height;
  choices.style.left = `${Math.max(4, Math.min(row.left, room.clientWidth - width - 4))}px`;
  choices.style.top = `${below}px`;
}

addEventListener("scroll", () => {
  for (const made of document.querySelectorAll(".change:is(:hover, :focus-within)")) {
    put(made.querySelector(".choices"), made.querySelector(".mark"));
  }
}, true);

const keyOf = ({ start, end, text }) => `${start} ${end} ${text}`;

function sentenceOf(before, after) {
  if (!before && !after) return "change the space";
  if (!before) return `add “${after}”`;
  return after ? `“${before}” becomes “${after}”` : `remove “${before}”`;
}
