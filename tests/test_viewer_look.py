"""The page in a browser: the views Look, Positions & softmax, Runs and Lab, over a real server and small models."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import OpenPage, Visit, until, visit
from bundles import byte_tokenizer, make_bundle
from serving import Serving, serving

from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.nn.positions import sinusoidal
from chumoku.pipeline import Pipeline, load
from chumoku.server.look import schemas as schemas
from chumoku.server.look import views

TEXT = "one cat"
LONG = "abcdefg " * 200


def wide() -> Pipeline:
    """A model with a context long enough for the largest map."""
    tokenizer = byte_tokenizer()
    sizes = {"width": 14, "heads": 7, "layers": 2, "context": 2048, "vocabulary": tokenizer.size}
    return Pipeline(build(ModelConfig(kind="decoder", **sizes), seed=5).eval(), tokenizer, tokenizer)


def broken(path: Path) -> Pipeline:
    """A model whose weights are NaN."""
    one = load(path)
    with torch.no_grad():
        one.model.get_parameter("decoder.blocks.0.feedforward.down.weight")[0, 0] = math.nan
    return one


def metrics_line(step: int, **more: Any) -> str:
    return json.dumps({"step": step, "loss": 5 / step, "rate": 0.1, "norm": 2, "tokens_per_second": 7, **more}) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    for step, position in ((30, "sinusoidal"), (50, "rotary")):
        make_bundle(place / "runs" / "little" / "checkpoints" / f"step-{step:08}", "decoder", position=position)
    (place / "runs" / "little" / "recipe.json").write_text('{"model": {"layers": 2, "heads": 3}}', "utf-8")
    return place


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Serving]:
    decoder = make_bundle(place / "decoder", "decoder")
    models = {
        "translator": make_bundle(place / "translator", "encoder-decoder", encoder_layers=3),
        "decoder": decoder,
        "encoder": make_bundle(place / "encoder", "encoder", head="vector", position="learned"),
        "wide": wide(),
        "broken": broken(decoder),
    }
    with serving(models, runs=place / "runs", lab=place / "lab") as one:
        yield one


@pytest.fixture(autouse=True)
def metrics(place: Path) -> Path:
    path = place / "runs" / "little" / "metrics.jsonl"
    path.write_text(
        "".join(metrics_line(step) for step in range(10, 51, 10)) + '{"step": 50, "validation_loss": 1.5}\n', "utf-8"
    )
    return path


def open_look(open_page: OpenPage, server: Serving, model: str, text: str = TEXT, **options: Any) -> Visit:
    """Open the view Look with a text."""
    visited = open_page(server.url, hash="#/look", **options)
    page = visited.page
    page.wait_for_selector("#look-text")
    page.select_option("#model", model)
    page.fill("#look-text", text)
    page.click(".look-form .go")
    page.wait_for_selector(".step >> nth=-1")
    until(page, "!document.querySelector('.look').hasAttribute('aria-busy')")
    return visited


def chosen(page: Any) -> str:
    return str(page.text_content(".pick-told"))


# ---- Look ----


def test_steps_show_the_models_numbers(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "decoder").page
    page.select_option(".look-form select", "16")
    until(page, "document.querySelectorAll('.chip').length > 7 + 8")
    page.click(".chip >> nth=4")
    until(page, "document.querySelectorAll('.scores tr.masked').length > 0")
    pipeline = server.state.models["decoder"].pipeline
    look = views.look(pipeline, schemas.Look(model="m", text=TEXT, new=16))
    target = [one for one, _ in look["tokens"][look["first"] :]] + ([look["then"]["id"]] if look["then"] else [])
    numbers = {"part": "decoder", "layer": 0, "head": 0, "place": 4}
    block = views.block(pipeline, schemas.Block(model="m", text=TEXT, target=target, **numbers))
    until(page, f"document.querySelectorAll('.scores tr.masked').length == {sum(block['masked'])}")
    shares = page.eval_on_selector_all(
        ".scores tbody tr:not(.masked) .weight", "all => all.map(one => one.textContent)"
    )
    for share, weight in zip(shares, block["weights"][:5], strict=True):
        assert abs(float(share.replace("%", "").replace("<", "")) / 100 - weight) < 0.006
    assert page.locator(".step").count() == 9, "embedding, norm, query, scores, values, join, feed, out, choice"


def test_keys_choose_layers_heads_and_positions(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "translator").page
    assert "Layer 0, head 0" in chosen(page)
    page.focus(".pick-canvas")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "Layer 1, head 2" in chosen(page), "three heads: the last arrow leads nowhere"
    page.click(".chip[data-part=encoder] >> nth=3")
    page.keyboard.press("ArrowRight")
    assert page.text_content(".chip[aria-pressed=true]").startswith("c"), "o n e ␣ c"
    page.wait_for_selector("#step-choice [data-t=look_memory]")
    page.focus("#look-tab-steps")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#look-tab-heads", "aria-selected") == "true"


def test_steps_of_every_kind_of_model(server: Serving, open_page: OpenPage) -> None:
    for model, last in (("translator", "look_choice"), ("encoder", "look_memory"), ("wide", "look_choice")):
        visited = open_look(open_page, server, model)
        visited.page.wait_for_selector(f"#step-choice [data-t={last}]")
        visited.assert_clean()


def test_opening_a_head_from_the_grid(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "translator").page
    page.click("#look-tab-heads")
    page.select_option("[data-t-label=map_which]", "cross")
    assert page.locator(".heads-grid button").count() == 6
    until(page, "[...document.querySelectorAll('.heads-grid canvas')].every(one => one.width !== 300)")
    drawn = page.eval_on_selector_all(".heads-grid canvas", "all => all.map(one => one.toDataURL())")
    assert len(set(drawn)) == 6, "each head its own"
    page.click(".heads-grid button >> nth=5")
    page.keyboard.press("ArrowUp")
    assert page.text_content(".heads-large h2") == "Layer 0, head 2"
    page.hover(".map-canvas")
    until(page, "document.querySelector('.map-readout').textContent.includes('attends to')")
    page.click("[data-t=look_step_here]")
    assert "Layer 0, head 2" in chosen(page)


# Counts what is drawn on each canvas: whole images, and anything that is drawn cell by cell.
COUNT_DRAWING = """() => {
  const pen = CanvasRenderingContext2D.prototype;
  window.drawn = { images: new Map(), cells: 0 };
  const { putImageData } = pen;
  pen.putImageData = function (...rest) {
    drawn.images.set(this.canvas, (drawn.images.get(this.canvas) ?? 0) + 1);
    putImageData.apply(this, rest);
  };
  for (const name of ["fillRect", "fill", "stroke", "drawImage"]) {
    const draw = pen[name];
    pen[name] = function (...rest) { drawn.cells++; draw.apply(this, rest); };
  }
}"""


def test_each_map_of_512_tokens_is_one_image_painted_once(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "wide", LONG).page
    assert "only the last" in page.text_content(".look-form .cut >> nth=-1"), "cut, with a notice"
    page.click("#look-tab-heads")
    page.evaluate(COUNT_DRAWING)
    page.select_option("[data-t-label=look_which_layer]", "1")
    until(page, "document.querySelector('.heads-grid canvas')?.width == 512")
    sizes = page.eval_on_selector_all(".heads-grid canvas, .map-canvas", "all => all.map(one => one.width)")
    assert sizes.count(512) == len(sizes) == 8, "seven heads, and one of them enlarged"
    box = page.locator(".heads-grid").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    for _ in range(15):
        page.mouse.wheel(0, 200)
        page.wait_for_timeout(20)
    assert set(page.evaluate("[...drawn.images.values()]")) == {1}, "scrolling paints nothing again"
    assert page.evaluate("drawn.images.size") == 8
    assert page.evaluate("drawn.cells") == 0
    assert page.locator(".heads *").count() < 97, "no element per cell or token"


def test_nan_is_drawn_as_nan(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "broken").page
    assert "NaN" in page.text_content(".look-form .cut >> nth=-1")
    page.focus(".pick-canvas")
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('.strip-figures')?.textContent.includes('NaN')")
    until(page, "document.querySelectorAll('.scores td.nan').length > 3")
    page.click("#look-tab-heads")
    page.click(".heads-grid button >> nth=4")
    colors = page.evaluate(
        "(() => { const one = document.querySelector('.map-canvas');"
        " const data = one.getContext('2d').getImageData(0, 0, 8, 8).data; const found = new Set();"
        " for (let at = 0; at < data.length; at += 4) found.add([...data.slice(at, at + 3)].join());"
        " return [...found] })()"
    )
    assert sorted(colors) == sorted(["178,58,72", "255,255,255"]), "hatched, red on the card"


def test_lens_shows_the_prediction_of_each_layer(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "decoder").page
    page.click("#look-tab-lens")
    page.wait_for_selector(".lens-table td")
    assert page.locator(".lens-table tbody tr").count() == 3
    page.focus(".lens-table td[data-layer='0'][data-place='0']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert "After layer 0, at n" in page.text_content(".lens-best h3")
    assert page.locator(".lens-best .bar").count() == 5
    page.set_viewport_size({"width": 390, "height": 900})
    until(page, "document.querySelector('.lens-box.more-after') !== null")  # what is hidden fades out
    page.evaluate("document.querySelector('.lens-box').scrollLeft = 10000")
    until(page, "document.querySelector('.lens-box.more-after') === null")
    assert page.evaluate(
        "(() => { const [box, name, last] = ['.lens-box', '.lens-table tbody th', '.lens-table thead th:last-child']"
        ".map(one => document.querySelector(one).getBoundingClientRect());"
        " return Math.abs(name.left - box.left) < 2 && Math.abs(last.right - box.right) < 2 })()"
    ), "the names of the layers stay, and the last token is in sight"


def test_overview_leads_to_the_maps(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "translator").page
    page.click("#look-tab-overview")
    assert page.locator(".entropy-table").count() == 3
    assert page.locator(".curves .band").count() == 3 + 4
    page.click(".entropy-table >> nth=2 >> button >> nth=4")
    assert page.get_attribute("#look-tab-heads", "aria-selected") == "true"
    assert page.text_content(".heads-large h2") == "Layer 1, head 1"
    assert page.locator("[data-t-label=map_which]").input_value() == "cross"
    page.click("#look-tab-overview")
    page.click(".prediction >> nth=1")
    assert page.text_content(".heads-large h2") == "Layer (mean), head (mean)"
    assert not page.locator("[data-t=look_step_here]").is_visible(), "a mean has no steps"


def test_switching_a_head_off(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "decoder").page
    page.click("#look-tab-off")
    page.click(".off-table tbody tr:nth-child(1) button >> nth=3")  # the first feed-forward
    page.wait_for_selector(".off-pair")
    before, after = page.eval_on_selector_all(".off-side .output", "all => all.map(one => one.textContent)")
    pipeline = server.state.models["decoder"].pipeline
    off = [{"part": "decoder", "layer": 0, "feedforward": True}]
    told_ = views.ablate(pipeline, schemas.Ablate(model="m", text=TEXT, new=8, off=off))
    assert (before, after) == (told_["before"]["output"] or "—", told_["after"]["output"] or "—")
    page.click("[data-t=look_off_none]")
    page.wait_for_selector("[data-t=look_off_wait]")


def test_patching_shows_the_candidates_of_both_texts(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "translator").page
    page.click("#look-tab-patch")
    page.fill("#look-patch-text", "<i>o</i> dog")
    page.click("[data-t=look_patch_compare]")
    with page.expect_request("**/v1/look/patch") as sent:
        page.click("#look-panel-patch .off-table >> nth=0 >> tbody tr:nth-child(5) >> button >> nth=2")
    page.wait_for_selector(".off-pair.three")
    names = page.eval_on_selector_all(
        ".three .off-side", "all => all.map(one => one.querySelector('.name').textContent)"
    )
    pipeline = server.state.models["translator"].pipeline
    replace = [{"address": "encoder.blocks.1.output", "place": 4}]
    assert sent.value.post_data_json["replace"] == replace
    asked = schemas.Patch(model="m", text=TEXT, new=8, other="<i>o</i> dog", replace=replace)
    told = views.patch(pipeline, asked)
    assert names == [told[side]["candidates"][0]["text"] for side in ("before", "after", "other")]
    assert page.locator("#look-panel-patch .differs").count() > 0
    page.click("[data-t=look_patch_none]")
    page.wait_for_selector("[data-t=look_patch_wait]")
    page.fill("#look-text", "two cats")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('#look-panel-patch .off-table').length == 2")


def test_heads_that_matter_are_marked(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "decoder").page
    page.click("#look-tab-off")
    page.route("**/v1/look/effects", lambda route: None)  # never answered
    page.click("[data-t=look_matter]")
    assert page.text_content(".effects .numbers") == "0 of 2 layers"
    page.click("[data-t=look_matter_stop]")
    assert page.locator(".effects progress").is_hidden()
    page.unroute("**/v1/look/effects")
    page.click("[data-t=look_matter]")
    until(page, "document.querySelector('.effects .numbers').textContent.startsWith('Darker')")
    pipeline = server.state.models["decoder"].pipeline
    asked = [schemas.Effects(model="m", text=TEXT, new=8, part="decoder", layer=layer) for layer in range(2)]
    effects = [one for request in asked for one in views.effects(pipeline, request)["effects"]]
    best = max(effects, key=lambda one: one["effect"])["part"]
    name = f"Layer {best['layer']}, {'feed-forward' if best.get('feedforward') else 'head ' + str(best['head'])}"
    marked = page.locator(".switch", has_text=re.compile("^1$"))
    assert marked.get_attribute("title").lower().startswith(name.lower() + ": ")
    assert marked.get_attribute("title").endswith(" bits")
    assert page.locator(".switch", has_text=re.compile(r"^\d$")).count() == 5


# ---- Positions & softmax ----


def test_playground_formulas_equal_the_models(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/playground").page
    page.wait_for_selector(".pg-table")
    made_ = page.evaluate(
        "async () => { const m = await import('/viewer/views/playground/formulas.js');"
        " const sizes = { length: 11, width: 12, base: 997 }; return {"
        " waves: [...m.KINDS.sinusoidal(sizes).values], angles: [...m.KINDS.rotary(sizes).values],"
        " shares: m.softmax([2, -1, 0.5], 0.7), bits: m.entropy([0.5, 0.25, 0.25]),"
        " spread: Math.hypot(...m.randomScores(64, 5000)) / Math.sqrt(5000) } }"
    )
    waves = sinusoidal(torch.arange(11), 12, base=997.0)
    assert torch.allclose(torch.tensor(made_["waves"]).view(11, 12), waves, atol=1e-5)
    assert torch.allclose(torch.tensor(made_["angles"]).view(11, 6), waves[:, 1::2], atol=1e-5)
    shares = (torch.tensor([2.0, -1.0, 0.5]) / 0.7).softmax(-1)
    assert torch.allclose(torch.tensor(made_["shares"]), shares, atol=1e-6)
    assert made_["bits"] == 1.5
    assert 6 < made_["spread"] < 10, "√64, about"


def test_playground_figures_follow_the_sliders(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/playground").page
    page.wait_for_selector(".pg-table")
    for kind, columns in (("rotary", 32), ("learned", 64), ("none", 64), ("sinusoidal", 64)):
        page.click(f"[data-kind={kind}]")
        assert page.evaluate("document.querySelector('.pg-table').width") == columns
    page.focus(".pg-sliders input >> nth=0")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.querySelector('.pg-table').width") == 60
    page.wait_for_selector("[data-t=pg_divide]")
    alive = page.text_content(".pg-pulls .hint")
    page.click("#pg-root")
    assert page.text_content(".pg-pulls .hint") != alive, "saturated without √d"


# ---- Runs ----


def test_curves_grow_while_a_run_trains(server: Serving, open_page: OpenPage, metrics: Path) -> None:
    page = open_page(server.url, hash="#/runs").page
    page.wait_for_selector(".curve.first")
    assert "step 50" in page.text_content(".runs-list")
    assert "validation 1.5" in page.text_content(".runs-legend")
    with metrics.open("a", encoding="utf-8") as stream:
        stream.write(metrics_line(60) + metrics_line(70, loss=None))
    until(page, "document.querySelector('.runs-list').textContent.includes('step 70')")
    page.wait_for_selector(".curves .odd", state="attached")
    assert page.text_content(".live") == "training now"
    before = page.get_attribute(".curve.first", "d")
    page.check(".controls input[type=checkbox]")
    assert page.get_attribute(".curve.first", "d") != before, "another axis"
    page.select_option(".runs select >> nth=0", "tokens_per_second")
    assert "tokens per second 7" in page.text_content(".runs-legend")


def test_head_through_checkpoints(browser: Any, server: Serving) -> None:
    visited = visit(browser, server.url, hash="#/runs")
    page = visited.page
    page.wait_for_selector(".runs-slide")
    until(page, "document.querySelector('.slider output').textContent === 'step 50'")
    page.fill(".runs-text input", "abc")
    until(page, "document.querySelector('.map-rows').textContent.startsWith('abc')")
    last = page.evaluate("document.querySelector('.map-canvas').toDataURL()")
    page.focus(".runs-slide")
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('.slider output').textContent === 'step 30'")
    until(page, f"document.querySelector('.map-canvas').toDataURL() !== {json.dumps(last)}")
    page.fill(".runs-watch input[type=number] >> nth=1", "9")
    page.keyboard.press("Tab")
    until(page, "document.querySelector('.runs-watch .error').textContent.includes('no head 9')")
    assert all("400" in one for one in visited.errors), "the refusal itself, and nothing else"


# ---- Lab ----


def test_lab_report_is_shown_in_a_frame(browser: Any, server: Serving, place: Path) -> None:
    visited = visit(browser, server.url, hash="#/lab")
    visited.page.wait_for_selector(".lab-none code")
    assert "chumoku lab run all" in visited.page.text_content(".lab-none code")
    (place / "lab").mkdir(exist_ok=True)
    report = "<!doctype html><style>h1{color:rgb(1,2,3)}</style><h1>Found</h1><script>top.x = 1</script>"
    (place / "lab" / "report.html").write_text(report, "utf-8")
    visited.page.click("[data-t=lab_again]")
    frame = visited.page.frame_locator(".lab-frame")
    assert frame.locator("h1").text_content() == "Found"
    visited.page.wait_for_timeout(100)
    assert visited.page.evaluate("window.x") is None
    (place / "lab" / "report.html").unlink()


# ---- all views ----


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize(("language", "theme"), [("en-GB", "light"), ("ja-JP", "dark")])
def test_views_have_no_horizontal_overflow(
    server: Serving, open_page: OpenPage, width: int, language: str, theme: str
) -> None:
    options = {"width": width, "language": language, "theme": theme}
    visited = open_look(open_page, server, "translator", **options)
    page = visited.page
    for tab in ("steps", "heads", "lens", "overview", "off", "patch"):
        page.click(f"#look-tab-{tab}")
        page.wait_for_timeout(60)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    for view, part in (("playground", ".pg-table"), ("runs", ".curve"), ("lab", ".lab-none")):
        page.goto(f"{server.url}/#/{view}")
        page.wait_for_selector(part, state="attached")
        page.wait_for_timeout(60)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        words = page.text_content("main")
        assert ("の" in words) == (language == "ja-JP"), view


@pytest.mark.slow
def test_new_look_aborts_the_previous_one(server: Serving, open_page: OpenPage) -> None:
    page = open_look(open_page, server, "wide", LONG).page
    for text in ("first", "second", "third"):
        page.fill("#look-text", text)
        page.keyboard.press("Enter")
    until(page, "document.querySelector('.chips').textContent.startsWith('t')")
    time.sleep(0.1)
    assert page.text_content(".chip >> nth=1").startswith("h")
