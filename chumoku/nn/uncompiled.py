"""Call a function without compiling it, from compiled code.

Importing this module loads PyTorch's compiler, which takes seconds: import it only in code that is being compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call_uncompiled(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
