"""cuDNN's attention, for compiled training with fixed shapes on Hopper GPUs.

There it takes 1.5 ms where PyTorch's flash kernel takes 2.4 (forward and backward, 64 rows of 1,024 tokens, 12 heads of
64), but 9 ms to plan each new shape. So it is chosen where a graph is traced, and only if no size in it is a variable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.nn.gpu_kernels import has_kernels

WIDEST = 128  # elements of a head


def suits_cudnn(query: Tensor) -> bool:
    """Whether this is training on a GPU where cuDNN's kernel is the faster one; asked where a graph is traced."""
    if not (torch.is_grad_enabled() and has_kernels(query)):
        return False
    return query.shape[3] % 8 == 0 and query.shape[3] <= WIDEST and _is_hopper()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == 9


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def attend_fixed_shape(query: Tensor, key: Tensor, value: Tensor, causal: bool, grouped: bool) -> Tensor:
    """softmax(Q Kᵀ / √d_k) V, by cuDNN if all sizes are numbers.

    The first stage of the compiler, in which sizes always look like numbers, leaves this call in the graph. The second
    runs it, and there a size that changes from call to call is a symbol.
    """
    if all(type(size) is int for tensor in (query, key) for size in tensor.shape):
        # The kernel wants a key head for every query head.
        if grouped:
            times = query.shape[1] // key.shape[1]
            key, value = (each.repeat_interleave(times, dim=1) for each in (key, value))
        attention = torch.ops.aten._scaled_dot_product_cudnn_attention
        output: Tensor = attention(query, key, value, None, True, 0.0, causal, False)[0]
        return output
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
