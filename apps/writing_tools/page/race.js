// The same text written twice, with drafts and without, to be looked at side by side.

import { stepElement } from "./panel.js";
import { Record } from "./record.js";
import { written } from "./server.js";

let newest = 0; // the replay that goes on, all before it end

// Write with drafts and then without, each alone, so that neither takes time from the other.
// Returns both records and a sentence on them.
export async function race(chat, lanes, signal) {
  newest += 1;
  const records = [];
  for (const [number, draft] of [true, false].entries()) {
    lanes[number].replaceChildren();
    const record = new Record();
    for await (const piece of written([chat], signal, undefined, draft)) {
      record.add(piece);
      if (piece.step?.length) lanes[number].append(stepElement(record.steps.at(-1)));
    }
    records.push(record);
  }
  return { records, verdict: verdictOf(...records) };
}

function verdictOf(drafted, plain) {
  const [a, b] = [drafted.tokens, plain.tokens];
  const isSame = a.length === b.length && a.every((token, i) => token.id === b[i].id);
  const same = isSame ? `The same text, token for token (${a.length} tokens)` : "The texts differ";
  const [fast, slow] = [drafted.rate, plain.rate];
  if (fast === null || slow === null) return `${same}.`;
  const rates = `${fast.toFixed(1)} tokens/s with drafts, ${slow.toFixed(1)} without`;
  return `${same}: ${rates}, ${(fast / slow).toFixed(2)} times as fast.`;
}

// Show both again from their first steps on, as fast as they were written.
export function replay(records, lanes) {
  const own = (newest += 1);
  const start = performance.now();
  for (const lane of lanes) lane.replaceChildren();
  const show = () => {
    if (own !== newest) return;
    const seconds = (performance.now() - start) / 1000;
    let isOver = true;
    for (const [number, { steps }] of records.entries()) {
      const due = steps.filter((step) => step.seconds - steps[0].seconds <= seconds);
      for (const step of due.slice(lanes[number].childElementCount)) {
        lanes[number].append(stepElement(step));
      }
      isOver &&= due.length === steps.length;
    }
    if (!isOver) requestAnimationFrame(show);
  };
  show();
}
