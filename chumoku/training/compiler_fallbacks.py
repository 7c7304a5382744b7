"""Operators that PyTorch's compiler calls as they are.

Before the first call of an operator without a lowering, the compiler of PyTorch 2.11 writes all computations of its
inputs as text. With residual sums inside our operators, that text doubles with every layer: it never ends.
"""

from __future__ import annotations

from importlib import import_module

from torch._library.custom_ops import CustomOpDef

MODULES = (
    *("nn.activation_kernel", "nn.dropout_kernel", "nn.joined_attention_kernel", "nn.joined_projection_kernel"),
    *("nn.norm_kernel", "nn.packed_kernels", "nn.packed_tiles", "nn.relu_kernel"),
    *("nn.rotary_kernel", "training.loss_kernel", "training.loss_kernel_fp8", "training.precision"),
)


def register_fallbacks() -> None:
    """Register all our operators with the compiler."""
    try:
        from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
        from torch._library.utils import get_layout_constraint_tag
    except ImportError:  # private names, which another version may not have
        return

    defined = [value for name in MODULES for value in vars(import_module(f"chumoku.{name}")).values()]
    for operator in [value._opoverload for value in defined if isinstance(value, CustomOpDef)]:
        if operator not in lowerings:
            layout = tag_to_layout_constraint(get_layout_constraint_tag(operator, with_default=True))
            make_fallback(operator, layout_constraint=layout)  # type: ignore[no-untyped-call]
