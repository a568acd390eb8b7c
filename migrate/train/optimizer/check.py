"""Comparison of the written optimizer with torch's own on random gradients, in float64 and float32.

The tests of each optimizer class call it. `migrate train` does not: to compile the updates of a model with
150 arrays takes 10 s.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.optimizer.kinds import number
from migrate.train.optimizer.choice import reference
from migrate.train.optimizer.recorded import ParameterArray, RecordedOptimizer
from migrate.train.optimizer.replay import torch_optimizer
from migrate.train.optimizer.write import WrittenOptimizer, group_members

STEPS = 20
# Largest distance of the weights in float64, relative to how far torch has moved them.
LIMIT = 1e-8
_SIDES = (2, 3, 4, 2, 3, 2)


@dataclass(frozen=True)
class UpdateCheck:
    """Result of a comparison of updates.

    Attributes:
        steps: number of updates.
        float64: largest distance of an array from torch's, relative to its movement, in float64.
        float32: the same, with the written optimizer in float32 and torch in float64.
        limit: limit of the first.
        array: path of the array with the largest distance in float64.
    """

    steps: int
    float64: float
    float32: float
    limit: float
    array: str

    @property
    def equal(self) -> bool:
        """Whether the updates are the same."""
        return self.float64 <= self.limit


def check_updates(
    written: WrittenOptimizer,
    recorded: RecordedOptimizer,
    arrays: Sequence[ParameterArray],
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> UpdateCheck:
    """Train random arrays on random gradients by both optimizers.

    Arrays have the paths and the axes of the program's. Torch gets the rates and momenta of the written
    schedule's reference, which is the record for the first updates.

    Raises:
        TrainError: torch's optimizer cannot be imported.
    """
    import jax

    random = np.random.default_rng(seed)
    shapes = {array.path: _SIDES[: array.ndim] for array in arrays}
    start = {path: random.standard_normal(shape) for path, shape in shapes.items()}
    scale = _scale(recorded, sum(int(np.prod(shape)) for shape in shapes.values()))
    gradients = []
    for _ in range(steps):
        size = scale * 10 ** random.uniform(-0.5, 0.5)
        gradients.append({p: size * random.standard_normal(s) for p, s in shapes.items()})
    rates = recorded_rates(recorded, steps)
    torchs = _of_torch(recorded, arrays, start, gradients, rates)
    with jax.enable_x64(True):
        ours = _of_optax(written.source, start, gradients, np.float64)
    single = _of_optax(written.source, start, gradients, np.float32)
    distances = {path: _distance(ours[path], torchs[path], start[path]) for path in shapes}
    worst = max(distances, key=lambda path: distances[path])
    limits = [1e-6 / clip.limit for clip in recorded.clips if clip.kind == "norm"]
    return UpdateCheck(
        steps,
        distances[worst],
        max(_distance(single[path], torchs[path], start[path]) for path in shapes),
        LIMIT + 2 * max(limits, default=0.0),
        "/".join(worst),
    )


def recorded_rates(
    recorded: RecordedOptimizer, steps: int
) -> list[list[tuple[float, float | None]]]:
    """Return (rate, momentum) of each group at each of the first updates, from torch's side."""
    result = reference(recorded)[:steps]
    while len(result) < steps:  # a constant rate, recorded for fewer updates
        result.append(result[-1])
    return result


def _scale(recorded: RecordedOptimizer, elements: int) -> float:
    """Return the size of a gradient's element at which clipping acts in a part of the updates."""
    for clip in recorded.clips:
        if clip.kind == "norm":
            return float(clip.limit / np.sqrt(elements))
        return float(clip.limit)
    return 1.0


def _of_torch(
    recorded: RecordedOptimizer,
    arrays: Sequence[ParameterArray],
    start: dict[tuple[str, ...], Any],
    gradients: list[dict[tuple[str, ...], Any]],
    rates: list[list[tuple[float, float | None]]],
) -> dict[tuple[str, ...], Any]:
    import torch

    parameters = {
        path: torch.nn.Parameter(torch.tensor(value, dtype=torch.float64))
        for path, value in start.items()
    }
    members = group_members(recorded, arrays)
    spare = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))  # torch refuses an empty group
    groups = [[parameters[a.path] for a in group] or [spare.clone().detach()] for group in members]
    optimizer = torch_optimizer(recorded, groups)
    trained = [array for group in members for array in group]
    for update, values in enumerate(gradients):
        for array in trained:
            parameters[array.path].grad = torch.tensor(values[array.path])
        for clip in recorded.clips:
            chosen = [
                parameters[a.path]
                for a in trained
                if clip.names is None or set(a.names) & set(clip.names)
            ]
            if clip.kind == "norm":
                torch.nn.utils.clip_grad_norm_(chosen, clip.limit, clip.norm_type)
            else:
                torch.nn.utils.clip_grad_value_(chosen, clip.limit)
        for group, (rate, momentum) in zip(optimizer.param_groups, rates[update], strict=True):
            group["lr"] = rate
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum, *map(number, group["betas"][1:]))
            elif momentum is not None:
                group["momentum"] = momentum
        optimizer.step()
    return {path: value.detach().numpy() for path, value in parameters.items()}


def _of_optax(
    source: str,
    start: dict[tuple[str, ...], Any],
    gradients: list[dict[tuple[str, ...], Any]],
    dtype: Any,
) -> dict[tuple[str, ...], Any]:
    import jax
    import optax

    namespace: dict[str, Any] = {"__name__": "optimizer"}
    exec(compile(source, "optimizer.py", "exec"), namespace)
    optimizer = namespace["optimizer"]

    @functools.partial(jax.jit, donate_argnums=(0, 1))  # as in the program
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = _nested(start, dtype)
    state = optimizer.init(params)
    for values in gradients:
        params, state = step(params, state, _nested(values, dtype))
    return {path: np.asarray(_leaf(params, path), np.float64) for path in start}


def _nested(values: dict[tuple[str, ...], Any], dtype: Any) -> Any:
    import jax.numpy as jnp

    tree: dict[str, Any] = {}
    for path, value in values.items():
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = jnp.asarray(value, dtype)
    return tree


def _leaf(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _distance(ours: Any, torchs: Any, start: Any) -> float:
    """Return the distance of two results, relative to the movement; frozen arrays must not move."""
    movement = float(np.linalg.norm(torchs - start))
    distance = float(np.linalg.norm(ours - torchs))
    if movement == 0.0:
        # float32 rounds the start itself
        return distance / float(np.linalg.norm(start)) if np.any(start) else distance
    return distance / movement
