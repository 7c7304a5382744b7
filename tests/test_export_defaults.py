"""A config with explicit defaults is exported to the same bytes as one without them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from bundles import chat_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from chumoku.config import settings_to_dict
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.presets import preset
from chumoku.weights.bundle import Tokenizers, load, write_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.checksums import write_checksums
from chumoku.weights.convert import WRITERS
from chumoku.weights.families import transformers_rows
from chumoku.weights.families.family import without_defaults

TOKENIZER = chat_tokenizer(("<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>"))
SIZES: dict[str, Any] = {"vocabulary": TOKENIZER.size, "width": 64, "heads": 2, "layers": 2, "context": 31}
CONFIGS = {
    "gpt2": preset("gpt2", **SIZES, feedforward_width=4 * 64),
    "llama": preset("smollm2-135m", **{**SIZES, "kv_heads": 2, "feedforward_width": 256}),
    "bert": preset("bert-base", **SIZES, feedforward_width=256),
    "sentences": preset("minilm-l6", **SIZES, feedforward_width=256),
    "marian": preset(
        "transformer-base",
        **{**SIZES, "pairing": "half", "output_bias": True, "norm_epsilon": 1e-5, "feedforward_width": 256},
    ),
}
TARGETS = {
    **dict.fromkeys(("gpt2", "llama"), ("transformers", "gguf", "ctranslate2", "chumoku")),
    **dict.fromkeys(("bert", "sentences"), ("transformers", "chumoku")),
    "marian": ("transformers", "ctranslate2", "chumoku"),
}
KINDS = {"transformers": "float32", "gguf": "f16", "ctranslate2": "float32", "chumoku": "float32"}


def write_all_defaults(config: ModelConfig) -> dict[str, Any]:
    """The config's values with all defaults written out."""
    derived = {"kv_heads": config.key_heads, "feedforward_width": config.hidden, "head": config.head_kind}
    if config.kind == "encoder-decoder":
        derived |= {"encoder_layers": config.encoder_depth, "source_vocabulary": config.source_tokens}
    return {**settings_to_dict(config), **derived}


def export(config: ModelConfig, target: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "out"
        place.mkdir()
        path = place / "model.gguf" if target == "gguf" else place
        WRITERS[target](
            path, build(config, seed=3), Tokenizers(TOKENIZER, TOKENIZER), KINDS[target], GenerationConfig()
        )
        return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name, targets in TARGETS.items() for target in targets]
)
def test_explicit_default_changes_nothing(name: str, target: str) -> None:
    if target in ("gguf", "ctranslate2"):
        pytest.importorskip(target, reason=f"{target} is not installed")
    short = without_defaults(CONFIGS[name])
    full = write_all_defaults(short)
    usual = export(short, target)

    @given(st.sets(st.sampled_from(sorted(full.keys() - settings_to_dict(short).keys())), min_size=1))
    @settings(max_examples=7)
    def law(keys: set[str]) -> None:
        longer = ModelConfig(**{**settings_to_dict(short), **{key: full[key] for key in keys}})
        found = export(longer, target)
        if target == "chumoku":  # a bundle keeps the config as it was given
            for name in ("config.json", "manifest.json"):
                found[name] = usual[name]
        assert found == usual
        assert without_defaults(longer) == short
        assert transformers_rows(longer) == transformers_rows(short)

    law()


@pytest.mark.parametrize("name", CONFIGS)
def test_all_explicit_defaults_at_once(name: str, tmp_path: Path) -> None:
    full = ModelConfig(**write_all_defaults(CONFIGS[name]))
    assert export(full, "transformers") == export(CONFIGS[name], "transformers")
    write_bundle(tmp_path, full, tensors_of(build(full)), Tokenizers(TOKENIZER, TOKENIZER))
    write_checksums(tmp_path)
    assert load(tmp_path).config == full


def test_other_values_are_kept() -> None:
    changes = {"kv_heads": 1, "feedforward_width": 17, "head": None}
    other = ModelConfig(**{**settings_to_dict(CONFIGS["llama"]), **changes})
    assert without_defaults(other) == other
