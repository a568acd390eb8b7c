"""Operators whose result on XLA is another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.catalogue import wrong_operators as wrong
from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import lies_on_device
from migrate.reading.facts import Facts
from migrate.reading.values.masks import is_boolean
from migrate.reading.values.numbers import fractional, is_infinite
from migrate.reading.values.wide import wide_dtype
from migrate.syntax.tree import code, keyword, string_value

EMPTY = frozenset({"()", "[]"})


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator, its tensor and its other arguments.

    Args:
        call: the call.
        value: the tensor; the call itself where it makes one.
        facts: facts about the script.
        last: the operator's name, without its module.
        is_method: whether the operator is a method of the tensor.
    """

    call: cst.Call
    value: cst.BaseExpression
    facts: Facts
    last: str
    is_method: bool

    def given(self, parameters: Sequence[str]) -> dict[str, cst.BaseExpression]:
        """Return the arguments behind the tensor, by the names that torch gives them."""
        of_itself = self.is_method or self.value is self.call
        names = parameters if of_itself else ("input", *parameters)
        plain = [arg.value for arg in self.call.args if arg.keyword is None and not arg.star]
        named = {arg.keyword.value: arg.value for arg in self.call.args if arg.keyword}
        return dict(zip(names, plain, strict=False)) | named


class WrongOperators(Hazard):
    """An operator gives other values on XLA than in torch.

    **Why.** torch_xla 2.9 computes something else, without a word:

    - `x.amax()` and `x.amin()` without a dimension return `x`, and so does every reduction with `dim=()`;
    - `mask.count_nonzero()` is `True`, as it keeps the type of its tensor;
    - `mask.cumsum(dim)` stays a tensor of truth values, and one of uint8 overflows;
    - `count.clamp(min=1e-6)` of integers stays an integer: the bound is 0;
    - `torch.arange(0, 1, 0.1, device="xla")` has 11 elements: steps that are no binary fraction miscount;
    - `x.norm(float("inf"))` is 1 everywhere, and so are `F.normalize` and `F.pairwise_distance` with that p;
    - `x.diagonal(dim1=0, dim2=1)` of more than two dimensions takes the last two, and so does
      `einsum("iib->b", x)`;
    - `F.avg_pool2d(x, …, divisor_override=n)` divides by another number with `ceil_mode=True` or
      `count_include_pad=False`;
    - `torch.linalg.matrix_rank(x)` and the nuclear norm of a batch of matrices have another shape;
    - `pack_padded_sequence` packs rows of another sequence where lengths differ, and LSTM, GRU and RNN raise
      on what it returns.

    **What to do.** `x.max()`, `x.min()`, `x.sum()`; `(x != 0).sum()`; `mask.cumsum(dim, dtype=torch.int64)`;
    `count.clamp(min=1)`, or `count.float()` first; `torch.arange(10, device=device) * 0.1`, or
    `torch.linspace`; `torch.linalg.vector_norm(x, float("inf"))` or `x.abs().max()`; move the dimensions to
    the end: `x.movedim((0, 1), (-2, -1))`; multiply an average by its own divisor; take
    `torch.linalg.svdvals(x)` and sum or count; run the recurrent layer over the padded batch, and take with
    `gather` what it gives at the last step of each sequence.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA880"
    name = "wrong-operators"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(
        {
            *wrong.REDUCTIONS,
            *wrong.CLAMPS,
            *(
                "arange",
                "count_nonzero",
                "cumsum",
                "diagonal",
                "einsum",
                "norm",
                "pairwise_distance",
                "matrix_norm",
                "matrix_rank",
                "avg_pool2d",
                "avg_pool3d",
            ),
            *("pack_padded_sequence", "pack_sequence"),
        }
    )
    examples = (
        example(
            """
            import math
            import torch
            import torch.nn.functional as F


            class Loss(torch.nn.Module):
                def forward(self, x, y):
                    scale = x.abs().amax()  # XLA880
                    right = (x.argmax(1) == y).count_nonzero()  # XLA880
                    order = (y > 0).cumsum(0)  # XLA880
                    count = (y > 0).sum().clamp(min=1e-6)  # XLA880
                    grid = torch.arange(0, 1, 0.1, device="cuda")  # XLA880
                    far = x.norm(float("inf")) + torch.norm(x, p=math.inf, dim=1).sum()  # XLA880 # XLA880
                    unit = F.normalize(x, p=math.inf)  # XLA880
                    own = torch.diagonal(x, dim1=0, dim2=1) + torch.einsum("iib->b", x)  # XLA880 # XLA880
                    rank = torch.linalg.matrix_rank(x)  # XLA880 warning
                    whole = F.avg_pool2d(x, 3, ceil_mode=True, divisor_override=2)  # XLA880
                    return x.sum(dim=()) / scale  # XLA880
            """
        ),
        example(
            """
            import torch
            from torch.nn.utils.rnn import pack_padded_sequence


            class Net(torch.nn.Module):
                def forward(self, x, lengths, mask):
                    x = x * mask.cumsum(1)  # XLA880 info
                    return self.lstm(pack_padded_sequence(x, lengths, batch_first=True))  # XLA880
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, y, values):
                    scale = x.amax(-1).max() + x.amin(dim=(0, 1)) + x.max()
                    order = (y > 0).cumsum(0, dtype=torch.int64) + (y > 0).long().cumsum(0) + x.cumsum(0)
                    count = (y > 0).sum().clamp(min=1) + x.clamp(min=1e-6) + y.float().clamp(0.5)
                    grid = torch.arange(0, 1, 0.25, device="cuda") + torch.arange(0, 10, 2, device="cuda")
                    steps = torch.arange(0, 1, 0.1)
                    far = x.norm(2) + torch.linalg.vector_norm(x, float("inf"))
                    own = torch.diagonal(x, dim1=-2, dim2=-1) + torch.einsum("bii->bi", x)
                    return x.diagonal() / scale + np.count_nonzero(values) + (y > 0).sum()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, x, y):
                scale = x.abs().max()
                right = (x.argmax(1) == y).sum()
                order = (y > 0).cumsum(0, dtype=torch.int64)
                count = (y > 0).sum().clamp(min=1)
                grid = torch.arange(10, device="cuda") * 0.1
                return torch.linalg.vector_norm(x, float("inf")) * scale / count * right
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call of an operator whose result is another one."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        last = method(node) if name is None else name.rpartition(".")[2]
        answer = _of_name(name, last)
        if answer is None or (name is not None and not node.args):
            return
        value = receiver(node) if name is None else node.args[0].value
        if name == "torch.arange":
            value = node
        elif name == "torch.einsum" and len(node.args) > 1:
            value = node.args[1].value
        if not lies_on_device(value, facts):
            return
        message, severity = answer(OperatorCall(node, value, facts, last, name is None))
        if message:
            yield self.hit(node, message, severity)


Answer = tuple[str, Severity | None]
NOTHING: Answer = ("", None)


def _of_name(name: str | None, last: str) -> Callable[[OperatorCall], Answer] | None:
    """Return who answers for a function of this qualified name, or for a method."""
    if name in wrong.PACKS:
        return _packed
    if name in wrong.INFINITE_NORMS or (name is None and last == "norm"):
        return _norm
    if name == "torch.linalg.diagonal":
        return _diagonal
    if name == "torch.linalg.matrix_rank":
        return _ranked
    if name == "torch.linalg.matrix_norm":
        return _matrix_norm
    if name in wrong.AVERAGE_POOLS:
        return _averaged
    if name is None or name == f"torch.{last}":
        return _OPERATORS.get(last)
    return None


def _reduction(asked: OperatorCall) -> Answer:
    arguments = asked.given(("dim", "keepdim"))
    written = code(arguments["dim"]) if "dim" in arguments else ""
    missing = asked.last in wrong.REDUCES_NOTHING and "dim" not in arguments
    if any(arg.star for arg in asked.call.args) or not (missing or written in EMPTY):
        return NOTHING
    instead = {"amax": "max", "amin": "min"}.get(asked.last, asked.last)
    without = "without a dimension" if missing else f"with dim={written}"
    return (
        f"{asked.last} {without} reduces nothing on XLA and returns its tensor: .{instead}()",
        None,
    )


def _counted(asked: OperatorCall) -> Answer:
    if is_boolean(asked.value, asked.facts, by_name=False):
        return "count_nonzero of a mask is True on XLA, no number: (x != 0).sum()", None
    what = "count_nonzero keeps the type of its tensor on XLA, and of a mask it is True"
    return f"{what}: (x != 0).sum()", Severity.INFO


def _cumulated(asked: OperatorCall) -> Answer:
    if "dtype" in asked.given(("dim",)):
        return NOTHING
    if is_boolean(asked.value, asked.facts, by_name=False):
        what, severity = "cumsum of a mask stays a mask on XLA", None
    elif _is_small(asked.value, asked.facts):
        what, severity = "cumsum of a small integer type keeps it on XLA, and overflows", None
    elif is_boolean(asked.value, asked.facts):
        what, severity = (
            "if this mask holds truth values, its cumsum does on XLA too",
            Severity.INFO,
        )
    else:
        return NOTHING
    return f"{what}: cumsum(dim, dtype=torch.int64)", severity


def _is_small(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is made, where it stands, of an integer type of fewer than 32 bits."""
    if not isinstance(value, cst.Call):
        return False
    types = {facts.names.of(arg.value) for arg in value.args}
    return method(value) in ("byte", "char", "short") or bool(types & wrong.SMALL_TYPES)


def _clamped(asked: OperatorCall) -> Answer:
    sides = {"clamp_min": ("min",), "clamp_max": ("max",)}.get(
        asked.last.rstrip("_"), ("min", "max")
    )
    bounds = asked.given(sides).items()
    floats = [bound for name, bound in bounds if name != "input" and fractional(bound, asked.facts)]
    if not floats or not _is_integer(asked.value, asked.facts):
        return NOTHING
    what = (
        f"{asked.last} of integers stays an integer on XLA, and so does the bound {code(floats[0])}"
    )
    return f"{what}: a bound of 1, or .float() first", None


def _is_integer(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a tensor of integers: by its type, or as a sum of truth values."""
    if wide_dtype(value, facts.context) == "int64":
        return True
    if isinstance(value, cst.Name):
        values = facts.values.given_to(value)
        return bool(values) and all(
            isinstance(value, cst.Call) and _sums(value, facts) for value in values
        )
    return isinstance(value, cst.Call) and _sums(value, facts)


def _sums(call: cst.Call, facts: Facts) -> bool:
    is_sum = method(call) == "sum" and keyword(call, "dtype") is None
    return is_sum and is_boolean(receiver(call), facts, by_name=False)


def _range(asked: OperatorCall) -> Answer:
    step = asked.given(("start", "end", "step")).get("step")
    if step is None or not fractional(step, asked.facts, binary=False):
        return NOTHING
    what = f"arange with a step of {code(step)} may have one element more or fewer on XLA"
    return f"{what}: torch.linspace, or torch.arange(n) times the step", None


def _norm(asked: OperatorCall) -> Answer:
    tensors = ("x2",) if asked.last == "pairwise_distance" else ()
    arguments = asked.given((*tensors, "p"))
    if "p" in arguments and string_value(arguments["p"]) == "nuc":
        return _of_a_batch("the nuclear norm", ".sum(-1)")
    if "p" not in arguments or not is_infinite(arguments["p"], asked.facts):
        return NOTHING
    what = "norm" if asked.last == "norm" else f"the norm of {asked.last}"
    return f"{what} with an infinite p is 1 everywhere on XLA: torch.linalg.vector_norm(x, p)", None


def _matrix_norm(asked: OperatorCall) -> Answer:
    order = asked.given(("ord",)).get("ord")
    if order is None or string_value(order) != "nuc":
        return NOTHING
    return _of_a_batch("the nuclear norm", ".sum(-1)")


def _ranked(asked: OperatorCall) -> Answer:
    return _of_a_batch("matrix_rank", " and count what is above a tolerance")


def _of_a_batch(what: str, then: str) -> Answer:
    message = (
        f"{what} of a batch of matrices has another shape on XLA: torch.linalg.svdvals(x){then}"
    )
    return message, Severity.WARNING


def _averaged(asked: OperatorCall) -> Answer:
    arguments = asked.given(
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    )
    changed = {"ceil_mode": "False", "count_include_pad": "True"}
    if "divisor_override" not in arguments or code(arguments["divisor_override"]) == "None":
        return NOTHING
    if all(code(arguments[name]) == plain for name, plain in changed.items() if name in arguments):
        return NOTHING
    what = f"{asked.last} divides by another number than divisor_override on XLA with ceil_mode or without"
    return f"{what} count_include_pad: leave divisor_override out, and multiply", None


def _diagonal(asked: OperatorCall) -> Answer:
    arguments = asked.given(("offset", "dim1", "dim2"))
    if "dim1" not in arguments:
        return NOTHING
    if {code(arguments["dim1"]), code(arguments.get("dim2", arguments["dim1"]))} != {"0", "1"}:
        return NOTHING
    what = "diagonal takes the last two dimensions on XLA, of more than two not 0 and 1"
    return f"{what}: x.movedim((0, 1), (-2, -1)).diagonal(dim1=-2, dim2=-1)", None


def _summed(asked: OperatorCall) -> Answer:
    equation = string_value(asked.call.args[0].value)
    if equation is None or "." in equation:
        return NOTHING
    operands, _, result = equation.replace(" ", "").partition("->")
    for operand in operands.split(","):
        twice = operand[:1] * 2
        if len(operand) > 2 and operand.startswith(twice) and operand[0] not in result:
            what = f"einsum sums the diagonal of the last two dimensions of `{operand}` on XLA"
            return f"{what}, not of `{twice}`: move these to the end of the tensor", None
    return NOTHING


def _packed(asked: OperatorCall) -> Answer:
    what = f"{asked.last} packs rows of another sequence on XLA where lengths differ, and LSTM, GRU and RNN"
    return f"{what} raise on it: run the layer over the padded batch, gather the last steps", None


_OPERATORS: dict[str, Callable[[OperatorCall], Answer]] = {
    **dict.fromkeys(wrong.REDUCTIONS, _reduction),
    **dict.fromkeys(wrong.CLAMPS, _clamped),
    "arange": _range,
    "count_nonzero": _counted,
    "cumsum": _cumulated,
    "diagonal": _diagonal,
    "einsum": _summed,
}
