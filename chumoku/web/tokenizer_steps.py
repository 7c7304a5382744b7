"""The steps of a tokenizer of the `tokenizers` library (normalizers, pre-tokenizers, decoders) in the page's few forms.

    normalizers       Normalize  Lowercase  Remove  Space  Surround  Replace  Prepend  Strip  CharacterMap  ByteLevel
    pre-tokenizers    Split  Metaspace  ByteLevel
    decoders          ByteLevel  ByteFallback  Fuse  Strip  Replace  Metaspace  WordPiece  BPEDecoder  CTC

BERT's normalizer is Remove, Space, Surround, Normalize, Remove, Lowercase; digits, punctuation and spaces are a Split
each. Sets of characters are numbers in one table, which all steps share. A step that is not known is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from chumoku.errors import UsageError
from chumoku.web import character_classes as classes
from chumoku.web.character_classes import Ranges
from chumoku.web.character_map import graphemes, read_entries
from chumoku.web.javascript_regex import translate

Step = dict[str, Any]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHINESE = r"[\u4E00-\u9FFF\u3400-\u4DBF\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}"
CHINESE += r"\uF900-\uFAFF\x{2F800}-\x{2FA1F}]"
NMT_REMOVED = r"[\x01-\x08\x0B\x0E-\x1F\x7F\x{8F}\x{9F}]"
NMT_SPACES = r"[\t\n\f\r\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}]"
KEPT_DECODERS = {"ByteFallback": (), "Fuse": (), "ByteLevel": (), "Strip": ("content", "start", "stop")}
KEPT_DECODERS |= {"Metaspace": ("replacement", "prepend_scheme"), "WordPiece": ("prefix", "cleanup")}
KEPT_DECODERS |= {"BPEDecoder": ("suffix",), "CTC": ("pad_token", "word_delimiter_token", "cleanup")}


class Classes:
    """The table of sets of characters."""

    def __init__(self) -> None:
        self._numbers: dict[Ranges, int] = {}

    def number(self, ranges: Ranges) -> int:
        """The number of a set, which is added if it is new."""
        return self._numbers.setdefault(ranges, len(self._numbers))

    def pattern(self, source: str) -> list[str | int]:
        """A pattern as texts and numbers of sets."""
        parts: list[str | int] = []
        for part in translate(source):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part if isinstance(part, str) else self.number(part))
        return parts

    def find(self, pattern: Step) -> list[str | int]:
        """The pattern of a step: {"String": …} or {"Regex": …}."""
        return self.pattern(pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"]))

    @property
    def table(self) -> list[Ranges]:
        return list(self._numbers)


def normalizer_steps(state: Step | None, table: Classes) -> list[Step]:
    return [one for step in _flatten(state, "normalizers") for one in _normalizer(step, table)]


def pretokenizer_steps(state: Step | None, table: Classes) -> list[Step]:
    return [one for step in _flatten(state, "pretokenizers") for one in _pretokenizer(step, table)]


def decoder_steps(state: Step | None, table: Classes) -> list[Step] | None:
    return None if state is None else [_decoder(step, table) for step in _flatten(state, "decoders")]


def check_first_prefix(normalizer: list[Step], pre_tokenizer: list[Step]) -> None:
    """Refuse a space before the first piece alone if the step cannot know which is the first."""
    places = [place for place, step in enumerate(pre_tokenizer) if step.get("prepend_scheme") == "first"]
    removing = ("Remove", "Strip", "CharacterMap")
    removed = any(step["type"] in removing or step.get("content") == "" for step in normalizer)
    if places and (places != [0] or removed):
        raise refuse("a Metaspace that only the first piece gets, after steps that may remove it")


def refuse(what: str) -> UsageError:
    return UsageError(
        f"This tokenizer has {what}, which a web page cannot reproduce exactly. Serve the model instead: chumoku serve"
    )


def _flatten(state: Step | None, inner: str) -> Iterator[Step]:
    if state is not None and state["type"] == "Sequence":
        for one in state[inner]:
            yield from _flatten(one, inner)
    elif state is not None:
        yield state


def _normalizer(step: Step, table: Classes) -> Iterator[Step]:
    kind = step["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        yield {"type": "Normalize", "form": kind, "active": table.number(classes.active(kind))}
    elif kind == "Lowercase":
        runs, longer = classes.lowercase()
        yield {"type": "Lowercase", "runs": runs, "longer": longer}
    elif kind == "StripAccents":
        yield {"type": "Remove", "class": table.number(classes.combining_marks())}
    elif kind == "Replace":
        yield {"type": "Replace", "pattern": table.find(step["pattern"]), "content": step["content"]}
    elif kind == "Prepend":
        yield {"type": "Prepend", "text": step["prepend"]}
    elif kind == "Strip":
        sides = {"left": step["strip_left"], "right": step["strip_right"]}
        yield {"type": "Strip", **sides, "class": table.number(classes.whitespace())}
    elif kind == "ByteLevel":
        yield {"type": "ByteLevel"}
    elif kind == "Nmt":
        yield {"type": "Remove", "class": table.number(classes.matching(NMT_REMOVED))}
        yield {"type": "Space", "class": table.number(classes.matching(NMT_SPACES))}
    elif kind == "BertNormalizer":
        yield from _bert(step, table)
    elif kind == "Precompiled":
        entries = read_entries(base64.b64decode(step["precompiled_charsmap"]))
        sets = {name: table.number(ranges) for name, ranges in graphemes()._asdict().items()}
        yield {"type": "CharacterMap", "entries": [text for entry in entries.items() for text in entry], **sets}
    else:
        raise refuse(f"the normalizer {kind}")


def _bert(step: Step, table: Classes) -> Iterator[Step]:
    if step["clean_text"]:
        yield {"type": "Remove", "class": table.number(classes.controls())}
        yield {"type": "Space", "class": table.number(classes.whitespace())}
    if step["handle_chinese_chars"]:
        yield {"type": "Surround", "class": table.number(classes.matching(CHINESE))}
    accents = step["lowercase"] if step["strip_accents"] is None else step["strip_accents"]
    if accents:
        yield from _normalizer({"type": "NFD"}, table)
        yield {"type": "Remove", "class": table.number(classes.nonspacing_marks())}
    if step["lowercase"]:
        yield from _normalizer({"type": "Lowercase"}, table)


def _pretokenizer(step: Step, table: Classes) -> Iterator[Step]:
    kind = step["type"]

    def split(pattern: list[str | int], behavior: str, invert: bool = False) -> Step:
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    if kind == "Split":
        yield split(table.find(step["pattern"]), step["behavior"], step["invert"])
    elif kind == "ByteLevel":
        pattern = table.pattern(GPT2) if step["use_regex"] else None
        yield {"type": "ByteLevel", "add_prefix_space": step["add_prefix_space"], "pattern": pattern}
    elif kind == "Metaspace":
        yield {key: step[key] for key in ("type", "replacement", "prepend_scheme", "split")}
    elif kind == "Digits":
        behavior = "Isolated" if step["individual_digits"] else "Contiguous"
        yield split([table.number(classes.numeric())], behavior)
    elif kind == "Punctuation":
        yield split([table.number(classes.punctuation())], step["behavior"])
    elif kind == "WhitespaceSplit":
        yield split([table.number(classes.whitespace())], "Removed")
    elif kind == "BertPreTokenizer":
        yield split([table.number(classes.whitespace())], "Removed")
        yield split([table.number(classes.punctuation())], "Isolated")
    elif kind == "CharDelimiterSplit":
        yield split(table.pattern(re.escape(step["delimiter"])), "Removed")
    elif kind == "Whitespace":
        words, others = classes.word(), classes.neither(classes.word(), classes.whitespace())
        yield split([table.number(words), "+|", table.number(others), "+"], "Removed", invert=True)
    else:
        raise refuse(f"the pre-tokenizer {kind}")


def _decoder(step: Step, table: Classes) -> Step:
    kind = step["type"]
    if kind == "Replace":
        return {"type": kind, "pattern": table.find(step["pattern"]), "content": step["content"]}
    if kind not in KEPT_DECODERS:
        raise refuse(f"the decoder {kind}")
    return {"type": kind, **{key: step[key] for key in KEPT_DECODERS[kind]}}
