"""A model's page: it opens from disk without a network, answers as Python does, and damage is found."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from browser import PageLog, module_page, monitored_page, open_view, until
from bundles import byte_tokenizer, make_bundle
from injections import FIELDS, FOUND, POINTED, SHORT, STRINGS, hostile_models, without_spaces

import chumoku
from chumoku.errors import DamagedError
from chumoku.models.build import build
from chumoku.models.presets import read_model_config
from chumoku.pipeline import Pipeline
from chumoku.web import export
from chumoku.web.certificate import certify_page, describe_result
from chumoku.web.checks import make_checks
from chumoku.web.container import prepare_model
from chumoku.web.export import export_page
from chumoku.weights.certificate import make_probes

STATE = "document.documentElement.dataset.page"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small translator; its model is beside it."""
    folder = tmp_path_factory.mktemp("pages")
    make_bundle(folder / "model", "encoder-decoder", byte_tokenizer(), width=24)
    return export_page(folder / "model", folder / "small.html", check=False).path


def test_a_model_gives_the_same_file_at_any_time(
    translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1_234_567)
    again = export_page(translator.with_name("model"), tmp_path / translator.name, check=False).path
    assert again.read_bytes() == translator.read_bytes()


def goto(page: Any, path: Path, hash: str = "") -> str:
    """Open a page and wait until it is open or says why not; returns which."""
    page.goto("about:blank")
    page.goto(path.as_uri() + hash)
    until(page, f"{STATE} !== 'opening'")
    return str(page.evaluate(f"{STATE} ?? 'not started'"))


def assert_silent(log: PageLog) -> None:
    """No message, and no request but for the file itself and its own worker."""
    assert log.messages == []
    assert [url.partition(":")[0] for url in log.requests] == ["file", "blob"]


# ---- parts ----

MODULES = """import { Sha256 } from "./sha256.js";
import { makeApi } from "./api.js";
import { Requests } from "./requests.js";
import { RequestError } from "./errors.js";
Object.assign(window, { Sha256, makeApi, Requests, RequestError });
"""
SUMS = """([lengths, text]) => {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return lengths.map((length) => {
    const sum = new Sha256();
    for (let at = 0, size = 1; at < length; at += size, size = (size * 7) % 97)
      sum.update(bytes.subarray(at, Math.min(at + size, length)));
    return sum.digest();
  });
}"""
REQUESTS = """async () => {
  const { port1, port2 } = new MessageChannel();
  const log = [];
  const work = (ms) => { const end = performance.now() + ms; while (performance.now() < end); };
  const handlers = {
    add: async ({ a, b }) => a + b,
    wrong: async () => { throw new RequestError("No.", { status: 404, param: "a", code: "b" }); },
    broken: async () => null.x,
    long: async (body, check) => { for (let n = 0; n < 400; n++) { work(1); await check(); } log.push("finished"); },
    async *count({ most }, check) { for (let n = 0; n < most; n++) { await check(); log.push(n); yield { n }; } },
  };
  const requests = new Requests((path) => handlers[path], (message) => port2.postMessage(message));
  port2.onmessage = ({ data }) => requests.receive(data);
  port1.start();
  const api = makeApi(port1);
  const describe = ({ name, message, status, param, code }) => [name, message, status, param, code];
  const failure = (promise) => promise.then(() => null, describe);
  const long = new AbortController();
  const running = failure(api.post("long", {}, { signal: long.signal }));
  const waiting = new AbortController();
  const never = failure(api.post("count", { most: 3 }, { signal: waiting.signal }));
  const sum = api.post("add", { a: 2, b: 3 });
  waiting.abort();
  setTimeout(() => long.abort(), 20);
  const found = { running: (await running)[0], never: (await never)[0], sum: await sum };
  found.log = log.slice();
  const pieces = [];
  for await (const { n } of api.stream("count", { most: 5 })) pieces.push(n);
  for await (const { n } of api.stream("count", { most: 100000 })) if (n === 7) break;
  const after = await api.post("add", { a: 5, b: 6 });
  const [early] = await failure(api.get("add", { signal: AbortSignal.abort() }));
  const [, , broken] = await failure(api.get("broken"));
  const wrong = await failure(api.post("wrong", {}));
  return { ...found, pieces, after, early, broken, wrong, left: log.length < 50000 };
}"""


def test_sums_and_requests(browser: Any) -> None:
    """SHA-256 as in hashlib; requests run one after another, and can be aborted while they run or wait."""
    with module_page(browser, MODULES) as page:
        lengths = [*range(131), 997, 65537]
        content = random.Random(7).randbytes(max(lengths))
        sums = page.evaluate(SUMS, [lengths, base64.b64encode(content).decode()])
        assert sums == [hashlib.sha256(content[:length]).hexdigest() for length in lengths]
        assert page.evaluate(REQUESTS) == {
            **{"running": "AbortError", "never": "AbortError", "early": "AbortError"},
            **{"sum": 5, "after": 11, "log": [], "pieces": [0, 1, 2, 3, 4], "left": True},
            **{"wrong": ["ApiError", "No.", 404, "a", "b"], "broken": 500},
        }


ABOUT = """import { makeMount, strings } from "./about/about.js";
import { addStrings, onLanguage, t } from "../core/i18n.js";
addStrings(strings);
window.show = (kind, engine, results) => {
  const api = { get: async () => engine };
  const model = () => ({ id: "small", kind, layers: 2, width: 24, heads: 3, vocabulary: 1234, encoder_layers: null });
  const certificate = { browser: "Chromium 1", versions: { chumoku: "1" }, results };
  const contents = { precision: "int8", bytes: 7e6 };
  document.body.replaceChildren();
  makeMount({ contents, certificate })(document.body, { api, t, onLanguage, model });
  return new Promise((done) => setTimeout(() => done(document.body.innerText)));
};
"""
NOT_TRANSLATED = {"WebAssembly", "JavaScript", "Python", "Chromium", "chumoku", "small", "int8", "MB"}


def test_about_is_in_japanese(browser: Any) -> None:
    """All inputs of a certificate, both outputs, and each kind and engine; only names and units stay as they are."""
    names = [probe.name for probe in make_probes(build(read_model_config({"preset": "tiny-decoder"}), device="meta"))]
    places = [*names, *(f"{name}, position {at}" for at, name in enumerate(names))]
    equal = {"equal": 3, "total": 3}
    result = {"numbers": 1111, "apart": 0.0015, "limit": 0.1, "best": equal, "generated": equal, "texts": equal}
    result |= {"engine": "wasm", "passed": True, "tokens_per_second": 4290.3}
    results = [
        {**result, "compared": compared, "largest": {"difference": 0.5, "place": place}}
        for place in places
        for compared in ("logits", "vectors")
    ]
    engine = {"engine": "wasm", "threads": 2}
    cases = [("encoder", engine), ("decoder", {**engine, "fallback": "12"})]
    cases += [("encoder-decoder", {**engine, "one_thread": "12"})]
    with module_page(browser, ABOUT) as page:
        page.evaluate("document.documentElement.lang = 'ja'")
        for kind, facts in cases:
            text = page.evaluate("(given) => window.show(...given)", [kind, facts, results])
            assert set(re.findall(r"[A-Za-z][A-Za-z0-9]+", text)) <= NOT_TRANSLATED
        assert "エンコーダ・デコーダ" in text
        assert "最大の差 0.5（ランダムなトークン 31 個、位置 5）" in text
        page.evaluate("document.documentElement.lang = 'en'")
        text = page.evaluate("(given) => window.show(...given)", [*cases[2], results])
        assert all(f"largest difference 0.5 ({place})" in text for place in places)
        assert "vectors differ by 0.0015 (root mean square of 1,111 numbers); allowed: 0.1" in text
        assert "4,300 tokens per second" in text
    assert describe_result("Chromium 1", results[0]).endswith(" 4,290 tokens per second.")


# ---- the page ----


def test_page_opens_from_disk_without_a_network(browser: Any, translator: Path) -> None:
    with monitored_page(browser, offline=True, locale="en-GB", color_scheme="dark") as (page, log):
        assert goto(page, translator) == "open"
        views = "[...document.querySelectorAll('nav a')].map((link) => link.textContent)"
        assert page.evaluate(views) == ["Translate", "Look inside", "Positions & softmax", "About this page"]
        assert "Nothing is sent." in page.text_content("footer")
        page.click("#language")
        assert page.evaluate(views)[0] == "翻訳"
        assert "何も送信されません" in page.text_content("footer")
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "light"
        open_view(page, "playground")
        page.wait_for_selector(".playground canvas")
        assert_silent(log)
        assert goto(page, translator, "#/look?tab=heads&text=one%3F&language=ja&theme=dark&embedded") == "open"
        page.wait_for_selector(".heads-grid canvas")
        assert page.input_value("#look-text") == "one?"
        assert (page.get_attribute("html", "lang"), page.get_attribute("html", "data-theme")) == ("ja", "dark")
        assert not page.is_visible("header")
        assert not page.is_visible("footer")
        page.evaluate("parent.postMessage({ theme: 'light' }, '*')")  # by the page around a frame
        until(page, "document.documentElement.dataset.theme === 'light'")
        assert log.messages == []


def parts_of(page: bytes) -> dict[str, tuple[int, int]]:
    """Where each part of a page is: its name → start and end of its element."""
    starts = [(found[1].decode(), found.start()) for found in re.finditer(rb'<\w+ data-part="([a-z-]+)"', page)]
    ends = [start for _, start in starts[1:]] + [len(page)]
    return {name: (start, end) for (name, start), end in zip(starts, ends, strict=True)}


def test_damage_is_found_wherever_it_is(browser: Any, translator: Path, tmp_path: Path) -> None:
    """One changed bit in each part, cuts, and a part that is missing: the page says so and does not open."""
    whole, draw = translator.read_bytes(), random.Random(11)
    parts = parts_of(whole)
    assert len(parts) >= 15
    damaged = {f"cut at {at}": whole[:at] for at in (len(whole) // 2, len(whole) - 1, parts["main"][0] + 99)}
    for name, (start, end) in parts.items():
        at = draw.randrange(start + len(f'<script data-part="{name}"'), end - len("</script>"))
        damaged[name] = bytes([*whole[:at], whole[at] ^ 1 << draw.randrange(5), *whole[at + 1 :]])
    start, end = parts["policy"]
    damaged["without policy"] = whole[:start] + whole[end:]
    damaged["exchanged digits"] = whole[: parts["chunk"][0] + 99] + whole[parts["chunk"][0] + 99 :].swapcase()
    with monitored_page(browser, offline=True, locale="en-GB") as (page, _):
        for name, content in damaged.items():
            (tmp_path / "damaged.html").write_bytes(content)
            assert goto(page, tmp_path / "damaged.html") in ("failed", "not started"), name
            assert page.locator(".top").count() == 0, name
            assert "damaged or incomplete" in page.inner_text("body"), name
        assert goto(page, translator) == "open"


def test_page_translates_as_python_does(browser: Any, translator: Path) -> None:
    """The page rounds its weights to int8, so Python does, too."""
    opened = chumoku.load(translator.with_name("model"))
    pipeline = Pipeline(prepare_model(opened.model), opened.tokenizer)
    with monitored_page(browser, offline=True, locale="en-GB") as (page, log):
        assert goto(page, translator) == "open"
        page.fill("#tr-source", "猫と犬\nfive seven")
        page.wait_for_selector(".answer .line")
        shown = page.locator(".answer .line").all_text_contents()
        assert shown == pipeline.translate(["猫と犬", "five seven"])
        open_view(page, "look")
        page.wait_for_selector(".steps > *")
        assert_silent(log)


def test_page_certifies_itself(browser: Any, translator: Path, tmp_path: Path) -> None:
    certificate = certify_page(browser, translator)
    assert [result["passed"] for result in certificate["results"]] == [True] * len(certificate["results"])
    assert [result["engine"] for result in certificate["results"]] == ["wasm", "javascript"]
    assert all(result["generated"] == {"equal": 32, "total": 32} for result in certificate["results"])


def test_other_results_than_pythons_are_found(
    browser: Any, tmp_path: Path, translator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page whose numbers, generated tokens or tokens of texts differ from Python's is refused."""

    def falsify(*given: Any) -> dict[str, Any]:
        checks = make_checks(*given)
        checks["probes"][1]["places"][0]["values"][3] += 0.1
        checks["continuations"][0]["tokens"][5] ^= 1
        checks["texts"][1]["tokens"].pop()
        return checks

    monkeypatch.setattr(export, "make_checks", falsify)
    page = export_page(translator.with_name("model"), tmp_path / "other.html", check=False).path
    with pytest.raises(DamagedError, match="The page is not the same, so it was deleted") as caught:
        certify_page(browser, page)
    sentence = str(caught.value)
    apart, limit = map(float, re.findall(r"by (\S+) \(root.*?; (\S+) is allowed", sentence)[0])
    assert apart > limit
    assert "the first token, position 0" not in sentence
    assert "Of the generated tokens, 31 of 32 are equal." in sentence
    assert "Of the texts, 5 of 6 have equal tokens." in sentence


HOSTILE_NAME = "<img src=x onerror=window.hit=1>"
LINES = [" ".join(STRINGS[first : first + 20]) for first in range(0, 200, 20)]
LINES += [" ".join(map(without_spaces, STRINGS[first : first + 20])) for first in range(0, 200, 20)]


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_hostile_strings_are_not_executed(browser: Any, tmp_path: Path, kind: str) -> None:
    """200 strings as tokens and in every field, and one as the model's name."""
    folder = tmp_path / {"encoder-decoder": "translator", "decoder": "talker"}[kind]
    hostile_models(tmp_path, width=12, layers=1)
    path = export_page(folder, tmp_path / f"{HOSTILE_NAME}.html", check=False).path
    with monitored_page(browser, offline=True, locale="en-GB") as (page, log):
        assert goto(page, path) == "open"
        for view in page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.dataset.view)"):
            open_view(page, view)
            if view == "translate":
                page.select_option(".controls select >> nth=-1", "1")  # beam width
            if view == "chat":
                page.fill(".figure-row input >> nth=0", "11")  # tokens
            for field in page.locator(FIELDS).all():
                field.fill("\n".join([*SHORT, *LINES]))
                field.press("Control+Enter")
                field.press("Enter")
                page.wait_for_timeout(100)
                until(page, "!document.querySelector('[aria-busy=true]')")
                page.evaluate(POINTED)
            assert page.evaluate("window.hit") is None
            found = [one for one in page.evaluate(FOUND) if not re.match("<(script|style) data-part=", one)]
            assert found == [], view
            assert "<" in page.inner_text("main") or view not in ("translate", "look")
        assert_silent(log)
