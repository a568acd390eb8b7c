"""Modules that a project compiles against torch, for CUDA or for the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import words
from migrate.model.replicated.constants import constants

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

HOME = "torch.utils.cpp_extension."
BUILDERS = words("CUDAExtension CppExtension SyclExtension load load_inline")


@lru_cache(maxsize=2)
def extensions_of(analysis: Analysis) -> frozenset[str]:
    """Return the dotted names of the extensions that files of a project build, as `setup.py` does."""
    extensions: set[str] = set()
    for call, scope in analysis.evaluator.calls():
        names = analysis.evaluator.externals(call.func, scope)
        if not any(name.startswith(HOME) and name[len(HOME) :] in BUILDERS for name in names):
            continue
        arguments = [
            *call.args[:1],
            *(keyword.value for keyword in call.keywords if keyword.arg == "name"),
        ]
        for node in arguments:
            extensions.update(
                text for text in constants(node, scope, analysis) if isinstance(text, str)
            )
    return frozenset(extensions)
