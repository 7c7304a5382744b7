// Models of words: WordLevel knows whole words, WordPiece splits a word into the longest pieces that it knows.
//
//   embedding  →  em ##bed ##ding

import { RequestError } from "../errors.js";

/** The function text → ids of a WordLevel model. */
export function makeWordLevel(model, vocabulary) {
  return (text) => [vocabulary.id(text) ?? unknownId(model, vocabulary)];
}

/** The function text → ids of a WordPiece model. A word with a part that is not known is unknown. */
export function makeWordPiece(model, vocabulary) {
  return (text) => {
    const characters = Array.from(text);
    if (characters.length > model.max_characters) return [unknownId(model, vocabulary)];
    const ids = [];
    for (let start = 0, stop; start < characters.length; start = stop) {
      let id;
      for (stop = characters.length; stop > start; stop -= 1) {
        id = vocabulary.id((start ? model.prefix : "") + characters.slice(start, stop).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [unknownId(model, vocabulary)];
      ids.push(id);
    }
    return ids;
  };
}

function unknownId(model, vocabulary) {
  const id = vocabulary.id(model.unknown);
  if (id === undefined) throw new RequestError("This tokenizer fails on a text: it has no unknown token.");
  return id;
}
