"""Functions and methods of the script in the interface: over states in place of modules."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.train.slice.data import MICRO
from migrate.train.slice.text import FunctionNode, ScriptText, free_names
from migrate.train.watch.calls import MODULE, PLAIN, SeenCall, is_plain
from migrate.train.watch.functions import FIXED, OBJECT, TENSORS, Attributes, Output, PortedFunction

LOOP, PART, UPDATE, GRADIENT, APPLY = "loop", "part", "update", "gradient", "apply"
OPTIMIZER, SCHEDULE = "optimizer", "schedule"


@dataclass(frozen=True)
class Role:
    """Part of the training that a function of the script has.

    Attributes:
        kind: "loop" (all of it), "part" (some updates, each time it is called), "update", "gradient" (of one
            micro-batch), "apply" (an update by the gradients that another method of the object gave),
            "optimizer" or "schedule" (which the function builds).
        call: a call of the function.
        sites: numbers of the updates that it makes.
    """

    kind: str
    call: SeenCall
    sites: tuple[int, ...] = ()


class FunctionTexts:
    """Source of the script's functions in the interface.

    Args:
        script: the script.
        functions: functions that are methods of the program's step.
        roles: functions that train, by qualified name.
        batch: names of the batch in the statements of the loss.
        in_data: what `data.py` defines, by name.
        unpacked: names of the batch that a function unpacks from another one → `batch[0]`.
        rollouts: whether `data.py` runs the trained modules.
        updates: names of the updates, if there are several.
        rates: first line of a function of learning rates → its name and parameters in `optimizer.py`.
    """

    def __init__(
        self,
        script: ScriptText,
        functions: Sequence[PortedFunction],
        roles: Mapping[str, Role],
        batch: Sequence[str],
        in_data: Mapping[str, ast.stmt],
        unpacked: Mapping[str, str],
        *,
        rollouts: bool = False,
        updates: Sequence[str] = (),
        rates: Mapping[int, tuple[str, Sequence[str]]] | None = None,
    ) -> None:
        self._updates = tuple(updates)
        self._rates = rates or {}
        self._functions = {function.qualified: function for function in functions}
        self._unpacked = unpacked
        self._roles, self._batch, self._in_data = roles, tuple(batch), in_data
        self._rollouts = rollouts

    def function(self, node: ast.FunctionDef) -> str:
        """A function of the module; "" if it has no counterpart."""
        return self._text(node, node.name)

    def class_(self, node: ast.ClassDef) -> str:
        """A class with those of its methods that have a counterpart; "" if none has."""
        methods = []
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                text = self._text(member, f"{node.name}.{member.name}")
                text = text or self._delegated(node, member) or self._rate(node, member)
                if text:
                    methods.append(text.replace("def forward(", "def __call__("))
        if not methods:
            return ""
        init = next((m for m in node.body if getattr(m, "name", "") == "__init__"), None)
        assert init is None or isinstance(init, ast.FunctionDef)
        base, start = self._constructor(node, init)
        if self._applies(node.name):
            start += f"    {_SINCE} = []\n"
        body = [f'"""`{node.name}` over states, as `load` gives them."""', start, *methods]
        lines = "\n\n".join(part.rstrip("\n") for part in body if part)
        return f"class {node.name}{base}:\n" + _indented(lines) + "\n"

    def _constructor(self, node: ast.ClassDef, init: ast.FunctionDef | None) -> tuple[str, str]:
        """Base class and text of the constructor."""
        parameters = parameter_names(init)[1:] if init is not None else []
        if self._runs_in_data(node):
            start = head(init) if init is not None else "def __init__(self):"
            return "", (
                f"{start}\n"
                '    """Modules are torch\'s, for the rollouts of `data.py`."""\n'
                f"    {_OF_DATA} = _data.{node.name}({passed(init)})\n    self.state = _fresh()\n"
            )
        held = _model_parameter(init, self._trained_attributes(node))
        if held is not None:
            assert init is not None
            others = [name for name in parameters if name != held]
            checks = "".join(
                f"    _absent({name!r}, {name}{_default(init, name)})\n" for name in others
            )
            return "", (
                f"{head(init)}\n"
                f'    """`{held}` is a state. What the program has itself is None."""\n'
                f"{checks}    self.state = {held}\n"
            )
        if self._is_settings(node, init):
            text = "" if init is None else _without_super(init)
            return "", text
        if node.name in self._in_data:
            arguments = ", ".join(parameters)
            if init is None:
                return f"(_data.{node.name})", "@property\ndef state(self):\n    return _fresh()\n"
            return f"(_data.{node.name})", (
                f"{head(init)}\n    super().__init__({arguments})\n    self.state = _fresh()\n"
            )
        return "", "def __init__(self, state):\n    self.state = state\n"

    def _applies(self, owner: str) -> bool:
        """Whether an object computes gradients in one method, and updates the weights in another."""
        return any(
            role.kind == APPLY and name.rpartition(".")[0] == owner
            for name, role in self._roles.items()
        )

    def _runs_in_data(self, node: ast.ClassDef) -> bool:
        """Whether an object of `data.py` makes rollouts, or trains on them."""
        methods = [f"{node.name}.{getattr(member, 'name', '')}" for member in node.body]
        roles = {self._roles[name].kind for name in methods if name in self._roles}
        return self._rollouts and node.name in self._in_data and bool(roles & {LOOP, PART})

    def _delegated(self, node: ast.ClassDef, member: ast.FunctionDef) -> str:
        """A method that `data.py` has as the script has it, over the object of `data.py`."""
        own = self._in_data.get(node.name)
        if member.name.startswith("_") or not self._runs_in_data(node):
            return ""
        text = ast.unparse(member)
        if not any(ast.unparse(other) == text for other in getattr(own, "body", ())):
            return ""
        static = [d for d in member.decorator_list if ast.unparse(d) == "staticmethod"]
        decorator = "@staticmethod\n" if static else ""
        of = f"_data.{node.name}" if static else _OF_DATA
        call = f"{of}.{member.name}({passed(member, method=not static)})"
        doc = f'    """`{node.name}.{member.name}`, in torch."""'
        return f"{decorator}{head(member)}\n{doc}\n    return {call}\n"

    def _rate(self, node: ast.ClassDef, member: ast.FunctionDef) -> str:
        """A method that gives the learning rate, or a factor of it, of an update."""
        name, parameters = self._rates.get(_first(member), ("", ()))
        if not name or parameter_names(member) != ["self", *parameters]:
            return ""
        return (
            f'{head(member)}\n    """`{node.name}.{member.name}` in JAX."""\n'
            f"    return _optimizer.{name}({', '.join(parameters)})\n"
        )

    def _trained_attributes(self, node: ast.ClassDef) -> set[str]:
        """Attributes of a trainer that are modules of the step."""
        names = set()
        for member in node.body:
            role = self._roles.get(f"{node.name}.{getattr(member, 'name', '')}")
            if role is not None:
                names |= set(role.call.held)
        return names

    def _is_settings(self, node: ast.ClassDef, init: ast.FunctionDef | None) -> bool:
        """Whether an object has plain values alone, which its methods compare."""
        selves = [
            self._functions[f"{node.name}.{m.name}"].arguments.get("self", ("", None))
            for m in node.body
            if isinstance(m, ast.FunctionDef) and f"{node.name}.{m.name}" in self._functions
        ]
        plain = bool(selves) and all(kind == FIXED for kind, _ in selves)
        return plain and all(hasattr(builtins, name) for name in (free_names(init) if init else ()))

    # ------------------------------------------------------------------ one function

    def _text(self, node: ast.FunctionDef, qualified: str) -> str:
        if any(ast.unparse(d) not in ("staticmethod",) for d in node.decorator_list):
            return ""
        function, role = self._functions.get(qualified), self._roles.get(qualified)
        text = ""
        if function is not None and function.first == _first(node):
            text = self._of_step(node, function)
        elif role is not None and role.call.first == _first(node):
            text = self._that_trains(node, role)
        decorators = "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list)
        return f"{decorators}{text}" if text else ""

    def _of_step(self, node: ast.FunctionDef, function: PortedFunction) -> str:
        """A function that is a method of the step."""
        names = parameter_names(node)
        if list(function.arguments) != names:
            return ""
        checks, states = "", {}
        for name, (kind, value) in function.arguments.items():
            if kind == MODULE:
                states[value] = name
            elif kind == OBJECT and name != "self":
                checks += f"    _absent({name!r}, {name})\n"
            elif kind == FIXED:
                checks += _check(name, value)
        state = "self.state" if function.arguments.get("self", ("",))[0] == OBJECT else "_fresh()"
        modules = ", ".join(f"{child!r}: {name}" for child, name in states.items())
        inputs = ", ".join(
            f"{argument!r}: {name}" + "".join(f"[{key!r}]" for key in path)
            for (name, path), argument in function.inputs.items()
        )
        over = f"; {_listed(list(states.values()))} a state" if len(states) == 1 else ""
        over = f"; {_listed(list(states.values()))} states" if len(states) > 1 else over
        single = isinstance(function.result, Output)
        values = "value" if single else "values"
        return (
            f"{head(node)}\n"
            f'    """`{function.qualified}` in JAX{over}."""\n'
            f"{checks}"
            f"    {values} = _called({function.method!r}, {state}, {{{modules}}}, {{{inputs}}})\n"
            f"    return {'value' if single else _result(function.result)}\n"
        )

    def _that_trains(self, node: ast.FunctionDef, role: Role) -> str:
        """A function that runs the training, or a part of it."""
        call = role.call
        names = parameter_names(node)
        if list(call.arguments) != names:
            return ""
        modules = [name for name, (kind, _) in call.arguments.items() if kind == MODULE]
        state = modules[0] if modules else "self.state" if names[:1] == ["self"] else "_fresh()"
        # A function may unpack the batch itself.
        parts = {n: n if n in names else self._unpacked.get(n, "") for n in self._batch}
        wholes = {part.partition("[")[0] for part in parts.values()}
        taken = {*modules, "self", *(wholes if role.kind in (UPDATE, GRADIENT) else ())}
        checks = ""
        for name, (kind, value) in call.arguments.items():
            if name in taken:
                continue
            checks += (
                _check(name, value)
                if kind == PLAIN
                else f"    _absent({name!r}, {name}{_default(node, name)})\n"
            )
        for other in modules[1:]:
            checks += f"    _absent({other!r}, {other})\n"
        if len(role.sites) > 1 and role.kind in (GRADIENT, OPTIMIZER, SCHEDULE):
            return ""
        where = f"; `{state}` is a state" if modules else ""
        batch = ", ".join(f"{name!r}: {part}" for name, part in parts.items())
        if role.kind in (UPDATE, GRADIENT) and not wholes <= set(names):
            return ""
        keeps = "    self.state = state\n" if state == "self.state" else ""
        if role.kind == PART:
            return self._part(node, role, state, where)
        if role.kind == LOOP and MICRO not in self._in_data:
            text = (
                f'    """`{call.function}`: the whole training, on the batches of the program{where}.\n\n'
                f'    Returns the trained state.\n    """\n{checks}    state = {state}\n'
                "    for micro in _data.batches():\n"
                f"        state = _train.train_step(state, micro)[0]\n{keeps}    return state\n"
            )
        elif role.kind == LOOP:
            text = (
                f'    """`{call.function}`: the whole training, on the batches of the program{where}.\n\n'
                f'    Returns the trained state.\n    """\n{checks}'
                f"    state = _trained({state}, _data.{MICRO})\n{keeps}    return state\n"
            )
        elif role.kind == UPDATE and len(role.sites) > 1:
            text = (
                f'    """`{call.function}`: one update of each of its kinds{where}.\n\n'
                f"    Returns the new state, and what `step` gives beside it, by the update's name.\n"
                f'    """\n{checks}'
                f"    now, reports = {state}, {{}}\n"
                f"    for site in {role.sites!r}:\n"
                f"        now, reports[SITES[site]] = step(now, [{{{batch}}}], site)\n"
                "    return now, reports\n"
            )
        elif role.kind == UPDATE:
            text = (
                f'    """`{call.function}`: one update{where}.\n\n'
                f'    Returns the new state, and what `step` gives beside it.\n    """\n{checks}'
                f"    return step({state}, [{{{batch}}}]{self._site(role)})\n"
            )
        elif role.kind == APPLY:
            text = (
                f'    """`{call.function}`: one update over the micro-batches since the last one.\n\n'
                f'    Returns the new state, and what `step` gives beside it.\n    """\n'
                f"    self.state, report = step(self.state, {_SINCE})\n"
                f"    {_SINCE} = []\n    return self.state, report\n"
            )
        elif role.kind == GRADIENT:
            applied = state == "self.state" and self._applies(call.function.rpartition(".")[0])
            since = f"    {_SINCE}.append({{{batch}}})\n" if applied else ""
            text = (
                f'    """`{call.function}`: the loss of a micro-batch and its gradients{where}."""\n'
                f"{checks}{since}"
                f"    return loss_and_gradients({state}, {{{batch}}}{self._site(role)})\n"
            )
        else:
            value = "optimizer" if role.kind == OPTIMIZER else "learning_rate_of"
            what = (
                "the optimizer in optax"
                if role.kind == OPTIMIZER
                else "the learning rate of an update"
            )
            if self._updates:
                number = 0 if role.kind == OPTIMIZER else 1
                value = f"{self._updates[role.sites[0]]}_optimizer()[{number}]"
            text = f'    """`{call.function}`: {what}."""\n{checks}    return _optimizer.{value}\n'
        return f"{head(node)}\n{text}"

    def _site(self, role: Role) -> str:
        """Text of the argument that says which update is meant."""
        return f", {role.sites[0]}" if self._updates else ""

    def _part(self, node: ast.FunctionDef, role: Role, state: str, where: str) -> str:
        """A function that trains each time it is called: its batches are those of `data.py`."""
        call = role.call
        owner, _, name = call.function.rpartition(".")
        method = parameter_names(node)[:1] == ["self"]
        code = self._in_data.get(owner or name)
        own = next((m for m in getattr(code, "body", ()) if getattr(m, "name", "") == name), code)
        if not isinstance(own, ast.FunctionDef) or (method and not self._rollouts):
            return ""
        read = {n.id for n in ast.walk(own) if isinstance(n, ast.Name)}
        checks, values = "", {}
        for parameter, (kind, _) in call.arguments.items():
            if parameter == "self":
                continue
            if kind == MODULE and parameter == state:
                values[parameter] = "_Module()"
            elif parameter not in read:
                checks += f"    _absent({parameter!r}, {parameter}{_default(node, parameter)})\n"
        target = f"{_OF_DATA}.{name}" if method else f"_data.{name}"
        keeps = "    self.state = state\n" if state == "self.state" else ""
        arguments = passed(node, method=method, values=values)
        return (
            f"{head(node)}\n"
            f'    """`{call.function}`: its updates, on its batches{where}.\n\n'
            f'    Returns the trained state.\n    """\n{checks}'
            f"    state = _trained({state}, lambda: {target}({arguments}))\n{keeps}    return state\n"
        )


# ---------------------------------------------------------------------------- helpers of the text

# An object of the script as `data.py` has it, in torch.
_OF_DATA = "self._of_data"
# Micro-batches of an object since its last update.
_SINCE = "self.micro_batches"


_HELPERS = '''
@functools.cache
def _fresh():
    """The state with which the script starts."""
    return _train.load()


def _absent(name, value, default=None):
    """Require None, or the default: the program has its own."""
    if value is not None and value != default:
        raise ValueError(f"the program has its own {name}: pass None")


def _like(name, value, expected):
    """Require an object with the attributes that the program was written for, or None."""
    if value is None:
        return
    for key, known in expected.items():
        given = value[key] if isinstance(value, dict) else getattr(value, key)
        _require(f"{name}.{key}", given, known)


class _Module:
    """Takes the place of a trained module that only receives weights."""

    def load_state_dict(self, weights):
        pass


def _trained(state, batches):
    """The state after the updates of batches, which a function of data.py gives."""
    now, micro = [state], {empty}
    if hasattr(_data, "WEIGHTS"):
        _data.WEIGHTS[:] = [lambda: _train.in_torch(now[-1])]
    with _data.command_line(), contextlib.suppress(_data.Ended):
        for {batch} in batches():
            if batch is None:
{update}
            else:
                {add}(_data.arrays(batch))
    return now[-1]


def _called(method, state, states, inputs):
    """A method of the step, with the modules of these states."""
    params, variables = dict(state.params), dict(state.variables)
    for module, given in states.items():
        for top in MODULES_IN_FLAX[module]:
            params[top] = given.params[top]
            for kind, tree in given.variables.items():
                if top in tree:
                    variables[kind] = {**variables[kind], top: tree[top]}
    return _values(method, params, variables, {name: jnp.asarray(x) for name, x in inputs.items()})
'''


_OF_UPDATE = """\
                now[:] = [_train.train_step(now[-1], micro)[0]]
                micro = []"""
_OF_UPDATES = """\
                now[:] = [_train.train_step(now[-1], name, micro.pop(name, []))[0]]"""


def helpers(*, several: bool = False) -> str:
    """Helpers of the script's functions; `several`: `data.py` gives a name with each batch."""
    parts = {
        "{empty}": "{}" if several else "[]",
        "{batch}": "name, batch" if several else "batch",
        "{update}": _OF_UPDATES if several else _OF_UPDATE,
        "{add}": "micro.setdefault(name, []).append" if several else "micro.append",
    }
    text = _HELPERS
    for part, own in parts.items():
        text = text.replace(part, own)
    return text.strip()


def head(node: ast.FunctionDef) -> str:
    """The head of a function, without annotations."""
    twin = ast.parse(ast.unparse(ast.FunctionDef(**{**_fields(node), "decorator_list": []}))).body[
        0
    ]
    assert isinstance(twin, ast.FunctionDef)
    for argument in ast.walk(twin.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"def {node.name}({ast.unparse(twin.args)}):"


def passed(
    node: ast.FunctionDef | None, *, method: bool = True, values: Mapping[str, str] | None = None
) -> str:
    """Arguments of a call that passes the parameters on; `values` has others' text.

    Args:
        node: the function.
        method: whether its first parameter is the object.
        values: parameter → text of the argument.
    """
    if node is None:
        return ""
    texts_of = values or {}
    places = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)][method:]
    texts = [texts_of.get(name, name) for name in places]
    texts += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    texts += [f"{a.arg}={texts_of.get(a.arg, a.arg)}" for a in node.args.kwonlyargs]
    texts += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    return ", ".join(texts)


def _fields(node: ast.FunctionDef) -> dict[str, Any]:
    return {
        "name": node.name,
        "args": node.args,
        "body": [ast.Pass()],
        "lineno": 1,
        "col_offset": 0,
        "type_params": [],
    }


def _check(name: str, value: Any) -> str:
    if isinstance(value, Attributes):
        return (
            f"    _like({name!r}, {name}, {dict(value.values)!r})\n"
            if value.values
            else f"    _absent({name!r}, {name})\n" * (name != "self")
        )
    return f"    _require({name!r}, {name}, {value!r})\n" if is_plain(value) else ""


def absent(node: ast.FunctionDef, name: str) -> str:
    """Statement that requires None, or the default, for a parameter."""
    return f"    _absent({name!r}, {name}{_default(node, name)})\n"


def _default(node: ast.FunctionDef, name: str) -> str:
    """Text of a further argument: the parameter's own default, if it is not None."""
    every = [*node.args.posonlyargs, *node.args.args]
    pairs = zip(every[len(every) - len(node.args.defaults) :], node.args.defaults, strict=True)
    known = {a.arg: d for a, d in pairs} | {
        a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d
    }
    try:
        value = ast.literal_eval(known[name]) if name in known else None
    except ValueError:  # it names something
        return ""
    return "" if value is None else f", {ast.unparse(known[name])}"


def _result(shape: Any) -> str:
    if isinstance(shape, Output):
        return f"values[{shape.number}]"
    if isinstance(shape, tuple):
        return "(" + "".join(f"{_result(item)}, " for item in shape).rstrip() + ")"
    if isinstance(shape, list):
        return "[" + ", ".join(map(_result, shape)) + "]"
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{key!r}: {_result(item)}" for key, item in shape.items()) + "}"
    return repr(shape)


def parameter_names(node: ast.FunctionDef | None) -> list[str]:
    """Names of all parameters of a function."""
    if node is None:
        return []
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    stars = [star.arg for star in (node.args.vararg, node.args.kwarg) if star is not None]
    return [*(argument.arg for argument in every), *stars]


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _model_parameter(init: ast.FunctionDef | None, held: set[str]) -> str | None:
    """Parameter of a constructor that becomes a trained module of the object."""
    for node in ast.walk(init) if init is not None else ():
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for to, value in assigned(target, node.value):
                if (
                    isinstance(to, ast.Attribute)
                    and to.attr in held
                    and isinstance(value, ast.Name)
                ):
                    return value.id
    return None


def assigned(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Pairs of what is assigned: `a, b = x, y` has two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _without_super(init: ast.FunctionDef) -> str:
    """A constructor without the call of its base's, and without annotations."""
    body = [s for s in init.body if "super()" not in ast.unparse(s)]
    lines = "\n".join(ast.unparse(s) for s in body) or "pass"
    return f"{head(init)}\n{_indented(lines)}\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else line for line in text.splitlines())


def _listed(names: Sequence[str]) -> str:
    every = " and ".join(f"`{name}`" for name in names)
    return f"{every} is" if len(names) == 1 else f"{every} are"


__all__ = ["TENSORS", "FunctionNode", "FunctionTexts", "Role", "head", "helpers"]
