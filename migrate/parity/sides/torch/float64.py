"""The truth: a torch model in float64 throughout, also where its code says float32.

Many models compute a norm, a softmax or rotary angles in float32 by name (`x.float()`,
`softmax(…, dtype=torch.float32)`), whatever the dtype of their weights. In a model moved to float64 these
would round to float32 and the truth would be no truth; here they stay float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Float64(TorchDispatchMode):
    """Within it every operation that is told to make a narrower floating tensor makes a float64 one.

    What is rounded by other means (`view` to integers and back, a pass through numpy) stays rounded; the
    capture notes layers whose output is not float64.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args = tuple(_widened(one) for one in args)
        kwargs = {key: _widened(one) for key, one in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _widened(argument: Any) -> Any:
    if isinstance(argument, torch.dtype) and argument in _NARROW:
        return torch.float64
    return argument
