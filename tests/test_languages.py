"""Source and target languages of NLLB, M2M100, mBART-50 and mBART: equal to generate() of transformers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from browser import OpenPage
from commands import Ask
from foreign import edit_config
from serving import Serving, serving
from test_seq2seq_families import bart, randomize_all
from torch import nn

import chumoku
from chumoku.decoding.batch import forbidden_tokens
from chumoku.errors import UsageError
from chumoku.inspect_prompt import question
from chumoku.pipeline import Pipeline
from chumoku.text.languages import default_source_language, source_frame
from chumoku.weights.convert import convert

PIECES = ["▁", "a", "b", "c", "d", "e", "▁cat", "▁dog", "t", "o", "g"]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
TEXT = "cat a dog bed"
LIMIT = 13
KINDS = {  # the model, the tokenizer, its source language and its target language
    "nllb": ("M2M100", "NllbTokenizer", "jpn_Jpan", "eng_Latn"),
    "m2m100": ("M2M100", "M2M100Tokenizer", "ja", "fr"),
    "mbart50": ("MBart", "MBart50Tokenizer", "ja_XX", "fr_XX"),
    "mbart": ("MBart", "MBartTokenizer", "ja_XX", "ro_RO"),
}


def make_m2m100_tokenizer(**options: Any) -> Any:
    """A SentencePiece model with fairseq's order of ids; it is saved without a tokenizer.json."""
    with tempfile.TemporaryDirectory() as place:
        text, prefix = Path(place) / "text", Path(place) / "spm"
        text.write_text(f"{TEXT}\n" * 29)
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=23, model_type="bpe", minloglevel=2
        )
        model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
        (Path(place) / "vocab.json").write_text(
            json.dumps({piece: number for number, piece in enumerate([*SPECIALS, *reversed(pieces)])})
        )
        return transformers.M2M100Tokenizer(str(Path(place) / "vocab.json"), f"{prefix}.model", **options)


def language_id(tokenizer: Any, code: str) -> int:
    return int(
        tokenizer.get_lang_id(code) if "M2M" in type(tokenizer).__name__ else tokenizer.convert_tokens_to_ids(code)
    )


def make_tokenizer(kind: str, **options: Any) -> Any:
    if kind == "M2M100Tokenizer":
        return make_m2m100_tokenizer(**options)
    if kind == "NllbTokenizer":
        vocab: Any = {piece: number for number, piece in enumerate([*SPECIALS, *PIECES])}
        return transformers.NllbTokenizer(vocab=vocab, merges=[], **options)
    vocab = [(piece, -float(number)) for number, piece in enumerate([*SPECIALS, *PIECES])]
    return getattr(transformers, kind)(vocab=vocab, **options)


def save(name: str, folder: Path, **changes: Any) -> tuple[nn.Module, Any]:
    """A tiny model and its tokenizer, whose default source language is that of KINDS."""
    family, kind, source, target = KINDS[name]
    tokenizer = make_tokenizer(kind, src_lang=source)
    ids = {"vocab_size": len(tokenizer) + 107, "pad_token_id": 1, "eos_token_id": 2}
    ids["decoder_start_token_id"] = language_id(tokenizer, target) if name == "mbart" else 2
    theirs = randomize_all(bart(family, **ids, **changes))
    for part, parameter in theirs.named_parameters():
        # So that the output depends on the input.
        parameter.data *= 0 if "bias" in part else 1 if "shared" in part else 4
    if hasattr(theirs, "final_logits_bias"):
        theirs.final_logits_bias.zero_()
    theirs.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return theirs, tokenizer


def generate(
    ours: Pipeline, theirs: nn.Module, tokenizer: Any, name: str, source: str, target: str, **options: Any
) -> str:
    """Their translation, without the tokens that we never generate."""
    tokenizer.src_lang = source
    inputs = tokenizer(TEXT, return_tensors="pt")
    language = language_id(tokenizer, target)
    first = {"decoder_start_token_id": language} if name == "mbart" else {"forced_bos_token_id": language}
    extra = 0 if name == "mbart" else 1  # they count the language as a generated token
    special = [[token] for token in forbidden_tokens(ours.model, ours.tokenizer)]
    output = theirs.generate(
        **inputs, **first, max_new_tokens=LIMIT + extra, bad_words_ids=special, length_penalty=0.0, do_sample=False,
        **options,
    )[0]  # fmt: skip
    return ours.tokenizer.decode(output.tolist())


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_translations_equal_generate(name: str, beam: int, tmp_path: Path) -> None:
    theirs, tokenizer = save(name, tmp_path / "theirs")
    ours = chumoku.load(tmp_path / "theirs")
    codes = list(ours.tokenizer.roles.text_languages)
    found = set()
    for source, target in [KINDS[name][2:], (codes[3], codes[5]), (codes[5], codes[7])]:
        expected = generate(ours, theirs, tokenizer, name, source, target, num_beams=beam, early_stopping=True)
        options = {"beam": beam, "max_new_tokens": LIMIT, "length_penalty": 0.0, "split": False}
        assert ours.translate(TEXT, source_language=source, into=target, **options) == expected
        found.add(expected)
    assert len(found) > 1, "the languages make a difference"


@pytest.mark.parametrize("name", KINDS)
def test_sources_are_framed_as_in_transformers(name: str, tmp_path: Path) -> None:
    _, tokenizer = save(name, tmp_path)
    ours = chumoku.load(tmp_path)
    codes = list(ours.tokenizer.roles.text_languages)
    assert [language_id(tokenizer, code) for code in codes] == list(ours.tokenizer.roles.text_languages.values())
    assert default_source_language(ours.source_tokenizer) == KINDS[name][2]
    for code in (None, codes[3]):
        tokenizer.src_lang = code or KINDS[name][2]
        before, after = source_frame(ours.source_tokenizer, source_language=code)
        assert [*before, *ours.source_tokenizer.encode(TEXT), *after] == tokenizer(TEXT)["input_ids"]


def test_legacy_sources(tmp_path: Path) -> None:
    """Older NLLB tokenizers have the language after the text."""
    save("nllb", tmp_path)
    tokenizer = make_tokenizer("NllbTokenizer", src_lang="jpn_Jpan", legacy_behaviour=True)
    tokenizer.save_pretrained(tmp_path)
    ours = chumoku.load(tmp_path).source_tokenizer
    before, after = source_frame(ours)
    assert [*before, *ours.encode(TEXT), *after] == tokenizer(TEXT)["input_ids"]


def test_all_paths_translate_the_same(tmp_path: Path, ask: Ask) -> None:
    save("nllb", tmp_path / "model")
    pipeline = chumoku.load(tmp_path / "model")
    pipeline.save(tmp_path / "bundle")
    languages = {"source_language": "jpn_Jpan", "into": "eng_Latn"}
    expected = pipeline.translate(TEXT, beam=1, max_new_tokens=7, **languages)
    for folder in ("model", "bundle"):
        words = ("--from", "jpn_Jpan", "--into", "eng_Latn", "--beam", "1", "--max-new-tokens", "7")
        assert ask("translate", str(tmp_path / folder), TEXT, *words).out.removesuffix("\n") == expected
    with serving({"model": tmp_path / "bundle"}) as server:
        card = server.client.get("/v1/models").json()["data"][0]
        assert card["source_languages"][0] == "jpn_Jpan"
        assert "eng_Latn" in card["into"]
        body = {"model": "model", "text": TEXT, "beam": 1, "max_tokens": 7, "alignment": True, "tree": True}
        answer = server.post("/v1/translate", **body, **languages).json()["translations"][0]
        hypothesis = answer["hypotheses"][0]
        assert hypothesis["text"] == expected
        assert len(hypothesis["alignment"]) == len(hypothesis["candidates"]) == len(hypothesis["tokens"])
        tops = [row[0] for row in hypothesis["candidates"]]
        forbidden = forbidden_tokens(pipeline.model, pipeline.tokenizer)
        assert all(
            top["id"] in (token["id"], *forbidden) for top, token in zip(tops, hypothesis["tokens"], strict=True)
        )
        wrong = server.post("/v1/translate", **body, into="eng_Latn", source_language="jpn_Jpn").json()["error"]
        assert (wrong["param"], "Did you mean jpn_Jpan?" in wrong["message"]) == ("source_language", True)
        missing = server.post("/v1/translate", **body).json()["error"]
        assert (missing["param"], "to translate into" in missing["message"]) == ("into", True)


def test_wrong_and_missing_languages(tmp_path: Path, ask: Ask) -> None:
    save("nllb", tmp_path)
    ours = chumoku.load(tmp_path)
    with pytest.raises(UsageError, match=r"no language 'en_Latn'\. Did you mean eng_Latn\? Its languages: .*jpn_Jpan"):
        ours.translate(TEXT, into="en_Latn")
    with pytest.raises(UsageError, match=r"knows 2\d\d languages\. Give the one to translate into: into \(--into\)"):
        ours.translate(TEXT)
    assert ask("translate", str(tmp_path), TEXT).code == 2
    plain = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**plain, "post_processor": None}))
    with pytest.raises(UsageError, match=r"that the text is in: source_language \(--from\)"):
        chumoku.load(tmp_path).translate(TEXT, into="eng_Latn")
    with pytest.raises(UsageError, match="no tokens for source languages"):
        chumoku.load("ja-en").translate("猫", source_language="ja")


def test_a_default_target_language(tmp_path: Path) -> None:
    """From forced_bos_token_id, or from `convert --into`; kept by bundles and folders, and used by `look`."""
    save("mbart50", tmp_path / "theirs")
    ours = chumoku.load(tmp_path / "theirs")
    options = {"beam": 1, "max_new_tokens": 7}
    expected = ours.translate(TEXT, into="fr_XX", **options)
    convert(tmp_path / "theirs", tmp_path / "bundle", to="chumoku", into="fr_XX")
    convert(tmp_path / "bundle", tmp_path / "folder", to="transformers")
    edit_config(tmp_path / "theirs", forced_bos_token_id=ours.tokenizer.roles.text_languages["fr_XX"])
    for folder in ("bundle", "folder", "theirs"):
        again = chumoku.load(tmp_path / folder)
        assert again.translate(TEXT, **options) == expected
        asked, _ = question(again, TEXT, None, 7)
        assert again.tokenizer.decode(asked.tokens[asked.prompt_length :]) == expected
    assert ours.translate(TEXT, into="ro_RO", **options) != expected


@torch.no_grad()
def test_attention_of_a_translation_with_a_language(tmp_path: Path) -> None:
    """One row of cross-attention per generated token and one for the end, none for the language."""
    from chumoku.decoding.beam import cross_attention

    save("nllb", tmp_path)
    model: Any = chumoku.load(tmp_path).model
    source, tokens = [5, 6, 7, 2], [8, 9, 10]
    whole = cross_attention(model, source, [17, *tokens], 2)
    assert torch.equal(cross_attention(model, source, tokens, [2, 17]), whole[:, :, 1:])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("served") / "model"
    save("nllb", folder)
    with serving({"model": folder}) as server:
        yield server


def test_the_page_offers_both_languages(served: Serving, open_page: OpenPage) -> None:
    """The tokenizer's own source language is selected first."""
    page = open_page(served.url).page
    select_source, select_target = (page.locator(f".controls select >> nth={place}") for place in (0, 1))
    assert select_source.input_value() == "jpn_Jpan"
    select_source.select_option("fra_Latn")
    select_target.select_option("eng_Latn")
    with page.expect_response(lambda response: "translate" in response.url) as answered:
        page.fill("#tr-source", TEXT)
    asked = answered.value.request.post_data_json
    assert (asked["source_language"], asked["into"]) == ("fra_Latn", "eng_Latn")
    page.wait_for_selector(".answer .line", state="attached")
    hypothesis = answered.value.json()["translations"][0]["hypotheses"][0]
    assert page.text_content(".answer .line") == hypothesis["text"]
