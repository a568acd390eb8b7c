"""Functions whose source comes into a port that needs them: what no expression of JAX says.

Each stands on its own: it imports nothing but jax, jax.numpy (`jnp`), numpy (`np`, for what is known before
the model runs), flax.linen (`nn`) and functions of this folder. Written as a person would
who keeps the port.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any


@cache
def functions() -> Mapping[str, Callable[..., Any]]:
    """Name → function, of every file of this folder.

    Raises:
        ValueError: two have one name.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                if name in functions:
                    raise ValueError(f"two functions are called {name}")
                functions[name] = value
    return functions
