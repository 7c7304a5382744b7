"""train.fp8_output is refused where the loss would be computed without it. Its kernels are in test_training_kernels."""

from __future__ import annotations

import pytest
import torch

import chumoku
from chumoku.config import parse_settings
from chumoku.errors import ChumokuError
from chumoku.training import distributed
from chumoku.training.distributed import World, wrap
from chumoku.training.objectives import Objective
from chumoku.training.settings import TrainSettings

SETTINGS = {"fp8_output": True, "precision": "bf16", "compile": True}


def wrapped(
    changes: dict[str, object],
    *,
    preset: str = "tiny-decoder",
    fixed: bool = True,
    device: str = "cuda",
    **config: object,
) -> Objective:
    model = chumoku.build(chumoku.preset(preset, **config))
    objective = Objective(model)
    wrap(
        objective,
        parse_settings(TrainSettings, {**SETTINGS, **changes}),
        World(torch.device(device)),
        fixed_shapes=fixed,
    )
    return objective


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a Hopper with Triton. Wrapping runs nothing."""
    monkeypatch.setattr(distributed, "TRITON", True)
    monkeypatch.setattr(distributed, "register_fallbacks", lambda: None)  # they need Triton itself
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.mark.usefixtures("gpu")
def test_where_it_is_used_and_where_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrapped({}).fp8_output
    assert wrapped({}, preset="tiny-encoder").fp8_output
    assert not wrapped({"fp8_output": False}).fp8_output
    for changes in ({"precision": "float32"}, {"precision": "fp16"}, {"compile": False}, {"plain": True}):
        with pytest.raises(ChumokuError, match="batches of one shape"):
            wrapped(changes)
    with pytest.raises(ChumokuError, match="batches of one shape"):
        wrapped({}, fixed=False)
    for config in ({"logit_cap": 7.0}, {"scale_logits": True}, {"width": 56, "heads": 7}):
        with pytest.raises(ChumokuError, match="multiple of 16"):
            wrapped({}, **config)
    with pytest.raises(ChumokuError, match="NVIDIA"):
        wrapped({}, device="cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(ChumokuError, match="NVIDIA"):
        wrapped({})
