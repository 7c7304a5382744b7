"""Files are intact:  every folder with a manifest matches its checksums, and every checkpoint's state can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.errors import DamagedError
from chumoku.training.checkpoint_files import STATE, read_state
from chumoku.weights.bundle import verify_bundle
from chumoku.weights.checksums import MANIFEST

TODO = "Use another copy. In a run, --resume uses the checkpoint before this one."


def run(subject: Subject) -> Iterator[Finding]:
    if subject.folder is None:
        raise Skip("there is no model folder or run folder")
    if subject.damage is not None:
        yield Finding("checkpoint", subject.damage, str(subject.folder), 1.0, TODO)
        return
    places = list(sealed_folders(subject.folder))
    if not places:
        raise Skip("there is no manifest with checksums")
    for place in places:
        try:
            verify_bundle(place)
            if (place / STATE).exists():
                read_state(place)
        except (DamagedError, OSError) as error:
            yield Finding("checkpoint", str(error), str(place), 1.0, TODO)


def sealed_folders(folder: Path) -> Iterator[Path]:
    """The folders that have a manifest: the folder itself, and a run's results and checkpoints."""
    for place in (folder, folder / "last", folder / "best", *sorted((folder / "checkpoints").glob("step-*"))):
        if (place / MANIFEST).is_file() and place.suffix == "":
            yield place


CHECK = Check("checkpoint", "files match their checksums", cheap=False, run=run, needs_model=False)
