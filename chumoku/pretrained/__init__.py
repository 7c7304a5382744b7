"""The models that ship with chumoku, each a bundle in this folder.

ja-en    Japanese → English
en-ja    English → Japanese
"""

from __future__ import annotations

from pathlib import Path

from chumoku.errors import UsageError

FOLDER = Path(__file__).parent
NAMES = ("ja-en", "en-ja")


def installed_models() -> list[str]:
    """The names of the shipped models that this installation has."""
    return [name for name in NAMES if (FOLDER / name / "config.json").is_file()]


def find_shipped(name: Path | str) -> Path | None:
    """The folder of a shipped model; None for other names, and if a file or folder of this name exists, which wins."""
    if not isinstance(name, str) or name not in NAMES or Path(name).exists():
        return None
    if name not in installed_models():
        raise UsageError(
            f"This installation has no model {name}: it was installed without the weights. Install chumoku from its "
            "wheel, which contains them, or give the path of a model."
        )
    return FOLDER / name
