"""The files that a recipe reads. Torch is not imported, so that a wrong path is reported at once."""

from __future__ import annotations

from pathlib import Path

from chumoku.data.text_files import find_files
from chumoku.errors import CorpusError
from chumoku.training.settings import DataSettings, as_list


def find_data_files(data: DataSettings) -> list[Path]:
    """The files of data.files and data.validation_files, or the token files of data.prepared."""
    if data.prepared:
        folder = Path(data.prepared)
        if not folder.is_dir():
            raise CorpusError(f"There is no folder {folder}. Write it with: chumoku prepare FILES --out {folder}.")
        return sorted(folder.glob("*/*.tokens"))
    names = [*as_list(data.files), *as_list(data.validation_files)]
    return find_files(names) if names else []
