"""Adapters from and to the PEFT library give the same logits; invalid files are refused."""

from __future__ import annotations

import copy
import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from cells import Cell, model_of
from foreign import VOCABULARY, export
from lazy import LazyModule
from safetensors.torch import load_file, save_file
from test_foreign import random_model
from test_lora import EVERYTHING, answer, attach_trained, copy_state, randomize_adapter, states_equal
from torch import Tensor, nn

from chumoku import lora
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.lora import LoraSettings
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted, LowRank
from chumoku.weights.families import FAMILIES
from chumoku.weights.families.table import Row

peft = LazyModule("peft")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Twins(NamedTuple):
    ours: Model
    theirs: nn.Module
    rows: list[Row]

    def logits(self, theirs: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        given = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(3))
        other = self.theirs if theirs is None else theirs
        with torch.no_grad():
            if self.ours.config.kind == "encoder-decoder":
                target = given.flip(1)
                return self.ours(given, target).logits, other(input_ids=given, decoder_input_ids=target).logits
            return self.ours(given).logits, other(input_ids=given).logits


SIZES = {"vocabulary": VOCABULARY, "context": 23, "width": 36, "layers": 2, "heads": 3, "feedforward_width": 41}
POST = {"placement": "post", "feedforward": "gelu"}
FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"heads": 6, "kv_heads": 2, "norm": "rms", "feedforward": "swiglu", "bias": False},
    "gpt2": {"position": "learned", "feedforward": "gelu_tanh"},
    "bert": {**POST, "kind": "encoder", "position": "learned", "embedding_norm": True, "segments": 2},
    "marian": {**POST, "kind": "encoder-decoder", "position": "sinusoidal", "share_embeddings": True},
}
AUTO = {"decoder": "CausalLM", "encoder": "MaskedLM", "encoder-decoder": "Seq2SeqLM"}


@functools.cache
def build_twins(family: str, pairing: str) -> Twins:
    config = ModelConfig(**{**SIZES, **FAMILY_CONFIGS[family], "pairing": pairing})
    ours = random_model(config, 0.2)
    with tempfile.TemporaryDirectory() as folder:
        export(ours, Path(folder) / "model")
        theirs = getattr(transformers, f"AutoModelFor{AUTO[config.kind]}").from_pretrained(Path(folder) / "model")
    theirs.name_or_path = ""  # the folder is gone, and PEFT would look for it
    return Twins(ours, theirs.eval(), FAMILIES[family].rows(config))


def twins(family: str, pairing: str = "half") -> Twins:
    ours, theirs, rows = build_twins(family, pairing)
    return Twins(copy.deepcopy(ours), copy.deepcopy(theirs), rows)


SIDES = [("llama", "half"), ("llama", "interleaved"), ("gpt2", "half"), ("bert", "half"), ("marian", "half")]
BOTH = pytest.mark.parametrize(("family", "pairing"), SIDES, ids=["-".join(side) for side in SIDES])
KINDS = {
    "plain": {},
    "dora": {"dora": True},
    "stabilized": {"stabilized": True},
    "everything": {"dora": True, "targets": EVERYTHING, "rank": 7},
    "joined-in-part": {"targets": ["**.attention.{key,value}", "**.blocks.1.attention.query"], "rank": 5},
    "odd": {"alpha": 22.1, "rank": 3, "dora": True, "stabilized": True},
}


def assert_close(one: Tensor, other: Tensor, limit: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=limit, rtol=limit)


@pytest.mark.sample(7)
@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error")
def test_our_adapter_in_peft(family: str, pairing: str, kind: str, tmp_path: Path) -> None:
    pair = twins(family, pairing)
    assert_close(*pair.logits())
    base = pair.logits()[0]
    attach_trained(pair.ours, LoraSettings(**KINDS[kind]), 5)
    lora.save(pair.ours, tmp_path, base="someone/some-model", rows=pair.rows)
    loaded = peft.PeftModel.from_pretrained(pair.theirs, tmp_path)
    ours, theirs = pair.logits(loaded)
    assert_close(ours, theirs)
    assert float((ours - base).abs().max()) > 0.02, "seen to differ from the base"
    assert loaded.peft_config["default"].base_model_name_or_path == "someone/some-model"
    # The file has exactly PEFT's adapters.
    made_there = {name for name, _ in loaded.named_parameters() if "lora_" in name}
    assert len(made_there) == len(load_file(tmp_path / WEIGHTS))


@pytest.mark.sample(7)
@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_is_exact(family: str, pairing: str, kind: str, tmp_path: Path) -> None:
    pair = twins(family, pairing)
    fresh = copy.deepcopy(pair.ours)
    attach_trained(pair.ours, LoraSettings(dropout=0.25, **KINDS[kind]), 5)
    for rows, folder in ((pair.rows, tmp_path / "theirs"), (None, tmp_path / "ours")):
        lora.save(pair.ours, folder, base="x", rows=rows)
        other = copy.deepcopy(fresh)
        described = lora.load(other, folder, rows=rows)
        assert described.base == "x"
        assert states_equal(lora.adapter_tensors(pair.ours), lora.adapter_tensors(other))
        assert torch.equal(answer(pair.ours), answer(other))
        for path, low in lora.adapters.adapted_modules(pair.ours).items():
            one, two = (module.adapters["default"] for module in (low, lora.adapters.adapted_modules(other)[path]))
            for key in ("rank", "alpha", "stabilized", "dropout"):
                assert getattr(one, key) == getattr(two, key)
        lora.save(other, folder / "again", base="x", rows=rows)
        assert (folder / CONFIG).read_bytes() == (folder / "again" / CONFIG).read_bytes()
        assert states_equal(stored(folder), stored(folder / "again"))


THEIRS = {
    "plain": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "lora_alpha": 5},
    "patterns": {},
    "layers": {"layers_to_transform": [1]},
    "gaussian": {"init_lora_weights": "gaussian"},
}
TARGETS = {
    "llama": ["q_proj", "k_proj", "down_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "bert": ["query", "output.dense", "transform.dense"],
    "marian": ["q_proj", "v_proj", "fc1", "out_proj"],
}
BERT_QUERY = "1.attention.self.query"
PATTERNS = {
    "llama": {"rank_pattern": {"layers.1.self_attn.q_proj": 3}, "alpha_pattern": {"q_proj": 11}},
    "gpt2": {"rank_pattern": {"transformer.h.1.attn.c_attn": 3}, "alpha_pattern": {"c_attn": 11}},
    "bert": {"rank_pattern": {BERT_QUERY: 3}, "alpha_pattern": {BERT_QUERY: 2, "query": 11}},
    "marian": {"rank_pattern": {r"^model\.decoder\.layers\.1\.encoder_attn\.q_proj": 3}, "alpha_pattern": {"fc1": 2.5}},
}


def from_peft(theirs: nn.Module, family: str, folder: Path, **options: Any) -> nn.Module:
    """Make and save an adapter with PEFT, with random numbers."""
    turned = {"fan_in_fan_out": True} if family == "gpt2" else {}
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 7, "target_modules": TARGETS[family], **turned, **options})
    adapted = peft.get_peft_model(theirs, config).eval()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=random)
            if "magnitude" in name:
                parameter.mul_(1 + torch.rand(parameter.shape, generator=random))
    adapted.save_pretrained(folder)
    return adapted


@pytest.mark.sample(7)
@BOTH
@pytest.mark.parametrize("kind", THEIRS)
def test_peft_adapter_in_ours(family: str, pairing: str, kind: str, tmp_path: Path) -> None:
    pair = twins(family, pairing)
    base = pair.logits()[0]
    other = from_peft(pair.theirs, family, tmp_path, **(PATTERNS[family] if kind == "patterns" else THEIRS[kind]))
    described = lora.load(pair.ours, tmp_path, rows=pair.rows)
    ours, theirs = pair.logits(other)
    assert_close(ours, theirs)
    assert float((ours - base).abs().max()) > 0.02, "seen to differ from the base"
    assert described.dora == (kind == "dora")
    # Saved again, it is unchanged.
    lora.save(pair.ours, tmp_path / "again", base="", rows=pair.rows)
    one, two = load_file(tmp_path / WEIGHTS), load_file(tmp_path / "again" / WEIGHTS)
    assert states_equal(one, two)
    again = peft.PeftModel.from_pretrained(twins(family, pairing).theirs, tmp_path / "again")
    assert_close(pair.logits(again)[1], theirs)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("dora", [False, True])
def test_training_equals_peft(dora: bool, dropout: float) -> None:
    """One matrix in training: the same dropout and gradients; DoRA's norm has no gradient."""
    base, same = nn.Linear(7, 5), nn.Linear(7, 5)
    same.load_state_dict(base.state_dict())
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=["0"], use_dora=dora, lora_dropout=dropout)
    there = peft.get_peft_model(nn.Sequential(same), config).train()
    random = torch.Generator().manual_seed(5)
    theirs = {name: one for name, one in there.named_parameters() if "lora_" in name}
    here = Adapted(base.requires_grad_(False))
    low = LowRank(7, 5, 3, alpha=7, dropout=dropout, magnitude=dora)
    here.adapters["one"], here.active = low, "one"
    with torch.no_grad():
        for (name, one), own in zip(sorted(theirs.items()), low.parameters(), strict=True):
            one.copy_(torch.rand(one.shape, generator=random) if "magnitude" in name else one.normal_(generator=random))
            own.copy_(one)
    answers = []
    for module, parameters in ((here.train(), low.parameters()), (there, (theirs[name] for name in sorted(theirs)))):
        torch.manual_seed(11)
        x = torch.linspace(-2, 3, 4 * 7).view(4, 7).requires_grad_(True)
        y = module(x)
        answers.append((y, *torch.autograd.grad((y * torch.arange(5.0)).sin().sum(), [x, *parameters])))
    for ours, other in zip(*answers, strict=True):
        assert_close(ours, other)


def test_rows_in_the_wrong_order_are_caught(tmp_path: Path) -> None:
    pair = twins("llama", "interleaved")
    attach_trained(pair.ours, LoraSettings(), 5)
    lora.save(pair.ours, tmp_path, base="x", rows=[row._replace(heads=0) for row in pair.rows])
    ours, theirs = pair.logits(peft.PeftModel.from_pretrained(pair.theirs, tmp_path))
    assert float((ours - theirs).abs().max()) > 1e-3


def test_names_of_a_model_without_a_head(tmp_path: Path) -> None:
    """Names from a BertModel lack the first part; names from a task model have an extra one."""
    pair = twins("bert")
    from_peft(pair.theirs.bert, "bert", tmp_path, target_modules=["query", "value"])
    assert not any("bert" in name for name in load_file(tmp_path / WEIGHTS))
    lora.load(pair.ours, tmp_path, rows=pair.rows)
    with torch.no_grad():
        given = torch.arange(11)[None]
        assert_close(pair.ours(given).hidden, pair.theirs.bert(given).last_hidden_state)
    other = twins("bert")
    shorter = [row._replace(theirs=row.theirs.removeprefix("bert.")) for row in other.rows]
    lora.save(pair.ours, tmp_path, base="", rows=pair.rows)
    lora.load(other.ours, tmp_path, rows=shorter)
    assert torch.equal(answer(other.ours), answer(pair.ours))


def test_merged_adapter_can_be_saved(tmp_path: Path) -> None:
    pair = twins("gpt2")
    attach_trained(pair.ours, LoraSettings(dora=True, targets=["**.attention.query"]), 5)
    for folder in ("one", "two"):
        lora.save(pair.ours, tmp_path / folder, base="x", rows=pair.rows)
        if folder == "one":
            lora.merge(pair.ours)
    assert states_equal(*(load_file(tmp_path / folder / WEIGHTS) for folder in ("one", "two")))


def test_parts_with_other_scales_are_joined(tmp_path: Path) -> None:
    """A joined matrix has one scale, so other scales are multiplied into B."""
    pair = twins("gpt2")
    attach_trained(pair.ours, LoraSettings(targets=["**.attention.*"], rank=3), 5)
    for path, module in lora.adapters.adapted_modules(pair.ours).items():
        module.adapters["default"].alpha *= {"key": 3.0, "value": 0.7}.get(path.rpartition(".")[2], 1.0)
    lora.save(pair.ours, tmp_path, base="x", rows=pair.rows)
    assert_close(*pair.logits(peft.PeftModel.from_pretrained(pair.theirs, tmp_path)))
    other = twins("gpt2").ours
    lora.load(other, tmp_path, rows=pair.rows)
    assert_close(answer(other), answer(pair.ours))


def test_several_adapters_from_files(tmp_path: Path) -> None:
    pair = twins("llama")
    alone = {}
    for seed, name in ((1, "one"), (2, "two")):
        one = attach_trained(copy.deepcopy(pair.ours), LoraSettings(rank=seed), seed)
        lora.save(one, tmp_path / name, base="x")
        alone[name] = answer(one)
        lora.load(pair.ours, tmp_path / name, name=name)
    for name in ("one", "two", "one"):
        lora.set_adapter(pair.ours, name)
        assert torch.equal(answer(pair.ours), alone[name])
    assert not torch.equal(alone["one"], alone["two"])


def test_model_without_a_transformers_family(tmp_path: Path) -> None:
    model = copy.deepcopy(model_of(Cell("encoder-decoder", "relative", "batch"), torch.float32))
    attach_trained(model, LoraSettings(targets=EVERYTHING), 5)
    lora.save(model, tmp_path, base="x")
    assert all(name.startswith(("base_model.model.encoder.", "base_model.model.decoder.")) for name in stored(tmp_path))
    with pytest.raises(UsageError, match="does not exist in the transformers library"):
        lora.save(model, tmp_path, base="x", rows=[])
    assert json.loads((tmp_path / CONFIG).read_text())["task_type"] == "SEQ_2_SEQ_LM"
    assert 'base_model: "x"' in (tmp_path / "README.md").read_text()


# ---- untrusted files


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / WEIGHTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pair = twins("gpt2")
    attach_trained(pair.ours, LoraSettings(rank=3, targets=["**.attention.*"]), 5)
    lora.save(pair.ours, tmp_path / "adapter", base="x", rows=pair.rows)
    return tmp_path / "adapter"


def load_on_new_model(folder: Path) -> Model:
    pair = twins("gpt2")
    before = copy_state(pair.ours)
    try:
        lora.load(pair.ours, folder, rows=pair.rows)
    except ChumokuError:
        assert states_equal(copy_state(pair.ours), before), "a refused file changes nothing"
        assert all(parameter.requires_grad for parameter in pair.ours.parameters())
        raise
    return pair.ours


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, 'peft_type = "LOHA" is not supported'),
        ({"peft_type": None}, "peft_type = null"),
        ({"bias": "all"}, 'bias = "all" is not supported'),
        ({"modules_to_save": ["lm_head"]}, r'modules_to_save = \["lm_head"\] is not supported'),
        ({"init_lora_weights": "pissa_niter_16"}, 'init_lora_weights = "pissa_niter_16" is not supported'),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"init_lora_weights": 1}, "init_lora_weights"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias = true"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_the_force": 1}, "use_the_force = 1 is not supported"),
        ({"r": 0}, "r has the rank '0'"),
        ({"r": 10**400}, "the rank"),
        ({"r": True}, "the rank"),
        ({"r": 2.0}, "the rank"),
        ({"r": 5}, r"has shape \[9, 36\]; this model needs \[5, 36\]"),
        ({"lora_alpha": "8"}, "the alpha"),
        ({"lora_alpha": 0}, "the alpha"),
        ({"lora_alpha": float("nan")}, "the alpha"),
        ({"lora_alpha": 10**400}, "the alpha"),
        ({"lora_dropout": 1.0}, "lora_dropout is '1.0'"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
        ({"rank_pattern": {"(a+)+$": 3}}, r"rank_pattern has the key '\(a\+\)\+\$'; only module names"),
        ({"alpha_pattern": {"c_attn": "x"}}, "alpha_pattern has the alpha 'x'"),
        ({"use_dora": True}, "needs a, b, magnitude"),
        ({"use_dora": "false"}, "use_dora is 'false'; it must be true or false"),
        ({"bias": "all", "lora_bias": True}, r"bias = .*\. lora_bias = true"),
        ({"alpha_pattern": {"c_attn": 1}}, "another scale than the joined matrix"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_configs_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    values = json.loads((folder / CONFIG).read_text())
    if "r" in changes:
        values["rank_pattern"] = {}
    (folder / CONFIG).write_text(json.dumps({**values, **changes}))
    with pytest.raises(ChumokuError, match=message):
        load_on_new_model(folder)


def test_harmless_config_keys_are_accepted(folder: Path) -> None:
    values = json.loads((folder / CONFIG).read_text())
    harmless = {"eva_config": {"rho": 2.0}, "qalora_group_size": 16, "layers_to_transform": [0, 1], "use_qalora": False}
    expected = copy_state(load_on_new_model(folder))
    (folder / CONFIG).write_text(json.dumps({**values, **harmless, "new_key": None}))
    assert states_equal(copy_state(load_on_new_model(folder)), expected)
    # PEFT's default config is accepted.
    (folder / CONFIG).write_text(json.dumps({**peft.LoraConfig().to_dict(), **values}, default=str))
    assert states_equal(copy_state(load_on_new_model(folder)), expected)


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(stored(folder)), folder / WEIGHTS)


FIRST = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: t[n] for n in t if n != FIRST}, "has b for transformer.h.0.attn.c_attn; it needs a, b"),
        (lambda t: {**t, FIRST: t[FIRST][:, :-1].contiguous()}, r"has shape \[9, 35\]; this model needs \[9, 36\]"),
        (lambda t: {**t, FIRST: t[FIRST].flatten()}, r"has shape \[324\]"),
        (lambda t: {**t, FIRST: t[FIRST].to(torch.int64)}, "has type I64"),
        (lambda t: {**t, "x": t[FIRST].clone()}, "the tensor x, which is not part"),
        (lambda t: {**t, FIRST.replace("h.0", "h.7"): t[FIRST].clone()}, r"adapts transformer\.h\.7.*no such matrix"),
        (lambda t: {**t, FIRST.replace("transformer.", ""): t[FIRST].clone()}, "twice"),
        (lambda t: {**t, FIRST.replace("lora_A", "lora_embedding_A"): t[FIRST].clone()}, "not part of a LoRA"),
        (lambda _: {}, "has no tensors"),
    ],
)
def test_tensors_that_are_refused(folder: Path, change: Callable[..., dict[str, Tensor]], message: str) -> None:
    change_tensors(folder, change)
    with pytest.raises(ChumokuError, match=message):
        load_on_new_model(folder)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("[", "joined"),
        ("[]", "joined|do not cover"),
        ('{"transformer.h.0.attn.c_attn": 5}', "joined"),
        ('{"transformer.h.0.attn.c_attn": []}', "the list of matrices is empty"),
        ('{"transformer.h.0.attn.c_attn": [[0, 0, 9, 48.0], [0, 0, 9, 48.0]]}', "twice"),
        ('{"transformer.h.0.attn.c_attn": [[3, 0, 9, 48.0]]}', "does not exist"),
        ('{"transformer.h.0.attn.c_attn": [[-1, 0, 9, 48.0]]}', "does not exist"),
        ('{"transformer.h.0.attn.c_attn": [[0, 5, 9, 48.0]]}', "rows 5 to 14 of 9"),
        ('{"transformer.h.0.attn.c_attn": [[0, 0, 9, 1.0]]}', "another scale"),
        ('{"transformer.h.0.attn.c_attn": [[0, 0, 3, 16.0], [1, 3, 3, 16.0]]}', "do not cover all of"),
        ('{"transformer.h.0.attn.c_attn": [[0, 0, 9]]}', "joined"),
    ],
)
def test_parts_that_are_refused(folder: Path, parts: str, message: str) -> None:
    save_file(stored(folder), folder / WEIGHTS, metadata={"chumoku.parts": parts})
    if parts == "[]":
        load_on_new_model(folder)  # nothing is said about any matrix
        return
    with pytest.raises(DamagedError, match=message):
        load_on_new_model(folder)


def test_ambiguous_short_names_are_refused(tmp_path: Path) -> None:
    model = copy.deepcopy(model_of(Cell("encoder-decoder"), torch.float32))
    attach_trained(model, LoraSettings(targets=["decoder.**.query"]), 5)
    lora.save(model, tmp_path, base="x")
    lora.detach(model)
    save_file({name.replace("decoder.", ""): tensor for name, tensor in stored(tmp_path).items()}, tmp_path / WEIGHTS)
    with pytest.raises(UsageError, match=r"adapts blocks\.0.*no such matrix"):
        lora.load(model, tmp_path)


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"has no {CONFIG}"):
        lora.read_adapter_config(tmp_path)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(UsageError, match=r"pickle file.*save_pretrained"):
        load_on_new_model(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(UsageError, match=f"has no {WEIGHTS}"):
        load_on_new_model(folder)
    (folder / WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(DamagedError, match="is not valid safetensors"):
        load_on_new_model(folder)
    for text in ("{", "[" * 100_000, "3", '"x"', "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        (folder / CONFIG).write_text(text, encoding="latin-1")
        with pytest.raises(DamagedError):
            load_on_new_model(folder)
    (folder / CONFIG).write_text(" " * (1 << 20) + "{}")
    with pytest.raises(UsageError, match="at most 1,048,576 are allowed"):
        load_on_new_model(folder)


def test_adapter_of_another_model_is_refused(folder: Path) -> None:
    pair = twins("llama")
    with pytest.raises(UsageError, match="this model has no such matrix"):
        lora.load(pair.ours, folder, rows=pair.rows)
    assert not lora.list_adapters(pair.ours)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_damaged_files_are_refused(folder: Path, name: str) -> None:
    """Random changes anywhere are refused with a message, or give an adapter with the right shapes."""
    whole, chance = (folder / name).read_bytes(), random.Random(3)
    pair, sentences = twins("gpt2"), []
    for number in range(200):
        data = bytearray(whole)
        header = min(len(whole), 3000)
        place = chance.randrange(header if number % 2 else len(whole))
        match number % 4:
            case 0 | 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + chance.randrange(1, 99)]
            case _:
                data[place:place] = chance.randbytes(chance.randrange(1, 9))
        (folder / name).write_bytes(data)
        try:
            lora.load(pair.ours, folder, rows=pair.rows)
        except ChumokuError as error:
            sentences.append(str(error))
        lora.detach(pair.ours)
    assert len(sentences) > 60
    assert not [sentence for sentence in sentences if not sentence.endswith((".", "?"))]


def test_interrupted_save_keeps_previous_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted save leaves the previous files."""
    pair = twins("gpt2")
    attach_trained(pair.ours, LoraSettings(), 9)
    randomize_adapter(pair.ours, 11)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        real(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        lora.save(pair.ours, folder, base="y", rows=pair.rows)
    assert {name: (folder / name).read_bytes() for name in before} == before
