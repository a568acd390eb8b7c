"""Python's scopes: where each name is bound, and which binding a use of the name refers to.

The result equals that of libcst's `ScopeProvider`, in one walk, with the captures of `match` added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import libcst as cst

from migrate.syntax.walk import children

# Nodes that end the scope's current set of bindings.
ASSIGNING = frozenset(
    {
        cst.AnnAssign,
        cst.AsName,
        cst.Assign,
        cst.AugAssign,
        cst.ClassDef,
        cst.CompFor,
        cst.FunctionDef,
        cst.Global,
        cst.Import,
        cst.ImportFrom,
        cst.MatchAs,
        cst.MatchMapping,
        cst.MatchStar,
        cst.NamedExpr,
        cst.Nonlocal,
        cst.Parameters,
        cst.ParamSpec,
        cst.TypeAlias,
        cst.TypeVar,
        cst.TypeVarTuple,
        cst.WithItem,
    }
)
# Nodes that get a scope of type parameters; only that scope sees the names of the class around it.
TYPE_PARAMETERS = cst.TypeAlias
Comprehension = cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp


class NameScope:
    """Names that a module, function, class or comprehension binds.

    Args:
        parent: the enclosing scope; a module is its own parent.
        node: the node that owns the scope.
        kind: the type of that node, or `TYPE_PARAMETERS`.
    """

    __slots__ = ("bound", "count", "elsewhere", "kind", "node", "parent")

    def __init__(
        self, parent: NameScope | None, node: cst.CSTNode, kind: type[cst.CSTNode] | None = None
    ) -> None:
        self.parent = parent or self
        self.node = node
        self.kind = kind or type(node)
        self.bound: dict[str, list[NameBinding]] = {}
        self.elsewhere: dict[str, NameScope] = {}  # by `global` and `nonlocal`
        self.count = 0  # number of names bound up to here

    def bind(self, name: str, node: cst.CSTNode) -> None:
        """Record that `node` binds `name`, here or where `global` or `nonlocal` says."""
        target = self
        while name in target.elsewhere:
            target = _seen_from(target.elsewhere[name], target)
        target.bound.setdefault(name, []).append(NameBinding(target, node, target.count))

    def holds(self, name: str) -> bool:
        """Whether `name` is bound here or in an enclosing scope."""
        scope = self
        while True:
            if name in scope.elsewhere:
                scope = scope.elsewhere[name]
            elif name in scope.bound:
                return True
            elif scope.parent is scope:
                return False
            else:
                scope = _seen_from(scope.parent, scope)

    def find(self, name: str, start: NameScope) -> list[NameBinding]:
        """Return the bindings of `name` here or in enclosing scopes, as seen from the scope `start`."""
        scope = self
        while True:
            if name in scope.elsewhere:
                scope = _seen_from(scope.elsewhere[name], start)
            elif name in scope.bound:
                return scope.bound[name]
            elif scope.parent is scope:
                return []
            else:
                scope = _seen_from(scope.parent, start)


def _seen_from(scope: NameScope, inner: NameScope) -> NameScope:
    """Return `scope`, or the first enclosing scope whose names `inner` sees: class names are not seen."""
    while scope.kind is cst.ClassDef:
        if scope is inner.parent and inner.kind is TYPE_PARAMETERS:
            break
        scope = scope.parent
    return scope


class NameBinding:
    """Location where a name is bound.

    Args:
        scope: the scope of the binding.
        node: the binding node: an import statement, an assigned name, a parameter, a definition.
        number: how many names had been bound in the scope before.
    """

    __slots__ = ("node", "number", "scope")

    def __init__(self, scope: NameScope, node: cst.CSTNode, number: int) -> None:
        self.scope = scope
        self.node = node
        self.number = number


class Use:
    """Location where a name is used.

    Args:
        name: the name.
        scope: where it is evaluated.
        around: the whole of `a.b.c`, if the name is a part of such an expression.
        reads: whether it is read, not bound.
    """

    __slots__ = ("around", "name", "number", "reads", "scope")

    def __init__(
        self, name: cst.Name, scope: NameScope, around: cst.Attribute | None, *, reads: bool
    ) -> None:
        self.name = name
        self.scope = scope
        self.number = scope.count
        self.around = around
        self.reads = reads


class Uses:
    """All uses of names in a module.

    Args:
        module: the module.
        stars: the names that `from module import *` binds.
    """

    def __init__(self, module: cst.Module, stars: Collection[str] = ()) -> None:
        self.of: dict[int, Use] = {}  # by the id of the name
        self.declared: dict[int, Use] = {}  # the same for the names in `global` and `nonlocal`
        self._stars = sorted(stars)
        self._scope = NameScope(None, module)
        self._around: cst.Attribute | None = None
        self._visit(module)

    def _visit(self, node: cst.CSTNode) -> None:
        kind = type(node)
        visit = VISITS.get(kind)
        if visit is not None:
            visit(self, node)
        else:
            for child in children(node):
                self._visit(child)
        if kind in ASSIGNING:
            self._scope.count += 1

    def _all(self, *nodes: cst.CSTNode | None) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node)

    def _name(self, node: cst.Name) -> None:
        self.of[id(node)] = Use(node, self._scope, self._around, reads=True)

    def _bind(self, name: cst.BaseExpression | None, node: cst.CSTNode) -> None:
        if isinstance(name, cst.Name):
            self.of[id(name)] = Use(name, self._scope, None, reads=False)
            self._scope.bind(name.value, node)

    def _store(self, target: cst.BaseExpression) -> None:
        """Visit an assignment target."""
        if isinstance(target, cst.Name):
            self._bind(target, target)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._store(element.value)
        else:
            self._visit(target)

    def _within(self, scope: NameScope, *nodes: cst.CSTNode | None) -> None:
        """Visit `nodes` in a new scope."""
        outer = self._scope
        self._scope = scope
        self._all(*nodes)
        self._scope = outer

    def _import(self, node: cst.Import | cst.ImportFrom) -> None:
        is_star = isinstance(node.names, cst.ImportStar)
        for name in self._stars if is_star else bound_by(node):
            self._scope.bind(name, node)

    def _attribute(self, node: cst.Attribute) -> None:
        is_whole = self._around is None
        if is_whole:
            self._around = node
        self._visit(node.value)
        if is_whole:
            self._around = None

    def _call(self, node: cst.Call) -> None:
        around, self._around = self._around, None
        self._all(node.func, *node.args)
        self._around = around

    def _ann_assign(self, node: cst.AnnAssign) -> None:
        self._store(node.target)
        self._all(node.annotation, node.value)

    def _assign_value(self, node: cst.AugAssign | cst.NamedExpr) -> None:
        self._store(node.target)
        self._visit(node.value)

    def _for(self, node: cst.For) -> None:
        self._store(node.target)
        self._scope.count += 1
        self._all(node.iter, node.body, node.orelse)

    def _comp_for(self, node: cst.CompFor) -> None:
        self._store(node.target)
        self._all(node.iter, *node.ifs, node.inner_for_in)

    def _comprehension(self, node: Comprehension) -> None:
        first = node.for_in
        self._visit(first.iter)  # it alone is evaluated outside
        outer = self._scope
        self._scope = NameScope(outer, node)
        self._store(first.target)
        self._scope.count += 1
        self._all(*first.ifs, first.inner_for_in)
        self._all(*((node.key, node.value) if isinstance(node, cst.DictComp) else (node.elt,)))
        self._scope = outer

    def _function(self, node: cst.FunctionDef) -> None:
        self._bind(node.name, node)
        outer = self._scope
        if node.type_parameters is not None:
            self._scope = NameScope(outer, node, TYPE_PARAMETERS)
            self._visit(node.type_parameters)
        self._within(NameScope(self._scope, node), node.params, node.body)
        self._all(*node.decorators, node.returns)
        self._scope = outer

    def _lambda(self, node: cst.Lambda) -> None:
        self._within(NameScope(self._scope, node), node.params, node.body)

    def _param(self, node: cst.Param) -> None:
        self._bind(node.name, node)
        own = self._scope
        self._scope = own.parent
        self._all(node.default, node.annotation)
        self._scope = own

    def _class(self, node: cst.ClassDef) -> None:
        self._bind(node.name, node)
        self._all(*node.decorators)
        outer = self._scope
        if node.type_parameters is not None:
            self._scope = NameScope(outer, node, TYPE_PARAMETERS)
            self._visit(node.type_parameters)
        self._all(*node.bases, *node.keywords)
        self._within(NameScope(self._scope, node), *node.body.body)
        self._scope = outer

    def _global(self, node: cst.Global) -> None:
        for item in node.names:
            self._say_where(item.name, None)

    def _nonlocal(self, node: cst.Nonlocal) -> None:
        for item in node.names:
            self._say_where(item.name, self._scope.parent)

    def _say_where(self, name: cst.Name, where: NameScope | None) -> None:
        scope = self._scope
        if scope.kind is not cst.Module:
            scope.elsewhere[name.value] = where or _module_of(scope)
        self.declared[id(name)] = Use(name, scope, None, reads=False)

    def _type_alias(self, node: cst.TypeAlias) -> None:
        self._bind(node.name, node)
        scope = NameScope(self._scope, node, TYPE_PARAMETERS)
        self._within(scope, node.type_parameters, node.value)

    def _match_as(self, node: cst.MatchAs) -> None:
        self._all(node.pattern)
        self._bind(node.name, node)

    def _match_mapping(self, node: cst.MatchMapping) -> None:
        self._all(*node.elements)
        self._bind(node.rest, node)

    def _type_var(self, node: cst.TypeVar) -> None:
        self._bind(node.name, node)
        self._all(node.bound)


def _module_of(scope: NameScope) -> NameScope:
    while scope.parent is not scope:
        scope = scope.parent
    return scope


VISITS: dict[type[cst.CSTNode], Callable[[Uses, Any], None]] = {
    cst.AnnAssign: Uses._ann_assign,
    cst.Arg: lambda self, node: self._visit(node.value),  # not the keyword
    cst.AsName: lambda self, node: self._store(node.name),
    cst.AssignTarget: lambda self, node: self._store(node.target),
    cst.Attribute: Uses._attribute,
    cst.AugAssign: Uses._assign_value,
    cst.Call: Uses._call,
    cst.ClassDef: Uses._class,
    cst.CompFor: Uses._comp_for,
    cst.DictComp: Uses._comprehension,
    cst.For: Uses._for,
    cst.FunctionDef: Uses._function,
    cst.GeneratorExp: Uses._comprehension,
    cst.Global: Uses._global,
    cst.Import: Uses._import,
    cst.ImportFrom: Uses._import,
    cst.Lambda: Uses._lambda,
    cst.ListComp: Uses._comprehension,
    cst.MatchAs: Uses._match_as,
    cst.MatchMapping: Uses._match_mapping,
    cst.MatchStar: lambda self, node: self._bind(node.name, node),
    cst.Name: Uses._name,
    cst.NamedExpr: Uses._assign_value,
    cst.Nonlocal: Uses._nonlocal,
    cst.Param: Uses._param,
    cst.ParamSpec: lambda self, node: self._bind(node.name, node),
    cst.SetComp: Uses._comprehension,
    cst.TypeAlias: Uses._type_alias,
    cst.TypeVar: Uses._type_var,
    cst.TypeVarTuple: lambda self, node: self._bind(node.name, node),
}


def bound_by(statement: cst.Import | cst.ImportFrom) -> Iterator[str]:
    """Yield what an import binds: `import a.b` binds `a.b`, and `a`."""
    if isinstance(statement.names, cst.ImportStar):
        return
    for alias in statement.names:
        bound = alias.evaluated_alias or alias.evaluated_name
        while bound:
            yield bound
            bound = bound.rpartition(".")[0]
