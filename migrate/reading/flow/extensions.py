"""The modules that a project compiles against torch, for CUDA or for the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.kinds import External
from migrate.reading.flow.constants import constants
from migrate.reading.values.words import words

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis

HOME = "torch.utils.cpp_extension."
BUILDERS = words("CUDAExtension CppExtension SyclExtension load load_inline")


@lru_cache(maxsize=2)
def extensions_of(analysis: Analysis) -> frozenset[str]:
    """Return the dotted names of the extensions that files of a project build, as `setup.py` does."""
    found: set[str] = set()
    for call, scope in analysis.evaluator.calls():
        names = {
            value.name
            for value in analysis.evaluator.values(call.func, scope)
            if isinstance(value, External) and value.name.startswith(HOME)
        }
        if not any(name.removeprefix(HOME) in BUILDERS for name in names):
            continue
        given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "name")]
        for node in given:
            found.update(text for text in constants(node, scope, analysis) if isinstance(text, str))
    return frozenset(found)
