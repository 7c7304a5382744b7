"""A little of benchmarks/load.py, and what its figures must be."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bundles import chatty, made
from chumoku.server.security.limits import Limits
from serving import serving, settled


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


def test_nothing_is_left_of_those_who_vanish(load: ModuleType, tmp_path: Path) -> None:
    models = {
        "writer": made(tmp_path / "writer", "decoder", chatty(), context=127),
        "translator": made(tmp_path / "translator", "encoder-decoder"),
    }
    with serving(models, limits=Limits(rows=3, queue=7)) as server:
        names = {name: name for name in models}
        told = load.report(asyncio.run(load.storm(server.port, os.getpid(), names, clients=20, rounds=2)))
        settled(server.house)
        assert told["changed_answers"] == 0
        assert told["vanished"] == 8
        assert {*told["statuses"]} <= {"200", "429"}
        assert told["answers"] == 20 + 2 * 16
        assert max(told["settled_after_seconds"]) < 1
        assert told["health_p50_ms"] < 100
        assert not server.server.server_state.tasks - {None}, "no task is left"
