"""Random numbers that Python draws on the host: `random.random()`, `np.random.rand()`, `torch.rand(1)`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.draws import FILLS, LIKES
from migrate.reading.catalogue.drawing import (
    EMPTIES,
    GENERATORS,
    HOST_DRAWS,
    MAKERS,
    NUMPY_OTHERS,
)
from migrate.reading.names.bindings import Given, How
from migrate.reading.tree.tree import code, keyword, nodes_of
from migrate.reading.values.devices import is_accelerator

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Functions and methods whose result is random where an argument or the receiver is.
PLAIN = frozenset(
    {"int", "float", "bool", "round", "abs", "min", "max", "any", "all", "sum", "len", "math", "np"}
)
READS = frozenset(
    {"item", "tolist", "any", "all", "numpy", "astype", "round", "floor", "int", "cpu"}
)
DEEPEST = 8
TRANSFORMS = ("torchvision.transforms.", "torchaudio.transforms.", "kornia.augmentation.")
# They give elements of what they are given: of data, unless those are numbers of a `range`.
OF_DATA = frozenset({"choice", "choices", "sample", "permutation", "shuffle"})


@lru_cache(maxsize=2)
def drawn_of(facts: Facts) -> Drawn:
    """Return the numbers of a script that its host draws at random."""
    return Drawn(facts)


class Drawn:
    """Finds out whether an expression is a number that the host draws at random.

    A draw of torch counts where its tensor is on the CPU. A tensor that is moved to the device is no number
    of the host any more.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._has_default = "torch.set_default_device" in facts.called
        self._known: dict[int, bool] = {}

    def is_drawn(self, node: cst.BaseExpression | None, depth: int = 0) -> bool:
        """Whether `node` is a random number of the host, or made of one."""
        if node is None or depth > DEEPEST:
            return False
        if id(node) not in self._known:
            self._known[id(node)] = False  # where it is made of itself
            found = self._is_made_by_draw(node, depth)
            if depth == 0 or found:
                self._known[id(node)] = found
            else:
                del self._known[id(node)]  # not seen to the end
            return found
        return self._known[id(node)]

    def _is_made_by_draw(self, node: cst.BaseExpression, depth: int) -> bool:
        match node:
            case cst.Name():
                return self._is_name(node, depth + 1)
            case cst.Call():
                return self._is_call(node, depth + 1)
            case cst.UnaryOperation():
                return self.is_drawn(node.expression, depth)
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
        """Whether an attribute is drawn again and again: not once, where its object is made."""
        if self._facts.names.of(node) is not None:
            return False
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
        return self.is_drawn(node.value, depth) or any(self.is_drawn(i, depth) for i in indices)

    def _is_name(self, name: cst.Name, depth: int) -> bool:
        given = self._facts.bindings.reaching(name)
        if given:
            return any(self._is_given(one, depth) for one in given)
        parameter = self._facts.bindings.parameter(name)
        if parameter is None:
            return False
        function = parameter[0]
        passed = self._facts.bindings.passed(function, name.value)
        if any(self.is_drawn(value, depth) for value in passed):
            return True
        line = self._facts.context.position(function).line
        entry = self._facts.entries.get(line)
        return entry is not None and entry.is_drawn(function, name.value)

    def _is_given(self, given: Given, depth: int) -> bool:
        """Whether a name is given a random number: of a loop, an element of random numbers."""
        if given.loop is None and given.how is not How.ELEMENT:
            return self.is_drawn(given.value, depth)
        value = given.value
        if given.how is not How.ELEMENT or value is None:
            return False
        if isinstance(value, cst.Name):
            made = [one.value for one in self._facts.bindings.reaching(value)]
        else:
            made = [value]
        return any(
            isinstance(one, cst.Call) and _draws_numbers(one) and self.is_drawn(one, depth)
            for one in made
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
            return self._returns_drawn(call, depth)
        if isinstance(func, cst.Attribute):
            method, base = func.attr.value, func.value
            if method in FILLS:
                return self._is_empty(base)
            if method in READS:
                return self.is_drawn(base, depth)
            if method in HOST_DRAWS | MAKERS and self._is_generator(base):
                return True
            return self._returns_drawn(call, depth)
        return False

    def _is_library_call(self, name: str, call: cst.Call, depth: int) -> bool:
        package, _, last = name.rpartition(".")
        if package == "random":
            return last in HOST_DRAWS
        if package == "numpy.random":
            return last not in NUMPY_OTHERS
        if package == "torch" and last in MAKERS:
            return self._is_on_host(call)
        args = [arg.value for arg in call.args]
        if package == "torch" and last == "bernoulli":
            return bool(args) and isinstance(args[0], cst.Call) and self._is_on_host(args[0])
        if package in ("math", "numpy"):
            return any(self.is_drawn(arg, depth) for arg in args)
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
        made = last in EMPTIES - LIKES and (self._facts.names.of(base.func) or "").startswith(
            "torch."
        )
        return made and not last.endswith("_like") and self._is_on_host(base)

    def _is_generator(self, base: cst.BaseExpression) -> bool:
        """Whether `base` is a generator of `random` or NumPy that the script makes."""
        if isinstance(base, cst.Name):
            values = [given.value for given in self._facts.bindings.given(base)]
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
            for returned in nodes_of(function.body, cst.Return):
                value = returned.value
                parts = (
                    [element.value for element in value.elements]
                    if isinstance(value, cst.Tuple)
                    else [value]
                )
                if any(self.is_drawn(part, depth) for part in parts):
                    return True
        return False


def _draws_numbers(call: cst.Call) -> bool:
    """Whether what a loop over `call` gives are numbers, and no data that is drawn from a collection."""
    if code(call.func).rpartition(".")[2] not in OF_DATA:
        return True
    over = call.args[0].value if call.args else None
    if isinstance(over, cst.Call):
        return code(over.func) in ("range", "len")
    return isinstance(over, cst.Integer)


def is_transform(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is in a transform of the loader, or in a function that only transforms call.

    A module that holds no modules and no parameters, and that neither a step nor a model uses, is a transform
    as often as a part of a model; so is one that is handed to something as its `transform`.
    """
    if facts.steps.calls_it(facts.context.function_around(node)):
        return False
    around = facts.context.class_around(node)
    if around is None:
        function = facts.context.function_around(node)
        return isinstance(function, cst.FunctionDef) and _serves_transforms(function, facts)
    return _is_transforming(around, facts)


def _serves_transforms(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether all that calls `function` in the file is in transforms and datasets."""
    script = facts.context
    if script.functions.get(function.name.value) is not function:
        return False
    calls = [mention for mention in script.mentions(function.name) if mention is not function.name]
    classes = [script.class_around(call) for call in calls]
    return bool(classes) and all(
        around is not None and (_is_transforming(around, facts) or _is_dataset(around, facts))
        for around in classes
    )


def _is_dataset(around: cst.ClassDef, facts: Facts) -> bool:
    names = [facts.names.of(base.value) or code(base.value) for base in around.bases]
    return any(name.endswith(("Dataset", "DataPipe")) for name in names)


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
    """Whether `use` makes a transform of something: `Data(transform=Flip())`, `Compose([Flip()])`."""
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
    names = [facts.names.of(base.value) or code(base.value) for base in around.bases]
    return any(name.rpartition(".")[2] in ("Module", "Sequential", "ModuleList") for name in names)


def _holds_modules(around: cst.ClassDef, facts: Facts) -> bool:
    """Whether the class makes modules or parameters, or runs what it holds."""
    return any(
        (facts.names.of(call.func) or "").startswith("torch.nn.")
        and (facts.names.of(call.func) or "")[9:10].isupper()
        and not _holds_transforms(call, facts)
        for call in nodes_of(around, cst.Call)
    )


def _holds_transforms(container: cst.Call, facts: Facts) -> bool:
    """Whether a module holds transforms of a library and nothing else: `Sequential(T.RandomCrop(8))`."""
    held = [arg.value for arg in container.args]
    if len(held) == 1 and isinstance(held[0], cst.List | cst.Tuple):
        held = [element.value for element in held[0].elements]
    names = [facts.names.of(one.func) or "" if isinstance(one, cst.Call) else "" for one in held]
    return bool(names) and all(name.startswith(TRANSFORMS) for name in names)
