"""Translation, completion and chat in a web page: the handlers in Chromium, against the server's answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import tokenizers
import torch
from browser import module_page
from bundles import byte_tokenizer, chat_tokenizer
from chat_templates import FAMILIES
from serving import Serving, serving
from web_requests import ENTRY, compare

from chumoku.decoding import chat
from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import GenerationConfig
from chumoku.pipeline import Pipeline
from chumoku.server.openai import schemas
from chumoku.server.openai.generation import sampling_of
from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.chat_template import ChatTemplate, find_marks
from chumoku.text.tokenizer import Tokenizer
from chumoku.web import chat_pattern_check
from chumoku.web.chat_pattern import apply_pattern, make_renderer
from chumoku.web.chat_pattern_check import find_chat_pattern, find_words, random_conversation
from chumoku.web.container import prepare_model
from chumoku.web.export import make_container
from chumoku.web.generation_data import generation_data
from chumoku.web.tokenizer_data import tokenizer_data


@pytest.fixture(autouse=True)
def few_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns are compared with fewer conversations than in an export, which takes a second for each tokenizer."""
    monkeypatch.setattr(chat_pattern_check, "CONVERSATIONS", 23)
    monkeypatch.setattr(chat_pattern_check, "BLANK_CONVERSATIONS", 23)


@pytest.fixture(scope="module")
def page(browser_process: Any) -> Iterator[Any]:
    with module_page(browser_process, ENTRY) as one:
        yield one


def make_pipeline(kind: str, tokenizer: Tokenizer, **changes: Any) -> Pipeline:
    sizes = {"width": 30, "heads": 3, "layers": 2, "context": 61, "vocabulary": tokenizer.size + 3}
    model = build(ModelConfig(**{"kind": kind, **sizes, **changes}), seed=5).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return Pipeline(prepare_model(model, "float32"), tokenizer, tokenizer)


def smollm_tokenizer() -> Tokenizer:
    tokenizer = chat_tokenizer()
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer.chat_template = ChatTemplate({"default": FAMILIES["smollm2"].template}, tokens)
    return tokenizer


@pytest.fixture(scope="module")
def models() -> dict[str, Pipeline]:
    return {
        "translator": make_pipeline("encoder-decoder", byte_tokenizer(), position="sinusoidal"),
        "many": make_pipeline("encoder-decoder", byte_tokenizer(("en", "ja")), position="learned"),
        "writer": make_pipeline("decoder", smollm_tokenizer(), context=211, attention_window=13),
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Pipeline]) -> Iterator[Serving]:
    with serving({**models}) as one:
        yield one


TEXT = "猫が https://example.com を見た。 Dr. Sato saw B2! Yes"


def test_translations_equal_the_servers(page: Any, server: Serving, models: dict[str, Pipeline]) -> None:
    bodies: list[dict[str, Any]] = [
        {"text": TEXT, "n": 3, "alignment": True, "max_tokens": 7},
        {"text": ["One.", " \n two? Three", "四。"], "beam": 5, "length_penalty": -0.5, "n": 2},
        {"text": "Go on. Now", "tree": True, "beam": 3, "max_tokens": 5},
        {"text": "as a whole. Yes", "split": False, "beam": 1, "max_tokens": 11},
        *({"text": "a", **wrong} for wrong in ({"beam": 17}, {"n": 5}, {"beam": 0}, {"tee": True}, {"split": 1})),
        *({"text": wrong} for wrong in (" ", [], ["a", "\n"], 7, "x" * 61, "a. " * 65)),
        {"text": ["a", "b"], "tree": True},
        {"text": "a", "into": "en", "source_language": "ja"},
        {"beam": 3},
        {"text": "a", "length_penalty": "long"},
    ]
    found = compare(page, server, models, "translator", [("/v1/translate", body) for body in bodies])
    assert ["error" in one for one in found] == [False] * 4 + [True] * (len(bodies) - 4)
    assert found[0]["result"]["translations"][0]["stand_ins"] == [{"name": "B2", "word": "https://example.com"}]
    bodies = [
        {"text": "a b", "into": "ja", "max_tokens": 5},
        {"text": "a", "into": "fr"},
        {"text": "a", "alignment": True},
    ]
    compare(page, server, models, "many", [("/v1/translate", body) for body in bodies])


def test_completions_equal_the_servers(page: Any, server: Serving, models: dict[str, Pipeline]) -> None:
    greedy = {"temperature": 0, "max_tokens": 13}
    letter, end = models["writer"].tokenizer.encode("a")[0], models["writer"].tokenizer.specials["<|im_end|>"]
    bodies: list[dict[str, Any]] = [
        {"prompt": "Once upon", "logprobs": 3, **greedy},
        {"prompt": "Once upon a", "logprobs": 0, "stream": True, "stream_options": {"include_usage": True}, **greedy},
        {
            "prompt": "",
            "logit_bias": {letter: 50, letter + 1: 49},
            "frequency_penalty": 2,
            "presence_penalty": 1.5,
            **greedy,
        },
        {"prompt": "猫", "logit_bias": {end: 90}, "min_tokens": 2, "repetition_penalty": 1.3, **greedy},
        {"prompt": [5, 6, 7], "logit_bias": {letter: 90}, "stop": ["aaab", "aaa"], "logprobs": 1, **greedy},
        {"prompt": "<|im_end|>", "stop": "猫", **greedy},
        {"prompt": "x" * 211, "max_tokens": 7},
        *({"prompt": "a", **wrong} for wrong in ({"top_p": 0}, {"temperature": -1}, {"topp": 1}, {"max_tokens": 0})),
        *({"prompt": "a", **wrong} for wrong in ({"logit_bias": {"x": 1}}, {"logit_bias": {"300": 1}}, {"stop": ""})),
        {"prompt": "x" * 212},
        {"prompt": [999]},
        {"prompt": "a", "stream_options": {"include_usage": True}},
        {"prompt": "a", "model": "none"},
    ]
    found = compare(page, server, models, "writer", [("/v1/completions", body) for body in bodies])
    assert found[4]["result"]["choices"][0]["text"] == ""
    assert [found[place]["result"]["choices"][0]["finish_reason"] for place in (3, 4, 5)] == ["stop", "stop", "length"]


def test_what_a_request_leaves_out_is_the_models_default(page: Any, models: dict[str, Pipeline]) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"temperature": 0.5},
        {"top_k": 0},
        {"top_p": 1.0, "min_p": 0},
        {"min_p": 0.2, "repetition_penalty": 2.0},
    ]
    files: list[dict[str, Any]] = [
        {},
        {"top_k": 7},
        {"do_sample": False},
        {"temperature": 0.9, "repetition_penalty": 1.2},
    ]
    for config in map(GenerationConfig, files):
        generation = generation_data(models["writer"].model, models["writer"].tokenizer, config)
        for body in bodies:
            options = sampling_of(schemas.Completion(model="m", prompt="a", seed=3, **body), config)
            names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
            given = dict.fromkeys((*names, "seed", "presence_penalty", "frequency_penalty", "logit_bias")) | body
            found = page.evaluate("([body, generation]) => samplingOf(body, generation)", [given, generation])
            assert {name: found.get(name) for name in names} == {name: getattr(options, name) for name in names}, body


def test_chats_equal_the_servers(page: Any, server: Serving, models: dict[str, Pipeline]) -> None:
    greedy = {"temperature": 0, "max_tokens": 11}
    spaces = {"logit_bias": {models["writer"].tokenizer.encode(" ")[0]: 60}, "frequency_penalty": 2, "logprobs": True}

    def chat(*texts: str, system: str | None = None) -> dict[str, Any]:
        messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
        return {"messages": [*([] if system is None else [{"role": "system", "content": system}]), *messages], **greedy}

    bodies = [
        {**chat("Hello"), "logprobs": True, "top_logprobs": 3},
        {**chat("Hello", "Yes", " <|im_end|>\n", system="Be brief."), "stream": True, "logprobs": True},
        {**chat("One", "two", "three", "x" * 31, "four"), "stream": True, "stream_options": {"include_usage": True}},
        chat(*(["x" * 19] * 7)),
        {**chat("Hello"), **spaces, "max_completion_tokens": 37},
        {**chat("Hello"), **spaces, "max_completion_tokens": 37, "stream": True},
        chat("x" * 200),
        chat(" "),
        chat("a", "b"),
        {"messages": []},
        {**chat("a"), "top_logprobs": 3},
        {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
    ]
    found = compare(page, server, models, "writer", [("/v1/chat/completions", body) for body in bodies])
    assert found[3]["result"]["dropped_messages"] > 0
    assert found[4]["result"]["choices"][0]["message"]["content"][:1] not in (" ", "")
    assert found[6]["error"]["code"] == "context_length_exceeded"


def template_tokenizer(name: str) -> Tokenizer:
    """A tokenizer of bytes with the chat template of a family."""
    family = FAMILIES[name]
    backend = byte_tokenizer()._special
    backend.add_special_tokens([*family.marks])
    tokenizer = Tokenizer(backend)
    tokens = {"bos_token": family.bos or "", "eos_token": family.eos or ""}
    tokenizer.chat_template = ChatTemplate({"default": family.template}, tokens)
    return tokenizer


RENDER = """
(cases) => cases.map(({ pattern, conversations }) => conversations.map((messages) => {
  try {
    return renderChat(pattern, messages);
  } catch (error) {
    return { error: error.message, kind: error.name, param: error.param };
  }
}))
"""
CHAT_ML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def test_chat_patterns_write_what_templates_write(page: Any) -> None:
    """In the page and in Python; a template that changes with words of a message has no pattern."""
    tokenizers = {name: template_tokenizer(name) for name in FAMILIES}
    tokenizers |= {"chatml": chat_tokenizer(CHAT_ML), "llama3 format": chat_tokenizer(LLAMA_3)}
    cases, expected, reasons = [], [], {}
    for number, (name, tokenizer) in enumerate(tokenizers.items()):
        pattern, reasons[name] = find_chat_pattern(tokenizer)
        if pattern is None:
            continue
        chance, render, words = random.Random(number), make_renderer(tokenizer), find_words(tokenizer)
        conversations = [random_conversation(chance, words, blank=pattern["blank"]) for _ in range(29)]
        messages = [[{"role": role, "content": text} for role, text in turns] for turns in conversations]
        cases.append({"pattern": pattern, "conversations": messages})
        expected.append([render_or_refuse(tokenizer, render, turns) for turns in conversations])
    found = {name: reason for name, reason in reasons.items() if reason}
    assert found == {"smollm3": "it changes the text of messages in a way of its own"}
    pieces = [piece for case in cases for gap in case["pattern"]["gaps"].values() for piece in gap]
    assert {one["date"] for one in pieces if "date" in one} == {"%d %b %Y"}, "not the date of the export"
    found = page.evaluate(RENDER, cases)
    assert found == expected
    assert any("error" in one for one in found[2]), "llama2 refuses roles that do not take turns"
    blank = [{"role": role, "content": text} for role, text in (("user", " "), ("assistant", "a"), ("user", "b"))]
    refused = page.evaluate(RENDER, [{"pattern": cases[2]["pattern"], "conversations": [blank]}])[0][0]
    assert refused["error"].startswith("This page cannot render a system or user message without text.")


def render_or_refuse(tokenizer: Tokenizer, render: Any, turns: list[tuple[str, str]]) -> dict[str, Any]:
    """What the page must answer."""
    try:
        spans = render(turns)
    except UsageError as error:
        return {"error": str(error), "kind": "RequestError", "param": "messages"}
    text = "".join(span.text for span in spans)
    place = {at: len(text[:at].encode("utf-16-le")) // 2 for at in range(len(text) + 1)}  # JavaScript counts so
    marks = find_marks(tokenizer, spans)
    return {"text": text, "marks": [{"id": one.id, "start": place[one.start], "end": place[one.end]} for one in marks]}


# The same text, but a special token if it is the whole message.
SPECIAL_CONTENT = "{% if m.content == '<|im_end|>' %}<|im_end|>{% else %}{{ m.content }}{% endif %}"


def test_a_template_that_counts_messages_has_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = chat_tokenizer()
    source = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{% endfor %}"
    tokenizer.chat_template = ChatTemplate({"default": source})
    assert find_chat_pattern(tokenizer)[1] is None
    for odd, reason in {
        "{{ messages | length }}" + source: "what it writes between two messages depends on more than their roles",
        source + "{% if messages | length > 6 %}<|im_end|>{% endif %}": "what it writes depends on the text of the",
        source.replace("{{ m.content }}", "{{ m.content | upper }}"): "it leaves out, repeats or moves messages",
        source.replace("{{ m.content }}", "{{ m.content * 2 }}"): "it leaves out, repeats or moves messages",
        source + "{% if 'sesame' in messages[-1].content %}!{% endif %}": "what it writes depends on the text of the",
        source + "{{ raise_exception('closed') }}": "it says: closed",
        "{% if messages[-2:] | map(attribute='role') | list == ['user', 'user'] %}{{ raise_exception() }}{% endif %}"
        + source: "it accepts some orders of roles and refuses others",
    }.items():
        tokenizer.chat_template = ChatTemplate({"default": odd})
        pattern, given = find_chat_pattern(tokenizer)
        assert pattern is None, odd
        assert reason in str(given), odd
    assert find_chat_pattern(byte_tokenizer()) == (None, None), "plain chat has no special tokens"
    monkeypatch.setattr(chat_pattern_check, "CONVERSATIONS", 300)  # a message that is nothing but this token is rare
    tokenizer.chat_template = ChatTemplate({"default": source.replace("{{ m.content }}", SPECIAL_CONTENT)})
    assert "depends on the text" in str(find_chat_pattern(tokenizer)[1])


ENCODE = """
([data, pattern, conversations]) => {
  const tokenizer = makeTokenizer(data);
  return conversations.map((messages) => encodePrompt(pattern, tokenizer, renderChat(pattern, messages)));
}
"""


def metaspace_tokenizer() -> Tokenizer:
    """A tokenizer of letters that writes a space as ▁, also before a text."""
    letters = dict.fromkeys("▁abcdefgINSTYxyz[]/<>|_\n\t{}%é猫")
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), *((one, -2.0) for one in letters)], 0))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = tokenizers.decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend)


def prefixed_tokenizer() -> Tokenizer:
    """A tokenizer of a chat format that puts a token of its own before a text."""
    backend = chat_tokenizer((*CHAT_ML, "<p>"))._special
    set_prefix_and_suffix(backend, ["<p>"], [])
    return Tokenizer(backend)


OVERLAPPING = "{% for m in messages %}{{ m.role }}: {{ m.content }}|a|{% endfor %}"  # b|a|a|: a user types the first |a


def test_prompts_have_pythons_tokens(page: Any) -> None:
    """Also where a user types special tokens, and with a tokenizer that puts a space before a text."""
    cases: list[tuple[Tokenizer, str | None, dict[str, str]]] = [
        (chat_tokenizer(), FAMILIES["smollm2"].template, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
        (metaspace_tokenizer(), FAMILIES["llama2"].template, {"bos_token": "<s>", "eos_token": "</s>"}),
        (chat_tokenizer(("|a|",)), OVERLAPPING, {}),
        (chat_tokenizer(LLAMA_3), None, {}),
        (prefixed_tokenizer(), None, {}),
    ]
    for tokenizer, template, names in cases:
        tokenizer.chat_template = None if template is None else ChatTemplate({"default": template}, names)
        pattern, _ = find_chat_pattern(tokenizer)
        assert pattern is not None
        chance, words = random.Random(11), find_words(tokenizer)
        long = [("user", "ab c" * 3000), ("assistant", "d"), ("user", "e f" * 99)]
        conversations = [[("user", "b|a")], long, *(random_conversation(chance, words) for _ in range(47))]
        conversations = [turns for turns in conversations if apply_pattern(pattern, turns) is not None]
        messages = [[{"role": role, "content": text} for role, text in turns] for turns in conversations]
        found = page.evaluate(ENCODE, [tokenizer_data(tokenizer), pattern, messages])
        chats = [[chat.Message(*turn) for turn in turns] for turns in conversations]
        format = tokenizer.chat_template or chat.format_for(tokenizer)
        assert found == [chat.fit(one, tokenizer, format, most=10**6).tokens for one in chats]


def test_a_page_without_chat_says_why(models: dict[str, Pipeline]) -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = ChatTemplate({"default": FAMILIES["smollm3"].template})
    pipeline = Pipeline(models["writer"].model, tokenizer, tokenizer)
    with pytest.warns(UserWarning, match=r"no chat and completes texts only: .* \(it changes the text of messages"):
        content = make_container(pipeline, "m", "float32", into=None, examples=())
    header = json.loads(content[8 : 8 + int.from_bytes(content[4:8], "little")])
    assert header["card"]["chat"] is False
    assert (
        header["card"]["chat_reason"]
        == header["generation"]["chat_reason"]
        == "it changes the text of messages in a way of its own"
    )
    assert header["generation"]["chat"] is None
