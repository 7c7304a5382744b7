from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from browser import open_browser
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, database=None)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def matrix_products() -> None:
    """Processors without bf16 instructions: PyTorch's first bf16 product switches oneDNN off for the whole process,
    and float32 sums are rounded otherwise from then on."""
    torch._C._set_mkldnn_enabled(True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module's own: while playwright runs, no event loop can be started beside it."""
    with open_browser(tmp_path_factory.mktemp("browser")) as one:
        yield one
