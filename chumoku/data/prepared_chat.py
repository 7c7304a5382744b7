"""Conversations → token ids and learned marks on disk: read, split and encoded once, then memory-mapped."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from chumoku.data.chat_samples import ChatSample, ConversationEncoder, EncodedConversation
from chumoku.data.conversations import Columns, read_conversations
from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, dtype_for
from chumoku.data.report import Report
from chumoku.data.split import check_share
from chumoku.data.text_files import compute_fingerprints, find_files, refuse_if_changed
from chumoku.text import Tokenizer
from chumoku.text.chat_template import template_settings
from chumoku.text.progress import Progress, silent

MARKS = np.dtype("|u1")  # of the file that says which tokens are learned


class ChatSamples:
    """Encoded conversations: `samples[i]` has their tokens, and which of them are learned."""

    def __init__(self, tokens: RaggedArray, learned: RaggedArray) -> None:
        self.tokens, self.learned = tokens, learned

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> ChatSample:
        return ChatSample(self.tokens[index].astype(np.int64), self.learned[index].astype(bool))


class Record(Protocol):
    """A conversation, or another record of messages."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def problem(self) -> str | None: ...  # the reason for dropping it
    @property
    def contents(self) -> list[str]: ...
    @property
    def identity(self) -> str: ...
    @property
    def questions(self) -> str: ...


R = TypeVar("R", bound=Record)


class Entry(NamedTuple):
    """The samples of one record, and a hash of what the user says, which decides their part."""

    digest: bytes
    samples: list[ChatSample]


def prepare_chat(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    length: int,
    columns: Columns = None,
    validation: float = 0.1,
    progress: Progress = silent,
) -> Path:
    """Read, encode and split conversations into `folder`, and return it. Does nothing if no input has changed.

    length       the most tokens of a sample
    columns      question and answer, as in `read_conversations`
    validation   the fraction of conversations for validation; those with the same questions stay together
    """
    encoder = ConversationEncoder(tokenizer, length)
    return prepare_records(
        files,
        tokenizer,
        Path(folder),
        inputs={"columns": columns and list(columns), "length": length},
        sides=("conversations",),
        read=lambda paths, report: read_conversations(paths, columns, report),
        encode=lambda one: encoder(one.messages, one.tools),
        validation=validation,
        progress=progress,
    )


def prepare_records(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    inputs: dict[str, Any],
    sides: tuple[str, ...],
    read: Callable[[Sequence[Path], Report], Iterable[R]],
    encode: Callable[[R], EncodedConversation],
    validation: float,
    progress: Progress,
) -> Path:
    """Read, encode and split records into `folder`. Sample i of a record goes to side i, or all to the only side."""
    paths = find_files(files)
    check_share(validation)
    inputs = {
        "sources": compute_fingerprints(paths, progress),
        "tokenizer": tokenizer.fingerprint,
        "template": template_settings(tokenizer.chat_template),
        "validation": validation,
        **inputs,
    }
    if is_up_to_date(folder, inputs):
        return folder
    with replace_folder(folder) as working, refuse_if_changed(paths):
        report = Report(files=[str(path) for path in paths])
        entries, cut = _encode_all(read(paths, report), encode, report, progress)
        validation_places = choose_validation([entry.digest for entry in entries], validation)
        split: dict[str, list[Entry]] = {"train": [], "validation": []}
        for place, entry in enumerate(entries):
            split["validation" if place in validation_places else "train"].append(entry)
        parts = {name: _write(chosen, sides, working / name, tokenizer) for name, chosen in split.items()}
        counts = {name: len(chosen) for name, chosen in split.items()}
        write_manifest(working, inputs, parts=parts, report={**report.as_dict(), "cut": cut, **counts})
    return folder


def open_chat(folder: Path | str, part: str = "train", side: str = "conversations") -> ChatSamples:
    """The samples of a part, "train" or "validation"."""
    folder = Path(folder)
    entries = read_manifest(folder)["parts"][part][side]
    return ChatSamples(RaggedArray(folder, entries["tokens"]), RaggedArray(folder, entries["learned"]))


def choose_validation(digests: Sequence[bytes], share: float) -> set[int]:
    """The places of the validation data; equal hashes stay together, and at least one is chosen if there are two."""
    if share == 0 or len(set(digests)) < 2:
        return set()
    limit = max(int(share * 2**64).to_bytes(8), min(digests))
    return {place for place, digest in enumerate(digests) if digest <= limit}


def _encode_all(
    records: Iterable[R], encode: Callable[[R], EncodedConversation], report: Report, progress: Progress
) -> tuple[list[Entry], int]:
    """The encoded records, and how many of them were cut."""
    entries: list[Entry] = []
    known: set[bytes] = set()
    cut = 0
    for one in records:
        report.read += 1
        progress("tokenizing", report.read, unit="conversations")
        key = hash_text(one.identity)
        problem, detail = one.problem or ("duplicate" if key in known else None), ""
        if problem is None:
            known.add(key)
            encoded = encode(one)
            problem, detail = encoded.problem, encoded.detail
        if problem is not None:
            report.drop(problem, one.file, one.line, detail or " ⇥ ".join(one.contents))
            continue
        cut += encoded.cut
        said = " ".join(unicodedata.normalize("NFKC", one.questions).casefold().split())
        entries.append(Entry(hash_text(said), encoded.samples))
    report.kept = len(entries)
    if not entries:
        raise report.nothing_usable("conversations", "Check the records and train.sequence_length.")
    return entries, cut


def hash_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def _write(entries: Sequence[Entry], sides: tuple[str, ...], path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    with ExitStack() as stack:
        writers = [
            [
                stack.enter_context(RaggedArrayWriter(path.with_name(f"{path.name}-{side}{suffix}"), dtype))
                for suffix, dtype in (("", dtype_for(tokenizer.size)), ("-learned", MARKS))
            ]
            for side in sides
        ]
        for entry in entries:
            for place, sample in enumerate(entry.samples):
                for writer, values in zip(writers[min(place, len(sides) - 1)], sample, strict=True):
                    writer.add(values)
        closed = [[writer.close() for writer in both] for both in writers]
    return {side: dict(zip(("tokens", "learned"), both, strict=True)) for side, both in zip(sides, closed, strict=True)}
