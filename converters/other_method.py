"""Subclasses of modules whose call runs another method."""

from __future__ import annotations

from typing import Any


def calling(cls: type, method: str, **more: Any) -> type:
    """Return a class like `cls`, of the same name, whose forward is its method `method`.

    Args:
        cls: a class of torch modules.
        method: the name of the method.
        more: other attributes of the class.
    """
    space = {"forward": getattr(cls, method), "__module__": cls.__module__, **more}
    return type(cls.__name__, (cls,), space)
