"""What tests of ports share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from converters.graph import Port


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A port, and sizes other than its own → its model, imported as its folder would be."""

    def run(written: Port, **others: Any) -> Any:
        package = tmp_path / "a_port_of_the_tests"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "modeling.py").write_text(written.modeling)
        (package / "config.py").write_text(written.config)
        if written.initial:
            save_file(dict(written.initial), package / "initial.safetensors")
        sys.path.insert(0, str(tmp_path))
        modeling = importlib.import_module("a_port_of_the_tests.modeling")
        config = importlib.import_module("a_port_of_the_tests.config")
        cls = getattr(modeling, written.model_class)
        sizes = getattr(config, written.config_class)(**others)
        return cls(sizes) if "config" in cls.__dataclass_fields__ else cls()

    yield run
    sys.path[:] = [one for one in sys.path if one != str(tmp_path)]
    for name in [name for name in sys.modules if name.startswith("a_port_of_the_tests")]:
        del sys.modules[name]
