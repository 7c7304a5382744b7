// Token texts, and cutting of long texts.

/** A token's text with ▁ and ␣ as spaces, and without the leading space; whether it is special (</s>) or starts a word. */
export function tokenText(text) {
  const special = /^<[^<>\s]+>$/.test(text);
  const startsWord = special || /^[ ▁␣]/.test(text);
  return { special, startsWord, spaced: text.replace(/[▁␣]/g, " "), bare: text.replace(/^[ ▁␣]/, "") };
}

/** The lines that are not blank, at most `lines` of at most `chars` characters, and the key of the text about the cut. */
export function cutLines(text, lines, chars) {
  const all = text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  const kept = all.slice(0, lines).map((line) => cutEnd(line, chars));
  const shortened = kept.some((line, at) => line.length < all[at].length);
  return { lines: kept, cut: all.length > lines ? "tr_cut_lines" : shortened ? "tr_cut_letters" : "" };
}

/** The first `most` UTF-16 units of a text, without half a surrogate pair at the end. */
export function cutEnd(text, most) {
  if (text.length <= most) return text;
  const half = /[\ud800-\udbff]/.test(text[most - 1]);
  return text.slice(0, half ? most - 1 : most);
}

/** The last `most` UTF-16 units of a text, without half a surrogate pair at the start. */
export function cutStart(text, most) {
  if (text.length <= most) return text;
  const start = text.length - most;
  return text.slice(/[\udc00-\udfff]/.test(text[start]) ? start + 1 : start);
}
