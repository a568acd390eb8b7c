"""A class of modules whose call runs another of its methods."""

from __future__ import annotations

from typing import Any


def calling(cls: type, method: str, **more: Any) -> type:
    """A class like `cls`, of the same name, whose forward is its method `method`.

    Args:
        cls: of torch modules.
        method: a name.
        more: further attributes of the class.
    """
    space = {"forward": getattr(cls, method), "__module__": cls.__module__, **more}
    return type(cls.__name__, (cls,), space)
