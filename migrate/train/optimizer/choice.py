"""Choice of the text of learning rates: the first that gives torch's own rates.

Rates are compared at each of the first `HORIZON` updates (all of them where the training's length is known
and at most four times that), and a function of the script at points of the later updates, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from migrate.train.errors import TrainError
from migrate.train.optimizer.functions import ModuleNames, Unportable, port
from migrate.train.optimizer.points import far_points
from migrate.train.optimizer.recorded import (
    RecordedCall,
    RecordedFunction,
    RecordedOptimizer,
    RecordedSchedule,
)
from migrate.train.optimizer.replay import (
    Failing,
    initial_rate,
    momentum_of,
    python_function,
    require_schedule,
    torch_rates,
)
from migrate.train.optimizer.schedules import (
    ScheduleStyle,
    ScheduleText,
    ScheduleWriter,
    called,
    product,
    python_text,
    table_text,
)
from migrate.train.optimizer.stepping import Argument, ScheduleSteps, argument_of, steps_of

# Updates over which a schedule is compared where the length of the training is unknown.
HORIZON = 3000
# Largest difference in float64, relative to the largest rate: torch multiplies its rates up step by step.
LIMIT = 1e-9


@dataclass(frozen=True)
class RateTexts:
    """Learning rates of the written module.

    Attributes:
        names: constants and functions that the schedules read.
        definitions: statements that define the schedules.
        rates: expression of each group's learning rate: a number's name, or a schedule.
        momenta: expression of each group's momentum schedule; empty strings if it is constant.
        compared: number of updates at which rates were compared with torch's.
        worst: largest difference, relative to the largest rate.
        note: line for the README; "" if there is nothing to say.
    """

    names: ModuleNames
    definitions: tuple[str, ...]
    rates: tuple[str, ...]
    momenta: tuple[str, ...]
    compared: int = 0
    worst: float = 0.0
    note: str = ""

    @property
    def source(self) -> str:
        """Statements that define everything that the rates read."""
        constants = [f"{name} = {value!r}" for name, value in self.names.constants.items()]
        return "\n\n".join(
            ("\n".join(constants), *self.names.functions.values(), *self.definitions)
        )


def choose_rates(recorded: RecordedOptimizer, lr_name: str = "learning_rate") -> RateTexts:
    """Return the text of the learning rates, compared with torch's at every step.

    Args:
        recorded: the optimizer.
        lr_name: name of the initial learning rate in the script.

    Raises:
        TrainError: the rates follow from no schedule or function that can be written.
    """
    reasons = []
    if recorded.function is not None and recorded.function.sets:
        try:
            reference(recorded)
        except TrainError as error:  # it sets other rates, or by more than its number
            reasons.append(str(error).partition(": ")[2])
            recorded = replace(recorded, function=None)
    expected = reference(recorded)
    far = _far_rates(recorded, expected)
    for draft in _drafts(recorded, lr_name):
        try:
            texts = draft()
            worst = rate_difference(texts, expected, far)
        except Unportable as reason:
            reasons.append(str(reason))
            continue
        if worst <= LIMIT:
            return RateTexts(
                texts.names,
                texts.definitions,
                texts.rates,
                texts.momenta,
                len(expected),
                worst,
                texts.note,
            )
        reasons.append(f"differs from torch's by {worst:.1e}")
    what = ", ".join(dict.fromkeys(reasons)) or "nothing that gives it was found"
    remedy = "use a scheduler of torch.optim.lr_scheduler, or a function of the step without loops"
    if recorded.updates is None:
        remedy += "; or record the whole training with a large --updates: the rates become a table"
    raise TrainError(
        f"{recorded.at}: the learning rate cannot be written as a function of the step: {what}",
        remedy,
    )


def rate_difference(
    texts: RateTexts, reference: Sequence[Any], far: Mapping[int, Any] = MappingProxyType({})
) -> float:
    """Return the largest difference of rates and momenta, relative to the largest; in float64.

    Args:
        texts: the written rates.
        reference: (rate, momentum) of each group at each of the first updates.
        far: number of a later update → the same.

    Raises:
        Unportable: the text cannot be executed.
    """
    import jax
    import jax.numpy as jnp
    import optax

    worst = 0.0
    with jax.enable_x64(True):
        namespace: dict[str, Any] = {"jax": jax, "jnp": jnp, "optax": optax, "np": np, "math": math}
        steps = jnp.asarray([*range(len(reference)), *far])
        reference = [*reference, *far.values()]
        try:
            exec(compile(texts.source, "optimizer.py", "exec"), namespace)
            for position, expressions in enumerate((texts.rates, texts.momenta)):
                for number, expression in enumerate(expressions):
                    wanted = [update[number][position] for update in reference]
                    if not expression:
                        if len(set(wanted)) > 1:
                            raise Unportable("the momentum changes")
                        continue
                    value = eval(expression, namespace)
                    values = jax.jit(jax.vmap(value))(steps) if callable(value) else value
                    actual = np.broadcast_to(np.asarray(values, np.float64), len(wanted))
                    difference = np.abs(actual - wanted).max() / max(np.abs(wanted).max(), 1e-300)
                    worst = max(worst, float("inf") if np.isnan(difference) else difference)
        except (ArithmeticError, NameError, TypeError, ValueError) as error:
            raise Unportable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    return float(worst)


def reference(recorded: RecordedOptimizer) -> list[Any]:
    """Return (rate, momentum) of each group at each update: torch's own, or the record.

    Raises:
        TrainError: what torch's schedulers give is not what was recorded.
    """
    groups = range(len(recorded.groups))
    expected = [
        [(rates[g], recorded.momenta[i][g] if recorded.momenta else None) for g in groups]
        for i, rates in enumerate(recorded.rates)
    ]
    for item in recorded.schedules:
        require_schedule(item, recorded)
    if recorded.function is not None and not recorded.schedules:
        return _of_function(recorded, recorded.function, expected)
    if not recorded.schedules:
        return expected
    result = _of_schedulers(recorded)
    constant = [momentum_of(group.options) for group in recorded.groups]
    for update, (ours, theirs) in enumerate(zip(result, expected, strict=False)):
        for g, (scheduled, watched) in enumerate(zip(ours, theirs, strict=True)):
            momentum = watched[1] if recorded.momenta else constant[g]
            _require_same(recorded, update, "learning rate", watched[0], scheduled[0])
            _require_same(recorded, update, "momentum", momentum, scheduled[1])
    return result


def _require_same(
    recorded: RecordedOptimizer,
    update: int,
    what: str,
    watched: float | None,
    scheduled: float | None,
) -> None:
    if watched is None or scheduled is None:
        return
    if not math.isclose(scheduled, watched, rel_tol=1e-9, abs_tol=1e-15):
        raise TrainError(
            f"{recorded.at}: update {update} had the {what} {watched:g}, but its "
            f"scheduler gives {scheduled:g}: something else sets it too",
            f"set the {what} in one place",
        )


def _of_schedulers(recorded: RecordedOptimizer) -> list[Any]:
    steps = steps_of(recorded, recorded.schedules[0])
    if any(steps_of(recorded, item) != steps for item in recorded.schedules):
        raise TrainError(
            f"{recorded.at}: its schedulers are stepped at different times",
            "step all schedulers together",
        )
    last = min(map(_last_step, recorded.schedules))
    updates = horizon(recorded)
    updates = next((i for i in range(updates) if steps.count(i) > last), updates)
    updates = max(updates, len(recorded.rates))
    try:
        return torch_rates(recorded, updates, [steps.count(i) for i in range(updates)])
    except Failing as failing:
        raise _failing(recorded, failing) from None
    except Unportable as reason:
        raise TrainError(
            f"{recorded.at}: its learning rate is a function whose source is unknown ({reason})",
            "write the function in the script",
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TrainError(
            f"{recorded.at}: its schedulers cannot be made again ({type(error).__name__}: {error})",
            "report this with the script",
        ) from None


def _last_step(item: RecordedSchedule) -> float:
    """Return the number of steps that a scheduler allows: OneCycleLR has an end."""
    if item.name.endswith(".OneCycleLR"):
        return float(item.options["total_steps"])
    if not item.name.endswith(".SequentialLR"):
        return min(map(_last_step, item.children), default=math.inf)
    bounds = [0, *item.options["_milestones"], math.inf]
    ends = [start + _last_step(child) for child, start in zip(item.children, bounds, strict=False)]
    return min(
        (end for end, following in zip(ends, bounds[1:], strict=False) if end < following),
        default=math.inf,
    )


def _failing(recorded: RecordedOptimizer, failing: Failing) -> TrainError:
    return TrainError(
        f"{recorded.at}: its learning rate is a function that fails: {failing}",
        "give the function a value at each step",
    )


def _far_rates(recorded: RecordedOptimizer, expected: Sequence[Any]) -> dict[int, Any]:
    """Return the rates of later updates, where a function of the script gives them, as `expected`.

    Updates at which the function fails have no rates.
    """
    known = len(expected)
    if recorded.function is not None and not recorded.schedules:
        call = recorded.function
        pythons = [_python(recorded, call, group) for group in range(len(recorded.groups))]
        factors, functions = _scales(recorded, call), list(call.each or (call.function,))
        number = _argument(recorded, call)
        argument, start, stride = number.at, number.start, number.stride
        if number.epochs is not None:
            start, stride = number.epochs.offset, number.epochs.factor / number.epochs.every
    elif [item.name.rpartition(".")[2] for item in recorded.schedules] == ["LambdaLR"]:
        (item,) = recorded.schedules
        functions = list(item.functions)
        pythons = [python_function(function) for function in functions]
        factors = [initial_rate(group) for group in recorded.groups]
        steps = steps_of(recorded, item)
        argument, start, stride = steps.count, steps.offset, steps.factor / steps.every
    else:
        return {}
    result = {}
    for update in far_points(functions, start, stride):
        if known <= update < (recorded.updates or math.inf):
            try:
                rates = [p(argument(update)) * f for p, f in zip(pythons, factors, strict=True)]
            except Failing:
                continue
            if all(isinstance(rate, int | float) and math.isfinite(rate) for rate in rates):
                moments = [momentum for _, momentum in expected[-1]]
                result[update] = list(zip(rates, moments, strict=True))
    return result


def horizon(recorded: RecordedOptimizer) -> int:
    """Return the number of updates at which rates are compared."""
    updates = recorded.updates or HORIZON
    return max(min(updates, 4 * HORIZON), len(recorded.rates))


def _of_function(recorded: RecordedOptimizer, call: RecordedCall, expected: list[Any]) -> list[Any]:
    pythons = [_python(recorded, call, group) for group in range(len(recorded.groups))]
    argument = _argument(recorded, call)
    scales = _scales(recorded, call)
    result = list(expected)
    for update in range(len(expected), horizon(recorded)):
        number = argument.at(update)
        try:
            rates = [p(number) * scale for p, scale in zip(pythons, scales, strict=True)]
        except Failing as failing:
            if failing.past_end and recorded.updates is None:
                break  # the script ends there, or fails
            raise _failing(recorded, failing) from None
        result.append([(rate, None) for rate in rates])
    return result


def _python(
    recorded: RecordedOptimizer, call: RecordedCall, group: int
) -> Callable[[float], float]:
    try:
        return python_function(call.of(group))
    except Unportable as reason:
        raise TrainError(
            f"{recorded.at}: the function {call.function.name} cannot be read ({reason})",
            "write the function in the script",
        ) from None


def _argument(recorded: RecordedOptimizer, call: RecordedCall) -> Argument:
    arguments = call.arguments
    if len(arguments) < 2:
        raise TrainError(
            f"{recorded.at}: one update does not show the argument of {call.function.name}",
            "record two updates or more",
        )
    argument = argument_of(arguments, call.per_epoch)
    if argument is None and len(set(arguments)) == 1:
        raise TrainError(
            f"{recorded.at}: the argument of {call.function.name} is {arguments[0]:g} in all "
            f"{len(arguments)} recorded updates",
            "record more updates than an epoch has (--updates N)",
        )
    if argument is None:
        raise TrainError(
            f"{recorded.at}: the argument of {call.function.name} does not grow evenly "
            f"({', '.join(f'{a:g}' for a in arguments[:6])})",
            "pass the number of the update",
        )
    return argument


def _scales(recorded: RecordedOptimizer, call: RecordedCall) -> list[float]:
    """Return the factor of each group on the function's value.

    Raises:
        TrainError: a group's rates are no multiple of the function's values.
    """
    scales = []
    for group in range(len(recorded.groups)):
        python = _python(recorded, call, group)
        try:
            values = [python(argument) for argument in call.arguments]
        except Failing as failing:
            raise _failing(recorded, failing) from None
        rates = [rates[group] for rates in recorded.rates]
        ratios = [rate / value for rate, value in zip(rates, values, strict=True) if value]
        scale = ratios[0] if ratios else 1.0
        if any(
            not math.isclose(scale * value, rate, rel_tol=1e-9, abs_tol=1e-15)
            for rate, value in zip(rates, values, strict=True)
        ):
            raise TrainError(
                f"{recorded.at}: the learning rates of a group are no multiple of what "
                f"{call.function.name} returns",
                "set group['lr'] to the function's value",
            )
        scales.append(1.0 if math.isclose(scale, 1.0, rel_tol=1e-12) else scale)
    return scales


def _drafts(recorded: RecordedOptimizer, lr_name: str) -> Iterator[Callable[[], RateTexts]]:
    """Yield ways to write the rates, the most readable first."""
    if recorded.function is not None and not recorded.schedules:
        call = recorded.function
        yield lambda: _function_texts(recorded, call, host=0)
        yield lambda: _function_texts(recorded, call, host=recorded.updates or 0)
    elif recorded.schedules:
        host = recorded.updates or 0
        ends = recorded.updates is not None and recorded.updates <= horizon(recorded)
        styles = [ScheduleStyle(ends=ends), ScheduleStyle(optax=False)]
        if host:
            styles.append(ScheduleStyle(optax=False, host=host + 1))
        for style in styles:
            # The script may have another value of that name.
            for name in (lr_name, f"initial_{lr_name}"):
                yield partial(_schedule_texts, recorded, style, name)
    elif all(rates == recorded.rates[0] for rates in recorded.rates):
        yield lambda: _constant_texts(recorded, lr_name)
    if recorded.updates is not None and recorded.updates <= len(recorded.rates):
        yield lambda: _table_texts(recorded)


def _constant_texts(recorded: RecordedOptimizer, lr_name: str) -> RateTexts:
    names, rates = ModuleNames(), recorded.rates[0]
    if len(set(rates)) == 1:
        expressions = [names.constant(lr_name, rates[0])] * len(rates)
    else:
        expressions = [f"{rate!r}" for rate in rates]
    note = ""
    if recorded.updates is None or recorded.updates > len(recorded.rates):
        note = f"the learning rate is constant in the {len(recorded.rates)} watched updates"
        if recorded.sets_rate:
            note += (
                f"; {recorded.file}:{recorded.sets_rate} sets a learning rate: what it does later is left "
                "to do by hand in optimizer.py"
            )
    return RateTexts(names, (), tuple(expressions), ("",) * len(rates), note=note)


def _table_texts(recorded: RecordedOptimizer) -> RateTexts:
    names, comment = ModuleNames(), "# The recorded rates: what computes them is unknown.\n"
    expressions: list[str] = []
    written: dict[tuple[float, ...], str] = {}  # groups often share their rates
    for number in range(len(recorded.groups)):
        rates = tuple(rates[number] for rates in recorded.rates)
        if rates in written:
            expressions.append(written[rates])
            continue
        table = table_text(f"rates_{number}", f"jnp.asarray({rates!r})", names)
        names.functions[f"rates_{number}"] = comment + names.functions[f"rates_{number}"]
        text = f"def schedule_{number}(step):\n    return {table('step')}"
        expressions.append(names.function(f"schedule_{number}", text))
        written[rates] = expressions[-1]
    where = f"{recorded.file}:{recorded.sets_rate}: " if recorded.sets_rate else ""
    note = (
        f"{where}what computes the learning rates is unknown, so optimizer.py has a table of the "
        f"{len(recorded.rates)} recorded ones. After them the rate is NaN: for a longer training, write a "
        "function there"
    )
    return RateTexts(names, (), tuple(expressions), ("",) * len(expressions), note=note)


def _function_texts(recorded: RecordedOptimizer, call: RecordedCall, *, host: int) -> RateTexts:
    names = ModuleNames()
    number = _argument(recorded, call)
    argument = number.text()
    if number.epochs is not None and number.epochs.every > 1:
        names.constant("updates_per_epoch", number.epochs.every)

    def inner(function: RecordedFunction) -> ScheduleText:
        if host:
            name = python_text(function, names)
            values = f"[{name}({argument}) for step in range({host})]"
            return ScheduleText(table_text(f"{name}_values", f"jnp.asarray({values})", names))
        ported = port(function, names)
        direct = argument == "step" and not ported.constants
        return called(ported.name) if direct else ScheduleText(lambda _: ported.of(argument))

    definitions: dict[str, str] = {}
    rates = []
    for group, scale in enumerate(_scales(recorded, call)):
        rate = inner(call.of(group))
        if scale == 1.0 and rate.call:
            rates.append(rate.call)
            continue
        factor = "" if scale == 1.0 else f"{scale!r} * "
        text = f"{factor}{rate.value('step')}"
        plain = scale == 1.0 and "schedule" not in definitions
        label = "schedule" if plain else f"schedule_{len(definitions)}"
        label = next((k for k, v in definitions.items() if v == text), label)
        definitions[label] = text
        rates.append(label)
    statements = [f"def {name}(step):\n    return {text}" for name, text in definitions.items()]
    note = f"{call.function.name} is evaluated before training" if host else ""
    return RateTexts(names, tuple(statements), tuple(rates), ("",) * len(rates), note=note)


def _schedule_texts(recorded: RecordedOptimizer, style: ScheduleStyle, lr_name: str) -> RateTexts:
    names = ModuleNames()
    steps = steps_of(recorded, recorded.schedules[0])
    if steps.every > 1:
        names.constant("updates_per_epoch", steps.every)
    initial = [initial_rate(group) for group in recorded.groups]
    lr = names.constant(lr_name, initial[0]) if len(set(initial)) == 1 else ""
    written = []
    for number, group in enumerate(recorded.groups):
        writers = [ScheduleWriter(item, group, number, names, style) for item in recorded.schedules]
        written.append((writers, lr or f"{initial[number]!r}"))

    def rate(writers: list[ScheduleWriter], text: str) -> ScheduleText:
        return writers[0].rate(text) if len(writers) == 1 else product(text, writers)

    comment = _comment(recorded, steps)
    each = [_definition("NAME", rate(writers, text), steps) for writers, text in written]
    general = [
        _definition("NAME", rate(w, "learning_rate"), steps, takes_rate=True) for w, _ in written
    ]
    if len(set(each)) > 1 and len(set(general)) == 1:
        definitions = [comment + general[0].replace("NAME", "schedule", 1)]
        rates = [f"schedule({text})" for _, text in written]
    else:
        definitions, rates = _labeled("schedule", each, comment)
    moving = [writers[0].momentum() for writers, _ in written]
    momenta = [""] * len(written)
    if len(recorded.schedules) == 1 and all(text is not None for text in moving):
        texts = [_definition("NAME", text, steps) for text in moving if text is not None]
        more, momenta = _labeled("momentum", texts, "")
        definitions += more
    if lr and not any(lr in text for text in (*definitions, *names.functions.values())):
        del names.constants[lr]  # OneCycleLR and CyclicLR have rates of their own
    note = "functions of the script are evaluated before training" if style.host else ""
    return RateTexts(names, tuple(definitions), tuple(rates), tuple(momenta), note=note)


def _labeled(label: str, texts: list[str], comment: str) -> tuple[list[str], list[str]]:
    """Return one definition for each different text, and the name of each text's definition."""
    different = list(dict.fromkeys(texts))
    labels = [label if len(different) == 1 else f"{label}_{i}" for i in range(len(different))]
    definitions = [
        comment + text.replace("NAME", name, 1)
        for text, name in zip(different, labels, strict=True)
    ]
    return definitions, [labels[different.index(text)] for text in texts]


def _definition(
    name: str, text: ScheduleText, steps: ScheduleSteps, *, takes_rate: bool = False
) -> str:
    direct = text.call and steps == ScheduleSteps()
    result = text.call if direct else text.value(steps.text("step"))
    if takes_rate:
        body = result if direct else f"lambda step: {result}"
        return f"def {name}(learning_rate):\n    return {body}"
    return f"{name} = {result}" if direct else f"def {name}(step):\n    return {result}"


def _comment(recorded: RecordedOptimizer, steps: ScheduleSteps) -> str:
    classes = ", ".join(item.name.rpartition(".")[2] for item in recorded.schedules)
    line = next((item.line for item in recorded.schedules if item.line), 0)
    at = f", {recorded.file}:{line}" if line else ""
    every = "; stepped once in an epoch" if steps.every > 1 else ""
    return f"# {classes}{at}{every}.\n"
