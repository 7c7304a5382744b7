"""The shipped translators on a CPU, compared with CTranslate2 on the same weights and precision in the same run.

    pip install 'chumoku[bench]'
    python benchmarks/translate.py [--model ja-en] [--precision int8|float32] [--rounds 5] [--threads 2]
        [--processor-time]

The sentences are those of docs/translations.md. Text goes in and text comes out, with beam 4 (the default) and greedy:
all sentences in one call, and one sentence a call. The programs run alternately. Prints one JSON line: sentences per
second and milliseconds for one sentence (medians), how many times faster we are (quartiles), how many translations are
equal, and the seconds from the end of all imports to the first translation in a new process. On a busy machine,
`--processor-time --threads 1` counts the time on a core instead of waiting for one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import ctranslate2
import torch
from clock import time_alternately

import chumoku

SENTENCES = Path(__file__).parent.parent / "docs" / "translations.md"
FIRST = """
import time, chumoku
load = chumoku.load  # imports PyTorch
start = time.perf_counter()
load({model!r}, precision={precision!r}).translate([{sentence!r}])
print(time.perf_counter() - start)
"""


def read_sentences(model: str) -> list[str]:
    """The first column of the table under the model's heading."""
    section = SENTENCES.read_text(encoding="utf-8").split(f"\n## {model}")[1].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| (.+?) \|", section, re.MULTILINE)


def peer(
    pipeline: chumoku.Pipeline, folder: Path, precision: str, threads: int
) -> Callable[[list[str], int], list[str]]:
    """CTranslate2 on the exported weights, with our tokenizer."""
    chumoku.convert(pipeline, folder, to="ctranslate2")
    model = ctranslate2.Translator(str(folder), device="cpu", compute_type=precision, intra_threads=threads)
    tokenizer = pipeline.tokenizer
    numbers = {tokenizer.token(number): number for number in range(tokenizer.size)}

    def translate(texts: list[str], beam: int) -> list[str]:
        ids = [[*row, *tokenizer.roles.end_tokens] for row in tokenizer.encode_batch(texts)]
        rows = [[tokenizer.token(each) for each in row] for row in ids]
        found = model.translate_batch(rows, beam_size=beam, max_batch_size=64)
        return tokenizer.decode_batch([[numbers[token] for token in one.hypotheses[0]] for one in found])

    return translate


def first_answers(model: str, precision: str, sentence: str) -> float:
    """Seconds to the first translation after the imports in a new process: the median of three."""
    code = FIRST.format(model=model, precision=precision, sentence=sentence)
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="ja-en")
    parser.add_argument("--precision", choices=("int8", "float32"), default="int8")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.processor_time else time.perf_counter
    pipeline, sentences = chumoku.load(given.model, precision=given.precision), read_sentences(given.model)
    found: dict[str, object] = {**vars(given), "sentences": len(sentences)}
    with tempfile.TemporaryDirectory() as folder:
        theirs = peer(pipeline, Path(folder) / "model", given.precision, given.threads)

        def ours(texts: list[str], beam: int) -> list[str]:
            return pipeline.translate(texts, beam=beam, split=False)

        programs = {"ours": ours, "CTranslate2": theirs}
        for beam in (4, 1):
            functions: dict[str, Callable[[], object]] = {}
            for name, run in programs.items():
                functions[f"{name} together"] = lambda run=run, beam=beam: run(sentences, beam)  # type: ignore[misc]
                functions[f"{name} alone"] = lambda run=run, beam=beam: [run([one], beam) for one in sentences]  # type: ignore[misc]
            seconds = time_alternately(functions, rounds=given.rounds, clock=clock)
            equal = sum(map(str.__eq__, ours(sentences, beam), theirs(sentences, beam)))
            result: dict[str, object] = {"equal_translations": equal}
            for way in ("together", "alone"):
                for name in programs:
                    median = statistics.median(seconds[f"{name} {way}"]) / len(sentences)
                    unit = "sentences_per_second" if way == "together" else "milliseconds_for_one"
                    result[f"{name} {unit}"] = round(1 / median if way == "together" else median * 1e3, 1)
                pairs = zip(seconds[f"CTranslate2 {way}"], seconds[f"ours {way}"], strict=True)
                quartiles = statistics.quantiles([a / b for a, b in pairs], n=4)
                result[f"times faster {way}"] = [round(one, 2) for one in quartiles]
            found[f"beam {beam}"] = result
    found["first_answer_seconds"] = round(first_answers(given.model, given.precision, sentences[0]), 2)
    print(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main()
