"""Read the files of a recipe once, as the run will, and count the lines that it will drop. Nothing is tokenized."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chumoku.data.conversations import Conversation, read_conversations
from chumoku.data.corpus import Corpus
from chumoku.data.labeled import read_examples
from chumoku.data.pairs import Cleaning, read_pairs
from chumoku.data.preferences import Preference, read_preferences
from chumoku.data.prompts import Prompt, read_prompts
from chumoku.data.report import Report
from chumoku.data.sentences import read_sentences
from chumoku.data.text_files import find_files
from chumoku.training.datasets.chat import chat_columns
from chumoku.training.settings import LABEL_HEADS, DataSettings, as_list, columns_of, languages_of

MOST_BYTES = 1 << 26  # of files that are read; about ten seconds


def check_lines(data: DataSettings) -> Report | None:
    """What the files of data.files have, and what of it is dropped; None if they are not read here.

    Files of more than MOST_BYTES, prepared data and the embedded corpus are not read.
    """
    if not data.files or sum(path.stat().st_size for path in find_files(as_list(data.files))) > MOST_BYTES:
        return None
    files = as_list(data.files)
    if data.kind in LABEL_HEADS:
        return read_examples(files, tagged=data.kind == "tags", columns=data.columns)[1]
    if data.kind == "pairs":
        return read_pairs(files, columns=columns_of(data), cleaning=Cleaning(languages=languages_of(data)))[1]
    if data.kind == "sentences":
        return read_sentences(files, columns=tuple(data.columns or (0, 1)), languages=languages_of(data))[1]
    if data.kind == "chat":
        return _count(files, lambda paths, report: read_conversations(paths, chat_columns(data), report))
    if data.kind in ("preferences", "prompts"):
        return _count(files, read_preferences if data.kind == "preferences" else read_prompts)
    corpus = Corpus(files, documents=data.documents, field=data.field)
    for _ in corpus.pieces():
        pass
    return corpus.report


def _count(files: list[str], read: Callable[..., Iterable[Conversation | Preference | Prompt]]) -> Report:
    paths = find_files(files)
    report = Report(files=[str(path) for path in paths])
    for one in read(paths, report):
        report.read += 1
        if one.problem is None:
            report.kept += 1
        else:
            report.drop(one.problem, one.file, one.line, " ⇥ ".join(one.contents))
    return report
