"""Checks of several keys of a model's config; each returns a sentence if the values do not fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HEADS = {
    "encoder": ("masked", "vector", "classes", "tags"),
    "decoder": ("next", "classes", "tags"),
    "encoder-decoder": ("next",),
}
LABEL_HEADS = ("classes", "tags")
MAX_LABELS = 1 << 14
MAX_LABEL_CHARACTERS = 1 << 17  # of all labels together: they are part of a bundle's config.json


def check_yarn_base(c: Any) -> str | None:
    return f"scaling = 'yarn' needs a base above 1, not {c.base}." if c.scaling == "yarn" and c.base <= 1 else None


def check_attention_factor(c: Any) -> str | None:
    if c.attention_factor is None or c.scaling in ("yarn", "longrope"):
        return None
    return f"this key is only for scaling = 'yarn' or 'longrope', not '{c.scaling}'; remove it."


def check_longrope(c: Any) -> str | None:
    given = [factors is not None for factors in (c.short_factors, c.long_factors)]
    if c.scaling != "longrope":
        return f"factors are only for scaling = 'longrope', not '{c.scaling}'; remove them." if any(given) else None
    if not all(given):
        return "scaling = 'longrope' needs short_factors and long_factors."
    return "scaling = 'longrope' needs an original context above 1." if c.original < 2 else None


def check_longrope_width(c: Any) -> str | None:
    if c.rotary.scaling != "longrope" or (c.head_width is None and c.width % c.heads):
        return None
    pairs = round((c.width // c.heads if c.head_width is None else c.head_width) * c.rotary.share) // 2
    if len(c.rotary.short_factors or []) == len(c.rotary.long_factors or []) == pairs:
        return None
    return f"longrope needs a short and a long factor for each pair of rotated elements, {pairs} of both."


def check_rotary_width(c: Any) -> str | None:
    if c.position != "rotary" or c.head_width is not None or c.width % c.heads or c.width // c.heads % 2 == 0:
        return None
    return (
        f"rotary positions need an even head width, and width / heads = {c.width // c.heads} is odd; "
        "change heads or width, or choose another position."
    )


def check_rotary_head_width(c: Any) -> str | None:
    if c.position != "rotary" or c.head_width is None or c.head_width % 2 == 0:
        return None
    return f"rotary positions need an even head width, and {c.head_width} is odd."


def check_rotary_share(c: Any) -> str | None:
    if c.rotary.share == 1 or (c.head_width is None and c.width % c.heads):
        return None
    head_width = c.width // c.heads if c.head_width is None else c.head_width
    rotated = round(head_width * c.rotary.share, 6)
    if rotated > 0 and rotated % 2 == 0:
        return None
    return f"a share of {c.rotary.share} of a head width of {head_width} is {rotated}; an even number is needed."


def check_rotary_keys(c: Any) -> str | None:
    changed = [key for key, off in (("share", 1.0), ("local_base", None)) if getattr(c.rotary, key) != off]
    if c.position != "rotary" and changed:
        return f"rotary.{changed[0]} is only for position = 'rotary', not '{c.position}'."
    if c.rotary.local_base is not None and c.attention_window is None:
        return "rotary.local_base is for layers with an attention window; set attention_window."
    return None


def check_full_attention(c: Any) -> str | None:
    if c.full_attention_every is None or c.attention_window is not None:
        return None
    return "without attention_window every layer has full attention; set attention_window, or remove this key."


def check_full_attention_first(c: Any) -> str | None:
    if not c.full_attention_first or c.full_attention_every is not None:
        return None
    return "this key is only for a model with full_attention_every; set that, or remove this key."


def check_first_norm(c: Any) -> str | None:
    if c.first_norm or (c.embedding_norm and c.placement == "pre"):
        return None
    return "without the first norm a model needs embedding_norm = true and placement = 'pre'."


def check_norm_bias(c: Any) -> str | None:
    if c.norm_bias or c.norm == "layer":
        return None
    return f"this key is only for norm = 'layer', not '{c.norm}'."


def check_no_position(c: Any) -> str | None:
    if c.no_position_every is None or c.position == "rotary":
        return None
    return f"this key is only for position = 'rotary', not '{c.position}'."


def check_unit_offset(c: Any) -> str | None:
    if not c.norm_unit_offset or c.norm == "rms":
        return None
    return f"this key is only for norm = 'rms', not '{c.norm}'."


def check_parallel(c: Any) -> str | None:
    if not c.parallel or (c.placement != "post" and c.kind != "encoder-decoder"):
        return None
    return "parallel sublayers need a placement other than 'post', and a kind other than 'encoder-decoder'."


def check_shared_norm(c: Any) -> str | None:
    if not c.shared_norm or (c.parallel and c.placement == "pre" and c.first_norm):
        return None
    return "one norm for both sublayers needs parallel = true, placement = 'pre' and first_norm = true."


def only_with_experts(key: str, *, default: Any) -> Callable[[Any], str | None]:
    def check(c: Any) -> str | None:
        if c.experts or getattr(c, key) == default:
            return None
        return "this key is only for a model with experts; set experts, or remove this key."

    return check


def check_head(c: Any) -> str | None:
    if c.head is None or c.head in HEADS[c.kind]:
        return None
    possible = ", ".join(f"'{head}'" for head in HEADS[c.kind])
    return f"a model of kind '{c.kind}' cannot have the head '{c.head}'; choose {possible}."


def check_labels(c: Any) -> str | None:
    if c.head not in LABEL_HEADS:
        return None if c.labels is None else "this key is only for head = 'classes' or 'tags'; remove it."
    if not c.labels:
        return f"head = '{c.head}' needs the names of its labels."
    if len(c.labels) > MAX_LABELS or sum(map(len, c.labels)) > MAX_LABEL_CHARACTERS:
        return (
            f"{len(c.labels):,} labels with {sum(map(len, c.labels)):,} characters are too many; the limits are "
            f"{MAX_LABELS:,} labels and {MAX_LABEL_CHARACTERS:,} characters."
        )
    twice = (
        next((name for name in c.labels if c.labels.count(name) > 1), None)
        if len(set(c.labels)) < len(c.labels)
        else None
    )
    return None if twice is None else f"the label '{twice[:40]}' is given twice; give each once."


def check_classifier_activation(c: Any) -> str | None:
    if c.classifier_activation is None or c.head in LABEL_HEADS:
        return None
    return "this key is only for head = 'classes' or 'tags'; remove it."


def check_classifier_layer(c: Any) -> str | None:
    if c.classifier_activation is not None or (c.classifier_bias and not c.classifier_norm):
        return None
    return "the layer before the labels exists only with classifier_activation; give it, or remove this key."


def check_label_bias(c: Any) -> str | None:
    return (
        None if c.label_bias or c.head in LABEL_HEADS else "this key is only for head = 'classes' or 'tags'; remove it."
    )
