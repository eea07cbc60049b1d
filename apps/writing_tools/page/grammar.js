// Which corrections are of grammar and spelling, and which put other words.
//
// Words that say something must stay, each in its place: in another spelling or form ("needs",
// "need") they count as the same. Small words (articles, "is", "to") and punctuation may come, go and
// change. What a model meant nobody knows; this looks at words alone.

import { isWord, WORD } from "./diff.js";
import { DATES, FORMS, pattern, words } from "./english.js";

export const [DIGIT, DAYS] = [pattern("digit"), [...DATES.values()].flat()];
const SMALL = words("small");

// Does this change leave the words as they are, but for their form?
export function isGrammar(before, after) {
  const [old, made] = [wordsOf(before), wordsOf(after)];
  const isOne = old.length && made.length && Math.min(old.length, made.length) === 1;
  if (isOne && isForm(old.join(""), made.join(""))) return true; // "alot", "a lot"
  // fits[i][j]: do the first i words become the first j so?
  const fits = Array.from({ length: old.length + 1 }, () => []);
  for (let i = 0; i <= old.length; i++) {
    for (let j = 0; j <= made.length; j++) {
      fits[i][j] =
        (!i && !j) ||
        (i > 0 && SMALL.has(old[i - 1]) && fits[i - 1][j]) ||
        (j > 0 && SMALL.has(made[j - 1]) && fits[i][j - 1]) ||
        (i > 0 && j > 0 && fits[i - 1][j - 1] && isForm(old[i - 1], made[j - 1]));
    }
  }
  return fits[old.length][made.length];
}

export const wordsOf = (text) =>
  [...text.matchAll(WORD)]
    .filter(([word]) => isWord(word))
    .map(([word]) => word.toLowerCase().replaceAll("’", "'"));
export const plain = (word) => word.replaceAll("'", "");

// Are these spellings or forms of one word?
function isForm(a, b) {
  if (DIGIT.test(a + b)) return a === b; // a number is not misspelt
  [a, b] = [plain(a), plain(b)];
  if (FORMS.some((group) => group.has(a) && group.has(b))) return true;
  if (a.length > 2 && DAYS.includes(b) && b.startsWith(a)) return true;
  return distance(a, b) <= Math.max(1, Math.floor(0.4 * Math.max(a.length, b.length)));
}

// Letters to add, remove, replace or swap with their neighbour on the way from `a` to `b`.
export function distance(a, b) {
  const costs = Array.from({ length: a.length + 1 }, (_, i) => [i]);
  for (let j = 1; j <= b.length; j++) costs[0][j] = j;
  for (let i = 1; i <= a.length; i++) {
    for (let j = 1; j <= b.length; j++) {
      const across = costs[i - 1][j - 1] + (a[i - 1] !== b[j - 1]);
      costs[i][j] = Math.min(costs[i - 1][j] + 1, costs[i][j - 1] + 1, across);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        costs[i][j] = Math.min(costs[i][j], costs[i - 2][j - 2] + 1);
      }
    }
  }
  return costs[a.length][b.length];
}
