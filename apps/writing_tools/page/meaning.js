// Which corrections change what a text says: those are somebody's to take, one by one.
//
// corrections.py does the same by the same words (english.json), and both have the same tests.

import { WORD } from "./diff.js";
import { CONTRACTIONS, DATES, EXCHANGES, FORMS, LIMITS, pattern, words } from "./english.js";
import { DAYS, DIGIT, distance, isGrammar, plain, wordsOf } from "./grammar.js";

const [NUMBER, MONEY, ADDRESS] = ["number", "money", "address"].map((name) => pattern(name, "g"));
const [BEFORE_NUMBER, AFTER_NUMBER] = [pattern("before_number"), pattern("after_number")];
const [ADDRESSED, TITLE] = [pattern("addressed"), pattern("title")];
const [SENTENCE_START, SENTENCE_END] = [pattern("sentence_start"), pattern("sentence_end")];
const [NUMBERS, NEGATIONS, MODALS] = [words("numbers"), words("negations"), words("modals")];
const [NEAR_NEGATIONS, NO_NAMES] = [words("near_negations"), words("no_names")];
const VERBS = words("verbs_in_small_letters"); // such as "may"
const MOST_WORDS = LIMITS.words_more_or_less;

// What a change {start, end, text} of `before` changes besides spelling and grammar, such as
// "a number"; null: nothing.
export function meaningOf(before, { start, end, text }) {
  const was = before.slice(start, end);
  const [old, made] = [wordsOf(was), wordsOf(text)];
  if (losesLine(before, start, end, old, made)) return "a line";
  if (isInAddress(before, start, end) || differs(ADDRESS, was, text)) return "an address";
  if (changesNumber(before, start, end, text)) return "a number";
  if (old.length && old.join(" ") === made.join(" ")) return null;
  if (made.length - old.length > MOST_WORDS) return "words that were not there";
  if (old.length - made.length > MOST_WORDS) return "words that are gone";
  if (differs(MONEY, was, text)) return "an amount";
  const written = new Set([...wordsAsWritten(was), ...wordsAsWritten(text)]);
  for (const [name, dates] of DATES) {
    const known = dates.filter((date) => !(VERBS.has(date) && written.has(date)));
    const short = old.filter((word) => word.length > 2 && known.some((one) => one.startsWith(word)));
    const isMeant = (date) => !short.length && date.length > 4 && spells(old, date, known);
    const gone =
      short.some((word) => !made.some((one) => one.startsWith(word))) ||
      known.some((date) => isMeant(date) && !made.includes(date));
    if (gone || known.some((date) => made.includes(date) && !spells(old, date, known))) return name;
  }
  if (negations(old, made) !== negations(made, old)) return "a negation";
  if (changesName(before, start, end, made)) return "a name";
  if (signs(before, start) && (!isSpelling(old, made) || text.trim() === ".")) return "a signature";
  const says = exchanges(old, made) || changesModal(old, made);
  return says || !isGrammar(was, text) ? "a word" : null;
}

function changesNumber(before, start, end, text) {
  const [was, old, made] = [before.slice(start, end), ...[before.slice(start, end), text].map(wordsOf)];
  // What is written at the number, such as its other half, is part of it.
  const front = before.slice(0, start).match(BEFORE_NUMBER)[0];
  const rest = before.slice(end).match(AFTER_NUMBER)[0];
  if (differs(NUMBER, front + was + rest, front + text + rest)) return true;
  if (DIGIT.test(was + text) && !isGrammar(was, text)) return true;
  return old.some((word) => NUMBERS.has(word) && !made.includes(word)) || gains(old, made, NUMBERS);
}

// Is a place in the last lines, of few words each and no sentence or list?
function signs(before, start) {
  const lines = before.trimEnd().split("\n");
  let first = lines.length;
  while (first && isSign(lines[first - 1].trim())) first -= 1;
  const place = lines.slice(0, first).join("\n").length + 1;
  return first > 0 && first < lines.length - 1 && place <= start;
}

const isSign = (line) =>
  !line ||
  (line.split(/\s+/).length <= LIMITS.signature_words && /^\p{L}/u.test(line) && !SENTENCE_END.test(line));

// Are words the same but for a letter each?
function isSpelling(old, made) {
  const isAlike = (a, b) => distance(a, b) < 2 || FORMS.some((group) => group.has(a) && group.has(b));
  if (distance(plain(old.join("")), plain(made.join(""))) < 2) return true; // "alot", "a lot"
  return old.length === made.length && old.every((word, i) => isAlike(plain(word), plain(made[i])));
}

// Do words of a kind come that were not there in another spelling?
function gains(old, made, kind) {
  const isNew = (word) => !old.includes(word) && !old.some((one) => isNear(word, plain(one)));
  return made.some((word) => kind.has(word) && isNew(word));
}

function exchanges(old, made) {
  return EXCHANGES.some((kind) => {
    const groups = (words) => kind.filter((group) => words.some((word) => group.has(word.split("'")[0])));
    const [was, is] = [groups(old), groups(made)];
    return was.some((group) => !is.includes(group)) && is.some((group) => !was.includes(group));
  });
}

function changesModal(old, made) {
  const [was, is] = [modals(old, made), modals(made, old)];
  return was.some((word) => !is.includes(word)) || gains([...old, ...was], is, MODALS);
}

// The modals of words, but for those that are the others' in another spelling.
function modals(words, others) {
  const same = others.map(plain);
  return words
    .filter((word) => !same.includes(plain(word)))
    .map(stemOf)
    .filter((word) => MODALS.has(word));
}

function stemOf(word) {
  const { whole, not, modals } = CONTRACTIONS;
  const ending = Object.keys(modals).find((one) => word.endsWith(one));
  if (ending) return modals[ending];
  const bare = plain(word);
  return whole[bare] ?? (bare.endsWith(not) ? bare.slice(0, -not.length) : bare);
}

function losesLine(before, start, end, old, made) {
  const was = before.slice(start, end);
  const begins = ["", "\n"].includes(before.slice(0, start).replace(/ +$/, "").slice(-1));
  const ends = ["", "\n"].includes(before.slice(end).replace(/^ +/, "").slice(0, 1));
  const isWhole = was.includes("\n") || (begins && ends && !made.length);
  return isWhole && old.length > 0 && made.length < old.length;
}

function isInAddress(before, start, end) {
  return [...before.matchAll(ADDRESS)].some(
    ({ index, 0: found }) => index < end && start < index + found.length,
  );
}

function changesName(before, start, end, made) {
  for (const { index, 0: word } of before.slice(start, end).matchAll(WORD)) {
    const small = word.toLowerCase();
    const isSame = (one) => plain(one) === plain(small) || spells([small], one, DAYS);
    if (made.some(isSame)) continue;
    if (NO_NAMES.has(word) || !/^\p{L}/u.test(word)) continue;
    const front = before.slice(0, start + index);
    const line = before.slice(front.lastIndexOf("\n") + 1).split("\n")[0];
    const last = before.trimEnd().split("\n").at(-1).trim();
    const signs = line.trim() === last && before.trim().includes("\n") && wordsOf(line).length <= 2;
    const begins = SENTENCE_START.test(front) && !TITLE.test(front);
    const isCapital = word[0] !== word[0].toLowerCase();
    if (signs || ADDRESSED.test(front) || (isCapital && !begins)) return true;
  }
  return false;
}

const wordsAsWritten = (text) => [...text.matchAll(WORD)].map(([word]) => word);

const differs = (kind, old, made) => sorted(kind, old) !== sorted(kind, made);
const sorted = (kind, text) => (text.match(kind) ?? []).sort().join(" ");
const isNear = (a, b) => a[0] === b[0] && distance(a, b) <= 2;
// The negations, those in another spelling included if it is right in the other words.
function negations(words, others) {
  const known = others.map(plain).filter((word) => NEGATIONS.has(word));
  const isMisspelt = (word) =>
    word.length > 3 && !NEAR_NEGATIONS.has(word) && known.some((one) => isNear(word, one));
  return words.map(plain).filter((word) => NEGATIONS.has(word) || isMisspelt(word)).length;
}

// Is one of some words this one of the dates, in an abbreviation or another spelling?
function spells(words, date, dates) {
  if (!dates.includes(date)) return false;
  return words.some((word) => {
    if (word === date || (word.length >= 3 && date.startsWith(word))) return true;
    const own = alike(word, date);
    const least = Math.max(3, Math.min(date.length - 1, Math.max(4, date.length - 3)));
    return own >= least && dates.every((other) => alike(word, other) <= own);
  });
}

// The letters that two words begin and end with alike; 0 if they begin with fewer than two.
function alike(a, b) {
  const size = Math.min(a.length, b.length);
  let [prefix, suffix] = [0, 0];
  while (prefix < size && a[prefix] === b[prefix]) prefix += 1;
  while (suffix < size - prefix && a.at(-1 - suffix) === b.at(-1 - suffix)) suffix += 1;
  return prefix > 1 ? prefix + suffix : 0;
}
