"""At a kink or a tie, each lowering has the gradient that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from converters.graph import Port, port
from converters.graph.ops import lowerings, sample
from converters.graph.ops.registry import values
from tests.converters.graph.comparison import as_array, compare, run_written, written

INF = torch.inf
ROUND = values(-1.0, 0.0, 1.0)  # 0, and a value on each side of it
EDGES = values(-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
NOTHING = values([0.0] * 8)
TIED = values([[2.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
ZEROS = values([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]])
MATRIX_NORMS = [
    (1, [0, 1], False),
    (INF, [0, 1], True),
    (-1, [1, 0], False),
    (-INF, [-1, -2], True),
]
PLANE = values(
    [[[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]]]]
)


# Operator → arguments that lie exactly at its kinks and ties.
KINKS: dict[str, tuple[Any, ...]] = {
    **{
        f"aten.{name}": (
            sample(EDGES, -0.5, 1.0),
            sample(EDGES, 0.0, 1.0),
            sample(EDGES, -1.0, 0.0),
            sample(EDGES, 0.5),
            sample(EDGES, None, 0.5),
            sample(EDGES, 1.0, 1.0),
            sample(EDGES, 1.0, -1.0),
            sample(EDGES, 0.0),
            sample(EDGES, None, 0.0),
        )
        for name in ("clamp.default",)
    },
    "aten.clamp.Tensor": (
        sample(EDGES, values(-0.5), values(1.0)),
        sample(EDGES, EDGES, None),
        sample(EDGES, None, EDGES),
        sample(EDGES, EDGES, EDGES),
        sample(ROUND, values(0.0, 0.0, 2.0), values(1.0, 0.0, 1.0)),
        sample(values(1.0), values(1.0, 1.0, 0.0)),
    ),
    "aten.clamp_min.default": (sample(EDGES, 0.5), sample(EDGES, 1e-12), sample(EDGES, 0)),
    "aten.clamp_max.default": (sample(EDGES, 0.5), sample(EDGES, 0)),
    "aten.clamp_min.Tensor": (sample(EDGES, EDGES), sample(ROUND, values(0.0))),
    "aten.clamp_max.Tensor": (sample(EDGES, EDGES), sample(ROUND, values(0.0))),
    "aten.relu.default": (sample(ROUND),),
    "aten.relu6.default": (sample(EDGES),),
    "aten.selu.default": (sample(ROUND),),
    "aten.silu.default": (sample(ROUND),),
    "aten.mish.default": (sample(ROUND),),
    "aten.gelu.default": (sample(ROUND),),
    "aten.log_sigmoid.default": (sample(ROUND),),
    "aten.elu.default": (sample(ROUND), sample(ROUND, 0.5), sample(ROUND, 0.5, 2.0, 0.3)),
    "aten.celu.default": (sample(ROUND), sample(ROUND, 0.5)),
    "aten.leaky_relu.default": (sample(ROUND), sample(ROUND, 0.2)),
    "aten.rrelu.default": (sample(ROUND),),
    "aten.prelu.default": (sample(ROUND, values(0.2)), sample(values([[0.0, 1.0, -1.0]]), ROUND)),
    "aten.softplus.default": (
        sample(values(0.0, 20.0)),
        sample(values(0.0, 10.0), 2),
        sample(values(0.0, 2.0), 1, 2.0),
        sample(values(0.0, 25.0, 100.0), 1, 30.0),
    ),
    "aten.hardtanh.default": (
        sample(EDGES),
        sample(EDGES, -0.5, 0.5),
        sample(EDGES, 0.0, 6.0),
        sample(EDGES, 0.0, 1.0),
        sample(EDGES, -1.0, 0.0),
    ),
    "aten.hardsigmoid.default": (sample(values(-3.0, 0.0, 3.0)),),
    "aten.hardswish.default": (sample(values(-3.0, 0.0, 3.0)),),
    "aten.hardshrink.default": (sample(EDGES), sample(ROUND, 0.0)),
    "aten.softshrink.default": (sample(EDGES), sample(ROUND, 0.0)),
    "aten.threshold.default": (sample(EDGES, 0.5, 20.0), sample(EDGES, 0.0, 0.0)),
    "aten.abs.default": (sample(ROUND),),
    "aten.sign.default": (sample(ROUND),),
    "aten.maximum.default": (sample(EDGES, EDGES), sample(ROUND, values(0.0))),
    "aten.minimum.default": (sample(EDGES, EDGES), sample(ROUND, values(0.0))),
    "aten.max.other": (sample(EDGES, EDGES),),
    "aten.min.other": (sample(EDGES, EDGES),),
    "aten.fmax.default": (
        sample(EDGES, EDGES),
        sample(values(1.0, torch.nan), values(torch.nan, 1.0)),
    ),
    "aten.fmin.default": (
        sample(EDGES, EDGES),
        sample(values(1.0, torch.nan), values(torch.nan, 1.0)),
    ),
    "aten.max.dim": (sample(TIED, 1), sample(TIED, 0, True)),
    "aten.min.dim": (sample(TIED, 1), sample(TIED, -2, True)),
    "aten.amax.default": (sample(TIED, [1]), sample(TIED, [0], True), sample(TIED)),
    "aten.amin.default": (sample(TIED, [1]), sample(TIED, [0], True), sample(TIED)),
    "aten.max.default": (sample(TIED),),
    "aten.min.default": (sample(TIED),),
    "aten.aminmax.default": (sample(TIED), sample(TIED, dim=1)),
    "aten.cummax.default": (sample(TIED, 1), sample(values(1.0, 0.0, 1.0, 2.0, 2.0), 0)),
    "aten.cummin.default": (sample(TIED, 1),),
    "aten.max_pool2d.default": (sample(PLANE, [2, 2]), sample(PLANE, [3, 3], [1, 1], [1, 1])),
    "aten.max_pool2d_with_indices.default": (
        sample(PLANE, [2, 2]),
        sample(PLANE, [3, 3], [1, 1], [1, 1]),
    ),
    "aten.max_pool1d.default": (sample(TIED, [2]), sample(TIED, [3], [1], [1])),
    "aten.max_pool3d.default": (sample(PLANE, [1, 2, 2]),),
    "aten.max_pool3d_with_indices.default": (sample(PLANE, [1, 2, 2]),),
    "aten.adaptive_max_pool1d.default": (sample(TIED, [2]), sample(TIED, [3])),
    "aten.adaptive_max_pool2d.default": (
        sample(PLANE, [2, 2]),
        sample(PLANE, [1, 1]),
        sample(PLANE, [3, 3]),
    ),
    "aten.adaptive_max_pool3d.default": (sample(PLANE, [1, 2, 2]),),
    "aten.median.default": (sample(TIED), sample(values(1.0, 1.0, 2.0))),
    "aten.median.dim": (sample(TIED, 1),),
    "aten.quantile.default": (
        sample(TIED, values(0.5), 1),
        sample(TIED, values(0.3)),
    ),
    "aten.quantile.scalar": (sample(TIED, 0.5, 1), sample(TIED, 0.5), sample(TIED, 0.3, 1)),
    "aten.sort.default": (sample(TIED),),
    "aten.sort.stable": (sample(TIED, stable=True), sample(TIED, stable=True, descending=True)),
    "aten.msort.default": (sample(TIED),),
    "aten.sqrt.default": (sample(values(0.0, 1.0)),),
    "aten.rsqrt.default": (sample(values(0.0, 1.0)),),
    "aten.reciprocal.default": (sample(values(0.0, 1.0)),),
    "aten.log.default": (sample(values(0.0, 1.0)),),
    "aten.log1p.default": (sample(values(-1.0, 1.0)),),
    "aten.asin.default": (sample(ROUND),),
    "aten.acos.default": (sample(ROUND),),
    "aten.atanh.default": (sample(ROUND),),
    "aten.acosh.default": (sample(values(1.0, 2.0)),),
    "aten.sinc.default": (sample(ROUND),),
    "aten.i0.default": (sample(ROUND),),
    "aten.special_i0e.default": (sample(ROUND),),
    "aten.special_i1.default": (sample(ROUND),),
    "aten.special_i1e.default": (sample(ROUND),),
    "aten.special_entr.default": (sample(values(0.0, 1.0)),),
    "aten.erfinv.default": (sample(ROUND),),
    "aten.angle.default": (sample(ROUND),),
    "aten.logit.default": (
        sample(values(0.0, 0.25, 0.75, 1.0), 0.25),
        sample(values(0.0, 0.5, 1.0)),
    ),
    "aten.pow.Tensor_Scalar": tuple(
        sample(values(0.0, 1.0, 2.0), power)
        for power in (0, 1, 2, 3, 0.5, 1.5, 2.5, -0.5, -1, 0.0, 1.0, 2.0, -2)
    ),
    "aten.pow.Scalar": (sample(0.0, values(0.0, 1.0, 2.0)), sample(2.0, ROUND)),
    "aten.pow.Tensor_Tensor": (
        sample(values(0.0, 0.0, 2.0), values(1.0, 2.0, 0.0)),
        sample(values(-2.0, -1.0), values(2.0, 3.0)),
        sample(values(0.0), values(0.5)),
        sample(values([[0.0], [2.0]]), values(0.0, 1.0, 2.0)),
    ),
    "aten.linalg_vector_norm.default": (
        *(sample(ZEROS, power, [1]) for power in (2, 1, 3, 1.5, INF, -INF, 0, 4, 0.5, -1)),
        *(sample(values([0.0, 0.0]), power) for power in (2, 1, 3, INF, -INF)),
        sample(ZEROS, 2, [0, 1]),
        sample(TIED, INF, [1]),
        sample(TIED, -INF, [1]),
        sample(ZEROS, 2, [1], True),
    ),
    "aten.norm.ScalarOpt_dim": (
        sample(ZEROS, 2, [1]),
        sample(ZEROS, None, [1]),
        sample(ZEROS, 3, [1]),
    ),
    "aten.norm.Scalar": (
        sample(values(0.0, 0.0)),
        sample(values(0.0, 0.0), 1),
        sample(values(0.0, 0.0), 3),
    ),
    "aten.linalg_norm.default": (
        sample(values([0.0, 0.0])),
        sample(ZEROS, None, [1]),
        sample(ZEROS, 1, [1]),
        sample(values([[0.0, 0.0]])),
        sample(TIED, INF),
    ),
    "aten.linalg_norm.ord_str": (sample(values([[0.0, 0.0]]), "fro"),),
    "aten.linalg_matrix_norm.default": (
        sample(TIED, INF),
        sample(values([[1.0, -1.0], [1.0, 1.0]]), INF),
        *(sample(ZEROS, order, dim, keep) for order, dim, keep in MATRIX_NORMS),
    ),
    "aten.linalg_matrix_norm.str_ord": (sample(values([[0.0, 0.0]]), "fro"),),
    "aten.dist.default": (
        sample(ROUND, ROUND),
        sample(ROUND, ROUND, 1),
        sample(ROUND, ROUND, INF),
        sample(ROUND, ROUND, 3),
        sample(ROUND, values(-1.0, 2.0, 1.0), 1),
    ),
    "aten.cdist.default": tuple(
        sample(ZEROS, values([[0.0, 0.0, 0.0], [3.0, 1.0, 4.0]]), p, None)
        for p in (2.0, 1.0, 3.0, INF, 1.5)
    ),
    "aten.pairwise_distance.default": (
        sample(ZEROS, ZEROS),
        sample(ZEROS, ZEROS, 2.0, 0.0),
        sample(ZEROS, ZEROS, 1.0, 0.0),
    ),
    "aten.renorm.default": (sample(ZEROS, 2, 0, 5.0), sample(ZEROS, 2, 0, 1.0)),
    "aten.cosine_similarity.default": (
        sample(ZEROS, ZEROS),
        sample(ZEROS, values([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])),
        sample(values([[1e-8, 0.0]]), values([[1.0, 2.0]])),
    ),
    "aten.where.self": (
        sample(values(True, False), values(torch.nan, 1.0), values(1.0, torch.nan)),
        sample(values(False, True), values(torch.nan, 1.0), values(1.0, torch.nan)),
    ),
    "aten.masked_fill.Scalar": (sample(values(torch.nan, 1.0), values(True, False), 0.0),),
    "aten.nan_to_num.default": (sample(values(torch.nan, INF, -INF, 1.0)),),
    "aten.logsumexp.default": (
        sample(values([[-INF, 0.0], [-INF, -INF]]), [1]),
        sample(values([[INF, 0.0], [1.0, 1.0]]), [1]),
        sample(values([[INF, -INF], [INF, INF]]), [1]),
    ),
    "aten.logcumsumexp.default": (sample(values([-INF, -INF, 1.0]), 0),),
    "aten.logaddexp.default": (sample(values(0.0, -INF, -INF), values(0.0, 1.0, -INF)),),
    "aten.logaddexp2.default": (sample(values(0.0, -INF, -INF), values(0.0, 1.0, -INF)),),
    "aten.softmax.int": (sample(values([[-INF, 0.0], [-INF, -INF]]), 1),),
    "aten.log_softmax.int": (sample(values([[-INF, 0.0], [-INF, -INF]]), 1),),
    "aten._safe_softmax.default": (sample(values([[-INF, 0.0], [-INF, -INF]]), 1),),
    "aten.atan2.default": (sample(values(0.0, 0.0, 0.0, 1.0), values(0.0, 1.0, -1.0, 0.0)),),
    "aten.hypot.default": (sample(values(0.0, 3.0), values(1.0, 0.0)),),
    "aten.copysign.Tensor": (sample(ROUND, ROUND), sample(values(0.0, 1.0), values(-1.0, 0.0))),
    "aten.xlogy.Tensor": (sample(values(0.0, 1.0), values(1.0, 0.0)),),
    "aten.fmod.Tensor": (
        sample(values(0.0, 2.0, 4.0, -4.0, 3.0), values(2.0, 2.0, 2.0, 2.0, -3.0)),
    ),
    "aten.remainder.Tensor": (
        sample(values(0.0, 2.0, 4.0, -4.0, 3.0), values(2.0, 2.0, 2.0, 2.0, -3.0)),
    ),
    "aten.remainder.Scalar": (sample(values(0.0, 2.0, 4.0, -4.0, 3.0), 2.0),),
    "aten.fmod.Scalar": (sample(values(0.0, 2.0, 4.0, -4.0, 3.0), 2.0),),
    "aten.frac.default": (sample(EDGES),),
    "aten.round.default": (sample(EDGES),),
    "aten.round.decimals": (sample(EDGES, decimals=1),),
    "aten.floor.default": (sample(EDGES),),
    "aten.div.Tensor_mode": (
        sample(EDGES, values(0.5), rounding_mode="floor"),
        sample(EDGES, values(0.5), rounding_mode="trunc"),
    ),
    "aten.mse_loss.default": (sample(ROUND, ROUND),),
    "aten.l1_loss.default": (sample(ROUND, ROUND),),
    "aten.smooth_l1_loss.default": (
        sample(EDGES, NOTHING),
        sample(EDGES, NOTHING, 0, 0.5),
    ),
    "aten.huber_loss.default": (sample(EDGES, NOTHING), sample(EDGES, NOTHING, 0, 0.5)),
    "aten.binary_cross_entropy_with_logits.default": (
        sample(values(0.0, 0.0, 0.0), values(0.0, 1.0, 0.5)),
    ),
    "aten.kl_div.default": (
        sample(values(0.0, -1.0), values(0.0, 1.0)),
        sample(values(0.0, -1.0), values(0.0, -1.0), log_target=True),
    ),
    "aten.cross_entropy_loss.default": (sample(values([[-INF, 0.0], [0.0, 0.0]]), values(1, 0)),),
    "aten.prod.default": (sample(values(0.0, 2.0, 3.0)), sample(values(0.0, 0.0, 3.0))),
    "aten.prod.dim_int": (sample(values([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]]), 1),),
    "aten.cumprod.default": (sample(values([[0.0, 2.0, 3.0], [2.0, 0.0, 0.0]]), 1),),
    **{
        f"aten.{name}.correction": (
            sample(TIED, [1]),
            sample(TIED, [1], correction=0),
            sample(values(1.0, 1.0)),
        )
        for name in ("var", "std", "std_mean", "var_mean")
    },
    "aten.std.default": (sample(values(1.0, 1.0)),),
    "aten.std.dim": (sample(TIED, [1]),),
    "aten.layer_norm.default": (sample(TIED, [4]),),
    "aten.rms_norm.default": (sample(ZEROS, [3]),),
    "aten._weight_norm.default": (sample(ZEROS, values([[1.0], [2.0]]), 0),),
    "aten.scatter_reduce.two": (
        sample(values(1.0, 5.0), 0, values(0, 0, 1, 1), values(1.0, 1.0, 5.0, 2.0), "amax"),
        sample(values(1.0, 5.0), 0, values(0, 0, 1, 1), values(1.0, 1.0, 5.0, 2.0), "amin"),
        *(
            sample(
                values(1.0, 5.0, 4.0, 3.0),
                0,
                values(0, 0, 1, 1, 2),
                values(1.0, 1.0, 5.0, 2.0, 4.0),
                reduce,
                include_self=False,
            )
            for reduce in ("amax", "amin")
        ),
    ),
}

CASES = [
    pytest.param(name, case, id=f"{name.removeprefix('aten.')}-{number}")
    for name, cases in KINKS.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_gradient_at_a_kink_is_that_of_torch(name: str, given: Any) -> None:
    arguments, named = given.arguments(torch.Generator().manual_seed(0))
    compare(name, lowerings()[name], arguments, named)


@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
def test_a_saturated_probability_has_the_gradient_of_torch(target: float) -> None:
    """A sigmoid beyond 17 is exactly 1 in float32; by JAX alone the gradient is NaN."""
    name = "aten.binary_cross_entropy.default"
    x = torch.tensor([-200.0, 0.0, 40.0], requires_grad=True)
    y = torch.full((3,), target)
    probability = x.sigmoid()
    loss = torch.nn.functional.binary_cross_entropy(probability, y)
    by_p, by_x = torch.autograd.grad(loss, (probability, x))
    text, symbols = written(name, lowerings()[name], (probability, y), {}, loss, depends=False)
    run = run_written(text, symbols)
    p = as_array(probability)
    found = jax.grad(run)(p, as_array(y))
    np.testing.assert_allclose(found, by_p.numpy(), rtol=2e-6, err_msg=text)
    through = jax.grad(lambda x: run(jax.nn.sigmoid(x), as_array(y)))(as_array(x))
    np.testing.assert_allclose(through, by_x.numpy(), rtol=0, atol=2e-6, err_msg=text)


def test_zero_times_the_logarithm_of_zero_has_the_gradient_of_torch() -> None:
    """It is 0 by the first argument, though the logarithm is infinite; by the second torch has NaN."""
    x, y = (
        torch.tensor([0.0, 0.0, 0.0, 2.0], requires_grad=True),
        torch.tensor([0.0, 1.0, -1.0, 3.0]),
    )
    expected = torch.xlogy(x, y)
    (by_x,) = torch.autograd.grad(expected.sum(), x)
    name = "aten.xlogy.Tensor"
    text, symbols = written(name, lowerings()[name], (x, y), {}, expected, depends=False)
    run = run_written(text, symbols)
    found = jax.grad(lambda x: run(x, as_array(y)).sum())(as_array(x))
    np.testing.assert_allclose(found, by_x.numpy(), rtol=2e-6)


class Extremes(torch.nn.Module):
    """The largest and smallest along an axis, whose indices nobody reads; the rows have equal elements."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.max(1).values * 2 + torch.min(x, dim=1, keepdim=True)[0].squeeze(1) * x.amax(1)


def test_the_first_of_equal_extremes_has_the_gradient_of_torch(load: Callable[[Port], Any]) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]], requires_grad=True)
    result = port(Extremes(), {"x": x.detach()})
    model, weights = load(result), torch.tensor([1.0, 10.0])
    (wanted,) = torch.autograd.grad((Extremes()(x) * weights).sum(), x)

    def total(x: Any) -> Any:
        return (model.apply({}, x=x) * weights.numpy()).sum()

    np.testing.assert_allclose(jax.grad(total)(as_array(x)), wanted.numpy(), rtol=2e-6)
    assert "argmax(axis=1)" not in result.modeling.partition("class Extremes")[2]
