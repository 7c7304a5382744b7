"""What a path to a model means: a run's folder stands for the model in it, an adapter names its base model.

`weights.open_model.local_path` finds a model by the name of a shipped one, or at the Hub.
"""

from __future__ import annotations

from pathlib import Path

from chumoku import lora
from chumoku.errors import UsageError
from chumoku.weights import open_model
from chumoku.weights.bundle import CONFIG
from chumoku.weights.formats.hub import HUB


def resolve_run(path: Path | str) -> Path | str:
    """The model folder of a run: last/, or best/ while the run is not finished. Other paths are returned unchanged."""
    folder = Path(path)
    if open_model.exists(folder / CONFIG) or is_adapter(folder):
        return path
    inner = (folder / name for name in ("last", "best"))
    return next((one for one in inner if open_model.exists(one / CONFIG) or is_adapter(one)), path)


def is_adapter(path: Path | str) -> bool:
    return open_model.exists(Path(path) / open_model.ADAPTER_CONFIG)


def base_model_of(folder: Path) -> str:
    """The base model of an adapter: the path it names, absolute or relative to the adapter's folder."""
    base = lora.read_adapter_config(folder).base
    if not base:
        raise UsageError(f"{folder} does not say which model it belongs to. Open the model, with adapter={folder}.")
    if base.startswith(HUB) or open_model.exists(open_model.local_path(base)):
        return base
    if open_model.exists(folder / base):
        return str(folder / base)
    raise UsageError(
        f"The adapter {folder} belongs to the model {base[:200]}, which was not found. Open that model with this "
        "adapter, or, if it is the name of a model on the hub, open hf:owner/name with it."
    )
