"""Chat templates: hostile ones, where they are read from and written to, and prompts made with them."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from chat_templates import FAMILIES
from commands import Ask, Ended
from transformers import AutoTokenizer

import chumoku
from chumoku import text
from chumoku.decoding import chat
from chumoku.decoding.chat import Message
from chumoku.errors import LengthError, UsageError
from chumoku.text import chat_template_process
from chumoku.text.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate, Span, encode_spans
from chumoku.text.formats.gguf import from_ggml, to_ggml
from chumoku.text.tokenizer import Tokenizer, with_prefix_and_suffix

HELLO = [{"role": "user", "content": "Hello"}]
SMOLLM2 = FAMILIES["smollm2"].template


def render(source: str, messages: list[dict[str, str]] = HELLO) -> list[Span]:
    return ChatTemplate({"default": source}).render(messages)


def shown(source: str, messages: list[dict[str, str]] = HELLO) -> str:
    return "".join(span.text for span in render(source, messages))


def tokenizer_with(source: str = SMOLLM2, **named: str) -> Tokenizer:
    tokenizer = chat_tokenizer()
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer.chat_template = ChatTemplate({"default": source, **named}, tokens)
    return tokenizer


# Hostile templates

HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a range": "{{ range(10**9) | list }}",
    "a long string": "{{ 'a' * 10**9 }}",
    "a long list": "{{ ([1] * 10**9) | length }}",
    "a large number": "{% set n = 10**9 %}{{ 10**n }}",
    "concatenation": "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "lists": "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a format": "{{ '%1000000000d' | format(1) }}",
    "str.format": "{{ '{:1000000000}'.format(1) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "indent": "{{ 'a\\nb' | indent(10**9) }}",
    "replace": "{% set a = 'a' * 10**5 %}{{ a | replace('a', a) }}",
    "a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a long text": "{% for a in range(99999) %}{{ 'abcdefgh' * 999 }}{% endfor %}",
    "deep parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "a date": "{{ strftime_now('%Y' * 10**8) }}",
    "another file": "{% include '/etc/passwd' %}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a namespace's class": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "a function's code": "{{ raise_exception.__globals__['json'] }}",
    "a changed message": "{{ messages.append(1) }}",
    "an unknown tag": "{% open '/etc/passwd' %}",
    "no text": "{% if false %}a{% endif %}",
    "its own marks": "{{ messages[0].content | template text }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused(name: str) -> None:
    shown("warm")
    child = chat_template_process._PROCESS._child
    assert child is not None
    limits = Path(f"/proc/{child.pid}/limits").read_text()
    assert int(re.findall(r"Max address space +(\d+)", limits)[0]) < 200 << 20
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=r"^The model's chat template (cannot render|was stopped)") as caught:
        shown(HOSTILE[name])
    assert time.monotonic() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 9 << 10, "kilobytes"
    assert "open files" not in str(caught.value)
    assert str(caught.value).endswith("such as chatml or plain.")
    assert shown("{{ messages[0].content }}") == "Hello", "the next one works"


def test_too_long_templates_and_messages_are_refused() -> None:
    with pytest.raises(UsageError, match=r"has 262,145 characters; at most 262,144 are allowed"):
        ChatTemplate({"default": "x" * (MAX_TEMPLATE_CHARACTERS + 1)})
    with pytest.raises(UsageError, match="17 chat templates"):
        ChatTemplate({str(number): "x" for number in range(17)})
    with pytest.raises(LengthError, match=r"have [\d,]+ characters; the limit is 2,097,152"):
        shown("x", [{"role": "user", "content": "x" * (1 << 21)}])
    long = "こ" * 2_000_000
    assert shown("{{ messages[0].content }}", [{"role": "user", "content": long}]) == long


def test_the_process_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    child = chat_template_process._PROCESS
    assert shown("one") == "one"
    assert child._child is not None
    os.kill(child._child.pid, signal.SIGKILL)
    child._child.wait()
    assert shown("two") == "two"
    pid = child._child.pid
    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in a fork, which must not share the pipe
    assert shown("three") == "three"
    assert child._child.pid != pid


def test_threads_get_their_own_answers() -> None:
    with ThreadPoolExecutor(7) as threads:
        texts = [f"text {number}" for number in range(61)]
        assert list(threads.map(shown, texts)) == texts


# What is the template's own

OWN = {
    "plain text": ("a{{ c }}b", "a", "b"),
    "a constant": ("{{ 'a' + c + 'b' }}", "a", "b"),
    "the right side": ("{{ c + 'b' }}", "b"),
    "~": ("{{ 'a' ~ c ~ 'b' ~ 1 }}", "a", "b"),
    "join": ("{{ ['a', c, 'b'] | join('-') }}", "a-", "-b"),
    "join without a separator": ("{{ ['a', c, 'b'] | join }}", "a", "b"),
    "trim": ("{{ (' a' + c + 'b ') | trim }}", "a", "b"),
    "replace": ("{{ 'a-b'.replace('-', c) }}", "a", "b"),
    "split": ("{{ ('a' + c + 'b').split(c) | join }}", "ab"),
    "a slice": ("{{ ('xxa' + c)[2:] }}", "a"),
    "%": ("{{ 'a%sb' % c }}", "a", "b"),
    "format": ("{{ 'a%sb' | format(c) }}", "a", "b"),
    "upper": ("{{ 'a' | upper }}{{ c }}", "A"),
    "a set block": ("{% set x %}a{{ c }}b{% endset %}{{ x }}", "a", "b"),
    "a macro": ("{% macro f(x) %}a{{ x }}b{% endmacro %}{{ f(c) }}", "a", "b"),
    "a call block": ("{% macro f() %}a{{ caller() }}{% endmacro %}{% call f() %}b{{ c }}{% endcall %}", "ab"),
    "a filter block": ("{% filter trim %} a{{ c }}b {% endfilter %}", "a", "b"),
    "a namespace": ("{% set n = namespace(x='a') %}{% set n.x = n.x + c %}{{ n.x }}b", "a", "b"),
    "an unrecorded method": ("{{ 'a'.ljust(3) }}", *()),
    "a message": ("{{ c }}{{ c | trim }}{{ c.replace('x', 'y') }}{{ [c, c] | join }}{{ c | tojson }}", *()),
    "str.format": ("{{ '{}'.format(c) }}", *()),
}


@pytest.mark.parametrize("name", OWN)
def test_only_text_of_the_template_is_its_own(name: str) -> None:
    source, *own = OWN[name]
    spans = render("{% set c = messages[0].content %}" + source, [{"role": "user", "content": "<x>"}])
    assert [span.text for span in spans if span.own] == own


def test_a_lost_trusted_token_is_not_replaced_by_a_typed_one() -> None:
    """<|im_end|> is part of a longer token here, whose first letter a user types."""
    backend = chat_tokenizer()._special
    backend.add_special_tokens(["x<|im_end|>"])
    tokenizer = Tokenizer(backend)
    end, longer = tokenizer.specials["<|im_end|>"], tokenizer.specials["x<|im_end|>"]
    ids = encode_spans(tokenizer, [Span("<|im_end|>x", own=False), Span("<|im_end|>", own=True)])
    assert (ids.count(end), ids[-1], longer in ids) == (1, end, False)
    assert tokenizer.decode(ids, special=True) == "<|im_end|>x<|im_end|>"
    assert encode_spans(tokenizer, [Span("a\ud800", own=False)]) == tokenizer.encode("a�")


# Prompts and replies


def test_a_template_is_used_before_any_format(tmp_path: Path) -> None:
    tokenizer = tokenizer_with()
    assert chat.format_for(tokenizer) == "template"
    assert chat.format_for(tokenizer, "chatml") == "chatml"
    pipeline = chumoku.load(make_bundle(tmp_path / "m", "decoder", tokenizer, context=401))
    request = chat.make_turn(pipeline.model, "Hello", tokenizer=tokenizer, max_new_tokens=5).request
    expected = (
        "<|im_start|>system\nYou are a helper.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(request.prompt, special=True) == expected
    assert [*request.end] == [tokenizer.specials["<|im_end|>"]]
    assert pipeline.chat("Hello", max_new_tokens=5, bias={request.end[0]: 1e6}) == ""
    with pytest.raises(UsageError, match="Tools need a model with a chat template"):
        pipeline.chat("Hello", format="plain", tools=[{"type": "function"}])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_follows_an_answer_ends_a_reply(name: str) -> None:
    family = FAMILIES[name]
    ends = {"gemma": "<end_of_turn>", "phi3": "<|end|>", "command": "<|END|>"}
    backend = byte_tokenizer()._special
    backend.add_special_tokens([*family.marks])
    tokenizer = Tokenizer(backend)
    names = {"bos_token": family.bos or "", "eos_token": family.eos or ""}
    found = ChatTemplate({"default": family.template}, names).find_end_tokens(tokenizer)
    assert found == [tokenizer.specials[ends.get(name, family.eos or "")]]


def test_old_turns_are_left_out() -> None:
    tokenizer = tokenizer_with()
    template = tokenizer.chat_template
    assert template is not None
    turns = [Message(role, "x" * size) for size in (29, 3, 17, 53, 5) for role in ("user", "assistant")]
    messages = [Message("system", "S"), *turns, Message("user", "Who?")]

    def prompt(start: int) -> list[int]:
        kept = [messages[0], *messages[1 + start :]]
        return encode_spans(tokenizer, template.render([{"role": m.role, "content": m.text} for m in kept]))

    lengths = [len(prompt(start)) for start in range(0, 11, 2)]
    for most in range(lengths[-1], lengths[0] + 2):
        start = 2 * next(place for place, length in enumerate(lengths) if length <= most)
        assert chat.fit(messages, tokenizer, template, most=most) == (prompt(start), start)
    with pytest.raises(LengthError, match=f"a prompt of {lengths[-1]} tokens"):
        chat.fit(messages, tokenizer, template, most=lengths[-1] - 1)


def test_a_long_conversation_costs_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, letters, ask = tokenizer_with(), [0], chat_template_process.ask

    def ask_and_count(request: dict[str, object]) -> dict[str, object]:
        letters[0] += len(json.dumps(request["variables"]))
        return ask(request)

    monkeypatch.setattr(chat_template_process, "ask", ask_and_count)
    talk = [Message("user", "hello you, who is there? " * 4)] * 2047
    prompt = chat.fit(talk, tokenizer, tokenizer.chat_template, most=500)
    assert 0 < len(prompt.tokens) <= 500
    assert letters[0] < 30_000, "of 200,000"


def test_tools_and_their_results_reach_the_template() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    talk = [{"role": "user", "content": "a"}, call, {"role": "tool", "content": "7", "name": "f"}]
    messages = chat.to_messages(talk, tools=True)
    tokenizer = tokenizer_with(
        "{{ [messages, tools] | tojson }}", tool_use="{{ 'with tools' }}{{ [messages, tools] | tojson }}"
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    prompt = chat.fit(messages, tokenizer, tokenizer.chat_template, most=999, tools=tools)
    head, _, rest = tokenizer.decode(prompt.tokens).partition("[")
    assert (head, json.loads("[" + rest)) == ("with tools", [talk, tools])
    prompt = chat.fit(messages, tokenizer, tokenizer.chat_template, most=999)
    assert json.loads(tokenizer.decode(prompt.tokens)) == [talk, None]
    with pytest.raises(UsageError, match="Message 3 has the role 'tool'"):
        chat.to_messages(talk)


# Files


def test_templates_are_read_from_the_usual_files(tmp_path: Path) -> None:
    def load() -> ChatTemplate | None:
        return text.load(tmp_path).chat_template

    chat_tokenizer().save(tmp_path / "tokenizer.json")
    assert load() is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "three"}))
    assert load() == ChatTemplate({"default": "three"})
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]
    names = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "pad_token": None}
    settings = {"chat_template": named, **names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert load() == ChatTemplate({"default": "two", "tool_use": "tools"}, tokens)
    (tmp_path / "chat_template.jinja").write_text("öne")
    assert load() == ChatTemplate({"default": "öne"}, tokens)
    (tmp_path / "chat_template.jinja").unlink()
    for wrong in (7, [7], {"default": "x"}, [{"name": "default"}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": wrong}))
        with pytest.raises(UsageError, match="neither a string nor a list"):
            load()


NAMED = {"tool_use": "{{ 'tools' }}"}


@pytest.mark.parametrize("named", [{}, NAMED])
def test_bundles_and_exports_carry_the_template(named: dict[str, str], tmp_path: Path) -> None:
    tokenizer = tokenizer_with(**named)
    changes = {"width": 24, "heads": 3, "position": "rotary", "norm": "rms", "feedforward": "swiglu"}
    bundle = make_bundle(tmp_path / "m", "decoder", tokenizer, context=401, **changes)
    expected = tokenizer.chat_template
    pipeline = chumoku.load(bundle)
    assert pipeline.tokenizer.chat_template == expected
    assert "tokenizer_config.json" in (bundle / "manifest.json").read_text()
    assert chumoku.load(pipeline.save(tmp_path / "saved")).tokenizer.chat_template == expected
    assert text.load(bundle).chat_template == expected
    assert with_prefix_and_suffix(tokenizer, ["<|im_start|>"], []).chat_template == expected
    for target, name in (("transformers", "t"), ("gguf", "g.gguf"), ("chumoku", "c")):
        chumoku.convert(bundle, tmp_path / name, to=target)
        found = chumoku.load(tmp_path / name).tokenizer.chat_template
        assert found is not None
        assert found.sources == expected.sources
        assert found.tokens.items() >= expected.tokens.items()
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    ids = theirs.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert ids == encode_spans(tokenizer, expected.render(HELLO))


def test_an_empty_template_is_none() -> None:
    assert from_ggml({**to_ggml(chat_tokenizer()), "tokenizer.chat_template": ""}).chat_template is None
    assert from_ggml(to_ggml(tokenizer_with())).chat_template is not None


def test_a_model_without_a_template_says_so() -> None:
    assert chat.missing_template_notice(tokenizer_with()) is None
    sentence = "This model has no chat template; messages are written in the format {}."
    assert chat.missing_template_notice(chat_tokenizer()) == sentence.format("chatml")
    assert chat.missing_template_notice(byte_tokenizer()) == sentence.format("plain")


def test_the_command_uses_the_template(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run_chat(folder: Path) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n"), encoding="utf-8"))
        return ask("chat", str(folder), "--max-new-tokens", "9", "--seed", "3")

    folder = make_bundle(tmp_path / "m", "decoder", tokenizer_with(), context=401)
    expected = chumoku.load(folder).chat("Hello", max_new_tokens=9, seed=3)
    assert run_chat(folder) == (0, f"{expected}\n", "")
    finished = run_chat(make_bundle(tmp_path / "hostile", "decoder", tokenizer_with(HOSTILE["nested loops"])))
    assert finished.code == 2
    assert "The model's chat template was stopped: it took too much processor time." in finished.err


def test_the_server_uses_the_template(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from chumoku.server.errors import RequestError
    from chumoku.server.models import open_models
    from chumoku.server.openai.routes import _make_plan
    from chumoku.server.openai.schemas import Chat
    from chumoku.server.openai.schemas import Message as ServerMessage
    from chumoku.server.security.limits import Limits

    refusing = tokenizer_with("{{ raise_exception('no ' + messages[0].role) }}")
    tokenizers = {"m": tokenizer_with(), "refusing": refusing}
    folders = [make_bundle(tmp_path / name, "decoder", one, context=401) for name, one in tokenizers.items()]
    models = open_models(list(map(str, folders)), Limits())
    bodies = {name: Chat(model=name, messages=[ServerMessage(role="user", content="Hello")]) for name in models}
    plan = _make_plan(models["m"], None, bodies["m"], "messages")
    template = tokenizers["m"].chat_template
    assert template is not None
    assert plan.requests[0].prompt == encode_spans(tokenizers["m"], template.render(HELLO))
    assert (models["m"].chat_notice, models["m"].card["chat"]) == (None, True)
    with pytest.raises(RequestError, match="cannot render this conversation: it says: no user") as caught:
        _make_plan(models["refusing"], None, bodies["refusing"], "messages")
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_stopped_process_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise replies would no longer end at the template's end token."""
    tokenizer = tokenizer_with()
    template = tokenizer.chat_template
    assert template is not None

    def stop(request: object) -> dict[str, object]:
        raise chat_template_process.TemplateStopped("The model's chat template was stopped.")

    with monkeypatch.context() as broken:
        broken.setattr(chat_template_process, "ask", stop)
        with pytest.raises(UsageError, match="was stopped"):
            template.find_end_tokens(tokenizer)
    assert template.find_end_tokens(tokenizer) == [tokenizer.specials["<|im_end|>"]]
