"""Public names of a script in the interface of its program: imports, and functions of the same heads."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from migrate.model.calls.rank_tests import last_part
from migrate.train.slice.evaluation import EVALUATED
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import FunctionNode, ScriptText, loads, returns_built, root
from migrate.train.watch.calls import DATA, MODULE, PLAIN, SeenCall
from migrate.train.write.averages import average_class
from migrate.train.write.constructors import (
    changes_model,
    config_class,
    constructor_text,
    makes_models,
)
from migrate.train.write.defaults import constants_of, with_plain_defaults
from migrate.train.write.functions import FunctionTexts, absent
from migrate.train.write.numbers import function_of_numbers
from migrate.train.write.texts import ProgramFacts

# Functions of every interface; the script's functions of these names give way.
OWN = ("load", "weights", "outputs", "loss_and_gradients", "step", "batches")
EXPERIENCE, ROLLOUT = "experience", "rollout"
# Classes of sizes that a text makes.
_CONFIGS = re.compile(r"\b(\w*StepConfig)\(\)")
# Names in `optimizer.py` that are the program's own, not the script's.
_OF_OPTIMIZER = ("schedule", "factor", "decays", "optimizer", "learning_rate_of")
_NO_COUNTERPART = "the program has no counterpart with these parameters"
_OTHER_DEFAULT = "a default of its parameters is no literal and no constant of the script"
_OWN_FUNCTION = "each interface.py has another function of this name"
_EVALUATED = (
    "evaluate.py computes it, where data.py calls it; no parameter of it is the model alone"
)
_EVALUATING = f'''\
@contextlib.contextmanager
def _evaluating(state):
    """Let `data.py` evaluate a state."""
    before, _data.{EVALUATED} = _data.{EVALUATED}, Evaluations(state, [], lambda: None)
    try:
        yield
    finally:
        _data.{EVALUATED} = before
'''


@dataclass(frozen=True)
class Sources:
    """Files of the program that have public names, and what they define.

    Attributes:
        data, model, optimizer: name → definition in the file.
    """

    data: Mapping[str, ast.stmt]
    model: Mapping[str, ast.stmt]
    optimizer: Mapping[str, ast.stmt]


@dataclass
class Written:
    """Source for the public names.

    Attributes:
        names: names that the interface has.
        imports: its import statements.
        functions: its functions.
        missing: names that it does not have, each with the reason.
    """

    names: set[str]
    imports: list[str]
    functions: list[str]
    missing: dict[str, str]


def own_names(facts: ProgramFacts) -> tuple[str, ...]:
    """Functions of the interface of a program; the script's functions of these names give way."""
    rollouts = (EXPERIENCE, ROLLOUT) if facts.starts else ()
    return (*OWN, *(name for name in rollouts if name != ROLLOUT or facts.scores))


class PublicNames:
    """Public names of a script for which the program has a counterpart."""

    def __init__(
        self,
        script: ScriptText,
        loss: LossSlice,
        facts: ProgramFacts,
        recorded: Mapping[str, Any],
        files: Sources,
        texts: FunctionTexts,
    ) -> None:
        self._script, self._loss, self._facts = script, loss, facts
        self._own = own_names(facts)
        self._recorded, self._files, self._texts = recorded, files, texts

    def write(self) -> Written:
        """Write an import or a function for each name that has a counterpart."""
        public = {
            node.name: node
            for node in self._script.tree.body
            if isinstance(node, FunctionNode | ast.ClassDef)
        }
        classes = {n for n, node in self._files.model.items() if isinstance(node, ast.ClassDef)}
        of_model = classes & ({*public} | set(_imported(self._script.tree)))
        of_data = {
            name
            for name, node in public.items()
            if name in self._files.data
            and ast.unparse(node) == ast.unparse(self._files.data[name])
            and name not in of_model
        }
        written = Written(set(), [], [], {})
        constants = constants_of(self._script.tree)
        constructors = {
            name: constructor_text(
                node, self._recorded.get("constructors", {}).get(name), self._files.model[name]
            )
            for name, node in public.items()
            if name in of_model and name not in self._own and isinstance(node, ast.ClassDef)
        }
        constructors = {name: text for name, text in constructors.items() if text}
        for file, names in (("data", of_data), ("model", of_model)):
            names = names - set(self._own)
            if file == "model":  # the script's own classes have its constructors
                names = {name for name in names if name not in constructors}
            if names:
                written.imports.append(f"from {file} import {', '.join(sorted(names))}")
                written.names |= names
        for name, node in public.items():
            if name in written.names:
                continue
            text = constructors.get(name, "")
            evaluation = self._evaluation(node)
            if name not in self._own and evaluation:
                text = evaluation
                if _EVALUATING not in written.functions:
                    written.imports.append("from evaluate import Evaluations")
                    written.functions.append(_EVALUATING)
            elif name not in self._own and isinstance(node, ast.FunctionDef) and _is_plain(node):
                text = self._loss_function(node) or self._of_optimizer(node) or self._model(node)
                text = text or self._groups(node)
                text = text or self._texts.function(node)
                for write in (changes_model, makes_models):
                    text = text or write(self._script, node, self._recorded["children"])
                text = text or function_of_numbers(self._script, node)
            elif not text and name not in self._own and isinstance(node, ast.ClassDef):
                text = average_class(node, self._recorded.get("average"))
                text = text or self._texts.class_(node)
            plain = text and with_plain_defaults(text, constants)
            if text and not plain:
                written.missing[name] = _OTHER_DEFAULT
            elif text:
                written.functions.append(plain)
                written.names.add(name)
                for method in missing_methods(node, text):
                    written.missing[f"{name}.{method}"] = self._why_missing(method)
            else:
                own = name in self._own
                written.missing[name] = _OWN_FUNCTION if own else self._why_missing(name)
        # Class of the methods that are functions of the script → class of its sizes.
        classes_of = self._recorded.get("function_classes", {"Functions": "StepConfig"})
        if self._recorded.get("functions"):
            of_functions = f"from functions import {', '.join(classes_of)}"
            written.imports.append(self._recorded.get("of_functions", of_functions))
        configs = {name for text in written.functions for name in _CONFIGS.findall(text)}
        configs |= set(classes_of.values() if self._recorded.get("functions") else ())
        if configs:
            written.imports.append(f"from model import {', '.join(sorted(configs))}")
        return written

    def _why_missing(self, name: str) -> str:
        """Reason for which the interface has no function of a name."""
        frames = (f for site in self._facts.evaluations for chain in site["chains"] for f in chain)
        return _EVALUATED if name in {frame.function for frame in frames} else _NO_COUNTERPART

    def _evaluation(self, node: ast.stmt) -> str:
        """A function that evaluates the model that it gets; "" if it does not."""
        if not isinstance(node, ast.FunctionDef) or len(self._recorded["children"]) != 1:
            return ""
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        sites = [
            site
            for site in self._facts.evaluations
            for chain in site["chains"]
            if any((f.function, f.first) == (node.name, first) for f in chain[:1])
        ]
        own, parameters = self._files.data.get(node.name), _parameters(node)
        if not sites or not isinstance(own, ast.FunctionDef) or _parameters(own) != parameters:
            return ""
        models = [n for n in parameters if all(n in site["modules"] for site in sites)]
        others = {n for site in sites for n in site["modules"]} - {*models}
        if len(models) != 1 or others or set(models) & loads(own):
            return ""
        passed = ["None" if name in models else name for name in parameters]
        if node.args.kwonlyargs or node.args.vararg or node.args.kwarg:
            return ""
        return (
            f"{_signature(node)}\n"
            f'    """`{node.name}` of the script; `{models[0]}` is a state."""\n'
            f"    with _evaluating({models[0]}):\n"
            f"        return _data.{node.name}({', '.join(passed)})\n"
        )

    def _loss_function(self, node: ast.FunctionDef) -> str:
        """A function whose value is the loss, up to a constant; "" if it is not one."""
        calls = [call for call in self._recorded["calls"] if call.function == node.name]
        if len(calls) != 1 or calls[0].factor is None:
            return ""
        call = calls[0]
        if not _is_of(call, node) or not self._only_scaled(node.name):
            return ""
        states = [name for name, (kind, _) in call.arguments.items() if kind == MODULE]
        modules = [value for kind, value in call.arguments.values() if kind == MODULE]
        if len(states) != 1 or modules != list(self._recorded["children"]):
            return ""  # a state has all modules of the step, and the function takes them by one parameter
        where: dict[str, str] = {}
        for name, (kind, value) in call.arguments.items():
            if kind == DATA:
                for path, argument in value.items():
                    where.setdefault(argument, name + "".join(f"[{key!r}]" for key in path))
        if set(self._facts.inputs) - set(where):
            return ""
        checks = _checks(call)
        if checks is None:
            return ""
        scale = _over(call.factor)
        statistics = self._facts.statistics and self._facts.training
        inputs = ", ".join(f"{name!r}: {where[name]}" for name in self._facts.inputs)
        state = states[0]
        return (
            f"{_signature(node)}\n"
            f'    """The loss of `{node.name}`; `{state}` is a state."""\n'
            + checks
            + f"    inputs = {{{inputs}}}\n"
            f"    return _loss_of({state}.params, {state}.variables, inputs)"
            + ("[0]" if statistics else "")
            + f"{scale}\n"
        )

    def _only_scaled(self, function: str) -> bool:
        """Whether the loss is the function's value, times or over numbers that no batch changes."""
        assigned: dict[str, list[ast.Assign]] = {}
        bound: set[str] = set()
        for node in ast.walk(ast.parse(self._loss.text)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.setdefault(node.targets[0].id, []).append(node)
            if isinstance(node, ast.AugAssign):
                return False
        changing = bound | {root for root, _ in self._recorded["inputs"].values()}
        value: ast.expr = ast.parse(self._loss.result, mode="eval").body
        for _ in range(16):
            if isinstance(value, ast.Call):
                return isinstance(value.func, ast.Name) and value.func.id == function
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div | ast.Mult):
                if loads(value.right) & changing:
                    return False
                value = value.left
            elif isinstance(value, ast.Name) and len(assigned.get(value.id, ())) == 1:
                value = assigned[value.id][0].value
            else:
                return False
        return False

    def _of_optimizer(self, node: ast.FunctionDef) -> str:
        """A function that builds the optimizer, or that `optimizer.py` has; "" if it is neither."""
        call = self._recorded.get("builder")
        if call is not None and call.function == node.name and _is_of(call, node):
            checks = _checks(call)
            if checks is not None and returns_built(node, self._recorded["optimizer"].line):
                return (
                    f'{_signature(node)}\n    """The optimizer of `{node.name}`, in optax."""\n'
                    f"{checks}    return _optimizer.optimizer\n"
                )
        own = self._files.optimizer.get(node.name)
        if not isinstance(own, ast.FunctionDef) or node.name in _OF_OPTIMIZER:
            return ""
        taken, wanted = _parameters(own), _parameters(node)
        passed = [name for name in wanted if name in taken]
        fixed = [name for name in wanted if name not in taken]
        if passed != taken or not all(
            isinstance(self._files.optimizer.get(n), ast.Assign) for n in fixed
        ):
            return ""
        checks = "".join(f'    _require("{n}", {n}, _optimizer.{n})\n' for n in fixed)
        return (
            f'{_signature(node)}\n    """`{node.name}` in JAX."""\n'
            f"{checks}    return _optimizer.{node.name}({', '.join(passed)})\n"
        )

    def _groups(self, node: ast.FunctionDef) -> str:
        """A function that makes the groups of the optimizer; "" if it is none."""
        recorded = self._recorded.get("optimizer")  # none of a program with several updates
        if recorded is None or node.name not in _groups_from(self._script, recorded.line):
            return ""
        displays = [n for n in ast.walk(node) if isinstance(n, ast.Dict)]
        entries = [
            (key.value, value)
            for display in displays
            for key, value in zip(display.keys, display.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        keys = {key for key, _ in entries} - {"params"}
        if any(not keys <= set(group.options) for group in recorded.groups):
            return ""
        groups = [
            {"params": [*group.names], **{key: group.options[key] for key in sorted(keys)}}
            for group in recorded.groups
        ]
        # What gives the parameters is a state here.
        models = {
            root(call.func)
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and last_part(call.func).endswith("parameters")
        }
        checks = ""
        for name in _parameters(node):
            values = [
                group[key]
                for group in groups
                for key, value in entries
                if key in keys and isinstance(value, ast.Name) and value.id == name
            ]
            known = [value for value in values if value]  # another group has none
            if name not in models:
                checks += (
                    f"    _require({name!r}, {name}, {known[0]!r})\n"
                    if len(set(known)) == 1
                    else absent(node, name)
                )
        return (
            f"{_signature(node)}\n"
            f'    """`{node.name}`: the groups of the optimizer; parameters are names of torch."""\n'
            f"{checks}    return {groups!r}\n"
        )

    def _model(self, node: ast.FunctionDef) -> str:
        """A function without parameters that makes the model; "" if it is none."""
        children = set(self._recorded["children"].values())
        returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
        if _parameters(node) or len(returns) != 1 or not isinstance(returns[0], ast.Call):
            return ""
        function = returns[0].func
        name = function.id if isinstance(function, ast.Name) else ""
        calls = [
            n
            for n in ast.walk(self._script.tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name
        ]
        if len(calls) != 1 or name not in children or name not in self._files.model:
            return ""
        return (
            f'{_signature(node)}\n    """The model of `{node.name}` in Flax, without weights."""\n'
            f"    return {name}({config_class(self._files.model[name]) or 'StepConfig'}())\n"
        )


def missing_methods(node: ast.stmt, text: str) -> list[str]:
    """Public methods of a class that its text in the interface does not have."""
    if not isinstance(node, ast.ClassDef) or not text.startswith(f"class {node.name}"):
        return []
    names = [m.name for m in node.body if isinstance(m, FunctionNode) and m.name[0] != "_"]
    return [name for name in names if f"def {name}(" not in text]


def _groups_from(script: ScriptText, line: int) -> set[str]:
    """Functions of the script whose value is the first argument of the optimizer that a line builds."""
    names: set[str] = set()
    calls = [n for n in ast.walk(script.tree) if isinstance(n, ast.Call)]
    for call in calls:
        if not call.args or not call.lineno <= line <= (call.end_lineno or 0):
            continue
        value: ast.expr = call.args[0]
        if isinstance(value, ast.Name):
            bound = [
                n.value
                for n in ast.walk(script.tree)
                if isinstance(n, ast.Assign)
                and [ast.unparse(target) for target in n.targets] == [value.id]
            ]
            value = bound[0] if len(bound) == 1 else value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            names.add(value.func.id)
    return names


def _over(factor: float) -> str:
    """Text that divides by a number; its reciprocal is often a whole number, but for rounding."""
    inverse = 1 / factor
    if abs(inverse - round(inverse)) <= 1e-6 * abs(inverse):
        return "" if round(inverse) == 1 else f" * {round(inverse)}"
    return f" / {factor!r}"


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _is_of(call: SeenCall, node: ast.FunctionDef) -> bool:
    """Whether a call is one of this function, with all of its parameters."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return call.first == first and list(call.arguments) == _parameters(node)


def _parameters(node: ast.FunctionDef) -> list[str]:
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    stars = [star.arg for star in (node.args.vararg, node.args.kwarg) if star is not None]
    return [*(argument.arg for argument in every), *stars]


def _is_plain(node: ast.FunctionDef) -> bool:
    """Whether a function has no decorators, and defaults that stand for themselves."""
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return not node.decorator_list and not any(map(loads, defaults))


def _checks(call: SeenCall) -> str | None:
    """Statements that refuse other numbers than the recorded ones; None if one cannot be compared."""
    lines = ""
    for name, (kind, value) in call.arguments.items():
        if kind == PLAIN:
            lines += f'    _require("{name}", {name}, {value!r})\n'
        elif kind not in (MODULE, DATA):
            return None
    return lines


def _signature(node: ast.FunctionDef) -> str:
    """The head of a function: parameters by name, and defaults that are plain; annotations are left out."""
    twin = ast.parse(textwrap.dedent(ast.unparse(node))).body[0]
    assert isinstance(twin, ast.FunctionDef)
    for argument in ast.walk(twin.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"def {node.name}({ast.unparse(twin.args)}):"


def defined(source: str) -> dict[str, ast.stmt]:
    """Functions, classes and assigned names of a module."""
    nodes: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, FunctionNode | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign):
            nodes |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
    return nodes
