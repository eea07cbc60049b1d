// How a text was written: its tokens in the colour of who drafted them, and the figures.

import { element } from "./elements.js";

const WHO = { streams: "streams", lookup: "lookup", null: "model" };

// One step's tokens, as a group.
export function stepElement(step) {
  const said = step.tokens.length === 1 ? "1 token" : `${step.tokens.length} tokens in one step`;
  const made = element("span", { className: "step", title: said });
  for (const token of step.tokens) {
    made.append(element("span", { className: WHO[token.drafted_by], textContent: token.text }));
  }
  return made;
}

export class Panel {
  constructor(place) {
    for (const name of ["tokens", "length", "rate", "streams", "lookup", "model", "seen"]) {
      this[name] = place.querySelector(`[data-figure=${name}]`);
    }
    this.clear();
  }

  clear() {
    this.tokens.replaceChildren();
    this.seen.textContent = "";
    for (const name of ["length", "rate", "streams", "lookup", "model"]) this[name].textContent = "–";
  }

  // Show a work, of which more may have come since the last time.
  update({ records, whole }) {
    for (const [number, { steps }] of records.entries()) {
      const place = this.tokens.children[number] ?? this.tokens.appendChild(element("span"));
      for (const step of steps.slice(place.childElementCount)) place.append(stepElement(step));
    }
    this.showFigures(whole);
  }

  showFigures(record) {
    if (!record.steps.length) return;
    this.length.textContent = record.acceptedLength.toFixed(2);
    this.rate.textContent = record.rate === null ? "–" : record.rate.toFixed(1);
    for (const who of ["streams", "lookup"]) this[who].textContent = record.from(who);
    this.model.textContent = record.from(null);
    this.seen.textContent = record.seen ? `${record.seen}.` : "";
  }
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

// What base and adapters take, in one sentence.
export function memoryOf(models) {
  const adapters = models.map((model) => model.specstream.adapter_bytes).filter(Boolean);
  const total = adapters.reduce((sum, bytes) => sum + bytes, 0);
  const base = megabytes(models[0].specstream.base_bytes);
  return `In memory: one base of ${base}, and ${adapters.length} adapters of ${megabytes(total)} in all.`;
}
