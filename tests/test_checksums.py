"""Atomic folders are complete or absent, whenever a write is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from chumoku.errors import DamagedError
from chumoku.weights import checksums as room
from chumoku.weights.checksums import atomic_folder, delete_folder, recover_interrupted_write, verify_checksums


def write(folder: Path, text: str) -> None:
    with atomic_folder(folder) as working:
        (working / "file").write_text(text)


def test_finished_folder_verifies(tmp_path: Path) -> None:
    write(tmp_path / "a", "one")
    verify_checksums(tmp_path / "a")
    write(tmp_path / "a", "two")
    verify_checksums(tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_failed_write_keeps_previous_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", "one")

    def fail() -> None:
        with atomic_folder(tmp_path / "a") as working:
            (working / "file").write_text("two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    verify_checksums(tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_crash_between_renames_is_recovered(tmp_path: Path) -> None:
    write(tmp_path / "a", "one")
    (tmp_path / "a").rename(tmp_path / "a.replaced")
    (tmp_path / "a.writing").mkdir()
    recover_interrupted_write(tmp_path / "a")
    verify_checksums(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_crash_while_deleting_restores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", "one")
    monkeypatch.setattr(room.shutil, "rmtree", lambda *_, **__: None)
    delete_folder(tmp_path / "a")
    monkeypatch.undo()
    assert not (tmp_path / "a").exists()
    recover_interrupted_write(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_files_and_folders_are_flushed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, then the manifest, then the folder; after the rename the parent folder."""
    synced: list[str] = []
    monkeypatch.setattr(room, "sync", lambda path: synced.append(path.name))
    write(tmp_path / "a", "one")
    assert synced == ["file", "manifest.json", "a.writing", tmp_path.name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: (a / "file").unlink(), "file is missing"),
        (lambda a: (a / "more").write_text(""), "more is not listed in the manifest"),
        (lambda a: (a / "file").write_text("on"), "has 2 bytes, but 3 were saved"),
        (lambda a: (a / "file").write_text("onf"), "its checksum differs from the saved one"),
        (lambda a: (a / "manifest.json").unlink(), "never finished"),
        (lambda a: (a / "manifest.json").write_text("[]"), "is not a valid manifest"),
        (lambda a: (a / "manifest.json").write_text("{" * 9000), "is not a valid manifest"),
        (lambda a: (a / "manifest.json").write_bytes((a / "manifest.json").read_bytes() + b" "), "formatting"),
    ],
)
def test_damaged_file_is_named(damage: object, message: str, tmp_path: Path) -> None:
    write(tmp_path / "a", "one")
    damage(tmp_path / "a")  # type: ignore[operator]
    with pytest.raises(DamagedError, match=message):
        verify_checksums(tmp_path / "a")
