"""Name → subject: opens a recipe, a model of any format, or a run folder for examination.

A recipe's corpus is prepared as in training, in a temporary folder, and its model is freshly initialized. A model in a
run folder is examined with the corpus of that run, if the files still exist.
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
from chumoku.config import parse_settings, settings_to_dict
from chumoku.data.batches import Batches, MaskedBatches, PairBatches, WindowBatches
from chumoku.data.chat_batches import ChatBatches
from chumoku.data.conversations import read_conversations
from chumoku.data.corpus import Corpus
from chumoku.data.labeled import read_examples
from chumoku.data.labeled_batches import LabeledBatches
from chumoku.data.manifest import read_manifest
from chumoku.data.packed_pairs import PackedPairBatches
from chumoku.data.pairs import Pair, read_pairs
from chumoku.data.preference_batches import PreferenceBatches
from chumoku.data.preferences import read_preferences
from chumoku.data.prepared import Pairs
from chumoku.data.prepared_chat import ChatSamples
from chumoku.data.prompt_batches import PromptBatches
from chumoku.data.prompts import read_prompts
from chumoku.data.report import Report
from chumoku.data.sentence_batches import SentenceBatches
from chumoku.data.span_corruption import SpanBatches
from chumoku.data.text_files import find_files
from chumoku.doctor.sentence_rows import AnchorBatches
from chumoku.doctor.subject import Subject
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.pretrained import installed_models
from chumoku.text import Tokenizer
from chumoku.training.datasets import TrainingData, prepare
from chumoku.training.datasets.chat import chat_columns
from chumoku.training.objectives import make_objective
from chumoku.training.outputs import create_result
from chumoku.training.recipe import BUILT_IN, Recipe, load_recipe
from chumoku.training.settings import LABEL_HEADS, TrainSettings, as_list
from chumoku.training.teacher import check_teacher, load_teacher, shared_outputs
from chumoku.weights import identify_model, open_model
from chumoku.weights.bundle import Bundle, Tokenizers

MAX_TOKENS = 4_000_000  # corpus tokens that are decoded to text
SENTENCE_TOKENS = 20  # assumed length of a sentence
ORIGINAL_LINES = 20_000  # lines read from the files
EXAMINED_ROWS = 8  # of a batch of chosen answers
REPLACEMENT = "\ufffd"  # a character that was cut in two decodes to this
Notify = Callable[[str], None]


@contextmanager
def open_subject(
    name: str, changes: Sequence[str] = (), notify: Notify = lambda sentence: None, *, precision: str | None = None
) -> Iterator[Subject]:
    """Open a recipe, model or run folder by name. `changes` are key=value words for a recipe.

    `notify` receives progress messages. A model keeps the precision of its file unless `precision` is given.
    """
    with tempfile.TemporaryDirectory(prefix="chumoku-doctor-") as working:
        if is_recipe(name) and precision is not None:
            raise UsageError("A recipe sets the precision itself (train.precision). Leave --precision out.")
        if is_recipe(name):
            yield subject_from_recipe(load_recipe(name, changes), Path(working), notify)
        elif changes:
            raise UsageError(f"{changes[0]} changes a recipe, but {name} is not a recipe. Leave it out.")
        else:
            yield subject_from_model(name, Path(working), notify, precision=precision)


def is_recipe(name: str) -> bool:
    stored = identify_model.exists(Path(name)) or name in installed_models()
    return name.endswith(".toml") or (not stored and (BUILT_IN / f"{name}.toml").exists())


def subject_from_recipe(recipe: Recipe, working: Path, notify: Notify) -> Subject:
    notify("Preparing the corpus …")
    init = None if recipe.init is None else open_model.load(recipe.init)
    teacher = load_teacher(recipe, torch.device("cpu"))
    data = prepare(with_output_folder(recipe, working), teacher if init is None else init)
    tokenizers = Tokenizers(data.tokenizer, data.source_tokenizer)
    model = create_result(recipe, data.config, tokenizers, init=init, device=torch.device("cpu")).model
    subject = replace(add_original_lines(subject_from_data(data, working), recipe, working), model=model, recipe=recipe)
    if teacher is None:
        return subject
    check_teacher(teacher, data)
    objective = make_objective(recipe, model, teacher=teacher.model, outputs=shared_outputs(teacher))
    return replace(subject, objective=objective)


def subject_from_model(name: str, working: Path, notify: Notify, *, precision: str | None = None) -> Subject:
    folder = identify_model.local_path(name)
    run = find_run(folder)
    path = next((place for place in (folder / "last", folder / "best") if run == folder and place.is_dir()), name)
    try:
        bundle = pipeline.load(path, precision=precision)
    except DamagedError as error:
        return Subject(folder=folder, damage=str(error))
    subject = Subject(bundle.model, folder=run or folder)
    if bundle.has_tokenizer:
        subject = replace(subject, tokenizer=bundle.tokenizer, source_tokenizer=bundle.source_tokenizer)
    return subject if run is None else add_corpus(subject, bundle, run, working, notify)


def find_run(folder: Path) -> Path | None:
    """The run folder of a model: the folder itself or its parent; None if neither is a run."""
    return next(
        (place for place in (folder, folder.absolute().parent) if (place / identify_model.RECIPE_FILE).is_file()), None
    )


def add_corpus(subject: Subject, bundle: Bundle, run: Path, working: Path, notify: Notify) -> Subject:
    notify(f"Reading the corpus of {run} …")
    try:
        recipe = load_recipe(run)
        prepared = subject_from_data(prepare(with_output_folder(recipe, working), bundle), working)
        with_data = add_original_lines(prepared, recipe, working)
    except (ChumokuError, OSError, ValueError, TypeError, RecursionError) as error:
        notify(f"The corpus cannot be examined: {str(error)[:300]}")
        return subject
    return replace(with_data, model=bundle.model, folder=run, recipe=recipe)


def with_output_folder(recipe: Recipe, folder: Path) -> Recipe:
    """The same recipe with another train.out."""
    return replace(recipe, train=parse_settings(TrainSettings, {**settings_to_dict(recipe.train), "out": str(folder)}))


def subject_from_data(data: TrainingData, folder: Path | None = None, *, max_tokens: int = MAX_TOKENS) -> Subject:
    """A subject without a model: batches, and up to `max_tokens` tokens of text; `folder` has the prepared files."""
    texts: dict[str, Any] = {}
    train, validation = examined_batches(data.train), examined_batches(data.validation)
    for name, batches in (("", train), ("validation_", validation)):
        if isinstance(batches, LabeledBatches):
            count = min(len(batches.texts), max_tokens // SENTENCE_TOKENS)
            rows = [batches.texts.tokens[index].tolist() for index in range(count)]
            texts[f"{name}texts"] = data.tokenizer.decode_batch(rows)
        elif isinstance(batches, PairBatches):
            texts[f"{name}pairs"] = decode_pairs(batches.pairs, data, max_tokens)
        elif isinstance(batches, ChatBatches):
            texts[f"{name}texts"] = decode_answers(batches.conversations, data.tokenizer, max_tokens)
        elif isinstance(batches, SentenceBatches):
            sides = batches.sentences.sides
            texts[f"{name}pairs"] = decode_pairs(Pairs(sides["anchor"], sides["positive"]), data, max_tokens)
        else:
            texts[f"{name}texts"] = decode_lines(batches, data.tokenizer, max_tokens)
    return Subject(
        None,
        data.tokenizer,
        data.source_tokenizer,
        _with_tokens(train),
        _with_tokens(validation),
        prompts=data.train if isinstance(data.train, PromptBatches) else None,
        grpo=data.grpo,
        chat=isinstance(train, ChatBatches),
        dropped={} if folder is None else read_dropped(folder / "data"),
        **texts,
    )


def _with_tokens(batches: Batches) -> Batches:
    return AnchorBatches(batches) if isinstance(batches, SentenceBatches) else batches


def examined_batches(batches: Batches) -> Batches:
    """The batches that checks can read: packed pairs one by one, in padded batches; the chosen chats of preferences;
    prompts with their right answers.
    """
    if isinstance(batches, PackedPairBatches):
        return batches.pair_batches
    if isinstance(batches, PreferenceBatches):
        return _one_by_one(batches.pairs.chosen, batches.pad)
    if isinstance(batches, PromptBatches):
        return _one_by_one(batches.prompts.samples)
    return batches


def _one_by_one(chats: ChatSamples, pad: int = 0) -> ChatBatches:
    return ChatBatches(chats, length=int(chats.tokens.lengths.max()), rows=EXAMINED_ROWS, pad=pad)


def add_original_lines(subject: Subject, recipe: Recipe, folder: Path) -> Subject:
    """The subject with lines read from the files; decoded tokens lack whatever the tokenizer dropped."""
    data, names = recipe.data, list(subject.tokenizers())
    if data.prepared is not None and not data.files:
        return subject  # a prepared folder keeps tokens, not lines
    if data.kind in LABEL_HEADS:
        examples, _ = read_examples(as_list(data.files), tagged=data.kind == "tags", columns=data.columns)
        texts = [example.text for example in examples[:: max(1, len(examples) // ORIGINAL_LINES)]]
        return replace(subject, originals={names[0]: texts})
    if data.kind == "text":
        corpus = Corpus(as_list(data.files), documents=data.documents, field=data.field)
        lines = (line for document in corpus.documents() for line in document.splitlines())
        return replace(subject, originals={names[0]: list(islice(lines, ORIGINAL_LINES))})
    if data.kind in ("chat", "preferences", "prompts"):
        paths, report = find_files(as_list(data.files)), Report()
        found: Iterator[Any] = read_conversations(paths, chat_columns(data), report)
        if data.kind != "chat":
            found = (read_preferences if data.kind == "preferences" else read_prompts)(paths, report)
        contents = (content for one in found for content in one.contents)
        return replace(subject, originals={names[0]: list(islice(contents, ORIGINAL_LINES))})
    files = [str(folder / "data" / "train.tsv")] if data.kind == "embedded" else as_list(data.files)
    columns = (data.columns[0], data.columns[1]) if data.columns else (0, 1)
    pairs, _ = read_pairs(files, columns=columns)
    pairs = pairs[:: max(1, len(pairs) // ORIGINAL_LINES)]
    if len(names) == 1:
        return replace(subject, originals={names[0]: [side for pair in pairs for side in pair]})
    return replace(subject, originals={name: [pair[side] for pair in pairs] for side, name in enumerate(names)})


def decode_pairs(pairs: Pairs, data: TrainingData, max_tokens: int) -> list[Pair]:
    count = min(len(pairs), max_tokens // SENTENCE_TOKENS)
    sides = [
        tokenizer.decode_batch([side[index].tolist() for index in range(count)])
        for side, tokenizer in ((pairs.source, data.source_tokenizer), (pairs.target, data.tokenizer))
    ]
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def decode_answers(conversations: ChatSamples, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """The lines of the assistant's messages."""
    count = int(np.searchsorted(conversations.tokens.ends, max_tokens, side="right"))
    samples = (conversations[index] for index in range(count))
    answers = tokenizer.decode_batch([sample.tokens[sample.learned].tolist() for sample in samples])
    return [line for answer in answers for line in answer.splitlines()]


def decode_lines(batches: Batches, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """The decoded lines of all windows in corpus order. A line does not continue across a missing window."""
    windows = batches.windows if isinstance(batches, MaskedBatches | SpanBatches) else batches
    if not isinstance(windows, WindowBatches):
        return []
    rows: dict[int, np.ndarray[Any, Any]] = {}
    for index in range(min(len(windows), max_tokens // (windows.rows * windows.length) + 1)):
        table = windows.batch(0, index)["tokens"].numpy()
        rows.update(zip(windows.samples(0, index).tolist(), table, strict=True))
    places = np.array(sorted(rows), np.int64)
    found = []
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else []:
        stream = np.concatenate([rows[sample] for sample in run.tolist()])
        ends = np.flatnonzero(stream == tokenizer.roles.end) + 1  # a line does not continue across documents
        pieces = tokenizer.decode_batch([piece.tolist() for piece in np.split(stream, ends)])
        # A window may start or end inside a character; that is not an error of the corpus.
        pieces[0], pieces[-1] = pieces[0].lstrip(REPLACEMENT), pieces[-1].rstrip(REPLACEMENT)
        found += [line for piece in pieces for line in piece.splitlines()]
    return found


def read_dropped(folder: Path) -> Mapping[str, int]:
    """How many lines cleaning removed when the corpus was prepared, by reason."""
    names = ("pairs", "chat", "sentences", "preferences", "prompts")
    place = next((folder / name for name in names if (folder / name).is_dir()), None)
    if place is None:
        return {}
    report = read_manifest(place).get("report", {})
    return dict(report.get("dropped", {}))
