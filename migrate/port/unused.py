"""Which weights of the original its forward does not read, so that no port has a place for them."""

from __future__ import annotations

import importlib.util
import re
import secrets
import sys
from pathlib import Path

from migrate.port.weights import PARAMS


def unused_paths(folder: Path) -> tuple[str, ...]:
    """Paths in the folder's file of weights that its model does not have, with `#` for numbers of layers.

    Empty where the model cannot be made yet: its proof says why.
    """
    if not (folder / PARAMS).exists():
        return ()
    from safetensors import safe_open

    with safe_open(folder / PARAMS, framework="numpy") as file:
        paths = set(file.keys())
    name = f"_port_{secrets.token_hex(8)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
        wanted = package.model_paths()
    except Exception:  # whatever a source that does not run raises
        return ()
    finally:
        for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[one]
    return tuple(sorted({re.sub(r"_\d+", "_#", path) for path in paths - wanted}))
