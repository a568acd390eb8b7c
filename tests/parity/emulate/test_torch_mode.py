"""The emulation of the TPU's precision in torch: against formulas written out, and what it leaves alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from migrate.parity.emulate.torch_einsum import einsum_by_bmm
from migrate.parity.emulate.torch_mode import emulated
from migrate.parity.emulate.torch_opaque import has_products_inside
from migrate.parity.emulate.torch_products import PRODUCTS
from migrate.parity.emulate.torch_split import TorchSplit
from migrate.parity.ground.settings import PRECISIONS, Precision

SPLIT = TorchSplit()


def rounded(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().bfloat16().float() for tensor in tensors]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).detach().norm() / truth.norm())


@pytest.mark.parametrize(
    ("precision", "low", "high"),
    [("default", 2e-3, 3e-3), ("high", 1e-5, 2e-5), ("highest", 1e-8, 5e-7)],
)
def test_error_of_each_precision(precision: Precision, low: float, high: float) -> None:
    a, b = drawn(64, 1024), drawn(1024, 64)
    with emulated(precision) as seen:
        product = a @ b
    assert low < relative(product, a.double() @ b.double()) < high
    assert seen.emulated == {"mm": 1}
    assert not seen.unhandled


def test_splits_are_exact() -> None:
    x = drawn(10000) * torch.exp(20 * drawn(10000))
    first = SPLIT.truncated(x)
    second = SPLIT.truncated(x - first)
    third = SPLIT.nearest(x - first - second)
    for part in (first, second, third, SPLIT.nearest(x)):
        assert torch.equal(part.bfloat16().float(), part)
    assert (first.abs() <= x.abs()).all()
    normal = x.abs() > 1e-25  # below, the third part is too small for a normal number
    assert torch.equal((first + second + third)[normal], x[normal])


def test_infinity_stays() -> None:
    a = torch.tensor([[float("inf"), 1.0], [1.0, 2.0]])
    for precision in PRECISIONS:
        with emulated(precision):
            assert (a @ torch.ones(2, 3))[0].isinf().all()


X, W, B = (2, 6, 8), (5, 8), (5,)
FORMULAS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], str]] = {
    "linear": (functional.linear, (X, W), "addmm mm"),
    "matmul": (torch.matmul, ((2, 3, 4, 8), (2, 3, 8, 5)), "bmm"),
    "addmm": (
        lambda a, b: torch.addmm(torch.zeros(5), a, b, beta=2, alpha=3),
        ((4, 8), (8, 5)),
        "",
    ),
    "baddbmm": (
        lambda a, b: torch.baddbmm(torch.ones(2, 1, 5), a, b, beta=0.5, alpha=2) - 0.5,
        ((2, 4, 8), (2, 8, 5)),
        "baddbmm",
    ),
    "addbmm": (lambda a, b: torch.addbmm(torch.zeros(4, 5), a, b), ((2, 4, 8), (2, 8, 5)), ""),
    "einsum": (lambda a, b: torch.einsum("bij,kj->bik", a, b), (X, W), "bmm"),
    "in place": (lambda a, b: torch.zeros(4, 5).addmm_(a, b), ((4, 8), (8, 5)), "addmm"),
    "out": (lambda a, b: torch.mm(a, b, out=torch.empty(0)), ((4, 8), (8, 5)), "mm"),
    "convolution": (
        lambda x, w: functional.conv2d(x, w, stride=2, padding=1, dilation=1, groups=2),
        ((2, 4, 9, 9), (6, 2, 3, 3)),
        "convolution",
    ),
    "transposed": (
        lambda x, w: functional.conv_transpose1d(x, w, stride=2, output_padding=1, groups=2),
        ((2, 4, 9), (4, 3, 3)),
        "convolution",
    ),
    "conv_tbc": (
        lambda x, w: torch.conv_tbc(x, w, torch.zeros(5)),
        ((9, 2, 4), (3, 4, 5)),
        "addmm",
    ),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_one_pass_is_the_product_of_rounded_operands(name: str, inference: bool) -> None:
    function, shapes, _ = FORMULAS[name]
    with torch.inference_mode(inference):
        operands = [drawn(*shape) for shape in shapes]
        with emulated("default") as seen:
            found = function(*operands)
        wanted = function(*rounded(*operands))
        assert sum(seen.emulated.values()) >= 1
        assert not seen.unhandled
        assert not torch.equal(found, function(*operands))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "matmul", "einsum", "convolution", "transposed"])
def test_gradients_are_products_of_rounded_operands(name: str) -> None:
    function, shapes, _ = FORMULAS[name]
    a, b = (drawn(*shape).requires_grad_() for shape in shapes)
    with emulated("default") as seen:
        out = function(a, b)
        cotangent = drawn(*out.shape)
        found = torch.autograd.grad(out, (a, b), cotangent)
    (g,) = rounded(cotangent)
    for position in (0, 1):
        operands = [tensor.requires_grad_() for tensor in rounded(a, b)]
        (wanted,) = torch.autograd.grad(function(*operands), operands[position], g)
        torch.testing.assert_close(found[position], wanted, rtol=1e-5, atol=1e-5)
    assert not seen.unhandled


def test_the_gradient_of_a_bias_is_a_sum_and_not_rounded() -> None:
    layer = nn.Conv1d(3, 4, 3)
    x, cotangent = drawn(2, 3, 10), drawn(2, 4, 8)
    with emulated("default"):
        layer(x).backward(cotangent)
    assert layer.bias is not None
    torch.testing.assert_close(layer.bias.grad, cotangent.sum((0, 2)), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda: drawn(3, 8) @ drawn(8),
        lambda: drawn(8) @ drawn(8),
        lambda: drawn(1, 8) @ drawn(8, 4),
        lambda: drawn(4, 8) @ drawn(8, 1),
        lambda: drawn(4, 1) @ drawn(1, 8),
        lambda: drawn(2, 3, 1, 8) @ drawn(2, 3, 8, 4),
        lambda: torch.addmv(drawn(3), drawn(3, 8), drawn(8)),
        lambda: functional.linear(drawn(8), drawn(4, 8), drawn(4)),
        lambda: functional.conv2d(drawn(2, 4, 5, 5), drawn(4, 1, 1, 1), groups=4),
    ],
)
def test_what_the_vector_unit_computes_is_not_rounded(function: Callable[[], Tensor]) -> None:
    torch.manual_seed(1)
    with emulated("default") as seen:
        found = function()
    torch.manual_seed(1)
    assert torch.equal(found, function())
    assert sum(seen.vector_unit.values()) == 1
    assert not seen.emulated


def test_one_row_of_a_batch_is_exact_and_two_are_rounded() -> None:
    x, w = drawn(2, 64), drawn(64, 8)
    with emulated("default"):
        alone, both = x[:1] @ w, x @ w
    truth = x.double() @ w.double()
    assert relative(both[:1], truth[:1]) > 1000 * relative(alone, truth[:1])


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LSTM(8, 6, batch_first=True, bidirectional=True), (3, 5, 8)),
        (nn.GRU(8, 6, num_layers=2), (5, 3, 8)),
        (nn.RNN(8, 6), (5, 3, 8)),
        (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval(), (3, 5, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), (2, 3, 6, 6)),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_modules_with_fused_kernels(
    module: nn.Module, shape: tuple[int, ...], inference: bool
) -> None:
    x = drawn(*shape)
    with torch.inference_mode(inference), emulated("default") as seen:
        found = module(x)
    with torch.no_grad():
        wanted = module(x)
    if isinstance(found, tuple):
        found, wanted = found[0], wanted[0]
    assert seen.emulated
    assert not seen.unhandled
    assert 1e-5 < relative(found, wanted) < 0.05
    if not inference:
        found.sum().backward()


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("bhij,kj->bhik", (2, 3, 4, 5), (6, 5)),
        ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("bij, bjk -> kb", (2, 4, 5), (2, 5, 3)),
        ("bi,bj->bij", (2, 4), (2, 5)),
        ("ij,kj->", (2, 4), (3, 4)),
    ],
)
def test_einsum_of_two_tensors_is_a_product(
    equation: str, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    x, y = drawn(*a), drawn(*b)
    found = einsum_by_bmm(equation, x, y)
    torch.testing.assert_close(found, torch.einsum(equation, x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ii,ij->j", "...i,ij->...j", "ij,jk"])
def test_other_einsums_are_not_taken(equation: str) -> None:
    assert einsum_by_bmm(equation, drawn(3, 3), drawn(3, 3)) is None


def test_attention_and_its_gradient() -> None:
    q, k, v = (drawn(1, 2, 5, 8).requires_grad_() for _ in range(3))
    with emulated("default") as seen:
        functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert seen.emulated == {"bmm": 6}
    assert not seen.unhandled


def test_distances_are_a_product_when_there_are_many() -> None:
    a, b = drawn(40, 8), drawn(40, 8)
    with emulated("default") as seen:
        found = torch.cdist(a, b)
    assert seen.emulated == {"mm": 1}
    assert relative(found, torch.cdist(a, b)) > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_other_dtypes_are_untouched(dtype: torch.dtype) -> None:
    a, b = (100 * drawn(4, 8)).to(dtype), (100 * drawn(8, 4)).to(dtype)
    with emulated("default") as seen:
        found = a @ b
    assert torch.equal(found, a @ b)
    assert (dict(seen.emulated), seen.unhandled) == ({}, set())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: torch.linalg.inv(drawn(3, 3)), "aten::linalg_inv_ex"),
        (lambda: torch.linalg.cholesky(torch.eye(3)), "aten::linalg_cholesky_ex"),
        (lambda: torch.fft.rfft(drawn(8)), "aten::_fft_r2c"),
        (lambda: torch.matrix_exp(drawn(3, 3)), "aten::linalg_matrix_exp"),
        (lambda: drawn(3, 3).to_sparse() @ drawn(3, 3), "aten::mm (complex or sparse)"),
        (
            lambda: torch.ones(2, 2, dtype=torch.complex64) @ torch.ones(2, 2).to(torch.complex64),
            "aten::mm (complex or sparse)",
        ),
    ],
)
def test_products_that_are_not_emulated_are_named(
    function: Callable[[], Tensor], name: str
) -> None:
    with emulated("default") as seen:
        function()
    assert seen.unhandled == {name}


def test_a_custom_operator_is_named() -> None:
    @torch.library.custom_op("emulate_test::scale", mutates_args=())
    def scale(x: Tensor) -> Tensor:
        return x * 2

    with emulated("default") as seen:
        scale(drawn(3))
    assert seen.unhandled == {"emulate_test::scale"}


def test_plain_layers_are_not_named() -> None:
    layer = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Softmax(-1), nn.Dropout(0.0))
    with emulated("default") as seen:
        layer(drawn(4, 8).requires_grad_()).sum().backward()
    assert (dict(seen.emulated), seen.unhandled) == ({}, set())


def test_the_settings_of_torch_are_put_back() -> None:
    before = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    with emulated("default"):
        pass
    assert before == (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    with pytest.raises(ValueError, match="is not a precision"), emulated("fast"):  # type: ignore[arg-type]
        pass


def test_every_operation_of_aten_that_sounds_like_a_product_is_known() -> None:
    """A newer torch with another kernel of attention or convolution must not pass unseen."""
    schemas = {schema.name for schema in torch._C._jit_get_all_schemas()}
    names = {name.removeprefix("aten::") for name in schemas if name.startswith("aten::")}
    sounds = re.compile("mm|conv|attention|linalg_|lstm|gru|rnn|matmul|linear|einsum")
    elementwise = re.compile("gamma|cumm|upsample|_convert_|_thnn_|reorder_conv|hamming")
    silent = {
        name
        for name in names
        if sounds.search(name)
        and not elementwise.search(name)
        and not has_products_inside(name)
        and name.rstrip("_") not in PRODUCTS
    }
    assert silent == SOUND_ONLY


SOUND_ONLY = {
    *("linalg_cross", "linalg_diagonal", "linalg_norm", "linalg_matrix_norm", "linalg_vecdot"),
    *("linalg_vector_norm", "_linalg_check_errors", "_cslt_sparse_mm_search"),
    *("_cudnn_rnn_flatten_weight", "_use_cudnn_rnn_flatten_weight"),
    *("_nested_get_jagged_dummy", "einsum"),  # einsum goes to bmm
}
