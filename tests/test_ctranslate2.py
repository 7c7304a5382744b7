"""Exported models give the same numbers and texts in CTranslate2's Generator and Translator."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer
from torch import Tensor

from chumoku import text
from chumoku.errors import MissingExtraError, UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel, Model
from chumoku.models.precision import to_precision
from chumoku.text.tokenizer import Tokenizer
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.formats.ctranslate2 import read_vocabulary, write_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

TOKENIZER = byte_tokenizer()
LLAMA3 = {"scaling": "llama3", "factor": 5.0, "original": 23, "base": 50.0}
CELLS: dict[str, dict[str, Any]] = {
    "pre layer": {},
    "post layer": {"placement": "post", "norm_epsilon": 0.03},
    "pre rms": {"norm": "rms", "norm_epsilon": 0.03},
    "post rms": {"norm": "rms", "placement": "post"},
    **{kind: {"feedforward": kind} for kind in ("relu", "gelu_tanh", "silu", "geglu", "swiglu")},
    "gated without bias": {"feedforward": "swiglu", "bias": False},
    "rotary half": {"pairing": "half"},
    "rotary base": {"rotary": {"base": 37.0}},
    "rotary linear": {"rotary": {"scaling": "linear", "factor": 3.0}},
    "rotary llama3": {"rotary": LLAMA3},
    "rotary llama3 half": {"rotary": LLAMA3, "pairing": "half", "kv_heads": 3, "norm": "rms"},
    "sinusoidal": {"position": "sinusoidal"},
    "sinusoidal half": {"position": "sinusoidal", "pairing": "half", "scale_embedding": True},
    "learned": {"position": "learned", "embedding_norm": True},
    "relative": {"position": "relative", "relative_clip": 5},
    "relative grouped": {"position": "relative", "relative_clip": 3, "kv_heads": 2},
    "no position": {"position": "none"},
    "grouped": {"kv_heads": 2},
    "one key head": {"kv_heads": 1, "position": "learned"},
    "scaled": {"scale_embedding": True, "embedding_norm": True, "norm": "rms"},
    "untied": {"tie_output": False},
    "output bias": {"output_bias": True, "tie_output": False},
}
TWO_STACKS: dict[str, dict[str, Any]] = {
    "deeper encoder": {"encoder_layers": 3},
    "shared table": {"share_embeddings": True, "tie_output": True, "output_bias": True},
}


def random_model(kind: str, **changes: Any) -> Model:
    """A random model in which every weight matters: biases, norms and attention weights are random."""
    sizes = {"width": 24, "heads": 6, "layers": 2, "context": 41, "vocabulary": TOKENIZER.size + 3}
    config = ModelConfig(**{"kind": kind, "feedforward_width": 29, **sizes, **changes})
    model, random = build(config, seed=3), torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=random) * 2 / config.width**0.5
    return model


def export(folder: Path, model: Model, tokenizers: Tokenizers | None = None, kind: str = "float32") -> Path:
    write_ctranslate2(folder, model, tokenizers or Tokenizers(TOKENIZER, TOKENIZER), kind=kind)
    return folder


def generator(folder: Path) -> Any:
    return ctranslate2.Generator(str(folder), device="cpu", intra_threads=1)


def translator(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder), device="cpu", intra_threads=1)


def logits_there(folder: Path, tokens: Tensor) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(generator(folder).forward_batch(tokens.tolist())))


def random_tokens(*shape: int, below: int, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def log_probabilities(model: Model, source: list[int], target: list[int]) -> Tensor:
    begin, end = TOKENIZER.roles.begin, TOKENIZER.roles.end
    logits = model(torch.tensor([source]), torch.tensor([[begin, *target]])).logits[0]
    return logits.log_softmax(-1).gather(-1, torch.tensor([*target, end])[:, None])[:, 0]


@torch.inference_mode()
def greedy(model: Model, start: list[int], new: int, source: list[int] | None = None) -> list[int]:
    """Greedy decoding without a cache."""
    said = list(start)
    while len(said) < len(start) + new:
        tokens = torch.tensor([said])
        output = model(tokens) if source is None else model(torch.tensor([source]), tokens)
        said.append(int(output.logits[0, -1].argmax()))
        if said[-1] == TOKENIZER.roles.end:
            said.pop()
            break
    return said[len(start) :]


@pytest.mark.sample(7)
@pytest.mark.parametrize("changes", CELLS.values(), ids=CELLS)
def test_decoders_give_the_same_logits(changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model("decoder", **changes)
    folder, tokens = export(tmp_path, model), random_tokens(2, 31, below=model.config.vocabulary)
    torch.testing.assert_close(logits_there(folder, tokens), model(tokens).logits.detach(), atol=1e-4, rtol=0)
    start = tokens[0, :3].tolist()
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    (output,) = generator(folder).generate_batch(
        [[vocabulary[token] for token in start]], max_length=19, include_prompt_in_result=False
    )
    assert output.sequences_ids[0] == greedy(model, start, 19)


@pytest.mark.sample(3)
@pytest.mark.parametrize("changes", [*CELLS.values(), *TWO_STACKS.values()], ids=[*CELLS, *TWO_STACKS])
def test_translators_give_the_same_probabilities_and_texts(changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model("encoder-decoder", **changes)
    folder, size = export(tmp_path, model), model.config.vocabulary
    there, vocabulary = translator(folder), json.loads((tmp_path / "shared_vocabulary.json").read_text())
    sources = [random_tokens(length, below=size, seed=length).tolist() for length in (17, 5, 29)]
    targets = [random_tokens(length, below=size, seed=length + 1).tolist() for length in (13, 23, 2)]
    begin, pieces = TOKENIZER.roles.begin, vocabulary.__getitem__
    assert begin is not None
    # One batch, to check that padding changes nothing.
    scored = there.score_batch(*([[pieces(token) for token in row] for row in rows] for rows in (sources, targets)))
    for source, target, score in zip(sources, targets, scored, strict=True):
        ours = log_probabilities(model, source, target)
        torch.testing.assert_close(torch.tensor(score.log_probs), ours, atol=1e-4, rtol=0)
    request = [[pieces(token) for token in row] for row in sources]
    output = there.translate_batch(request, beam_size=1, max_decoding_length=19, min_decoding_length=0)
    for source, one in zip(sources, output, strict=True):
        assert one.hypotheses[0] == [pieces(token) for token in greedy(model, [begin], 19, source)]


def test_separate_source_vocabulary(tmp_path: Path) -> None:
    own = text.train(["one text"], kind="byte", languages=("en", "ja"))
    model = random_model("encoder-decoder", source_vocabulary=own.size + 7)
    export(tmp_path, model, Tokenizers(TOKENIZER, own))
    source, target = (json.loads((tmp_path / f"{side}_vocabulary.json").read_text()) for side in ("source", "target"))
    assert (len(source), len(target)) == (own.size + 7, TOKENIZER.size + 3)
    assert [piece in source for piece in own.specials] == [True] * 7
    assert "<2ja>" not in target
    assert (tmp_path / "source_tokenizer.json").is_file()
    request, output = (
        random_tokens(11, below=own.size, seed=2).tolist(),
        random_tokens(7, below=TOKENIZER.size).tolist(),
    )
    (score,) = translator(tmp_path).score_batch([[source[n] for n in request]], [[target[n] for n in output]])
    ours = log_probabilities(model, request, output)
    torch.testing.assert_close(torch.tensor(score.log_probs), ours, atol=1e-4, rtol=0)


def test_smaller_types_are_smaller_and_close(tmp_path: Path) -> None:
    model = random_model("decoder", width=96)
    tokens = random_tokens(3, 31, below=model.config.vocabulary)
    ours, sizes = model(tokens).logits.detach(), {}
    for kind, near in (("float32", 1e-5), ("float16", 1e-2), ("int8", 2e-1)):
        (tmp_path / kind).mkdir()
        folder = export(tmp_path / kind, model, kind=kind)
        assert torch.equal(model(tokens).logits, ours), "the model itself stays as it is"
        sizes[kind] = (folder / "model.bin").stat().st_size
        apart = (logits_there(folder, tokens) - ours).abs().max() / ours.abs().max()
        assert apart <= near, kind
    assert sizes["int8"] < 0.6 * sizes["float16"] < 0.35 * sizes["float32"]
    with pytest.raises(UsageError, match="cannot be written as 'q8_0'"):
        export(tmp_path, model, kind="q8_0")
    for changes in ({"position": "alibi"}, {"attention_window": 5}):
        with pytest.raises(UsageError, match=rf"cannot be written for CTranslate2: model\.{next(iter(changes))}"):
            export(tmp_path, random_model("decoder", **changes))


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_quantized_models_are_dequantized_first(precision: str, tmp_path: Path) -> None:
    model = to_precision(random_model("decoder", width=96, feedforward_width=64), precision)
    whole = dequantize_model(model)
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.float32}
    tokens = random_tokens(2, 23, below=model.config.vocabulary)
    there = logits_there(export(tmp_path, model), tokens)
    torch.testing.assert_close(there, whole(tokens).logits, atol=1e-4, rtol=0)
    # bf16 products round again, so they are only close.
    torch.testing.assert_close(there, model(tokens).logits.float(), atol=0.2, rtol=0)


def test_dequantizing_keeps_equal_tables_tied() -> None:
    model = random_model("decoder", width=96, feedforward_width=64)
    assert isinstance(model, DecoderModel)
    rounded = to_precision(model, "int8")
    assert not dequantize_model(rounded).config.tie_output
    model.decoder.embedding.table.data = dequantize_model(rounded).head.weight.data  # type: ignore[union-attr, operator]
    again = dequantize_model(to_precision(model, "int8"))
    assert again.config.tie_output
    assert "head.weight" not in again.state_dict()


@pytest.mark.parametrize(
    ("kind", "changes", "key"),
    [
        ("encoder", {}, 'model.kind = "encoder"'),
        ("decoder", {"experts": 3}, "model.experts = 3"),
        ("encoder-decoder", {"norm": "batch"}, 'model.norm = "batch"'),
    ],
)
def test_unsupported_config_keys_are_refused(kind: str, changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        export(tmp_path, random_model(kind, **changes))
    assert key in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_vocabulary_is_pieces_by_id(tmp_path: Path) -> None:
    path = TOKENIZER.save(tmp_path / "tokenizer.json")
    found = read_vocabulary(path, TOKENIZER.size + 5)
    assert len(set(found)) == len(found) == TOKENIZER.size + 5
    assert found[: len(TOKENIZER.specials)] == list(TOKENIZER.specials)
    assert found[-1] == f"<unused {TOKENIZER.size + 4}>"
    with pytest.raises(UsageError, match=f"{TOKENIZER.size:,} tokens, but the model's embedding table only 200"):
        read_vocabulary(path, 200)


def test_unused_names_are_unique(tmp_path: Path) -> None:
    taken = chat_tokenizer(("<|endoftext|>", "<unused 258>"))
    found = read_vocabulary(taken.save(tmp_path / "tokenizer.json"), 261)
    assert len(set(found)) == 261


def test_special_tokens_are_written(tmp_path: Path) -> None:
    export(tmp_path, random_model("encoder-decoder"))
    settings = json.loads((tmp_path / "config.json").read_text())
    names = {key: settings[key] for key in ("bos_token", "eos_token", "unk_token", "decoder_start_token")}
    assert names == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "decoder_start_token": "<s>"}


def test_tokenizer_with_one_special_token(tmp_path: Path) -> None:
    only = chat_tokenizer(("<|endoftext|>",))
    export(tmp_path, random_model("decoder", vocabulary=only.size), Tokenizers(only, only))
    settings = json.loads((tmp_path / "config.json").read_text())
    assert {settings[key] for key in ("bos_token", "eos_token", "unk_token")} == {"<|endoftext|>"}
    assert logits_there(tmp_path, torch.tensor([[3]])).shape == (1, 1, only.size)


@pytest.mark.parametrize(("kind", "role"), [("decoder", "end"), ("encoder-decoder", "begin")])
def test_tokenizer_without_roles_is_refused(kind: str, role: str, tmp_path: Path) -> None:
    none: Tokenizer = chat_tokenizer(())
    with pytest.raises(UsageError, match=f"no token for the role '{role}'"):
        export(tmp_path, random_model(kind), Tokenizers(none, none))


def test_missing_library_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtraError, match="pip install ctranslate2"):
        export(tmp_path, random_model("decoder"))


def test_position_tables_have_context_length(tmp_path: Path) -> None:
    """Sinusoidal positions, and none, have no limit here; exported tables end at the context."""
    folder = export(tmp_path, random_model("decoder", position="sinusoidal", context=13))
    logits_there(folder, random_tokens(1, 13, below=7))
    with pytest.raises(RuntimeError, match="13"):
        logits_there(folder, random_tokens(1, 14, below=7))
