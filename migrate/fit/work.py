"""Work of a compiled program: multiplications, bytes to and from HBM, bytes between chips.

Of each instruction of the schedule, with how often it runs. Multiplications are those of `convolution` and
`dot`, to which the compiler brings all products; they are counted as XLA's own cost analysis does: positions
of a window that lie in the padding or between dilated elements multiply nothing. Bytes are those of operands
and results that lie in HBM, with their padding; of an operand that is only sliced, what is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from migrate.compiler.arrays import HBM, HloArray
from migrate.compiler.hlo import REMATERIALIZED, Computation, HloModule, Instruction

# Names for what is there already; nothing moves.
_FREE = frozenset(
    {
        "parameter",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "constant",
        "optimization-barrier",
        "domain",
    }
    | {"add-dependency", "after-all", "partition-id", "replica-id", "iota"}
)
_RUNS = frozenset({"while", "call", "conditional"})
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
)
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_GROUPS = re.compile(r"feature_group_count=(\d+)")
_BATCH_GROUPS = re.compile(r"batch_group_count=(\d+)")
_PRECISION = re.compile(r"operand_precision=\{(\w+)")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_BATCH = re.compile(r"lhs_batch_dims=\{([\d,]*)\}")
_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_FULL = 1 << 10  # a side that leaves no matrix unit idle, where nobody knows it
# Multiplications in bfloat16 that one of float32 is made of (docs: jax.lax.Precision).
PASSES = {"default": 1, "high": 3, "highest": 6}


@dataclass(frozen=True)
class Multiplication:
    """A matrix product or a convolution, as a matrix unit sees it.

    Attributes:
        flops: two for each multiplication and addition.
        rows, columns, depth: of the product; of a convolution the positions of the output, its features and
            the values that each is summed from.
        dtypes: dtypes of the operands.
        precision: "default", "high" or "highest".
        again: whether the compiler does it a second time, so that its result need not be kept.
    """

    flops: float
    rows: int
    columns: int
    depth: int
    dtypes: tuple[str, ...]
    precision: str
    again: bool = False

    @property
    def passes(self) -> int:
        """Number of passes of a matrix unit over the product: several for exact float32."""
        return PASSES.get(self.precision, 1) if "f32" in self.dtypes else 1


@dataclass(frozen=True)
class InstructionWork:
    """Work of one instruction, each time it runs.

    Attributes:
        instruction: the instruction.
        times: how often it runs.
        products: the products in it.
        bytes: bytes to and from HBM.
        source: `file.py:line`.
    """

    instruction: Instruction
    times: int
    products: tuple[Multiplication, ...]
    bytes: int
    source: str

    @property
    def flops(self) -> float:
        """Operations of the matrix units over all runs, with the further passes of float32."""
        return self.times * sum(product.flops * product.passes for product in self.products)

    @property
    def again(self) -> float:
        """Operations that are done a second time."""
        return self.times * sum(
            product.flops * product.passes for product in self.products if product.again
        )

    @property
    def moved(self) -> int:
        """Bytes, all times together."""
        return self.times * self.bytes


@dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
        kind: "all-reduce", ….
        bytes: bytes that each device contributes.
        group: how many devices exchange with each other.
        times: how often it runs.
        overlapped: whether the schedule has work between its start and its end.
        source: `file.py:line`.
    """

    kind: str
    bytes: int
    group: int
    times: int
    overlapped: bool
    source: str

    @property
    def sent(self) -> float:
        """Bytes that each device has to send at least, all times together.

        An all-reduce is a reduce-scatter and an all-gather: each device sends (n - 1) / n of the array in
        either (Patarasuk & Yuan, doi 10.1016/j.jpdc.2008.09.002).
        """
        share = (self.group - 1) / self.group
        factor = {
            "all-reduce": 2 * share,
            "all-gather": self.group - 1,  # `bytes` is the part that each device has
            "collective-permute": 1.0,
        }.get(self.kind, share)
        return self.times * self.bytes * factor


def work_of(module: HloModule) -> Iterator[InstructionWork]:
    """Each instruction of the schedule that computes or moves something."""
    yield from _work(module, module.entry, 1)


def _work(module: HloModule, computation: Computation, times: int) -> Iterator[InstructionWork]:
    sources = module.sources_in(computation)
    for instruction in computation.values():
        if instruction.opcode in _RUNS:
            turns = _turns(module, instruction, computation)
            for name in instruction.called:
                body = module.computations.get(name, {})
                yield from _work(module, body, times * turns)
        elif instruction.opcode not in _FREE and not instruction.opcode.endswith("-done"):
            products = tuple(
                _products(module, instruction, computation, REMATERIALIZED in instruction.name)
            )
            yield InstructionWork(
                instruction,
                times,
                products,
                _bytes(module, instruction, computation),
                sources[instruction.name],
            )


def _turns(module: HloModule, instruction: Instruction, within: Computation) -> int:
    """Return how often the called computation runs, or 1 if unknown: see `counted_once`."""
    turns = module.trips(instruction, within) if instruction.opcode == "while" else None
    return 1 if turns is None else turns


def _products(
    module: HloModule, instruction: Instruction, within: Computation, again: bool
) -> Iterator[Multiplication]:
    """Yield the products of an instruction and of the computation that is fused into it."""
    if instruction.opcode in ("convolution", "dot"):
        yield replace(_product(instruction, within), again=again)
    elif instruction.opcode == "custom-call":
        yield from _kernel(instruction, within)
    for name in instruction.called if instruction.opcode in ("fusion", "async-start") else ():
        body = module.computations.get(name, {})
        for inner in body.values():
            yield from _products(module, inner, body, again or REMATERIALIZED in inner.name)


def _kernel(instruction: Instruction, within: Computation) -> Iterator[Multiplication]:
    """The products of a kernel, by its own estimate: XLA makes one of attention, people write theirs."""
    match = _ESTIMATE.search(instruction.line)
    flops = float(match[1]) if match else 0.0
    if not flops:
        return
    operands = [_array(within, name) for name in instruction.operands[:3]]
    dtypes = tuple(array.dtype for array in operands[:2])
    features = {array.shape[-1] for array in operands if len(array.shape) > 2}
    if (
        len(operands) == 3
        and len(features) == 1
        and all(len(array.shape) > 2 for array in operands)
    ):
        # Queries, keys, values: scores are summed over the features of a head, what comes out over the keys.
        (head,), queries, keys = features, operands[0].shape[-2], operands[1].shape[-2]
        yield Multiplication(flops / 2, queries, keys, head, dtypes, "default")
        yield Multiplication(flops / 2, queries, head, keys, dtypes, "default")
    else:
        yield Multiplication(flops, _FULL, _FULL, _FULL, dtypes, "default")


def _product(instruction: Instruction, within: Computation) -> Multiplication:
    left, right = (_array(within, name) for name in instruction.operands[:2])
    result = instruction.arrays[0]
    match = _PRECISION.search(instruction.line)
    precision = match[1] if match else "default"
    dtypes = (left.dtype, right.dtype)
    if instruction.opcode == "dot":
        shared = [left.shape[axis] for axis in _axes(_CONTRACTING, instruction.line)]
        together = _axes(_BATCH, instruction.line)
        contracted = {*_axes(_CONTRACTING, instruction.line), *together}
        rows = prod(side for axis, side in enumerate(left.shape) if axis not in contracted)
        batch = prod(left.shape[axis] for axis in together)
        depth = prod(shared)
        columns = prod(result.shape) // max(1, rows * batch)
        return Multiplication(
            2.0 * prod(result.shape) * depth, rows, columns, depth, dtypes, precision
        )
    labels = _LABELS.search(instruction.line)
    if labels is None:
        return Multiplication(0.0, 1, 1, 1, dtypes, precision)
    kernel = dict(zip(labels[2], right.shape, strict=True))
    output = dict(zip(labels[3], result.shape, strict=True))
    image = dict(zip(labels[1], left.shape, strict=True))
    groups = _number(_GROUPS, instruction.line) * _number(_BATCH_GROUPS, instruction.line)
    window = _window(instruction.line, sum(label.isdigit() for label in labels[2]))
    valid = prod(
        _valid(int(image[str(axis)]), int(output[str(axis)]), *sides)
        for axis, sides in enumerate(window)
    )
    multiplied = (
        output["f"] * output["b"] * kernel["i"] * valid / _number(_BATCH_GROUPS, instruction.line)
    )
    places = prod(output[str(axis)] for axis in range(len(window)))
    taken = max(1, valid // max(1, places))  # kernel positions behind an output, without padding
    # A batched product is written as a convolution whose windows each meet one element of the batch.
    batched = places if taken == 1 and prod(size for size, *_ in window) > 1 else 1
    rows = output["b"] * places // batched
    return Multiplication(
        2.0 * multiplied, rows, output["f"] // groups, kernel["i"] * taken, dtypes, precision
    )


def _window(line: str, rank: int) -> list[tuple[int, int, int, int, int]]:
    """Return for each spatial axis: size, stride, padding before, dilation of the image, of the kernel."""
    match = _WINDOW.search(line)
    said = dict(part.split("=", 1) for part in match[1].split()) if match else {}

    def of(name: str, default: str) -> list[str]:
        return said[name].split("x") if name in said else [default] * rank

    sizes, strides = of("size", "1"), of("stride", "1")
    before = [text.split("_")[0] for text in of("pad", "0_0")]
    images, kernels = of("lhs_dilate", "1"), of("rhs_dilate", "1")
    together = zip(sizes, strides, before, images, kernels, strict=True)
    return [(int(a), int(b), int(c), int(d), int(e)) for a, b, c, d, e in together]


def _valid(
    image: int, output: int, size: int, stride: int, before: int, dilated: int, spread: int
) -> int:
    """Pairs of an output's position and a kernel's that meet an element of the image.

    As HloCostAnalysis::HandleConvolution of XLA counts them.
    """
    if size == image and size == output and size > 64:
        quick = _batched(size, stride, before, dilated)
        if quick is not None:
            return quick
    length = (image - 1) * dilated + 1
    count = 0
    for at, kernel in product(range(output), range(size)):
        place = at * stride - before + kernel * spread
        count += 0 <= place < length and place % dilated == 0
    return count


def _batched(size: int, stride: int, before: int, dilated: int) -> int | None:
    """The common spelling of a batch: each window meets one element (stride n - 1, dilation n)."""
    if before == size - 1 and stride == size - 1 and dilated == size:
        return size
    return None


def _bytes(module: HloModule, instruction: Instruction, within: Computation) -> int:
    """Return the bytes to and from HBM."""
    if instruction.opcode in ("copy-start", "slice-start") or instruction.opcode.endswith("-start"):
        # The result names what it takes beside what it gives.
        sizes = [array.padded for array in instruction.arrays if array.space == HBM]
        if instruction.opcode == "slice-start":
            return sum(array.padded for array in instruction.arrays[1:2])
        return sum(sizes[:2])
    written = sum(array.padded for array in instruction.arrays if array.space == HBM)
    taken = _taken(module, instruction)
    read = 0
    for place, name in enumerate(instruction.operands):
        for array in _arrays(within, name):
            if array.space == HBM:
                read += min(array.padded, taken.get(place, array.padded))
    if instruction.opcode == "dynamic-update-slice" or _updates(module, instruction):
        # In place: only what is put there moves.
        read = written = min(read, written, _update(module, instruction, within))
    return read + written


def _taken(module: HloModule, instruction: Instruction) -> Mapping[int, int]:
    """Bytes that are read of operands that are only sliced, by the operand's place."""
    if instruction.opcode in _SLICES:
        return {0: sum(array.padded for array in instruction.arrays)}
    sizes: dict[int, int] = {}
    for name in instruction.called if instruction.opcode == "fusion" else ():
        body = module.computations.get(name, {})
        for parameter in (each for each in body.values() if each.opcode == "parameter"):
            users = [each for each in body.values() if parameter.name in each.operands]
            if users and all(
                each.opcode in _SLICES and each.operand == parameter.name for each in users
            ):
                sizes[parameter.number] = sum(
                    array.padded for each in users for array in each.arrays
                )
    return sizes


def _updates(module: HloModule, instruction: Instruction) -> bool:
    return any(
        each.is_root and each.opcode == "dynamic-update-slice"
        for name in (instruction.called if instruction.opcode == "fusion" else ())
        for each in module.computations.get(name, {}).values()
    )


def _update(module: HloModule, instruction: Instruction, within: Computation) -> int:
    if instruction.opcode == "dynamic-update-slice":
        return sum(array.padded for array in _arrays(within, instruction.operands[1]))
    body = next(module.computations[name] for name in instruction.called)
    root = next(each for each in body.values() if each.is_root)
    return sum(array.padded for array in _arrays(body, root.operands[1]))


def counted_once(module: HloModule) -> Iterator[str]:
    """`file.py:line` of each loop that works and whose turns the compiler does not know."""
    for computation in module.computations.values():
        loops = [
            instruction
            for instruction in computation.values()
            if instruction.opcode == "while" and module.trips(instruction, computation) is None
        ]
        for loop in loops:
            bodies = [module.computations.get(name, {}) for name in loop.called]
            if any(True for body in bodies for _ in _work(module, body, 1)):
                yield module.sources_in(computation)[loop.name] or loop.operation or loop.name


def collectives_of(module: HloModule, devices: int) -> Iterator[Collective]:
    """The exchanges of a program, in the order of its schedule."""
    yield from _collectives(module, module.entry, 1, devices)


def _collectives(
    module: HloModule, computation: Computation, times: int, devices: int
) -> Iterator[Collective]:
    order = list(computation.values())
    for place, instruction in enumerate(order):
        if instruction.opcode in _RUNS:
            turns = _turns(module, instruction, computation)
            for name in instruction.called:
                body = module.computations.get(name, {})
                yield from _collectives(module, body, times * turns, devices)
            continue
        if instruction.opcode == "fusion":
            yield from _fused_collectives(module, instruction, computation, times, devices)
            continue
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        operand_bytes = sum(
            array.size for name in instruction.operands for array in _arrays(computation, name)
        )
        overlapped = instruction.opcode.endswith("-start") and _works_between(order, place)
        group = _group(instruction.line, devices)
        if group > 1:
            yield Collective(
                kind,
                operand_bytes,
                group,
                times,
                overlapped,
                module.sources.of(instruction.line) or instruction.operation,
            )


def _fused_collectives(
    module: HloModule,
    fusion: Instruction,
    computation: Computation,
    times: int,
    devices: int,
) -> Iterator[Collective]:
    """Yield the exchange of a fusion.

    libtpu makes two fusions of a large all-reduce whose result is computed with: an all-reduce of which each
    device keeps its part, and an all-reduce of an array that holds this part alone. The first sends what a
    reduce-scatter sends, the second what an all-gather sends.
    """
    for name in fusion.called:
        for inner in module.computations.get(name, {}).values():
            group = _group(inner.line, devices)
            if inner.opcode != "all-reduce" or group < 2:
                continue
            reduced = sum(array.size for array in inner.arrays)
            taken = sum(
                array.size for operand in fusion.operands for array in _arrays(computation, operand)
            )
            left = sum(array.size for array in fusion.arrays)
            kind, size = inner.opcode, reduced
            if left < reduced:
                kind = "reduce-scatter"
            elif taken < reduced:
                kind, size = "all-gather", taken
            source = module.sources.of(inner.line) or module.sources.of(fusion.line)
            yield Collective(kind, size, group, times, False, source or inner.operation)


def _works_between(order: list[Instruction], start: int) -> bool:
    """Whether something computes between the start of an exchange and its end."""
    for instruction in order[start + 1 :]:
        if order[start].name in instruction.operands:
            return False
        if instruction.opcode in ("fusion", "convolution", "dot", "while"):
            return True
    return False


def _group(line: str, devices: int) -> int:
    """Number of devices that exchange with each other."""
    _, _, rest = line.partition("replica_groups=")
    if rest.startswith("{{"):
        return len(rest[2:].partition("}")[0].split(","))
    if rest.startswith("["):  # [groups,size]<=[…]
        return int(rest[1:].partition("]")[0].split(",")[-1])
    if rest.startswith("mesh["):  # mesh['data'=8,'model'=2] {'data'}
        sides = dict(re.findall(r"'(\w+)'=(\d+)", rest.partition("]")[0]))
        over = re.findall(r"'(\w+)'", rest.partition("{")[2].partition("}")[0])
        return prod(int(sides[axis]) for axis in over)
    return devices


def _array(within: Computation, name: str) -> HloArray:
    return next(iter(_arrays(within, name)), HloArray("f32", ()))


def _arrays(within: Computation, name: str) -> tuple[HloArray, ...]:
    return within[name].arrays if name in within else ()


def _axes(pattern: re.Pattern[str], line: str) -> list[int]:
    match = pattern.search(line)
    return [int(axis) for axis in match[1].split(",") if axis] if match else []


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 1
