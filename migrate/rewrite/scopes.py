"""The scope of every expression, without the walks that libcst makes for it in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import libcst as cst
from libcst.metadata import ExpressionContextProvider, Scope, ScopeProvider


def scopes_of(module: cst.Module) -> Mapping[cst.CSTNode, Scope | None]:
    """Return the scope in which each node of `module` is evaluated; white space has none.

    It is what `MetadataWrapper(module).resolve(ScopeProvider)` gives. Both providers do their work in
    `visit_Module`, with visitors of their own; the wrapper would walk the whole tree for each once more.
    """
    contexts = ExpressionContextProvider()
    contexts.visit_Module(module)
    scopes = ScopeProvider()
    scopes.metadata = {ExpressionContextProvider: contexts._computed}
    scopes.visit_Module(module)
    return cast(Mapping[cst.CSTNode, Scope | None], scopes._computed)
