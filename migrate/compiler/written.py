"""What stands in a program before a compiler has changed it: products, wide values, constants, with lines.

The compiled text no longer tells some of it: float64 has become pairs, a table that is looked up by a product
has been folded into it, operands have been narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

Kind = Literal["product", "wide", "constant", "unsized"]
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.dot")
# What changes no value, or only its type or shape.
_SAME = frozenset(
    f"stablehlo.{name}"
    for name in ("convert", "reshape", "broadcast_in_dim", "transpose", "broadcast", "slice")
)
_DEPTH = 12  # operations that are followed back from an operand
_LARGE = 1_000_000  # bytes of a constant


@dataclass(frozen=True)
class Operation:
    """An operation of a program as it was written.

    Attributes:
        kind: "product"; "wide" gives float64 or complex128; "constant" holds a megabyte or more; "unsized"
            gives an array of which a side is not known.
        dtypes: of the operands of a product, of what the others give.
        where: its location in MLIR's words; of a constant that of the operation that first takes it.
        amount: floating point operations of a product, bytes of the others, on all devices together; of a
            loop, those of one turn.
        sides: of a product's operands and result, each once.
        one_hot: whether an operand of a product is a comparison with 0, 1, 2, …: rows that are looked up.
    """

    kind: Kind
    dtypes: tuple[str, ...]
    where: str
    amount: float
    sides: tuple[int, ...] = ()
    one_hot: bool = False


@dataclass(frozen=True)
class Written:
    """What is read of a program before it is compiled.

    Attributes:
        operations: in the order of the program.
        arguments: the shape of each, on all devices together.
        uses: where each of them is first used, in MLIR's words.
        outputs: where each value that is returned was made.
    """

    operations: tuple[Operation, ...] = ()
    arguments: tuple[tuple[int, ...], ...] = ()
    uses: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


NOTHING = Written()


def from_json(value: Mapping[str, Any]) -> Written:
    """What `dataclasses.asdict` has made plain."""
    operations = tuple(
        Operation(
            one["kind"],
            tuple(one["dtypes"]),
            one["where"],
            one["amount"],
            tuple(one["sides"]),
            one["one_hot"],
        )
        for one in value["operations"]
    )
    arguments = tuple(tuple(one) for one in value["arguments"])
    return Written(operations, arguments, tuple(value["uses"]), tuple(value["outputs"]))


def written_in(module: Any) -> Written:
    """Read an MLIR module in the words of StableHLO."""
    functions = {
        str(one.attributes["sym_name"]).strip('"'): one
        for one in module.body.operations
        if "sym_name" in one.attributes
    }
    if "main" not in functions:  # the compiler will say so
        return Written(tuple(_operations(module.operation, functions)))
    (block,) = functions["main"].body.blocks
    returned = _returned(block)
    return Written(
        tuple(_operations(module.operation, functions)),
        tuple(_shape(one.type) for one in block.arguments),
        tuple(_first_use(one) for one in block.arguments),
        tuple(str(one.owner.location) if _made(one) else "" for one in returned),
    )


def _operations(operation: Any, functions: Mapping[str, Any]) -> Iterator[Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _operation(one, functions)
                yield from _operations(one, functions)


def _operation(one: Any, functions: Mapping[str, Any]) -> Iterator[Operation]:
    name = one.operation.name
    for result in one.results:
        dtype = _dtype(result.type)
        # A number by itself costs nothing.
        if dtype in ("f64", "complex<f64>") and _shape(result.type):
            yield Operation("wide", (dtype,), str(one.location), _bytes(result.type))
        if "?" in str(result.type):
            yield Operation("unsized", (dtype,), str(one.location), 0.0)
    if name in _PRODUCTS:
        shapes = [_shape(value.type) for value in (*one.operands, one.results[0])]
        yield Operation(
            "product",
            tuple(_dtype(value.type) for value in one.operands),
            str(one.location),
            _flops(one, shapes),
            tuple(dict.fromkeys(side for shape in shapes for side in shape)),
            name != "stablehlo.convolution"
            and any(_one_hot(value, functions) for value in one.operands),
        )
    elif name == "stablehlo.constant":
        size = _bytes(one.results[0].type)
        if size >= _LARGE and not _is_splat(one):
            users = [use.owner for use in one.results[0].uses]
            yield Operation(
                "constant",
                (_dtype(one.results[0].type),),
                str((users[0] if users else one).location),
                size,
            )


def _flops(one: Any, shapes: Sequence[tuple[int, ...]]) -> float:
    """Two for each multiplication and addition; those that meet a convolution's padding included."""
    left, right, made = shapes
    if one.operation.name == "stablehlo.convolution":
        from jax._src.lib.mlir.dialects import hlo

        numbers = hlo.ConvDimensionNumbers(one.attributes["dimension_numbers"])
        return (
            2.0 * prod(made) * prod(right) / max(1, right[numbers.kernel_output_feature_dimension])
        )
    if one.operation.name == "stablehlo.dot":
        return 2.0 * prod(made) * left[-1]
    from jax._src.lib.mlir.dialects import hlo

    numbers = hlo.DotDimensionNumbers(one.attributes["dot_dimension_numbers"])
    return 2.0 * prod(made) * prod(left[axis] for axis in numbers.lhs_contracting_dimensions)


def _one_hot(value: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a value is a comparison with an iota, through what only changes types and shapes."""
    found = _behind(value, functions)
    if found is None or found.operation.name != "stablehlo.compare":
        return False
    if " EQ" not in str(found.attributes["comparison_direction"]):
        return False
    sides = [_behind(one, functions) for one in found.operands]
    return any(one is not None and one.operation.name == "stablehlo.iota" for one in sides)


def _behind(value: Any, functions: Mapping[str, Any]) -> Any:
    """The operation that made a value, before conversions and changes of shape; None of an argument."""
    for _ in range(_DEPTH):
        if not _made(value):
            return None
        one = value.owner
        if one.operation.name in ("func.call", "call"):
            called = functions.get(str(one.attributes["callee"]).strip('@"'))
            if called is None:
                return None
            number = next(n for n, result in enumerate(one.results) if result == value)
            value = _returned(called.body.blocks[0])[number]
        elif one.operation.name in _SAME:
            value = one.operands[0]
        else:
            return one
    return None


def _first_use(value: Any) -> str:
    users = [use.owner for use in value.uses]
    return str(users[-1].location) if users else ""  # the last one comes first


def _returned(block: Any) -> list[Any]:
    """What a function gives back, one value for each array."""
    last = list(block.operations)[-1]
    values = list(last.operands)
    if len(values) == 1 and _made(values[0]):
        maker = values[0].owner
        if maker.operation.name == "stablehlo.tuple":
            return list(maker.operands)
    return values


def _made(value: Any) -> bool:
    """Whether an operation made it; else it is an argument."""
    return hasattr(value.owner, "operation")


def _is_splat(one: Any) -> bool:
    return bool(getattr(one.attributes["value"], "is_splat", False))


def _bytes(said: Any) -> float:
    bits = "".join(digit for digit in _dtype(said) if digit.isdigit())
    size = 1 if not bits else max(1, int(bits) // 8)
    return prod(_shape(said)) * size * (2 if "complex" in _dtype(said) else 1)


def _shape(said: Any) -> tuple[int, ...]:
    """Of an MLIR type; a side that is not known counts as none."""
    from jax._src.lib.mlir import ir

    try:
        return tuple(max(0, int(side)) for side in ir.RankedTensorType(said).shape)
    except ValueError:  # a token, a tuple
        return ()


def _dtype(said: Any) -> str:
    from jax._src.lib.mlir import ir

    try:
        return str(ir.RankedTensorType(said).element_type)
    except ValueError:
        return ""
