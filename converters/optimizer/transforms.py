"""Optax transformations for torch optimizer steps that optax computes differently.

`amsgrad` and `amsgradw` keep the maximum of the uncorrected second moments, like torch. `adafactor`
is `torch.optim.Adafactor`, and `hf_adafactor` is that of transformers. Both factor the last two
axes of the *torch* tensor and scale by its size. They therefore convert each array to torch's
arrangement first, using `leaves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from converters.mapping.leaves import PlannedLeaf
from converters.optimizer.arrangement import Arrangement

Tree = Any


class AdafactorState(NamedTuple):
    """Number of steps, factored and full second moments and first moments, by torch key."""

    count: Any
    row: Mapping[str, Any]
    col: Mapping[str, Any]
    v: Mapping[str, Any]
    mu: Mapping[str, Any]


def amsgrad(learning_rate: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """`torch.optim.Adam(amsgrad=True)` without weight decay."""
    import optax

    from converters.optimizer.torch_rules import scale_by_amsgrad

    return optax.chain(scale_by_amsgrad(b1, b2, eps), optax.scale_by_learning_rate(learning_rate))


def amsgradw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Any:
    """`torch.optim.AdamW(amsgrad=True)`."""
    import optax

    from converters.optimizer.torch_rules import scale_by_amsgrad

    return optax.chain(
        scale_by_amsgrad(b1, b2, eps),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def adafactor(
    leaves: Iterable[PlannedLeaf],
    learning_rate: float,
    *,
    beta2_decay: float = -0.8,
    eps1: float | None = None,
    eps2: float = 1e-3,
    d: float = 1.0,
    weight_decay: float = 0.0,
) -> Any:
    """`torch.optim.Adafactor`; `leaves` come from the recipe or the plan."""
    import jax.numpy as jnp

    def step(count: Any, grad: Any, param: Any, state: dict[str, Any]) -> Any:
        tiny = jnp.finfo(param.dtype).eps if eps1 is None else eps1
        now = count.astype(grad.dtype)
        weight = now**beta2_decay
        alpha = jnp.maximum(eps2, _rms(param)) * jnp.minimum(learning_rate, 1 / jnp.sqrt(now))
        square = grad * grad
        if grad.ndim > 1:
            row, col = state["row"], state["col"]
            row = row + weight * (square.mean(-1, keepdims=True) - row)
            col = col + weight * (square.mean(-2, keepdims=True) - col)
            state |= {"row": row, "col": col}
            estimate = row * col / jnp.maximum(row.mean(-2, keepdims=True), tiny)
        else:
            state["v"] = estimate = state["v"] + weight * (square - state["v"])
        update = grad / jnp.sqrt(jnp.maximum(estimate, tiny * tiny))
        update = update * alpha / jnp.maximum(1.0, _rms(update) / d)
        return -(learning_rate * weight_decay) * param - update

    return _by_tensor(leaves, step, keepdims=True, first_moment=False)


def hf_adafactor(
    leaves: Iterable[PlannedLeaf],
    learning_rate: float | None,
    *,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip_threshold: float = 1.0,
    decay_rate: float = -0.8,
    beta1: float | None = None,
    weight_decay: float = 0.0,
    scale_parameter: bool = True,
    relative_step: bool = True,
    warmup_init: bool = False,
) -> Any:
    """`transformers.Adafactor`; `leaves` come from the recipe or the plan."""
    import jax
    import jax.numpy as jnp

    def step(count: Any, grad: Any, param: Any, state: dict[str, Any]) -> Any:
        now = count.astype(grad.dtype)
        rate: Any = learning_rate
        if relative_step:
            least = 1e-6 * now if warmup_init else 1e-2
            rate = jnp.minimum(least, 1 / jnp.sqrt(now))
        if scale_parameter:
            rate = rate * jnp.maximum(eps[1], _rms(param))
        beta2 = 1 - now**decay_rate
        square = grad * grad + eps[0]
        if grad.ndim > 1:
            row = beta2 * state["row"] + (1 - beta2) * square.mean(-1)
            col = beta2 * state["col"] + (1 - beta2) * square.mean(-2)
            state |= {"row": row, "col": col}
            rows = jax.lax.rsqrt(row / row.mean(-1, keepdims=True))[..., None]
            update = rows * jax.lax.rsqrt(col)[..., None, :] * grad
        else:
            state["v"] = beta2 * state["v"] + (1 - beta2) * square
            update = jax.lax.rsqrt(state["v"]) * grad
        update = update / jnp.maximum(1.0, _rms(update) / clip_threshold) * rate
        if beta1 is not None:
            state["mu"] = update = beta1 * state["mu"] + (1 - beta1) * update
        return -(weight_decay * rate) * param - update

    return _by_tensor(leaves, step, keepdims=False, first_moment=beta1 is not None)


def _rms(array: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sqrt(jnp.mean(array * array))


def _by_tensor(
    leaves: Iterable[PlannedLeaf],
    step: Callable[[Any, Any, Any, dict[str, Any]], Any],
    *,
    keepdims: bool,
    first_moment: bool,
) -> Any:
    """Return a transformation that treats each torch tensor separately, in torch's arrangement."""
    import jax.numpy as jnp
    import optax

    arrangement = Arrangement(tuple(leaves))

    def init(params: Tree) -> AdafactorState:
        row, col, v, mu = {}, {}, {}, {}
        for key, tensor in arrangement.to_torch(params).items():
            if tensor.ndim > 1:
                row[key] = jnp.zeros_like(tensor.mean(-1, keepdims=keepdims))
                col[key] = jnp.zeros_like(tensor.mean(-2, keepdims=keepdims))
            else:
                v[key] = jnp.zeros_like(tensor)
            if first_moment:
                mu[key] = jnp.zeros_like(tensor)
        return AdafactorState(jnp.zeros([], jnp.int32), row, col, v, mu)

    def update(
        grads: Tree, state: AdafactorState, params: Tree = None
    ) -> tuple[Tree, AdafactorState]:
        if params is None:
            raise ValueError("Adafactor needs the parameters: tx.update(grads, state, params)")
        count = state.count + 1
        tensors = arrangement.to_torch(params)
        after: dict[str, dict[str, Any]] = {"row": {}, "col": {}, "v": {}, "mu": {}}
        updates = {}
        for key, grad in arrangement.to_torch(grads).items():
            local = {
                field: getattr(state, field)[key] for field in after if key in getattr(state, field)
            }
            updates[key] = step(count, grad, tensors[key], local)
            for field, value in local.items():
                after[field][key] = value
        return arrangement.from_torch(updates, grads), AdafactorState(count, **after)

    return optax.GradientTransformation(init, update)
