"""What a path to a model means: a run's folder stands for the model in it, an adapter names its base model.

`weights.identify_model` finds a model by the name of a shipped one, or at the Hub.
"""

from __future__ import annotations

from pathlib import Path

from chumoku import lora
from chumoku.errors import UsageError
from chumoku.weights.formats.hub import HUB
from chumoku.weights.identify_model import (
    ADAPTER_CONFIG,
    CONFIG,
    IN_RUN,
    check_run_has_model,
    exists,
    identify_model,
    local_path,
)


def resolve_run(path: Path | str) -> Path | str:
    """The model or adapter of a run: last/, or best/ while the run is not finished. Other paths are returned unchanged.

    Raises an error for a run that has neither yet.
    """
    folder = Path(path)
    if exists(folder / CONFIG) or is_adapter(folder):
        return path
    check_run_has_model(folder)
    inner = (folder / name for name in IN_RUN)
    return next((one for one in inner if exists(one / CONFIG) or is_adapter(one)), path)


def is_adapter(path: Path | str) -> bool:
    return exists(Path(path) / ADAPTER_CONFIG)


def check_model(path: Path | str, adapter: Path | str | None = None) -> None:
    """Raise an error if `path` is not a model, or `adapter` not an adapter; torch is not imported.

    A model at the Hub is not looked up.
    """
    if adapter is not None:
        lora.read_adapter_config(resolve_run(adapter))
    if adapter is None and is_adapter(path):
        path = base_model_of(Path(path))
    if not str(path).startswith(HUB):
        identify_model(path)


def base_model_of(folder: Path) -> str:
    """The base model of an adapter: the path it names, absolute or relative to the adapter's folder."""
    base = lora.read_adapter_config(folder).base
    if not base:
        raise UsageError(f"{folder} does not say which model it belongs to. Open the model, with adapter={folder}.")
    if base.startswith(HUB) or exists(local_path(base)):
        return base
    if exists(folder / base):
        return str(folder / base)
    raise UsageError(
        f"The adapter {folder} belongs to the model {base[:200]}, which was not found. Open that model with this "
        "adapter, or, if it is the name of a model on the hub, open hf:owner/name with it."
    )
