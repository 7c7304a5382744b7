"""Models at the hub: hf:owner/name, hf:owner/name@revision, hf:owner/name/file.gguf.

huggingface_hub fetches what is needed and keeps it; without a network what is kept is used. The revision is pinned: a
name such as main becomes the commit that it stood for. Every file is checked against the hash by which the hub knows
it: SHA-256 of a large file, git's own of a small one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.errors import DamagedError, MissingExtraError, UsageError

HUB = "hf:"
NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:/([\w.-]+\.gguf))?(?:@([\w./-]{1,100}))?")
# Weights and what explains them; nothing pickled, nothing that could be run. A bundle is whole with its README.md.
DOWNLOAD_PATTERNS = (
    "*.json",
    "*.safetensors",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.spm",
    "1_Pooling/config.json",
    "README.md",
)


class Address(NamedTuple):
    repository: str
    file: str | None
    revision: str


def parse_address(name: str) -> Address:
    match = NAME.fullmatch(name)
    if match is None or ".." in name:
        raise UsageError(
            f"'{name[:80]}' is no model at the hub. Write hf:owner/name, with @revision behind it to pin one."
        )
    return Address(match[1], match[2], match[3] or "main")


def download(name: str) -> Path:
    """The folder or the file on this machine; every file in it is what the hub says it is."""
    asked = parse_address(name)
    folder = _snapshot(asked)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        check_hash(file)
    if asked.file is None:
        return folder
    if not (folder / asked.file).is_file():
        raise UsageError(f"{asked.repository} has no file {asked.file} at {folder.name}.")
    return folder / asked.file


def _snapshot(asked: Address) -> Path:
    hub = _import_hub()
    options: dict[str, Any] = {
        "revision": asked.revision,
        "allow_patterns": [asked.file] if asked.file else list(DOWNLOAD_PATTERNS),
    }
    try:
        return Path(hub.snapshot_download(asked.repository, **options))
    except hub.errors.LocalEntryNotFoundError as error:
        raise UsageError(
            f"{asked.repository} is not kept on this machine, and the hub cannot be reached. Try again with a network, "
            "or copy the model's folder here and name that."
        ) from error
    except hub.errors.HFValidationError as error:
        raise UsageError(f"'{asked.repository}' is no name of a model at the hub: {str(error)[:200]}") from error
    except hub.errors.HfHubHTTPError as error:
        raise UsageError(
            f"The hub has no {asked.repository} at '{asked.revision}' that may be read. Check the name; for a model "
            "with a license to be agreed to, log in with `hf auth login`."
        ) from error


def check_hash(file: Path) -> None:
    """Refuse a file whose bytes are not those that the hub names it by."""
    kept = file.resolve()
    if kept == file.absolute() or kept.parent.name != "blobs":
        raise DamagedError(f"{file} is not a file that the hub's cache keeps. Delete it and fetch the model again.")
    expected = kept.name
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", expected):
        digest = hashlib.sha1(f"blob {kept.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        raise DamagedError(f"{file} is kept under a name that is no hash. Delete it and fetch the model again.")
    with kept.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != expected:
        raise DamagedError(f"{file} is damaged: its bytes are not those the hub has. Delete {kept} and fetch it again.")


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("Models at the hub need huggingface_hub: pip install huggingface_hub.") from error
    return huggingface_hub
