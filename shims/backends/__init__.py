"""Backends: one class for each kind of accelerator."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from shims.choice import choose

if TYPE_CHECKING:
    from shims.backends.base import Backend

_CLASSES = {
    "xla": "shims.backends.xla:XlaBackend",
    "tpu": "shims.backends.tpu:TpuBackend",
    "cuda": "shims.backends.cuda:CudaBackend",
    "cpu": "shims.backends.cpu:CpuBackend",
}


@functools.cache
def current() -> Backend:
    """Return the backend of this process, chosen at the first call.

    Raises:
        BackendMissingError: the forced backend cannot run here.
    """
    chosen = choose()
    module, _, name = _CLASSES[chosen.name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)(chosen.why)
    return backend
