"""Tree of `torch.nn` modules from guesses; the names of the children determine the containers.

Children with names other than numbers: a plain module. Numbers with gaps, with layers of several
kinds, or at the top: a Sequential, whose gaps are layers without weights. Numbers from 0 on with
layers of one kind, or blocks: a ModuleList. `--assume 'PATH=Sequential'` overrides this. The layout
of a weight does not depend on it, only its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Container = str  # "", "Sequential", "ModuleList"; from a file also "ModuleDict", "ParameterList", …

# A Sequential has an entry for every number below its last; more than these are not positions.
_PLACES = 10_000


@dataclass
class Node:
    """Module of the tree.

    Attributes:
        layer: its layer; None for a container or a module with direct tensors.
        kind: its layer kind, for comparing children; for a container, the class name recorded in
            the file.
        parameters: its direct parameters.
        buffers: its direct buffers.
        children: its children by name.
        container: its container type, if recorded in the file.
    """

    layer: Any = None
    kind: str = ""
    container: Container | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def at(self, path: str) -> Node:
        """Return the node of a path; create it if missing."""
        node = self
        for name in path.split(".") if path else ():
            node = node.children.setdefault(name, Node())
        return node

    def find(self, path: str) -> Node | None:
        """Return the node of a path, or None."""
        node: Node | None = self
        for name in path.split(".") if path else ():
            node = node.children.get(name) if node else None
        return node


def make_tree(root: Node, container: Callable[[str], Container | None]) -> Any:
    """Return the module of a node; `container` returns the user's assumption about a path, or None."""
    return _make(root, "", container)


def _make(node: Node, path: str, container: Callable[[str], Container | None]) -> Any:
    from torch import nn

    children = {
        name: _make(child, f"{path}.{name}" if path else name, container)
        for name, child in node.children.items()
    }
    module = node.layer
    if module is not None and (node.parameters or node.buffers):
        # A layer with more children than its kind is a user's subclass of it.
        module.__class__ = type(node.kind, (type(module),), {"__module__": "the checkpoint"})
    if module is None:
        recorded = node.container
        kind = _container(node, container(path), top=not path) if recorded is None else recorded
        module = getattr(nn, kind)() if kind else nn.Module()
        if recorded == "" and node.kind:
            module.__class__ = type(node.kind, (nn.Module,), {"__module__": "the checkpoint"})
        if kind == "Sequential" and recorded is None:
            children = _filled(children)
    # Not by attribute: a child may be called "type" or "forward".
    module._parameters.update(node.parameters)
    module._buffers.update(node.buffers)
    module._modules.update(children)
    return module


def _container(node: Node, assumed: Container | None, *, top: bool) -> Container:
    direct = [*node.parameters, *node.buffers]
    if direct:
        numbers = not node.children and _numbers(direct) is not None
        return "ParameterList" if numbers and not node.buffers else ""
    positions = _numbers(node.children)
    if positions is None:
        return ""
    if assumed:
        return assumed
    kinds = {child.kind for child in node.children.values()}
    if top or positions != list(range(len(positions))) or len(kinds) > 1:
        return "Sequential"
    return "ModuleList"


def _numbers(names: Mapping[str, Any] | Sequence[str]) -> list[int] | None:
    """Return the names as sorted positions, or None."""
    if not names or not all(name.isdecimal() and str(int(name)) == name for name in names):
        return None
    positions = sorted(map(int, names))
    return positions if positions[-1] < _PLACES else None


def _filled(children: dict[str, Any]) -> dict[str, Any]:
    """Return the children at their positions, with layers without weights between them."""
    from torch import nn

    last = max(map(int, children), default=-1)
    return {
        str(position): children.get(str(position)) or nn.Identity() for position in range(last + 1)
    }
