"""Activation of a backend in an unedited program and in every Python process that it starts.

`environment` returns the variables to start the program with. They put a `sitecustomize` on
PYTHONPATH, which calls `switch_on` at the start of each process. Nothing is imported then. The
backend is installed only if the program imports torch (or torch_xla), right after that import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from shims import tpu
from shims._simulated_tpu.variables import AUTOLOAD
from shims._simulated_tpu.variables import variables as variables_of_tpu
from shims._started import shared_names, stand_in
from shims._started.quick_imports import DEFERRED, deferred, uncollected
from shims.errors import BackendError

BACKEND = "SHIMS_BACKEND"
REPLICAS = "SHIMS_REPLICAS"
PLUGINS = "SHIMS_PLUGINS"
# Rendezvous address of the simulated replicas that `python -m shims` starts as ranks.
STORE_PORT = "SHIMS_STORE_PORT"
# Set for the ranks of `shims._started`, and in simulated replicas: all ranks are on this machine.
ONE_MACHINE = "SHIMS_ONE_MACHINE"
# Port where the ranks of `shims._started` meet, whatever port the script names.
PORT = "SHIMS_PORT"

# Backend -> (imports that it waits for, function that installs it). The first import that completes
# installs it. torch_xla imports torch, so torch may be complete while torch_xla is not.
_BACKENDS = {
    "cpu": (("torch",), "shims.patches:install_cpu"),
    "simulate": (("torch_xla",), "shims.simulate:install"),
    "simulate-tpu": (("torch",), "shims.simulate_tpu:install"),
    "tpu": (("torch",), "shims.patches.start_tpu:install"),
    "xla": (("torch", "torch_xla"), "shims.patches.start_xla:install"),
}
# A plugin may run without a backend, for example on a real TPU.
NO_BACKEND = "none"

# Each replica is a process of this machine.
MOST_REPLICAS = 64

_SITE = Path(__file__).parent / "_site"


def environment(backend: str, replicas: int = 1, plugins: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment variables that activate a backend in a subprocess and all its children.

    Args:
        backend: "cpu" (CUDA code on the CPU), "xla" (CUDA code on a TPU, or on simulated replicas
            if `PJRT_DEVICE` names no TPU), "tpu" (CUDA code on a TPU simulated for torch_tpu),
            "simulate" (N torch_xla replicas on the CPU), "simulate-tpu" (N replicas of torch_tpu on
            the CPU) or "none" (plugins only).
        replicas: number of devices visible to the program, 1 to `MOST_REPLICAS`.
        plugins: functions without arguments, as "package.module:function", called in each process
            right after it has imported torch.

    Returns:
        The variables to add to a copy of `os.environ`.

    Raises:
        BackendError: unknown backend, fewer than one replica, or more than `MOST_REPLICAS`.
        NotSimulatedError: torch_tpu cannot be simulated in this environment.
    """
    if backend not in _BACKENDS and backend != NO_BACKEND:
        raise BackendError(f"unknown backend {backend!r}", f"one of {', '.join(_BACKENDS)}")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise BackendError(f"{replicas} replicas requested", f"1 to {MOST_REPLICAS}")
    path = os.environ.get("PYTHONPATH")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(_SITE), path] if path else [str(_SITE)]),
        BACKEND: backend,
        REPLICAS: str(replicas),
        PLUGINS: ",".join(plugins),
    }
    if backend == "simulate" or (backend == "xla" and not tpu.chips()):
        # One device per process: several would wait for each other and abort.
        variables |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
    if backend in ("simulate-tpu", "tpu"):
        variables |= variables_of_tpu()
    if backend == "cpu":
        # Without a TPU, torch_tpu that torch loads by itself leaves backward passes waiting forever.
        variables[AUTOLOAD] = "0"
    if backend in ("cpu", "xla", "tpu"):
        # A real GPU would run calls that the backend has not mapped. Without a GPU they are errors.
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


def replicas() -> int:
    """Return the number of devices that this process was started with.

    Raises:
        BackendError: the variable is missing or is not a positive number.
    """
    text = os.environ.get(REPLICAS, "")
    if not text.isdecimal() or int(text) < 1:
        raise BackendError(
            f"{REPLICAS}={text!r} is not a number of replicas", "use shims.activate.environment"
        )
    return int(text)


def plugins() -> tuple[str, ...]:
    """Return the plugins that this process was started with, for processes that it starts."""
    return tuple(filter(None, os.environ.get(PLUGINS, "").split(",")))


def switch_on() -> None:
    """Install the environment's backend and plugins once the program has imported torch.

    Raises:
        BackendError: the environment names an unknown backend or plugin form.
    """
    stand_in.switch_on()
    shared_names.switch_on()
    backend = os.environ.get(BACKEND)
    if backend is None:
        return
    if backend != NO_BACKEND:
        if backend not in _BACKENDS:
            raise BackendError(
                f"{BACKEND}={backend!r} is unknown", f"one of {', '.join(_BACKENDS)}"
            )
        awaited, function = _BACKENDS[backend]
        install = _Once(function)
        for name in awaited:
            after_import(name, install)
    for plugin in plugins():
        after_import("torch", functools.partial(_call, plugin))
    # If a script imports torch_xla first, torch completes and the plugin is called in the middle of
    # that import. The plugin can wait for the import's end only if the import is followed from the
    # beginning.
    import_quickly("torch", "torch_xla")


class _Once:
    """Callable that runs a function once, postponed while torch_xla is half imported."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._done = False

    def __call__(self) -> None:
        if self._done:
            return
        if "torch_xla" in _RUNNING:
            after_import("torch_xla", self)
            return
        self._done = True
        _call(self._function)


def after_import(name: str, callback: Callable[[], object]) -> None:
    """Call `callback` once the module `name` has been imported; at once if it already is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        callback()
        return
    _WAITING.setdefault(name, []).append(callback)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def import_quickly(*names: str) -> None:
    """Pause the garbage collector while these modules are imported."""
    for name in names:
        after_import(name, lambda: None)


def _call(dotted: str) -> None:
    module, _, name = dotted.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BackendError(
            f"cannot load {dotted!r} ({error})", "give it as package.module:function"
        ) from error
    function()


class _PostImportFinder(importlib.abc.MetaPathFinder):
    """Import finder that delegates to the finders after it and runs waiting callbacks after the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _WAITING and fullname != DEFERRED:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                if fullname == DEFERRED:
                    return deferred(spec)
                _follow(spec.loader, fullname)
                return spec
        return None


def _follow(loader: importlib.abc.Loader, name: str) -> None:
    # The loader itself is kept, because its other methods (sources, resources) are used later.
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with uncollected():
            _RUNNING.add(name)
            try:
                execute(module)
            finally:
                _RUNNING.discard(name)
            for callback in _WAITING.pop(name, []):
                callback()

    loader.exec_module = exec_module  # type: ignore[method-assign]


_WAITING: dict[str, list[Callable[[], object]]] = {}
# Modules with waiting callbacks that are being executed.
_RUNNING: set[str] = set()
_FINDER = _PostImportFinder()
