"""A folder of text files → one text for each file, with its name first, so that what is found can be told apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chumoku.data.text_files import open_members, read_lines
from chumoku.errors import CorpusError
from chumoku.safe_files import check_file

SUFFIXES = (".txt", ".md")
MAX_BYTES = 1 << 22  # of a file; a model reads far less


def read_documents(folder: Path) -> Iterator[str]:
    """The text of every .txt and .md file in the folder and its subfolders: its name, a line break, and its lines."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise CorpusError(f"The folder {folder} has no text files. They end in {' or '.join(SUFFIXES)}.")
    return (text for text in map(_read, files, (path.relative_to(folder) for path in files)) if text)


def _read(path: Path, name: Path) -> str:
    """The name and the text; empty for a file without text."""
    size = check_file(path)
    if size > MAX_BYTES:
        raise CorpusError(f"{path} has {size:,} bytes; a text has at most {MAX_BYTES:,}. Split it into several files.")
    lines = []
    for member in open_members(path):
        for line in read_lines(member.stream, max_bytes=MAX_BYTES):
            if line.problem is not None:
                raise CorpusError(f"{path}:{line.number}: {line.problem}. Correct this line, or move the file away.")
            lines.append(line.text)
    text = "\n".join(lines).strip()
    return f"{name}\n{text}" if text else ""
