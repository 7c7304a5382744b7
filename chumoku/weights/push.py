"""Upload a model folder to the Hugging Face Hub: weights, config, tokenizer, model card and certificate, in one commit.

A bundle is verified first, so damaged weights are never published. Only regular files that a model consists of are
uploaded, whatever else is in the folder.
"""

from __future__ import annotations

import importlib
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.errors import ChumokuError, UsageError
from chumoku.weights.bundle import verify_bundle
from chumoku.weights.checksums import MANIFEST, check_regular_file, read_manifest
from chumoku.weights.formats.hub import DOWNLOAD_PATTERNS, import_hub

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
NEEDED = ("config.json", "README.md")


class Pushed(NamedTuple):
    url: str  # of the repository
    commit: str
    files: dict[str, int]  # the bytes of each uploaded file


def push(folder: Path | str, repository: str, *, private: bool = False, message: str | None = None) -> Pushed:
    """Upload a model folder (of chumoku, or one that `convert` wrote) to a repository of the Hub.

    repository   "owner/name"; it is created if it does not exist
    private      create it as a private repository

        chumoku.push("runs/mine/last", "me/my-model")
    """
    if not REPOSITORY.fullmatch(repository) or ".." in repository:
        raise UsageError(f"'{repository[:80]}' is not the name of a repository. Write owner/name.")
    files = files_to_push(Path(folder))
    hub = import_hub()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    additions = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files.items()]
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(repository, additions, commit_message=message or "Upload a model with chumoku")
    except hub.errors.LocalTokenNotFoundError as error:
        raise UsageError("You are not logged in at the Hub. Log in with `hf auth login`, or set HF_TOKEN.") from error
    except ValueError as error:  # before anything is sent
        raise UsageError(f"The Hub does not accept {folder}/README.md: {str(error)[:300]}") from error
    except hub.errors.HfHubHTTPError as error:
        raise ChumokuError(_explain(error, repository)) from error
    except (OSError, _transport_error(hub)) as error:
        raise ChumokuError(f"The Hub cannot be reached ({type(error).__name__}); nothing was published.") from error
    sizes = {name: path.stat().st_size for name, path in files.items()}
    return Pushed(f"{api.endpoint}/{repository}", commit.oid, sizes)


def files_to_push(folder: Path) -> dict[str, Path]:
    """The files of a model folder by their name in the repository; UsageError if something is missing or strange."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Push a model's folder, such as runs/mine/last.")
    if (folder / MANIFEST).exists():
        verify_bundle(folder)
        names = {*read_manifest(folder), MANIFEST}
    else:
        found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        names = {name for name in found if any(fnmatch(name, pattern) for pattern in DOWNLOAD_PATTERNS)}
    for name in NEEDED:
        if name not in names:
            raise UsageError(f"{folder} has no {name}, so it is not a model folder that can be published.")
    if not any(name.endswith(".safetensors") for name in names):
        raise UsageError(f"{folder} has no weights (.safetensors), so there is nothing to publish.")
    for name in names:
        check_regular_file(folder / name)
    return {name: folder / name for name in sorted(names)}


def _explain(error: Any, repository: str) -> str:
    status = getattr(error.response, "status_code", None)
    if status in (401, 403):
        return (
            f"The Hub refused to write to {repository} (status {status}). Log in with `hf auth login` as an owner of "
            "it, with a token that may write."
        )
    return f"The Hub did not accept the upload to {repository} (status {status}); nothing was published."


def _transport_error(hub: Any) -> type[Exception]:
    """The base class of connection errors of the HTTP library that huggingface_hub uses."""
    library = importlib.import_module(type(hub.get_session()).__module__.partition(".")[0])
    found: type[Exception] = library.HTTPError
    return found
