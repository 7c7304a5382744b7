// Special tokens by role, as chumoku/text/special_tokens.py finds them; the exported data holds the result.

import { RequestError } from "../errors.js";

/** { pad, begin, end, unknown, mask, sourceBegin, forcedBegin } as ids or null; languages, textLanguages: code → id. */
export function readRoles(data) {
  const { languages, text_languages: textLanguages, source_begin: sourceBegin, forced_begin: forcedBegin, ...ids } = data;
  return { ...ids, sourceBegin, forcedBegin, languages: new Map(languages), textLanguages: new Map(textLanguages) };
}

/** The token of a language; the error lists all languages. */
export function findLanguage(languages, code) {
  if (languages.has(code)) return languages.get(code);
  const known = [...languages.keys()].join(", ") || "none";
  throw new RequestError(`This tokenizer has no language '${String(code).slice(0, 40)}'. Its languages: ${known}.`);
}
