"""Imports of frameworks in half their time: without garbage collection, and with rarely used parts deferred.

Objects created by an import stay alive, yet each full collection traverses them again: during the
import, later in the program, and at exit.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# Only torch.compile calls it. It imports torch._inductor: 1.1 of the 4.1 s of CPU time of `import torch_xla`.
DEFERRED = "torch_xla._dynamo.dynamo_bridge"


@contextmanager
def uncollected() -> Iterator[None]:
    """Context whose new objects the garbage collector ignores, then and later.

    If the collector is already disabled, by an enclosing import or by the program, it stays
    disabled.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def deferred(spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
    """Return the spec of a module that is executed when a name of it is first read.

    `importlib.util.LazyLoader` also executes it when `inspect` asks each module for its `__file__`,
    as torch does for each operator that it registers.

    Args:
        spec: as a finder returns it, with a loader.
    """
    if spec.loader is not None:
        spec.loader = _DeferredLoader(spec.loader)
    return spec


class _DeferredModule(ModuleType):
    """Module without names until one is read that is not the import system's own."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        loader = self.__loader__
        assert isinstance(loader, _DeferredLoader)
        loader.finish(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


class _DeferredLoader(importlib.abc.Loader):
    """Loader that passes a module to the real one only when a name of it is read."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._executing = False

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""

    def finish(self, module: ModuleType) -> None:
        """Execute the module; once, whichever thread asks first, and the others wait for it."""
        with self._lock:
            if self._executing or not isinstance(module, _DeferredModule):
                return
            self._executing = True
            try:
                with uncollected():
                    self._loader.exec_module(module)
            finally:
                self._executing = False
            module.__class__ = ModuleType  # type: ignore[assignment]
            assert module.__spec__ is not None
            module.__loader__ = module.__spec__.loader = self._loader
