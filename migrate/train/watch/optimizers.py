"""The optimizer of a run, with its schedules, as it is recorded update by update."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from migrate.train.frames import script_frames
from migrate.train.optimizer.live import (
    definition,
    is_plain,
    plain,
    recorded_function,
    recorded_groups,
    recorded_part,
    recorded_schedule,
    unrolled,
)
from migrate.train.optimizer.recorded import (
    RecordedCall,
    RecordedClip,
    RecordedOptimizer,
    RecordedSchedule,
)
from migrate.train.optimizer.stepping import argument_of, shown_steps
from migrate.train.slice.rate import as_rate, as_rates, rate_statements, sets_rates
from migrate.train.slice.text import ScriptText, first_line, outside

# Options of a group that schedules change.
_SCHEDULED = ("lr", "betas", "momentum")


class OptimizerRecorder:
    """Optimizers and schedules that a script builds.

    Args:
        script: the script, as it is run.
        rate: name of a function of the script that gives the learning rate, and the expression of its
            argument; None if there is no such function.
        setters: what sets rates in the script itself, as `rate_setters` gives it.
    """

    def __init__(
        self,
        script: str,
        rate: tuple[str, str] | None,
        setters: Sequence[tuple[str, int, int, bool]] = (),
    ) -> None:
        self._script, self._rate = script, rate
        self._setters = [_Setter((n, first, line), inside) for n, first, line, inside in setters]
        self._text: ScriptText | None = None
        self._followed: set[str] = set()
        self._lines: dict[int, int] = {}
        self._stepped: set[int] = set()
        self._schedules: list[tuple[Any, RecordedSchedule, list[int]]] = []
        self._steps: dict[int, int] = {}
        self._first: dict[str, Any] = {}
        self._rates: list[tuple[float, ...]] = []
        self._momenta: list[tuple[float, ...]] = []
        self._changed: set[str] = set()
        self._arguments: list[float] = []
        self._function: Any = None
        self.lines: set[int] = set()
        self.clips: list[RecordedClip] = []

    def built_optimizer(self, optimizer: Any) -> None:
        """Note the line that builds an optimizer."""
        self._lines[id(optimizer)] = self._line()

    def stepped_optimizer(self, optimizer: Any) -> None:
        """Note that an optimizer is stepped."""
        self._stepped.add(id(optimizer))

    def idle_lines(self) -> list[int]:
        """Lines that build optimizers which were never stepped."""
        return sorted(n for known, n in self._lines.items() if known not in self._stepped)

    def built_schedule(self, scheduler: Any) -> None:
        """Note a schedule. Schedules within it are its own from now on."""
        inner = {id(child) for child in getattr(scheduler, "_schedulers", ())}
        self._schedules = [entry for entry in self._schedules if id(entry[0]) not in inner]
        recorded = recorded_schedule(scheduler, line=self._line())
        self._schedules.append((scheduler, recorded, []))

    def stepped_schedule(self, scheduler: Any) -> None:
        """Count a step of a schedule."""
        self.lines.add(self._line())
        self._steps[id(scheduler)] = self._steps.get(id(scheduler), 0) + 1

    def follow(
        self,
        name: str,
        local: Mapping[str, Any],
        of_module: dict[str, Any],
        called: Callable[[int], None],
    ) -> None:
        """Follow the calls of a function of another file, if it sets the rates.

        Args:
            name: its dotted name.
            local: names where it is called.
            of_module: those of the script.
            called: takes the identity of what sets the rates, at each call.
        """
        root, *path = name.split(".")
        if name in self._followed or (not path and root in local and local is not of_module):
            return
        self._followed.add(name)
        holder, function = None, {**of_module, **local}.get(root)
        for part in path:
            holder, function = function, getattr(function, part, None)
        if not inspect.isfunction(function) or (path and not inspect.ismodule(holder)):
            return
        node = definition(function)
        if not isinstance(node, ast.FunctionDef) or not sets_rates(node):
            return
        which, signature = (function.__module__, node.lineno, 0), inspect.signature(function)
        self._setters.append(_Setter(which, False, node))

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            called(self.called_setter(which, bound.arguments, function.__globals__))
            return function(*args, **kwargs)

        if path:
            setattr(holder, path[-1], noted)
        else:
            of_module[root] = noted

    def called_setter(
        self, which: tuple[str, int, int], local: Mapping[str, Any], of_module: Mapping[str, Any]
    ) -> int:
        """Note a call of a function that sets the rates, or of statements that do, and return its identity.

        Args:
            which: its name or that of its module, its first line, and a line as in `rate_setters`.
            local: its arguments, and what its closure holds; all names of the loop.
            of_module: names of its module.
        """
        setter = next(s for s in self._setters if s.which == which)
        setter.numbers = {n: v for n, v in local.items() if type(v) in (int, float)}
        setter.seen.append(setter.numbers)
        setter.local, setter.of_module = dict(local), of_module
        frames, _, _ = script_frames(self._script)
        caller = 0 if setter.node else 1
        if setter.inside:
            self.lines.add(which[2])
        elif len(frames) > caller:
            self.lines.add(frames[caller].line)
        return id(setter)

    def shows_steps(self) -> bool:
        """Whether the updates until now show when each schedule is stepped."""
        setter = self._setter()
        shown = setter is None or self._argument(setter) is not None
        return shown and all(not counts or shown_steps(counts) for _, _, counts in self._schedules)

    def with_epochs(
        self, recorded: RecordedOptimizer, epochs: Mapping[int, int]
    ) -> RecordedOptimizer:
        """The record, with the updates in an epoch of each schedule.

        Args:
            recorded: the record.
            epochs: identity of a schedule → updates.
        """
        known = [epochs.get(id(s), 0) for s, _, counts in self._schedules if counts]
        schedules = zip(recorded.schedules, known, strict=True)
        setter = self._setter()
        per_epoch = 0 if setter is None else epochs.get(id(setter), 0)
        function = self._of_setter(recorded.file, per_epoch)
        if function is not None:
            function = replace(function, per_epoch=per_epoch)
        return replace(
            recorded,
            schedules=tuple(replace(s, per_epoch=n) for s, n in schedules),
            function=function or recorded.function,
        )

    def schedulers(self) -> list[int]:
        """Identities of the schedules, and of the functions that set the rates."""
        return [id(known) for known in (*(s for s, _, _ in self._schedules), *self._setters)]

    def before_update(
        self, optimizer: Any, names: Mapping[int, str], frame: FrameType | None
    ) -> list[float]:
        """Note options and rates of an update; return the rate of each group."""
        groups = optimizer.param_groups
        options = [
            {
                key: plain(value)
                for key, value in group.items()
                if key != "params" and is_plain(value)
            }
            for group in groups
        ]
        if not self._first:
            cls = type(optimizer)
            self._first = {
                "name": f"{cls.__module__}.{cls.__qualname__}",
                "groups": recorded_groups(optimizer, names),
                "line": self._lines.get(id(optimizer), 0),
                "options": options,
            }
        if len(options) != len(self._first["options"]):
            self._changed.add("param_groups")
        for first, now in zip(self._first["options"], options, strict=False):
            if tuple(now.get("betas") or ())[1:] != tuple(first.get("betas") or ())[1:]:
                self._changed.add("betas[1]")
            self._changed |= {
                key for key in now if key not in _SCHEDULED and now[key] != first.get(key)
            }
        rates = [float(group["lr"]) for group in groups]
        self._rates.append(tuple(rates))
        self._momenta.append(tuple(_momentum(group) for group in groups))
        for scheduler, _, counts in self._schedules:
            if not self._is_others(scheduler, optimizer):
                counts.append(self._steps.get(id(scheduler), 0))
        self._note_argument(frame)
        for setter in self._setters:
            if setter.local:
                setter.calls.append(setter.numbers)
        return rates

    def _is_others(self, scheduler: Any, optimizer: Any) -> bool:
        """Whether a schedule sets the rates of another optimizer of the script."""
        own = getattr(scheduler, "optimizer", optimizer)
        return own is not optimizer and id(own) in self._lines

    def recorded(self, without_gradient: tuple[str, ...], file: str) -> RecordedOptimizer:
        """Everything that was noted. Gradients are summed by the program, not by its optimizer."""
        constant = len(set(self._momenta)) == 1
        schedules = tuple(
            replace(recorded, counts=tuple(counts))
            for _, recorded, counts in self._schedules
            if counts
        )
        function = None
        if self._function is not None and len(self._arguments) == len(self._rates):
            function = RecordedCall(recorded_function(self._function), tuple(self._arguments))
        else:
            function = self._of_setter(file)
        return RecordedOptimizer(
            self._first["name"],
            self._first["groups"],
            tuple(self._rates),
            momenta=() if constant else tuple(self._momenta),
            clips=tuple(self.clips),
            schedules=schedules,
            function=function,
            without_gradient=without_gradient,
            changed_options=tuple(sorted(self._changed)),
            file=file,
            line=self._first["line"],
        )

    def _setter(self) -> _Setter | None:
        """The function or statements that set the rates before each update; None if none or several do."""
        called = [s for s in self._setters if s.calls and len(s.calls) == len(self._rates)]
        if len(called) > 1:  # one of them may do nothing, without its option
            called = [s for s in called if self._sets(s)]
        return called[0] if len(called) == 1 else None

    def _sets(self, setter: _Setter) -> bool:
        """Whether a function sets rates with the options that it has."""
        node = self._node(setter)
        return node is None or sets_rates(unrolled(node, setter.local, setter.of_module, ""))

    def _node(self, setter: _Setter) -> ast.FunctionDef | None:
        """The function that sets the rates, or the statements of the loop that do, as a function."""
        if setter.node is not None:
            return setter.node
        if self._text is None:
            self._text = ScriptText("", Path(self._script).read_text())
        name, first, line = setter.which
        if setter.inside:
            return rate_statements(self._text, name, first, line, setter.counters)
        node = self._text.code(first, name)
        return node if isinstance(node, ast.FunctionDef) else None

    def _argument(self, setter: _Setter, per_epoch: int = 0) -> str | None:
        """Name of the number that changes from update to update, if its values show how; None if not.

        Args:
            setter: what sets the rates.
            per_epoch: updates in an epoch, if they are known.
        """
        node = self._node(setter)
        read = set[str]() if node is None else outside(node.body)[0]
        changing = [name for name in setter.changing if name in read]
        if len(changing) != 1:
            return None
        shown = argument_of(setter.numbers_of(changing[0]), per_epoch) is not None
        return changing[0] if shown else None

    def _of_setter(self, file: str, per_epoch: int = 0) -> RecordedCall | None:
        """The rate of that function, if its calls show the number by which it changes."""
        setter = self._setter()
        argument = None if setter is None else self._argument(setter, per_epoch)
        if setter is None or argument is None:
            return None
        node = self._node(setter)
        if node is None:
            return None
        local = setter.local
        if setter.inside:
            bound = outside(node.body)[1]
            local = {name: value for name, value in local.items() if name not in bound}
        whole = node
        node = unrolled(node, local, setter.of_module, argument)
        rate = as_rate(node, argument)
        rates = [] if rate else as_rates(node, argument, self._first["options"]) or []
        parts = [
            recorded_part(part, local, setter.of_module) for part in ([rate] if rate else rates)
        ]
        if not parts:
            return None
        for statement in whole.body if setter.inside else ():
            self.lines.update(range(first_line(statement), (statement.end_lineno or 0) + 1))
        arguments = setter.numbers_of(argument)
        each = tuple(parts) if len({part.source for part in parts}) > 1 else ()
        return RecordedCall(parts[0], arguments, sets=True, each=each)

    def _note_argument(self, frame: FrameType | None) -> None:
        """Note the argument of the function that gives the rate, as the frames of the script have it."""
        if self._rate is None:
            return
        name, argument = self._rate
        while frame is not None:
            values = {**frame.f_globals, **frame.f_locals}
            value = values.get(argument)
            root, *path = name.split(".")
            function = functools.reduce(
                lambda held, part: getattr(held, part, None), path, values.get(root)
            )
            is_own = frame.f_code.co_filename == self._script and callable(function)
            if is_own and isinstance(value, int | float):
                self._function = function
                self._arguments.append(value)
                return
            frame = frame.f_back

    def _line(self) -> int:
        frames, _, _ = script_frames(self._script)
        return frames[0].line if frames else 0


@dataclass
class _Setter:
    """Function of the script that sets the rates, or statements of its loop.

    Attributes:
        which: its name, its first line and a line; its module's name, if it is of another file.
        inside: whether it is statements of the loop.
        node: its definition, if it is of another file.
        numbers: numbers among its arguments, and what its closure holds, in its last call.
        seen: those of each call.
        local: all arguments, and what its closure holds.
        of_module: names of its module.
        calls: numbers before each update.
    """

    which: tuple[str, int, int]
    inside: bool = False
    node: ast.FunctionDef | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    seen: list[dict[str, float]] = field(default_factory=list)
    local: dict[str, Any] = field(default_factory=dict)
    of_module: Mapping[str, Any] = field(default_factory=dict)
    calls: list[dict[str, float]] = field(default_factory=list)

    @property
    def changing(self) -> list[str]:
        """Names of the numbers that change from call to call."""
        return [n for n in self.seen[0] if len({numbers.get(n) for numbers in self.seen}) > 1]

    @property
    def counters(self) -> list[str]:
        """Names of the whole numbers that change evenly, or from epoch to epoch."""
        return [
            name
            for name in self.changing
            if all(type(numbers.get(name)) is int for numbers in self.seen)
            and argument_of(self.numbers_of(name)) is not None
        ]

    def numbers_of(self, name: str) -> tuple[float, ...]:
        """A number before each update."""
        return tuple(numbers[name] for numbers in self.calls)


def _momentum(group: Mapping[str, Any]) -> float:
    betas = group.get("betas")
    if betas:
        return float(betas[0])
    return float(group.get("momentum") or 0.0)
