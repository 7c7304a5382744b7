"""The shipped translators themselves: size, card, the translations in docs/, recording, and the doctor."""

import re
from pathlib import Path

import pytest
from commands import Ask

import chumoku
from chumoku.pretrained import FOLDER, NAMES, installed_models
from chumoku.server.models import open_models
from chumoku.server.security.limits import Limits
from chumoku.training.recipe import load_recipe
from chumoku.weights.checksums import verify_checksums

ROOT = Path(__file__).parent.parent
MOST_BYTES = 25_000_000


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def translator(name):
    return chumoku.load(name)


@pytest.fixture(scope="module")
def table(name):
    """Sentence → translation, from docs/translations.md."""
    page = (ROOT / "docs" / "translations.md").read_text("utf-8")
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| \d+ \| (.+?) \| (.+?) \|", section, re.MULTILINE))


def test_both_are_installed_small_and_intact():
    assert installed_models() == list(NAMES)
    for name in NAMES:
        assert sum(file.stat().st_size for file in (FOLDER / name).iterdir()) <= MOST_BYTES
        verify_checksums(FOLDER / name)


def test_the_page_offers_no_language(name):
    """Each was trained in one direction, so there is nothing to choose."""
    assert open_models([name], Limits())[name].card["into"] is None


def test_the_card_names_every_source_and_the_license(name):
    card = (FOLDER / name / "README.md").read_text("utf-8")
    sources = [
        Path(file).name.removesuffix(".tsv.gz") for file in load_recipe(ROOT / "recipes" / f"{name}.toml").data.files
    ]
    assert len(sources) == {"ja-en": 18, "en-ja": 19}[name]  # en-ja also learns from back-translations
    assert not [source for source in sources if not re.search(rf"\b{source}\b", card)]
    assert "CC BY-SA 4.0" in card


def test_the_forty_sentences_are_translated_as_documented(translator, table):
    assert len(table) == 20
    assert dict(zip(table, translator.translate(list(table)), strict=True)) == table


def test_recording_changes_no_translation(translator, table):
    with chumoku.record(translator.model, "decoder.blocks.*.cross_attention.weights") as tape:
        recorded = translator.translate(list(table))
    assert tape
    assert recorded == list(table.values())


def test_names_numbers_and_addresses_survive(name, translator):
    texts = {
        "ja-en": "佐藤さんの番号は 03-1234-5678、アドレスは sato@example.com と https://example.com/a?b=1 です😀",
        "en-ja": "The number is 03-1234-5678, see https://example.com/a?b=1 or write to sato@example.com 😀",
    }
    (translated,) = translator.translate([texts[name]])
    for part in ("03-1234-5678", "sato@example.com", "https://example.com/a?b=1", "😀"):
        assert part in translated
    if name == "ja-en":
        assert "Sato" in translated


@pytest.mark.slow
def test_the_doctor_finds_nothing(name, ask: Ask):
    ended = ask("doctor", name)
    assert (ended.code, "No findings" in ended.out) == (0, True), ended
