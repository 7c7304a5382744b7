"""A process that is forked after PyTorch has used several threads can still compute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, torch
import chumoku.nn
torch.set_num_threads(2)
x, layer = torch.randn(397, 401), torch.nn.Linear(401, 409)
with torch.inference_mode():
    expected = layer(x) @ torch.ones(409, 2)
    child = os.fork()
    if not child:
        same = torch.allclose(layer(x) @ torch.ones(409, 2), expected, rtol=1e-4, atol=1e-3)
        os._exit(0 if same and torch.get_num_threads() == 1 else 3)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_multiplies_matrices() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # also of oneDNN
    finished = subprocess.run([sys.executable, "-c", PROGRAM], timeout=100, check=False, env=environment)
    assert finished.returncode == 0
