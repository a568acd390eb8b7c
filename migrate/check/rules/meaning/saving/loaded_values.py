"""A tensor of a checkpoint meets tensors of the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import OF_CHECKPOINTS, words
from migrate.check.common import truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.flow.loaded import is_loaded
from migrate.reading.flow.mixed_states import is_mixed
from migrate.reading.names.bindings import FILLS
from migrate.reading.steps.in_step import When
from migrate.reading.values.devices import is_move
from migrate.reading.values.parameters import is_in_optimizer
from migrate.reading.values.parts import holds_views
from migrate.syntax.tree import base_name, code, keyword, nodes_of, string_value

# Measured: with a tensor of the host these run, and copy it each time.
COPIES = words("copy_ add add_ sub sub_ mul mul_ div div_ load_state_dict")
# Methods of what is loaded that move it, or keep what they are given.
KEEPS = OF_CHECKPOINTS | words("append extend forward setdefault to type_as update")
NO_OPERATION = ("torch.save", "torch.is_tensor", "torch.distributed", "torch.utils")
WHERE = "comes from a checkpoint and is on the host"
MOVE = "move it to the device where it is loaded"
MIXED = (
    "the dictionary holds tensors of a checkpoint, which are on the host, and tensors of a model on the "
    "device: what joins them raises; add .cpu() to those of the model"
)


class LoadedValues(Hazard):
    """A tensor of a checkpoint meets tensors of the device.

    **Why.** `torch.load` restores to the host: to the device of XLA it cannot. `load_state_dict` copies the
    values to where the parameters are; whatever else is done with them finds them on the host: "Expected XLA
    tensor" where they meet a tensor of the device, and parameters on the host after `load_state_dict(…,
    assign=True)` or `weight.data = checkpoint["w"]`. Sums and products run, and copy the tensor each time. A
    class of your own may keep what its `load_state_dict` is given: `self.average = state["average"]`.

    A dictionary may hold both, loaded tensors and tensors of a model: `load_state_dict` takes it, and
    `torch.cat`, an operation or a function of yours that joins them raises.

    An optimizer's `load_state_dict` moves its state to where the parameters are, and takes the groups of
    parameters as they were saved. A tensor that a class of your own keeps in a group, `dict(params=params,
    buffer=torch.empty(8, device="xla"))`, is on the host after it. It copies the groups, too, as
    `copy.deepcopy` does. On XLA a copy of a tensor and of its views parts them: `buffer` and
    `[buffer[i] for i in range(8)]` in a group are tensors of their own from then on, also where the state
    comes from the same process (measured by `migrate prove`: the optimizer trains by old values).

    **What to do.** `.to("xla")` where the tensor is taken out of the checkpoint. Keep such a buffer in an
    attribute of the optimizer, which no checkpoint holds. Leave `assign=True` out, or
    move the model after it and make the optimizer after that.

    Source: torch 2.9, torch_xla 2.9, measured.
    """

    code = "XLA830"
    name = "loaded-values"
    severity = Severity.ERROR
    nodes = (
        cst.BinaryOperation,
        cst.Subscript,
        cst.Call,
        cst.Assign,
        cst.AugAssign,
        cst.Dict,
    )
    words = "load|Optimizer"
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F


            def get_table(path):
                with open(path, "rb") as file:
                    return torch.load(file, map_location="cpu")


            def train(model, optimizer, loader, path):
                table = get_table(path)
                state = torch.load(path, map_location="cpu")
                teacher = state["teacher"].float()
                model.load_state_dict(state["model"], assign=True)  # XLA830
                model.weight.data = state["weight"]  # XLA830
                for x, y in loader:
                    x, y = x.to("xla"), y.to("xla")
                    loss = (model(x) * table[y]).mean()  # XLA830
                    loss = loss + F.mse_loss(x, teacher)  # XLA830
                    loss = loss + model(state["batch"]).mean()  # XLA830
                    loss = loss + (x - state["mean"]).mean()  # XLA830 warning
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, optimizer, loader, path):
                state = torch.load(path, map_location="cpu")
                mean = state["mean"]
                total = state["total"]
                for x in loader:
                    x = x.to("xla")
                    loss = model(x.sub(state["shift"])).mean()  # XLA830 warning
                    loss.backward()
                    optimizer.step()
                    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)  # XLA830 warning
                    total += x.sum()  # XLA830 warning
            """
        ),
        example(
            """
            import torch


            class Normalize(torch.nn.Module):
                def __init__(self, path):
                    super().__init__()
                    state = torch.load(path, map_location="cpu")
                    self.mean = state["mean"]
                    self.register_buffer("std", state["std"])

                def forward(self, x):
                    return torch.where(x > 0, x, self.mean) / self.std  # XLA830
            """
        ),
        example(
            """
            import torch


            def train(model, optimizer, loader, path):
                state = torch.load(path, map_location="cpu")
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                epoch = state["epoch"] + 1
                table = state["table"].to("xla")
                for name, p in model.named_parameters():
                    p.data.copy_(state["ema"][name])
                for x, y in loader:
                    x, y = x.to("xla"), y.to("xla")
                    loss = (model(x) * table[y]).mean()
                    loss.backward()
                return epoch


            def build(net, path):
                state = torch.load(path, map_location="cpu")
                net.load_state_dict(state, assign=True)
                net.head.weight.data = state["head"]
                return net.to("xla")


            def made(path):
                net = torch.nn.Linear(8, 8)
                net.weight.data = torch.load(path, map_location="cpu")
                return net


            class Words(torch.nn.Module):
                def __init__(self, path):
                    super().__init__()
                    words = torch.load(path, map_location="cpu")
                    self.words = torch.nn.Embedding(*words.shape)
                    self.words.weight.data = words
                    self.fill(path)

                def fill(self, path):
                    self.words.weight = torch.nn.Parameter(torch.load(path, map_location="cpu"))
            """
        ),
        example(
            """
            import torch


            class Words(torch.nn.Module):
                def __init__(self, path):
                    super().__init__()
                    self.words = torch.nn.Embedding(8, 8).to("xla")
                    self.words.weight.data = torch.load(path, map_location="cpu")  # XLA830

                def renew(self, path):
                    self.words.weight.data = torch.load(path, map_location="cpu")  # XLA830
            """
        ),
        example(
            """
            import torch


            def tune(model, flat, path):
                model.to("xla")
                own = model.state_dict()
                state = torch.load(path, map_location="cpu")
                for key, value in state.items():
                    if value.shape != own[key].shape:
                        state[key] = own[key]  # XLA830 warning
                model.load_state_dict(state)
                flat.copy_(torch.cat([state[name].flatten() for name in state]))


            def update(model, path, flatten):
                model.to("xla")
                own = model.state_dict()
                own.update(torch.load(path, map_location="cpu"))  # XLA830 warning
                return flatten(own)


            def scaled(model, path, scale):
                model.to("xla")
                own = model.state_dict()
                state = torch.load(path, map_location="cpu")
                for key in own:
                    if key.endswith("scale"):
                        state[key] = scale.clone()
                return state


            def plain(model, path):
                model.to("xla")
                own = model.state_dict()
                state = torch.load(path, map_location="cpu")
                for key in state:
                    if key in own and state[key].shape == own[key].shape:
                        own[key] = state[key]
                model.load_state_dict(own)
                torch.save(own, path)
            """
        ),
        example(
            """
            import torch


            class Owner(torch.optim.Optimizer):
                def __init__(self, params, n):
                    b = torch.empty(n, 8, device="xla")
                    first = dict(params=params, buffer=b, parts=[b[i] for i in range(n)])  # XLA830
                    plain = dict(params=params, buffer=torch.empty(8, device="xla"))  # XLA830 warning
                    other = {"params": params, "lr": 0.1, "count": n}
                    super().__init__([first, plain, other], {})


            class Own(torch.optim.Optimizer):
                def __init__(self, params):
                    super().__init__([{"params": params, "buffer": torch.empty(8, device="xla")}], {})

                def load_state_dict(self, state):
                    buffers = [group["buffer"] for group in self.param_groups]
                    super().load_state_dict(state)
                    for group, buffer in zip(self.param_groups, buffers):
                        group["buffer"] = buffer


            def resume(optimizer, path):
                optimizer.load_state_dict(torch.load(path, map_location="cpu"))
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, x, y, path):
            table = torch.load(path, map_location="cpu").to("xla")
            x, y = x.to("xla"), y.to("xla")
            return model(x) * table[y]
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one operation, one call or one assignment."""
        if isinstance(node, cst.Dict | cst.Call):
            yield from self._group(node, facts)
        if isinstance(node, cst.Assign | cst.Call) and is_mixed(node, facts):
            yield self.hit(node, MIXED, Severity.WARNING)
        if isinstance(node, cst.BinaryOperation):
            yield from self._operation(node, facts)
        elif isinstance(node, cst.Subscript):
            if (
                _is_indexed_by_device(node, facts)
                and is_loaded(node.value, facts)
                and not _is_mapping(node.value, facts)
            ):
                yield self.hit(
                    node,
                    f"{code(node.value)} {WHERE}, and is indexed by a tensor of the device: {MOVE}",
                )
        elif isinstance(node, cst.Assign):
            yield from self._assignment(node, facts)
        elif isinstance(node, cst.AugAssign):
            yield from self._copied(node, node.target, [node.value], facts)
        elif isinstance(node, cst.Call):
            yield from self._call(node, facts)

    def _group(self, node: cst.Dict | cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a group of parameters that holds a tensor of the device, or that tensor and views of it."""
        kept, views = _kept_in_group(node, facts)
        if not kept:
            return
        loads = facts.context.calls.loads_states
        if kept and views:
            message = (
                f"`{views}` are views of `{kept}` in a group of parameters: the optimizer's load_state_dict "
                "copies the groups, and on XLA a copy parts them: what is written to one does not show in "
                "the other; keep both in attributes of the optimizer"
            )
            yield self.hit(node, message, Severity.ERROR if loads else Severity.INFO)
            return
        message = (
            f"`{kept}` is a tensor of the device in a group of parameters: the optimizer's load_state_dict "
            "takes the groups of a checkpoint as they are, on the host; keep it in an attribute of the "
            "optimizer, or move it after the loading"
        )
        yield self.hit(node, message, Severity.WARNING if loads else Severity.INFO)

    def _operation(self, node: cst.BinaryOperation, facts: Facts) -> Iterable[Hit]:
        sides = (node.left, node.right)
        for side, other in (sides, sides[::-1]):
            if not facts.values.on_device(other) or not is_loaded(side, facts):
                continue
            if isinstance(side, cst.Subscript) and _is_indexed_by_device(side, facts):
                return  # reported as such
            if isinstance(node.operator, cst.MatrixMultiply):
                message = f"{code(side)} {WHERE}, and meets a tensor of the device: {MOVE}"
                yield self.hit(node, message)
            else:
                yield from self._copied(node, node.left, [node.right], facts)
            return

    def _copied(
        self,
        node: cst.CSTNode,
        changed: cst.BaseExpression,
        others: list[cst.BaseExpression],
        facts: Facts,
    ) -> Iterable[Hit]:
        """Yield what runs, and copies a loaded tensor at every step: `mean.add_(x)`, `x.sub(mean)`."""
        if facts.steps.when(node) not in (When.STEP, When.EVERY_STEP):
            return
        for side, rest in ((changed, others), *((other, [changed]) for other in others)):
            if any(map(facts.values.on_device, rest)) and is_loaded(side, facts):
                message = f"{code(side)} {WHERE}, and is copied to the device at every step: {MOVE}"
                yield self.hit(node, message, Severity.WARNING)
                return

    def _copying(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a sum or a product as a method: of a loaded tensor, or given one."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value == "load_state_dict":
            return
        changed = call.func.value
        while (
            isinstance(changed, cst.Call)
            and isinstance(changed.func, cst.Attribute)
            and changed.func.attr.value in COPIES
            and changed.func.attr.value.endswith("_")
        ):
            changed = changed.func.value  # `mean.mul_(0.9).add_(x)` changes `mean`
        yield from self._copied(call, changed, [arg.value for arg in call.args], facts)

    def _assignment(self, node: cst.Assign, facts: Facts) -> Iterable[Hit]:
        """Yield `weight.data = checkpoint["w"]` and `model.weight = nn.Parameter(checkpoint["w"])`."""
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute):
            return
        value = node.value
        makes = isinstance(value, cst.Call) and facts.names.of(value.func) == "torch.nn.Parameter"
        if isinstance(value, cst.Call) and makes and value.args:
            value = value.args[0].value
        elif target.attr.value != "data":
            return
        own = code(target.value) == "self"  # a module's, which moves with it
        if not own and is_loaded(value, facts) and not _moves_later(node, target, facts):
            message = f"{code(value)} {WHERE}, and so is the parameter then: .copy_() it, or {MOVE}"
            yield self.hit(node, message)

    def _call(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        func = call.func
        last = func.attr.value if isinstance(func, cst.Attribute) else ""
        if isinstance(func, cst.Attribute) and last == "load_state_dict":
            assign = keyword(call, "assign")
            on = truth(assign.value, facts) if assign is not None else False
            first = keyword(call, "state_dict") or (call.args[0] if call.args else None)
            kept = facts.context.calls.kept_states.get(facts.context.place(call))
            if kept is not None:
                if first is not None and is_loaded(first.value, facts):
                    yield from self._kept(call, func, kept, facts)
                return
            if on is False or first is None:
                return
            loaded = is_loaded(first.value, facts) or _is_filled_with_loaded(first.value, facts)
            if loaded and not _moves_later(call, func.value, facts):
                message = (
                    "assign=True makes the tensors of the checkpoint, on the host, the parameters: leave "
                    "it out, or move the model after it, before its optimizer is made"
                )
                yield self.hit(call, message, None if on else Severity.WARNING)
            return
        if last in COPIES:
            yield from self._copying(call, facts)
            return
        values = [arg.value for arg in call.args]
        name = facts.names.of(func) or ""
        by_model = not name and facts.values.kind(func) is Kind.MODEL
        of_torch = name.startswith("torch.") and not name.startswith(NO_OPERATION)
        # No tensor has these methods: `model_dict.update(weights)` fills the dictionary of a state_dict().
        of_tensor = (
            isinstance(func, cst.Attribute)
            and not name
            and last not in FILLS
            and facts.values.on_device(func.value)
        )
        parts = [p for v in values for p in (_elements(v) or [v])]
        on_device = of_tensor or (of_torch and any(map(facts.values.on_device, parts)))
        if not by_model and not on_device:
            yield from self._method(call, parts, facts)
            return
        for part in parts:
            if is_loaded(part, facts):
                message = f"{code(part)} {WHERE}, and meets tensors of the device: {MOVE}"
                yield self.hit(call, message)
                return

    def _kept(self, call: cst.Call, func: cst.Attribute, kept: str, facts: Facts) -> Iterable[Hit]:
        """Yield a call that gives a checkpoint to an object which keeps its tensors."""
        if not _moves_later(call, func.value, facts):
            message = (
                f"{kept} keeps the tensors of the checkpoint, which are on the host: move them to the "
                "device there, or .copy_() them"
            )
            yield self.hit(call, message)

    def _method(
        self, call: cst.Call, parts: list[cst.BaseExpression], facts: Facts
    ) -> Iterable[Hit]:
        """Yield a method of a loaded tensor that is given one of the device: `table.gather(0, x)`."""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value in KEEPS:
            return
        if any(map(facts.values.on_device, parts)) and is_loaded(func.value, facts):
            message = f"{code(func.value)} {WHERE}, and meets tensors of the device: {MOVE}"
            yield self.hit(call, message)


def _is_filled_with_loaded(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether parts of a checkpoint are put into the dictionary `node`: `state.update(weights)`."""
    if not isinstance(node, cst.Name):
        return False
    return any(is_loaded(put.value, facts) for put in facts.bindings.put_into(node))


def _is_indexed_by_device(node: cst.Subscript, facts: Facts) -> bool:
    indexes = (e.slice.value for e in node.slice if isinstance(e.slice, cst.Index))
    return any(map(facts.values.on_device, indexes))


def _is_mapping(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a variable that may be a dictionary, or is taken from one by a computed key."""
    while isinstance(value, cst.Subscript):
        index = value.slice[0].slice
        if not isinstance(index, cst.Index) or isinstance(index.value, cst.SimpleString):
            return False
        value = value.value
    if not isinstance(value, cst.Name):
        return False
    return any(isinstance(source, cst.Dict) for source in facts.context.bound_values(value))


def _elements(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(value, cst.List | cst.Tuple):
        return [element.value for element in value.elements]
    return []


def _is_not_moved_yet(node: cst.CSTNode, target: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `target` is a part of a module that is still being made on the host, and moves as a whole.

    It is so in the `__init__` of a module, and in a function that makes a module and returns it: unless the
    part has been moved above.
    """
    function = facts.context.function_around(node)
    if function is None:
        return False
    names = (base_name(target) or "").split(".")
    if names[0] == "self":
        holder = ".".join(names[:2])
        makes = _runs_in_init(function, facts) and (
            holder == "self" or _is_made(holder, facts.context.class_around(node))
        )
    else:
        holder = names[0]
        returned = (statement.value for statement in facts.below(function.body, cst.Return))
        makes = _is_made(holder, function) and any(
            value is not None and code(value) == holder for value in returned
        )
    return makes and not _is_moved_above(node, holder, function, facts)


def _runs_in_init(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether a method is the `__init__` of a module, or only called there."""
    owner = facts.context.class_around(function)
    if owner is None or facts.context.function_around(function) is not None:
        return False
    methods = [statement for statement in owner.body.body if isinstance(statement, cst.FunctionDef)]
    is_module = any(code(base.value).endswith("Module") for base in owner.bases)
    if not is_module and all(method.name.value != "forward" for method in methods):
        return False
    if function.name.value == "__init__":
        return True
    here = f"self.{function.name.value}"
    callers = [m for m in methods if any(code(a) == here for a in facts.below(m, cst.Attribute))]
    return bool(callers) and all(method.name.value == "__init__" for method in callers)


def _is_made(holder: str, around: cst.CSTNode | None) -> bool:
    """Whether each value that `holder` is given in `around` is what a call makes."""
    assigned = nodes_of(around, cst.Assign) if around is not None else ()
    values = [
        assignment.value
        for assignment in assigned
        if any(code(t.target) == holder for t in assignment.targets)
    ]
    return bool(values) and all(isinstance(value, cst.Call) for value in values)


def _is_moved_above(
    node: cst.CSTNode, holder: str, function: cst.FunctionDef, facts: Facts
) -> bool:
    """Whether a statement of the function above `node` moves `holder`, or what it is a part of."""
    line = facts.context.position(node).line
    wholes = {holder, holder.partition(".")[0]}
    for call in facts.below(function.body, cst.Call):
        if facts.context.position(call).line >= line or not is_move(call, facts.context):
            continue
        statement = facts.context.statement_around(call)
        moved = {code(call.func).rpartition(".")[0]}
        if isinstance(statement, cst.SimpleStatementLine):
            moved |= {
                code(t.target)
                for assignment in facts.below(statement, cst.Assign)
                for t in assignment.targets
            }
        if any(name in wholes or name.startswith(f"{holder}.") for name in moved):
            return True
    return False


def _moves_later(node: cst.CSTNode, target: cst.BaseExpression, facts: Facts) -> bool:
    """Whether the model that `target` is a part of is moved below `node`: in its function, or as a whole."""
    if _is_not_moved_yet(node, target, facts):
        return True
    root = (base_name(target) or "").partition(".")[0]
    around = facts.context.function_around(node) or facts.context.module
    line = facts.context.position(node).line
    for call in facts.below(around, cst.Call):
        if facts.context.position(call).line < line:
            continue
        names = {name.value for name in facts.below(call, cst.Name)}
        moving = (
            is_move(call, facts.context) or facts.context.place(call) in facts.context.calls.moving
        )
        if moving and root in names:
            return True
    return False


def _kept_in_group(node: cst.Dict | cst.Call, facts: Facts) -> tuple[str, str]:
    """Return the names of a device tensor and of its views in a group of the script's own optimizer.

    Returns:
        An empty string for what is not there, and for both if the optimizer loads its state in a way of its
        own. Views without their tensor count as a tensor.
    """
    entries = _entries(node)
    owner = facts.context.class_around(node) if "params" in entries else None
    if owner is None or not is_in_optimizer(node, facts.context):
        return "", ""
    methods = {method.name.value for method in nodes_of(owner, cst.FunctionDef)}
    if methods & {"load_state_dict", "__setstate__"}:
        return "", ""
    own = {name: value for name, value in entries.items() if name not in ("params", "lr")}
    views = [name for name, value in own.items() if holds_views(value, facts)]
    kept = [n for n, value in own.items() if n not in views and facts.values.on_device(value)]
    first, second = next(iter(kept), ""), next(iter(views), "")
    return (first, second) if first else (second, "")


def _entries(node: cst.Dict | cst.Call) -> dict[str, cst.BaseExpression]:
    """Return the entries of a dictionary by their names: `dict(params=p)` or `{"params": p}`."""
    if isinstance(node, cst.Dict):
        pairs = [part for part in node.elements if isinstance(part, cst.DictElement)]
        return {string_value(pair.key) or "": pair.value for pair in pairs}
    if code(node.func) != "dict":
        return {}
    return {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
