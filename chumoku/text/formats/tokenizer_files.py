"""Tokenizer files of other programs.

    tokenizer.json                      any tokenizer of the `tokenizers` library
    encoder.json + vocab.bpe            GPT-2 (also vocab.json + merges.txt)
    vocab.json + sentencepiece.bpe.model    M2M100
    vocab.txt                           BERT
    *.model, *.spm                      SentencePiece, Unigram or BPE

A folder is searched for these in this order, and for tokenizer_config.json and chat templates. Files are untrusted:
their size and content are checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from chumoku.errors import NoTokenizerError, UsageError
from chumoku.safe_files import check_file
from chumoku.text.formats import m2m100
from chumoku.text.formats.sentencepiece import backend_from_model
from chumoku.text.formats.tokenizer_config import apply_settings, read_chat_template, read_settings, write_tokenizer
from chumoku.text.tokenizer import Tokenizer
from chumoku.text.tokenizer_limits import load_checked_backend

__all__ = ["explain_errors", "is_uncased", "load", "open_backend", "read_limited", "write_tokenizer"]

MAX_FILE_BYTES = 1 << 28
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
T = TypeVar("T")


def load(path: Path | str) -> Tokenizer:
    """Load a tokenizer from a file or folder: ours, or any of the formats above."""
    path = Path(path)
    tokenizer = explain_errors(path, lambda: Tokenizer(open_backend(path)))
    if path.is_dir():
        tokenizer.chat_template = read_chat_template(path)
    return tokenizer


def open_backend(path: Path) -> tokenizers.Tokenizer:
    """The backend of a tokenizer file, or of a folder that contains one."""
    if path.is_dir():
        return _open_folder(path)
    if path.suffix in (".model", ".spm"):
        return explain_errors(path, lambda: backend_from_model(read_limited(path)))
    for vocabulary, merges in GPT2_FILES:
        if path.name in (vocabulary, merges):
            return explain_errors(path, lambda v=vocabulary, m=merges: _gpt2(path.parent / v, path.parent / m))  # type: ignore[misc]
    if path.name == "vocab.txt":
        return explain_errors(path, lambda: _bert(read_limited(path)))
    return explain_errors(path, lambda: load_checked_backend(read_limited(path)))


def _open_folder(folder: Path) -> tokenizers.Tokenizer:
    settings = read_settings(folder)
    backend = _open_first(folder, settings)
    return explain_errors(folder, lambda: apply_settings(backend, settings)) if settings else backend


def _open_first(folder: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return open_backend(folder / "tokenizer.json")
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return explain_errors(folder / vocabulary, lambda v=vocabulary, m=merges: _gpt2(folder / v, folder / m))  # type: ignore[misc]
    pieces, ids = folder / m2m100.MODEL, folder / m2m100.VOCABULARY
    if pieces.is_file() and ids.is_file():
        return explain_errors(ids, lambda: m2m100.m2m100_backend(read_limited(pieces), read_limited(ids), settings))
    for name in ("vocab.txt", *sorted(file.name for file in folder.iterdir() if file.suffix in (".model", ".spm"))):
        if (folder / name).is_file():
            return open_backend(folder / name)
    raise NoTokenizerError(
        f"{folder} has no tokenizer. Expected tokenizer.json, encoder.json with vocab.bpe, vocab.json with merges.txt, "
        "vocab.txt, or a .model or .spm file."
    )


def _gpt2(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    vocab = json.loads(read_limited(vocabulary))
    lines = read_limited(merges).decode("utf-8").splitlines()
    pairs = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#version")]
    if not isinstance(vocab, dict) or not all(one and other and " " not in other for one, other in pairs):
        raise ValueError("the vocabulary is not a table of ids, or a merge is not a pair")
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return backend


def _bert(data: bytes) -> tokenizers.Tokenizer:
    tokens = [line.removesuffix("\r") for line in data.decode("utf-8").removesuffix("\n").split("\n")]
    vocab = {token: number for number, token in enumerate(tokens)}
    specials = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocab]
    if len(specials) < 5:
        raise ValueError("a BERT vocabulary needs [PAD], [UNK], [CLS], [SEP] and [MASK]")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=is_uncased(tokens))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return backend


def is_uncased(tokens: Iterable[str]) -> bool:
    """Whether a BERT vocabulary is lower-case. Letters without a lower-case form, such as ℝ, do not count."""
    return not any(token[:1].lower() != token[:1] for token in tokens if not token.startswith("["))


def read_limited(path: Path) -> bytes:
    size = check_file(path)
    if size > MAX_FILE_BYTES:
        raise UsageError(f"{path} has {size:,} bytes; the limit for a tokenizer file is {MAX_FILE_BYTES:,}.")
    return path.read_bytes()


def explain_errors(path: Path | str, action: Callable[[], T]) -> T:
    """The result of `action`; any error in it becomes a UsageError that names the file."""
    try:
        return action()
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    except Exception as error:
        raise _not_a_tokenizer(path, error) from error
    except BaseException as error:
        # Rust panics of the library are not Exceptions.
        if type(error).__name__ != "PanicException":
            raise
        raise _not_a_tokenizer(path, error) from error


def _not_a_tokenizer(path: Path | str, error: Any) -> UsageError:
    return UsageError(f"{path} is not a readable tokenizer: {str(error)[:200]}. Is the file complete?")
