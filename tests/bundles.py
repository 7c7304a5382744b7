"""Small bundles with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from chumoku import text
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.text.tokenizer import Tokenizer as Ours
from chumoku.weights.bundle import Tokenizers, write_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.checksums import atomic_folder


def byte_tokenizer(languages: tuple[str, ...] = ()) -> Ours:
    return text.train(["one text"], kind="byte", languages=languages)


def chat_tokenizer(marks: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> Ours:
    """A byte-level tokenizer with ChatML's special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return Ours(backend)


def make_bundle(folder: Path, kind: str, tokenizer: Ours | None = None, *, seed: int = 7, **changes: Any) -> Path:
    """Write a bundle with random weights, and with a few more embedding rows than tokens, like trained models.

    The weights are larger than a new model's, so that its output depends on its input.
    """
    tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
    sizes = {"width": 12, "heads": 3, "layers": 2, "context": 61, "vocabulary": tokenizer.size + 3}
    config = ModelConfig(**{"kind": kind, **sizes, **changes})
    weights = {
        name: weight * (5 if weight.ndim > 1 else 1) for name, weight in tensors_of(build(config, seed=seed)).items()
    }
    with atomic_folder(folder) as working:
        write_bundle(working, config, weights, Tokenizers(tokenizer, tokenizer))
    return folder
