"""What was saved is what is there:  every sealed folder against its sums, and every checkpoint's state reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.errors import DamagedError
from chumoku.training.checkpoint_files import STATE, read_state
from chumoku.weights.bundle import verify_bundle
from chumoku.weights.checksums import MANIFEST

TODO = "Use another copy; of a run, the checkpoint before this one: --resume finds it by itself."


def run(patient: Patient) -> Iterator[Finding]:
    if patient.folder is None:
        raise Skip("there is no folder of a model or a run")
    if patient.damage is not None:
        yield Finding("checkpoint", patient.damage, str(patient.folder), 1.0, TODO)
        return
    places = list(sealed_folders(patient.folder))
    if not places:
        raise Skip("no folder here is sealed")
    for place in places:
        try:
            verify_bundle(place)
            if (place / STATE).exists():
                read_state(place)
        except (DamagedError, OSError) as error:
            yield Finding("checkpoint", str(error), str(place), 1.0, TODO)


def sealed_folders(folder: Path) -> Iterator[Path]:
    """The folder itself, or a run's results and checkpoints."""
    for place in (folder, folder / "last", folder / "best", *sorted((folder / "checkpoints").glob("step-*"))):
        if (place / MANIFEST).is_file() and place.suffix == "":
            yield place


CHECK = Check("checkpoint", "files are what was saved", cheap=False, run=run, of_model=False)
