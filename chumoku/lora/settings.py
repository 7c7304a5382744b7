"""The settings of an adapter: the keys of a recipe's [lora]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from chumoku.config import Settings

TARGETS = ("**.{attention,cross_attention}.{query,value}",)


class LoraSettings(Settings):
    """Settings of a LoRA or DoRA adapter; by default rank 8 on every query and value, as in the paper."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 8  # r: the adapter is a product of two matrices with this inner width
    alpha: Annotated[float, Field(gt=0.0, le=1e6)] = 16.0  # B A is multiplied by alpha / rank
    stabilized: bool = False  # multiply by alpha / √rank instead, for large ranks (rsLoRA)
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # on the adapter's input, in training
    dora: bool = False  # learn each row's length separately from its direction
    targets: Annotated[list[str], Field(min_length=1)] | None = None  # address patterns of the layers to adapt;
    # default: queries and values

    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("r", "lora_rank"), "rank"),
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
        "use_dora": "dora",
        **dict.fromkeys(("rslora", "use_rslora"), "stabilized"),
        **dict.fromkeys(("target_modules", "modules"), "targets"),
    }
    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"stabilised": "stabilized"}

    @property
    def patterns(self) -> tuple[str, ...]:
        return TARGETS if self.targets is None else tuple(self.targets)
