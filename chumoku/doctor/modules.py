"""A model is what its config says: every module of the class and with the settings that the config builds, no hooks.

Whatever else was done to it is lost when it is saved or exported, and makes decoding slow. Adapters are no finding:
they are saved with the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.distributed.tensor import DTensor

from chumoku.decoding.engines.unmodified import changed_module
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.nn.lora import Adapted


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    if any(isinstance(module, Adapted) for module in model.modules()):
        raise Skip("the model has adapters")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Skip("the model is divided among processes")
    if changed := changed_module(model):
        yield Finding(
            "modules",
            f"The model is not what its config says: {changed}.",
            "the model's modules",
            0.4,
            "Leave it so only if it is meant: saved or exported and opened again, the model will be without it.",
        )


CHECK = Check("modules", "modules are what the config says", cheap=True, run=run)
