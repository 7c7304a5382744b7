"""Settings: all problems are reported at once, each with its key, before any memory is allocated."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Annotated, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from chumoku.config import Settings, load_toml, override, parse_settings, parse_value, settings_to_dict
from chumoku.errors import ChumokuError, ConfigError, UsageError
from chumoku.models.config import Dropout, ModelConfig
from chumoku.models.presets import PRESETS, preset, read_model_config

NAN, INFINITY = float("nan"), float("inf")
NUMBERS = (
    "vocabulary",
    "context",
    "width",
    "layers",
    "heads",
    "feedforward_width",
    "relative_clip",
    "experts_per_token",
)

HOSTILE: list[dict[str, object]] = [
    *({key: bad} for key in NUMBERS for bad in (0, -1, 10**30, NAN, "7", 2.5, True, [4])),
    {"vocabulary": None},
    *({"attention_window": bad} for bad in (0, -1, 10**30, NAN, "7", 2.5, True)),
    {"sliding_window": 7},
    {"kv_heads": 0},
    {"kv_heads": 5},
    {"kv_heads": 8},
    {"heads": 7},
    {"heads": 512},
    {"experts": -1},
    {"experts": 1},
    {"experts": 4, "experts_per_token": 5},
    {"experts": INFINITY},
    {"norm": "LayerNorm"},
    {"norm": 3},
    {"norm_epsilon": 0},
    {"norm_epsilon": -1e-5},
    {"norm_epsilon": NAN},
    {"norm_epsilon": INFINITY},
    {"norm_epsilon": "small"},
    {"position": "rotery"},
    {"position": None},
    {"position": "rotary", "width": 12, "heads": 4},
    {"pairing": "halves"},
    *({"sinusoidal": {"start": bad}} for bad in (-1, 10**30, NAN, "7", 2.5)),
    *({"relative_buckets": bad} for bad in (3, 10**30, NAN, "7", 2.5)),
    {"relative_buckets": 14, "relative_max_distance": 7},
    {"sinusoidal": {"endpoint": 2}},
    {"full_attention_first": True},
    {"first_norm": False},
    {"first_norm": False, "embedding_norm": True, "placement": "post"},
    {"norm_bias": False, "norm": "rms"},
    {"sinusoidal": {"end": True}},
    {"placement": "first"},
    {"kind": "decodr"},
    {"kind": ""},
    {"kind": "decoder", "encoder_layers": 2},
    {"kind": "decoder", "share_embeddings": True},
    {"kind": "encoder", "source_vocabulary": 100},
    {"kind": "decoder", "cross_attention": True},
    {"kind": "decoder", "segments": 2},
    {"kind": "decoder", "head": "masked"},
    {"kind": "encoder", "head": "next"},
    {"kind": "encoder-decoder", "share_embeddings": True, "source_vocabulary": 7},
    {"dropout": 0.1},
    {"dropout": {"embedding": 1.0}},
    {"dropout": {"embedding": -0.1}},
    {"dropout": {"attention": NAN}},
    {"dropout": {"sublayr": 0.1}},
    {"rotary": {"base": 0}},
    {"rotary": {"base": -INFINITY}},
    {"rotary": {"scaling": "yarn"}},
    {"rotary": {"factor": 0.5}},
    {"rotary": {"low": 4.0, "high": 1.0}},
    {"rotary": "on"},
    {"bias": 1},
    {"bias": "false"},
    {"tie_output": None},
    {"widht": 64},
    {"d_model": 64},
    {"n_layer": 4},
    {"": 1},
    {"width": 65536, "layers": 1024},
    {"vocabulary": 1 << 24, "width": 1 << 16, "layers": 1024, "feedforward_width": 1 << 20},
    {"width": "64", "heads": -3, "norm": "lyer", "bias": 0, "unheard_of": {}},
    {"width": {"of": "what"}},
    {"kind": ["decoder"]},
    {"initialization": "kaiming"},
    {"width": 10**5000},
    {"preset": [1]},
    {"preset": None, "kind": 3},
    {"rotary": {"factor": 8.0}},
    {"rotary": {"scaling": "linear"}},
    {"kind": "encoder-decoder", "encoder_layers": 1024, "layers": 1, "width": 1 << 16, "feedforward_width": 1 << 20},
    {"pooling": "max"},
    *({"head_width": bad} for bad in (0, 7, 10**30, 2.5, True)),
    {"head_width": 65536, "heads": 1024, "width": 65536, "layers": 1024},
    {"head_dim": 8},
    {"attention_bias": True},
    {"query_key_norm": "heads"},
    *({key: bad} for key in ("attention_scale", "score_cap", "logit_cap") for bad in (0.0, -1.0, NAN, INFINITY, "1")),
    {"norm_unit_offset": True},
    {"parallel": True, "placement": "post"},
    {"parallel": True, "kind": "encoder-decoder"},
    {"shared_norm": True},
    {"shared_norm": True, "parallel": True, "placement": "sandwich"},
    {"normalize_experts": False},
    {"shared_expert_width": 7},
    *({"experts": 3, "shared_expert_width": bad} for bad in (0, 10**30, NAN, "7", 2.5)),
    {"full_attention_every": 2},
    {"full_attention_every": 1, "attention_window": 5},
    {"no_position_every": 2, "position": "learned"},
    {"no_position_every": 1},
    {"rotary": {"share": 0.1}},
    {"rotary": {"share": 0.01}},
    {"rotary": {"share": 1.5}},
    {"rotary": {"share": 0.5}, "position": "alibi"},
    {"rotary": {"local_base": 77.0}},
    {"rotary": {"attention_factor": 1.5}},
    {"rotary": {"scaling": "longrope", "factor": 2.0}},
    {"rotary": {"short_factors": [1.0]}},
    *(
        {"rotary": {"scaling": "longrope", "short_factors": bad, "long_factors": bad}}
        for bad in ([], [1.0], [0.0], "1")
    ),
    {"rotary": {"scaling": "yarn", "factor": 2.0, "base": 1.0}},
]


class Inner(Settings):
    size: Annotated[int, Field(ge=1)]


class Outer(Settings):
    inner: Inner = Inner(size=1)


def test_there_are_more_than_a_hundred_invalid_configs() -> None:
    assert len(HOSTILE) >= 100


@pytest.mark.parametrize("changes", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_invalid_config_is_refused_with_a_sentence(changes: dict[str, object]) -> None:
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(ConfigError) as refused:
        read_model_config({"vocabulary": 100, **changes})
    assert time.perf_counter() - start < 5.0
    assert tracemalloc.get_traced_memory()[1] < 16 << 20, "no memory was allocated for the model"
    tracemalloc.stop()
    for key, sentence in refused.value.problems:
        assert key.startswith("model.")
        assert sentence.endswith((".", "?"))
        assert len(sentence) < 1000
    blamed = {key.split(".")[1] for key, _ in refused.value.problems}
    assert blamed & set(changes), f"{blamed} are blamed, none of which was changed"


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        preset("gpt2", widht=3, heads=7, norm="lyer", dropout={"embeding": 0.1, "sublayer": 2}, bias="yes", n_layer=3)
    problems = dict(refused.value.problems)
    assert problems == {
        "model.widht": "there is no such key. Did you mean model.width?",
        "model.heads": "7 heads do not divide width = 768; 6 or 8 would.",
        "model.norm": "'lyer' is not a choice; choose 'layer', 'rms' or 'batch'. Did you mean layer?",
        "model.dropout.embeding": "there is no such key. Did you mean model.dropout.embedding?",
        "model.dropout.sublayer": "2 is too large; it must be below 1.0.",
        "model.bias": "'yes' is neither true nor false.",
        "model.n_layer": "there is no such key; it is called model.layers here.",
    }


def test_python_is_checked_like_toml() -> None:
    with pytest.raises(ConfigError, match="heads: 7 heads do not divide width = 30; 5 or 6 would"):
        ModelConfig(vocabulary=5, width=30, heads=7)
    with pytest.raises(ConfigError, match="vocabulary: this key is required"):
        parse_settings(ModelConfig, {})
    with pytest.raises(ConfigError, match=r"widht: there is no such key. Did you mean width\?"):
        ModelConfig(vocabulary=5, widht=3)  # type: ignore[call-arg]
    assert ModelConfig(vocabulary=5, dropout={"sublayer": 0.5}).dropout.sublayer == 0.5  # type: ignore[arg-type]
    assert ModelConfig(vocabulary=np.int64(5), dropout=Dropout(sublayer=0.5)).vocabulary == 5


def test_rotary_with_an_odd_head_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="rotary positions need an even head width, and width / heads = 7 is odd"):
        ModelConfig(vocabulary=5, width=35, heads=5)


def test_settings_cannot_be_changed_afterwards() -> None:
    config = preset("gpt2")
    with pytest.raises(AttributeError):
        config.width = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", PRESETS)
def test_settings_round_trip(name: str) -> None:
    config = preset(name)
    assert parse_settings(ModelConfig, settings_to_dict(config)) == config


def test_a_preset_with_changes_keeps_the_rest() -> None:
    config = preset("gpt2", dropout={"attention": 0.5})
    assert (config.dropout.attention, config.dropout.embedding, config.width) == (0.5, 0.1, 768)
    assert preset("gpt2").dropout.attention == 0.1


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"there is no preset 'gpt-2'\. Did you mean gpt2"):
        preset("gpt-2")


def test_assignments_override_tables() -> None:
    values = {"model": {"width": 3, "dropout": {"embedding": 0.1}}}
    words = ["model.width=512", "model.position=rotary", "model.dropout.attention=0.2", 'train.name="a b"', "x.y=true"]
    assert override(values, words) == {
        "model": {"width": 512, "position": "rotary", "dropout": {"embedding": 0.1, "attention": 0.2}},
        "train": {"name": "a b"},
        "x": {"y": True},
    }
    assert values == {"model": {"width": 3, "dropout": {"embedding": 0.1}}}, "the original is not changed"
    with pytest.raises(ConfigError) as refused:
        override(values, ["model.width", "=3", "model..x=1", "model.width.x=3"])
    assert len(refused.value.problems) == 4


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text()))
def test_any_text_parses_to_a_value(value: object) -> None:
    parse_value(str(value))
    if isinstance(value, bool):
        assert parse_value(str(value).lower()) is value
    elif isinstance(value, int) and abs(value) < 2**63:
        assert parse_value(str(value)) == value


def test_value_cannot_contain_other_keys() -> None:
    assert parse_value("3\nother = 4") == "3\nother = 4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[model\nwidth = 3", "is not valid TOML: .*line 1"),
        (b"width = \xff", "is not UTF-8 at byte 8"),
        (b"#" * (1 << 20) + b"#", r"has 1,048,577 bytes; settings files may have up to 1,048,576"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_toml(file)


def test_an_absent_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent.toml could not be read: No such file or directory"):
        load_toml(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="is a folder, but a regular file is needed"):
        load_toml(tmp_path)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b"\xef\xbb\xbfwidth = 3\r\n")
    assert load_toml(file) == {"width": 3}


def test_choices_equal_those_of_nn() -> None:
    from chumoku.nn import feedforward

    assert get_args(get_type_hints(ModelConfig)["feedforward"]) == feedforward.KINDS


def test_settings_need_no_torch() -> None:
    code = "import sys; from chumoku.models.presets import preset; from chumoku.models.count import count; "
    code += "count(preset('gpt2')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_lists_in_settings_can_be_hashed() -> None:
    """Engines remember what a config builds."""
    rotary = {"scaling": "longrope", "short_factors": [1.0, 1.5], "long_factors": [2.0, 3.0]}
    config = read_model_config({"vocabulary": 11, "width": 4, "heads": 1, "rotary": rotary, "kind": "encoder"})
    labeled = read_model_config({**settings_to_dict(config), "head": "tags", "labels": ["a", "b"]})
    assert hash(config) != hash(labeled)
    assert settings_to_dict(labeled)["rotary"]["long_factors"] == [2.0, 3.0]


def test_a_key_without_default_in_a_nested_table() -> None:
    with pytest.raises(ChumokuError, match=r"inner\.size: this key is required"):
        parse_settings(Outer, {"inner": {}})
