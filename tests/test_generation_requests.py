"""Generated text: streamed equals unstreamed, stop strings may span tokens, and the text is valid Unicode."""

from __future__ import annotations

import math

import pytest
import tokenizers
import torch
from cells import Cell
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import varied_model

from chumoku.decoding import stop_strings as stopping_module
from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.generate import generate, generate_texts, stream
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.stop_strings import StopStrings, TextStream, failure_table
from chumoku.errors import LengthError, UsageError
from chumoku.models.build import build
from chumoku.models.model import Model
from chumoku.text import Tokenizer, train

GREEDY = SamplingOptions(temperature=0)
PROMPTS = ["the", "", "ねこ", "quick brown", "x" * 20, "fox 🦊"]


@pytest.fixture(scope="module")
def bytes_() -> Tokenizer:
    return train(["the quick brown fox jumps over the lazy dog ねこがいる🦊"] * 3, kind="byte", vocabulary=300)


@pytest.fixture(scope="module")
def model(bytes_: Tokenizer) -> Model:
    model = build(Cell("decoder").config(vocabulary=bytes_.size + 7, context=61, output_bias=True, tie_output=False))
    with torch.no_grad():
        model.head.weight.normal_(0, 0.2, generator=torch.Generator().manual_seed(3))
        model.head.bias.zero_()
        # What has no text would be the likeliest of all, and bytes that begin a character come often.
        model.head.bias[forbidden_tokens(model, bytes_)] = 50.0
        model.head.bias[bytes_.encode("ねこ🦊")] = 3.0
    return model


def plainly(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, looked for at every place."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


words = st.text("ab", max_size=12)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(words, max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_stop_strings_are_found_wherever_the_pieces_end(pieces: list[str], stops: list[str]) -> None:
    stopping, shown = StopStrings(stops), []
    for piece in pieces:
        shown.append(stopping.push(piece))
        so_far, whole = "".join(shown), "".join(pieces)
        assert plainly(whole, stops).startswith(so_far)
    assert "".join(shown) + stopping.finish() == plainly("".join(pieces), stops)
    assert stopping.stopped == any(stop in "".join(pieces) for stop in stops)


def test_only_possible_stop_strings_are_pending() -> None:
    stopping = StopStrings(["abab", "xyz"])
    assert [stopping.push(piece) for piece in ("qab", "a", "c", "abx", "y", "q")] == ["q", "", "abac", "ab", "", "xyq"]
    assert stopping.finish() == ""
    assert failure_table("ababac") == [0, 0, 1, 2, 3, 0]


def test_a_broken_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_module, "failure_table", lambda stop: [0] * len(stop))
    assert StopStrings(["aab"]).push("aaab") != plainly("aaab", ["aab"])


def test_stopping_takes_linear_time() -> None:
    steps = []

    class Counted(str):
        def __getitem__(self, place: object) -> str:
            steps.append(1)
            return str.__getitem__(self, place)

    stopping = StopStrings([Counted("a" * 500 + "b")])
    for _ in range(2000):
        stopping.push("a")
    assert len(steps) < 5 * 2000


@pytest.mark.parametrize("stop", [(), ("e",), ("ねこ", "th", "🦊")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stream_equals_generate_texts(
    model: Model, bytes_: Tokenizer, stop: tuple[str, ...], temperature: float
) -> None:
    choices = SamplingOptions(temperature=temperature, seed=5).for_rows(len(PROMPTS))
    options = {"tokenizer": bytes_, "max_new_tokens": 40, "stop": stop}
    written = generate_texts(model, PROMPTS, sampling=choices, **options)
    for prompt, choice, text in zip(PROMPTS, choices, written, strict=True):
        pieces = list(stream(model, prompt, sampling=choice, **options))
        assert "".join(pieces) == text
        assert all(pieces)
        text.encode("utf-8")
        assert not any(one in text for one in stop)
    assert len(set(written)) > 3
    if not stop:
        assert any(len(text) > 10 for text in written)


def test_text_is_the_decoding_of_tokens(model: Model, bytes_: Tokenizer) -> None:
    end = bytes_.roles.end
    forbidden = forbidden_tokens(model, bytes_)
    tokens = [bytes_.encode(prompt) or [end] for prompt in PROMPTS]
    given = SamplingOptions(seed=3, forbidden=forbidden)
    expected = [bytes_.decode(row) for row in generate(model, tokens, max_new_tokens=30, end=end, sampling=given)]
    assert (
        generate_texts(model, PROMPTS, tokenizer=bytes_, max_new_tokens=30, sampling=SamplingOptions(seed=3))
        == expected
    )


def test_forbidden_tokens_are_not_generated(model: Model, bytes_: Tokenizer) -> None:
    roles = bytes_.roles
    never = {*range(bytes_.size, bytes_.size + 7), roles.pad, roles.begin, roles.mask} - {None}
    assert never <= set(forbidden_tokens(model, bytes_))
    assert roles.end not in forbidden_tokens(model, bytes_)
    assert generate_texts(model, ["the"], tokenizer=bytes_, max_new_tokens=9, sampling=GREEDY)[0]


def test_words_keep_their_spaces() -> None:
    """A tokenizer that drops the space of a text's first token must not drop it behind a prompt."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁the": 0, "▁quick": 1, "▁fox": 2}, unk_token="▁the"))
    backend.decoder = tokenizers.decoders.Metaspace()
    spaced = Tokenizer(backend)
    assert TextStream(spaced).push(1) == "quick"
    for before in ([0], [0] * 40):
        utterance = TextStream(spaced, before=before)
        assert [utterance.push(token) for token in (1, 2)] == [" quick", " fox"]


def test_a_closed_stream_frees_its_row(model: Model, bytes_: Tokenizer) -> None:
    engine = TorchEngine(model, rows=1, capacity=99)
    pieces = stream(model, "the", tokenizer=bytes_, max_new_tokens=50, engine=engine)
    next(pieces)
    assert engine.live == 1
    pieces.close()
    assert engine.live == 0
    again = "".join(stream(model, "the", tokenizer=bytes_, max_new_tokens=20, sampling=GREEDY, engine=engine))
    assert again == generate_texts(model, ["the"], tokenizer=bytes_, max_new_tokens=20, sampling=GREEDY)[0]
    assert not torch.is_inference_mode_enabled()


def test_a_stream_leaves_the_mode_alone_while_it_waits(model: Model, bytes_: Tokenizer) -> None:
    model.train()
    pieces = stream(model, "the", tokenizer=bytes_, max_new_tokens=50)
    next(pieces)
    assert model.training
    assert not torch.is_inference_mode_enabled()
    pieces.close()
    model.eval()


def test_min_and_max_new_tokens(model: Model, bytes_: Tokenizer) -> None:
    eager = varied_model("decoder", "none", vocabulary=bytes_.size)
    with torch.no_grad():
        eager.head.bias[bytes_.roles.end] = 99.0
    tokens = [bytes_.encode("the")]
    for least in (0, 3):
        written = generate(eager, tokens, max_new_tokens=5, temperature=0, end=bytes_.roles.end, min_new_tokens=least)
        assert len(written[0]) == least
    assert generate_texts(eager, ["the"], tokenizer=bytes_, max_new_tokens=9) == [""]
    assert generate_texts(model, ["the"], tokenizer=bytes_, max_new_tokens=0) == [""]
    assert list(stream(model, "the", tokenizer=bytes_, max_new_tokens=0)) == []
    assert generate_texts(model, [], tokenizer=bytes_) == []
    several = generate(eager, tokens, max_new_tokens=5, temperature=0, end=(5, bytes_.roles.end), min_new_tokens=1)
    assert len(several[0]) == 1


def test_invalid_texts_are_refused(model: Model, bytes_: Tokenizer) -> None:
    for ask in (lambda **rest: generate_texts(model, ["the"], **rest), lambda **rest: stream(model, "the", **rest)):
        for options, message in (
            ({"max_new_tokens": -1}, "must be 0 or more; it is -1"),
            ({"stop": "abc"}, "stop must be a list of strings"),
            ({"stop": ["a", ""]}, "stop string must not be empty"),
        ):
            with pytest.raises(UsageError, match=message):
                ask(tokenizer=bytes_, **options)
    with pytest.raises(UsageError, match="prompts must be a list of texts"):
        generate_texts(model, "the", tokenizer=bytes_)
    with pytest.raises(LengthError, match="The prompt has 62 tokens, and this model reads 61 at most"):
        stream(model, "☃" * 20 + "ab", tokenizer=bytes_)
    with pytest.raises(UsageError, match=r"All \d+ tokens are forbidden"):
        generate_texts(
            model,
            ["the"],
            tokenizer=bytes_,
            sampling=SamplingOptions(bias=dict.fromkeys(range(bytes_.size), -math.inf)),
        )
