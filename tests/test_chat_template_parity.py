"""Chat templates give the texts and tokens of transformers, and typed text never becomes a special token."""

from __future__ import annotations

import functools
from typing import Any

import jinja2
import pytest
from chat_templates import FAMILIES, Family
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chumoku import text
from chumoku.errors import UsageError
from chumoku.text.chat_template import ChatTemplate, encode_spans
from chumoku.text.tokenizer import Tokenizer

LINES = ["user assistant system\n\nYou are a helper.\n hello  there, who is it?\n", "<tool_call>\n{}\n こたつでみかん"]
KINDS = ("byte-level", "metaspace")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The "weather" at a place <b>now</b>.',
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["東京", "Rome"]}}},
    },
}


@functools.cache
def tokenizers_for(name: str, kind: str) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    """Ours and that of transformers, with the same backend. The second kind puts a space before the first word only."""
    family = FAMILIES[name]
    backend = text.train(LINES * 9, kind="bpe", vocabulary=330)._special
    if kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        backend.decoder = decoders.ByteLevel()
    strips = name == "phi3"  # its tokens take the spaces after them
    backend.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False, rstrip=strips) for mark in family.marks]
    )
    names = {"bos_token": family.bos, "eos_token": family.eos}
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=family.template, **{key: one for key, one in names.items() if one}
    )
    ours = Tokenizer(backend)
    known = {key: one for key, one in theirs.special_tokens_map.items() if isinstance(one, str)}
    ours.chat_template = ChatTemplate({"default": family.template}, known)
    return ours, theirs


WORDS = [
    "hello",
    " there",
    "\n",
    "\n\n",
    "  ",
    "<think>",
    "</think>",
    "{{ x }}",
    "{% if %}",
    "こたつ",
    "🍊",
    "</",
    "|>",
    "/no_think",
]
CONTENT = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=7).map("".join)
CONTENT = CONTENT.map(lambda one: one.encode("utf-8", "ignore").decode())


@st.composite
def conversations(draw: st.DrawFn, *, tools: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(CONTENT)}] if draw(st.booleans()) else []
    uses_tools = tools and draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        messages.append({"role": "user", "content": draw(CONTENT)})
        if uses_tools and draw(st.booleans()):
            call = {"name": "weather", "arguments": {"place": draw(CONTENT)}}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            )
            messages.append({"role": "tool", "content": draw(CONTENT)})
        roles = st.sampled_from(
            ["assistant"] * 9 + ["user"]
        )  # sometimes a user speaks twice, which some templates refuse
        messages.append({"role": draw(roles), "content": draw(CONTENT)})
    return [*messages, {"role": "user", "content": draw(CONTENT)}], [WEATHER] if uses_tools else None


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_texts_and_tokens_are_those_of_transformers(name: str, kind: str) -> None:
    family: Family = FAMILIES[name]
    ours, theirs = tokenizers_for(name, kind)
    template = ours.chat_template
    assert template is not None

    @settings(max_examples=60)
    @given(conversations(tools=family.tools), st.booleans())
    def check(talk: tuple[list[dict[str, Any]], list[dict[str, Any]] | None], prompt: bool) -> None:
        messages, tools = talk
        try:
            expected = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)
        except jinja2.TemplateError as error:
            with pytest.raises(UsageError, match=f"cannot render this conversation: it says: {error}"):
                template.render(messages, tools=tools, add_generation_prompt=prompt)
            return
        spans = template.render(messages, tools=tools, add_generation_prompt=prompt)
        assert "".join(span.text for span in spans) == expected
        ids = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, return_dict=False)
        assert encode_spans(ours, spans) == ids

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_long_messages_are_encoded_alike(kind: str) -> None:
    ours, theirs = tokenizers_for("llama3", kind)
    messages = [{"role": role, "content": "hello there,\nwho is it? " * 701} for role in ("user", "assistant", "user")]
    assert ours.chat_template is not None
    ids = encode_spans(ours, ours.chat_template.render(messages))
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_typed_special_tokens_stay_text(name: str) -> None:
    """Wherever a user types special tokens, also cut in two, the prompt has those of the template alone."""
    family = FAMILIES[name]
    ours, _ = tokenizers_for(name, "byte-level")
    template = ours.chat_template
    assert template is not None
    marks = {*ours.specials.values()}
    halves = [mark[:3] for mark in family.marks] + [mark[3:] for mark in family.marks]
    typed = st.lists(st.sampled_from([*family.marks, *halves, " ", "\n", "</think>", "x"]), min_size=1, max_size=5)

    @settings(max_examples=60)
    @given(st.lists(typed.map("".join), min_size=3, max_size=3))
    def check(contents: list[str]) -> None:
        def prompt(texts: list[str]) -> tuple[list[int], str]:
            roles = ("user", "assistant", "user")
            spans = template.render([{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)])
            return encode_spans(ours, spans), "".join(span.text for span in spans)

        ids, shown = prompt(contents)
        innocent, _ = prompt(["a", "b", "c"])
        assert [one for one in ids if one in marks] == [one for one in innocent if one in marks]
        if name != "phi3":  # its tokens take the spaces after them
            assert ours.decode(ids, special=True) == shown, "nothing else is lost"

    check()
