// The English that rules go by, as english.py reads it for the command line. english.json has
//
// - words: numbers, negations and what is near them, small words, ..; dates, by what they are
// - forms: irregular forms of a word, and short ways to write it
// - exchanges: small words, of kinds, of which one in the place of another says something else
// - patterns, which have the flag u here; `(?![\s\S])` is the end of a text in Python, too
// - limits: words that may come or go with a correction, words of lines of a letter, characters of a
//   line that goes on in the next one; bytes of a part that is written anew, since the tools learned
//   from short messages, and of one that is read as a whole: a token has a byte at least, so it fits.

const ENGLISH = await (await fetch(new URL("english.json", import.meta.url))).json();

export const { contractions: CONTRACTIONS, limits: LIMITS } = ENGLISH;
export const BY_PARAGRAPH = new Set(ENGLISH.tools_by_paragraph);
export const FORMS = setsOf(ENGLISH.forms);
export const EXCHANGES = ENGLISH.exchanges.map(setsOf);
export const DATES = new Map(Object.entries(ENGLISH.dates).map(([name, all]) => [name, all.split(" ")]));
export const CUTS = ENGLISH.cuts.map((source) => new RegExp(source, "u"));

const ANY_CASE = ENGLISH.patterns_in_any_case;

export const words = (name) => new Set(ENGLISH.words[name].join(" ").split(" "));

export function pattern(name, flags = "") {
  const isAnyCase = name in ANY_CASE;
  const source = isAnyCase ? ANY_CASE[name] : ENGLISH.patterns[name];
  return new RegExp(source, `u${isAnyCase ? "i" : ""}${flags}`);
}

function setsOf(groups) {
  return groups.map((group) => new Set(group.split(" ")));
}
