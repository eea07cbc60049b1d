// A text in parts, which are worked on side by side: what is between them stays as it is.
//
// parts.py does the same by the same patterns (english.json), and both have the same tests.

import { BY_PARAGRAPH, CUTS, LIMITS, pattern } from "./english.js";

const MOST = 64; // parts
const [ITEM, CLOSING, LINE] = [pattern("item"), pattern("closing"), pattern("line", "g")];
const [SENTENCE_END, LINE_END] = [pattern("sentence_end"), pattern("paragraph_line_end")];
const LEAD_END = pattern("lead_end");

// The parts [{start, end}, ..] of a text that a tool is given. Throws an Error with one sentence.
export function partsOf(text, tool) {
  const own = BY_PARAGRAPH.has(tool) ? paragraphs(text, tool !== "proofread") : [];
  const pieces = own.length ? own : [trimmed(text, 0, text.length)];
  const most = own.length ? LIMITS.sentences_bytes : LIMITS.whole_bytes;
  const parts = pieces.flatMap((piece) => cut(text, piece, most));
  if (parts.length <= MOST) return parts;
  const fits = Math.floor((text.length * MOST) / parts.length / 1000) * 1000;
  const [long, short] = [text.length, fits].map((n) => n.toLocaleString("en"));
  throw new Error(`Your text has ${long} characters, too many at once. Select a part of it, of ${short} at most.`);
}

// Paragraphs and the items of lists. Where they are `written` anew, greetings, closings with what is
// below them and, unless there is nothing else, other lines of a few words stay.
function paragraphs(text, written) {
  const found = [];
  for (const lines of blocks(text)) {
    const fronts = lines.map(({ line }) => line.match(ITEM)[0]);
    const widest = Math.max(...lines.map(({ said }) => said.length));
    // May a line go on in the next one?
    const ons = lines.slice(1).map((_, i) => {
      const { said } = lines[i];
      return said.length >= LIMITS.line_characters && !LINE_END.test(said) && !fronts[i + 1].trim();
    });
    // Where the next word had room, somebody has broken the lines by hand.
    const fits = (i) => lines[i].said.length + 1 + lines[i + 1].said.match(/\S+/)[0].length <= widest;
    const isByHand = ons.some((on, i) => on && fits(i));
    for (const [i, { start, line }] of lines.entries()) {
      const piece = trimmed(text, start + fronts[i].length, start + line.length);
      if (ons[i - 1] && !isByHand) found.at(-1).end = piece.end;
      else found.push({ ...piece, isItem: fronts[i].trim() !== "" });
    }
  }
  let isSigned = false; // whether a closing was above
  const parts = found.filter(({ start, end }) => /\p{L}/u.test(text.slice(start, end)));
  if (!written || parts.length === 1) return parts;
  const [sentences, others] = [[], []];
  for (const part of parts) {
    const said = text.slice(part.start, part.end);
    const count = said.split(/\s+/).length;
    const isClosing = CLOSING.test(said) && count <= LIMITS.closing_words;
    const leads = isClosing || isSigned || LEAD_END.test(said);
    const isShort = count <= LIMITS.lead_words && (part.isItem || leads) && !SENTENCE_END.test(said);
    isSigned ||= isClosing;
    if (count > LIMITS.few_words && !isClosing && !isShort) sentences.push(part);
    if (!leads) others.push(part);
  }
  return [sentences, others].find((found) => found.length) ?? parts;
}

// The lines [{start, line, said}, ..] with something in them, by the empty lines between.
function blocks(text) {
  const found = [];
  let stop = -2;
  for (const { index: start, 0: line } of text.matchAll(LINE)) {
    if (start !== stop + 1) found.push([]);
    found.at(-1).push({ start, line, said: line.trimEnd() });
    stop = start + line.length;
  }
  return found;
}

function trimmed(text, start, end) {
  const said = text.slice(start, end);
  return { start: end - said.trimStart().length, end: start + said.trimEnd().length };
}

// A part as parts of `most` bytes at most: of whole paragraphs, else sentences, else words.
function cut(text, { start, end, isItem }, most) {
  const parts = [];
  const room = new Uint8Array(most);
  while (start < end) {
    const rest = text.slice(start, end);
    const { read } = new TextEncoder().encodeInto(rest, room);
    let size = read;
    if (read < rest.length) {
      const said = rest.slice(0, read);
      size = CUTS.map((kind) => said.match(kind)?.[0].length).find((n) => n > read / 4) ?? read;
    }
    parts.push({ ...trimmed(text, start, start + size), isItem });
    start += size;
  }
  return parts.filter((part) => part.start < part.end);
}

// What is wrong with the form of a text for a tool as the server describes it, in a sentence; null:
// nothing.
export function wrongForm(text, name, tool) {
  if (!tool?.form) return null;
  const takes = `${name} takes ${tool.takes}, such as “${tool.example}”.`;
  if (!new RegExp(tool.pattern, "is").test(text)) return takes;
  return text.length > LIMITS.whole_bytes / 2 ? `${name} takes ${LIMITS.whole_bytes / 2} characters at most.` : null;
}
