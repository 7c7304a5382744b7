"""chumoku look: the command, the snapshot, its plots and its page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from cells import POSITIONS, Cell, model_of, tokens
from commands import show_help
from matplotlib.figure import Figure
from typer.testing import CliRunner

import chumoku
from chumoku import text
from chumoku.cli import app
from chumoku.errors import UsageError
from chumoku.inspect_prompt import MOST, longest, question, source_tokens
from chumoku.models.build import build
from chumoku.probe import figures
from chumoku.probe.attention_figures import draw_map
from chumoku.probe.figures import draw_figures, draw_lens, draw_positions, draw_words
from chumoku.probe.forward_pass import run_and_record
from chumoku.probe.page import pack_weights, render_page, to_json, write_page
from chumoku.probe.plot_style import axis_label, draw_attention_maps, format_percent, labels_to_rotate
from chumoku.probe.snapshot import AttentionMap, LookInput, Snapshot, take_snapshot
from chumoku.probe.token_labels import explain_space, make_visible, token_label


def run_look(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["look", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def page_data(path: Path) -> dict:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.S)
    assert block
    return json.loads(block[1])


def unpack_weights(one: dict) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(one["weights"]), dtype="<u2") / 65535
    return flat.reshape(one["layers"], one["heads"], len(one["rows"]), len(one["columns"]))


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take seconds; one test draws them all."""
    monkeypatch.setattr(figures, "draw_figures", lambda *_, **__: [])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: make_bundle(place / kind, kind) for kind in ("encoder", "decoder", "encoder-decoder")}


def test_look_at_a_translation(folders: dict[str, Path], tmp_path: Path) -> None:
    result = json.loads(
        run_look(str(folders["encoder-decoder"]), "猫と", "--out", str(tmp_path), "--max-new-tokens", "5", "--json")
    )
    pipeline = chumoku.load(folders["encoder-decoder"])
    assert result["output"] == pipeline.translate("猫と", beam=1, max_new_tokens=5), "the same as translate"
    assert [one[0] for one in result["source"]] == [*pipeline.source_tokenizer.encode("猫と"), 2]
    written = [one[0] for one in result["tokens"]]
    assert written[0] == pipeline.tokenizer.roles.begin
    names = {Path(name).name for name in result["pictures"]}
    assert {"tokens.png", "attention-cross.png", "attention-cross-one.png", "entropy.png", "lens.png"} <= names
    assert {"residual.png", "words.png", "positions.png", "rollout-cross.png"} <= names
    assert all(Path(name).stat().st_size > 3000 for name in result["pictures"])
    # The page has the weights of the pass, rounded to 16 bits.
    data = page_data(Path(result["page"]))
    source = [one[0] for one in result["source"]]
    _, tape = run_and_record(pipeline.model, written, source=source)
    one = next(map_ for map_ in data["maps"] if map_["key"] == "cross")
    expected = torch.stack([tape[f"decoder.blocks.{layer}.cross_attention.weights"][0] for layer in range(2)])
    assert np.abs(unpack_weights(one) - expected.numpy()).max() <= 0.5 / 65535 + 1e-7
    # A row of the cross map is named by the token that was predicted there.
    assert one["rows"][: len(written) - 1] == [name for _, name in result["tokens"]][1:]
    assert [word["place"] for word in data["words"]] == list(range(len(written)))
    for word in data["words"]:  # greedy: only tokens that cannot be generated may be more likely
        likelier = [name for name, _ in word["candidates"][: (word["rank"] or 1) - 1]]
        assert all(name.startswith(("#", "<")) for name in likelier)
    looks = expected.mean((0, 1))
    for word in data["words"]:
        assert word["looked"][0][0] == int(looks[word["place"]].argmax())
        assert len(word["candidates"]) == 5


@pytest.mark.usefixtures("without_plots")
def test_look_at_a_given_target(folders: dict[str, Path], tmp_path: Path) -> None:
    result = json.loads(
        run_look(str(folders["encoder-decoder"]), "ab", "--to", "xyz", "--out", str(tmp_path), "--json")
    )
    assert result["output"] == "xyz"
    assert [word["word"] for word in result["words"]] == ["x", "y", "z", "</s>"]
    assert {word["rank"] for word in result["words"]} != {1}, "it would have generated something else"
    result = json.loads(run_look(str(folders["decoder"]), "ab", "--to", "xy", "--out", str(tmp_path), "--json"))
    assert [word["word"] for word in result["words"]] == ["x", "y", None]


@pytest.mark.usefixtures("without_plots")
def test_decoder_generates_as_generate_does(folders: dict[str, Path], tmp_path: Path) -> None:
    result = json.loads(
        run_look(str(folders["decoder"]), "To be", "--out", str(tmp_path), "--max-new-tokens", "7", "--json")
    )
    pipeline = chumoku.load(folders["decoder"])
    assert result["output"] == pipeline.generate("To be", max_new_tokens=7, temperature=0)
    assert len(result["words"]) in (7, 8)
    bare = json.loads(
        run_look(str(folders["decoder"]), "To be", "--out", str(tmp_path), "--max-new-tokens", "0", "--json")
    )
    assert [word["word"] for word in bare["words"]] == [None], "only the next token"


@pytest.mark.usefixtures("without_plots")
def test_encoder_predicts_its_masks(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = str(folders["encoder"])
    result = json.loads(run_look(folder, "ab<mask>c", "--out", str(tmp_path), "--json"))
    assert [name for _, name in result["tokens"]] == ["a", "b", "<mask>", "c", "</s>"]
    assert len(result["words"]) == 1
    assert len(json.loads(run_look(folder, "abc", "--out", str(tmp_path), "--json"))["words"]) == 3
    vectors = make_bundle(tmp_path / "vectors", "encoder", head="vector")
    out = run_look(str(vectors), "abc", "--out", str(tmp_path / "v"))
    assert "look.html" in out
    data = page_data(tmp_path / "v" / "look.html")
    assert data["lens"] is None
    assert data["words"] == []


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["decoder", "  "], "The text is empty"),
        (["decoder", "a", "--layer", "2"], "There is no layer 2: this model has 2, numbered from 0"),
        (["decoder", "a", "--head", "3"], "There is no head 3: this model has 3"),
        (["encoder", "a", "--to", "b"], "An encoder does not generate text"),
        (["encoder-decoder", "a", "--to", " "], "The target is empty"),
    ],
)
def test_wrong_arguments_are_refused(folders: dict[str, Path], arguments: list[str], sentence: str, tmp_path) -> None:
    kind, *rest = arguments
    with pytest.raises(UsageError, match=re.escape(sentence)):
        run_look(str(folders[kind]), *rest, "--out", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("without_plots")
def test_long_texts_are_truncated_with_a_notice(folders: dict[str, Path], tmp_path: Path) -> None:
    pipeline = chumoku.load(folders["decoder"])
    assert longest(pipeline) == 61, "the model's own context"
    text = "".join(chr(97 + number % 26) for number in range(100))
    request, notices = question(pipeline, text, None, 7)
    assert request.prompt_length == 54
    assert pipeline.tokenizer.decode(request.tokens[:54]) == text[-54:], "a decoder goes on from the end"
    assert notices == [
        (
            "The text has 100 tokens; only the last 54 were given to the model and are shown.",
            "入力文は 100 トークンあり、最後の 54 トークンだけをモデルに与えて表示しています。",
        )
    ]
    request, notices = question(chumoku.load(folders["encoder-decoder"]), text, text, None)
    assert request.source is not None
    assert (len(request.source), len(request.tokens), len(notices)) == (61, 61, 2)
    out = run_look(str(folders["encoder"]), text, "--out", str(tmp_path))
    assert "only the first 60 were given" in out
    wide = make_bundle(tmp_path / "wide", "decoder", context=9999, heads=6)
    assert longest(chumoku.load(wide)) == MOST


@pytest.mark.usefixtures("without_plots")
def test_recording_is_checked_in_debug_mode(folders: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CHUMOKU_DEBUG", "1")
    passes = []
    forward = chumoku.models.model.DecoderModel.forward

    def counting(self, *arguments, **options):
        passes.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(chumoku.models.model.DecoderModel, "forward", counting)
    run_look(str(folders["decoder"]), "abc", "--max-new-tokens", "0", "--out", str(tmp_path))
    assert len(passes) == 2, "once without and once with recording"


def hostile_snapshot(**changes: object) -> Snapshot:
    """A snapshot whose token names could break a page or a formula."""
    names = ["</script><script>alert(1)</script>", "$x_", "<!--", '"\\', "&amp;", "\u202e\x00"]
    model = model_of(Cell("decoder", **changes), torch.float32)
    return take_snapshot(
        model, LookInput([1, 2, 3, 4, 5, 6, 7], lambda token: make_visible(names[token % 6]), prompt_length=3)
    )


def test_page_is_self_contained_and_runs_only_its_script(tmp_path: Path) -> None:
    path = write_page(hostile_snapshot(), tmp_path / "look.html", model="m", text="</script><img src=x>", output="<b>")
    html = path.read_text("utf-8")
    assert page_data(path)["text"] == "</script><img src=x>"
    assert len(re.findall(r"</script", html)) == 3, "two scripts and the data, and nothing that ends them early"
    html = re.sub(r'(id="data">).*?(</script>)', r"\1\2", html, flags=re.S)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert not re.search(r"\b(src|href)=(?!\"data:,\")", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\sstyle=|\son\w+=\"", html)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    for tag, count in (("script", 2), ("style", 1)):
        inside = re.findall(rf"<{tag}(?: type=\"module\")?>(.*?)</{tag}>", html, re.S)
        sums = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in inside]
        assert len(sums) == count
        assert f"{tag}-src " + " ".join(f"'sha256-{sum_}'" for sum_ in sums) + ";" in policy


def test_page_has_every_text_and_element_that_it_uses() -> None:
    html = render_page({})
    keys = set(re.findall(r'^ +"?(look_[\w-]+)"?: ', html, re.M))
    assert set(re.findall(r'"(look_\w+)"', html)) <= keys
    assert len(keys) > 100
    ids = set(re.findall(r'(?:getElementById|byId)\("([\w-]+)"\)', html))
    assert ids <= set(re.findall(r'id="([\w-]+)"', html)), "every element the script asks for is there"


def test_page_of_a_broken_model_has_no_bare_nan() -> None:
    model = build(Cell("decoder").config(), seed=3)
    with torch.no_grad():
        model.get_parameter("decoder.blocks.0.feedforward.down.weight")[0, 0] = math.nan
    data = to_json(take_snapshot(model, LookInput([1, 2, 3, 5], str, prompt_length=3)))
    assert "NaN" in json.dumps(data, allow_nan=False)
    first = next(one for one in data["maps"] if one["key"] == "decoder")
    nans = np.unpackbits(np.frombuffer(base64.b64decode(first["nan"]), np.uint8), bitorder="little")
    size = first["heads"] * len(first["rows"]) ** 2
    assert not nans[:size].any()
    assert nans[size : 2 * size].any()


@pytest.mark.sample(2)
@pytest.mark.parametrize("position", POSITIONS)
def test_plots_of_every_position_and_of_hostile_names(position: str, tmp_path: Path) -> None:
    seen = hostile_snapshot(position=position)
    assert (seen.positions.table is None) == (position == "none")
    if position in ("sinusoidal", "learned", "rotary"):
        assert draw_positions(seen, tmp_path / "positions.png").stat().st_size > 1000
        return
    drawn = draw_figures(seen, tmp_path, layer=1, head=2)
    assert all(one.stat().st_size > 1000 for one in drawn)
    assert ("positions.png" in {one.name for one in drawn}) == (position != "none")


TOKENS = ("▁internationalization", "勉強するつもりです", "食", "on", "大学", "インターネット", "</s>")


def assert_labels_are_readable(figure: Figure, _: object, **options: object) -> None:
    """In place of `Figure.savefig`: no two labels of an axis overlap, none is cut off, nor a label of a panel."""
    figure.draw_without_rendering()
    saved = figure.get_tightbbox() if options.get("bbox_inches") == "tight" else figure.bbox_inches
    axes = [axis for axis in figure.axes if axis.axison and axis.get_label() != "<colorbar>"]
    groups = [[axis.xaxis.label for axis in axes], *(axis.get_xticklabels() for axis in axes)]
    for labels in (*groups, *(axis.get_yticklabels() for axis in axes)):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        for box, following in pairwise(boxes):
            assert not box.overlaps(following), [label.get_text() for label in labels]
        for box in boxes:
            low, high = (np.array(corner) / figure.dpi for corner in (box.min, box.max))
            assert (low > saved.min - 0.01).all(), [label.get_text() for label in labels]
            assert (high < saved.max + 0.01).all(), [label.get_text() for label in labels]


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (3, 59), pytest.param(251, 3, marks=pytest.mark.slow)])
def test_labels_of_maps_are_readable(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", assert_labels_are_readable)
    queries, keys = ([TOKENS[place % 7] for place in range(count)] for count in (rows, columns))
    where = Path("map.png")
    assert draw_map(AttentionMap("cross", torch.rand(1, 1, rows, columns), queries, keys), where) == where
    if rows == 5:
        draw_attention_maps(torch.rand(2, rows, columns), queries=queries, keys=keys, title="", path=where)


def test_labels_of_predictions_and_of_the_lens_are_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", assert_labels_are_readable)
    model = model_of(Cell("decoder"), torch.float32)
    seen = take_snapshot(model, LookInput([1, 2, 3, 4, 5, 6, 7], lambda token: TOKENS[token % 7], prompt_length=2))
    assert draw_words(seen, Path("words.png")).name == "words.png"
    assert draw_lens(seen, Path("lens.png")).name == "lens.png"


def test_token_labels() -> None:
    byte = byte_tokenizer()
    assert [token_label(byte, number) for number in byte.encode(" \n猫")] == ["␣", "⏎", "‹e7›", "‹8c›", "‹ab›"]
    assert token_label(byte, byte.size + 1) == f"#{byte.size + 1}"
    assert explain_space(["cat", "␣"]) is None
    assert "a space before the token" in (explain_space(["a", "▁cat"]) or "")
    talk = chat_tokenizer()
    assert token_label(talk, talk.specials["<|im_end|>"]) == "<|im_end|>"
    assert make_visible("a\u202eb\x07") == "a‹202e›b‹07›"
    assert make_visible("x" * 30) == "x" * 23 + "…"
    assert axis_label("$a$") == r"\$a\$"
    assert [axis_label("勉強する", 7), axis_label("勉強する", 8), axis_label("study", 3)] == [
        "勉強す…",
        "勉強する",
        "st…",
    ]
    assert labels_to_rotate(["食", "</s>", "on"]) == [False, True, True]
    assert labels_to_rotate(["食", "on"]) == [False, False]
    assert [format_percent(part) for part in (0.0, 0.001, 0.5, 1.0)] == ["0%", "<1%", "50%", "100%"]


def test_weights_are_packed_to_sixteen_bits() -> None:
    assert base64.b64decode(pack_weights(torch.tensor([0.0, 1.0, 0.5]))) == bytes([0, 0, 255, 255, 0, 128])


def test_snapshot_holds_what_the_pass_computed() -> None:
    model = model_of(Cell("encoder-decoder"), torch.float32)
    source, written = tokens(1, 5, seed=3)[0].tolist(), tokens(1, 7)[0].tolist()
    seen = take_snapshot(model, LookInput(written, str, 1, 9, source), debug=True)
    assert [one.key for one in seen.maps] == [
        "encoder",
        "decoder",
        "cross",
        "rollout-encoder",
        "rollout",
        "rollout-cross",
    ]
    assert seen.map("cross").rows == [*map(str, written[1:]), "9"]
    assert seen.map("cross").columns == seen.map("encoder").rows == list(map(str, source))
    assert {key: tuple(table.shape) for key, table in seen.entropy.items()} == dict.fromkeys(
        ("encoder", "decoder", "cross"), (2, 3)
    )
    assert seen.lens is not None
    assert [len(layer) for layer in seen.lens.candidates] == [7, 7, 7]
    logits = model(torch.tensor([source]), torch.tensor([written])).logits[0].detach().softmax(-1)
    for word, following in zip(seen.words, [*written[1:], 9], strict=True):
        assert word.name == str(following)
        assert word.probability == pytest.approx(float(logits[word.place, following]), rel=1e-5)
        assert word.rank == 1 + int((logits[word.place] > logits[word.place, following]).sum())


def test_help_needs_no_torch() -> None:
    assert "Usage: chumoku look " in show_help("look")


@pytest.mark.usefixtures("without_plots")
def test_unknown_tokens_give_a_notice(tmp_path: Path) -> None:
    words = text.train(["猫 が 走る", "犬 が 走る"], kind="word", vocabulary=11)
    notices: list[tuple[str, str]] = []
    source_tokens(words, "the cat runs が", 99, notices)
    assert "3 of the text's 7 tokens are unknown" in notices[0][0]
    assert "7 トークンのうち 3" in notices[0][1]
    notices.clear()
    source_tokens(words, "猫 が 走る", 99, notices)
    assert notices == []


def test_encoder_refuses_new_tokens(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-new-tokens does not apply"):
        run_look(str(folders["encoder"]), "abc", "--max-new-tokens", "3", "--out", str(tmp_path))
