"""Text and data: growth of tokenization time, speed of writing shards, padding, and GPT-2's token ids.

    python benchmarks/text.py --text soseki.txt --pairs train.ja train.en --gpt2 gpt2_vocab

Prints one JSON line. All parts but the first run only if their files are given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

from clock import ratio, time_alternately

from chumoku.data.batches import PairBatches
from chumoku.data.corpus import Corpus
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.data.shards import prepare_text
from chumoku.text import KINDS, Tokenizer, load, train

TRAINING_TEXTS = ["The quick brown fox jumps over the lazy dog. こたつでみかんを食べる。", "aaaa bbb  c\n"] * 50


def growth(tokenizer: Tokenizer, largest: int) -> dict[str, list[float]]:
    """Growth factors of the time for 10⁴, 10⁵ … bytes of one repeated unit (the best of three runs)."""
    factors = {}
    for name, unit in {"a": "a", "space": " ", "zero-width": "\u200b", "あ": "あ"}.items():
        times = []
        for size in (10**power for power in range(4, largest + 1)):
            text, best = unit * (size // len(unit.encode())), float("inf")
            for _ in range(3):
                start = time.perf_counter()
                tokenizer.encode(text)
                best = min(best, time.perf_counter() - start)
            times.append(best)
        factors[name] = [round(b / a, 1) for a, b in itertools.pairwise(times)]
    return factors


def shards(file: str, rounds: int) -> dict[str, object]:
    """Speed of writing shards, including reading and hashing, compared with the library encoding the same texts."""
    corpus = Corpus([file])
    tokenizer = train(corpus.documents(), kind="bpe", vocabulary=16000)
    texts = list(corpus.documents())
    backend = tokenizer._special

    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(10**6))

        def ours() -> None:
            prepare_text(corpus, tokenizer, Path(folder) / str(next(numbers)))

        def library() -> None:
            [encoding.ids for encoding in backend.encode_batch(texts)]

        def library_fast() -> None:
            [encoding.ids for encoding in backend.encode_batch_fast(texts)]

        seconds = time_alternately({"ours": ours, "library": library, "library_fast": library_fast}, rounds=rounds)
    characters = sum(map(len, texts))
    return {
        "characters": characters,
        "ours_characters_per_s": round(characters / sorted(seconds["ours"])[rounds // 2]),
        "speed_over_encode_batch": ratio(seconds["library"], seconds["ours"]),
        "speed_over_encode_batch_fast": ratio(seconds["library_fast"], seconds["ours"]),
    }


def padding(files: list[str]) -> dict[str, object]:
    from chumoku.data.pairs import read_pairs

    pairs, report = read_pairs(files)
    tokenizer = train([text for pair in pairs for text in pair], kind="bpe", vocabulary=8000)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        prepared = prepare_pairs(files, tokenizer, Path(folder) / "pairs")
        seconds = time.perf_counter() - start
        batches = PairBatches(open_pairs(prepared), tokens=4096, source_roles=tokenizer.roles)
        return {
            "pairs": report.kept,
            "prepare_s": round(seconds, 1),
            "batches": len(batches),
            "padding_at_4096": round(batches.padding, 4),
        }


def gpt2(folder: str, text: str | None) -> dict[str, object]:
    """Compare the ids of GPT-2's own files with tiktoken built from the same files."""
    import tiktoken

    ours = load(folder)
    vocabulary = json.loads((Path(folder) / "encoder.json").read_text(encoding="utf-8"))
    letters = ours._unicode_to_bytes
    ranks = {bytes(letters[c] for c in token): n for token, n in vocabulary.items() if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    reference = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    samples = [
        "The quick brown fox; it's 3.14159 o'clock, they'll say.",
        "こたつでみかんを食べる。サンディーが元気に走る。",
        "for i in range(10):\n    print(f'{i:>3}')  # 猫\n\n\treturn None",
        "👨‍👩‍👧 😀🇯🇵 e\u0301 ﬁ \u200b\x00 \r\n   end  ",
    ]
    if text is not None:
        samples += Path(text).read_text(encoding="utf-8")[:300_000].split("\n")
    same = sum(ours.encode(sample) == reference.encode(sample, disallowed_special=()) for sample in samples)
    return {"texts": len(samples), "same_ids": same, "vocabulary": ours.size}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--text")
    arguments.add_argument("--pairs", nargs=2)
    arguments.add_argument("--gpt2")
    arguments.add_argument("--largest", type=int, default=7, help="power of ten of the longest text")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    result: dict[str, object] = {"benchmark": "text"}
    result["growth_per_tenfold"] = {
        kind: growth(train(TRAINING_TEXTS, kind=kind, vocabulary=600), given.largest) for kind in KINDS
    }
    if given.text:
        result["shards"] = shards(given.text, given.rounds)
    if given.pairs:
        result["padding"] = padding(given.pairs)
    if given.gpt2:
        result["gpt2"] = gpt2(given.gpt2, given.text)
    print(json.dumps(result, ensure_ascii=False))
