"""Functions, classes and loops of a module, the bindings of each scope, and the calls of each region.

One walk over the tree; nothing is evaluated here.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import children, walk

Loop = ast.For | ast.AsyncFor | ast.While
MARK = re.compile(r"#\s*migrate:\s*step\b")
# Methods whose last argument becomes an element of the object.
PUTS = frozenset({"add", "append", "appendleft", "insert", "setdefault"})
CPU_MARK = re.compile(r"#\s*migrate:\s*cpu\b")


@dataclass(frozen=True, eq=False, slots=True)
class ValueBinding:
    """Binding of a name to a value.

    Args:
        kind: `scope`: a function or class; `import`: a module; `from`: a name of a module; `value`: an
            expression; `element`: an element of it; `item`: its element number `index`; `param`.
        scope: the function or class itself, or where `value` is evaluated.
        value: the expression.
        name: the module, the name in the module, or the parameter.
        level: leading dots of a relative import.
        index: of the element.
    """

    kind: Literal["scope", "import", "from", "value", "element", "item", "param"]
    scope: Scope
    value: ast.expr | None = None
    module: str = ""
    name: str = ""
    level: int = 0
    index: int = 0


@dataclass(eq=False)
class Region:
    """Calls that run together: the body of a loop or a `with`, or the rest of a function."""

    loop: Loop | None = None
    # The context expressions of the `with`.
    entered: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # lines of the comments that mark the loop
    # Lines of the comments that mark the loop for the CPU.
    on_cpu: list[int] = field(default_factory=list)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    imports: list[tuple[ValueBinding, Scope]] = field(default_factory=list)
    inner: list[Region] = field(default_factory=list)

    @property
    def marked(self) -> bool:
        """Whether a comment `# migrate: step` marks the loop."""
        return bool(self.marks)


@dataclass(eq=False)
class Scope:
    """Module, class or function, with the bindings of its names."""

    module: SourceModule
    parent: Scope | None
    name: str
    region: Region = field(default_factory=Region)
    bindings: dict[str, list[ValueBinding]] = field(default_factory=lambda: defaultdict(list))

    @property
    def roots(self) -> list[Region]:
        """Region that the scope runs itself: its body; for a module also the main guard."""
        return [self.region]

    @property
    def top(self) -> ModuleScope:
        """Scope of the enclosing module."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        assert isinstance(scope, ModuleScope)
        return scope


@dataclass(eq=False)
class ModuleScope(Scope):
    """Module: its body and, separately, the code that only runs when it is the script."""

    guard: Region = field(default_factory=Region)
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    stars: list[ValueBinding] = field(default_factory=list)
    compared: list[tuple[ast.Compare, Scope]] = field(default_factory=list)
    # Contexts that its `with` statements enter, by name.
    entered: set[ast.expr] = field(default_factory=set)
    # Names, attributes, items and calls tested for truth, and subjects of `match`.
    tested: list[tuple[ast.expr, Scope]] = field(default_factory=list)
    # Operands of operations, values added by `x += …`, indices of items and slices.
    computed: list[tuple[ast.expr, Scope]] = field(default_factory=list)
    # `args.device = value`, `options["device"] = value`: the receiver and the value, by the name.
    assigned: dict[str, list[tuple[ast.expr, ValueBinding]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # `meters[name] = value`, `meters.append(value)`: the container and the value, by its last name.
    put: dict[str, list[tuple[ast.expr, ValueBinding]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # Attributes that are read, by name.
    taken: dict[str, list[tuple[ast.Attribute, Scope]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    unused_marks: list[int] = field(default_factory=list)  # lines of marks without a loop

    @property
    def roots(self) -> list[Region]:
        """Regions of the module's body and main guard."""
        return [self.region, self.guard]

    @cached_property
    def names_called(self) -> dict[Function, frozenset[str]]:
        """Last parts of the names that a function, with its inner functions, calls."""
        called: dict[Scope, set[str]] = defaultdict(set)
        for function in self.functions:
            names: set[str] = set()
            waiting = [function.region]
            while waiting:
                region = waiting.pop()
                waiting += region.inner
                for call, _ in region.calls:
                    names.add(str(getattr(call.func, "attr", getattr(call.func, "id", ""))))
            around: Scope | None = function
            while around is not None:
                called[around] |= names
                around = around.parent
        return {function: frozenset(called[function]) for function in self.functions}

    @property
    def all_roots(self) -> list[Region]:
        """Root regions of the module and of all its functions."""
        return [*self.roots, *(function.region for function in self.functions)]


@dataclass(eq=False)
class Class(Scope):
    """Class: its bases and decorators, and the attributes that its methods set on `self`."""

    bases: list[ast.expr] = field(default_factory=list)
    decorators: list[ast.expr] = field(default_factory=list)
    attributes: dict[str, list[ValueBinding]] = field(default_factory=lambda: defaultdict(list))
    # Types that its body declares, in order. In a data class, these are the fields.
    declared: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """Names that its body declares with a type, in order: the fields of a data class."""
        return list(self.declared)


@dataclass(eq=False)
class Function(Scope):
    """Function, method or lambda."""

    line: int = 0
    owner: Class | None = None
    decorators: list[ast.expr] = field(default_factory=list)
    arguments: ast.arguments = field(
        default_factory=lambda: ast.arguments([], [], None, [], [], None, [])
    )
    returns: list[ast.expr] = field(default_factory=list)
    yields: list[ast.expr] = field(default_factory=list)
    delegates: list[ast.expr] = field(default_factory=list)  # the values of `yield from`
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # names declared global or nonlocal

    @property
    def parameters(self) -> list[str]:
        """Names of the positional parameters, `self` included."""
        return [a.arg for a in (*self.arguments.posonlyargs, *self.arguments.args)]

    @cached_property
    def definitions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Definition of the function in its file's tree; none for a lambda."""
        on_line = self.module.definitions.get(self.line, ())
        return [node for node in on_line if node.name == self.name]

    @property
    def all_parameters(self) -> list[str]:
        """Names of the parameters, `self` and those that are passed by keyword only included."""
        return [*self.parameters, *(argument.arg for argument in self.arguments.kwonlyargs)]

    @cached_property
    def optional(self) -> frozenset[str]:
        """Names of the positional parameters whose default is None."""
        defaults = self.arguments.defaults
        names = self.parameters[len(self.parameters) - len(defaults) :]
        return frozenset(
            name
            for name, default in zip(names, defaults, strict=True)
            if isinstance(default, ast.Constant) and default.value is None
        )

    @cached_property
    def declared(self) -> dict[str, tuple[ast.expr | None, list[ast.expr]]]:
        """Default and annotation of each parameter that has one."""
        arguments = self.arguments
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[str, ast.expr] = dict(
            zip([a.arg for a in positional][::-1], arguments.defaults[::-1], strict=False)
        )
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                defaults[argument.arg] = default
        annotations: dict[str, list[ast.expr]] = defaultdict(list)
        for argument in (*positional, *arguments.kwonlyargs):
            if argument.annotation is not None:
                annotations[argument.arg].append(argument.annotation)
        return {
            name: (defaults.get(name), annotations.get(name, []))
            for name in {**defaults, **annotations}
        }

    def is_a(self, *decorators: str) -> bool:
        """Whether one of `decorators`, by the last part of its name, decorates the function."""
        for decorator in self.decorators:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if last in decorators:
                return True
        return False

    @property
    def definition(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Statement that defines the function; None for a lambda."""
        return next(iter(self.definitions), None)

    @property
    def is_bound(self) -> bool:
        """Whether the call does not pass the first parameter: a method that is not static."""
        return self.owner is not None and not self.is_a("staticmethod")


def scopes_of(module: SourceModule) -> ModuleScope:
    """Return the scope of `module`, with every scope and loop inside it."""
    return _ScopeWalk(module).top


def _computed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names and results of calls that `node` computes with, or uses as an index."""
    match node:
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
            return  # a text is put together: "cuda:%d" % rank
        case ast.BinOp(left=left, right=right):
            parts: list[ast.expr | None] = [left, right]
        case ast.AugAssign(value=value):
            parts = [value]
        case ast.Subscript(slice=ast.Tuple(elts=positions)):
            parts = [*positions]
        case ast.Subscript(slice=position):
            parts = [position]
        case ast.Slice(lower=lower, upper=upper):
            parts = [lower, upper]
        case _:
            return
    asked = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
    yield from (part for part in parts if isinstance(part, asked))


def _tested(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that `node` tests for truth, without operators, and the subject of a `match`."""
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            parts = [node.test]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=parts):
            pass
        case ast.Call(func=ast.Name(id="bool"), args=[part]):
            parts = [part]
        case ast.Match(subject=subject):
            parts = [subject]
        case ast.comprehension(ifs=parts):
            pass
        case _:
            return
    yield from (
        part
        for part in parts
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    )


# Nodes without nodes below them, which bind, test and call nothing: more than half of all.
_LEAVES = frozenset(
    {ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue}
    | {
        kind
        for of in (ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
        for kind in of.__subclasses__()
    }
)


class _ScopeWalk:
    def __init__(self, module: SourceModule) -> None:
        self.top = ModuleScope(module, None, module.path.stem)
        self._marks, self._cpu_marks = _marks(module, MARK), _marks(module, CPU_MARK)
        self._loop_lines: set[int] = set()
        self._waiting: list[tuple[ast.AST, Scope, Region]] = []
        for statement in module.tree.body:
            guarded = isinstance(statement, ast.If) and is_main_guard(statement.test)
            self._waiting.append(
                (statement, self.top, self.top.guard if guarded else self.top.region)
            )
        while self._waiting:
            self._visit(*self._waiting.pop())
        marks = self._marks | self._cpu_marks
        at_loops = {line for loop in self._loop_lines for line in self._marks_at(loop, marks)}
        self.top.unused_marks = sorted(marks - at_loops)

    def _visit(self, node: ast.AST, scope: Scope, region: Region) -> None:
        self.top.tested.extend((part, scope) for part in _tested(node))
        self.top.computed.extend((part, scope) for part in _computed(node))
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope, region)
                return
            case ast.Lambda():
                self._lambda(node, scope)
                return
            case ast.ClassDef():
                self._class(node, scope, region)
                return
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, scope, region)
                return
            case ast.Call():
                region.calls.append((node, scope))
                self._put_by_method(node, scope)
            case ast.Attribute(ctx=ast.Load()):
                self.top.taken[node.attr].append((node, scope))
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value, scope)
            case ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
                self._bind(node.target, value, scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, item.context_expr, scope)
                        self.top.entered.add(item.context_expr)
                self._with(node, scope, region)
                return
            case ast.Compare():
                self.top.compared.append((node, scope))
            case ast.comprehension():
                self._bind_element(node.target, node.iter, scope)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope, region)
            case ast.Return(value=ast.expr() as value) if isinstance(scope, Function):
                scope.returns.append(value)
            case ast.Yield(value=ast.expr() as value) if isinstance(scope, Function):
                scope.yields.append(value)
            case ast.YieldFrom(value=value) if isinstance(scope, Function):
                scope.delegates.append(value)
            case ast.Global() | ast.Nonlocal() if isinstance(scope, Function):
                outer = self.top if isinstance(node, ast.Global) else scope.parent
                scope.elsewhere.update(dict.fromkeys(node.names, outer or self.top))
        self._waiting += [(c, scope, region) for c in children(node) if type(c) not in _LEAVES]

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, region: Region
    ) -> None:
        function = self._make_function(node.name, node.lineno, node.args, scope)
        function.decorators = node.decorator_list
        self._home(scope, node.name)[node.name].append(ValueBinding("scope", function))
        defaults = (*node.args.defaults, *node.args.kw_defaults)
        run = (*node.decorator_list, *(default for default in defaults if default is not None))
        self._waiting += [(part, scope, region) for part in run]
        # Globals first: they decide where the other statements bind.
        for statement in reversed(node.body):
            self._waiting.append((statement, function, function.region))
        for statement in node.body:
            if isinstance(statement, ast.Global | ast.Nonlocal):
                self._visit(statement, function, function.region)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> None:
        function = self._make_function("<lambda>", node.lineno, node.args, scope)
        function.owner = None
        function.returns.append(node.body)
        scope.bindings[lambda_name(node)].append(ValueBinding("scope", function))
        self._waiting.append((node.body, function, function.region))

    def _make_function(self, name: str, line: int, args: ast.arguments, scope: Scope) -> Function:
        function = Function(self.top.module, scope, name, line=line, arguments=args)
        function.owner = scope if isinstance(scope, Class) else None
        gathering = [argument for argument in (args.vararg, args.kwarg) if argument is not None]
        for argument in (*args.posonlyargs, *args.args, *args.kwonlyargs, *gathering):
            function.bindings[argument.arg].append(
                ValueBinding("param", function, name=argument.arg)
            )
        self.top.functions.append(function)
        return function

    def _class(self, node: ast.ClassDef, scope: Scope, region: Region) -> None:
        class_ = Class(
            self.top.module, scope, node.name, bases=node.bases, decorators=node.decorator_list
        )
        class_.declared = {
            statement.target.id: statement.annotation
            for statement in node.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }
        self.top.classes.append(class_)
        self._home(scope, node.name)[node.name].append(ValueBinding("scope", class_))
        self._waiting += [(child, scope, region) for child in (*node.bases, *node.decorator_list)]
        self._waiting += [(statement, class_, region) for statement in node.body]

    def _loop(self, node: Loop, scope: Scope, region: Region) -> None:
        self._loop_lines.add(node.lineno)
        inner = Region(
            node,
            marks=self._marks_at(node.lineno, self._marks),
            on_cpu=self._marks_at(node.lineno, self._cpu_marks),
        )
        region.inner.append(inner)
        if isinstance(node, ast.While):
            # `while` runs its test in every turn.
            self._waiting.append((node.test, scope, inner))
        else:
            self._bind_element(node.target, node.iter, scope)
            self._waiting.append((node.iter, scope, region))
        self._waiting += [(statement, scope, inner) for statement in node.body]
        self._waiting += [(statement, scope, region) for statement in node.orelse]

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope, region: Region) -> None:
        entered = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
        inner = Region(entered=[(call, scope) for call in entered])
        region.inner.append(inner)
        self._waiting += [(item, scope, region) for item in node.items]
        self._waiting += [(statement, scope, inner) for statement in node.body]

    def _marks_at(self, line: int, marks: Set[int]) -> list[int]:
        """Return the lines of `marks` on the loop at `line`, or on the comments above it."""
        marked = [line] if line in marks else []
        lines = self.top.module.lines
        above = line - 1
        while above >= 1 and lines[above - 1].lstrip().startswith("#"):
            if above in marks:
                marked.append(above)
            above -= 1
        return marked

    def _bind(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._home(scope, target.id)[target.id].append(ValueBinding("value", scope, value))
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, ValueBinding("value", scope, value), scope)
        elif isinstance(target, ast.Subscript):
            binding = ValueBinding("value", scope, value)
            if (key := key_of(target.slice)) is not None:
                self.top.assigned[key].append((target.value, binding))
            self._put(target.value, binding)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, part in enumerate(target.elts):
                binding = ValueBinding("item", scope, value, index=index)
                if isinstance(part, ast.Name):
                    self._home(scope, part.id)[part.id].append(binding)
                elif isinstance(part, ast.Attribute):
                    self._bind_attribute(part, binding, scope)
                elif isinstance(part, ast.Subscript) and (key := key_of(part.slice)) is not None:
                    self.top.assigned[key].append((part.value, binding))

    def _put_by_method(self, call: ast.Call, scope: Scope) -> None:
        """Record values put into a container: `meters.append(value)`, `meters.setdefault(name, value)`."""
        match call.func:
            case ast.Attribute(value=container, attr=attr) if attr in PUTS and call.args:
                self._put(container, ValueBinding("value", scope, call.args[-1]))

    def _put(self, container: ast.expr, binding: ValueBinding) -> None:
        inner = container
        while isinstance(inner, ast.Subscript):
            inner = inner.value
        name = getattr(inner, "attr", getattr(inner, "id", None))
        if name is not None:
            self.top.put[name].append((container, binding))

    def _bind_element(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        parts = _zipped(target, value)
        if parts:
            for part, of in parts:
                self._bind_element(part, of, scope)
            return
        for name in walk(target):
            if isinstance(name, ast.Name):
                self._home(scope, name.id)[name.id].append(ValueBinding("element", scope, value))

    def _bind_attribute(self, target: ast.Attribute, binding: ValueBinding, scope: Scope) -> None:
        """Record `self.NAME = value` in the class, also from a function inside a method."""
        around: Scope | None = scope
        while around is not None:
            if isinstance(around, Function) and around.owner is not None:
                receiver = target.value.id if isinstance(target.value, ast.Name) else ""
                if around.is_bound and around.parameters[:1] == [receiver]:
                    around.owner.attributes[target.attr].append(binding)
                    return
                break
            around = around.parent
        self.top.assigned[target.attr].append((target.value, binding))

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope, region: Region) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                binding = ValueBinding("import", scope, module=dotted)
                region.imports.append((ValueBinding("import", scope, module=alias.name), scope))
            else:
                module, level = node.module or "", node.level
                binding = ValueBinding("from", scope, module=module, name=alias.name, level=level)
                region.imports.append((binding, scope))
            if alias.name == "*":
                self.top.stars.append(binding)
            else:
                name = alias.asname or alias.name.partition(".")[0]
                self._home(scope, name)[name].append(binding)

    @staticmethod
    def _home(scope: Scope, name: str) -> dict[str, list[ValueBinding]]:
        """Return the bindings that an assignment to `name` in `scope` adds to."""
        elsewhere = scope.elsewhere.get(name) if isinstance(scope, Function) else None
        return (elsewhere or scope).bindings


def lambda_name(node: ast.Lambda) -> str:
    """Return the name under which a scope keeps the lambda `node`; it is no identifier."""
    return f"<lambda {node.lineno}:{node.col_offset}>"


def key_of(key: ast.expr) -> str | None:
    """Return the key of an item: a string, or "[NAME]" for a constant; otherwise None."""
    match key:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.isupper():
            return f"[{name}]"
    return None


def _marks(module: SourceModule, mark: re.Pattern[str]) -> set[int]:
    if b"migrate:" not in module.data:
        return set()
    return {number for number, line in enumerate(module.lines, 1) if mark.search(line)}


def is_main_guard(test: ast.expr) -> bool:
    """Whether `test` asks whether the module is the script: `__name__ == "__main__"`."""
    names = {node.id for node in walk(test) if isinstance(node, ast.Name)}
    return "__name__" in names and "__main__" in ast.unparse(test)


def _zipped(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the names of `for a, b in zip(x, y)`, each with its iterable."""
    match target, value:
        case ast.Tuple(elts=names), ast.Call(func=ast.Name(id="zip"), args=args):
            starred = any(isinstance(argument, ast.Starred) for argument in (*names, *args))
            if len(names) == len(args) and not starred:
                return list(zip(names, args, strict=True))
    return []
