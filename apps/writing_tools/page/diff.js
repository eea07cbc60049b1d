// The difference of two texts, word by word, as changes of the first one.
//
// White space is no word: it stays as the first text has it, line breaks above all, except beside
// words that come or go. So what nobody corrected is never touched.

import { pattern } from "./english.js";

export const WORD = pattern("word", "g");

// A text's words and where they begin and end. Before the first word and behind the last one there
// is nothing: `end(-1)` is where the first begins, `start(length)` where the last ends.
class Words {
  constructor(text) {
    this.text = text;
    this.found = [...text.matchAll(WORD)];
    this.length = this.found.length;
  }
  word(i) {
    return this.found[i][0];
  }
  start(i) {
    return i < this.length ? this.found[i].index : this.end(i - 1);
  }
  end(i) {
    if (i >= 0) return this.found[i].index + this.word(i).length;
    return this.length ? this.found[0].index : 0;
  }
  breaks(from, to) {
    return this.text.slice(from, to).includes("\n");
  }
}

export const isWord = (word) => /^[\p{L}\p{N}]/u.test(word);

// What it costs to write `b` for `a`; one word that comes or goes costs 2.
function cost(a, b) {
  if (a === b) return 0;
  if (a.toLowerCase() === b.toLowerCase()) return 1;
  return isWord(a) === isWord(b) ? 3 : 5;
}

// The cheapest way from `a` to `b`: pairs [i, j] of words, with null where one has no partner.
// If `b` is not `complete`, it is the way from some beginning of `a`, the shortest of the cheapest.
function alignment(a, b, complete) {
  const width = b.length + 1;
  const costs = new Uint32Array((a.length + 1) * width);
  for (let i = 0; i <= a.length; i++) {
    for (let j = 0; j <= b.length; j++) {
      if (i === 0 || j === 0) {
        costs[i * width + j] = 2 * (i + j);
        continue;
      }
      const above = costs[(i - 1) * width + j] + 2;
      const before = costs[i * width + j - 1] + 2;
      const across = costs[(i - 1) * width + j - 1] + cost(a.word(i - 1), b.word(j - 1));
      costs[i * width + j] = Math.min(above, before, across);
    }
  }
  let [i, j] = [a.length, b.length];
  if (!complete) {
    for (let k = a.length; k >= 0; k--) {
      if (costs[k * width + j] <= costs[i * width + j]) i = k;
    }
  }
  const pairs = [];
  while (i > 0 || j > 0) {
    const here = costs[i * width + j];
    const across = i && j && costs[(i - 1) * width + j - 1] + cost(a.word(i - 1), b.word(j - 1));
    if (i && j && here === across) pairs.push([--i, --j]);
    else if (i && here === costs[(i - 1) * width + j] + 2) pairs.push([--i, null]);
    else pairs.push([null, --j]);
  }
  return pairs.reverse();
}

// How `after` differs from `before`: {changes, read}.
//
// The changes [{start, end, text}, ..] are in order, none within another; each puts `text` in place
// of before.slice(start, end). While `after` is being written (`complete` is false), what is behind
// the last word that both have is undecided: `read` is where that is in `before`, and there are no
// changes behind it. So what was not written yet is not taken for deleted.
export function difference(before, after, complete = true) {
  const [a, b] = [new Words(before), new Words(after)];
  if (!complete && b.length) b.length -= 1; // the last word may go on
  const pairs = alignment(a, b, complete);
  const isSame = ([i, j]) => i !== null && j !== null && a.word(i) === b.word(j);
  const last = complete ? pairs.length : pairs.findLastIndex(isSame) + 1;
  const changes = [];
  let [i, j, k] = [0, 0, 0]; // the next words of both, and the next pair
  while (k < last) {
    const [from, to] = [i, j];
    const run = [];
    while (k < last && !isSame(pairs[k])) {
      run.push(pairs[k++]);
      if (run.at(-1)[0] !== null) i += 1;
      if (run.at(-1)[1] !== null) j += 1;
    }
    if (run.length) changes.push(...changesOfRun(a, b, run, from, i, to, j));
    else if (i && j) changes.push(...changeOfGap(a, b, i, j));
    if (k < last) [i, j, k] = [i + 1, j + 1, k + 1];
  }
  return { changes, read: complete ? before.length : a.end(i - 1) };
}

// The changes of neighbouring words: one for each if each has a partner or is new punctuation, so
// that they can be taken one by one, and else one for all.
function changesOfRun(a, b, run, i, iEnd, j, jEnd) {
  const isSimple = run.every(([x, y]) => y !== null && (x !== null || !isWord(b.word(y))));
  if (!isSimple) return [changeOfWords(a, b, i, iEnd, j, jEnd)];
  const changes = [];
  let added = j; // words added..y of `b` have no partner
  for (const [x, y] of [...run, [iEnd, jEnd]]) {
    if (x === null) continue;
    if (added < y) changes.push(changeOfWords(a, b, x, x, added, y));
    if (x < iEnd) changes.push({ start: a.start(x), end: a.end(x), text: b.word(y) });
    added = y + 1;
  }
  return changes;
}

// Words i..iEnd of `a`, with the white space around them, become words j..jEnd of `b`. White space
// with a line break stays.
function changeOfWords(a, b, i, iEnd, j, jEnd) {
  let [start, end, from, to] = [a.end(i - 1), a.start(iEnd), b.end(j - 1), b.start(jEnd)];
  if (i === iEnd) {
    if (a.breaks(start, end)) {
      if (b.breaks(from, b.start(j))) [start, from] = [end, b.start(j)];
      else [end, to] = [start, b.end(jEnd - 1)];
    }
  } else {
    if (a.breaks(start, a.start(i))) [start, from] = [a.start(i), j < jEnd ? b.start(j) : to];
    if (a.breaks(a.end(iEnd - 1), end)) {
      [end, to] = [a.end(iEnd - 1), j < jEnd ? b.end(jEnd - 1) : from];
    }
  }
  // The white space that both begin or end with is no part of the change.
  let [old, text] = [a.text.slice(start, end), b.text.slice(from, to)];
  while (old && text && old[0] === text[0] && !old[0].trim()) {
    [old, text, start] = [old.slice(1), text.slice(1), start + 1];
  }
  while (old && text && old.at(-1) === text.at(-1) && !old.at(-1).trim()) {
    [old, text, end] = [old.slice(0, -1), text.slice(0, -1), end - 1];
  }
  return { start, end, text };
}

// White space that comes or goes between two words that stay: of "one ,two", say.
function changeOfGap(a, b, i, j) {
  const [start, end] = [a.end(i - 1), a.start(i)];
  const text = b.text.slice(b.end(j - 1), b.start(j));
  const isChange = (start === end) !== (text === "") && !a.breaks(start, end) && !text.includes("\n");
  return isChange && i < a.length && j < b.length ? [{ start, end, text }] : [];
}

// `before` with these changes made.
export function applied(before, changes) {
  let [text, place] = ["", 0];
  for (const { start, end, text: words } of changes) {
    text += before.slice(place, start) + words;
    place = end;
  }
  return text + before.slice(place);
}
