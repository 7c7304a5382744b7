"""The command, the server, the demo, `evaluate` and `look` translate alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from bundles import make_bundle
from commands import Ask, Ended
from serving import Serving, serving

import chumoku
from chumoku.cli.demo import translate_with_attention
from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.beam import search
from chumoku.decoding.translate import begin_and_end, encode
from chumoku.errors import LengthError, UsageError
from chumoku.inspect_prompt import question
from chumoku.pipeline import Pipeline
from chumoku.text.sentences import join_sentences

TEXT = "猫と one"
Ways = dict[str, Callable[[str], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("models") / "translator", "encoder-decoder")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return chumoku.load(folder)


@pytest.fixture(scope="module")
def server(pipeline: Pipeline) -> Iterator[Serving]:
    with serving({"translator": pipeline}) as running:
        yield running


@pytest.fixture
def ways(folder: Path, pipeline: Pipeline, server: Serving, tmp_path: Path, ask: Ask) -> Ways:
    """The ways to translate a text greedily; each raises LengthError if it refuses the text."""

    def output(ended: Ended) -> str:
        if ended.code:
            raise LengthError(ended.err)
        return ended.out

    def by_command(text: str) -> str:
        return output(ask("translate", str(folder), text, "--beam", "1")).removesuffix("\n")

    def by_server(text: str) -> str:
        answer = server.post("/v1/translate", model="translator", text=text, beam=1).json()
        if "error" in answer:
            raise LengthError(answer["error"]["message"])
        return str(answer["translations"][0]["hypotheses"][0]["text"])

    def by_demo(text: str) -> str:
        tokens, attention = translate_with_attention(pipeline, text)
        assert attention.shape[1] == len(tokens) + 1
        return pipeline.tokenizer.decode(tokens)

    def by_evaluate(text: str) -> str:
        pairs, saved = tmp_path / "pairs.tsv", tmp_path / "translations.txt"
        pairs.write_text(f"{text}\tcat\n", "utf-8")
        output(ask("evaluate", str(folder), str(pairs), "--beam", "1", "--save", str(saved)))
        return saved.read_text("utf-8").removesuffix("\n")

    def by_look(text: str) -> str:
        return pipeline.tokenizer.decode(question(pipeline, text, None, None)[0].tokens[1:])

    return {"command": by_command, "server": by_server, "demo": by_demo, "evaluate": by_evaluate, "look": by_look}


def test_all_give_the_same_translation(ways: Ways, pipeline: Pipeline) -> None:
    """Without rules, this model never ends and generates forbidden tokens, so the rules decide the translation."""
    model, tokenizer = pipeline.model, pipeline.tokenizer
    (source,), (begin, end) = encode(model, [TEXT], pipeline.source_tokenizer), begin_and_end(tokenizer)  # type: ignore[arg-type]
    free = search(model, torch.tensor([source]), begin=begin, end=end, limit=101)[0][0]  # type: ignore[arg-type]
    assert not free.ended
    assert {*free.tokens} & {*forbidden_tokens(model, tokenizer)}

    expected = pipeline.translate(TEXT, beam=1)
    assert {name: way(TEXT) for name, way in ways.items()} == dict.fromkeys(ways, expected)
    assert len(tokenizer.encode(expected)) == 2 * len(source) + 20


def test_all_refuse_or_cut_the_same_texts(ways: Ways) -> None:
    """A text fills the context of 61 together with its end token; `look` shows the part that fits, `evaluate` skips."""
    cut, skip = ways.pop("look"), ways.pop("evaluate")
    assert skip("a" * 60)
    with pytest.raises(UsageError, match="are longer than the model's context, 61 tokens"):
        skip("a" * 61)
    for way in ways.values():
        assert way("a" * 60)
        with pytest.raises(LengthError, match="has 62 tokens with the end token, and this model reads 61 at most"):
            way("a" * 61)
    assert cut("a" * 60) == cut("a" * 61)


def test_sentences_of_a_text_are_translated_one_by_one(ways: Ways, pipeline: Pipeline) -> None:
    """By the command, the server and `evaluate`; `look` and the demo show what the model does with one sequence."""
    first, second = pipeline.translate(["猫と。", "one!"], beam=1)
    for name in ("command", "server", "evaluate"):
        assert ways[name]("猫と。 one!") == join_sentences([first, second], [" ", ""]), name
        assert ways[name]("a" * 53 + "。" + "a" * 53), f"{name}: each sentence fits the context, the text does not"
    assert pipeline.translate("猫と。 one!", beam=1, split=False) not in (first, ways["command"]("猫と。 one!"))


def test_a_served_text_of_several_sentences_has_one_alignment(server: Serving, pipeline: Pipeline) -> None:
    ask = {"model": "translator", "beam": 2, "n": 2, "max_tokens": 7, "alignment": True}
    texts = ["猫と。\nOne! Two?", "猫と。", "One!", "Two?"]
    together, *apart = server.post("/v1/translate", text=texts, **ask).json()["translations"]
    assert together["source"] == [token for one in apart for token in one["source"]]
    assert together["tree"] is None
    for place, hypothesis in enumerate(together["hypotheses"]):
        parts = [one["hypotheses"][place] for one in apart]
        assert hypothesis["text"] == join_sentences([part["text"] for part in parts], ["\n", " ", ""])
        assert hypothesis["score"] == pytest.approx(sum(part["score"] for part in parts))
        assert [token["id"] for token in hypothesis["tokens"]] == [t["id"] for part in parts for t in part["tokens"]]
        blocks = torch.block_diag(*(torch.tensor(part["alignment"]) for part in parts))
        torch.testing.assert_close(torch.tensor(hypothesis["alignment"]), blocks, atol=1e-5, rtol=0)
        assert len(hypothesis["candidates"]) == len(hypothesis["tokens"])
    whole = server.post("/v1/translate", text=texts[0], split=False, **ask).json()["translations"][0]
    ends = [sum(token["id"] == pipeline.tokenizer.roles.end for token in one["source"]) for one in (together, whole)]
    assert ends == [3, 1]


def test_a_served_text_has_a_limit_of_sentences(server: Serving) -> None:
    answer = server.post("/v1/translate", model="translator", text="あ。" * 3001).json()
    assert "The texts have 3,001 sentences; the limit is" in answer["error"]["message"]
    long = server.post("/v1/translate", model="translator", text=("あ" * 13 + "。") * 17, alignment=True).json()
    assert "a text of several sentences is aligned up to 512" in long["error"]["message"]
    assert server.post("/v1/translate", model="translator", text=[" あ。"] * 61, max_tokens=2).status_code == 200
