// A text in parts, which are worked on side by side: what is between them stays as it is.

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
// below them and other lines of a few words stay.
function paragraphs(text, written) {
  const found = [];
  let isSigned = false; // whether a closing was above
  for (const { index, 0: line } of text.matchAll(/.*\S.*/g)) {
    const front = line.match(ITEM)[0];
    const piece = trimmed(text, index + front.length, index + line.length);
    const last = found.at(-1);
    const isNext = last && index === last.stop + 1 && !/[.!?:]\s*$/.test(text.slice(0, index));
    const isWrapped = isNext && !front.trim() && last.width >= WIDE;
    if (isWrapped) [last.end, last.stop, last.width] = [piece.end, index + line.length, line.length];
    else found.push({ ...piece, stop: index + line.length, width: line.length, isItem: front.trim() !== "" });
  }
  const parts = found.filter(({ start, end }) => /\p{L}/u.test(text.slice(start, end)));
  if (!written || parts.length === 1) return parts;
  return parts.filter(({ start, end, isItem }) => {
    const said = text.slice(start, end);
    const count = said.split(/\s+/).length;
    const isClosing = CLOSING.test(said) && count <= 6;
    const isShort = count <= 8 && (isItem || isSigned || /[,:]$/.test(said)) && !/[.!?]$/.test(said);
    const stays = count <= 3 || isClosing || isShort;
    isSigned ||= isClosing;
    return !stays;
  });
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

const FORMS = {
  sql: [/\w\s*\([^()]+\)[^:]*:\s*\S/, "a table and a question", "table singers(name, age, city): who is from Lima?"],
  describe: [/\w\s*\[[^[\]]+\]/, "fields with their values", "name[Boston Museum], ticket[16 euros], fame[high]"],
};

// What is wrong with the form of a text for a tool, in a sentence; null: nothing.
export function wrongForm(text, tool) {
  const [form, needs, example] = FORMS[tool] ?? [/(?:)/];
  const name = { sql: "SQL", describe: "Describe" }[tool];
  if (!form.test(text)) return `${name} needs ${needs}, such as “${example}”.`;
  if (name && text.length > WHOLE / 2) return `${name} takes ${WHOLE / 2} characters at most.`;
  return null;
}
