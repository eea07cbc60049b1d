// One tool's work on a text: what is written of each of its parts.

import { applied } from "./diff.js";
import { BY_PARAGRAPH, pattern } from "./english.js";
import { partsOf } from "./parts.js";
import { Record } from "./record.js";

const [GREETING, POINT, POINT_END] = ["greeting", "point", "point_end"].map((name) => pattern(name));

export class Work {
  // With an `instruction` the base does the work. Throws an Error with one sentence.
  constructor(tool, before, instruction = "") {
    [this.tool, this.before] = [tool, before];
    this.parts = partsOf(before, tool).map((part) => ({ ...part, record: new Record() }));
    this.whole = new Record(); // all steps, in the order in which they came
    // Friendly takes a request for one to itself, unless it sees that it is a letter's.
    this.greeting = tool === "friendly" ? (before.match(GREETING)?.[1] ?? "") : "";
    const model = instruction ? "base" : `base:${tool}`;
    this.chats = this.parts.map(({ start, end }) => {
      const text = before.slice(start, end);
      const front = instruction || (start && this.greeting);
      return { model, text: front ? `${front}\n\n${text}` : text };
    });
  }

  // Take in a `piece` of what is written of a part.
  add(number, piece) {
    this.parts[number].record.add(piece);
    this.whole.add(piece);
  }

  // What is written of a part, without the greeting that was lent to it.
  said({ start, record }) {
    const text = record.text.trim();
    const [own, lent] = [text.toLowerCase(), start ? this.greeting.toLowerCase() : ""];
    if (!lent || !own.startsWith(lent.slice(0, own.length))) return text;
    const rest = text.slice(lent.length).trim();
    return rest.slice(0, 1).toUpperCase() + rest.slice(1);
  }

  get records() {
    return this.parts.map(({ record }) => record);
  }

  get isBegun() {
    return this.records.some((record) => record.text || record.reason);
  }

  get ended() {
    return this.records.filter((record) => record.reason).length;
  }

  get isComplete() {
    return this.ended === this.parts.length;
  }

  get isCut() {
    return this.records.some((record) => record.reason === "length");
  }

  // The points of a list, none twice.
  get points() {
    const said = this.records.map((record) => record.text).join("\n");
    const points = said.split(POINT).map((one) => one.trim().replace(POINT_END, ""));
    return [...new Set(points.filter(Boolean))];
  }

  // The result; parts that are not written yet are as they were.
  get text() {
    if (this.tool === "key_points") return this.points.map((one) => `- ${one}`).join("\n");
    if (!BY_PARAGRAPH.has(this.tool)) {
      return this.records.map((record) => record.text.trim()).filter(Boolean).join("\n\n");
    }
    return applied(this.before, this.parts.map((part) => {
      const { start, end } = part;
      return { start, end, text: this.said(part) || this.before.slice(start, end) };
    }));
  }
}
