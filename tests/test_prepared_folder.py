"""Training on what `chumoku prepare` wrote (data.prepared), and keys that replace parts of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

import chumoku
from chumoku.cli.prepare import prepare as prepare_command
from chumoku.data import grammar
from chumoku.doctor.open_subject import subject_from_recipe
from chumoku.errors import ConfigError, CorpusError, DamagedError, UsageError
from chumoku.training.datasets import prepare
from chumoku.training.plan import plan, show
from chumoku.training.recipe import load_recipe, read_recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text and pairs, prepared by the command."""
    root = tmp_path_factory.mktemp("prepared")
    pairs = list(grammar.split(1000).train)[:211]
    (root / "text.txt").write_text("\n\n".join(pair.target for pair in pairs), encoding="utf-8")
    (root / "pairs.tsv").write_text("".join(f"{one.source}\t{one.target}\n" for one in pairs), encoding="utf-8")
    prepare_command([str(root / "text.txt")], root / "text", kind="byte")
    prepare_command([str(root / "pairs.tsv")], root / "pairs", kind="byte", pairs=True, validation=0.1)
    return root


def recipe_for(kind: str, out: Path, **data: object) -> dict[str, object]:
    model = {"text": "tiny-decoder", "pairs": "tiny-encoder-decoder"}[kind]
    return {
        "model": {"preset": model, "layers": 1},
        "data": {"kind": kind, **data},
        "train": {"out": str(out), "steps": 2, "sequence_length": 13, "batch_tokens": 211, "samples": 0},
    }


@pytest.mark.parametrize(("kind", "file"), [("text", "text.txt"), ("pairs", "pairs.tsv")])
def test_prepared_tokens_train_the_same_model_as_their_files(
    kind: str, file: str, folder: Path, tmp_path: Path
) -> None:
    from_files = recipe_for(kind, tmp_path / "files", files=str(folder / file))
    if kind == "pairs":
        from_files["data"]["validation_share"] = 0.1  # type: ignore[index]
    expected = prepare(read_recipe({**from_files, "tokenizer": {"kind": "byte"}}))
    found = prepare(read_recipe(recipe_for(kind, tmp_path / "prepared", prepared=str(folder / kind))))
    assert found.corpus == expected.corpus
    assert found.tokenizer.fingerprint == expected.tokenizer.fingerprint
    assert found.config == expected.config
    for name, tensor in expected.train.batch(0, 1).items():
        assert tensor.equal(found.train.batch(0, 1)[name])


def test_a_run_on_prepared_tokens_resumes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    chumoku.train(recipe_for("text", out, prepared=str(folder / "text")))
    assert chumoku.train(out, ["train.steps=3"], resume=True).step == 3


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_the_doctor_opens_a_recipe_on_prepared_tokens(kind: str, folder: Path, tmp_path: Path) -> None:
    recipe = read_recipe(recipe_for(kind, tmp_path / "run", prepared=str(folder / kind)))
    subject = subject_from_recipe(recipe, tmp_path / "doctor", lambda sentence: None)
    assert subject.texts or subject.pairs
    assert not subject.originals


def test_prepare_prints_the_size_of_the_vocabulary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_command([str(folder / "pairs.tsv")], folder / "pairs", kind="byte", pairs=True, validation=0.1)
    assert "for validation (vocabulary 261)" in capsys.readouterr().out


def test_the_plan_warns_of_a_warmup_that_is_longer_than_the_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for warmup, expected in ((3, True), (2, False)):
        settings = recipe_for("pairs", tmp_path / "run", prepared=str(folder / "pairs"))
        show(read_recipe({**settings, "schedule": {"kind": "inverse_sqrt", "warmup": warmup}}))
        assert ("before the learning rate reaches its peak" in capsys.readouterr().out) is expected


def test_the_wrong_kind_and_the_wrong_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"contains sentence pairs: data\.kind = 'pairs' is needed"):
        prepare(read_recipe(recipe_for("text", tmp_path, prepared=str(folder / "pairs"))))
    other = chumoku.text.train(["abc"], kind="character")
    other.save(tmp_path / "other.json")
    recipe = recipe_for("text", tmp_path, prepared=str(folder / "text"))
    with pytest.raises(CorpusError, match="was encoded with another tokenizer"):
        prepare(read_recipe({**recipe, "tokenizer": {"file": str(tmp_path / "other.json")}}))
    (tmp_path / "tokenizer").mkdir()
    other.save(tmp_path / "tokenizer" / "tokenizer.json")
    with pytest.raises(CorpusError, match=r"was not written by `chumoku prepare`"):
        prepare(read_recipe(recipe_for("pairs", tmp_path, prepared=str(tmp_path))))


def test_damaged_prepared_tokens_are_refused(folder: Path, tmp_path: Path) -> None:
    prepare_command([str(folder / "text.txt")], tmp_path / "text", kind="byte")
    path = next((tmp_path / "text" / "shards").glob("*.tokens"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(DamagedError):
        prepare(read_recipe(recipe_for("text", tmp_path / "run", prepared=str(tmp_path / "text"))))


def test_prepare_keeps_the_tokenizer_it_was_given(folder: Path, tmp_path: Path) -> None:
    tokenizer = folder / "text" / "tokenizer" / "tokenizer.json"
    prepare_command([str(folder / "text.txt")], tmp_path / "more", tokenizer=tokenizer)
    assert prepare(read_recipe(recipe_for("text", tmp_path / "run", prepared=str(tmp_path / "more"))))


def test_what_prepare_decided_cannot_be_set_again(folder: Path, tmp_path: Path) -> None:
    prepared = {"prepared": str(folder / "pairs")}
    for key, value in (("files", "x.tsv"), ("columns", [1, 0]), ("validation_share", 0.1)):
        with pytest.raises(ConfigError, match="leave th"):
            read_recipe(recipe_for("pairs", tmp_path, **prepared, **{key: value}))


def test_prepared_on_the_command_line_replaces_files_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    changes = [f"data.prepared={folder / 'text'}", f"train.out={tmp_path}", "train.device=cpu"]
    recipe = load_recipe("shakespeare-cpu", changes)
    assert recipe.data.files is None
    assert recipe.tokenizer.file == str(folder / "text" / "tokenizer" / "tokenizer.json")
    assert plan(recipe)["bytes_read"] > 0


def test_init_on_the_command_line_replaces_model_and_tokenizer(tmp_path: Path) -> None:
    config = chumoku.preset("tiny-decoder", vocabulary=263, layers=1)
    chumoku.save(tmp_path / "model", chumoku.build(config), chumoku.text.train(["a"], kind="byte"))
    changes = [f"model.init={tmp_path / 'model'}", "model.dropout.sublayer=0.1"]
    recipe = load_recipe("shakespeare-cpu", changes)
    assert set(recipe.model) == {"init", "dropout"}
    assert recipe.config().layers == 1
    assert "tokenizer" not in recipe.as_dict()
    assert recipe.data.files == load_recipe("shakespeare-cpu").data.files
    both = {**load_recipe("shakespeare-cpu").as_dict()}
    both["model"] = {**both["model"], "init": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match=r"model\.init sets the config"):
        read_recipe(both)


def test_a_run_is_a_model_to_start_from(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    chumoku.train(recipe_for("text", out, prepared=str(folder / "text")))
    recipe = load_recipe("shakespeare-cpu", [f"model.init={out}"])
    assert recipe.init == str(out / "last")
    assert recipe.config() == chumoku.load(out).config


def test_a_wrong_name_of_a_recipe_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError, match=r"There is no recipe shakespear-cpu: .* Did you mean shakespeare-cpu\?"):
        load_recipe("shakespear-cpu")
    with pytest.raises(UsageError, match=r"Built-in recipes: chat-lora, classifier, demo, .*"):
        load_recipe("nothing-like-it")
    with pytest.raises(ConfigError, match=r"there is no such table\. Did you mean train\?"):
        load_recipe("shakespeare-cpu", ["trian.steps=3"])
