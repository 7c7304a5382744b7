"""M2M100 and NLLB: pre-norm encoder-decoders with fairseq's sinusoidal positions and one shared table.

Positions start after the padding token's id.
"""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families import bart, marian
from chumoku.weights.families.family import Family, Values, make_config, read_number, require
from chumoku.weights.families.table import Source


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "M2M100", {"tie_word_embeddings": (True,)})
    body = marian.read_body({"activation_function": "relu", "attention_dropout": 0.1, **values}, "M2M100")
    if body["width"] % 2:
        raise UsageError(f"This M2M100 has d_model = {body['width']}; only even widths are supported.")
    return make_config({
        **body,
        "placement": "pre", "position": "sinusoidal", "pairing": "half", "share_embeddings": True,
        "sinusoidal": {"endpoint": True, "start": read_number(values, "pad_token_id", 1) + 1},
        "scale_embedding": values.get("scale_embedding", True),
        "vocabulary": read_number(values, "vocab_size", 128112),
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    if roles.pad is None or config.sinusoidal.start != roles.pad + 1:
        raise UsageError(
            f"M2M100's positions start after the padding token's id, which is {roles.pad} in this tokenizer, but the "
            f"model has model.sinusoidal.start = {config.sinusoidal.start}."
        )
    head = {"model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"]}
    return {**head, **marian.write_body(config, roles), "bos_token_id": roles.begin}


SUPPORTED = {
    **bart.SUPPORTED,
    "placement": ("pre",),
    "position": ("sinusoidal",),
    "pairing": ("half",),
    "sinusoidal.endpoint": (True,),
    "sinusoidal.start": tuple(range(1, 1025)),
    "embedding_norm": (False,),
    "output_bias": (False,),
}
IGNORED = {
    **bart.IGNORED,
    r"model\.(encoder|decoder)\.embed_positions\.weights?": "sines and cosines, which we compute",
}
M2M_100 = Family(
    "m2m_100", "M2M100", "model.", read, write, bart.shared_rows, SUPPORTED, IGNORED, marian.duplicates
)  # fmt: skip
