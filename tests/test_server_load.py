"""A small run of benchmarks/load.py, with bounds for its results."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bundles import chat_tokenizer, make_bundle
from serving import serving, wait_until_idle

from chumoku.server.security.limits import Limits


@pytest.fixture(scope="module")
def load() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "load.py"
    spec = importlib.util.spec_from_file_location("load_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_benchmark"] = module
    spec.loader.exec_module(module)
    return module


def test_disconnected_clients_leave_nothing_behind(load: ModuleType, tmp_path: Path) -> None:
    models = {
        "writer": make_bundle(tmp_path / "writer", "decoder", chat_tokenizer(), context=127),
        "translator": make_bundle(tmp_path / "translator", "encoder-decoder"),
    }
    with serving(models, limits=Limits(rows=3, queue=7)) as server:
        names = {name: name for name in models}
        report = load.report(asyncio.run(load.storm(server.port, os.getpid(), names, clients=20, rounds=2)))
        wait_until_idle(server.state)
        assert report["changed_answers"] == 0
        assert report["vanished"] == 8
        assert {*report["statuses"]} <= {"200", "429"}
        assert report["answers"] == 20 + 2 * 16
        assert max(report["settled_after_seconds"]) < 1
        assert report["health_p50_ms"] < 100
        assert not server.server.server_state.tasks - {None}, "no task is left"
