"""Saves with xm.save whose loaded value differs from the saved one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.flow.loaded import is_loaded
from migrate.reading.names.bindings import How
from migrate.reading.values.host import is_dataset
from migrate.syntax.tree import code, is_attribute_of_self

SAVE = "torch_xla.core.xla_model.save"
RESTORE = "random.setstate"
STATE = "random.getstate"
# What writes a tuple as a tuple.
FAITHFUL = ("torch.save", "pickle.dump")
ENUMS = frozenset({"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag"})
DEEPEST = 4
TUPLE = "named tuple"
NAMED_TUPLES = frozenset({"collections.namedtuple", "typing.NamedTuple"})
# Classes whose objects are such containers, and more.
CONTAINERS = {
    "addict.Dict": "dict",
    "box.Box": "dict",
    "collections.Counter": "dict",
    "collections.defaultdict": "dict",
    "easydict.EasyDict": "dict",
    "munch.Munch": "dict",
    "yacs.config.CfgNode": "dict",
}
# Plain themselves; their subclasses are not.
BASES = {
    "collections.OrderedDict": "dict",
    "typing.Dict": "dict",
    "typing.List": "list",
    "typing.OrderedDict": "dict",
    "typing.Set": "set",
}


class SavedCopies(Hazard):
    """xm.save copies what it saves: containers become plain ones, and a class raises.

    **Why.** `xm.save` rebuilds the object with its tensors on the CPU. A tuple, also a named one, becomes a
    list: `random.setstate(checkpoint["random"])` raises "state vector must be a tuple" on resuming. A dict
    of a class of its own (`class Config(dict)`, yacs' `CfgNode`, a `defaultdict`) becomes a plain dict, and
    `checkpoint["config"].depth` raises AttributeError; so do such lists and sets. A class
    or a member of an Enum in what is saved (`{"norm": nn.LayerNorm}`, or an attribute of a configuration)
    raises "'mappingproxy' object does not support item assignment" when it is saved. So does a dataset whose
    transforms have an interpolation mode, as `Resize` and `RandomResizedCrop` have.

    **What to do.** Save `dict(config)`, and make the object again when it is loaded:
    `Config(checkpoint["config"])`. `version, numbers, gauss = checkpoint["random"]`, then
    `random.setstate((version, tuple(numbers), gauss))`. Save the name of a class or of a member:
    `nn.LayerNorm.__name__`, `mode.value`. Save a dataset with `torch.save` on one replica: nothing of it is
    on the device.

    Source: torch_xla 2.9, `torch_xla/utils/utils.py` (measured); pytorch/xla#7123.
    """

    code = "XLA831"
    name = "saved-copies"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = r"\bsave\b|setstate"
    examples = (
        example(
            """
            import enum
            import random

            import torch
            import torch_xla.core.xla_model as xm
            import torchvision
            from torch import nn


            class Mode(enum.Enum):
                FAST = "fast"


            class Encoder(nn.Module):
                pass


            class Config(dict):
                __getattr__ = dict.__getitem__


            def save(model, path):
                xm.save({"model": model.state_dict(), "config": Config(depth=2)}, path)  # XLA831
                xm.save({"model": model.state_dict(), "norm": nn.LayerNorm}, path)  # XLA831
                xm.save(dict(model=model.state_dict(), kind=Encoder), path)  # XLA831
                state = {"model": model.state_dict(), "run": {"mode": Mode.FAST}}
                xm.save(state, path)  # XLA831


            def cache(folder, path):
                data = torchvision.datasets.ImageFolder(folder)
                keep((data, folder), path)
                xm.save(data, path)  # XLA831


            def keep(*args, **kwargs):
                xm.save(*args, **kwargs, global_master=True)  # XLA831


            def resume(model, path):
                checkpoint = torch.load(path, map_location="cpu")
                model.load_state_dict(checkpoint["model"])
                random.setstate(checkpoint["random"])  # XLA831


            def restore(states):
                random.setstate(states["python"])  # XLA831
                random.setstate(states.get("python"))  # XLA831
            """
        ),
        example(
            """
            import enum
            import random

            import torch
            import torch_xla.core.xla_model as xm
            from torch import nn


            class Mode(enum.Enum):
                FAST = "fast"


            class Config(dict):
                __getattr__ = dict.__getitem__


            def save(model, path, loss=nn.CrossEntropyLoss()):
                config = Config(depth=2)
                xm.save({"config": dict(config), "depth": config.depth, "all": vars(config)}, path)
                state = {"model": model.state_dict(), "mode": Mode.FAST.value, "eps": nn.Parameter}
                state = {"model": model.state_dict(), "norm": nn.LayerNorm.__name__, "loss": loss}
                xm.save(state, path)
                xm.save({"act": nn.functional.gelu, "dtype": torch.bfloat16, "net": nn.Linear(2, 2)}, path)


            def resume(path):
                before = random.getstate()
                random.seed(0)
                random.setstate(before)
                kept = {"random": random.getstate()}
                random.setstate(kept["random"])
                version, numbers, gauss = torch.load(path, map_location="cpu")["random"]
                random.setstate((version, tuple(numbers), gauss))
            """
        ),
        example(
            """
            import random

            import torch


            def resume(path):
                random.setstate(torch.load(path)["random"])
            """
        ),
    )
    mended = example(
        """
        import random

        import torch
        import torch_xla.core.xla_model as xm
        from torch import nn


        def save(model, path):
            state = {"model": model.state_dict(), "norm": nn.LayerNorm.__name__, "random": random.getstate()}
            xm.save(state, path)


        def resume(path):
            version, numbers, gauss = torch.load(path, map_location="cpu")["random"]
            random.setstate((version, tuple(numbers), gauss))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one save of a class, or one state of `random` that comes from such a file."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if not node.args:
            return
        if name == SAVE:
            part = next(_classes(node.args[0].value, facts), None)
            if part is not None:
                message = (
                    f"xm.save cannot copy `{code(part)}`, a class or a member of an Enum: it raises "
                    "\"'mappingproxy' object does not support item assignment\"; save its name"
                )
                yield self.hit(node, message)
                return
            data = next(_datasets(node.args[0], facts), None)
            if data is not None:
                message = (
                    f"xm.save copies the dataset `{code(data)}` part by part, and raises at the "
                    "interpolation mode of a transform, as Resize has: save it with torch.save on one replica"
                )
                yield self.hit(node, message)
                return
            lost = next(_plain_again(node.args[0].value, facts), None)
            if lost is not None:
                yield self.hit(node, _says(*lost))
        elif (
            name == RESTORE and _is_written_here(facts) and _is_restored(node.args[0].value, facts)
        ):
            message = (
                "xm.save writes tuples as lists, and random.setstate takes tuples only: version, numbers, "
                f"gauss = {code(node.args[0].value)}; random.setstate((version, tuple(numbers), gauss))"
            )
            yield self.hit(node, message)


def _says(value: cst.BaseExpression, kind: str) -> str:
    plain = "list" if kind == TUPLE else kind
    saved = f"{kind}({code(value)})" if kind != TUPLE else f"{code(value)}._asdict()"
    return (
        f"xm.save writes `{code(value)}`, a {kind} of its own class, as a plain {plain}: what the class adds "
        f"is gone after torch.load; save {saved}, and make the object again"
    )


def _is_written_here(facts: Facts) -> bool:
    """Whether xm.save may write the state: in the script, or in what it calls in another file.

    It does not where each state that the script takes goes into a file of torch.save or pickle.
    """
    if SAVE not in facts.called and not (facts.uses_xla and facts.context.calls.saves):
        return False
    calls = facts.context.all_of(cst.Call)
    states = {id(call) for call in calls if facts.names.of(call.func) == STATE}
    kept = {
        id(part)
        for call in calls
        if facts.names.of(call.func) in FAITHFUL and call.args
        for content in _contents(call.args[0].value, facts)
        for part in facts.below(content, cst.Call)
    }
    return not states or not states <= kept


def _contents(value: cst.BaseExpression, facts: Facts) -> list[cst.BaseExpression]:
    """Return `value`, or what the name or attribute `value` is given."""
    if isinstance(value, cst.Name | cst.Attribute):
        return _given(value, facts)
    return [value]


def _is_restored(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a part of a checkpoint, or of what a caller or an attribute holds."""
    if is_loaded(value, facts):
        return True
    holder = value.value if isinstance(value, cst.Subscript) else None
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        holder = value.func.value if value.func.attr.value in ("get", "pop") else None
    if isinstance(holder, cst.Name):
        return facts.bindings.nearest(holder) is None or is_loaded(holder, facts)
    return isinstance(holder, cst.Subscript) and _is_restored(holder, facts)


def _plain_again(
    value: cst.BaseExpression | None, facts: Facts, depth: int = 0
) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield what is saved and comes back as a plain container, each with the kind of container."""
    if value is None or depth > DEEPEST:
        return
    if isinstance(value, cst.Dict | cst.List | cst.Tuple | cst.Set):
        for element in value.elements:
            yield from _plain_again(element.value, facts, depth + 1)
    elif isinstance(value, cst.Call):
        func = value.func
        kind = _container(func, facts)
        if kind:
            yield value, kind
        elif code(func) == "dict":
            for arg in value.args:
                if arg.keyword is not None or isinstance(arg.value, cst.Dict):
                    yield from _plain_again(arg.value, facts, depth + 1)
        elif isinstance(func, cst.Attribute) and func.attr.value == "clone":
            yield from ((value, kind) for _, kind in _plain_again(func.value, facts, depth + 1))
        else:
            for function in facts.context.called(value):
                for returned in facts.bindings.returns[id(function)]:
                    for _, kind in _plain_again(returned, facts, depth + 1):
                        yield value, kind
    elif isinstance(value, cst.Name | cst.Attribute):
        for expression in _given(value, facts):
            holder = isinstance(expression, cst.Dict | cst.List | cst.Tuple | cst.Set)
            for part, kind in _plain_again(expression, facts, depth + 1):
                yield (part if holder else value), kind


def _given(node: cst.Name | cst.Attribute, facts: Facts) -> list[cst.BaseExpression]:
    """Return what the name or attribute `node` is given, by callers of the function too."""
    if not isinstance(node, cst.Name):
        return facts.values.given_to(node) if is_attribute_of_self(node) else []
    bound = facts.bindings.parameter(node)
    if bound is not None:
        function, parameter = bound
        default = [] if parameter.default is None else [parameter.default]
        return [*facts.bindings.passed(function, node.value), *default]
    reaching = [
        assignment for assignment in facts.bindings.reaching(node) if assignment.how is How.VALUE
    ]
    values = [
        assignment.value
        for assignment in reaching
        if isinstance(assignment.value, cst.BaseExpression)
    ]
    put = [addition.value for addition in facts.bindings.put_into(node)]
    return [*(values or facts.values.given_to(node)), *put]


def _container(func: cst.BaseExpression, facts: Facts, depth: int = 0) -> str:
    """Return which container an object of the class `func` is: dict, list, set or a named tuple."""
    name = facts.names.of(func) or ""
    if name in CONTAINERS or (name in BASES and depth):
        return CONTAINERS.get(name) or BASES[name]
    if depth > DEEPEST or not isinstance(func, cst.Name):
        return ""
    if func.value in ("dict", "list", "set"):
        return func.value if depth else ""
    definition = facts.bindings.classes.get(func.value)
    if definition is not None and _means(func, facts):
        bases = [base.value for base in definition.bases]
        if any(facts.names.of(base) in NAMED_TUPLES for base in bases):
            return TUPLE
        bases = [base.value if isinstance(base, cst.Subscript) else base for base in bases]
        return next(filter(None, (_container(b, facts, depth + 1) for b in bases)), "")
    for value in facts.values.given_to(func):
        if isinstance(value, cst.Call) and facts.names.of(value.func) in NAMED_TUPLES:
            return TUPLE
    return ""


def _classes(
    value: cst.BaseExpression | None, facts: Facts, depth: int = 0
) -> Iterator[cst.BaseExpression]:
    """Yield the classes and members of an Enum in what is saved."""
    if value is None or depth > DEEPEST:
        return
    if isinstance(value, cst.Dict | cst.List | cst.Tuple | cst.Set):
        for element in value.elements:
            yield from _classes(element.value, facts, depth + 1)
    elif isinstance(value, cst.Call):
        if code(value.func) == "dict":
            for arg in value.args:
                yield from _classes(arg.value, facts, depth + 1)
    elif _is_class(value, facts):
        yield value
    elif isinstance(value, cst.Name):
        assignment = facts.bindings.nearest(value)
        if assignment is not None and assignment.how is How.VALUE:
            yield from _classes(assignment.value, facts, depth + 1)


def _datasets(arg: cst.Arg, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the datasets in what is saved, by `def keep(*args): xm.save(*args)` too."""
    waiting = [arg.value]
    bound = facts.context.bound_to(arg.value) if isinstance(arg.value, cst.Name) else (None, None)
    if isinstance(bound[0], cst.FunctionDef) and isinstance(bound[1], cst.Param):
        star = bound[0].params.star_arg
        if arg.star == "*" and star is bound[1]:
            before = len(bound[0].params.params)
            calls = (call for call, offset in facts.bindings.callers(bound[0]) if not offset)
            waiting = [
                argument.value for call in calls for argument in call.args[before : before + 1]
            ]
        else:
            waiting = [*facts.bindings.passed(bound[0], bound[1].name.value)]
    for value in waiting:
        parts = [value]
        if isinstance(value, cst.Dict | cst.List | cst.Tuple):
            parts = [element.value for element in value.elements]
        for part in parts:
            bound_values = facts.context.bound_values(part) if isinstance(part, cst.Name) else ()
            if any(is_dataset(candidate, facts.context) for candidate in (part, *bound_values)):
                yield part


def _is_class(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` names a class, or a member of an Enum that the script defines."""
    name = facts.names.of(value) or ""
    if name.startswith(("torch.nn.", "torch.optim.")):
        return name.count(".") == 2 and name.rpartition(".")[2][:1].isupper()
    classes = facts.bindings.classes
    if isinstance(value, cst.Name):
        return value.value in classes and _means(value, facts)
    if isinstance(value, cst.Attribute) and isinstance(value.value, cst.Name):
        class_ = classes.get(value.value.value)
        bases = [facts.names.of(base.value) for base in class_.bases] if class_ is not None else []
        return not ENUMS.isdisjoint(base for base in bases if base)
    return False


def _means(name: cst.Name, facts: Facts) -> bool:
    """Whether all that binds `name` is the class."""
    return not facts.bindings.given(name) and facts.bindings.parameter(name) is None
