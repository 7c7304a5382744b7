"""Import and export of transformers models, compared with the transformers library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from bundles import byte_tokenizer, make_bundle
from foreign import (
    LLAMA3,
    ROPE,
    VARIANTS,
    VOCABULARY,
    bert,
    edit_config,
    equal_models,
    export,
    llama,
    marian,
    outputs_of_both,
    randomize,
    save_model,
    save_variant,
)
from hub_stand_in import make_hub_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy import LazyModule
from safetensors.torch import load_file, save_file

import chumoku
from chumoku import lora
from chumoku.data.corpus import Corpus
from chumoku.data.shards import prepare_text
from chumoku.decoding.beam import search
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.evaluation.perplexity import score_text
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.text.backend import set_prefix_and_suffix
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.families import FAMILIES, find_family, transformers_rows
from chumoku.weights.families.table import check_tensors, half_order, head_order, reorder_heads, select_rows
from chumoku.weights.formats import hub, safetensors_source
from chumoku.weights.formats.transformers_folder import inspect_folder, read_folder
from chumoku.weights.identify_model import identify_model
from chumoku.weights.open_model import load, read_model_config

peft = LazyModule("peft")
CLOSE = 1e-5


def reopen(folder: Path, like: torch.nn.Module) -> torch.nn.Module:
    options = {"add_pooling_layer": False} if isinstance(like, transformers.BertModel) else {}
    return type(like).from_pretrained(folder, **options).eval()


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path)
    ours, expected = outputs_of_both(load(tmp_path).model, theirs)
    assert (ours - expected).abs().max() <= CLOSE


@pytest.mark.parametrize("name", VARIANTS)
def test_import_export_import_is_the_identity(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path / "theirs")
    first = load(tmp_path / "theirs").model
    folder = export(first, tmp_path / "ours")
    again = load(folder).model
    assert equal_models(again, first)
    output, expected = outputs_of_both(again, reopen(folder, theirs))
    assert (output - expected).abs().max() <= CLOSE
    kept = load_file(tmp_path / "theirs" / "model.safetensors")
    out = load_file(folder / "model.safetensors")
    assert all(torch.equal(kept[key], tensor) for key, tensor in out.items() if key in kept)
    assert set(out) <= set(kept) | {"cls.predictions.decoder.bias"}


SMALL = {"vocabulary": VOCABULARY, "context": 67, "layers": 2, "feedforward_width": 41}
LLAMAS = st.fixed_dictionaries({
    "kv_heads": st.sampled_from([None, 2, 1]), "pairing": st.sampled_from(["interleaved", "half"]),
    "bias": st.booleans(), "tie_output": st.booleans(), "norm_epsilon": st.sampled_from([1e-2, 1e-5]),
    "rotary": st.sampled_from([{}, {"base": 77.0}, {"scaling": "linear", "factor": 3.0},
        {"scaling": "llama3", "factor": 8.0, "original": 16, "base": 77.0},
        {"scaling": "yarn", "factor": 4.0, "original": 16, "high": 32.0, "attention_factor": 1.3}]),
    "head_width": st.sampled_from([None, 10]), "attention_bias": st.sampled_from([None, "all", "none"]),
    "no_position_every": st.sampled_from([None, 2]), "attention_window": st.sampled_from([None, 5]),
})  # fmt: skip
MARIANS = st.fixed_dictionaries({
    "position": st.sampled_from(["sinusoidal", "learned"]), "pairing": st.sampled_from(["interleaved", "half"]),
    "share_embeddings": st.booleans(), "tie_output": st.booleans(), "output_bias": st.booleans(),
    "feedforward": st.sampled_from(["relu", "silu", "gelu", "gelu_tanh"]), "scale_embedding": st.booleans(),
    "encoder_layers": st.sampled_from([None, 3]),
})  # fmt: skip
KINDS = st.one_of(
    LLAMAS.map(lambda c: {"width": 36, "heads": 6, "norm": "rms", "feedforward": "swiglu", **c}),
    MARIANS.map(lambda c: {"width": 30, "heads": 3, "kind": "encoder-decoder", "placement": "post", **c}),
)


def random_model(config: ModelConfig, scale: float = 0.3) -> chumoku.models.model.Model:
    model = build(config)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, scale, generator=random)
    return model


@settings(max_examples=11, deadline=None)
@given(choices=KINDS)
def test_random_configs_are_exported_correctly(choices: dict[str, object], tmp_path_factory: object) -> None:
    model = random_model(ModelConfig(**{**SMALL, **choices}))
    folder = export(model, tmp_path_factory.mktemp("out") / "model")  # type: ignore[attr-defined]
    kind = {"decoder": transformers.AutoModelForCausalLM, "encoder-decoder": transformers.AutoModelForSeq2SeqLM}
    theirs = kind[model.config.kind].from_pretrained(folder).eval()
    output, expected = outputs_of_both(model, theirs)
    assert (output - expected).abs().max() <= CLOSE
    again, _ = outputs_of_both(load(folder).model, theirs)
    assert (again - expected).abs().max() <= CLOSE


def test_interleaved_pairs_become_halves() -> None:
    assert half_order(6).tolist() == [0, 2, 4, 1, 3, 5]
    assert head_order("half", "half", 6) is None
    there, back = head_order("half", "interleaved", 6), head_order("interleaved", "half", 6)
    assert there is not None
    assert back is not None
    rows = torch.arange(12 * 5.0).view(12, 5)
    assert not torch.equal(reorder_heads(rows, 2, there), rows)
    assert torch.equal(reorder_heads(reorder_heads(rows, 2, there), 2, back), rows)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"experts": 3}, "model.experts = 3"),
        ({"norm": "batch"}, "model.norm"),
        ({"position": "none"}, "model.position"),
        ({"position": "alibi", "norm": "rms", "feedforward": "swiglu"}, 'model.position = "alibi"'),
        ({"attention_window": 5, "position": "learned"}, "model.attention_window = 5"),
        ({"kind": "encoder-decoder", "placement": "pre"}, "model.placement"),
        ({"kind": "encoder", "position": "learned", "placement": "post"}, "model.embedding_norm"),
        ({"position": "learned", "norm": "rms"}, "model.norm"),
        ({"feedforward": "geglu", "norm": "rms"}, "model.feedforward"),
    ],
)
def test_unsupported_config_keys_are_refused(changes: dict[str, object], key: str) -> None:
    config = ModelConfig(vocabulary=29, width=30, heads=3, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=key.replace(".", r"\.")):
        find_family(config)
    assert transformers_rows(config) is None


def test_tables_and_tensors_correspond() -> None:
    configs = {
        "gpt2": ModelConfig(vocabulary=29, position="learned", tie_output=False),
        "llama": ModelConfig(vocabulary=29, norm="rms", feedforward="swiglu", tie_output=False),
        "bert": ModelConfig(
            vocabulary=29, kind="encoder", position="learned", placement="post", embedding_norm=True, segments=2,
            output_bias=True, tie_output=False,
        ),
        "marian": ModelConfig(
            vocabulary=29, kind="encoder-decoder", position="learned", placement="post", output_bias=True,
            tie_output=False,
        ),
    }  # fmt: skip
    for name, config in configs.items():
        names = tensors_of(build(config, device="meta"))
        rows = select_rows(FAMILIES[name].rows(config), names)
        assert {ours for row in rows for ours in row.ours} == set(names)
        assert len({row.theirs for row in rows}) == len(rows)


def test_model_in_several_files(tmp_path: Path) -> None:
    theirs = randomize(llama())
    save_model(theirs, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours, expected = outputs_of_both(load(tmp_path).model, theirs)
    assert (ours - expected).abs().max() <= CLOSE
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(UsageError, match="is missing"):
        load(tmp_path)


def test_older_llama_configs_are_read(tmp_path: Path) -> None:
    save_variant("llama 3", tmp_path)
    expected = read_model_config(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["rope_parameters"]
    values |= {"rope_theta": ROPE["rope_theta"], "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}}
    path.write_text(json.dumps(values))
    assert read_model_config(tmp_path) == expected


def test_bf16_stays_bf16(tmp_path: Path) -> None:
    save_model(randomize(llama()).to(torch.bfloat16), tmp_path)
    assert load(tmp_path).model.dtype == torch.bfloat16


def test_sentence_transformers_layout(tmp_path: Path) -> None:
    theirs = randomize(bert(transformers.BertModel, add_pooling_layer=False).base_model)
    save_model(theirs, tmp_path)
    modules = [{"idx": i, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (p, k) in enumerate(
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])]  # fmt: skip
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    for mode, pooling in (("mean_tokens", "mean"), ("cls_token", "first")):
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
        model = load(tmp_path).model
        assert (model.config.pooling, model.config.normalize) == (pooling, True)
        ids = torch.randint(VOCABULARY, (1, 11))
        hidden = theirs(ids).last_hidden_state
        vector = hidden.mean(1) if pooling == "mean" else hidden[:, 0]
        torch.testing.assert_close(model(ids).vector, torch.nn.functional.normalize(vector), atol=1e-5, rtol=1e-5)
        again = inspect_folder(export(model, tmp_path / mode)).config
        assert again == model.config
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(UsageError, match="max_tokens"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "head_dim", 8),
        ("llama", "rope_parameters", {"rope_type": "longrope", "factor": 2.0}),
        ("llama", "vocab_size", "many"),
        ("llama", "hidden_size", 10**9),
        ("llama", "num_attention_heads", 0),
        ("gpt2", "activation_function", "tanh"),
        ("bert", "position_embedding_type", "relative_key"),
        ("marian", "encoder_ffn_dim", 43),
        ("marian", "model_type", "t5"),
        ("marian", "model_type", None),
    ],
)
def test_unsupported_configs_are_refused(name: str, key: str, value: object, tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    edit_config(tmp_path, **{key: value})
    with pytest.raises(UsageError):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "more", "shape", "integers"])
def test_wrong_tensors_are_named(damage: str, tmp_path: Path) -> None:
    save_variant("llama", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    match damage:
        case "missing":
            del tensors[name]
        case "more":
            tensors[name.replace("v_proj", "w_proj")] = tensors[name].clone()
            name = name.replace("v_proj", "w_proj")
        case "shape":
            tensors[name] = tensors[name][:, :-1].contiguous()
        case "integers":
            tensors[name] = tensors[name].int()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        load(tmp_path)


def test_pickled_files_are_not_opened(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="pickle file"):
        load(tmp_path / "model.pt")
    (tmp_path / "model.bin").write_bytes(b"\x80\x04\x95" + b"\0" * 50)
    with pytest.raises(UsageError, match="pickle file"):
        load(tmp_path / "model.bin")
    save_variant("llama", tmp_path / "folder")
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "folder" / "pytorch_model.bin")
    with pytest.raises(UsageError, match="can run any code"):
        load(tmp_path / "folder")


def test_links_and_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    save_variant("llama", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").unlink()
    (tmp_path / "b" / "model.safetensors").symlink_to(tmp_path / "a" / "model.safetensors")
    with pytest.raises(UsageError, match="leads out of its folder"):
        load(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "model.safetensors", tmp_path / "b" / "kept")
    for name in ("tokenizer.json", "1_Pooling"):  # whoever reads them
        (tmp_path / "b" / "model.safetensors").unlink(missing_ok=True)
        shutil.copy(tmp_path / "b" / "kept", tmp_path / "b" / "model.safetensors")
        (tmp_path / "b" / name).unlink(missing_ok=True)
        (tmp_path / "b" / name).symlink_to(tmp_path / "a" / name)
        with pytest.raises(UsageError, match="leads out of its folder"):
            load(tmp_path / "b")
        (tmp_path / "b" / name).unlink()
    for name in ("../a/model.safetensors", "/etc/passwd", "..", "x\0y", 7):
        (tmp_path / "b" / "model.safetensors").unlink(missing_ok=True)
        (tmp_path / "b" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(UsageError):
            load(tmp_path / "b")


def test_header_is_checked_before_the_library_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    monkeypatch.setattr(safetensors_source, "safe_open", lambda *_, **__: pytest.fail("asked"))
    for data in (
        b"",
        b"\1\2\3",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (1 << 30).to_bytes(8, "little") + bytes(1 << 20),
    ):
        path.write_bytes(data)
        with pytest.raises(DamagedError):
            safetensors_source.read_headers(path)


def test_formats_are_recognized(tmp_path: Path) -> None:
    assert identify_model(make_bundle(tmp_path / "ours", "decoder"))[1] == "bundle"
    save_variant("gpt2", tmp_path / "theirs")
    assert identify_model(tmp_path / "theirs")[1] == "transformers"
    assert identify_model(tmp_path / "theirs" / "model.safetensors") == (tmp_path / "theirs", "transformers")
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UsageError, match=r"not a model|does not exist"):
            identify_model(path)
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(UsageError, match="not a model in a supported format"):
        identify_model(tmp_path / "text.txt")


def test_cached_hub_models_are_opened_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    theirs = save_variant("llama", tmp_path / "theirs")
    names = ("config.json", "model.safetensors", "tokenizer.json")
    snapshot = make_hub_cache(tmp_path / "cache", {name: (tmp_path / "theirs" / name).read_bytes() for name in names})
    real = huggingface_hub.snapshot_download
    options = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **given: real(name, **{**given, **options}))
    for name in ("hf:owner/name", "hf:owner/name@main", f"hf:owner/name@{'a' * 40}"):
        ours, expected = outputs_of_both(load(name).model, theirs)
        assert (ours - expected).abs().max() <= CLOSE
    assert load(snapshot).config == load("hf:owner/name").config  # links within the hub's own cache are its way
    with pytest.raises(UsageError, match="is not in the cache"):
        load("hf:owner/other")
    weights = (snapshot / "model.safetensors").resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(DamagedError, match="its hash is wrong"):
        load("hf:owner/name")


def test_sentence_vectors_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    save_variant("bert body", tmp_path / "theirs")
    model = load(tmp_path / "theirs").model
    folder = export(model, tmp_path / "ours")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    snapshot = make_hub_cache(tmp_path / "cache", files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    assert load("hf:owner/name").config == model.config


@pytest.mark.parametrize("name", ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@", "hf:a/b/../c.gguf"])
def test_invalid_hub_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="hf:owner/name"):
        hub.parse_address(name)


def test_errors_are_chumoku_errors(tmp_path: Path) -> None:
    save_variant("marian", tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ChumokuError):
        read_folder(tmp_path)
    for values in ([], {}, {"model_type": ["llama"]}):
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(ChumokuError):
            read_folder(tmp_path)


def test_check_tensors_detects_wrong_tables(tmp_path: Path) -> None:
    save_model(randomize(marian()), tmp_path)
    family, source, config = inspect_folder(tmp_path)
    like = tensors_of(build(config, device="meta"))
    rows = select_rows(family.rows(config), like)
    check_tensors(rows, like, source, family.ignored)
    with pytest.raises(UsageError, match="does not belong to the model"):
        check_tensors(rows[1:], like, source, {})


@pytest.mark.parametrize("name", ["marian", "marian two tables", "marian odd positions"])
def test_cached_translation_equals_transformers(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path)
    ours = load(tmp_path).model
    random = torch.Generator().manual_seed(2)
    source = torch.randint(3, VOCABULARY, (3, 11), generator=random)
    real = torch.arange(11) < torch.tensor([[11], [5], [7]])
    options = {"max_new_tokens": 13, "do_sample": False, "num_beams": 1, "bad_words_ids": [[0], [1]]}
    expected = theirs.generate(source, attention_mask=real.long(), **options).tolist()
    found = search(
        ours, source, source_mask=real, begin=1, end=2, beam=1, limit=13, length_penalty=0.0, forbidden=[0, 1]
    )  # fmt: skip
    assert [row[0].tokens for row in found] == [[token for token in row if token > 2] for row in expected]


def test_documents_start_with_the_begin_token(tmp_path: Path) -> None:
    """Llama's documents start with <s>, in training data and in scoring."""
    (tmp_path / "text.txt").write_text("one two\n\nthree\n\nfour five six\n")
    plain, framed = byte_tokenizer(), byte_tokenizer()
    set_prefix_and_suffix(framed._special, ["<s>"], [])
    framed = type(framed)(framed._special)
    begin = framed.roles.begin
    assert framed.prefix_and_suffix == ((begin,), ())
    rows = {
        name: prepare_text(Corpus([str(tmp_path / "text.txt")]), tokenizer, tmp_path / name)
        for name, tokenizer in (("plain", plain), ("framed", framed))
    }
    whole = {name: shards.read(0, shards.tokens).tolist() for name, shards in rows.items()}
    assert whole["framed"].count(begin) == 3
    assert whole["framed"][0] == begin
    assert [token for token in whole["framed"] if token != begin] == whole["plain"]
    model = load(make_bundle(tmp_path / "model", "decoder", tokenizer=plain)).model
    scores = [score_text(model, ["a text"], tokenizer=tokenizer).loss for tokenizer in (plain, framed)]
    assert scores[0] != scores[1]


def test_adapter_names_of_a_model_without_a_head(tmp_path: Path) -> None:
    theirs = save_variant("bert body", tmp_path / "base")
    model = load(tmp_path / "base").model
    lora.attach(model, lora.LoraSettings(rank=3))
    with torch.no_grad():
        for parameter in lora.trainable_parameters(model).values():
            parameter.normal_(0, 0.1)
    lora.save(model, tmp_path / "adapter", base=str(tmp_path / "base"), rows=transformers_rows(model.config))
    _, plain = outputs_of_both(model, theirs)
    output, expected = outputs_of_both(model, peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval())
    assert (output - plain).abs().max() > 1e-3
    assert (output - expected).abs().max() <= CLOSE
