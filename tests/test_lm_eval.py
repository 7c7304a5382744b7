"""The model for lm-evaluation-harness gives the numbers of transformers with the same weights.

The harness itself is not needed: a stand-in has the parts of it that the model uses.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer
from commands import Ask, show_help
from foreign import llama, randomize, save_model

from chumoku.errors import ChumokuError

TOKENIZER = byte_tokenizer()
MODULE = "chumoku.harness.lm_eval_model"
CONTEXT = 67  # of the tiny Llama
LONG = "".join(chr(97 + place * place % 23) for place in range(97))


class TemplateLM:
    """The harness's base class: it splits texts into tokens of a context and of a continuation."""

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        pairs = []
        for context, continuation in (request.args for request in requests):
            if context:
                before, together = self.tok_encode(context), self.tok_encode(context + continuation)
                pairs.append(((context, continuation), before, together[len(before) :]))
            else:
                tokens = self.tok_encode(continuation, add_special_tokens=False)
                pairs.append((("", continuation), [self.prefix_token_id], tokens))
        return self._loglikelihood_tokens(pairs, disable_tqdm=True)


def rolling_windows(
    tokens: list[int], prefix: int, longest: int, context: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Inputs and labels: disjoint labels, and as long inputs as fit before them; `context` is 1 here."""
    text = [prefix, *tokens]
    for start in range(0, len(tokens), longest):
        end = min(start + longest, len(tokens))
        yield text[max(0, end - longest) : end], text[start + 1 : end + 1]


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    """The module, imported with a stand-in for lm_eval, and what it registered."""
    registered: dict[str, type] = {}
    parts = {name: ModuleType(name) for name in ("", ".api", ".api.model", ".api.registry", ".models", ".utils")}
    parts[".api.model"].TemplateLM = TemplateLM
    parts[".api.registry"].register_model = lambda name: lambda model: registered.setdefault(name, model)
    parts[".utils"].get_rolling_token_windows = rolling_windows
    parts[".utils"].make_disjoint_window = lambda pair: (pair[0][: len(pair[0]) - len(pair[1]) + 1], pair[1])
    with pytest.MonkeyPatch.context() as patch:
        for name, part in parts.items():
            patch.setitem(sys.modules, f"lm_eval{name}", part)
        patch.setattr(parts[""], "models", parts[".models"], raising=False)
        patch.delitem(sys.modules, MODULE, raising=False)
        yield SimpleNamespace(module=importlib.import_module(MODULE), registered=registered)
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(randomize(llama()), tmp_path_factory.mktemp("lm_eval") / "llama")


@pytest.fixture(scope="module")
def ours(harness: Any, folder: Path) -> Any:
    return harness.registered["chumoku"](path=str(folder), batch_size=1, device="cpu")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


def expected_score(theirs: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """By transformers, in one pass without a cache."""
    tokens = torch.tensor([[*context, *continuation]])
    with torch.inference_mode():
        logs = theirs(tokens[:, :-1]).logits[0, -len(continuation) :].log_softmax(-1)
    wanted = torch.tensor(continuation)
    return float(logs.gather(1, wanted[:, None]).sum()), bool((logs.argmax(-1) == wanted).all())


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def test_continuations_score_as_in_transformers(ours: Any, theirs: Any) -> None:
    pairs = [("The sea", " is"), ("Rain", " falls"), ("A", "b"), ("A", "bcd"), (LONG, " end"), ("", "Begin")]
    scores = ours.loglikelihood(requests(*pairs))
    assert len(scores) == len(pairs)
    for (context, continuation), (logprob, is_greedy) in zip(pairs, scores, strict=True):
        labels = encode(continuation)
        tokens = (encode(context) or [ours.prefix_token_id])[-(CONTEXT + 1 - len(labels)) :]
        total, greedy = expected_score(theirs, tokens, labels)
        assert logprob == pytest.approx(total, abs=1e-4), (context, continuation)
        assert is_greedy == greedy


def test_the_most_likely_token_is_greedy(ours: Any, theirs: Any) -> None:
    with torch.inference_mode():
        best = theirs(torch.tensor([encode("Once")])).logits[0, -1].argsort(descending=True)[:2].tolist()
    made = [(None, encode("Once"), [token]) for token in best]
    assert [greedy for _, greedy in ours._loglikelihood_tokens(made, disable_tqdm=True)] == [True, False]


def test_long_documents_are_scored_in_windows(ours: Any, theirs: Any) -> None:
    texts = ["short", "It rained all day. " * 11]
    totals = ours.loglikelihood_rolling(requests(*((text,) for text in texts)), disable_tqdm=True)
    for text, total in zip(texts, totals, strict=True):
        tokens = [ours.prefix_token_id, *encode(text)]
        expected = 0.0
        for start in range(0, len(tokens) - 1, CONTEXT):
            end = min(start + CONTEXT, len(tokens) - 1)
            context = tokens[max(0, end - CONTEXT) : start + 1]
            expected += expected_score(theirs, context, tokens[start + 1 : end + 1])[0]
        assert total == pytest.approx(expected, abs=1e-3)


def test_texts_are_those_of_transformers(ours: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ["The sea", LONG, "A"]
    options = {"until": ["\n\n"], "max_gen_toks": 13, "do_sample": False}
    texts = ours.generate_until(requests(*((prompt, options) for prompt in prompts)), disable_tqdm=True)
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = torch.tensor([encode(prompt)[-(CONTEXT - 13) :]])
        end = ours.eot_token_id
        made = theirs.generate(tokens, max_new_tokens=13, do_sample=False, eos_token_id=end, pad_token_id=end)
        assert text == ours._tokenizer.decode(made[0, tokens.shape[1] :].tolist()).split("\n\n")[0]
    stop = texts[0][3]
    (short,) = ours.generate_until(requests(("The sea", {**options, "until": stop})), disable_tqdm=True)
    assert short == texts[0].split(stop)[0] != texts[0]
    assert ours._ends == [ours.eot_token_id]
    monkeypatch.setattr(ours, "_ends", encode(stop))
    assert ours.generate_until(requests(("The sea", options)), disable_tqdm=True) == [short]


def test_the_prefix_of_the_tokenizer_is_added_once(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ours.prefix_token_id
    monkeypatch.setattr(ours._tokenizer, "prefix_and_suffix", ((begin,), ()))
    assert ours.tok_encode("ab") == [begin, *encode("ab")]
    assert ours.tok_encode("ab", add_special_tokens=False) == encode("ab")
    assert ours.tok_encode(ours._tokenizer.token(begin) + "ab") == [begin, *encode("ab")]


def test_wrong_use_is_a_sentence(ours: Any, harness: Any, folder: Path) -> None:
    with pytest.raises(ChumokuError, match=r"no argument 'precison' in --model_args\. Did you mean precision"):
        harness.registered["chumoku"](path=str(folder), precison="int8")
    with pytest.raises(ChumokuError, match="--model_args path=MODEL"):
        harness.registered["chumoku"]()
    with pytest.raises(ChumokuError, match="kind 'decoder'"):
        harness.registered["chumoku"](path="ja-en")
    with pytest.raises(ChumokuError, match="up to 67 tokens, but this model reads 67 at most"):
        ours.generate_until(requests(("a", {"max_gen_toks": CONTEXT})))
    with pytest.raises(ChumokuError, match="generation option 'num_beams'"):
        ours.generate_until(requests(("a", {"num_beams": 3})))
    with pytest.raises(ChumokuError, match="continuation has 71 tokens"):
        ours.loglikelihood(requests(("a", "b" * 71)))
    with pytest.raises(ChumokuError, match="no chat template"):
        ours.apply_chat_template([{"role": "user", "content": "Hello"}])


def test_the_default_device_of_the_harness(
    harness: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = harness.registered["chumoku"](path=str(folder), device="cuda:0")
    assert model._model.device.type == "cpu"
    assert "finds no GPU (cuda:0); the model runs on the CPU" in capsys.readouterr().err
    with pytest.raises(ChumokuError, match="no device 'cuda:1'"):
        harness.registered["chumoku"](path=str(folder), device="cuda:1")


def test_without_the_harness_the_command_says_what_to_install(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    finished = ask("lm-eval", "--model", "chumoku", "--tasks", "hellaswag")
    assert (finished.code, finished.out) == (2, "")
    assert "pip install 'chumoku[lm-eval]'" in finished.err


def test_all_arguments_go_to_the_harness(ask: Ask, harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("lm_eval.__main__")
    main.cli_evaluate = lambda: print(*sys.argv)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", main)
    for words in (
        ["--model", "chumoku", "--model_args", "path=a,precision=int8", "--help"],
        ["-M", "chumoku", "-a", "path=a", "-t", "b,c", "-L", "0.5", "-f5", "-b", "auto:4", "-s", "-wx", "-v", "DEBUG"],
        ["run", "--tasks=b", "--limit=3", "--include_path", "x:y", "--seed", "0,1,2,3", "--metadata={}", "-h"],
        ["ls", "tasks"],
    ):
        assert ask("lm-eval", *words).out == f"lm_eval {' '.join(words)}\n"


def test_help_of_the_command() -> None:
    assert "--model chumoku" in show_help("lm-eval")
