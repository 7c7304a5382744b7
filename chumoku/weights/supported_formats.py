"""The formats that models of each family are opened from and written to. `make families` measures every cell."""

from __future__ import annotations

from chumoku.weights.families import FAMILIES

FORMATS = ("transformers in", "transformers out", "GGUF in", "GGUF out", "CTranslate2 out")
GGUF = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "smollm3", "gemma2", "gemma3_text"}
CTRANSLATE2 = {"gpt2", "llama", "mistral", "phi3", "marian", "bart", "mbart", "m2m_100"}


def supported_formats() -> dict[str, dict[str, bool]]:
    """For the title of each family, whether it has each of FORMATS."""
    gguf = dict.fromkeys(("GGUF in", "GGUF out"), GGUF)
    names = {**dict.fromkeys(FORMATS, FAMILIES.keys()), **gguf, "CTranslate2 out": CTRANSLATE2}
    return {family.title: {form: family.name in names[form] for form in FORMATS} for family in FAMILIES.values()}
