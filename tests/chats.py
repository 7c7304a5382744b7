"""A very small chat model, and conversations for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bundles import chat_tokenizer, make_bundle
from chat_templates import Family

from chumoku.text.chat_template import ChatTemplate
from chumoku.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for one in messages %}{{ '<|im_start|>' + one.role + '\\n' + one.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_for(family: Family | None = None) -> Tokenizer:
    """A byte-level tokenizer with the template of a family, by default ChatML's."""
    if family is None:
        tokenizer = chat_tokenizer()
        tokenizer.chat_template = ChatTemplate({"default": TEMPLATE}, {"eos_token": "<|im_end|>"})
        return tokenizer
    tokenizer = chat_tokenizer(family.marks)
    tokens = {"bos_token": family.bos, "eos_token": family.eos}
    tokenizer.chat_template = ChatTemplate(
        {"default": family.template}, {key: token for key, token in tokens.items() if token is not None}
    )
    return tokenizer


def chat_model(folder: Path, **changes: Any) -> Path:
    """A bundle with a chat template."""
    return make_bundle(folder, "decoder", tokenizer_for(), **{"context": 139, **changes})


def conversation(*texts: str) -> list[dict[str, Any]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def write_records(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def write_chats(path: Path, count: int = 31) -> Path:
    """Conversations of one or two turns about sums."""
    turns = [(f"Add {n} and {n * n % 17}.", f"It is {n + n * n % 17}.") for n in range(2 * count)]
    chats = [conversation(*turns[n], *(turns[count + n] if n % 3 == 0 else ())) for n in range(count)]
    return write_records(path, [{"messages": chat} for chat in chats])


def chat_recipe(model: Path, file: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a very small run; `changes` replace values of its tables."""
    tables: dict[str, dict[str, Any]] = {
        "model": {"init": str(model)},
        "data": {"kind": "chat", "files": str(file), "validation_share": 0.2},
        "train": {"out": str(out), "steps": 7, "batch_size": 3, "sequence_length": 131, "save_every": 3, "samples": 0},
        "optimizer": {"learning_rate": 0.01},
    }
    tables["train"] |= {"validate_every": 5, "device": "cpu", "log_every": 1}
    return {name: {**tables.get(name, {}), **changes.get(name, {})} for name in {**tables, **changes}}


def write_preferences(path: Path, count: int = 23) -> Path:
    """Sums, of which the chosen one is right."""
    records = [{"prompt": f"Add {n} and 5.", "chosen": f"It is {n + 5}.", "rejected": "No idea!"} for n in range(count)]
    return write_records(path, records)
