"""Read a program before a compiler has changed it: products, wide values, constants, with lines.

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
class WrittenOperation:
    """An operation of a program as it was written.

    Attributes:
        kind: "product"; "wide" gives float64 or complex128; "constant" holds a megabyte or more; "unsized"
            gives an array of which a side is not known.
        dtypes: dtypes of a product's operands, or of another operation's results.
        where: MLIR location. For a constant, the location of the operation that first uses it.
        amount: floating point operations of a product, bytes of the others, on all devices together; of a
            loop, those of one turn.
        sides: sides of a product's operands and result, each once.
        one_hot: whether an operand of a product is a comparison with 0, 1, 2, …: rows that are looked up.
    """

    kind: Kind
    dtypes: tuple[str, ...]
    where: str
    amount: float
    sides: tuple[int, ...] = ()
    one_hot: bool = False


@dataclass(frozen=True)
class WrittenProgram:
    """Contents of a program before it is compiled.

    Attributes:
        operations: the operations, in the order of the program.
        arguments: the shape of each, on all devices together.
        uses: MLIR location of each argument's first use.
        outputs: MLIR location of the operation that made each returned value.
    """

    operations: tuple[WrittenOperation, ...] = ()
    arguments: tuple[tuple[int, ...], ...] = ()
    uses: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


NOTHING = WrittenProgram()


def from_json(value: Mapping[str, Any]) -> WrittenProgram:
    """Restore the object from the output of `dataclasses.asdict`."""
    operations = tuple(
        WrittenOperation(
            operation["kind"],
            tuple(operation["dtypes"]),
            operation["where"],
            operation["amount"],
            tuple(operation["sides"]),
            operation["one_hot"],
        )
        for operation in value["operations"]
    )
    arguments = tuple(tuple(argument) for argument in value["arguments"])
    return WrittenProgram(operations, arguments, tuple(value["uses"]), tuple(value["outputs"]))


def written_in(module: Any) -> WrittenProgram:
    """Read an MLIR module in the words of StableHLO."""
    functions = {
        str(function.attributes["sym_name"]).strip('"'): function
        for function in module.body.operations
        if "sym_name" in function.attributes
    }
    if "main" not in functions:  # the compiler will say so
        return WrittenProgram(tuple(_operations(module.operation, functions)))
    (block,) = functions["main"].body.blocks
    returned = _returned(block)
    return WrittenProgram(
        tuple(_operations(module.operation, functions)),
        tuple(_shape(argument.type) for argument in block.arguments),
        tuple(_first_use(argument) for argument in block.arguments),
        tuple(
            str(returned_value.owner.location) if _made(returned_value) else ""
            for returned_value in returned
        ),
    )


def _operations(operation: Any, functions: Mapping[str, Any]) -> Iterator[WrittenOperation]:
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield from _operation(child, functions)
                yield from _operations(child, functions)


def _operation(operation: Any, functions: Mapping[str, Any]) -> Iterator[WrittenOperation]:
    name = operation.operation.name
    for result in operation.results:
        dtype = _dtype(result.type)
        # A number by itself costs nothing.
        if dtype in ("f64", "complex<f64>") and _shape(result.type):
            yield WrittenOperation("wide", (dtype,), str(operation.location), _bytes(result.type))
        if "?" in str(result.type):
            yield WrittenOperation("unsized", (dtype,), str(operation.location), 0.0)
    if name in _PRODUCTS:
        shapes = [_shape(value.type) for value in (*operation.operands, operation.results[0])]
        yield WrittenOperation(
            "product",
            tuple(_dtype(value.type) for value in operation.operands),
            str(operation.location),
            _flops(operation, shapes),
            tuple(dict.fromkeys(side for shape in shapes for side in shape)),
            name != "stablehlo.convolution"
            and any(_one_hot(value, functions) for value in operation.operands),
        )
    elif name == "stablehlo.constant":
        size = _bytes(operation.results[0].type)
        if size >= _LARGE and not _is_splat(operation):
            users = [use.owner for use in operation.results[0].uses]
            yield WrittenOperation(
                "constant",
                (_dtype(operation.results[0].type),),
                str((users[0] if users else operation).location),
                size,
            )


def _flops(operation: Any, shapes: Sequence[tuple[int, ...]]) -> float:
    """Two for each multiplication and addition; those that meet a convolution's padding included."""
    left, right, product = shapes
    if operation.operation.name == "stablehlo.convolution":
        from jax._src.lib.mlir.dialects import hlo

        numbers = hlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
        return (
            2.0
            * prod(product)
            * prod(right)
            / max(1, right[numbers.kernel_output_feature_dimension])
        )
    if operation.operation.name == "stablehlo.dot":
        return 2.0 * prod(product) * left[-1]
    from jax._src.lib.mlir.dialects import hlo

    numbers = hlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    return 2.0 * prod(product) * prod(left[axis] for axis in numbers.lhs_contracting_dimensions)


def _one_hot(value: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a value is a comparison with an iota, through what only changes types and shapes."""
    origin = _behind(value, functions)
    if origin is None or origin.operation.name != "stablehlo.compare":
        return False
    if " EQ" not in str(origin.attributes["comparison_direction"]):
        return False
    sides = [_behind(operand, functions) for operand in origin.operands]
    return any(side is not None and side.operation.name == "stablehlo.iota" for side in sides)


def _behind(value: Any, functions: Mapping[str, Any]) -> Any:
    """Return the operation that made a value, before conversions and reshapes; None for an argument."""
    for _ in range(_DEPTH):
        if not _made(value):
            return None
        operation = value.owner
        if operation.operation.name in ("func.call", "call"):
            called = functions.get(str(operation.attributes["callee"]).strip('@"'))
            if called is None:
                return None
            number = next(n for n, result in enumerate(operation.results) if result == value)
            value = _returned(called.body.blocks[0])[number]
        elif operation.operation.name in _SAME:
            value = operation.operands[0]
        else:
            return operation
    return None


def _first_use(value: Any) -> str:
    users = [use.owner for use in value.uses]
    return str(users[-1].location) if users else ""  # the last one comes first


def _returned(block: Any) -> list[Any]:
    """Return the values that a function returns, one for each array."""
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


def _is_splat(operation: Any) -> bool:
    return bool(getattr(operation.attributes["value"], "is_splat", False))


def _bytes(said: Any) -> float:
    bits = "".join(digit for digit in _dtype(said) if digit.isdigit())
    size = 1 if not bits else max(1, int(bits) // 8)
    return prod(_shape(said)) * size * (2 if "complex" in _dtype(said) else 1)


def _shape(said: Any) -> tuple[int, ...]:
    """Shape of an MLIR type. An unknown side counts as 1."""
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
