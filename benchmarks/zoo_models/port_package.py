"""The source of a port as a package that is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def imported(
    written: Any, folder: Path, sizes: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """The model of a port.

    Args:
        written: what the compiler gave.
        folder: a new folder, whose name becomes the package's.
        sizes: settings of its configuration that differ from the recorded ones.
        options: further fields of the model, such as `param_dtype`.
    """
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "modeling.py").write_text(written.modeling)
    (folder / "config.py").write_text(written.config)
    sys.path.insert(0, str(folder.parent))
    modeling = importlib.import_module(f"{folder.name}.modeling")
    config = importlib.import_module(f"{folder.name}.config")
    settings = getattr(config, written.config_class)(**(sizes or {}))
    return getattr(modeling, written.model_class)(settings, **options)
