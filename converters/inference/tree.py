"""A tree of `torch.nn` modules from guesses, its containers told from the names of their children.

Children with other names than numbers: a plain module. Numbers that leave gaps, that hold layers of several
kinds, or at the top: a Sequential, whose gaps are layers without weights. Numbers from 0 on that hold
layers of one kind, or blocks: a ModuleList. `--assume 'PATH=Sequential'` says otherwise. The layout of a
weight does not depend on it, only its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Container = str  # "", "Sequential", "ModuleList"; of a file also "ModuleDict", "ParameterList", …

# A Sequential has a place for every number below its last; more than these are no positions.
_PLACES = 10_000


@dataclass
class Node:
    """A module of the tree.

    Attributes:
        layer: the layer that it is; None: a container or a module of tensors of its own.
        kind: what kind of layer that is, to compare children with; of a container the name of its class,
            where a file says it.
        parameters: tensors of its own.
        buffers: the same, of buffers.
        children: by name.
        container: how its children are held, where a file says it.
    """

    layer: Any = None
    kind: str = ""
    container: Container | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def at(self, path: str) -> Node:
        """The node of a path, made if it is not there."""
        node = self
        for name in path.split(".") if path else ():
            node = node.children.setdefault(name, Node())
        return node

    def find(self, path: str) -> Node | None:
        """The node of a path, if it is there."""
        node: Node | None = self
        for name in path.split(".") if path else ():
            node = node.children.get(name) if node else None
        return node


def make_tree(root: Node, container: Callable[[str], Container | None]) -> Any:
    """The module of a node; `container` says what the user assumes of a path, or None."""
    return _make(root, "", container)


def _make(node: Node, path: str, container: Callable[[str], Container | None]) -> Any:
    from torch import nn

    children = {
        name: _make(child, f"{path}.{name}" if path else name, container)
        for name, child in node.children.items()
    }
    module = node.layer
    if module is not None and (node.parameters or node.buffers):
        # A layer with more than its kind has is somebody's subclass of it.
        module.__class__ = type(node.kind, (type(module),), {"__module__": "the checkpoint"})
    if module is None:
        told = node.container
        kind = _container(node, container(path), top=not path) if told is None else told
        module = getattr(nn, kind)() if kind else nn.Module()
        if told == "" and node.kind:
            module.__class__ = type(node.kind, (nn.Module,), {"__module__": "the checkpoint"})
        if kind == "Sequential" and told is None:
            children = _filled(children)
    # Not by attributes: a child may be called "type" or "forward".
    module._parameters.update(node.parameters)
    module._buffers.update(node.buffers)
    module._modules.update(children)
    return module


def _container(node: Node, assumed: Container | None, *, top: bool) -> Container:
    own = [*node.parameters, *node.buffers]
    if own:
        numbers = not node.children and _numbers(own) is not None
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
    """The names as sorted positions; None where they are not."""
    if not names or not all(name.isdecimal() and str(int(name)) == name for name in names):
        return None
    positions = sorted(map(int, names))
    return positions if positions[-1] < _PLACES else None


def _filled(children: dict[str, Any]) -> dict[str, Any]:
    """Children at their positions, those between them layers without weights."""
    from torch import nn

    last = max(map(int, children), default=-1)
    return {
        str(position): children.get(str(position)) or nn.Identity() for position in range(last + 1)
    }
