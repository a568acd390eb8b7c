"""Dtypes of matrix multiplications, because lost mixed precision does not show in losses.

float32 and bfloat16 differ in the losses by 3e-5, like bfloat16 on two devices (measured). So the dtypes of
the results of linear and convolution layers, `matmul`, `bmm` and `mm` are compared, module by module. On
both sides autocast chooses the same for these (measured, torch_xla 2.9). Not so for
`scaled_dot_product_attention`: from float32 inputs CUDA's autocast makes float16, XLA's float32. float16 on
a GPU and bfloat16 on a TPU count as the same; so do float32 and float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from migrate.prove.recording.operators import put
from migrate.prove.recording.records import RankRecord

_FUNCTIONS = (
    *("linear", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
_PRODUCTS = ("matmul", "bmm", "mm")
_HALF = frozenset({"float16", "bfloat16"})
_WIDE = frozenset({"float32", "float64"})

# Dtypes that `autocast` would have chosen in the enclosing regions, where a proof switches it off; None: it
# was off anyway.
_meant: list[str | None] = []


def to_products(tell: Callable[[str, str], None]) -> None:
    """Report each matrix multiplication with gradients: its name and the dtype of its result.

    If autocast is switched off by `record.listen.without_autocast`, the dtype is the one that it would have
    chosen.
    """
    import torch

    def reporting(multiply: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(multiply)
        def product(*args: Any, **kwargs: Any) -> Any:
            result = multiply(*args, **kwargs)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return result
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                dtype = str(result.dtype).removeprefix("torch.")
                tell(name, (_meant and _meant[-1]) or dtype)
            return result

        return product

    functional = torch.nn.functional
    places = [(functional, name) for name in _FUNCTIONS] + [(torch, name) for name in _PRODUCTS]
    for module, name in places:
        put(module, name, reporting(getattr(module, name), name))
    for name in (*_PRODUCTS, "__matmul__"):
        setattr(torch.Tensor, name, reporting(getattr(torch.Tensor, name), name.strip("_")))
    _follow_autocast()


def _follow_autocast() -> None:
    """Keep the dtype of each autocast, before a proof switches it off."""
    import torch

    context: Any = torch.amp.autocast_mode.autocast
    make, enter, leave = context.__init__, context.__enter__, context.__exit__

    @functools.wraps(make)
    def made(autocast: Any, *args: Any, **kwargs: Any) -> None:
        make(autocast, *args, **kwargs)
        autocast._meant = (
            str(autocast.fast_dtype).removeprefix("torch.") if autocast._enabled else None
        )

    @functools.wraps(enter)
    def entered(autocast: Any) -> Any:
        _meant.append(None if autocast._enabled else getattr(autocast, "_meant", None))
        return enter(autocast)

    @functools.wraps(leave)
    def left(autocast: Any, *args: Any) -> Any:
        _meant.pop()
        return leave(autocast, *args)

    context.__init__, context.__enter__, context.__exit__ = made, entered, left


def meant_by_state(dtype: str) -> None:
    """Record that the program switches autocast on for the rest, where a proof ignores that."""
    _meant.insert(0, dtype)


def meant_half() -> bool:
    """Whether a proof has switched off autocast to 16 bits here."""
    return bool(_meant) and _meant[-1] in _HALF


def until(record: RankRecord, optimizer: int, step: int) -> dict[str, frozenset[str]]:
    """Return all dtypes that a rank has used up to a step, by module."""
    seen: dict[str, frozenset[str]] = {}
    for record_of_step in record.steps:
        for name, dtypes in record_of_step.details.dtypes.items():
            seen[name] = seen.get(name, frozenset()) | frozenset(dtypes)
        if (record_of_step.optimizer, record_of_step.step) == (optimizer, step):
            break
    return seen


def unlike(
    original: Mapping[str, Iterable[str]], ours: Mapping[str, Iterable[str]]
) -> tuple[list[str], str, str] | None:
    """Return the modules whose matrix multiplications had another precision than the original's.

    Returns:
        Their names, and the dtypes of the first of them: in the rewrite, in the original. None without
        any. What only one side has is not compared.
    """
    parted = {
        name: (set(ours[name]), set(theirs))
        for name, theirs in original.items()
        if name in ours and _parted(set(theirs), set(ours[name]))
    }
    if not parted:
        return None
    mine, theirs = next(iter(parted.values()))
    return list(parted), " and ".join(sorted(mine)), " and ".join(sorted(theirs))


def _parted(theirs: set[str], mine: set[str]) -> bool:
    return (theirs <= _HALF and mine <= _WIDE) or (theirs <= _WIDE and mine <= _HALF)
