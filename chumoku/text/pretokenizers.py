"""Pre-tokenizers of byte-level tokenizers: split patterns, under their names in GGUF files.

    gpt-2        'll | ␣?letters | ␣?digits | ␣?others | spaces, of which the last belongs to the next piece
    smollm …     each digit alone, then gpt-2
    llama-bpe …  'LL | any?letters | 1 to 3 digits | ␣?others⏎* | spaces⏎+ | spaces    (known words are not split)
    qwen2 …      the same with each digit alone

Patterns are applied one after another; each splits the pieces of the one before.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Regex, pre_tokenizers

GPT2 = "gpt-2"
DIGITS = r"\p{N}"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"


def _case_pattern(ending: str, digits: str) -> str:
    """The pattern that splits a word where an upper-case letter follows a lower-case one."""
    edge = r"[^\r\n\p{L}\p{N}]?"
    return rf"{edge}{UPPER}*{LOWER}+{ending}|{edge}{UPPER}+{LOWER}*{ending}|{digits}|{SLASHED}"


CASE = _case_pattern(f"{CONTRACTIONS}?", r"\p{N}{1,3}")
CJK = "[一-龥\u0800-一가-\ud7ff]+"
# DeepSeek's letters with an upper and a lower case.
CASED = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    r"ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    r"ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
HAN_KANA = "一-龥\u3040-ゟ゠-ヿ"
SPACES = "|".join([*(rf"\s{{{1 << n}}}(?!\S)" for n in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"])
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"[{HAN_KANA}]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# The first name of a row is the one used for export.
_ROWS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat"),
            *("a.x-4.0", "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "trillion"),
            "granite-docling",
        ),
        (GPT2,),
    ),
    (("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), (DIGITS, GPT2)),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        (LLAMA3,),
    ),
    (("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (LLAMA3,)),
    (
        (
            *("qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open"),
            "grok-2",
        ),
        (QWEN2,),
    ),
    (("tekken",), (_case_pattern("", r"\p{N}"),)),
    (("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (CASE,)),
    (("granite-embed-multi-97m",), (CASE,)),
    (("default",), (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (("falcon",), (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    (
        ("qwen35",),
        (
            rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (("jais-2",), (LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + SPACES,)),
    (("minicpm5",), (r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+"))),
    (("laguna",), (r"[^\n]+|[\n]+", QWEN2)),
    (("bailingmoe", "bailingmoe2", "llada-moe"), (QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)),
    (("seed-coder",), (QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+"),)),
    (
        ("exaone-moe",),
        (
            rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    (("tiny_aya", "cohere2moe"), (r"\d{1,3}(?=(?:\d{3})*\b)", CASE)),
    (
        ("youtu",),
        (
            rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[{HAN_KANA}]+",
            _case_pattern(f"{CONTRACTIONS}?", r"\p{N}"),
        ),
    ),
    (
        ("deepseek-llm",),
        (r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"),
    ),
    (("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGITS)),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm"), DEEPSEEK_V3),
    (("bloom", "poro-chat", "gpt3-finnish"), (BLOOM,)),
    (("viking",), (BLOOM, DIGITS)),
    (("superbpe",), (r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    (
        ("chameleon",),
        (
            *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", DIGITS),
            *(r"[\p{P}!-/:-@\[-`{-~]", GPT2),
        ),
    ),
)
PATTERNS = {name: patterns for names, patterns in _ROWS for name in names}
# With these, a text starts with the begin token unless the file says otherwise.
STARTS_WITH_BOS = frozenset({
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
})  # fmt: skip
# With these, a piece that is in the vocabulary becomes that token, and its merges are ignored.
IGNORE_MERGES = STARTS_WITH_BOS - {"chameleon"} | {"minicpm5", "youtu", "granite-embed-multi-97m"}


def build_pretokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer for a GGUF name."""
    *first, last = PATTERNS[name]
    steps = [_step(pattern) for pattern in first]
    if last == GPT2:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    else:
        steps += [_step(last), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


def find_name(pre_tokenizer: pre_tokenizers.PreTokenizer | None, *, ignore_merges: bool) -> str | None:
    """The GGUF name of a pre-tokenizer, or None."""
    if pre_tokenizer is None:
        return None
    steps = _steps(json.loads(pre_tokenizer.__getstate__()))
    names = (name for name in PATTERNS if (name in IGNORE_MERGES) == ignore_merges)
    return next((name for name in names if _steps(json.loads(build_pretokenizer(name).__getstate__())) == steps), None)


def _step(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    if pattern == GPT2:
        pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, without `trim_offsets`, which does not change the ids."""
    inner = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return [{key: value for key, value in step.items() if key != "trim_offsets"} for step in inner]
