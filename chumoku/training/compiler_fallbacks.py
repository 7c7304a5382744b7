"""Operators that PyTorch's compiler calls as they are.

Before the first call of an operator without a lowering, the compiler of PyTorch 2.11 writes all computations of its
inputs as text. With residual sums inside our operators, that text doubles with every layer: it never ends.
"""

from __future__ import annotations

import torch


def register_fallbacks() -> None:
    """Register our operators that follow several layers: attention to an encoder's output, and losses."""
    try:
        from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
        from torch._library.utils import get_layout_constraint_tag
    except ImportError:  # private names, which another version may not have
        return

    import chumoku.nn.packed_kernels
    import chumoku.training.loss_kernel
    import chumoku.training.loss_kernel_fp8  # noqa: F401 - the imports define the operators

    for name in ("attend_packed", "linear_losses", "linear_losses_fp8", "token_losses"):
        operator = getattr(torch.ops.chumoku, name).default
        if operator not in lowerings:
            layout = tag_to_layout_constraint(get_layout_constraint_tag(operator, with_default=True))
            make_fallback(operator, layout_constraint=layout)  # type: ignore[no-untyped-call]
