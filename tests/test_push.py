"""`chumoku push`: what is uploaded to the Hub, and what is refused. The Hub is a stand-in on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, Hub, running_hub

import chumoku
from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.weights.push import files_to_push, push


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the stand-in has no such storage
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "model"
    config = chumoku.preset("tiny-decoder", vocabulary=263, layers=1)
    chumoku.save(folder, chumoku.build(config, seed=3), chumoku.text.train(["a"], kind="byte"))
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_pushed_bundle_opens_again(hub: Hub, model: Path, tmp_path: Path) -> None:
    found = chumoku.push(model, "owner/name", private=True)
    assert found.url == f"{hub.url}/owner/name"
    created = hub.repositories["owner/name"]
    assert created.get("visibility") == "private" or created.get("private") is True  # by version of huggingface_hub
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "manifest.json"} <= set(hub.committed)
    received = tmp_path / "received"
    received.mkdir()
    for name, content in hub.committed.items():
        (received / name).write_bytes(content)
    before, after = (chumoku.load(folder).model.state_dict() for folder in (model, received))
    assert before.keys() == after.keys()
    assert all(tensor.equal(after[name]) for name, tensor in before.items())


def test_a_converted_model_is_pushed_with_its_certificate(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = chumoku.preset("tiny-decoder", vocabulary=263, layers=1)
    chumoku.save(folder, chumoku.build(config, seed=3), chumoku.text.train(["a"], kind="byte"))
    chumoku.convert(str(folder), tmp_path / "small", to="chumoku", kind="int8")
    push(tmp_path / "small", "owner/name")
    assert "certificate.json" in hub.committed


def test_damaged_weights_are_not_pushed(hub: Hub, copy: Path) -> None:
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedError):
        push(copy, "owner/name")
    assert not hub.repositories


def test_only_files_of_a_model_are_pushed(model: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (theirs / name).write_bytes((model / name).read_bytes())
    for name in ("secret.txt", "weights.bin", "train.py", ".env"):
        (theirs / name).write_text("private", encoding="utf-8")
    assert set(files_to_push(theirs)) == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    (theirs / "tokenizer.json").unlink()
    (theirs / "tokenizer.json").symlink_to("/etc/hostname")
    with pytest.raises(DamagedError, match="outside its folder"):
        files_to_push(theirs)


@pytest.mark.parametrize("missing", ["README.md", "config.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused(missing: str, copy: Path) -> None:
    (copy / "manifest.json").unlink()
    (copy / missing).unlink()
    with pytest.raises(UsageError, match="has no"):
        files_to_push(copy)


@pytest.mark.parametrize("name", ["model", "a/b/c", "../x", "a/..", "owner/", "owner/na me"])
def test_names_of_repositories_are_checked(name: str, model: Path) -> None:
    with pytest.raises(UsageError, match="is not the name of a repository"):
        push(model, name)


@pytest.mark.parametrize(("status", "sentence"), [(403, "hf auth login"), (500, "did not accept the upload")])
def test_refusals_are_sentences(
    status: int, sentence: str, hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.fail = status
    with pytest.raises(ChumokuError, match=sentence):
        push(model, "owner/name")
    assert not hub.committed


def test_an_unreachable_hub_is_a_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ChumokuError, match="cannot be reached"):
        push(model, "owner/name")
