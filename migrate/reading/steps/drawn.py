"""Random numbers that Python draws on the host: `random.random()`, `np.random.rand()`, `torch.rand(1)`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.drawing import (
    CLOCKS,
    DISTRIBUTION_DRAWS,
    EMPTIES,
    GENERATORS,
    HOST_DRAWS,
    MAKERS,
    NUMPY_OTHERS,
    OF_ONE_PROCESS,
)
from migrate.draws import FILLS, LIKES
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.names.entries import entries_of
from migrate.reading.values.devices import is_accelerator
from migrate.syntax.tree import code, keyword, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Functions and methods whose result is random if an argument or the receiver is.
PLAIN = frozenset(
    {"int", "float", "bool", "round", "abs", "min", "max", "any", "all", "sum", "len", "math", "np"}
)
READS = frozenset(
    {"item", "tolist", "any", "all", "numpy", "astype", "round", "floor", "int", "cpu"}
)
DEEPEST = 8
# Functions that yield the elements of a list, in any order.
OF_LISTS = frozenset({"enumerate", "list", "reversed", "set", "sorted", "tuple", "tqdm", "zip"})
TRANSFORMS = ("torchvision.transforms.", "torchaudio.transforms.", "kornia.augmentation.")
# Functions that return elements of their argument: data, unless they are numbers of a `range`.
OF_DATA = frozenset({"choice", "choices", "sample", "permutation", "shuffle"})


# Calls that return a string, whose hash differs in every process.
GIVE_STRINGS = frozenset({"str", "repr", "format", "encode", "join", "basename"})


@lru_cache(maxsize=4)
def drawn_of(facts: Facts, *, clocks: bool = True) -> Drawn:
    """Return the numbers of a script that its host draws at random.

    Args:
        facts: the script.
        clocks: whether the time counts, since replicas read it at different moments.
    """
    return Drawn(facts, clocks)


class Drawn:
    """Search for expressions whose number the host draws at random.

    A draw of torch counts if its tensor is on the CPU. A tensor that is moved to the device is no host number
    any more.

    Args:
        facts: the script.
        clocks: whether the time counts.
    """

    def __init__(self, facts: Facts, clocks: bool = True) -> None:
        self._facts = facts
        self._others = OF_ONE_PROCESS | CLOCKS if clocks else OF_ONE_PROCESS
        self._has_default = "torch.set_default_device" in facts.called
        self._known: dict[int, bool] = {}
        # Within one search: the depth at which a node was followed in vain, so that many ways to it cost one.
        self._vain: dict[int, int] = {}

    def is_drawn(self, node: cst.BaseExpression | None, depth: int = 0) -> bool:
        """Whether `node` is a random host number, or computed from one."""
        if node is None or depth > DEEPEST:
            return False
        if id(node) in self._known:
            return self._known[id(node)]
        if self._vain.get(id(node), depth + 1) <= depth:
            return False
        self._known[id(node)] = False  # it is computed from itself
        is_made = self._is_made_by_draw(node, depth)
        if depth == 0 or is_made:
            self._known[id(node)] = is_made
        else:
            del self._known[id(node)]  # not followed to the end
            self._vain[id(node)] = depth
        if depth == 0 or is_made:
            self._vain.clear()  # a value computed from this one may be drawn now
        return is_made

    def _is_made_by_draw(self, node: cst.BaseExpression, depth: int) -> bool:
        match node:
            case cst.Name():
                return self._is_name(node, depth + 1)
            case cst.Call():
                return self._is_call(node, depth + 1)
            case cst.UnaryOperation():
                return self.is_drawn(node.expression, depth)
            case cst.ListComp(elt=value, for_in=loop):
                tests = (test.test for test in loop.ifs)
                return any(self.is_drawn(part, depth) for part in (value, loop.iter, *tests))
            case cst.BinaryOperation() | cst.BooleanOperation():
                return self.is_drawn(node.left, depth) or self.is_drawn(node.right, depth)
            case cst.Comparison():
                if any(isinstance(part.operator, cst.Is | cst.IsNot) for part in node.comparisons):
                    return False
                sides = (node.left, *(target.comparator for target in node.comparisons))
                return any(self.is_drawn(side, depth) for side in sides)
            case cst.IfExp():
                parts = (node.test, node.body, node.orelse)
                return any(self.is_drawn(part, depth) for part in parts)
            case cst.Subscript():
                return self._is_subscript(node, depth)
            case cst.Attribute():
                return self._is_attribute(node, depth + 1)
        return False

    def _is_attribute(self, node: cst.Attribute, depth: int) -> bool:
        """Whether an attribute is drawn repeatedly, not once when its object is made."""
        if self._facts.names.of(node) is not None:
            return False
        if isinstance(node.value, cst.Call) and self.is_drawn(node.value, depth):
            return True  # uuid.uuid4().int
        script = self._facts.context
        own = isinstance(node.value, cst.Name) and node.value.value == "self"
        around = script.class_around(node) if own else None
        if around is not None and (
            (around.name.value, node.attr.value) in script.calls.drawn_attributes
        ):
            return True
        for target, value in script.attributes.get(node.attr.value, ()):
            function = script.function_around(target)
            if function is None or function.name.value in ("__init__", "__post_init__"):
                continue
            by_self = isinstance(target.value, cst.Name) and target.value.value == "self"
            if own and by_self and script.class_around(target) is not around:
                continue  # of another class
            if self.is_drawn(value, depth):
                return True
        return False

    def _is_subscript(self, node: cst.Subscript, depth: int) -> bool:
        if self._facts.values.on_device(node.value):
            return False
        chosen = (part.slice for part in node.slice)
        indices = [part.value for part in chosen if isinstance(part, cst.Index)]
        if self.is_drawn(node.value, depth) or any(self.is_drawn(i, depth) for i in indices):
            return True
        key = string_value(indices[0]) if len(indices) == 1 else None
        return key is not None and self._is_entry(node.value, key, depth)

    def _is_entry(self, holder: cst.BaseExpression, key: str, depth: int) -> bool:
        """Whether a mapping has a random host number under `key`."""
        values = entries_of(holder, key, self._facts)
        return any(self.is_drawn(value, depth + 1) for value in values)

    def gives_drawn(self, node: cst.BaseExpression | None, depth: int = 0) -> bool:
        """Whether a loop over `node` gets random host numbers, or makes a random number of turns."""
        if node is None or depth > DEEPEST:
            return False
        match node:
            case cst.Name():
                assignments = self._facts.bindings.reaching(node)
                values = [
                    assignment.value
                    for assignment in assignments
                    if assignment.how in (How.VALUE, How.ADDED)
                ]
                values += [
                    assignment.before for assignment in assignments if assignment.before is not None
                ]
                parameter = self._facts.bindings.parameter(node)
                if not assignments and parameter is not None:
                    values += self._facts.bindings.passed(parameter[0], node.value)
                return any(self.gives_drawn(value, depth + 1) for value in values)
            case cst.BinaryOperation():
                return any(self.gives_drawn(side, depth) for side in (node.left, node.right))
            case cst.IfExp():
                return any(self.gives_drawn(side, depth) for side in (node.body, node.orelse))
            case cst.ListComp() | cst.GeneratorExp() | cst.SetComp():
                source = node.for_in
                tests = [condition.test for condition in source.ifs]
                return self.gives_drawn(source.iter, depth + 1) or any(
                    self.is_drawn(test, depth + 1) or self._is_among_drawn(test, depth + 1)
                    for test in tests
                )
            case cst.Subscript():
                return self._gives_part(node, depth)
            case cst.Call():
                return self._gives(node, depth)
        return False

    def _is_among_drawn(self, test: cst.BaseExpression, depth: int) -> bool:
        """Whether `test` asks whether a value is in a list of random numbers: `i not in frames`."""
        return isinstance(test, cst.Comparison) and any(
            isinstance(part.operator, cst.In | cst.NotIn)
            and self.gives_drawn(part.comparator, depth)
            for part in test.comparisons
        )

    def _gives_part(self, node: cst.Subscript, depth: int) -> bool:
        part = node.slice[0].slice if len(node.slice) == 1 else None
        if isinstance(part, cst.Slice):
            ends = (part.lower, part.upper)
            return self.gives_drawn(node.value, depth) or any(self.is_drawn(e, depth) for e in ends)
        key = string_value(part.value) if isinstance(part, cst.Index) else None
        if key is None:
            return False
        return any(
            self.gives_drawn(value, depth + 1) for value in entries_of(node.value, key, self._facts)
        )

    def _gives(self, call: cst.Call, depth: int) -> bool:
        func, args = call.func, [arg.value for arg in call.args]
        if isinstance(func, cst.Name) and func.value in OF_LISTS:
            return any(self.gives_drawn(arg, depth + 1) for arg in args)
        if isinstance(func, cst.Name) and func.value == "range":
            return any(self.is_drawn(arg, depth) for arg in args)
        name = self._facts.names.of(func) or ""
        if isinstance(func, cst.Attribute) and not name and func.attr.value in READS:
            base = func.value
            if isinstance(base, cst.Name):
                assignments = self._facts.bindings.reaching(base)
                bases = [
                    assignment.value for assignment in assignments if assignment.how is How.VALUE
                ]
            else:
                bases = [base]
            return any(
                isinstance(value, cst.Call) and self._draws_list(value, depth + 1)
                for value in bases
            )
        if name.startswith("torch."):
            return False  # its elements are tensors
        if self._draws_list(call, depth):
            return True
        for function in self._facts.context.called(call):
            returned = self._facts.bindings.returns.get(id(function), [])
            if any(self.gives_drawn(value, depth + 1) for value in returned):
                return True
        return False

    def _draws_list(self, call: cst.Call, depth: int) -> bool:
        """Whether `call` draws several numbers, or a drawn number of data elements."""
        if self._facts.context.called(call) or not self.is_drawn(call, depth):
            return False
        counts = [arg.value for arg in call.args[1:]]
        return _draws_numbers(call) or any(self.is_drawn(count, depth) for count in counts)

    def _is_name(self, name: cst.Name, depth: int) -> bool:
        assignments = self._facts.bindings.reaching(name)
        if assignments:
            return any(self._is_given(assignment, depth) for assignment in assignments)
        parameter = self._facts.bindings.parameter(name)
        if parameter is None:
            return False
        function = parameter[0]
        passed = self._facts.bindings.passed(function, name.value)
        if any(self.is_drawn(value, depth) for value in passed):
            return True
        if self._is_forwarded(function, name.value, depth):
            return True
        line = self._facts.context.position(function).line
        entry = self._facts.entries.get(line)
        return entry is not None and entry.is_drawn(function, name.value)

    def _is_forwarded(self, function: cst.FunctionDef, name: str, depth: int) -> bool:
        """Whether a call passes a drawn number for the parameter `name`, also by `*args`, `**kwargs`."""
        names = _positional(function)
        for call, before in self._facts.bindings.callers(function):
            positions, keywords = self.passed(call, depth)
            at = names.index(name) - before if name in names else -1
            if at in positions or name in keywords:
                return True
        return False

    def passed(self, call: cst.Call, depth: int = 0) -> tuple[frozenset[int], frozenset[str]]:
        """Return the positions and the keywords of the drawn numbers that `call` passes.

        Forwarded arguments count: `f(*args, **kwargs)` passes the arguments of the function around it.
        """
        positions: set[int] = set()
        keywords: set[str] = set()
        at = 0
        for arg in call.args if depth < DEEPEST else ():
            if arg.star:
                taken = self._forwarded(arg.value, depth + 1)
                if arg.star == "*":
                    positions |= {at + position for position in taken[0]}
                keywords |= taken[1] if arg.star == "**" else frozenset()
            elif arg.keyword is not None:
                if self.is_drawn(arg.value, depth):
                    keywords.add(arg.keyword.value)
            else:
                if self.is_drawn(arg.value, depth):
                    positions.add(at)
                at += 1
        return frozenset(positions), frozenset(keywords)

    def _forwarded(
        self, starred: cst.BaseExpression, depth: int
    ) -> tuple[frozenset[int], frozenset[str]]:
        """Return the drawn positions and keywords in the parameters `*args` and `**kwargs` of a function."""
        positions: set[int] = set()
        keywords: set[str] = set()
        if isinstance(starred, cst.Name) and (around := self._catcher(starred)) is not None:
            names = _positional(around)
            for call, before in self._facts.bindings.callers(around):
                drawn = self.passed(call, depth)
                first = len(names) - before
                positions |= {position - first for position in drawn[0] if position >= first}
                keywords |= drawn[1] - {*names}
            entry = self._facts.entries.get(self._facts.context.position(around).line)
            for passed in entry.calls if entry is not None else ():
                for place in passed.drawn:
                    if isinstance(place, str):
                        keywords.add(place)
                    elif place >= len(names):
                        positions.add(place - len(names))
        return frozenset(positions), frozenset(keywords)

    def _catcher(self, name: cst.Name) -> cst.FunctionDef | None:
        """Return the function whose parameter `*args` or `**kwargs` is `name`."""
        for binding in self._facts.context.bindings(name):
            function = binding.scope.node
            if not isinstance(function, cst.FunctionDef):
                continue
            catching = (function.params.star_arg, function.params.star_kwarg)
            if any(binding.node is parameter for parameter in catching):
                return function
        return None

    def _is_given(self, assignment: Assignment, depth: int) -> bool:
        """Whether a name is assigned a random number, or is an element of random numbers in a loop."""
        if assignment.loop is None and assignment.how is not How.ELEMENT:
            return self.is_drawn(assignment.value, depth) or self.is_drawn(assignment.before, depth)
        value = assignment.value
        if assignment.how is not How.ELEMENT or value is None:
            return False
        if isinstance(value, cst.Name):
            values = [earlier.value for earlier in self._facts.bindings.reaching(value)]
        else:
            values = [value]
        return any(
            isinstance(source, cst.Call) and _draws_numbers(source) and self.is_drawn(source, depth)
            for source in values
        )

    def _is_call(self, call: cst.Call, depth: int) -> bool:
        script = self._facts.context
        if script.place(call) in script.calls.drawing:
            return True  # by a function of whatever file
        name = self._facts.names.of(call.func) or ""
        if name:
            return self._is_library_call(name, call, depth)
        func = call.func
        args = [arg.value for arg in call.args]
        if isinstance(func, cst.Name):
            if func.value in PLAIN:
                return any(self.is_drawn(arg, depth) for arg in args)
            if func.value == "hash":
                return bool(args) and self._may_be_string(args[0])
            return self._returns_drawn(call, depth)
        if isinstance(func, cst.Attribute):
            method, base = func.attr.value, func.value
            if method in ("get", "pop") and args and (key := string_value(args[0])) is not None:
                return self._is_entry(base, key, depth)
            if method in FILLS:
                return self._is_empty(base)
            if method in READS:
                return self.is_drawn(base, depth)
            if method in DISTRIBUTION_DRAWS:
                return True
            if method in HOST_DRAWS | MAKERS and self._is_generator(base):
                return True
            return self._returns_drawn(call, depth)
        return False

    def _is_library_call(self, name: str, call: cst.Call, depth: int) -> bool:
        package, _, last = name.rpartition(".")
        if name in self._others:
            return True
        if package == "random":
            return last in HOST_DRAWS
        if package == "numpy.random":
            return last not in NUMPY_OTHERS
        if package.startswith("scipy.stats"):
            return last in DISTRIBUTION_DRAWS
        if package == "torch" and last in MAKERS:
            return self._is_on_host(call)
        args = [arg.value for arg in call.args]
        if package == "torch" and last == "bernoulli":
            return bool(args) and isinstance(args[0], cst.Call) and self._is_on_host(args[0])
        if package in ("math", "numpy"):
            return any(self.is_drawn(arg, depth) for arg in args)
        return False

    def _may_be_string(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        """Whether `node` is a string, or holds one: Python hashes strings with a seed of the process."""
        match node:
            case cst.SimpleString() | cst.FormattedString() | cst.ConcatenatedString():
                return True
            case cst.Tuple():
                parts = (element.value for element in node.elements)
                return any(self._may_be_string(part, depth) for part in parts)
            case cst.BinaryOperation():
                return any(self._may_be_string(s, depth) for s in (node.left, node.right))
            case cst.Call():
                last = code(node.func).rpartition(".")[2]
                return last in GIVE_STRINGS
            case cst.Name() if depth < DEEPEST:
                assignments = self._facts.bindings.reaching(node)
                values = [
                    assignment.value
                    for assignment in assignments
                    if assignment.how is not How.ELEMENT
                ]
                return any(v is not None and self._may_be_string(v, depth + 1) for v in values)
        return False

    def _is_on_host(self, call: cst.Call) -> bool:
        """Whether the tensor that `call` makes is on the CPU."""
        if self._has_default or self._facts.values.on_device(call):
            return False
        device = keyword(call, "device")
        if device is None:
            return True
        return not is_accelerator(device.value, self._facts.context) and "cpu" in code(device.value)

    def _is_empty(self, base: cst.BaseExpression) -> bool:
        if not isinstance(base, cst.Call):
            return False
        last = code(base.func).rpartition(".")[2]
        is_made = last in EMPTIES - LIKES and (self._facts.names.of(base.func) or "").startswith(
            "torch."
        )
        return is_made and not last.endswith("_like") and self._is_on_host(base)

    def _is_generator(self, base: cst.BaseExpression) -> bool:
        """Whether `base` is a generator of `random` or NumPy that the script makes."""
        if isinstance(base, cst.Name):
            values = [assignment.value for assignment in self._facts.bindings.given(base)]
        elif isinstance(base, cst.Attribute):
            values = list(self._facts.values.given_to(base))
        else:
            values = [base]
        return any(
            isinstance(value, cst.Call) and self._facts.names.of(value.func) in GENERATORS
            for value in values
        )

    def _returns_drawn(self, call: cst.Call, depth: int) -> bool:
        """Whether a function of the script that `call` runs returns such a number."""
        script = self._facts.context
        for function in script.here(script.run_by(call)):
            if not isinstance(function, cst.FunctionDef):
                continue
            for returned in script.below(function.body, cst.Return):
                value = returned.value
                parts = (
                    [element.value for element in value.elements]
                    if isinstance(value, cst.Tuple)
                    else [value]
                )
                if any(self.is_drawn(part, depth) for part in parts):
                    return True
        return False


def _positional(function: cst.FunctionDef) -> list[str]:
    """Return the names of the parameters that take arguments by position, without `self`."""
    names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _draws_numbers(call: cst.Call) -> bool:
    """Whether a loop over `call` yields numbers, not data drawn from a collection."""
    if code(call.func).rpartition(".")[2] not in OF_DATA:
        return True
    over = call.args[0].value if call.args else None
    if isinstance(over, cst.Call):
        return code(over.func) in ("range", "len")
    return isinstance(over, cst.Integer)


def is_transform(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is in a transform of the loader, or in a function that only transforms call.

    A module without submodules and parameters that neither a step nor a model uses counts as a transform: it
    may as well be a part of a model. A module that is passed as the `transform` of something counts too.
    """
    if facts.steps.calls_it(facts.context.function_around(node)):
        return False
    around = facts.context.class_around(node)
    if around is None:
        function = facts.context.function_around(node)
        return isinstance(function, cst.FunctionDef) and _serves_transforms(function, facts)
    return _is_transforming(around, facts)


def _serves_transforms(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether all callers of `function` in the file are transforms and datasets."""
    script = facts.context
    if script.functions.get(function.name.value) is not function:
        return False
    calls = [mention for mention in script.mentions(function.name) if mention is not function.name]
    classes = [script.class_around(call) for call in calls]
    return bool(classes) and all(
        around is not None and (_is_transforming(around, facts) or is_dataset(around, facts))
        for around in classes
    )


def is_dataset(around: cst.ClassDef, facts: Facts) -> bool:
    """Whether a class is a dataset, by its base classes."""
    names = [facts.names.of(base.value) or code(base.value) for base in around.bases]
    return any(
        name.endswith(("Dataset", "DataPipe")) or name.startswith("torchvision.datasets.")
        for name in names
    )


def _is_transforming(around: cst.ClassDef, facts: Facts, seen: tuple[str, ...] = ()) -> bool:
    """Whether a class is a module that the loader applies to samples."""
    name = around.name.value
    if not _is_module(around, facts) or name in seen:
        return False
    uses = [call for call in facts.calls if code(call.func).rpartition(".")[2] == name]
    handed = [use for use in uses if _is_handed_as_transform(use, facts)]
    users = [facts.context.class_around(use) for use in uses if use not in handed]
    others = [
        user
        for user in users
        if user is not None
        and user is not around
        and _is_module(user, facts)
        and not _is_transforming(user, facts, (*seen, name))
    ]
    if others:
        return False
    by_transforms = any(
        user is not None and _is_module(user, facts) and user is not around for user in users
    )
    return bool(handed) or by_transforms or not _holds_modules(around, facts)


def _is_handed_as_transform(use: cst.Call, facts: Facts) -> bool:
    """Whether `use` makes a transform: `Data(transform=Flip())`, `Compose([Flip()])`."""
    for above in facts.context.ancestors(use):
        if isinstance(above, cst.Arg) and above.keyword is not None:
            return "transform" in above.keyword.value or "augment" in above.keyword.value
        if isinstance(above, cst.Call):
            return code(above.func).rpartition(".")[2] in ("Compose", "RandomApply", "RandomChoice")
        if isinstance(above, cst.Assign):
            return any("transform" in code(target.target) for target in above.targets)
        if not isinstance(above, cst.Arg | cst.Element | cst.List | cst.Tuple | cst.IfExp):
            return False
    return False


def _is_module(around: cst.ClassDef, facts: Facts) -> bool:
    """Whether a class is a module, or a transform that derives from a library's."""
    names = [facts.names.of(base.value) or code(base.value) for base in around.bases]
    return any(
        name.rpartition(".")[2] in ("Module", "Sequential", "ModuleList")
        or name.startswith(TRANSFORMS)
        for name in names
    )


def _holds_modules(around: cst.ClassDef, facts: Facts) -> bool:
    """Whether the class creates modules or parameters, or runs modules that it holds."""
    return any(
        (facts.names.of(call.func) or "").startswith("torch.nn.")
        and (facts.names.of(call.func) or "")[9:10].isupper()
        and not _holds_transforms(call, facts)
        for call in facts.below(around, cst.Call)
    )


def _holds_transforms(container: cst.Call, facts: Facts) -> bool:
    """Whether a module holds transforms of a library and nothing else: `Sequential(T.RandomCrop(8))`."""
    held = [arg.value for arg in container.args]
    if len(held) == 1 and isinstance(held[0], cst.List | cst.Tuple):
        held = [element.value for element in held[0].elements]
    names = [
        facts.names.of(value.func) or "" if isinstance(value, cst.Call) else "" for value in held
    ]
    return bool(names) and all(name.startswith(TRANSFORMS) for name in names)
