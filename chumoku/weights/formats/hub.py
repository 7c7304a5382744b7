"""Models at the Hugging Face Hub: hf:owner/name, hf:owner/name@revision, hf:owner/name/file.gguf.

huggingface_hub downloads the files into its cache; without a network, cached files are used. A revision such as main is
resolved to a commit. Every file is checked against its hash at the Hub: SHA-256 of large files, git's hash of small
ones.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.errors import DamagedError, MissingExtraError, UsageError

HUB = "hf:"
NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:/([\w.-]+\.gguf))?(?:@([\w./-]{1,100}))?")
# Weights, configs, tokenizers and chat templates, but no pickle files and no other code. A bundle's manifest lists
# README.md.
DOWNLOAD_PATTERNS = (
    *("*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model", "*.spm"),
    *("1_Pooling/config.json", "chat_template.jinja", "README.md"),
)


class Address(NamedTuple):
    repository: str
    file: str | None
    revision: str


def parse_address(name: str) -> Address:
    match = NAME.fullmatch(name)
    if match is None or ".." in name:
        raise UsageError(
            f"'{name[:80]}' is not the name of a model at the Hub. Write hf:owner/name or hf:owner/name@revision."
        )
    return Address(match[1], match[2], match[3] or "main")


def download(name: str) -> Path:
    """Download a model or take it from the cache; returns the path of its folder or GGUF file, with hashes checked."""
    address = parse_address(name)
    folder = _snapshot(address)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        check_hash(file)
    if address.file is None:
        return folder
    if not (folder / address.file).is_file():
        raise UsageError(f"{address.repository} has no file {address.file} at {folder.name}.")
    return folder / address.file


def _snapshot(address: Address) -> Path:
    hub = import_hub()
    options: dict[str, Any] = {
        "revision": address.revision,
        "allow_patterns": [address.file] if address.file else list(DOWNLOAD_PATTERNS),
    }
    try:
        return Path(hub.snapshot_download(address.repository, **options))
    except hub.errors.LocalEntryNotFoundError as error:
        raise UsageError(
            f"{address.repository} is not in the cache, and the Hub cannot be reached. Try again with a network "
            "connection, or copy the model's folder to this machine and give its path."
        ) from error
    except hub.errors.HFValidationError as error:
        raise UsageError(f"'{address.repository}' is not a model name at the Hub: {str(error)[:200]}") from error
    except hub.errors.HfHubHTTPError as error:
        raise UsageError(
            f"{address.repository} at '{address.revision}' does not exist at the Hub or is not accessible. Check the "
            "name; for a gated model, log in with `hf auth login`."
        ) from error


def check_hash(file: Path) -> None:
    """Refuse a file in the Hub's cache whose content does not match the hash that it is stored under."""
    blob = file.resolve()
    if blob == file.absolute() or blob.parent.name != "blobs":
        raise DamagedError(f"{file} is not a file of the Hub's cache. Delete it and download the model again.")
    expected = blob.name
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", expected):
        digest = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        raise DamagedError(f"{file} is cached under a name that is not a hash. Delete it and download the model again.")
    with blob.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != expected:
        raise DamagedError(f"{file} is damaged: its hash is wrong. Delete {blob} and download the model again.")


def import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("Models at the Hub need huggingface_hub: pip install huggingface_hub.") from error
    return huggingface_hub
