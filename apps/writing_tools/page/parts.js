// A text in parts, which are worked on side by side: what is between them stays as it is.
//
// The rules are those of parts.py, and both have the same tests.

const SENTENCES = 600; // bytes of a part that is written anew: the tools learned from short messages
const WHOLE = 4000; // of one that is read as a whole; a token has a byte at least, so this always fits
const MOST = 64; // parts
const WIDE = 55; // characters of a line that goes on in the next one
export const BY_PARAGRAPH = new Set(["proofread", "friendly", "professional", "concise"]);

const ITEM = /^[\s>]*(?:(?:[-*•–+]|\d{1,3}[.)]|#{1,6})\s+)?(?:\[[ x]\]\s+)?/i; // what is in front of an item
const CLOSING =
  /^(?:(?:with|many|best|kind|warm|all|my)\s+)*(?:regards|wishes|greetings|greets|thanks|thank you|cheers|yours|love|sincerely|best)\b/i;

// The parts [{start, end}, ..] of a text that a tool is given. Throws an Error with one sentence.
export function partsOf(text, tool) {
  const own = BY_PARAGRAPH.has(tool) ? paragraphs(text, tool !== "proofread") : [];
  const pieces = own.length ? own : [trimmed(text, 0, text.length)];
  const most = own.length ? SENTENCES : WHOLE;
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
      return said.length >= WIDE && !/[.!?:]$/.test(said) && !fronts[i + 1].trim();
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
    const isClosing = CLOSING.test(said) && count <= 6;
    const leads = isClosing || isSigned || /[,:]$/.test(said);
    const isShort = count <= 8 && (part.isItem || leads) && !/[.!?]$/.test(said);
    isSigned ||= isClosing;
    if (count > 3 && !isClosing && !isShort) sentences.push(part);
    if (!leads) others.push(part);
  }
  return [sentences, others].find((found) => found.length) ?? parts;
}

// The lines [{start, line, said}, ..] with something in them, by the empty lines between.
function blocks(text) {
  const found = [];
  let stop = -2;
  for (const { index: start, 0: line } of text.matchAll(/.*\S.*/g)) {
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
      const kinds = [/[\s\S]*\n/, /[\s\S]*[.!?…]["'”’)]*\s/, /[\s\S]*\s/];
      size = kinds.map((kind) => said.match(kind)?.[0].length).find((n) => n > read / 4) ?? read;
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
  return text.length > WHOLE / 2 ? `${name} takes ${WHOLE / 2} characters at most.` : null;
}
