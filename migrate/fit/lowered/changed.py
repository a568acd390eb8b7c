"""Changes that `--try` makes to torch code, in the process that runs it, before it runs."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

# Of a script. (A module is cast itself for bf16, and given another batch by its inputs.)
CHANGES = ("bf16", "remat")
# Why `remat` has changed nothing.
NO_BLOCKS = "no modules with parts of their own lie beside their like in a ModuleList or Sequential"


def change(name: str) -> Callable[[], bool]:
    """Make one of `CHANGES` for all modules of this process; it gives what says later whether it was made."""
    from torch import nn

    changes: list[str] = []
    wrapped = {"bf16": _automatic_bfloat16, "remat": _computed_again}[name]
    nn.Module.__call__ = wrapped(nn.Module.__call__, changes)
    return lambda: bool(changes)


def _automatic_bfloat16(call: Callable[..., Any], changes: list[str]) -> Callable[..., Any]:
    """Automatic mixed precision from the first call of a module on; it is one of the thread."""
    import torch

    @functools.wraps(call)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        changes[:] = ["bf16"]
        torch.set_autocast_enabled("xla", True)
        torch.set_autocast_dtype("xla", torch.bfloat16)
        torch.set_autocast_cache_enabled(False)  # it is emptied where a block of autocast ends
        return call(module, *args, **kwargs)

    return changed


def _computed_again(call: Callable[..., Any], changes: list[str]) -> Callable[..., Any]:
    """The blocks of models are computed again for the gradients, as by `torch.utils.checkpoint`."""
    import torch
    from torch.utils.checkpoint import checkpoint

    blocks: WeakSet[Any] = WeakSet()
    known: WeakSet[Any] = WeakSet()
    running = [False]  # a block, or it again

    @functools.wraps(call)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        if module not in known:
            known.update(module.modules())
            blocks.update(_blocks())
        if module not in blocks or running[0] or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)
        changes[:] = ["remat"]
        again = [False]
        mixed = {
            "enabled": torch.is_autocast_enabled("xla"),
            "dtype": torch.get_autocast_dtype("xla"),
        }

        @contextlib.contextmanager
        def a_second_time() -> Iterator[None]:
            again[0] = True
            with torch.autocast("xla", **mixed):
                yield

        def run() -> Any:
            call_arguments = _apart(args, kwargs) if again[0] else (args, kwargs)
            running[0] = True
            try:
                return call(module, *call_arguments[0], **call_arguments[1])
            finally:
                running[0] = False

        # Nothing is given to it: of tensors on XLA it would ask for a module `torch.xla`. Another drawing of
        # dropout than the first time's is the same program.
        return checkpoint(
            run,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (contextlib.nullcontext(), a_second_time()),
        )

    return changed


def _blocks() -> Iterator[Any]:
    """Modules with parts of their own that lie beside others of their class in a list or a Sequential."""
    from torch import nn

    for candidate in gc.get_objects():
        if type(candidate) in (nn.ModuleList, nn.Sequential):
            classes = Counter(map(type, candidate))
            yield from (
                each for each in candidate if classes[type(each)] > 1 and any(each.children())
            )


def _apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same values, of which XLA may not see that they are the same: else it would keep the first ones."""
    import torch
    from torch.utils import _pytree as tree

    leaves, form = tree.tree_flatten((args, kwargs))
    floats = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla" and leaf.is_floating_point()
    ]
    if not floats:
        return args, kwargs
    import torch_xla.core.xla_model as xm

    for place in floats:
        with torch.no_grad():
            copied = leaves[place].clone()
        leaves[place] = copied.requires_grad_(leaves[place].requires_grad)
    with torch.no_grad():
        xm.optimization_barrier_([leaves[place] for place in floats])
    call_arguments: tuple[tuple[Any, ...], dict[str, Any]] = tree.tree_unflatten(leaves, form)
    return call_arguments
