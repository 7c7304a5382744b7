// Byte-pair encoding: characters, of which neighbors are merged, the earliest merge first, leftmost first.
//
//   h u g s  →  h ug s  →  hug s        merges: u+g, h+ug

import { RequestError } from "../errors.js";

const MAX_CACHED = 10_000;
const MAX_CACHED_LENGTH = 256;

/** The function text → ids of a BPE model. */
export function makeBpe(model, vocabulary) {
  const findMerge = readMerges(model, vocabulary);
  const cache = new Map();
  return (text) => {
    const known = model.ignore_merges ? vocabulary.id(text) : undefined;
    if (known !== undefined) return [known];
    if (cache.has(text)) return cache.get(text);
    const found = mergeAll(characterIds(text, model, vocabulary), findMerge);
    if (text.length <= MAX_CACHED_LENGTH && cache.size < MAX_CACHED) cache.set(text, found);
    return found;
  };
}

/** find(left, right) → { rank, id } of the merge of two ids, or undefined. The ids of merges are looked up when needed. */
function readMerges({ merges, prefix }, vocabulary) {
  const ranks = new Map(); // left → right → rank
  for (let at = 0; at < merges.length; at += 2) {
    let rights = ranks.get(merges[at]);
    if (rights === undefined) ranks.set(merges[at], (rights = new Map()));
    rights.set(merges[at + 1], at / 2);
  }
  const found = new Map();
  return (left, right) => {
    const rank = ranks.get(left)?.get(right);
    if (rank === undefined || found.has(rank)) return found.get(rank);
    const id = vocabulary.id(vocabulary.token(left) + vocabulary.token(right).slice(prefix.length));
    found.set(rank, { rank, id });
    return found.get(rank);
  };
}

/** The id of each character; of one that has none those of its bytes, the unknown token or nothing. */
function characterIds(text, model, vocabulary) {
  const ids = [];
  const characters = Array.from(text);
  let isPending = false; // an unknown token, which is written before the next known one or joined with the next unknown
  const writePending = () => {
    if (isPending) ids.push(unknownId(model, vocabulary));
    isPending = false;
  };
  characters.forEach((character, at) => {
    const name = (at ? model.prefix : "") + character + (at === characters.length - 1 ? model.suffix : "");
    const id = vocabulary.id(name);
    const bytes = id === undefined && model.byte_fallback ? vocabulary.byteIds(name) : null;
    if (bytes) ids.push(...bytes);
    else if (id !== undefined) {
      writePending();
      ids.push(id);
    } else if (model.unknown !== null) {
      if (!model.fuse_unk) writePending();
      isPending = true;
    }
  });
  writePending();
  return ids;
}

function unknownId(model, vocabulary) {
  const id = vocabulary.id(model.unknown);
  if (id === undefined) throw new RequestError("This tokenizer fails on a text: its unknown token is not a token.");
  return id;
}

/** The ids after all merges. A queue holds the possible merges, so that time grows with n·log n. */
function mergeAll(ids, findMerge) {
  const [left, right] = [ids.map((_, at) => at - 1), ids.map((_, at) => at + 1)];
  const queue = makeQueue();
  const offer = (at) => {
    if (at < 0 || right[at] >= ids.length) return;
    const merge = findMerge(ids[at], ids[right[at]]);
    if (merge) queue.push({ rank: merge.rank, id: merge.id, at });
  };
  ids.forEach((_, at) => offer(at));
  for (let top; (top = queue.pop()) !== undefined; ) {
    const { at, id } = top;
    const next = right[at];
    if (ids[at] === null || next >= ids.length) continue;
    if (findMerge(ids[at], ids[next])?.id !== id) continue; // one of the two has been merged with another
    ids[at] = id;
    ids[next] = null;
    right[at] = right[next];
    if (right[at] < ids.length) left[right[at]] = at;
    offer(left[at]);
    offer(at);
  }
  return ids.filter((id) => id !== null);
}

/** A heap: `pop` returns the entry with the lowest rank, and of these the leftmost. */
function makeQueue() {
  const heap = [];
  const isBefore = (one, other) => one.rank < other.rank || (one.rank === other.rank && one.at < other.at);
  const swap = (one, other) => ([heap[one], heap[other]] = [heap[other], heap[one]]);
  return {
    push(entry) {
      let place = heap.push(entry) - 1;
      for (let above; place > 0 && isBefore(heap[place], heap[(above = (place - 1) >> 1)]); place = above) {
        swap(place, above);
      }
    },
    pop() {
      if (heap.length < 2) return heap.pop();
      swap(0, heap.length - 1);
      const top = heap.pop();
      for (let place = 0; ; ) {
        let first = place;
        for (const below of [2 * place + 1, 2 * place + 2]) {
          if (below < heap.length && isBefore(heap[below], heap[first])) first = below;
        }
        if (first === place) return top;
        swap(place, first);
        place = first;
      }
    },
  };
}
