"""Torch's own optimizer and schedulers, made again from the record: the reference of every check."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from converters.optimizer.kinds import number
from migrate.train.errors import TrainError
from migrate.train.optimizer.functions import Unportable, parsed
from migrate.train.optimizer.recorded import (
    SCALE,
    RecordedFunction,
    RecordedGroup,
    RecordedOptimizer,
    RecordedSchedule,
)

# Options that choose how values are computed, not which.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
SCHEDULERS, PLATEAU = "torch.optim.lr_scheduler", "ReduceLROnPlateau"


class Failing(Unportable):
    """The script's function has no value at a number.

    Attributes:
        past_end: whether it looks behind the end of a table.
    """

    past_end = False


def python_function(function: RecordedFunction) -> Callable[[float], float]:
    """Return the script's function as Python. What it raises becomes `Failing`.

    Raises:
        Unportable: its source, or what its defaults read, is unknown.
    """
    python = _compiled(function)

    def value(step: float) -> float:
        try:
            result = python(step)
        except Exception as error:
            failing = Failing(f"{function.name}({step:g}) raises {type(error).__name__}: {error}")
            failing.past_end = isinstance(error, IndexError)
            raise failing from None
        if result is None:
            raise Failing(f"{function.name}({step:g}) returns None")
        return result

    return value


def _compiled(function: RecordedFunction) -> Callable[..., float]:
    import ast

    node = parsed(function)
    module = ast.Module([ast.fix_missing_locations(node)], [])
    namespace: dict[str, Any] = {"math": math, "bisect": importlib.import_module("bisect")}
    namespace["np"] = namespace["numpy"] = importlib.import_module("numpy")
    for name, value in function.values.items():
        root, *path = name.split(".")
        if not path:
            namespace[root] = value
            continue
        holder = namespace.setdefault(root, _Holder())
        for step in path[:-1]:
            holder = holder.__dict__.setdefault(step, _Holder())
        setattr(holder, path[-1], value)
    for name, called in function.functions.items():
        namespace[name] = _compiled(called)
    try:
        exec(compile(module, f"<{function.name}>", "exec"), namespace)
    except Exception as unknown:  # in the default of an argument
        raise Unportable(str(unknown)) from None
    result: Callable[..., float] = namespace[node.name]
    return functools.partial(result, **function.keywords) if function.keywords else result


class _Holder:
    """Object whose attributes a function reads."""


def optimizer_class(recorded: RecordedOptimizer) -> type[Any]:
    """Return the optimizer's class.

    Raises:
        TrainError: it cannot be imported here.
    """
    module, _, name = recorded.name.rpartition(".")
    try:
        result: type[Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise TrainError(
            f"{recorded.at}: the optimizer {recorded.name} cannot be imported, so its updates cannot be "
            "compared",
            "use an optimizer of torch.optim",
        ) from None
    return result


def torch_optimizer(recorded: RecordedOptimizer, parameters: Sequence[Sequence[Any]]) -> Any:
    """Return the script's optimizer over other parameters, group by group, before its first update."""
    cls = optimizer_class(recorded)
    known = set(inspect.signature(cls.__init__).parameters) - {"self", "params", *_IMPLEMENTATION}
    groups = [
        {
            "params": list(members),
            **{key: _plain(value) for key, value in group.options.items() if key in known},
            "lr": initial_rate(group),
        }
        for group, members in zip(recorded.groups, parameters, strict=True)
    ]
    # Defaults decide what schedulers may change.
    defaults = {key: value for key, value in groups[0].items() if key != "params"}
    return cls(groups, **defaults)


def initial_rate(group: RecordedGroup) -> float:
    """Return the learning rate before any schedule."""
    return float(number(group.options.get("initial_lr", group.options["lr"])))


def torch_rates(recorded: RecordedOptimizer, updates: int, steps: Sequence[int]) -> list[Any]:
    """Return the learning rates and momenta of each group that torch's schedulers give.

    Args:
        recorded: the optimizer with its schedules.
        updates: number of updates.
        steps: number of `step()` calls before each update.

    Returns:
        One entry for each update: a list of (rate, momentum or None) for each group.
    """
    import warnings

    import torch

    groups = [[torch.nn.Parameter(torch.zeros(1))] for _ in recorded.groups]
    optimizer = torch_optimizer(recorded, groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedulers = [torch_schedule(item, recorded, optimizer) for item in recorded.schedules]
        calls, result = 0, []
        for update in range(updates):
            while calls < steps[update]:
                for scheduler in schedulers:
                    scheduler.step()
                calls += 1
            result.append(
                [
                    (float(number(group["lr"])), momentum_of(group))
                    for group in optimizer.param_groups
                ]
            )
    return result


def momentum_of(group: Mapping[str, Any]) -> float | None:
    """Return the momentum of a group, or Adam's first beta."""
    if "betas" in group:
        return float(number(group["betas"][0]))
    return float(number(group["momentum"])) if "momentum" in group else None


def torch_schedule(item: RecordedSchedule, recorded: RecordedOptimizer, optimizer: Any) -> Any:
    """Return the scheduler over another optimizer.

    Raises:
        TrainError: it depends on more than the number of its steps.
        Unportable: a function's source is unknown.
    """
    from torch.optim import lr_scheduler

    require_schedule(item, recorded)
    name = item.name.rpartition(".")[2]
    cls = getattr(lr_scheduler, name)
    if name == "ChainedScheduler":
        return cls([torch_schedule(child, recorded, optimizer) for child in item.children])
    if name == "SequentialLR":
        children = [torch_schedule(child, recorded, optimizer) for child in item.children]
        return cls(optimizer, children, milestones=list(item.options["_milestones"]))
    return cls(optimizer, **_arguments(item, recorded))


def require_schedule(item: RecordedSchedule, recorded: RecordedOptimizer) -> None:
    """Require a scheduler of torch that depends on the number of its steps alone, and so its children.

    Raises:
        TrainError: it is another one.
    """
    from torch.optim import lr_scheduler

    module, _, name = item.name.rpartition(".")
    known = module == SCHEDULERS and hasattr(lr_scheduler, name)
    if not known or name == PLATEAU or item.options.get(SCALE):
        raise refused_schedule(item, recorded)
    for child in item.children:
        require_schedule(child, recorded)


def refused_schedule(item: RecordedSchedule, recorded: RecordedOptimizer) -> TrainError:
    """Return the error for a scheduler that has no counterpart."""
    at = f"{recorded.file}:{item.line}" if item.line else recorded.at
    if item.options.get(SCALE):
        return TrainError(
            f"{at}: CyclicLR scales by a function of the script (scale_fn)",
            "use one of its modes, or LambdaLR",
        )
    if item.name == f"{SCHEDULERS}.{PLATEAU}":
        return TrainError(
            f"{at}: ReduceLROnPlateau sets the learning rate by a metric, which no schedule of steps has",
            "use a scheduler that depends on the step alone",
        )
    return TrainError(
        f"{at}: the scheduler {item.name} is unknown", "use a scheduler of torch.optim.lr_scheduler"
    )


def _arguments(item: RecordedSchedule, recorded: RecordedOptimizer) -> dict[str, Any]:
    from torch.optim import lr_scheduler

    name, options = item.name.rpartition(".")[2], item.options
    if name in ("LambdaLR", "MultiplicativeLR"):
        return {"lr_lambda": [python_function(function) for function in item.functions]}
    if name == "MultiStepLR":
        return {"milestones": milestones(item), "gamma": options["gamma"]}
    if name == "OneCycleLR":
        return _one_cycle(item, recorded)
    if name == "CyclicLR":
        up = options["total_size"] * options["step_ratio"]
        momenta = ("base_momentums", "max_momentums") if options["cycle_momentum"] else ()
        return {
            "base_lr": list(options["base_lrs"]),
            "max_lr": list(options["max_lrs"]),
            "step_size_up": up,
            "step_size_down": options["total_size"] - up,
            **{key: options[key] for key in ("mode", "gamma", "scale_mode", "cycle_momentum")},
            **{key.removesuffix("s"): list(options[key]) for key in momenta},
        }
    known = set(inspect.signature(getattr(lr_scheduler, name).__init__).parameters)
    known -= {"self", "optimizer", "last_epoch", "verbose"}
    return {key: value for key, value in options.items() if key in known}


def _one_cycle(item: RecordedSchedule, recorded: RecordedOptimizer) -> dict[str, Any]:
    options, groups = item.options, [group.options for group in recorded.groups]
    phases = options["_schedule_phases"]
    first = groups[0]
    result = {
        "max_lr": [group["max_lr"] for group in groups],
        "total_steps": options["total_steps"],
        "pct_start": (phases[0]["end_step"] + 1) / options["total_steps"],
        "anneal_strategy": options["_anneal_func_type"],
        "cycle_momentum": options["cycle_momentum"],
        "div_factor": first["max_lr"] / first["initial_lr"],
        "final_div_factor": first["initial_lr"] / first["min_lr"],
        "three_phase": len(phases) == 3,
    }
    if options["cycle_momentum"]:
        result["base_momentum"] = [group["base_momentum"] for group in groups]
        result["max_momentum"] = [group["max_momentum"] for group in groups]
    return result


def milestones(item: RecordedSchedule) -> list[int]:
    """Return MultiStepLR's milestones, with repetitions."""
    counted = item.options["milestones"]
    if isinstance(counted, Mapping):
        return sorted(step for step, times in counted.items() for _ in range(times))
    return sorted(counted)


def _plain(value: Any) -> Any:
    return number(value) if hasattr(value, "item") else value
