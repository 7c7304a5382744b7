"""Encoder families compared with transformers: import, export, sentence vectors and certificates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from foreign import VOCABULARY, edit_config, equal_models, export, randomize, save_model
from torch import Tensor, nn

import chumoku
import chumoku.config
from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.models.model import Model
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.convert import convert
from chumoku.weights.families import find_family, transformers_rows
from chumoku.weights.families.table import select_rows
from chumoku.weights.open_model import load

CLOSE = 1e-5
CLASSES, TAGS = "ForSequenceClassification", "ForTokenClassification"
NAMES = {0: "good", 1: "bad", 2: "なし"}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 35, "num_hidden_layers": 3, "num_attention_heads": 5}
SIZES |= {"intermediate_size": 41, "max_position_embeddings": 67, "layer_norm_eps": 1e-2}


def roberta(kind: str = "Roberta", task: str = "ForMaskedLM", **changes: Any) -> nn.Module:
    values = {**SIZES, "type_vocab_size": 1, "pad_token_id": 0, **changes}
    config = getattr(transformers, f"{kind}Config")(**values)
    return getattr(transformers, f"{kind}{task}")(config)  # type: ignore[no-any-return]


def distilbert(task: str = "ForMaskedLM", **changes: Any) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "dim": 35, "n_layers": 3, "n_heads": 5, "hidden_dim": 41}
    config = transformers.DistilBertConfig(**{**sizes, "max_position_embeddings": 67, **changes})
    return getattr(transformers, f"DistilBert{task}")(config)  # type: ignore[no-any-return]


def modernbert(task: str = "ForMaskedLM", **changes: Any) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 30, "num_hidden_layers": 5, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 41, "max_position_embeddings": 67, "norm_eps": 1e-2, "pad_token_id": 0}
    sizes |= {"local_attention": 6, "global_rope_theta": 777.0, "local_rope_theta": 77.0}
    for key in ("eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"):
        sizes[key] = 2
    config = transformers.ModernBertConfig(**{**sizes, **changes})
    return getattr(transformers, f"ModernBert{task}")(config)  # type: ignore[no-any-return]


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "roberta": roberta,
    "roberta untied": lambda: roberta(tie_word_embeddings=False),
    "roberta body": lambda: roberta(task="Model", hidden_act="relu"),
    "roberta other padding": lambda: roberta(pad_token_id=3),
    "roberta two segments": lambda: roberta(type_vocab_size=2),
    "xlm-roberta": lambda: roberta("XLMRoberta"),
    "camembert": lambda: roberta("Camembert"),
    "modernbert": modernbert,
    "modernbert every second": lambda: modernbert(global_attn_every_n_layers=2, hidden_activation="gelu"),
    "modernbert global": lambda: modernbert(global_attn_every_n_layers=1, tie_word_embeddings=False),
    "modernbert one global": lambda: modernbert(global_attn_every_n_layers=7, decoder_bias=False),
    "modernbert biases": lambda: modernbert(attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True),
    "modernbert body": lambda: modernbert("Model", attention_bias=True),
    "modernbert classes": lambda: modernbert(CLASSES, num_labels=7),
    "modernbert mean classes": lambda: modernbert(
        CLASSES,
        num_labels=3,
        classifier_pooling="mean",
        classifier_bias=True,
        classifier_activation="silu",
        norm_bias=True,
    ),
    "modernbert tags": lambda: modernbert(TAGS, num_labels=5),
    "distilbert": distilbert,
    "distilbert untied": lambda: distilbert(tie_word_embeddings=False, activation="relu"),
    "distilbert body": lambda: distilbert("Model", dim=30, sinusoidal_pos_embds=True),
    "bert classes": lambda: roberta("Bert", CLASSES, type_vocab_size=2, num_labels=7),
    "bert tags": lambda: roberta("Bert", TAGS, type_vocab_size=2, id2label=NAMES, label2id={}),
    "roberta classes": lambda: roberta(task=CLASSES, id2label=NAMES, label2id={}),
    "roberta tags": lambda: roberta(task=TAGS, num_labels=2),
    "distilbert classes": lambda: distilbert(CLASSES, id2label=NAMES, label2id={}),
    "distilbert tags": lambda: distilbert(TAGS, num_labels=5),
}
AUTO = {"classes": f"AutoModel{CLASSES}", "tags": f"AutoModel{TAGS}", "body": "AutoModel"}
WRITTEN = {"roberta two segments": "bert", "roberta body": "bert", "xlm-roberta": "roberta", "camembert": "roberta"}


def random_tokens(length: int = 31) -> Tensor:
    """Tokens without those that a variant uses for padding."""
    return torch.randint(4, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def outputs_of_both(ours: Model, theirs: nn.Module) -> tuple[Tensor, Tensor]:
    """Logits, or the last hidden states of a model without a head; the second row is shorter."""
    ids, real = random_tokens(), torch.arange(31) < torch.tensor([[31], [17]])
    expected, output = theirs(ids, attention_mask=real.long()), ours(ids, mask=real)
    if hasattr(expected, "logits"):
        assert output.logits is not None
        if ours.config.head_kind == "classes":
            return output.logits, expected.logits
        return output.logits[real], expected.logits[real]
    return output.hidden[real], expected.last_hidden_state[real]


def save_variant(name: str, folder: Path) -> nn.Module:
    theirs = randomize(VARIANTS[name]())
    save_model(theirs, folder)
    return theirs


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_equal_transformers_in_both_directions(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path / "theirs")
    first = load(tmp_path / "theirs").model
    ours, expected = outputs_of_both(first, theirs)
    assert (ours - expected).abs().max() <= CLOSE
    folder = export(first, tmp_path / "ours")
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    assert kind == WRITTEN.get(name, name.split()[0])
    auto = getattr(transformers, AUTO.get(name.split()[-1], "AutoModelForMaskedLM"))
    ours, expected = outputs_of_both(first, auto.from_pretrained(folder).eval())
    assert (ours - expected).abs().max() <= CLOSE
    again = load(folder).model
    assert equal_models(again, first)


def test_names_of_labels_are_kept_and_other_classifiers_refused(tmp_path: Path) -> None:
    save_variant("roberta classes", tmp_path / "theirs")
    model = load(tmp_path / "theirs").model
    assert model.config.labels == ("good", "bad", "なし")
    values = json.loads((export(model, tmp_path / "ours") / "config.json").read_text())
    assert values["id2label"] == {"0": "good", "1": "bad", "2": "なし"}
    edit_config(tmp_path / "theirs", problem_type="multi_label_classification")
    with pytest.raises(UsageError, match="problem_type"):
        load(tmp_path / "theirs")
    save_model(randomize(distilbert(CLASSES, num_labels=1)), tmp_path / "one")
    with pytest.raises(UsageError, match="has one label: a regression"):
        load(tmp_path / "one")
    other = chumoku.ModelConfig(**{**chumoku.config.settings_to_dict(model.config), "pooling": "mean"})
    with pytest.raises(
        UsageError,
        match=r"Roberta reads the class of a text with pooling = 'first', .* This model has pooling = 'mean'",
    ):
        export(build(other), tmp_path / "other")


@pytest.mark.parametrize("name", VARIANTS)
def test_tables_and_tensors_correspond(name: str, tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    config = load(tmp_path).model.config
    names = tensors_of(build(config, device="meta"))
    rows = select_rows(find_family(config).rows(config), names)
    assert {ours for row in rows for ours in row.ours} == set(names)
    assert len({row.theirs for row in rows}) == len(rows)
    assert transformers_rows(config) is not None


@pytest.mark.parametrize(
    "name", ["roberta", "xlm-roberta", "distilbert", "modernbert", "bert classes", "distilbert tags"]
)
def test_conversions_are_certified(name: str, tmp_path: Path) -> None:
    """The probes have the padding token too, which has no position in RoBERTa."""
    save_variant(name, tmp_path / "theirs")
    certificate = convert(tmp_path / "theirs", tmp_path / "out", to="transformers")
    assert certificate.checked


def test_a_cut_table_of_positions_is_refused(tmp_path: Path) -> None:
    save_variant("roberta", tmp_path)
    edit_config(tmp_path, max_position_embeddings=61)
    with pytest.raises(UsageError, match="61"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention"] * 2 + ["sliding_attention"] * 3),
        ("layer_types", ["sliding_attention"] * 5),
        ("layer_types", 7),
        ("num_hidden_layers", 10**15),
        ("num_hidden_layers", 5.5),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn", "factor": 2.0}}),
        ("rope_parameters", {"full_attention": 7}),
        ("classifier_activation", "relu"),
        ("mlp_bias", True),
    ],
)
def test_unsupported_modernberts_are_refused(key: str, value: object, tmp_path: Path) -> None:
    save_variant("modernbert", tmp_path)
    edit_config(tmp_path, **{key: value})
    with pytest.raises(UsageError):
        load(tmp_path)


def save_sentence_encoder(folder: Path, pooling: str, **files: Any) -> nn.Module:
    """A sentence-transformers folder as of E5 or BGE."""
    theirs = randomize(roberta("XLMRoberta", "Model"))
    save_model(theirs, folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(files))
    return theirs


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
@torch.no_grad()
def test_sentence_encoders_with_prompts(pooling: str, tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "other": "task: "}
    theirs = save_sentence_encoder(tmp_path / "theirs", pooling, prompts=prompts, default_prompt_name="other")
    pipeline = chumoku.load(tmp_path / "theirs")

    def expected(text: str) -> Tensor:
        hidden = theirs(torch.tensor([[*pipeline.tokenizer.encode(text), pipeline.tokenizer.roles.end]]))[0]
        vector = hidden.mean(1) if pooling == "mean_tokens" else hidden[:, 0]
        return nn.functional.normalize(vector)[0]

    for prompt, before in (("query", "query: "), ("document", "passage: "), (None, "task: ")):
        vector = pipeline.embed("a cat", prompt=prompt)
        torch.testing.assert_close(vector, expected(before + "a cat"), atol=CLOSE, rtol=CLOSE)
    again = load(export(pipeline.model, tmp_path / "ours"))
    assert again.config == pipeline.model.config


def test_unknown_prompts_are_refused(tmp_path: Path) -> None:
    save_sentence_encoder(tmp_path, "mean_tokens", prompts={"query": "query: "})
    pipeline = chumoku.load(tmp_path)
    torch.testing.assert_close(pipeline.embed("query: a cat"), pipeline.embed("a cat", prompt="query"))
    with pytest.raises(UsageError, match="no prompt 'document'"):
        pipeline.embed("a cat", prompt="document")
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": ["query"]}))
    assert load(tmp_path).config.prompts.default == ""
    for wrong in (["query: "], {"query": 7}):
        path.write_text(json.dumps({"prompts": wrong}))
        with pytest.raises(UsageError, match=r"prompts"):
            load(tmp_path)
