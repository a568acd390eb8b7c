"""Torch schedulers as text: known classes as optax schedules, the others as a function of the step.

Formulas are the closed forms in `torch/optim/lr_scheduler.py`. `choice.py` compares each text with torch's
own scheduler before it is written: at each of the first updates, and functions of the script at points of the
later ones, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from migrate.train.optimizer.functions import ModuleNames, Unportable, port
from migrate.train.optimizer.points import far_points
from migrate.train.optimizer.recorded import RecordedFunction, RecordedGroup, RecordedSchedule
from migrate.train.optimizer.replay import Failing, milestones, python_function

_MULTIPLICATIVE = (
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "StepLR",
)


@dataclass(frozen=True)
class ScheduleText:
    """Schedule in the written module.

    Attributes:
        value: expression of the step → expression of the rate.
        call: expression of a schedule that is called with a step; "" if there is only `value`.
    """

    value: Callable[[str], str]
    call: str = ""

    @property
    def callable(self) -> str:
        """Expression that can be called with a step."""
        return self.call or f"lambda step: {self.value('step')}"


def called(expression: str) -> ScheduleText:
    """Return the text of a schedule that an expression makes."""
    return ScheduleText(lambda step: f"{expression}({step})", expression)


@dataclass(frozen=True)
class ScheduleStyle:
    """Forms that may be written.

    Attributes:
        optax: schedules of optax, where there is one.
        ends: optax's cosines, which stay at their end where torch's rise again: only where rates are compared
            to the end of the training.
        host: values of the script's own functions, computed before training, for this many steps; 0 for a
            function in JAX.
    """

    optax: bool = True
    ends: bool = False
    host: int = 0


@dataclass(frozen=True)
class ScheduleWriter:
    """Text of one scheduler for one group.

    Attributes:
        item: the scheduler.
        group: the group, with what the scheduler left in it.
        number: index of the group.
        names: definitions of the written module.
        style: the forms that may be written.
    """

    item: RecordedSchedule
    group: RecordedGroup
    number: int
    names: ModuleNames
    style: ScheduleStyle

    def rate(self, lr: str) -> ScheduleText:
        """Return the text of the learning rate, with this expression of the initial rate.

        Raises:
            Unportable: the scheduler has no text in this style.
        """
        writers: dict[str, Callable[[str], ScheduleText]] = {
            "LambdaLR": self._lambda,
            "MultiplicativeLR": self._multiplicative,
            "StepLR": self._step,
            "MultiStepLR": self._multi_step,
            "ConstantLR": self._constant,
            "LinearLR": self._linear,
            "ExponentialLR": self._exponential,
            "PolynomialLR": self._polynomial,
            "CosineAnnealingLR": self._cosine,
            "CosineAnnealingWarmRestarts": self._restarts,
            "OneCycleLR": self._one_cycle,
            "CyclicLR": self._cyclic,
            "SequentialLR": self._sequential,
            "ChainedScheduler": lambda lr: product(lr, self.children()),
        }
        if self._name not in writers:
            raise Unportable(f"{self._name} has no text")
        return writers[self._name](lr)

    def momentum(self) -> ScheduleText | None:
        """Return the text of the momentum that the scheduler sets; None if it sets none."""
        if self._name not in ("OneCycleLR", "CyclicLR") or not self._option("cycle_momentum"):
            return None
        if self._name == "CyclicLR":
            low, high = (
                self._option(name)[self.number] for name in ("base_momentums", "max_momentums")
            )
            return self._cycle(f"{high!r}", f"{low!r}")
        options = self.group.options
        low, high = options["base_momentum"], options["max_momentum"]
        last = (high, high) if len(self._option("_schedule_phases")) == 3 else (high,)
        return self._annealed((high, low, *last))

    def children(self) -> list[ScheduleWriter]:
        """Return the writers of the schedulers within it."""
        return [
            ScheduleWriter(child, self.group, self.number, self.names, self.style)
            for child in self.item.children
        ]

    @property
    def _name(self) -> str:
        return self.item.name.rpartition(".")[2]

    @property
    def is_multiplicative(self) -> bool:
        """Whether it multiplies the rate that others have left, in the closed form too."""
        if self._name == "CosineAnnealingLR" and self._option("eta_min"):
            return False
        return self._name in _MULTIPLICATIVE

    def _fix(self, name: str, value: Any) -> None:
        """Add a constant that a text reads under this name."""
        if self.names.constant(name, value) != name:
            raise Unportable(f"{name} is another value's name")

    def _option(self, name: str) -> Any:
        return self.item.options[name]

    # ------------------------------------------------------------------ functions of the script

    def _lambda(self, lr: str) -> ScheduleText:
        function = self.item.functions[self.number]
        known = _of_transformers(function, lr, ends=self.style.ends) if self.style.optax else None
        if known is not None:
            return called(known)
        if self.style.host:
            table = self._table(function)
            return ScheduleText(lambda step: f"{lr} * {table(step)}")
        ported = port(function, self.names)
        return ScheduleText(lambda step: f"{lr} * {ported.of(step)}")

    def _multiplicative(self, lr: str) -> ScheduleText:
        function = self.item.functions[self.number]
        python = python_function(function)
        steps = (*range(1, 200), *filter(None, far_points([function])))
        try:
            factors = {python(step) for step in steps}
        except Failing:  # it has an end
            factors = set()
        if len(factors) == 1:
            factor = factors.pop()
            return called(
                f"optax.exponential_decay({lr}, transition_steps=1, decay_rate={factor!r})"
            )
        if not self.style.host:
            raise Unportable("a product over all steps has no closed form")
        table = self._table(function, product=True)
        return ScheduleText(lambda step: f"{lr} * {table(step)}")

    def _table(self, function: RecordedFunction, *, product: bool = False) -> Callable[[str], str]:
        """Add the script's own function and its values, and return a value as an expression of its step."""
        name = python_text(function, self.names)
        values = f"[{name}(step) for step in range({self.style.host})]"
        if product:  # the first update has the initial rate
            values = f"[{name}(step) for step in range(1, {self.style.host})]"
            values = f"np.cumprod([1.0, *{values}])"
        return table_text(f"{name}_values", f"jnp.asarray({values})", self.names)

    # ------------------------------------------------------------------ classes of torch

    def _step(self, lr: str) -> ScheduleText:
        return called(
            f"optax.exponential_decay({lr}, transition_steps={self._option('step_size')}, "
            f"decay_rate={self._option('gamma')!r}, staircase=True)"
        )

    def _multi_step(self, lr: str) -> ScheduleText:
        gamma = self.item.options["gamma"]
        steps = milestones(self.item)
        scales = {step: gamma ** steps.count(step) for step in steps}
        return called(f"optax.piecewise_constant_schedule({lr}, {scales!r})")

    def _constant(self, lr: str) -> ScheduleText:
        factor, end = self.item.options["factor"], self.item.options["total_iters"]
        return called(
            f"optax.piecewise_constant_schedule({_times(lr, factor)}, {{{end}: {1.0 / factor!r}}})"
        )

    def _linear(self, lr: str) -> ScheduleText:
        start, end = self.item.options["start_factor"], self.item.options["end_factor"]
        return called(
            f"optax.linear_schedule({_times(lr, start)}, {_times(lr, end)}, "
            f"{self._option('total_iters')})"
        )

    def _exponential(self, lr: str) -> ScheduleText:
        return called(
            f"optax.exponential_decay({lr}, transition_steps=1, decay_rate={self._option('gamma')!r})"
        )

    def _polynomial(self, lr: str) -> ScheduleText:
        return called(
            f"optax.polynomial_schedule({lr}, 0.0, power={self._option('power')!r}, "
            f"transition_steps={self._option('total_iters')})"
        )

    def _cosine(self, lr: str) -> ScheduleText:
        steps, floor = self.item.options["T_max"], self.item.options["eta_min"]
        if self.style.ends:
            alpha = f", alpha={floor!r} / {lr}" if floor else ""
            return called(f"optax.cosine_decay_schedule({lr}, {steps}{alpha})")
        text = """
def cosine(learning_rate, step):
    \"\"\"CosineAnnealingLR, which rises again after `T_max`.\"\"\"
    return eta_min + (learning_rate - eta_min) * (1 + jnp.cos(jnp.pi * step / T_max)) / 2
"""
        self._fix("T_max", steps)
        self._fix("eta_min", floor)
        name = self.names.function("cosine", text.strip())
        return ScheduleText(lambda step: f"{name}({lr}, {step})")

    def _restarts(self, lr: str) -> ScheduleText:
        first, times = int(self.item.options["T_0"]), int(self.item.options["T_mult"])
        self._fix("T_0", first)
        self._fix("eta_min", self._option("eta_min"))
        if times == 1:
            body = "    within, length = step % T_0, T_0"
        else:
            starts, length = [0], first
            while starts[-1] + length < 2**31:
                starts.append(starts[-1] + length)
                length *= times
            self._fix("T_mult", times)
            self._fix("restarts", tuple(starts))
            body = (
                "    cycle = jnp.searchsorted(jnp.asarray(restarts), step, side='right') - 1\n"
                "    within, length = step - jnp.asarray(restarts)[cycle], T_0 * T_mult**cycle"
            )
        text = f"""
def cosine_restarts(learning_rate, step):
    \"\"\"CosineAnnealingWarmRestarts.\"\"\"
{body}
    return eta_min + (learning_rate - eta_min) * (1 + jnp.cos(jnp.pi * within / length)) / 2
"""
        name = self.names.function("cosine_restarts", text.strip())
        return ScheduleText(lambda step: f"{name}({lr}, {step})")

    def _one_cycle(self, lr: str) -> ScheduleText:
        options = self.group.options
        first, high, last = (options[name] for name in ("initial_lr", "max_lr", "min_lr"))
        three = len(self.item.options["_schedule_phases"]) == 3
        return self._annealed((first, high, first, last) if three else (first, high, last))

    def _annealed(self, values: tuple[float, ...]) -> ScheduleText:
        ends = tuple(phase["end_step"] for phase in self.item.options["_schedule_phases"])
        self._fix("phase_ends", ends)
        shape = (
            "(1 + jnp.cos(jnp.pi * fraction)) / 2"
            if self.item.options["_anneal_func_type"] == "cos"
            else "(1 - fraction)"
        )
        text = f"""
def one_cycle(values, step):
    \"\"\"OneCycleLR: from each value to the next; a phase ends at the step in `phase_ends`.\"\"\"
    ends, values = jnp.asarray((0.0, *phase_ends)), jnp.asarray(values)
    phase = jnp.searchsorted(ends[1:-1], step)
    fraction = (step - ends[phase]) / (ends[phase + 1] - ends[phase])
    return values[phase + 1] + (values[phase] - values[phase + 1]) * {shape}
"""
        name = self.names.function("one_cycle", text.strip())
        return ScheduleText(lambda step: f"{name}({values!r}, {step})")

    def _cyclic(self, lr: str) -> ScheduleText:
        del lr
        low, high = (self.item.options[name][self.number] for name in ("base_lrs", "max_lrs"))
        return self._cycle(f"{low!r}", f"{high!r}")

    def _cycle(self, start: str, end: str) -> ScheduleText:
        options = self.item.options
        mode, scale = options["mode"], "1.0"
        if mode == "triangular2":
            scale = "0.5 ** (cycle - 1)"
        elif mode == "exp_range":
            self._fix("gamma", options["gamma"])
            scale = "gamma**step"
        self._fix("total_size", options["total_size"])
        self._fix("step_ratio", options["step_ratio"])
        factor = "" if scale == "1.0" else f" * {scale}"
        text = f"""
def cyclic(start, end, step):
    \"\"\"CyclicLR ({mode}).\"\"\"
    cycle = jnp.floor(1 + step / total_size)
    x = 1 + step / total_size - cycle
    height = jnp.where(x <= step_ratio, x / step_ratio, (x - 1) / (step_ratio - 1))
    return start + (end - start) * height{factor}
"""
        name = self.names.function("cyclic", text.strip())
        return ScheduleText(lambda step: f"{name}({start}, {end}, {step})")

    def _sequential(self, lr: str) -> ScheduleText:
        parts = ", ".join(child.rate(lr).callable for child in self.children())
        return called(
            f"optax.join_schedules([{parts}], {list(self.item.options['_milestones'])!r})"
        )


def product(lr: str, writers: list[ScheduleWriter]) -> ScheduleText:
    """Return the text of schedulers that each multiply the rate.

    Raises:
        Unportable: one of them sets the rate instead.
    """
    if not all(writer.is_multiplicative for writer in writers):
        raise Unportable("a scheduler overwrites what another one has set")
    factors = [writer.rate("1.0") for writer in writers]
    return ScheduleText(lambda step: " * ".join([lr, *(factor.value(step) for factor in factors)]))


def table_text(name: str, values: str, names: ModuleNames) -> Callable[[str], str]:
    """Add a table by steps, and return the value as an expression of a step; it is NaN after the end."""
    name = names.function(name, f"{name} = {values}")
    return lambda step: f'{name}.at[{step}].get(mode="fill", fill_value=jnp.nan)'


def python_text(function: RecordedFunction, names: ModuleNames) -> str:
    """Add a function of the script as it is, and return its name.

    Raises:
        Unportable: its source is unknown, or it reads what is no plain name.
    """
    import ast
    import textwrap

    from migrate.train.optimizer.functions import parsed

    node = parsed(function)
    for name, called_function in function.functions.items():
        if python_text(called_function, names) != name:
            raise Unportable(f"{name} is another function's name")
    for name, value in function.values.items():
        if "." in name or names.constant(name, value) != name:
            raise Unportable(f"{name} is an attribute")
    if function.keywords:
        raise Unportable("it is a partial function")
    source = textwrap.dedent(function.source).strip()
    is_lambda = not source.startswith("def ")
    text = ast.unparse(ast.fix_missing_locations(node)) if is_lambda else source
    comment = "# Evaluated on the host before training: it has no form without control flow."
    return names.function(node.name, f"{comment}\n{text}")


def _of_transformers(function: RecordedFunction, lr: str, *, ends: bool) -> str | None:
    """Return optax's schedule for a schedule of transformers; None if it is another one."""
    if function.module != "transformers.optimization":
        return None
    options = function.keywords
    warmup, total = options.get("num_warmup_steps", 0), options.get("num_training_steps", 0)
    rising = f"optax.linear_schedule(0.0, {lr}, {warmup})"
    match function.name:
        case "_get_constant_lambda":
            return f"optax.constant_schedule({lr})"
        case "_get_constant_schedule_with_warmup_lr_lambda":
            return rising if warmup else f"optax.constant_schedule({lr})"
        case "_get_linear_schedule_with_warmup_lr_lambda":
            falling = f"optax.linear_schedule({lr}, 0.0, {total - warmup})"
            return f"optax.join_schedules([{rising}, {falling}], [{warmup}])" if warmup else falling
        case "_get_cosine_schedule_with_warmup_lr_lambda" if ends and options["num_cycles"] == 0.5:
            if not warmup:
                return f"optax.cosine_decay_schedule({lr}, {total})"
            return f"optax.warmup_cosine_decay_schedule(0.0, {lr}, {warmup}, {total})"
    return None


def _times(lr: str, factor: float) -> str:
    if lr == "1.0":
        return f"{factor!r}"
    return lr if factor == 1.0 else f"{lr} * {factor!r}"
