"""Module that Python imports at startup of every process with this folder on PYTHONPATH. It activates
the shims.

Python imports only one module of this name, so this module runs the next one on the path.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_next_sitecustomize() -> None:
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _switch_on() -> None:
    # A folder on PYTHONPATH may contain another module of this name.
    root, before = os.path.dirname(os.path.dirname(_HERE)), list(sys.path)
    if importlib.util.find_spec("shims") is None:
        # Another interpreter than the one the shims are installed in.
        before.append(root)
    sys.path.insert(0, root)
    from shims import activate

    sys.path[:] = before
    activate.switch_on()


_run_next_sitecustomize()
try:
    _switch_on()
except Exception as error:
    # `site` would print one line and continue without the shims. A CUDA program would then run
    # without them, contrary to the request.
    raise SystemExit(f"shims: {error}") from error
