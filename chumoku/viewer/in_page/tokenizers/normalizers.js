// Normalizers: what happens to a text before it is split. Each step of the data becomes a function text → text.

import { toByteCharacters } from "./byte_chars.js";
import { makeCharacterMap } from "./character_map.js";
import { classSource, classTest } from "./classes.js";
import { makePattern, replaceMatches } from "./patterns.js";

/** The function of all steps. */
export function makeNormalizer(steps, classes) {
  const functions = steps.map((step) => STEPS[step.type](step, classes));
  return (text) => functions.reduce((result, one) => one(result), text);
}

const each = (number, classes) => new RegExp(classSource(classes[number]), "gu");

const STEPS = {
  // Other characters are boundaries; of those that are not, every version of Unicode has the same normal forms.
  Normalize({ form, active }, classes) {
    const runs = new RegExp(`${classSource(classes[active])}+`, "gu");
    return (text) => text.replace(runs, (run) => run.normalize(form));
  },
  Lowercase({ runs, longer }) {
    const lower = new Map();
    for (let at = 0; at < runs.length; at += 4) {
      const [start, count, step, distance] = runs.slice(at, at + 4);
      for (let number = 0; number < count; number += 1) {
        const code = start + number * step;
        lower.set(String.fromCodePoint(code), String.fromCodePoint(code + distance));
      }
    }
    for (let at = 0; at < longer.length; at += 2) lower.set(longer[at], longer[at + 1]);
    return (text) => Array.from(text, (character) => lower.get(character) ?? character).join("");
  },
  Remove(step, classes) {
    const found = each(step.class, classes);
    return (text) => text.replace(found, "");
  },
  Space(step, classes) {
    const found = each(step.class, classes);
    return (text) => text.replace(found, " ");
  },
  Surround(step, classes) {
    const found = each(step.class, classes);
    return (text) => text.replace(found, " $& ");
  },
  Replace({ pattern, content }, classes) {
    const found = makePattern(pattern, classes);
    return (text) => replaceMatches(found, text, content);
  },
  Prepend: (step) => (text) => text && step.text + text,
  Strip({ left, right, class: number }, classes) {
    const isSpace = classTest(classes[number]);
    return (text) => {
      const characters = Array.from(text);
      let [start, stop] = [0, characters.length];
      while (left && start < stop && isSpace(characters[start])) start += 1;
      while (right && start < stop && isSpace(characters[stop - 1])) stop -= 1;
      return characters.slice(start, stop).join("");
    };
  },
  CharacterMap: makeCharacterMap,
  ByteLevel: () => toByteCharacters,
};
