"""The imported names of a script, each looked up once for all hazards."""

from __future__ import annotations

from functools import lru_cache

import libcst as cst

from migrate.reading.names.parsed import Parsed


class Names:
    """Qualified names by node: `torch.nonzero` wherever the script calls it, with aliases resolved."""

    def __init__(self, context: Parsed) -> None:
        self.roots: set[str] = set()  # first parts of the imported modules
        bound: set[str] = set()
        for node in context.all_of(cst.Import, cst.ImportFrom):
            if isinstance(node, cst.Import):
                for alias in node.names:
                    name = alias.evaluated_name
                    self.roots.add(name.split(".")[0])
                    bound.add(alias.evaluated_alias or name.split(".")[0])
            elif isinstance(node.names, cst.ImportStar):
                bound.update(context.calls.stars)
            else:
                bound.update(alias.evaluated_alias or alias.evaluated_name for alias in node.names)
                if node.module is not None and not node.relative:
                    self.roots.add(_root(node.module))
        for target, module in context.loaded_names:
            self.roots.add(module.split(".")[0])
            bound.add(target.value)
        bound.add("")  # of what a call returns, `import_torch().save`
        self._names: dict[int, str] = {}
        for use in context.all_of(cst.Name, cst.Attribute):
            imported = context.named(use)
            if imported is not None and _root(use) in bound:
                above = context.parent(use)
                if not isinstance(
                    above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName
                ) and not _is_defined(use, above):
                    self._names[id(use)] = imported

    def of(self, node: cst.CSTNode | None) -> str | None:
        """Return the imported dotted name that `node` stands for; None for a part of a longer name.

        A name from a module of the user's project starts with a dot.
        """
        return self._names.get(id(node))

    def all(self) -> frozenset[str]:
        """Return every imported name that the script uses."""
        return frozenset(self._names.values())


@lru_cache(maxsize=2)  # the last ones: rules and hazards inspect one script after another
def names_of(context: Parsed) -> Names:
    """Return the imported names of a script."""
    return Names(context)


def _is_defined(use: cst.CSTNode, above: cst.CSTNode | None) -> bool:
    """Whether `use` is the name of a definition, such as a substitute for a failing import."""
    return isinstance(above, cst.FunctionDef | cst.ClassDef) and above.name is use


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
