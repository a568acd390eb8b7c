"""Started by Python in every process whose PYTHONPATH has this folder: switches the shims on.

Python imports one module of this name only, so the next one on the path is run from here.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_next_one() -> None:
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _switch_on() -> None:
    # A folder on PYTHONPATH may hold another module of this name.
    root, before = os.path.dirname(os.path.dirname(_HERE)), list(sys.path)
    if importlib.util.find_spec("shims") is None:
        # Another interpreter than the one that the shims are installed in.
        before.append(root)
    sys.path.insert(0, root)
    from shims import activate

    sys.path[:] = before
    activate.switch_on()


_run_the_next_one()
try:
    _switch_on()
except Exception as error:
    # `site` would print one line and go on without the shims: a CUDA program would then run
    # unshimmed, which is not what was asked for.
    raise SystemExit(f"shims: {error}") from error
