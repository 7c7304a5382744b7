// Text between people and tokens.

/** A token's text: does it open a word, and what stands in a sentence. ▁ and ␣ are how tokenizers write a blank. */
export function pieces(text) {
  const opens = /^[ ▁␣]/.test(text);
  return { opens, plain: text.replace(/[▁␣]/g, " "), bare: text.replace(/^[ ▁␣]/, "") };
}

/** The lines that are not blank, as many and as long as may be sent, and which sentence tells of the cut. */
export function cutLines(text, lines, letters) {
  const all = text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  const few = all.slice(0, lines).map((line) => cutEnd(line, letters));
  const shortened = few.some((line, at) => line.length < all[at].length);
  return { lines: few, cut: all.length > lines ? "tr_cut_lines" : shortened ? "tr_cut_letters" : "" };
}

/** The first `most` units of a text, without half a letter at the end. */
export function cutEnd(text, most) {
  if (text.length <= most) return text;
  const half = /[\ud800-\udbff]/.test(text[most - 1]);
  return text.slice(0, half ? most - 1 : most);
}

/** The last `most` units of a text, without half a letter at the start. */
export function cutStart(text, most) {
  if (text.length <= most) return text;
  const start = text.length - most;
  return text.slice(/[\udc00-\udfff]/.test(text[start]) ? start + 1 : start);
}
