"""Record of the optimizer of a torch run: plain values, which can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# CyclicLR's attribute of the script's own `scale_fn`; true in the options of a record that has one.
SCALE = "_scale_fn_custom"


@dataclass(frozen=True)
class RecordedGroup:
    """Entry of `param_groups`.

    Attributes:
        names: torch names of the parameters.
        options: the other keys of the entry, as they are before the first update.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class RecordedFunction:
    """Python function that computes a learning rate or a factor.

    Attributes:
        name: its name; "<lambda>" for a lambda.
        source: its text without indentation, comments included; "" where Python does not have it.
        values: global names and closure variables that it reads, where they are numbers, strings,
            booleans, None, or lists of them.
        functions: functions of the script that it calls, by name.
        keywords: keyword arguments that `functools.partial` fixes.
        module: the module that defines it.
        line: first line in the script.
    """

    name: str
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, RecordedFunction] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    module: str = "__main__"
    line: int = 0


@dataclass(frozen=True)
class RecordedSchedule:
    """Scheduler object.

    Attributes:
        name: qualified name of its class ("torch.optim.lr_scheduler.StepLR").
        options: its attributes that are plain values, as they are when it was created.
        functions: the function of each group (LambdaLR, MultiplicativeLR).
        children: schedulers within it (SequentialLR, ChainedScheduler).
        counts: number of its `step()` calls before each recorded update.
        line: line of the script that creates it; 0 if unknown.
        per_epoch: updates in an epoch, if it is stepped once after each epoch, and the watched updates hold
            too few epochs to show it; 0 if not.
    """

    name: str
    options: Mapping[str, Any]
    functions: tuple[RecordedFunction, ...] = ()
    children: tuple[RecordedSchedule, ...] = ()
    counts: tuple[int, ...] = ()
    line: int = 0
    per_epoch: int = 0


@dataclass(frozen=True)
class RecordedCall:
    """Function of the script whose result becomes the learning rate: `group["lr"] = get_lr(it)`.

    Attributes:
        function: the function.
        arguments: the number passed in each recorded update.
        sets: whether it is what remains of a function that sets the rates itself: whether it gives them
            shows in the rates alone.
        per_epoch: as in `RecordedSchedule`.
        each: the function of each group, if they differ.
    """

    function: RecordedFunction
    arguments: tuple[float, ...]
    sets: bool = False
    per_epoch: int = 0
    each: tuple[RecordedFunction, ...] = ()

    def of(self, group: int) -> RecordedFunction:
        """Return the function of a group."""
        return self.each[group] if self.each else self.function


@dataclass(frozen=True)
class RecordedClip:
    """Clipping of gradients before each update.

    Attributes:
        kind: clipping by the norm of all, or of each element.
        limit: `max_norm` or `clip_value`.
        norm_type: order of the norm.
        names: torch names of the clipped parameters, trained or not; None for all that are trained.
        line: line of the script.
        limit_name: name of the limit in the script; "" for none.
    """

    kind: Literal["norm", "value"]
    limit: float
    norm_type: float = 2.0
    names: tuple[str, ...] | None = None
    line: int = 0
    limit_name: str = ""


@dataclass(frozen=True)
class RecordedOptimizer:
    """Optimizer of a run, with all that changes its updates.

    Attributes:
        name: qualified name of its class ("torch.optim.adamw.AdamW").
        groups: its groups.
        rates: learning rate of each group, in each recorded update.
        momenta: `momentum` or `betas[0]` of each group in each recorded update; empty if constant.
        clips: clipping, in the order of the calls.
        accumulation: number of backwards in one update.
        schedules: its schedulers, in the order of creation.
        function: function of the script that gives the learning rate.
        sets_rate: line of the script that assigns a group's learning rate; 0 if none does.
        updates: number of updates of the whole training; None if unknown.
        without_gradient: torch names that the groups hold, but that have no gradient.
        changed_options: options of groups, other than the learning rate and the momentum, that were not
            the same in all recorded updates.
        source: text of the constructor's call in the script; "" if unknown.
        option_names: option of a group → the script's name of its value.
        builder: function of the script that builds it and returns nothing else; "" if none does.
        file: the script, as messages name it.
        line: line of the constructor's call.
    """

    name: str
    groups: tuple[RecordedGroup, ...]
    rates: tuple[tuple[float, ...], ...]
    momenta: tuple[tuple[float, ...], ...] = ()
    clips: tuple[RecordedClip, ...] = ()
    accumulation: int = 1
    schedules: tuple[RecordedSchedule, ...] = ()
    function: RecordedCall | None = None
    sets_rate: int = 0
    updates: int | None = None
    without_gradient: tuple[str, ...] = ()
    changed_options: tuple[str, ...] = ()
    source: str = ""
    option_names: Mapping[str, str] = field(default_factory=dict)
    builder: str = ""
    file: str = "train.py"
    line: int = 0

    @property
    def at(self) -> str:
        """Position for a message."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class ParameterArray:
    """Array of the written program's parameters.

    Attributes:
        path: keys from the root of the tree that the optimizer is given ("h/0/attn/kernel" is
            ("h", "0", "attn", "kernel")).
        ndim: number of its axes.
        names: torch names of the parameters in it.
        whole: whether it is one torch tensor of at most two axes, or the transpose of one.
    """

    path: tuple[str, ...]
    ndim: int
    names: tuple[str, ...]
    whole: bool = True
