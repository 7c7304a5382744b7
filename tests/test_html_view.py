"""What notebooks draw: HTML without scripts, every text escaped."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import chumoku
from chumoku import nn
from chumoku.decoding.translate import Translations
from chumoku.errors import DamagedError, ShapeError, UsageError
from chumoku.lab.claim_view import show_claim
from chumoku.lab.experiment import PARTLY
from chumoku.nn import masks
from chumoku.nn.html_view import LARGEST
from chumoku.probe.snapshot import AttentionMap
from chumoku.weights.checksums import atomic_folder

NAUGHTY = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """The elements of a piece of HTML and its text; every element is closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.loaded: list[str] = []
        self.feed(markup)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [tag] if tag != "img" else []
        self.loaded += [str(value) for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_matrix_is_a_heat_map() -> None:
    view = nn.show_matrix(
        torch.tensor([[1.0, -0.5, 0.0], [float("nan"), 0.25, 2.0]]), rows=[NAUGHTY, "b"], columns="xyz"
    )
    found = Elements(view._repr_html_())
    assert found.tags.count("td") == 6
    assert "script" not in found.tags
    assert NAUGHTY in found.text
    assert "-0.50" in found.text
    assert "nan" in found.text
    assert "tensor" in repr(view)


def test_a_mask_is_a_picture() -> None:
    view = nn.show_mask(masks.causal(3))
    assert view._repr_html_().count("rgb(") == 6
    assert repr(view) == masks.format_mask(masks.causal(3))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ShapeError, match="Select one"):
        nn.show_matrix(torch.zeros(2, 3, 5))
    with pytest.raises(ShapeError, match="5 columns, but there are 2 labels"):
        nn.show_matrix(torch.zeros(3, 5), columns=["a", "b"])
    large = nn.show_matrix(torch.zeros(LARGEST + 3, 2))._repr_html_()
    assert Elements(large).tags.count("tr") == LARGEST
    assert f"{LARGEST + 3} × 2" in large


def test_a_tape_and_a_count_are_tables() -> None:
    config = chumoku.ModelConfig(kind="decoder", vocabulary=1009, width=6, heads=3, feedforward_width=7, layers=1)
    model = chumoku.build(config)
    with torch.inference_mode(), chumoku.record(model, "decoder.blocks.0.attention.*") as tape:
        model(torch.zeros(2, 5, dtype=torch.long))
    text = Elements(tape._repr_html_()).text
    assert all(address in text for address in tape)
    assert "[2, 3, 5, 5]" in text
    counted = chumoku.count(config)
    assert f"{counted.parameters:,}" in Elements(counted._repr_html_()).text


def test_an_attention_map_is_its_mean() -> None:
    weights = torch.zeros(2, 3, 1, 2)
    weights[0, :, 0, 1] = 1.0
    text = Elements(AttentionMap("decoder", weights, ["q"], ["a", "b"])._repr_html_()).text
    assert "0.000.50" in text


def test_translations_are_a_list_and_a_table() -> None:
    found = Translations(["I eat.", NAUGHTY], ["食べる。", "<b>"])
    assert found == ["I eat.", NAUGHTY]
    assert copy.deepcopy(found).sources == ["食べる。", "<b>"]
    elements = Elements(found._repr_html_())
    assert "b" not in elements.tags
    assert "食べる。I eat." in elements.text
    assert len(Elements(Translations([], [])._repr_html_()).tags) == 4


def test_a_claim_is_shown_in_each_language() -> None:
    found = Elements(show_claim("softmax-1234", "ja")._repr_html_())
    assert "成り立つ" in found.text
    assert "holds" in repr(show_claim("softmax-1234"))
    assert "chumoku lab run lora" in Elements(show_claim("lora", folder="nowhere")._repr_html_()).text
    assert all(address.startswith("data:image/png") for address in Elements(show_claim("norm")._repr_html_()).loaded)
    with pytest.raises(UsageError, match="en and ja"):
        show_claim("norm", "de")
    with pytest.raises(UsageError, match="There is no claim"):
        show_claim("normm")


def test_a_stored_result_is_shown(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "lora") as folder:
        texts = {"en": "It was <so>.", "ja": "そうでした(数値)。"}
        result = {"id": "lora", "verdict": PARTLY, "summary": texts, "when": texts}
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    text = Elements(show_claim("lora", folder=tmp_path)._repr_html_()).text
    assert text.count("It was <so>.") == 2
    assert "chumoku lab run" not in text
    assert "そうでした（数値）。" in show_claim("lora", "ja", folder=tmp_path)._repr_html_()
    (tmp_path / "lora" / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DamagedError):
        show_claim("lora", folder=tmp_path)
