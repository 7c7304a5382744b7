"""The structures of structs.h for ctypes; a test compares their sizes with the library's."""

from __future__ import annotations

import ctypes


class Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
    )


class Norm(ctypes.Structure):
    _fields_ = (
        *(("kind", ctypes.c_int32), ("epsilon", ctypes.c_float)),
        *(("gamma", ctypes.c_void_p), ("beta", ctypes.c_void_p)),
    )


class Norms(ctypes.Structure):
    _fields_ = tuple((name, Norm) for name in ("input", "output", "sum"))


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Norms) for name in ("attention_norms", "cross_norms", "feed_norms")),
        *((name, Norm) for name in ("query_norm", "key_norm", "cross_query_norm")),
        ("attention", Product * 3),
        *((name, Product) for name in ("output", "cross_query", "cross_output")),
        ("up", Product * 2),
        ("down", Product),
        ("relative", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("window", "base")),
    )


class StackFields(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                *("layers", "width", "heads", "kv_heads", "head_width", "hidden"),
                *("activation", "gated", "parallel", "half", "cross", "joint_norms", "rotated", "clip"),
            )
        ),
        *((name, ctypes.c_float) for name in ("scale", "score_cap")),
        ("layer", ctypes.POINTER(Layer)),
        ("last", Norm),
        ("logits", Product),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("row", "position", "visible", "slot")),
        ("positions", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("rotation", "bias", "x", "store", "sizes")),
        *((name, ctypes.c_int32) for name in ("rows", "capacity")),
        *((name, ctypes.c_void_p) for name in ("origin", "memory", "memory_length")),
        ("outputs", ctypes.c_int32),
        *(
            (name, ctypes.c_void_p)
            for name in ("output_tokens", "logits", "adapters", "tokens", "table", "most_likely")
        ),
    )


class Source(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "scale", "low")),
        *((name, ctypes.c_int64) for name in ("row", "group", "scale_row", "scale_group", "low_row", "low_group")),
        ("rows", ctypes.c_int32),
    )


class Packing(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.POINTER(Source)),
        *((name, ctypes.c_int32) for name in ("kind", "sources", "outputs", "groups", "bytes", "words", "halves")),
        *(("flip", ctypes.c_uint32), ("first", ctypes.c_int32), ("to", ctypes.c_void_p)),
    )
