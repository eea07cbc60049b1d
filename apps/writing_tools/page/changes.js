// A text with its corrections in it, each to be taken or left.

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
    this.newest = ["", false];
    this.taken = new Map(); // by key: true, or false where it is left; undecided ones are not here
    this.pieces = []; // {key, node}: what is shown, in order
    place.replaceChildren();
  }

  // Show the corrections of `after`, which is still being written unless it is `complete`.
  update(after, complete) {
    this.newest = [after, complete];
    const { changes, read } = difference(this.before, after, complete);
    for (const change of changes) change.meaning = meaningOf(this.before, change);
    this.changes = this.grammarOnly
      ? changes.filter(({ start, end, text }) => isGrammar(this.before.slice(start, end), text))
      : changes;
    this.leftOut = changes.length - this.changes.length;
    const wanted = [];
    let place = 0;
    for (const change of this.changes) {
      wanted.push(this.untouched(place, change.start));
      wanted.push({ key: keyOf(change), make: () => this.chip(change) });
      place = change.end;
    }
    wanted.push(this.untouched(place, read), this.untouched(read, this.before.length, "unread"));
    // What is there already stays, with the focus that may be in it.
    let same = 0;
    while (same < wanted.length && this.pieces[same]?.key === wanted[same].key) same += 1;
    for (const { node } of this.pieces.splice(same)) node.remove();
    for (const { key, make } of wanted.slice(same)) {
      const node = make();
      this.place.append(node);
      this.pieces.push({ key, node });
    }
  }

  // Leave changes out that put other words, or show them again.
  showGrammarOnly(grammarOnly) {
    this.grammarOnly = grammarOnly;
    this.update(...this.newest);
    this.onDecision();
  }

  // The text with the changes that were taken.
  get text() {
    return applied(this.before, this.changes.filter((one) => this.taken.get(keyOf(one))));
  }

  count(decision) {
    return this.changes.filter((one) => this.taken.get(keyOf(one)) === decision).length;
  }

  // Changes of what the text says are taken by hand alone.
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
      key: `${start} ${end} untouched ${className}`,
      make: () => element("span", { className, textContent }),
    };
  }

  chip(change) {
    const [before, after] = [this.before.slice(change.start, change.end), change.text];
    const warning = change.meaning ? `, which changes ${change.meaning}` : "";
    const said = sentenceOf(before.trim(), after.trim()) + warning;
    const key = keyOf(change);
    const chip = element("span", { className: "change", role: "group", ariaLabel: said });
    if (change.meaning) {
      const textContent = `check: ${change.meaning}`;
      chip.append(element("span", { className: "meaning", textContent }));
    }
    if (before) chip.append(element("del", { textContent: before }));
    if (after) chip.append(element("ins", { textContent: after }));
    const buttons = chip.appendChild(element("span", { className: "buttons" }));
    for (const [sign, word, isTaken] of [["✓", "Take", true], ["✕", "Leave", false]]) {
      const button = element("button", {
        type: "button", textContent: sign, className: word.toLowerCase(),
        title: `${word}: ${said}`, ariaLabel: `${word}: ${said}`,
      });
      button.addEventListener("click", () => {
        if (this.taken.get(key) === isTaken) this.taken.delete(key);
        else this.taken.set(key, isTaken);
        this.mark(key, chip);
        this.onDecision();
      });
      buttons.append(button);
    }
    this.mark(key, chip);
    return chip;
  }

  mark(key, chip) {
    const isTaken = this.taken.get(key);
    chip.dataset.decision = isTaken === undefined ? "open" : isTaken ? "taken" : "left";
    chip.querySelector(".take").ariaPressed = isTaken === true;
    chip.querySelector(".leave").ariaPressed = isTaken === false;
  }
}

const keyOf = ({ start, end, text }) => `${start} ${end} ${text}`;

function sentenceOf(before, after) {
  if (!before && !after) return "change the space";
  if (!before) return `add “${after}”`;
  return after ? `“${before}” becomes “${after}”` : `remove “${before}”`;
}
