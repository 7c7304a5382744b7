"""chumoku look: the command, what it gathers, its pictures and its page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import bytewise, chatty, made
from cells import Cell, model_of, tokens
from typer.testing import CliRunner

import chumoku
from chumoku import text
from chumoku.cli import app
from chumoku.errors import UsageError
from chumoku.inspect_prompt import MOST, longest, question, source_tokens
from chumoku.probe import figures
from chumoku.probe.figures import draw, positions
from chumoku.probe.forward_pass import watch
from chumoku.probe.page import filled, packed, write_page
from chumoku.probe.plot_style import label, lies, share_of
from chumoku.probe.snapshot import Asked, Seen, see
from chumoku.probe.token_labels import name_of, visible


def looked(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["look", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def page_data(path: Path) -> dict:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.S)
    assert block
    return json.loads(block[1])


def unpacked(one: dict) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(one["weights"]), dtype="<u2") / 65535
    return flat.reshape(one["layers"], one["heads"], len(one["rows"]), len(one["columns"]))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take seconds; one test draws them all."""
    monkeypatch.setattr(figures, "draw", lambda *_, **__: [])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: made(place / kind, kind) for kind in ("encoder", "decoder", "encoder-decoder")}


def test_a_translation_is_looked_at_whole(folders: dict[str, Path], tmp_path: Path) -> None:
    told = json.loads(
        looked(str(folders["encoder-decoder"]), "猫と", "--out", str(tmp_path), "--max-new-tokens", "5", "--json")
    )
    pipeline = chumoku.load(folders["encoder-decoder"])
    assert told["said"] == pipeline.translate("猫と", beam=1, limit=5), "what it says is what translate says"
    assert [one[0] for one in told["source"]] == [*pipeline.source_tokenizer.encode("猫と"), 2]
    written = [one[0] for one in told["tokens"]]
    assert written[0] == pipeline.tokenizer.roles.begin
    names = {Path(name).name for name in told["pictures"]}
    assert {"tokens.png", "attention-cross.png", "attention-cross-one.png", "entropy.png", "lens.png"} <= names
    assert {"residual.png", "words.png", "positions.png", "rollout-cross.png"} <= names
    assert all(Path(name).stat().st_size > 3000 for name in told["pictures"])
    # The page holds the weights of the pass, to its 16 bits.
    data = page_data(Path(told["page"]))
    source = [one[0] for one in told["source"]]
    _, tape = watch(pipeline.model, written, source=source)
    one = next(map_ for map_ in data["maps"] if map_["key"] == "cross")
    expected = torch.stack([tape[f"decoder.blocks.{layer}.cross_attention.weights"][0] for layer in range(2)])
    assert np.abs(unpacked(one) - expected.numpy()).max() <= 0.5 / 65535 + 1e-7
    # A row of the cross map is the look with which the word at its left was written.
    assert one["rows"][: len(written) - 1] == [name for _, name in told["tokens"]][1:]
    assert [word["place"] for word in data["words"]] == list(range(len(written)))
    for word in data["words"]:  # greedy: only what has no text, and cannot be written, may be likelier
        likelier = [name for name, _ in word["candidates"][: (word["rank"] or 1) - 1]]
        assert all(name.startswith(("#", "<")) for name in likelier)
    looks = expected.mean((0, 1))
    for word in data["words"]:
        assert word["looked"][0][0] == int(looks[word["place"]].argmax())
        assert len(word["candidates"]) == 5


@pytest.mark.usefixtures("undrawn")
def test_a_target_of_ones_own(folders: dict[str, Path], tmp_path: Path) -> None:
    told = json.loads(looked(str(folders["encoder-decoder"]), "ab", "--to", "xyz", "--out", str(tmp_path), "--json"))
    assert told["said"] == "xyz"
    assert [word["word"] for word in told["words"]] == ["x", "y", "z", "</s>"]
    assert {word["rank"] for word in told["words"]} != {1}, "it would have said something else"
    told = json.loads(looked(str(folders["decoder"]), "ab", "--to", "xy", "--out", str(tmp_path), "--json"))
    assert [word["word"] for word in told["words"]] == ["x", "y", None]


@pytest.mark.usefixtures("undrawn")
def test_a_decoder_goes_on_as_generate_does(folders: dict[str, Path], tmp_path: Path) -> None:
    told = json.loads(
        looked(str(folders["decoder"]), "To be", "--out", str(tmp_path), "--max-new-tokens", "7", "--json")
    )
    pipeline = chumoku.load(folders["decoder"])
    assert told["said"] == pipeline.generate("To be", max_new_tokens=7, temperature=0)
    assert len(told["words"]) in (7, 8)
    bare = json.loads(
        looked(str(folders["decoder"]), "To be", "--out", str(tmp_path), "--max-new-tokens", "0", "--json")
    )
    assert [word["word"] for word in bare["words"]] == [None], "only what might follow"


@pytest.mark.usefixtures("undrawn")
def test_an_encoder_guesses_its_masks(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = str(folders["encoder"])
    told = json.loads(looked(folder, "ab<mask>c", "--out", str(tmp_path), "--json"))
    assert [name for _, name in told["tokens"]] == ["a", "b", "<mask>", "c", "</s>"]
    assert len(told["words"]) == 1
    assert len(json.loads(looked(folder, "abc", "--out", str(tmp_path), "--json"))["words"]) == 3
    vectors = made(tmp_path / "vectors", "encoder", head="vector")
    out = looked(str(vectors), "abc", "--out", str(tmp_path / "v"))
    assert "look.html" in out
    data = page_data(tmp_path / "v" / "look.html")
    assert data["lens"] is None
    assert data["words"] == []


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["decoder", "  "], "The text is empty"),
        (["decoder", "a", "--layer", "2"], "There is no layer 2: this model has 2, numbered from 0"),
        (["decoder", "a", "--head", "3"], "There is no head 3: this model has 3"),
        (["encoder", "a", "--to", "b"], "An encoder writes nothing"),
        (["encoder-decoder", "a", "--to", " "], "The target is empty"),
    ],
)
def test_what_cannot_be_looked_at(folders: dict[str, Path], arguments: list[str], sentence: str, tmp_path) -> None:
    kind, *rest = arguments
    with pytest.raises(UsageError, match=re.escape(sentence)):
        looked(str(folders[kind]), *rest, "--out", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("undrawn")
def test_long_texts_are_cut_with_a_notice(folders: dict[str, Path], tmp_path: Path) -> None:
    pipeline = chumoku.load(folders["decoder"])
    assert longest(pipeline) == 61, "the model's own context"
    text = "".join(chr(97 + number % 26) for number in range(100))
    asked, notices = question(pipeline, text, None, 7)
    assert asked.first == 54
    assert pipeline.tokenizer.decode(asked.tokens[:54]) == text[-54:], "a decoder goes on from the end"
    assert notices == [
        (
            "The text has 100 tokens; only the last 54 were given to the model and are shown.",
            "入力文は 100 トークンあり、最後の 54 トークンだけをモデルに与えて表示しています。",
        )
    ]
    asked, notices = question(chumoku.load(folders["encoder-decoder"]), text, text, None)
    assert asked.source is not None
    assert (len(asked.source), len(asked.tokens), len(notices)) == (61, 61, 2)
    out = looked(str(folders["encoder"]), text, "--out", str(tmp_path))
    assert "only the first 60 were given" in out
    wide = made(tmp_path / "wide", "decoder", context=9999, heads=6)
    assert longest(chumoku.load(wide)) == MOST


@pytest.mark.usefixtures("undrawn")
def test_looking_is_checked_in_debug_mode(folders: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CHUMOKU_DEBUG", "1")
    passes = []
    forward = chumoku.models.model.DecoderModel.forward

    def counting(self, *arguments, **options):
        passes.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(chumoku.models.model.DecoderModel, "forward", counting)
    looked(str(folders["decoder"]), "abc", "--max-new-tokens", "0", "--out", str(tmp_path))
    assert len(passes) == 2, "once unseen, once seen"


def strange(**changes: object) -> Seen:
    """A look at tokens with names that a page or a formula could trip over."""
    names = ["</script><script>alert(1)</script>", "$x_", "<!--", '"\\', "&amp;", "\u202e\x00"]
    model = model_of(Cell("decoder", **changes), torch.float32)
    return see(model, Asked([1, 2, 3, 4, 5, 6, 7], lambda token: visible(names[token % 6]), first=3))


def test_the_page_needs_nothing_and_runs_nothing_else(tmp_path: Path) -> None:
    path = write_page(strange(), tmp_path / "look.html", model="m", text="</script><img src=x>", said="<b>")
    html = path.read_text("utf-8")
    assert page_data(path)["text"] == "</script><img src=x>"
    assert len(re.findall(r"</script", html)) == 2, "the data block and the script, and nothing that ends them early"
    html = re.sub(r'(id="data">).*?(</script>)', r"\1\2", html, flags=re.S)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert not re.search(r"\b(src|href)=(?!\"data:,\")", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\sstyle=|\son\w+=\"", html)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        assert len(inside) == 1
        sum_ = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{sum_}'" in policy


def test_every_label_is_there_in_both_languages() -> None:
    html = filled({})
    body = html[html.index("<body>") : html.index('<script type="application/json"')]
    assert len(re.findall(r'<span lang="en">', body)) == len(re.findall(r'<span lang="ja">', body)) > 15
    ids = set(re.findall(r'\$\("([\w-]+)"\)', html))
    assert ids <= set(re.findall(r'id="([\w-]+)"', html)), "every element the script asks for is there"


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary", "none"])
def test_pictures_of_every_position_and_of_strange_names(position: str, tmp_path: Path) -> None:
    seen = strange(position=position)
    assert (seen.positions.table is None) == (position == "none")
    if position in ("sinusoidal", "learned", "rotary"):
        assert positions(seen, tmp_path / "positions.png").stat().st_size > 1000
        return
    drawn = draw(seen, tmp_path, layer=1, head=2)
    assert all(one.stat().st_size > 1000 for one in drawn)
    assert ("positions.png" in {one.name for one in drawn}) == (position != "none")


def test_names_for_people() -> None:
    byte = bytewise()
    assert [name_of(byte, number) for number in byte.encode(" \n猫")] == ["␣", "⏎", "‹e7›", "‹8c›", "‹ab›"]
    assert name_of(byte, byte.size + 1) == f"#{byte.size + 1}"
    talk = chatty()
    assert name_of(talk, talk.specials["<|im_end|>"]) == "<|im_end|>"
    assert visible("a\u202eb\x07") == "a‹202e›b‹07›"
    assert visible("x" * 30) == "x" * 23 + "…"
    assert label("$a$") == r"\$a\$"
    assert lies(["食", "</s>", "on"]) == [False, True, True]
    assert lies(["食", "on"]) == [False, False]
    assert [share_of(part) for part in (0.0, 0.001, 0.5, 1.0)] == ["0%", "<1%", "50%", "100%"]


def test_weights_are_packed_to_sixteen_bits() -> None:
    assert base64.b64decode(packed(torch.tensor([0.0, 1.0, 0.5]))) == bytes([0, 0, 255, 255, 0, 128])


def test_seeing_gathers_what_a_pass_has() -> None:
    model = model_of(Cell("encoder-decoder"), torch.float32)
    source, written = tokens(1, 5, seed=3)[0].tolist(), tokens(1, 7)[0].tolist()
    seen = see(model, Asked(written, str, 1, 9, source), debug=True)
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
    code = "import sys, chumoku.cli.look; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("undrawn")
def test_a_text_of_unknown_tokens_is_told(tmp_path: Path) -> None:
    words = text.train(["猫 が 走る", "犬 が 走る"], kind="word", vocabulary=11)
    notices: list[tuple[str, str]] = []
    source_tokens(words, "the cat runs が", 99, notices)
    assert "3 of the text's 7 tokens are unknown" in notices[0][0]
    assert "7 トークンのうち 3" in notices[0][1]
    notices.clear()
    source_tokens(words, "猫 が 走る", 99, notices)
    assert notices == []


def test_an_encoder_writes_nothing_new(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no new tokens"):
        looked(str(folders["encoder"]), "abc", "--max-new-tokens", "3", "--out", str(tmp_path))
