"""The model matches its config: every module has the class and settings that the config builds, and no hooks.

Other modifications are lost when the model is saved or exported, and make decoding slow. Adapters are allowed: they are
saved with the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.tensor import DTensor

from chumoku.decoding.engines.unmodified import changed_module
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.nn.lora import Adapted


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    if any(isinstance(module, Adapted) for module in model.modules()):
        raise Skip("the model has adapters")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Skip("the model is sharded across processes")
    if changed := changed_module(model):
        yield Finding(
            "modules",
            f"The model does not match its config: {changed}.",
            "the model's modules",
            0.4,
            "If this is intended, note that it is lost when the model is saved or exported.",
        )


CHECK = Check("modules", "modules match the config", cheap=True, run=run)
