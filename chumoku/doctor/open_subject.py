"""From a name to a patient: a recipe, a model whoever wrote it, or the folder of a run.

A recipe is prepared as training would, into a folder that goes away afterwards, and its model is a fresh one. A model
that lies in a run's folder is examined with that run's corpus, if its files are still there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chumoku import pipeline
from chumoku.config import read, write
from chumoku.data.batches import Batches, MaskedBatches, PairBatches, WindowBatches
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import read_manifest
from chumoku.data.pairs import Pair, read_pairs
from chumoku.data.prepared import Pairs
from chumoku.doctor.subject import Patient
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.text import Tokenizer
from chumoku.training.dataset import TrainingData, prepare
from chumoku.training.outputs import create_result
from chumoku.training.recipe import BUILT_IN, RECIPE_FILE, Recipe, load_recipe
from chumoku.training.settings import TrainSettings, as_list
from chumoku.weights import open_model
from chumoku.weights.bundle import Bundle, Tokenizers

MOST = 4_000_000  # tokens of a corpus that are read as text …
USUAL = 20  # … of which a sentence has about so many
ASKED = 20_000  # lines as the files have them
GARBLED = "\ufffd"  # what is left of a letter that was cut in two
Say = Callable[[str], None]


@contextmanager
def admitted(
    name: str, changes: Sequence[str] = (), say: Say = lambda sentence: None, *, precision: str | None = None
) -> Iterator[Patient]:
    """The patient of that name; `say` hears what is being done and what is missing.

    A model is opened as every command opens it: quantized where its file is, or at another precision.
    """
    with tempfile.TemporaryDirectory(prefix="chumoku-doctor-") as working:
        if is_recipe(name) and precision is not None:
            raise UsageError("A recipe's model has the precision it is trained in. Leave --precision out.")
        if is_recipe(name):
            yield of_recipe(load_recipe(name, changes), Path(working), say)
        elif changes:
            raise UsageError(f"{changes[0]} changes a recipe, and {name} is none. Leave it out.")
        else:
            yield of_model(name, Path(working), say, precision=precision)


def is_recipe(name: str) -> bool:
    return name.endswith(".toml") or (not open_model.exists(Path(name)) and (BUILT_IN / f"{name}.toml").exists())


def of_recipe(recipe: Recipe, working: Path, say: Say) -> Patient:
    say("Preparing the corpus as training would …")
    init = None if recipe.init is None else open_model.load(recipe.init)
    data = prepare(placed(recipe, working), init)
    tokenizers = Tokenizers(data.tokenizer, data.source_tokenizer)
    model = create_result(recipe, data.config, tokenizers, init=init, device=torch.device("cpu")).model
    return replace(with_originals(of_material(data, working), recipe, working), model=model, recipe=recipe)


def of_model(name: str, working: Path, say: Say, *, precision: str | None = None) -> Patient:
    folder = open_model.place_of(name)
    run = run_of(folder)
    chosen = next((place for place in (folder / "last", folder / "best") if run == folder and place.is_dir()), name)
    try:
        bundle = pipeline.load(chosen, precision=precision)
    except DamagedError as error:
        return Patient(folder=folder, damage=str(error))
    patient = Patient(bundle.model, bundle.tokenizer, bundle.source_tokenizer, folder=run or folder)
    return patient if run is None else with_corpus(patient, bundle, run, working, say)


def run_of(folder: Path) -> Path | None:
    """The run that a model belongs to: its folder, or the one that is given."""
    return next((place for place in (folder, folder.absolute().parent) if (place / RECIPE_FILE).is_file()), None)


def with_corpus(patient: Patient, bundle: Bundle, run: Path, working: Path, say: Say) -> Patient:
    say(f"Reading the corpus of {run} …")
    try:
        recipe = load_recipe(run)
        seen = with_originals(of_material(prepare(placed(recipe, working), bundle), working), recipe, working)
    except (ChumokuError, OSError, ValueError, TypeError, RecursionError) as error:
        say(f"Its corpus cannot be examined: {str(error)[:300]}")
        return patient
    return replace(seen, model=bundle.model, folder=run, recipe=recipe)


def placed(recipe: Recipe, folder: Path) -> Recipe:
    """The same recipe, whose folder is another."""
    return replace(recipe, train=read(TrainSettings, {**write(recipe.train), "out": str(folder)}))


def of_material(data: TrainingData, folder: Path | None = None, *, most: int = MOST) -> Patient:
    """What a run learns from, as batches and, up to `most` tokens of it, as text; `folder` is where it was prepared."""
    texts: dict[str, Any] = {}
    for name, batches in (("", data.train), ("held_", data.validation)):
        if isinstance(batches, PairBatches):
            texts[f"{name}pairs"] = pairs_of(batches.pairs, data, most)
        else:
            texts[f"{name}texts"] = lines_of(batches, data.tokenizer, most)
    return Patient(
        None,
        data.tokenizer,
        data.source_tokenizer,
        data.train,
        data.validation,
        dropped={} if folder is None else dropped(folder / "data"),
        **texts,
    )


def with_originals(patient: Patient, recipe: Recipe, folder: Path) -> Patient:
    """With lines as the files have them: in what was prepared, whatever a tokenizer loses is lost already."""
    data, names = recipe.data, list(patient.tokenizers())
    if data.kind == "text":
        corpus = Corpus(as_list(data.files), documents=data.documents, field=data.field)
        lines = (line for document in corpus.documents() for line in document.splitlines())
        return replace(patient, originals={names[0]: list(islice(lines, ASKED))})
    files = [str(folder / "data" / "train.tsv")] if data.kind == "embedded" else as_list(data.files)
    columns = (data.columns[0], data.columns[1]) if data.columns else (0, 1)
    pairs, _ = read_pairs(files, columns=columns)
    pairs = pairs[:: max(1, len(pairs) // ASKED)]
    if len(names) == 1:
        return replace(patient, originals={names[0]: [side for pair in pairs for side in pair]})
    return replace(patient, originals={name: [pair[side] for pair in pairs] for side, name in enumerate(names)})


def pairs_of(pairs: Pairs, data: TrainingData, most: int) -> list[Pair]:
    count = min(len(pairs), most // USUAL)
    sides = [
        tokenizer.decode_batch([side[index].tolist() for index in range(count)])
        for side, tokenizer in ((pairs.source, data.source_tokenizer), (pairs.target, data.tokenizer))
    ]
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def lines_of(batches: Batches, tokenizer: Tokenizer, most: int) -> list[str]:
    """The text of all windows, as they stand in the corpus; where some are missing, no line goes on."""
    windows = batches.windows if isinstance(batches, MaskedBatches) else batches
    if not isinstance(windows, WindowBatches):
        return []
    rows: dict[int, np.ndarray[Any, Any]] = {}
    for index in range(min(len(windows), most // (windows.rows * windows.length) + 1)):
        table = windows.batch(0, index)["tokens"].numpy()
        rows.update(zip(windows.samples(0, index).tolist(), table, strict=True))
    places = np.array(sorted(rows), np.int64)
    found = []
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else []:
        stream = np.concatenate([rows[sample] for sample in run.tolist()])
        ends = np.flatnonzero(stream == tokenizer.roles.end) + 1  # where documents end, no line goes on
        pieces = tokenizer.decode_batch([piece.tolist() for piece in np.split(stream, ends)])
        # A window may begin or end within a letter, which is nobody's fault.
        pieces[0], pieces[-1] = pieces[0].lstrip(GARBLED), pieces[-1].rstrip(GARBLED)
        found += [line for piece in pieces for line in piece.splitlines()]
    return found


def dropped(folder: Path) -> Mapping[str, int]:
    """What cleaning took out when the corpus was prepared."""
    place = folder / "pairs"
    if not place.is_dir():
        return {}
    report = read_manifest(place).get("report", {})
    return dict(report.get("dropped", {}))
