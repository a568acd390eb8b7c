"""`with emulated("default"):` computes the products of a torch model as a TPU would.

The mode works below autograd. It applies to forward passes, backward passes inside it, checkpointing and
optimizers alike. Matmuls and convolutions of float32 are computed in passes (`torch_products`). What torch
would compute in one kernel (attention, LSTM, `nn.TransformerEncoderLayer` without gradients) is decomposed
into matmuls, as on a TPU.

Everything else is unchanged: other dtypes, elementwise operations, sums, softmax, normalization.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from converters.slow_paths import slow_paths
from migrate.parity.emulate.seen import Emulation
from migrate.parity.emulate.torch_einsum import einsum_by_bmm
from migrate.parity.emulate.torch_opaque import has_products_inside
from migrate.parity.emulate.torch_products import PRODUCTS
from migrate.parity.ground.settings import Precision

_IMPLICIT = "CompositeImplicitAutograd"
_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_KNOWN = ("aten", "prim", "prims")


@contextmanager
def emulated(precision: Precision) -> Iterator[Emulation]:
    """Compute the float32 products of the code inside in the passes of a TPU's precision.

    Args:
        precision: "default" (one pass), "high" (three) or "highest" (six).

    Raises:
        ValueError: the precision is unknown.
    """
    seen = Emulation(precision)
    with _no_fused_kernels(), _Einsum(seen), _ProductsMode(seen):
        yield seen


@contextmanager
def _no_fused_kernels() -> Iterator[None]:
    """Decompose attention, LSTM and encoder layers into matmuls, computed in true float32."""
    matmul = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_onednn(False))
        if torch._C._get_cudnn_enabled():
            torch._C._set_cudnn_enabled(False)
            stack.callback(torch._C._set_cudnn_enabled, True)
        stack.enter_context(slow_paths())
        if matmul != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, matmul)
        yield


@contextmanager
def _onednn(enabled: bool) -> Iterator[None]:
    # Not torch.backends.mkldnn.flags: it also sets options of Intel GPUs, and warns.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


class _Einsum(TorchFunctionMode):
    """Mode that turns `einsum` into matmuls: torch_xla lowers it in one piece, past every dispatch mode."""

    def __init__(self, seen: Emulation) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.einsum:
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            if any(tensor.device.type == "xla" and _counts(tensor) for tensor in tensors):
                if len(tensors) == 2 and isinstance(args[0], str):
                    result = einsum_by_bmm(args[0], *tensors)
                    if result is not None:
                        return result
                self._seen.unhandled.add("aten::einsum (torch_xla)")
        return func(*args, **(kwargs or {}))


class _ProductsMode(TorchDispatchMode):
    def __init__(self, seen: Emulation) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "aten" and (base := name.rstrip("_")) in PRODUCTS:
            return self._product(func, base, args, kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(_counts(tensor) for tensor in tensors):
            return func(*args, **kwargs)
        if (kernel := _composite(func)) is not None and (
            kernel == _IMPLICIT or has_products_inside(name)
        ):
            with self:
                return func._op_dk(getattr(torch._C.DispatchKey, kernel), *args, **kwargs)
        if namespace not in _KNOWN or (namespace == "aten" and has_products_inside(name)):
            self._seen.unhandled.add(func._schema.name)
        return func(*args, **kwargs)

    def _product(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if any(x.is_complex() or x.layout != torch.strided for x in tensors):
            if any(_counts(x) for x in tensors):
                self._seen.unhandled.add(f"{func._schema.name} (complex or sparse)")
            return func(*args, **kwargs)
        if any(x.dtype != torch.float32 for x in tensors):
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        # oneDNN's convolutions are true float32 too, and much faster than torch's own.
        with _onednn(True):
            result = PRODUCTS[name](self._seen.precision, *args, **kwargs)
        if result is None:
            self._seen.vector_unit[name] += 1
            return func(*args, **(kwargs if out is None else kwargs | {"out": out}))
        self._seen.emulated[name] += 1
        if func._schema.name.endswith("_"):
            return args[0].copy_(result)
        return result if out is None else out.resize_(result.shape).copy_(result)


def _counts(tensor: Any) -> bool:
    """Whether a TPU would round the products of this tensor."""
    return tensor.dtype in (torch.float32, torch.complex64)


def _composite(func: Any) -> str | None:
    """Return the kernel of an operation that is composed of others; None if it has none.

    Below autograd, operations of the implicit kind occur only under `torch.inference_mode`.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return next((key for key in (_IMPLICIT, *_EXPLICIT) if has(func.name(), key)), None)
