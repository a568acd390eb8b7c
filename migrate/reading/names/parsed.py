"""Syntax tree of a script with resolved names: nodes, positions, parents, scopes, meanings of names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar, overload

import libcst as cst
from libcst.metadata import CodePosition

from migrate.model.facts import Definition, ModuleCalls, calls_of_script
from migrate.reading.names.imported_names import ImportedNames
from migrate.reading.names.scopes import NameBinding, Uses
from migrate.syntax.source import Source, require_this_python
from migrate.syntax.tree import TARGETED, assigned_by, code, compared_with_type, dotted, nodes_of
from migrate.syntax.walk import kinds_of, order

Node = TypeVar("Node", bound=cst.CSTNode)
Other = TypeVar("Other", bound=cst.CSTNode)

STATEMENTS = kinds_of(cst.BaseStatement)
# Calls that ask for the attributes or the type of a class, or set one.
OF_ATTRIBUTES = frozenset({"delattr", "getattr", "hasattr", "isinstance", "issubclass", "setattr"})


class Parsed:
    """Script with the facts in its text; `Script` adds what follows from them.

    Args:
        source: the script as read.
        calls: what its calls run, if its project has been analyzed. Otherwise the local modules that it
            imports are read on demand.
    """

    def __init__(self, source: Source, calls: ModuleCalls | None = None) -> None:
        self.source = source
        self._calls = calls
        self.module = source.module
        self._of_kinds: dict[tuple[type[cst.CSTNode], ...], list[cst.CSTNode]] = {}

    def forget(self) -> None:
        """Release the tree and all cached facts; nothing can be asked afterwards.

        The cached facts refer to the script that holds them. Such a cycle keeps the tree alive until Python
        collects garbage; after the release the memory is free at once.
        """
        vars(self).clear()

    @cached_property
    def calls(self) -> ModuleCalls:
        """Functions that the calls of the script run, also in other files of its project.

        Raises:
            NotPythonError: the script is for a newer Python than this one, so its calls cannot be followed.
        """
        if self._calls is None:
            self._calls = calls_of_script(self.source.path, self.source.data)
        if self._calls.unread:
            require_this_python(self.source.data, self.source.path)
        return self._calls

    def qualified_name(self, node: cst.CSTNode | None) -> str | None:
        """Return the imported dotted name that `node` stands for, with aliases resolved.

        `dist.barrier` is `torch.distributed.barrier` after `import torch.distributed as dist`. It is None if
        `dist` is a local variable, and for a method of a result. A name of a project module is what that
        module imports under it: `comm.dist` is `torch.distributed`.
        """
        return self._names.get(id(node))

    def named(self, node: cst.CSTNode | None) -> str | None:
        """Return the imported dotted name of `node`; a leading dot marks a module of the project."""
        name = self._names.get(id(node))
        return self._apart.get(name) if name is not None else None

    @cached_property
    def _apart(self) -> dict[str, str]:
        """Imported names; those of project modules have a leading dot."""
        is_local = self.calls.is_local
        return {name: f".{name}" if is_local(name) else name for name in {*self._names.values()}}

    @cached_property
    def _names(self) -> dict[int, str]:
        """Imported name of each expression that stands for one, by the id of the expression."""
        imports = self.all_of(cst.Import, cst.ImportFrom)
        attempts = self.all_of(cst.Try, cst.If)
        loaded = {id(name): (name.value, module) for name, module in self.loaded_names}
        names = ImportedNames(self.module, self._uses, imports, self._stars, attempts, loaded)
        outside = self.calls.outside if names.roots else str
        imported: dict[int, str] = {}
        for call, name in self._loaded:  # `import_torch().save`
            below: cst.CSTNode = call
            while isinstance(part := self.parent(below), cst.Attribute) and part.value is below:
                name = f"{name}.{part.attr.value}"
                imported[id(part)] = name
                below = part
        for root in names.roots:
            node: cst.CSTNode | None = root
            while node is not None:
                known = names.of(node)
                if known is not None:
                    imported[id(node)] = outside(known)
                above = self.parent(node)
                in_full = isinstance(above, cst.Attribute) and above.value is node
                node = above if in_full else None
        return imported

    @cached_property
    def _loaded(self) -> list[tuple[cst.Call, str]]:
        """Calls that return a module from outside of the project, with its name."""
        modules = self.calls.loaded_modules
        if not modules:
            return []
        places = ((call, modules.get(self.place(call))) for call in self.all_of(cst.Call))
        return [(call, name) for call, name in places if name is not None]

    @cached_property
    def loaded_names(self) -> list[tuple[cst.Name, str]]:
        """Names that are assigned such a module: `torch = import_torch()`."""
        return [
            (target.target, name)
            for call, name in self._loaded
            if isinstance(statement := self.parent(call), cst.Assign)
            for target in statement.targets
            if isinstance(target.target, cst.Name)
        ]

    @cached_property
    def spelled(self) -> str:
        """Text of the script, and the names re-exported to it, as project modules spell them."""
        return "\n".join((self.source.text, *self.calls.reexported.values()))

    def run_by(self, call: cst.Call) -> tuple[Definition, ...]:
        """Return the functions and methods that `call` runs, also those of other files of the project.

        A call of a class runs `__init__`; a call of an object runs `forward` or `__call__`.
        """
        return self.calls.definitions.get(self.place(call), ())

    def run_later(self, call: cst.Call) -> tuple[Definition, ...]:
        """Return the functions, of any file, that the backward pass of a step runs for `call`."""
        later = self.calls.later
        return later.get(self.place(call), ()) if later else ()

    def may_run(self, call: cst.Call) -> tuple[Definition, ...]:
        """Return the methods that `call` may run if it calls an object whose class is chosen by name."""
        may_run = self.calls.may_run
        return may_run.get(self.place(call), ()) if may_run else ()

    def called(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions and methods of this script that `call` runs."""
        ran = self.run_by(call)
        return self.here(ran) if ran else []

    def properties(self, node: cst.Attribute) -> list[cst.FunctionDef]:
        """Return the properties of this script that reading the attribute `node` runs."""
        properties = self.calls.properties
        return self.here(properties.get(self.place(node), ())) if properties else []

    def declared_tensor(self, node: cst.Attribute) -> bool | None:
        """Return whether the class of an object declares its attribute `node` as a mask: `mask: BoolTensor`.

        None if it does not declare it to be a tensor.
        """
        declared = self.calls.declared_tensors
        return declared.get(self.place(node)) if declared else None

    @cached_property
    def callers(self) -> Mapping[int, list[cst.Call]]:
        """The calls of this script that run a function or method of it, by the id of the function."""
        calls: dict[int, list[cst.Call]] = defaultdict(list)
        for call in self.all_of(cst.Call):
            for function in self.called(call):
                calls[id(function)].append(call)
        return dict(calls)

    def here(self, definitions: Iterable[Definition]) -> list[cst.FunctionDef]:
        """Return the functions of this script among some functions of the project."""
        here = self.file
        functions = (
            self.function_at(definition.line)
            for definition in definitions
            if definition.path == here
        )
        return [function for function in functions if function is not None]

    @cached_property
    def file(self) -> Path:
        """Path of the file with links resolved, as other files refer to it."""
        return self.source.path.resolve()

    def function_at(self, line: int) -> cst.FunctionDef | None:
        """Return the function of the script whose `def` stands in `line`."""
        return self._functions.get(line)

    @cached_property
    def _functions(self) -> dict[int, cst.FunctionDef]:
        return {self.position(node.name).line: node for node in self.all_of(cst.FunctionDef)}

    def position(self, node: cst.CSTNode) -> CodePosition:
        """Return the line (from 1) and column (from 0) where `node` starts, comments above left out."""
        return self.source.positions.start(node)

    def end(self, node: cst.CSTNode) -> CodePosition:
        """Return the line (from 1) and column (from 0) where `node` ends."""
        return self.source.positions.end(node)

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the end of `node`, by which `calls` identifies it."""
        end = self.end(node)
        return end.line, end.column

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """Return the node directly above `node`; None above the module, and for None."""
        return None if node is None else self._tree[1].get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes above `node`, the nearest first."""
        parent_of = self._tree[1].get
        above = parent_of(id(node))
        while above is not None:
            yield above
            above = parent_of(id(above))

    def function_around(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost function whose body holds `node`, or None at module level."""
        parent_of = self._tree[1].get
        above = parent_of(id(node))
        while above is not None and type(above) is not cst.FunctionDef:
            above = parent_of(id(above))
        return above

    def loop_around(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """Return the innermost loop of its function that holds `node`, or None."""
        for above in self.ancestors(node):
            if type(above) is cst.FunctionDef or type(above) is cst.Lambda:
                return None
            if type(above) is cst.For or type(above) is cst.While:
                return above
        return None

    @cached_property
    def _uses(self) -> Uses:
        """Each name of the script, with the scope in which it stands."""
        return Uses(self.module, self._stars.keys())

    @cached_property
    def _stars(self) -> Mapping[str, str]:
        """Meanings of the names that `from module import *` brings."""
        imports = self.all_of(cst.ImportFrom)
        has_stars = any(isinstance(statement.names, cst.ImportStar) for statement in imports)
        return self.calls.stars if has_stars else {}

    def bindings(self, name: cst.CSTNode) -> list[NameBinding]:
        """Return every location that binds the variable of `name`, in the order of the source.

        Scopes follow Python: methods do not see the names of their class, comprehensions and lambdas have
        names of their own, `global` and `nonlocal` bind elsewhere.
        """
        use = self._uses.of.get(id(name)) or self._uses.declared.get(id(name))
        return use.scope.find(use.name.value, use.scope) if use is not None else []

    def bound_to(
        self, name: cst.Name
    ) -> tuple[cst.CSTNode | None, cst.Param | cst.BaseExpression | None]:
        """Return where `name` is bound and to which value, if that is plain to see.

        Returns:
            The first value is the function, lambda, class, comprehension or module that binds the variable.
            The second is its only value: a parameter that is never assigned, or the value of the only
            assignment `name = value`. The value is None if the name is bound otherwise or more than once.
        """
        bindings = self.bindings(name)
        if not bindings:
            return None, None
        return bindings[0].scope.node, self.value_of(bindings[0]) if len(bindings) == 1 else None

    def bound_values(self, name: cst.Name) -> list[cst.Param | cst.BaseExpression | None]:
        """Return all values that the scope of `name` binds it to; None for each that is not plain to see."""
        bindings = self.bindings(name)
        if not bindings:
            return []
        if id(bindings) not in self._values_bound:  # the scope's own list, the same at each use
            self._values_bound[id(bindings)] = [self.value_of(binding) for binding in bindings]
        return self._values_bound[id(bindings)]

    @cached_property
    def _values_bound(self) -> dict[int, list[cst.Param | cst.BaseExpression | None]]:
        """Values of each variable that was asked for, by the id of its bindings."""
        return {}

    def value_of(self, binding: NameBinding) -> cst.Param | cst.BaseExpression | None:
        """Return the parameter, or the value of `target = value` or `target: int = value`."""
        if type(binding.node) is cst.Param:
            return binding.node
        above = self.parent(binding.node)
        assign = self.parent(above)
        if type(above) is cst.Element or (type(assign) is cst.Assign and len(assign.targets) != 1):
            return None
        return self._value(binding.node)

    @cached_property
    def targets(self) -> Sequence[cst.BaseExpression]:
        """Targets of the script's assignments, tuples unpacked: names, attributes, subscripts."""
        return [target for node in self.all_of(*TARGETED) for target in assigned_by(node)]

    @cached_property
    def attributes(self) -> Mapping[str, list[tuple[cst.Attribute, cst.BaseExpression | None]]]:
        """Assignments of the script to attributes, by attribute name.

        Each has the attribute node, and its value if that is plain to see.
        """
        attributes: dict[str, list[tuple[cst.Attribute, cst.BaseExpression | None]]] = defaultdict(
            list
        )
        for target in self.targets:
            if isinstance(target, cst.Attribute):
                attributes[target.attr.value].append((target, self._value(target)))
        return dict(attributes)

    def _value(self, target: cst.CSTNode) -> cst.BaseExpression | None:
        """Return the value assigned to `target` or to an element of it; None if not plain to see."""
        above = self.parent(target)
        if type(above) is cst.AnnAssign:
            return above.value
        assign = self.parent(above)
        if type(above) is cst.AssignTarget and type(assign) is cst.Assign:
            return assign.value
        if type(above) is cst.Element and isinstance(assign, cst.Tuple | cst.List):
            whole = self._value(assign)
            if isinstance(whole, cst.Tuple | cst.List) and len(whole.elements) == len(
                assign.elements
            ):
                return whole.elements[list(assign.elements).index(above)].value
        return None

    def asks_for_type(self, node: cst.CSTNode) -> bool:
        """Whether a type test mentions `node`: `isinstance(x, (A, B))`, `type(x) in (A, B)`."""
        above = self.parent(node)
        if isinstance(above, cst.Element):
            above = self.parent(self.parent(above))
        if compared_with_type(above, self.parent(above)):
            return True
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        return isinstance(call, cst.Call) and code(call.func) in ("isinstance", "issubclass")

    def sets_on_class(self, node: cst.CSTNode) -> bool:
        """Whether the class `node` only has attributes set: `for a in (A, B): setattr(a, …)`.

        Such a use creates nothing, so no layer follows from it.
        """
        above = self.parent(node)
        if isinstance(above, cst.Arg):
            return self._is_of_attributes(self.parent(above))
        loop = self.parent(self.parent(above)) if isinstance(above, cst.Element) else None
        if not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Name):
            return False
        named = loop.target.value
        args = [self.parent(name) for name in nodes_of(loop.body, cst.Name) if name.value == named]
        return bool(args) and all(
            isinstance(arg, cst.Arg) and self._is_of_attributes(self.parent(arg)) for arg in args
        )

    def _is_of_attributes(self, call: cst.CSTNode | None) -> bool:
        return isinstance(call, cst.Call) and code(call.func) in OF_ATTRIBUTES

    def is_only_tested(self, node: cst.CSTNode) -> bool:
        """Whether the script only tests if `node`, a name of torch.distributed, exists: `if dist:`.

        A name of another module may be a value, such as `torch.version.cuda`.
        """
        is_of_module = (self.qualified_name(node) or "").startswith("torch.distributed")
        return is_of_module and self._is_tested(node)

    def _is_tested(self, node: cst.CSTNode) -> bool:
        """Whether `node` is compared with None, or tested for truth."""
        above = self.parent(node)
        match above:
            case cst.ComparisonTarget():
                whole = self.parent(above)
                return isinstance(whole, cst.Comparison) and code(whole.left) == "None"
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(comparator=other)]):
                return left is node and code(other) == "None"
            case cst.If() | cst.IfExp() | cst.While() | cst.Assert():
                return above.test is node
            case cst.UnaryOperation(operator=cst.Not()):
                return True
            case cst.BooleanOperation(left=left, operator=operator):
                # `x or dist` returns the module itself, unless the whole expression is only tested.
                is_test = left is node and isinstance(operator, cst.And)
                return is_test or self._is_tested(above)
            case cst.Arg():
                call = self.parent(above)
                return isinstance(call, cst.Call) and code(call.func) == "bool"
        return False

    def class_around(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class whose body holds `node`, or None."""
        parent_of = self._tree[1].get
        above = parent_of(id(node))
        while above is not None and type(above) is not cst.ClassDef:
            above = parent_of(id(above))
        return above

    def names_any(self, items: Iterable[cst.BaseExpression], known: Collection[str]) -> bool:
        """Whether a decorator, or what a `with` enters, is one of the names `known`, or a call of it."""
        return any(
            self.qualified_name(item.func if isinstance(item, cst.Call) else item) in known
            for item in items
        )

    def within_statement(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes above `node` up to the innermost statement, which is the last."""
        for above in self.ancestors(node):
            yield above
            if type(above) in STATEMENTS:
                return

    def statement_around(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the statement line or compound statement that contains `node`."""
        parent_of = self._tree[1].get
        above: cst.CSTNode | None = node
        while above is not None and type(above) not in STATEMENTS:
            above = parent_of(id(above))
        return node if above is None else above

    def statement_above(self, statement: cst.CSTNode) -> cst.CSTNode | None:
        """Return the statement right above `statement` in its block, or None."""
        block = self._tree[1].get(id(statement))
        if not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        at = next(index for index, other in enumerate(block.body) if other is statement)
        return block.body[at - 1] if at else None

    @cached_property
    def nodes(self) -> Sequence[cst.CSTNode]:
        """Every node of the script, in the order of the source."""
        return self._tree[0]

    def _number(self, node: cst.CSTNode) -> int:
        """Return the index of `node` among all nodes, in the order of the source."""
        return self._numbers[id(node)]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(node): number for number, node in enumerate(self.nodes)}

    @cached_property
    def _tree(self) -> tuple[list[cst.CSTNode], dict[int, cst.CSTNode]]:
        return order(self.module)

    @overload
    def all_of(self, kind: type[Node], /) -> Sequence[Node]: ...

    @overload
    def all_of(self, kind: type[Node], other: type[Other], /) -> Sequence[Node | Other]: ...

    @overload
    def all_of(self, *kinds: type[cst.CSTNode]) -> Sequence[cst.CSTNode]: ...

    def all_of(self, *kinds: type[cst.CSTNode]) -> Sequence[cst.CSTNode]:
        """Return the nodes of the types `kinds`, in the order of the source.

        Args:
            kinds: types that have no subtypes: `cst.Call`, not `cst.BaseExpression`.
        """
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], ())
        if kinds not in self._of_kinds:
            nodes = (node for kind in kinds for node in self._by_kind.get(kind, ()))
            self._of_kinds[kinds] = sorted(nodes, key=self._number)
        return self._of_kinds[kinds]

    @cached_property
    def _by_kind(self) -> dict[type[cst.CSTNode], list[cst.CSTNode]]:
        nodes: dict[type[cst.CSTNode], list[cst.CSTNode]] = defaultdict(list)
        for node in self.nodes:
            nodes[type(node)].append(node)
        return dict(nodes)

    def below(self, root: cst.CSTNode, kind: type[Node]) -> Sequence[Node]:
        """Return the nodes of a type at and below `root`, in the order of the source.

        In a long function this is much faster than `nodes_of`, which visits every node.

        Args:
            root: a node, also one that is not in the script's tree.
            kind: a type that has no subtypes: `cst.Call`, not `cst.BaseExpression`.
        """
        first = self._numbers.get(id(root))
        if first is None:
            return list(nodes_of(root, kind))
        numbers = self._numbers_of(kind)
        start = bisect_left(numbers, first)
        stop = bisect_right(numbers, self._last_below[first], start)
        return self.all_of(kind)[start:stop]

    def _numbers_of(self, kind: type[cst.CSTNode]) -> list[int]:
        """Return the indices of the nodes of a type among all nodes."""
        if kind not in self._kind_numbers:
            self._kind_numbers[kind] = [self._number(node) for node in self.all_of(kind)]
        return self._kind_numbers[kind]

    @cached_property
    def _kind_numbers(self) -> dict[type[cst.CSTNode], list[int]]:
        return {}

    @cached_property
    def _last_below(self) -> list[int]:
        """Index of the last node at and below each node, by its index."""
        nodes, above = self._tree
        last = list(range(len(nodes)))
        for number in range(len(nodes) - 1, 0, -1):  # all nodes below come first
            parent = self._numbers[id(above[id(nodes[number])])]
            last[parent] = max(last[parent], last[number])
        return last

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """The functions defined at module level, by name; a name defined twice is left out."""
        defined = [s for s in self.module.body if isinstance(s, cst.FunctionDef)]
        times = Counter(function.name.value for function in defined)
        return {f.name.value: f for f in defined if times[f.name.value] == 1}

    def references(self, name: str) -> list[cst.Name]:
        """Return every mention of `name` as a name, wherever it is bound."""
        return self._mentions.get(name, [])

    @cached_property
    def _mentions(self) -> dict[str, list[cst.Name]]:
        mentions: dict[str, list[cst.Name]] = defaultdict(list)
        for name in self.all_of(cst.Name):
            mentions[name.value].append(name)
        return dict(mentions)

    def mentions(self, node: cst.Name | cst.Attribute) -> list[cst.Name | cst.Attribute]:
        """Return every mention of the name or attribute `node` in the script, whatever it is bound to."""
        return self._by_text.get(dotted(node), [])

    @cached_property
    def _by_text(self) -> dict[str, list[cst.Name | cst.Attribute]]:
        nodes: dict[str, list[cst.Name | cst.Attribute]] = defaultdict(list)
        for node in self.all_of(cst.Name, cst.Attribute):
            if type(node) is cst.Name:
                above = self.parent(node)
                if type(above) is cst.Attribute and above.attr is node:
                    continue  # the last part of `torch.cuda.stream` is no mention of `stream`
                if type(above) is cst.Arg and above.keyword is node:
                    continue
                nodes[node.value].append(node)
            elif isinstance(node, cst.Attribute) and type(node.value) is cst.Name:
                nodes[f"{node.value.value}.{node.attr.value}"].append(node)
        return nodes

    @cached_property
    def uses_rpc(self) -> bool:
        """Whether the script is built on torch.distributed.rpc, whose processes have different roles."""
        return any(
            (self.qualified_name(node) or "").startswith("torch.distributed.rpc.")
            for node in self.all_of(cst.Attribute, cst.Name)
        )

    @cached_property
    def quote(self) -> str:
        """The quotation mark that most string literals of the script use."""
        marks = Counter(
            string.quote for string in self.all_of(cst.SimpleString) if len(string.quote) == 1
        )
        return "'" if marks["'"] > marks['"'] else '"'

    def string(self, value: str, like: cst.CSTNode | None = None) -> cst.SimpleString:
        """Return a string literal in the script's own quotation marks, or in those of the literal `like`."""
        quote = self.quote
        if isinstance(like, cst.SimpleString) and len(like.quote) == 1:
            quote = like.quote
        return cst.SimpleString(f"{quote}{value}{quote}")
