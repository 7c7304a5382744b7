"""What an adapter is made of: the keys of a recipe's [lora]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from chumoku.config import Settings

TARGETS = ("**.{attention,cross_attention}.{query,value}",)


class LoraSettings(Settings):
    """Rank 8 beside every query and value, as in the paper of 2021, unless said otherwise."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    alpha: Annotated[float, Field(gt=0.0, le=1e6)] = 16.0  # B A is multiplied by alpha / rank
    stabilised: bool = False  # by alpha / √rank instead, for large ranks (rsLoRA)
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # on what the adapter sees, in training
    dora: bool = False  # direction and length of each row learned apart
    targets: Annotated[list[str], Field(min_length=1)] | None = None  # addresses; queries and values when not given

    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("r", "lora_rank"), "rank"),
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
        "use_dora": "dora",
        **dict.fromkeys(("rslora", "use_rslora"), "stabilised"),
        **dict.fromkeys(("target_modules", "modules"), "targets"),
    }

    @property
    def patterns(self) -> tuple[str, ...]:
        return TARGETS if self.targets is None else tuple(self.targets)
