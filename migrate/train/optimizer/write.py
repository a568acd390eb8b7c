"""Source of `optimizer.py`: the script's optimizer in optax, with its groups, clipping and schedule."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converters.errors import OptimizerError
from converters.optimizer import torch_rules
from converters.optimizer.calls import Code, OptaxCall, call, chained
from converters.optimizer.classes import RULES, call_of_class
from converters.optimizer.kinds import number
from migrate.train.errors import TrainError
from migrate.train.optimizer.choice import RateTexts, choose_rates
from migrate.train.optimizer.functions import Unportable
from migrate.train.optimizer.recorded import (
    ParameterArray,
    RecordedClip,
    RecordedOptimizer,
)
from migrate.train.optimizer.replay import optimizer_class
from migrate.train.optimizer.selections import name_of, select

FROZEN = "frozen"
# Torch adds 1e-6 to the norm that it clips by. From this limit on the difference is below 1e-5 of a gradient.
_LEAST_LIMIT = 0.1
# Names that `optimizer.py` has for other things.
_TAKEN = ("optimizer", "schedule", "decays", "labels", "groups", "clipped", "jax", "optax")
_MOMENTUM = {"optax.sgd": "momentum", "optax.adam": "b1", "optax.adamw": "b1"}
_STATIC = {
    "optax.sgd": ("nesterov",),
    "optax.adam": ("b2", "eps", "eps_root", "nesterov"),
    "optax.adamw": ("b2", "eps", "eps_root", "weight_decay", "mask", "nesterov"),
}
# Classes outside of torch.optim whose update is known → their name in `call_of_class`, and their options with
# those that schedules add.
_OTHERS = {
    "lion_pytorch.lion_pytorch.Lion": (
        "Lion",
        frozenset(("lr", "betas", "weight_decay", "initial_lr")),
    ),
    "transformers.optimization.Adafactor": (
        "transformers.Adafactor",
        frozenset(("lr", "eps", "clip_threshold", "decay_rate", "beta1", "weight_decay"))
        | {"scale_parameter", "relative_step", "warmup_init", "initial_lr"},
    ),
}
# Names of updates that scale a whole tensor by its size: an array must be one tensor.
_BY_TENSOR = ("transformers.Adafactor",)


@dataclass(frozen=True)
class WrittenOptimizer:
    """Source of `optimizer.py`, which defines `optimizer`.

    Attributes:
        source: the source, not yet formatted.
        rates: learning rates, with the result of their comparison.
        frozen: paths of the arrays that are not trained.
        notes: lines for the README.
    """

    source: str
    rates: RateTexts
    frozen: tuple[str, ...]
    notes: tuple[str, ...]


def write_optimizer(
    recorded: RecordedOptimizer, arrays: Sequence[ParameterArray]
) -> WrittenOptimizer:
    """Write the optimizer of a run for the arrays of the written program.

    Raises:
        TrainError: an optimizer, a schedule or a group has no counterpart; the message names the line.
    """
    if recorded.changed_options:
        raise TrainError(
            f"{recorded.at}: {', '.join(recorded.changed_options)} of the optimizer changes "
            "during the training",
            "keep all options but the learning rate and the momentum as they are",
        )
    _require_class(recorded)
    members = group_members(recorded, arrays)
    options = _names_of_options(recorded)
    rates = choose_rates(recorded, options.get("lr", "learning_rate"))
    writer = _OptimizerWriter(recorded, arrays, members, rates, options)
    return writer.write()


def _require_class(recorded: RecordedOptimizer) -> None:
    """Require a class whose update is known: one of torch.optim itself, not a class of the same name.

    Raises:
        TrainError: it is another class, or a group has an option that the known class does not have.
    """
    import torch

    module, _, name = recorded.name.rpartition(".")
    if module == "torch.optim" or module.startswith("torch.optim."):
        cls = optimizer_class(recorded)
        if cls is getattr(torch.optim, name, None):
            return  # it reads no other option
    elif recorded.name in _OTHERS:
        keys = {key for group in recorded.groups for key in group.options}
        unknown = sorted(keys - _OTHERS[recorded.name][1])
        if not unknown:
            return
        raise TrainError(
            f"{recorded.at}: the update of {recorded.name} with {', '.join(unknown)} is unknown",
            "use an optimizer of torch.optim",
        )
    raise TrainError(
        f"{recorded.at}: {recorded.name} has no counterpart in optax that was compared with it",
        "use an optimizer of torch.optim",
    )


def _name_in_table(recorded: RecordedOptimizer) -> str:
    known = _OTHERS.get(recorded.name)
    return known[0] if known else recorded.name.rpartition(".")[2]


def group_members(
    recorded: RecordedOptimizer, arrays: Sequence[ParameterArray]
) -> list[list[ParameterArray]]:
    """Return the arrays of each group.

    Raises:
        TrainError: an array holds parameters of several groups, or a parameter is in no array.
    """
    group_of = {
        name: number
        for number, group in enumerate(recorded.groups)
        for name in group.names
        if name not in recorded.without_gradient
    }
    known = {name for array in arrays for name in array.names}
    for name in group_of:
        if name not in known:
            raise TrainError(
                f"{recorded.at}: {name} is trained, but the program has no array of it",
                "report this with the script",
            )
    result: list[list[ParameterArray]] = [[] for _ in recorded.groups]
    for array in arrays:
        numbers = {group_of.get(name) for name in array.names}
        if len(numbers) > 1:
            raise TrainError(
                f"{recorded.at}: {name_of(array)} holds {', '.join(array.names[:4])}, which are in "
                "different groups of the optimizer",
                "port the model without --scan",
            )
        number_of_group = numbers.pop()
        if number_of_group is not None:
            result[number_of_group].append(array)
    return result


class _OptimizerWriter:
    """Parts of one module."""

    def __init__(
        self,
        recorded: RecordedOptimizer,
        arrays: Sequence[ParameterArray],
        members: list[list[ParameterArray]],
        rates: RateTexts,
        options: Mapping[str, str],
    ) -> None:
        self._recorded, self._arrays, self._members = recorded, arrays, members
        self._rates, self._options = rates, options
        self._functions: list[str] = []
        self._notes: list[str] = [rates.note] if rates.note else []

    def write(self) -> WrittenOptimizer:
        """Return the module."""
        trained = [array for members in self._members for array in members]
        ids = {id(array) for array in trained}
        frozen = [array for array in self._arrays if id(array) not in ids]
        update = self._update()
        clips = [self._clip(clip, trained) for clip in self._recorded.clips]
        whole = chained(*clips, *_parts(update))
        if frozen:
            labels = self._labels("labels", {"trained": trained, FROZEN: frozen})
            zero = call("optax.set_to_zero")
            whole = OptaxCall(
                "optax.multi_transform", ({"trained": whole, FROZEN: zero}, Code(labels))
            )
            names = [name_of(array) for array in frozen]
            self._notes.append(f"not trained: {_listed(names)}")
        source = self._module(whole)
        return WrittenOptimizer(
            source, self._rates, tuple(map(name_of, frozen)), tuple(self._notes)
        )

    # ------------------------------------------------------------------ the update

    def _update(self) -> OptaxCall:
        """Return the update of all groups."""
        used = [index for index, members in enumerate(self._members) if members]
        if not used:
            raise TrainError(
                f"{self._recorded.at}: the optimizer trains no parameter", "train at least one"
            )
        calls = {index: self._call(index) for index in used}
        if len({c.text for c in calls.values()}) == 1:
            return calls[used[0]]
        masked = self._masked(used)
        if masked is not None:
            return masked
        by_text: dict[str, list[int]] = {}
        for index, item in calls.items():
            by_text.setdefault(item.text, []).append(index)
        labels = self._group_names([indices[0] for indices in by_text.values()])
        chosen = {
            label: [array for index in indices for array in self._members[index]]
            for label, indices in zip(labels, by_text.values(), strict=True)
        }
        function = self._labels("groups", chosen)
        transforms = {
            label: calls[indices[0]]
            for label, indices in zip(labels, by_text.values(), strict=True)
        }
        return OptaxCall("optax.multi_transform", (transforms, Code(function)))

    def _call(self, number_of_group: int, decay: Any = None) -> OptaxCall:
        """Return the update of a group, with another weight decay if one is given."""
        options = dict(self._recorded.groups[number_of_group].options)
        for key in ("weight_decay", "momentum", "eps"):
            options[key] = self._named(key, options[key]) if key in options else None
        if "betas" in options:
            names = ("beta1", "beta2")
            options["betas"] = tuple(
                self._named(name, value)
                for name, value in zip(names, options["betas"], strict=True)
            )
        options = {key: value for key, value in options.items() if value is not None}
        if decay is not None:
            options["weight_decay"] = decay
        name = _name_in_table(self._recorded)
        if name in _BY_TENSOR:
            self._require_whole_tensors(number_of_group)
        try:
            result = call_of_class(name, options, Code(self._rates.rates[number_of_group]))
        except OptimizerError as error:
            raise TrainError(f"{self._recorded.at}: {error.what}", error.remedy) from None
        momentum = self._rates.momenta[number_of_group]
        return self._with_momentum(result, momentum) if momentum else result

    def _require_whole_tensors(self, number_of_group: int) -> None:
        """Require that each array of a group is one torch tensor of at most two axes, or its transpose."""
        for array in self._members[number_of_group]:
            if not array.whole:
                raise TrainError(
                    f"{self._recorded.at}: {self._recorded.name} scales each tensor by its own size, but "
                    f"{name_of(array)} holds {', '.join(array.names[:4])} in another shape",
                    "use an optimizer of torch.optim",
                )

    def _masked(self, used: list[int]) -> OptaxCall | None:
        """Return one update whose decay is masked, if groups differ in whether they decay alone."""
        groups = self._recorded.groups
        decays = {index: _decay(groups[index].options) for index in used}
        values = {value for value in decays.values() if value}
        if len(values) != 1 or all(decays.values()):
            return None
        decay = self._named("weight_decay", values.pop())
        texts = {index: self._call(index, decay) for index in used}
        if len({item.text for item in texts.values()}) != 1:
            return None
        chosen = [a for n in used if decays[n] for a in self._members[n]]
        others = [a for n in used if not decays[n] for a in self._members[n]]
        function = self._mask("decays", "Arrays with weight decay.", chosen, others)
        return _with_mask(texts[used[0]], function)

    def _with_momentum(self, update: OptaxCall, momentum: str) -> OptaxCall:
        """Return the update with the momentum of a schedule."""
        parts = list(_parts(update))
        for index, part in enumerate(parts):
            if part.name in _MOMENTUM:
                options = {**dict(part.options), _MOMENTUM[part.name]: Code(momentum)}
                static = tuple(name for name in _STATIC[part.name])
                inner = Code(f"optax.inject_hyperparams({part.name}, static_args={static!r})")
                parts[index] = OptaxCall(inner.text, part.arguments, tuple(options.items()))
                return chained(*parts)
        raise TrainError(
            f"{self._recorded.at}: a schedule of the momentum of {self._recorded.name} has no counterpart",
            "pass cycle_momentum=False",
        )

    def _named(self, key: str, value: Any) -> Any:
        """Return the script's name of an option with this value, or the value."""
        if isinstance(value, tuple | list):  # Adafactor has two
            return value
        value = number(value)
        name = self._options.get(key)
        if name is None or not value:
            return value
        keys = {"beta1": ("betas", 0), "beta2": ("betas", 1)}
        option, position = keys.get(key, (key, None))
        values = {
            number(v if position is None else v[position])
            for group in self._recorded.groups
            for v in [group.options[option]]
        }
        if values - {0.0} != {value}:
            return value
        return self._constant(name, value)

    def _constant(self, name: str, value: float) -> Any:
        """Return the script's name of a number, or the number if the name has another value."""
        if not name or name in _TAKEN:
            return value
        try:
            return Code(self._rates.names.constant(name, value))
        except Unportable:
            return value

    # ------------------------------------------------------------------ selections

    def _mask(
        self,
        name: str,
        doc: str,
        chosen: Sequence[ParameterArray],
        others: Sequence[ParameterArray],
    ) -> str:
        condition = select(chosen, others)
        if condition.by_name:
            body = (
                "    def test(path, p):\n"
                '        name = jax.tree_util.keystr(path, simple=True, separator="/")\n'
                f"        return {condition.text}\n\n"
                "    return jax.tree_util.tree_map_with_path(test, params)"
            )
        else:
            body = f"    return jax.tree.map(lambda p: {condition.text}, params)"
        text = f'(params):\n    """{doc}"""\n{body}'
        first, number = name, 1
        while f"def {name}{text}" not in self._functions and any(
            function.startswith(f"def {name}(") for function in self._functions
        ):
            number += 1
            name = f"{first}_{number}"
        if f"def {name}{text}" not in self._functions:
            self._functions.append(f"def {name}{text}")
        return name

    def _labels(self, name: str, groups: Mapping[str, Sequence[ParameterArray]]) -> str:
        """Add a function that labels each array, and return its name."""
        lines, remaining = [], dict(groups)
        while len(remaining) > 1:
            label = next(iter(remaining))
            chosen = remaining.pop(label)
            others = [array for members in remaining.values() for array in members]
            lines += [f"if {select(chosen, others).text}:", f'    return "{label}"']
        lines.append(f'return "{next(iter(remaining))}"')
        if any("name" in line for line in lines[:-1]):
            lines.insert(0, 'name = jax.tree_util.keystr(path, simple=True, separator="/")')
        body = "\n".join(f"        {line}" for line in lines)
        self._functions.append(
            f'def {name}(params):\n    """Label of each array, as the script groups them."""\n\n'
            f"    def label(path, p):\n{body}\n\n"
            "    return jax.tree_util.tree_map_with_path(label, params)"
        )
        return name

    def _group_names(self, numbers: Sequence[int]) -> list[str]:
        groups = [self._recorded.groups[number] for number in numbers]
        for key in ("name", "group_name"):
            names = [group.options.get(key) for group in groups]
            if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
                return [str(name) for name in names]
        decays = [bool(_decay(group.options)) for group in groups]
        if len(groups) == 2 and decays[0] != decays[1]:
            return ["decay" if decays_here else "no_decay" for decays_here in decays]
        return [f"group_{number}" for number in numbers]

    # ------------------------------------------------------------------ clipping

    def _clip(self, clip: RecordedClip, trained: Sequence[ParameterArray]) -> OptaxCall:
        limit = self._constant(clip.limit_name, clip.limit)
        if clip.kind == "value":
            update = call("optax.clip", limit)
        elif clip.norm_type == 2.0 and clip.limit >= _LEAST_LIMIT:
            update = call("optax.clip_by_global_norm", limit)
        else:
            order = () if clip.norm_type == 2.0 else (Code(_float(clip.norm_type)),)
            update = call(f"{RULES}.clip_by_norm", limit, *order)
        chosen = [
            array
            for array in trained
            if clip.names is None or any(name in clip.names for name in array.names)
        ]
        others = [array for array in trained if array not in chosen]
        if clip.names is None:
            return update
        held = {name for group in self._recorded.groups for name in group.names}
        more = [n for n in clip.names if n not in {*held, *self._recorded.without_gradient}]
        if clip.kind == "norm" and more:
            raise TrainError(
                f"{self._recorded.file}:{clip.line}: the norm is also of {more[0]}, which the optimizer does "
                "not train",
                "clip the parameters that the optimizer trains",
            )
        if not chosen or any(not set(a.names) <= set(clip.names) for a in chosen):
            raise TrainError(
                f"{self._recorded.file}:{clip.line}: it clips a part of the trained parameters that is no "
                "part of the program's arrays",
                "clip model.parameters()",
            )
        if not others:
            return update
        name = self._mask("clipped", "Arrays whose gradients are clipped.", chosen, others)
        return call("optax.masked", update, Code(name))

    # ------------------------------------------------------------------ the module

    def _module(self, whole: OptaxCall) -> str:
        recorded = self._recorded
        text = whole.text.replace(f"{RULES}.", "")
        rules = _rules(whole.text)
        before = [self._rates.source, *rules, *self._functions]
        blocks = [
            *before,
            _built(text, recorded, "\n".join(before)),
            *([_ACCUMULATE] if recorded.accumulation > 1 else []),
        ]
        body = "\n\n\n".join(block.strip() for block in blocks if block.strip())
        name = recorded.name.rpartition(".")[2]
        more = "; `accumulate` sums micro-batches" if recorded.accumulation > 1 else ""
        return f'"""{name} of {recorded.at}{more}."""\n\n{_imports(body)}\n\n{body}\n'


def _built(text: str, recorded: RecordedOptimizer, before: str) -> str:
    """Return the statements that define `optimizer`, in the script's function if one builds it.

    Args:
        text: the optimizer.
        recorded: the optimizer.
        before: what stands before, whose names are taken.
    """
    used = {*re.findall(r"\w+", f"{before} {text} {_ACCUMULATE}"), *_TAKEN, "learning_rate_of"}
    builder = recorded.builder
    if not builder or builder in used:
        return f"optimizer = {text}"
    what = "optimizer and its clipping" if recorded.clips else "optimizer"
    return (
        f'def {builder}():\n    """The script\'s {what}, in optax."""\n    return {text}\n\n\n'
        f"optimizer = {builder}()"
    )


_ACCUMULATE = '''
def accumulate(value_and_grad, params, micro_batches):
    """Sum losses and gradients over micro-batches (the first axis), as repeated `backward` does.

    The loss divides by their number where the script does.
    """

    def add(total, batch):
        return jax.tree.map(jnp.add, total, value_and_grad(params, batch)), None

    first = jax.tree.map(lambda x: x[0], micro_batches)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(value_and_grad, params, first)
    )
    return jax.lax.scan(add, zeros, micro_batches)[0]
'''


def _names_of_options(recorded: RecordedOptimizer) -> dict[str, str]:
    """Return the script's names of options, from the call that creates the optimizer."""
    try:
        node = ast.parse(recorded.source.strip() or "None", mode="eval").body
    except SyntaxError:
        return {}
    result: dict[str, str] = {}
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "betas" and isinstance(keyword.value, ast.Tuple):
            pairs = zip(("beta1", "beta2"), keyword.value.elts, strict=False)
            result |= {key: _last(value) for key, value in pairs}
        elif keyword.arg is not None:
            result[keyword.arg] = _last(keyword.value)
    return {**recorded.option_names, **{key: name for key, name in result.items() if name}}


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name; "" for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _decay(options: Mapping[str, Any]) -> float:
    return float(number(options.get("weight_decay", 0.0)))


def _parts(update: OptaxCall) -> tuple[OptaxCall, ...]:
    return update.arguments if update.name == "optax.chain" else (update,)


def _with_mask(update: OptaxCall, mask: str) -> OptaxCall:
    """Return the update with a mask on its weight decay."""

    def masked(part: OptaxCall) -> OptaxCall:
        decays = part.name == "optax.add_decayed_weights" or "weight_decay" in dict(part.options)
        return replace(part, options=(*part.options, ("mask", Code(mask)))) if decays else part

    return chained(*map(masked, _parts(update)))


def _rules(text: str) -> list[str]:
    """Return the sources of the rules that a text calls, with the states that they keep."""
    result = []
    for name in dict.fromkeys(re.findall(rf"\b{RULES}\.(\w+)", text)):
        source = inspect.getsource(getattr(torch_rules, name))
        for state in dict.fromkeys(re.findall(r"\b[A-Z]\w*State\b", source)):
            if hasattr(torch_rules, state):
                result.append(inspect.getsource(getattr(torch_rules, state)).strip())
        result.append(source.strip())
    return result


def _imports(body: str) -> str:
    """Return the imports that a module needs."""
    standard = [
        line
        for line, used in (("import math", "math."), ("from typing import Any, NamedTuple", "Any"))
        if re.search(rf"\b{re.escape(used)}", body)
    ]
    libraries = [
        line
        for line, used in (
            ("import jax", "jax."),
            ("import jax.numpy as jnp", "jnp."),
            ("import numpy as np", "np."),
            ("import optax", "optax."),
        )
        if re.search(rf"\b{re.escape(used)}", body)
    ]
    return "\n\n".join("\n".join(lines) for lines in (standard, libraries) if lines) + "\n"


def _float(value: float) -> str:
    return "jnp.inf" if value == float("inf") else f"{value!r}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
