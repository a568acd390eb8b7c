"""The samples of torch's own operator database, through the same comparison.

Each entry of the database is run once; every call of an operator that has a lowering, seen by the dispatcher
or made by the entry's name (operators that torch takes apart), is a sample.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.ops import CannotLowerError, lowerings
from tests.converters.graph.comparison import compare, operator, takes

pytest.importorskip("expecttest")  # torch.testing needs it

DTYPES = (torch.float32, torch.int64, torch.bool)
# Calls of one operator with one dtype (tensors without axes counted apart, as many refuse these), elements of
# a tensor, samples of an entry: more prove nothing more.
CALLS, ELEMENTS, SAMPLES = 3, 2000, 12

# Operator → why some of its samples do not agree. Strict: one of them must.
EXCLUDED: dict[str, str] = {
    "aten.polygamma.default": "near its poles JAX has fewer digits",
    "aten.kthvalue.default": "of equal elements torch does not say which one it names",
    "aten.topk.default": "of equal elements torch does not say which one it names",
    "aten.digamma.default": "at 0 it is minus infinity in torch, NaN in JAX",
    "aten.special_psi.default": "at 0 it is minus infinity in torch, NaN in JAX",
}

Calls = Mapping[str, list[tuple[Any, Any]]]


class _Seen(TorchDispatchMode):
    """Keeps the calls of operators that have lowerings."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[str, tuple[Any, Any]]] = defaultdict(dict)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.keep(str(func), args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def keep(self, name: str, args: Any, kwargs: Any) -> None:
        lowering = lowerings().get(name)
        if lowering is None or not lowering.samples:
            return
        key, fits = _key((args, kwargs))
        known = self.calls[name]
        if fits and key not in known and sum(_kind(one) == _kind(key) for one in known) < CALLS:
            known[key] = (_copy(args), _copy(kwargs))


def _key(value: Any) -> tuple[str, bool]:
    """What tells calls apart, and whether this one can be compared."""
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu"
        small = plain and value.numel() <= ELEMENTS
        return f"{value.dtype}{list(value.shape)}", small and value.dtype in DTYPES
    if isinstance(value, dict):
        return _key([[key, one] for key, one in value.items()])
    if isinstance(value, list | tuple):
        found = [_key(one) for one in value]
        return f"[{', '.join(key for key, _ in found)}]", all(fits for _, fits in found)
    fits = value is None or isinstance(value, str | bool | int | float | torch.dtype)
    wide = value in (torch.float64, torch.complex128, torch.float16, torch.bfloat16)
    return repr(value), (fits and not wide) or isinstance(value, torch.device)


def _kind(key: str) -> str:
    """The dtype of a call's first tensor, "[]" behind it where that has no axes."""
    first = re.search(r"torch\.\w+\[\]?", key)
    return first.group() if first else ""


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(one) for one in value)
    return value


@cache
def _calls() -> Calls:
    # Imported where it is used: that takes seconds, which each run of other tests would wait for as well.
    from torch.testing._internal.common_methods_invocations import op_db

    seen = _Seen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            for dtype in DTYPES:
                if dtype in info.dtypes:
                    torch.manual_seed(0)
                    _run(info, dtype, seen)
    return {name: list(found.values()) for name, found in seen.calls.items()}


def _run(info: Any, dtype: torch.dtype, seen: _Seen) -> None:
    for given in islice(info.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
        arguments = (given.input, *given.args)
        with suppress(Exception):  # what torch itself refuses is no sample
            name = f"aten::{info.aten_name}"
            _, overload, _ = torch._C._jit_resolve_packet(name, *arguments, **given.kwargs)
            seen.keep(f"aten.{info.aten_name}.{overload or 'default'}", arguments, given.kwargs)
        with suppress(Exception), seen:
            info.op(*arguments, **given.kwargs)


@pytest.mark.long
@pytest.mark.parametrize("name", [key for key, one in lowerings().items() if one.samples])
def test_samples_of_torchs_own_database(name: str) -> None:
    calls = [one for one in _calls().get(name, []) if takes(name, *one)]
    if not calls:
        pytest.skip("the database has no sample of it")
    passed, failed = check(name, calls)
    assert name in EXCLUDED or not failed, failed
    assert failed or name not in EXCLUDED, "it agrees now: out of the list"
    assert passed or failed or name in EXCLUDED


def check(name: str, calls: list[tuple[Any, Any]]) -> tuple[int, list[str]]:
    """How many calls agree, and what is said of those that do not; what a lowering refuses is neither."""
    lowering = lowerings()[name]
    tolerance = max(1e-5, *(one.tolerance for one in lowering.samples))
    values = all(one.values for one in lowering.samples)
    passed, failed = 0, []
    for arguments, named in calls:
        try:
            operator(name)(*_copy(arguments), **_copy(named))
        except Exception:
            continue  # torch refuses it
        try:
            compare(name, lowering, arguments, named, tolerance, gradient=False, values=values)
        except CannotLowerError:
            continue
        except Exception as error:
            failed.append(f"{_key((arguments, named))[0]}: {error!r}")
        else:
            passed += 1
    return passed, failed
