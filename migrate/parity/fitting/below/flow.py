"""Pass of a traced function that finds, equation by equation, the origin of its parameters.

A parameter is unknown until an equation combines it with a known value: in a product, a sum or a lookup.
Known values equal the inputs of torch's layers. They show which layer it is, and torch's output shows which
of its elements go where. What follows is computed in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.target.elements import Elements
from converters.target.modules import role_of
from converters.target.words import words_of
from migrate.parity.align.tensors import TensorArrangement
from migrate.parity.fitting.below import kernels
from migrate.parity.fitting.below.kernels import Kernel, KernelProduct
from migrate.parity.fitting.below.unknown import Computed, UnknownElements, computed, rearranged
from migrate.parity.fitting.below.weights import Fed, InOrder, NumberedWeights
from migrate.parity.fitting.heads import OpenHeadChoices
from migrate.parity.fitting.names import likeness, pattern
from migrate.parity.fitting.roles import ways_to_make
from migrate.parity.fitting.sources import EXACT, NEAR, SourceArray, UnitCall, marks, nearest
from migrate.parity.fitting.trying import Choices, EnoughSeen, Open, TriedPass
from migrate.parity.ground.fitting import ModelDifference
from migrate.parity.sides.frames import placed
from migrate.parity.sides.jax.wide import Evaluation, held, is_call

Array = np.ndarray[Any, Any]
# Number of layers, in the order of execution, to try for a product or sum by element.
_AHEAD = 48
_UNIT = 1 << 40


@dataclass
class Assigned(TriedPass):
    """Findings of a pass.

    Attributes:
        origin: for each element of the parameters, the number of torch's element; -1: unknown.
        factor, offset: for each element: it is torch's element times the factor plus the offset.
        unplaced: parameters without a counterpart in torch, and where they are used.
    """

    origin: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    factor: Array = field(default_factory=lambda: np.ones(0))
    offset: Array = field(default_factory=lambda: np.zeros(0))
    unplaced: dict[str, str] = field(default_factory=dict)


@dataclass
class _Bias:
    """Bias that may be added to the result of a matched product."""

    kernel: Kernel
    sources: tuple[SourceArray | None, ...]
    columns: Array
    factors: Array
    result: tuple[float, ...]
    size: int


class ParameterFlow(Evaluation):
    """Pass of a traced function.

    Args:
        weights: torch's weights.
        infos: the function's parameters.
        drawn: values for parameters that torch does not have.
        choices: choices that differ from the proposals by names and order.
        limit: number of differences that ends the pass.

    Attributes:
        elements: elements of the parameters.
        found: findings of the pass.
        after: the last parameter whose use agreed with torch.
    """

    def __init__(
        self,
        weights: NumberedWeights,
        infos: Mapping[str, TensorInfo],
        drawn: Mapping[str, Array],
        choices: Choices,
        limit: int | None,
    ) -> None:
        self._torch, self._choices, self._limit = weights, choices, limit
        self.elements = Elements(infos)
        self._values = np.zeros(self.elements.count)
        self._filled = np.zeros(self.elements.count, bool)
        self._drawn = drawn
        self._used: set[tuple[str, int]] = set()
        self._taken: set[str] = set()
        self._sources_used: set[str] = set()
        self._begun: dict[str, tuple[str, int]] = {}
        self._biases: list[_Bias] = []
        self._last: dict[str, UnitCall] = {}
        self._parted, self.after = 0, ""
        count = self.elements.count
        self.found = Assigned(
            origin=np.full(count, -1, np.int64), factor=np.ones(count), offset=np.zeros(count)
        )
        self._questions = OpenHeadChoices(choices, self.found)

    def unknown(self, name: str) -> UnknownElements:
        """Elements of a parameter."""
        return UnknownElements(self.elements.of(name))

    def finish(self) -> None:
        """Place the parameters that no equation has read, by their name and shape."""
        for name in self.elements.infos:
            parameter = self.unknown(name)
            if not self._filled[parameter.where].all():
                self._force(parameter, "read by no equation")

    def shown(self, result: Any) -> Any:
        """See `Evaluation`; a parameter may be a result itself."""
        for parameter in _unknown_in(result):
            if not self._filled[parameter.where].all():
                self._force(parameter, "given as it is")
        return self._known(result)

    def equation(self, equation: Any, args: list[Any]) -> list[Any]:
        """See `Evaluation`."""
        args = [self._known(argument) for argument in args]
        if not any(map(_unknown_in, args)):
            return super().equation(equation, args)
        name = equation.primitive.name
        inside = held(equation)
        if inside and is_call(equation):
            return self.run(inside[0].jaxpr, inside[0].consts, args)
        if name == "scan":
            plain = [
                self._forced(argument, equation) if isinstance(argument, Computed) else argument
                for argument in args
            ]
            return self._unrolled(equation, plain)
        if name == "cond" and not _unknown_in(args[0]):
            branch = inside[int(np.clip(int(args[0]), 0, len(inside) - 1))]
            return self.run(branch.jaxpr, branch.consts, args[1:])
        results = self._used_by(name, equation, args) if len(args) > 1 else None
        if results is not None:
            return results
        moved = rearranged(equation, args)
        if moved is not None:
            return list(moved)
        later = computed(equation, args)
        if later is not None:
            return [later]
        return super().equation(equation, [self._forced(argument, equation) for argument in args])

    def _known(self, argument: Any) -> Any:
        """Replace a value by its numbers if all its elements are known by now."""
        its = _unknown_in(argument)
        return (
            self._value(argument)
            if its and all(self._filled[each.where].all() for each in its)
            else argument
        )

    def _value(self, unknown: UnknownElements | Computed) -> Any:
        import jax.numpy as jnp

        if isinstance(unknown, Computed):
            return unknown.value(self._value, super().equation)
        return jnp.asarray(unknown.factor * self._values[unknown.where] + unknown.offset)

    def _unrolled(self, equation: Any, args: Sequence[Any]) -> list[Any]:
        import jax.numpy as jnp

        parameters = equation.params
        consts, carried = parameters["num_consts"], parameters["num_carry"]
        body, length = parameters["jaxpr"], parameters["length"]
        carry = list(args[consts : consts + carried])
        rows: list[list[Any]] = []
        numbers = range(length)
        for number in reversed(numbers) if parameters["reverse"] else numbers:
            slices = [_slice(scanned, number) for scanned in args[consts + carried :]]
            results = self.run(body.jaxpr, body.consts, [*args[:consts], *carry, *slices])
            carry = results[:carried]
            rows.append(results[carried:])
        if parameters["reverse"]:
            rows.reverse()
        stacked = []
        for column in zip(*rows, strict=True):
            if all(isinstance(result, UnknownElements) and result.plain for result in column):
                stacked.append(UnknownElements(np.stack([result.where for result in column])))
            else:
                stacked.append(jnp.stack([self._forced(result, equation) for result in column]))
        return [*carry, *stacked]

    def _used_by(self, name: str, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        """Results of an equation that combines parameters with known values; None: it does not."""
        if any(isinstance(argument, Computed) for argument in args):
            return self._by_computed(equation, args) if name in ("mul", "div") else None
        if name == "dot_general":
            return self._product(equation, args)
        if name == "conv_general_dilated":
            return self._convolution(equation, args)
        if name == "gather" and not isinstance(args[1], UnknownElements):
            return self._lookup(equation, args)
        if name in ("add", "sub", "mul") and len(args) == 2:
            return self._by_element(name, equation, args)
        return None

    # Products.

    def _product(self, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        (left_axes, right_axes), (left_batch, _) = equation.params["dimension_numbers"]
        left, right = args
        if isinstance(left, UnknownElements) == isinstance(right, UnknownElements) or left_batch:
            return None
        unknown, other = (right, left) if isinstance(right, UnknownElements) else (left, right)
        own, axes = (right_axes, left_axes) if unknown is right else (left_axes, right_axes)
        free = [axis for axis in range(unknown.where.ndim) if axis not in own]
        sides = unknown.where.shape
        product = KernelProduct(
            np.asarray(other),
            tuple(axes),
            tuple(sides[axis] for axis in own),
            tuple(sides[axis] for axis in free),
        )
        looked = self._one_hot(unknown, own, product)
        if looked:
            return super().equation(equation, [self._known(each) for each in args])
        asking = self._name(unknown)
        match, value = self._kernel(product, asking, equation)
        if match is None:
            return None
        kernel, columns, factors = match
        numbers = self._numbers(kernel, product, columns)
        if numbers is None:
            return None
        order, shape = np.argsort([*own, *free]), product.summed + product.free
        lying = np.broadcast_to(factors, shape).transpose(order)
        self._fill(unknown, numbers.reshape(shape).transpose(order), lying)
        known = [self._known(unknown) if each is unknown else value for each in args]
        (result,) = super().equation(equation, known)
        self._take(kernel, asking)
        biases = tuple(
            _bias(call, source) for call, source in zip(kernel.calls, kernel.sources, strict=True)
        )
        unit = kernel.calls[0].unit
        shown = not unit.hidden or isinstance(kernel.fed[0], InOrder)
        if (
            len(kernel.calls) == 1
            and shown
            and (factors == 1).all()
            and (columns.reshape(-1) == np.arange(columns.size)).all()
        ):
            result = self._checked(kernel.calls[0], result, biases, asking, equation)
        if any(biases):
            size = math.prod(product.free)
            at = marks(np.asarray(result))
            self._biases.append(_Bias(kernel, biases, columns, factors, at, size))
        return [result]

    def _kernel(
        self, product: KernelProduct, asking: str, equation: Any
    ) -> tuple[tuple[Kernel, Array, Array] | None, Any]:
        """Find the layers, columns and factors of a kernel, and the value to continue with."""
        fed = self._torch.fed(product.value)
        match = self._of_fed(product, fed, asking)
        if match is not None:
            if match.fed[0].distance > EXACT:
                self._differs(
                    asking, match.name, equation, inside=False, distance=match.fed[0].distance
                )
            else:
                inputs = self._torch.sources.values(match.fed[0].ref)
                self._questions.agrees(match.name, inputs, self._parted)
            return self._with_columns(match, product, asking), product.value
        hidden = self._hidden_out(product)
        if hidden is not None:
            return self._with_columns(hidden, product, asking), product.value
        # The models have diverged: take the next layer in the order of execution, with torch's inputs.
        for call in self._torch.sources.calls:
            if not self._is_left(call) or call.unit.part is not None or call.unit.hidden:
                continue
            source = kernels.kernel_of(call)
            if source is None or source.leaf.info.size != product.rows * product.columns:
                continue
            argument = self._torch.argument(call, product.value)
            if argument is None:
                continue
            self._differs(asking, call.unit.name, equation, inside=False, distance=math.inf)
            truth = self._torch.sources.values(argument.ref)
            kernel = Kernel((call,), (argument,), (source,))
            value = np.ascontiguousarray(argument.way.pair("", "").as_mine(truth))
            return self._with_columns(kernel, product, asking), value
        return None, product.value

    def _of_fed(self, product: KernelProduct, fed: Sequence[Fed], asking: str) -> Kernel | None:
        every = kernels.singles(product, fed)
        whole = [kernel for kernel in every if kernel.calls[0].unit.part is None]
        parts = [kernel for kernel in every if kernel.calls[0].unit.part is not None]
        # A query of many heads may have as many elements as key and value together.
        ways = ([*whole, *kernels.groups(product, fed)], parts)
        left = [[kernel for kernel in its if all(map(self._is_left, kernel.calls))] for its in ways]
        # A table shared in torch may exist twice here.
        for possible in (*left, whole, parts):
            if possible:
                rank = self._rank(asking, [kernel.name for kernel in possible])
                if len(possible) > 1:
                    self.found.unsure[asking] = None
                return possible[rank]
        return None

    def _hidden_out(self, product: KernelProduct) -> Kernel | None:
        """Output projection of torch's own attention: its input is unknown, its output is known."""
        for call in self._torch.sources.calls:
            if (
                not self._is_left(call)
                or not call.unit.hidden
                or not call.unit.name.endswith(".out")
            ):
                continue
            source = kernels.kernel_of(call)
            if source is None or source.leaf.info.size != product.rows * product.columns:
                continue
            fed = InOrder((call,), call.call.outputs[0], TensorArrangement(), 0.0, product.rows)
            return Kernel((call,), (fed,), (source,))
        return None

    def _with_columns(
        self, kernel: Kernel, product: KernelProduct, asking: str
    ) -> tuple[Kernel, Array, Array] | None:
        possible = kernels.columns_of(kernel, product.free)
        if not possible:
            return None
        columns = possible[self._open((*pattern_of("fused", asking),), len(possible))]
        factors = np.ones(columns.shape)
        for number, (call, fed) in enumerate(zip(kernel.calls, kernel.fed, strict=True)):
            inputs = self._torch.sources.values(fed.ref)
            heads = self._questions.heads(call.unit.name, inputs, product.free, self._parted)
            if not heads.plain:
                own = columns // _UNIT == number
                turned = heads.turned(columns.shape).apply(columns)
                columns = np.where(own, turned, columns)
                factors[own] = heads.factor(product.free[-1])
        return kernel, columns, factors

    def _numbers(self, kernel: Kernel, product: KernelProduct, columns: Array) -> Array | None:
        flat = columns.reshape(-1)
        numbers = np.empty((product.rows, product.columns), np.int64)
        for index, (call, fed, source) in enumerate(
            zip(kernel.calls, kernel.fed, kernel.sources, strict=True)
        ):
            features = fed.features(product.value.shape, product.axes)
            own = kernels.matrix(source, call, fed, self._torch)
            if features is None or own is None:
                return None
            mine = flat // _UNIT == index
            numbers[:, mine] = own[features][:, flat[mine] % _UNIT]
        return numbers

    def _one_hot(
        self, unknown: UnknownElements, own: Sequence[int], product: KernelProduct
    ) -> bool:
        """Whether a table is looked up by a product with ones and zeros; if so, place it."""
        value = product.value
        if len(product.axes) != 1 or value.dtype.kind != "f" or not np.isin(value, (0, 1)).all():
            return False
        if not (value.sum(product.axes[0]) == 1).all():
            return False
        tokens = np.argmax(value, product.axes[0])
        table = UnknownElements(np.moveaxis(unknown.where, own[0], 0))
        return self._table(table, tokens)

    # Convolutions.

    def _convolution(self, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        value, unknown = args
        if isinstance(value, UnknownElements) or not isinstance(unknown, UnknownElements):
            return None
        spec = equation.params["dimension_numbers"].rhs_spec
        order = (*spec[2:], spec[1], spec[0])  # the plan's order: space, in, out
        lying = unknown.where.transpose(order)
        asking = self._name(unknown)
        fed = self._torch.fed(np.asarray(value))
        calls = [call for each in fed for call in each.calls if self._is_convolution(call, lying)]
        outside = not calls
        if outside:
            calls = [
                call
                for call in self._torch.sources.calls
                if self._is_convolution(call, lying)
                and self._torch.argument(call, np.asarray(value)) is not None
            ][:1]
        if not calls:
            return None
        call = calls[self._rank(asking, [each.unit.name for each in calls])]
        if outside:
            self._differs(asking, call.unit.name, equation, inside=False, distance=math.inf)
            argument = self._torch.argument(call, np.asarray(value))
            assert argument is not None
            truth = self._torch.sources.values(argument.ref)
            value = np.ascontiguousarray(argument.way.pair("", "").as_mine(truth))
        elif fed[0].distance > EXACT:
            self._differs(asking, call.unit.name, equation, inside=False, distance=fed[0].distance)
        source = _largest(call)
        numbers = self._torch.numbers(source)
        assert numbers is not None
        self._fill(unknown, numbers.transpose(np.argsort(order)))
        (result,) = super().equation(equation, [value, self._known(unknown)])
        kernel = Kernel((call,), tuple(fed[:1]), (source,))
        self._take(kernel, asking)
        biases = (_bias(call, source),)
        result = self._checked(call, result, biases, asking, equation)
        if biases[0] is not None:
            columns = np.arange(numbers.shape[-1])
            at = marks(np.asarray(result))
            ones = np.ones(columns.size)
            self._biases.append(_Bias(kernel, biases, columns, ones, at, columns.size))
        return [result]

    def _is_convolution(self, call: UnitCall, lying: Array) -> bool:
        source = _largest(call)
        fits = source.kind.startswith("Conv") and source.leaf.info.shape == lying.shape
        return fits and self._is_left(call) and self._torch.numbers(source) is not None

    # Tables.

    def _lookup(self, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        table, tokens = args[0], np.asarray(args[1])
        if tokens.dtype.kind not in "iu" or table.where.ndim != 2 or not self._table(table, tokens):
            return None
        return super().equation(equation, [self._known(table), *args[1:]])

    def _table(self, table: UnknownElements, tokens: Array) -> bool:
        """Find a table by its lookups."""
        lookups: dict[str, tuple[UnitCall, SourceArray]] = {}
        for fed in self._torch.fed(tokens.astype(np.int64)):
            for call in fed.calls if not fed.distance else ():
                for source in call.unit.sources:
                    alike = source.leaf.info.shape == table.where.shape
                    if alike and source.kind.startswith("Embedding") and call.unit.part is None:
                        lookups.setdefault(call.unit.name, (call, source))
        left = [lookup for lookup in lookups.values() if self._is_left(lookup[0])] or list(
            lookups.values()
        )
        if not left:
            return False
        asking = self._name(table)
        call, source = left[self._rank(asking, [candidate.unit.name for candidate, _ in left])]
        numbers = self._torch.numbers(source)
        if numbers is None:
            return False
        self._fill(table, numbers)
        self._take(Kernel((call,), (), (source,)), asking)
        self._agreed(asking)
        return True

    # Products and sums by element.

    def _by_element(self, name: str, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        left, right = args
        if isinstance(left, UnknownElements) and isinstance(right, UnknownElements):
            return None
        unknown, other = (left, right) if isinstance(left, UnknownElements) else (right, left)
        value = np.asarray(other)
        if value.dtype.kind != "f" or (value.size and (value == value.flat[0]).all()):
            return None
        if name == "sub" and unknown is left:
            return None
        asking = self._name(unknown)
        if name == "add" and self._as_bias(unknown, value):
            return super().equation(equation, [self._known(each) for each in args])
        best: tuple[float, UnitCall, SourceArray, tuple[float, float]] | None = None
        core = _core(unknown.where)
        tried = 0
        for call in self._torch.sources.calls:
            if call.unit.part is not None or call.unit.hidden or tried >= _AHEAD:
                continue
            for source, others in self._scales(call, core.size, name):
                tried += 1
                for fold in ((1.0, 0.0), (1.0, 1.0)) if name == "mul" else ((1.0, 0.0),):
                    apart = self._tried(name, value, unknown, call, source, others, fold)
                    if apart is not None and (best is None or apart < best[0]):
                        best = apart, call, source, fold
            if best is not None and best[0] <= EXACT:
                break
        if best is None or best[0] > NEAR:
            if name == "add" and self._as_bias(
                unknown, None
            ):  # a residual may have been added first
                self.found.unsure[asking] = None
                return super().equation(equation, [self._known(each) for each in args])
            return None
        apart, call, source, fold = best
        numbers = self._torch.numbers(source)
        assert numbers is not None
        factor, offset = fold
        # The equation needs factor·torch's + offset; the parameter is what produces that.
        self._fill_core(
            unknown,
            numbers.reshape(-1),
            factor / unknown.factor,
            (offset - unknown.offset) / unknown.factor,
        )
        (result,) = super().equation(equation, [self._known(each) for each in args])
        self._take_in_part(call, () if name == "add" else (source,), asking)
        bias = self._rest(call, source)
        if apart > EXACT and name != "sub":
            self._differs(asking, call.unit.name, equation, inside=True, distance=apart)
            result = self._as_torch(call, result, bias)
        else:
            self._agreed(asking)
        if name == "mul" and bias is not None:
            self._then_adds(call, source, bias, result)
        return [result]

    def _take_in_part(self, call: UnitCall, its: Sequence[SourceArray], asking: str) -> None:
        """Mark arrays of a layer that the function uses one by one."""
        self._last[_above(asking)] = call
        self._sources_used |= {source.path for source in its}
        self._begun[call.unit.name] = call.key
        if call.key not in self._used:
            self._used |= self._torch.sources.overlapping(call)
            self._taken.add(call.unit.name)
            self.found.layers += 1

    def _then_adds(
        self, call: UnitCall, source: SourceArray, bias: SourceArray, result: Any
    ) -> None:
        size = bias.leaf.info.size
        at = marks(np.asarray(result))
        kernel, ones = Kernel((call,), (), (source,)), np.ones(size)
        self._biases.append(_Bias(kernel, (bias,), np.arange(size), ones, at, size))

    def _by_computed(self, equation: Any, args: Sequence[Any]) -> list[Any] | None:
        """Multiply or divide a known value by a function of a layer's arrays: its variance, and its
        scale.
        """
        left, right = args
        statistic, other = (left, right) if isinstance(left, Computed) else (right, left)
        divided = equation.primitive.name == "div"
        if (
            _unknown_in(other)
            or not isinstance(statistic, Computed)
            or (divided and statistic is left)
        ):
            return None
        value = np.asarray(other)
        its = [each for each in statistic.unknown if not self._filled[each.where].all()]
        sizes = {_core(each.where).size for each in its}
        if value.dtype.kind != "f" or len(sizes) > 1:
            return None
        best: tuple[float, UnitCall, tuple[SourceArray, ...]] | None = None
        possible = [call for call in self._torch.sources.calls if self._is_statistic(call, value)]
        # The array whose mean was subtracted comes first.
        possible.sort(key=lambda call: call.unit.name not in self._begun)
        for call in possible[:_AHEAD]:
            left_over = [
                source
                for source in call.unit.sources
                if {source.leaf.info.size} == sizes and source.path not in self._sources_used
            ]
            for sources in itertools.permutations(left_over, len(its)):
                apart = self._tried_computed(equation, args, statistic, its, call, sources)
                if apart is not None and (best is None or apart < best[0]):
                    best = apart, call, sources
            if best is not None and best[0] <= EXACT:
                break
        if best is None or best[0] > NEAR:
            return None
        apart, call, sources = best
        for each, source in zip(its, sources, strict=True):
            numbers = self._torch.numbers(source)
            assert numbers is not None
            self._fill_core(each, numbers.reshape(-1), 1.0, 0.0)
        (result,) = super().equation(equation, [self._known(each) for each in args])
        asking = self._name(its[0])
        self._take_in_part(call, sources, asking)
        scale, bias = self._left_of(call, sources)
        if scale is None and apart > EXACT:
            self._differs(asking, call.unit.name, equation, inside=True, distance=apart)
            result = self._as_torch(call, result, bias)
        elif apart <= EXACT:
            self._agreed(asking)
        if scale is None and bias is not None:
            self._then_adds(call, sources[0], bias, result)
        return [result]

    def _is_statistic(self, call: UnitCall, value: Array) -> bool:
        """Whether a call normalizes by a stored variance, and is not matched yet."""
        truth = self._torch.sources.output(call)
        alike = truth is not None and truth.size == value.size and self._is_open(call)
        return alike and any(source.role == "var" for source in call.unit.sources)

    def _left_of(
        self, call: UnitCall, sources: Sequence[SourceArray]
    ) -> tuple[SourceArray | None, SourceArray | None]:
        """Scale and bias of a normalization that are left when the factor contains these sources."""
        rest = {source.role: source for source in call.unit.sources if source not in sources}
        return rest.get("scale"), rest.get("bias")

    def _tried_computed(
        self,
        equation: Any,
        args: Sequence[Any],
        statistic: Computed,
        its: Sequence[UnknownElements],
        call: UnitCall,
        sources: Sequence[SourceArray],
    ) -> float | None:
        """Distance of a normalization's result from torch's, if its parameters are these."""
        truth = self._torch.sources.output(call)
        if truth is None or any(self._torch.numbers(source) is None for source in sources):
            return None
        plain = [replace(each, factor=1.0, offset=0.0) for each in its]
        laid = {
            id(each): each.factor * self._laid(bare, source, (1.0, 0.0)) + each.offset
            for each, bare, source in zip(its, plain, sources, strict=True)
        }

        def of(each: UnknownElements) -> Any:
            return laid[id(each)] if id(each) in laid else self._value(each)

        factor = statistic.value(of, super().equation)
        arguments = [factor if each is statistic else each for each in args]
        result = np.asarray(super().equation(equation, arguments)[0])
        if result.size != truth.size or not np.isfinite(result).all():
            return None
        for name, rest in zip(("mul", "add"), self._left_of(call, sources), strict=True):
            if rest is not None:
                lying = self._laid(UnknownElements(statistic.where), rest, (1.0, 0.0))
                result = result * lying if name == "mul" else result + lying
        near = nearest(truth, result)
        return None if near is None else near[1]

    def _scales(
        self, call: UnitCall, size: int, name: str
    ) -> list[tuple[SourceArray, SourceArray | None]]:
        """Arrays of a layer that may be applied by element, each with the bias added afterwards."""
        scales = []
        if name == "mul" and not self._is_open(call):
            return []
        for source in call.unit.sources:
            if source.leaf.info.size != size or source.path in self._sources_used:
                continue
            if self._torch.numbers(source) is None:
                continue
            wanted = {
                "mul": ("scale", "value", "kernel"),
                "sub": ("mean",),
                "add": ("bias", "value"),
            }
            if source.role in wanted[name]:
                scales.append((source, self._rest(call, source)))
        return scales

    def _rest(self, call: UnitCall, source: SourceArray) -> SourceArray | None:
        """Bias that a layer adds after the multiplication."""
        rest = [
            candidate
            for candidate in call.unit.sources
            if candidate is not source and candidate.role == "bias"
        ]
        return rest[0] if len(rest) == 1 and source.role != "bias" else None

    def _tried(
        self,
        name: str,
        value: Array,
        unknown: UnknownElements,
        call: UnitCall,
        source: SourceArray,
        rest: SourceArray | None,
        fold: tuple[float, float],
    ) -> float | None:
        """Distance of an equation's result with this array from the output, or input, of torch's layer."""
        if name == "sub":
            near = [
                match
                for ref in call.call.arguments
                if math.prod(ref.shape) == value.size
                and (match := nearest(self._torch.sources.values(ref), value)) is not None
            ]
            return min((apart for _, apart in near), default=None)
        truth = self._torch.sources.output(call)
        if truth is None or truth.size != value.size:
            return None
        laid = self._laid(unknown, source, fold)
        result = value * laid if name == "mul" else value + laid
        if rest is not None and name == "mul":
            numbers = self._torch.numbers(rest)
            if numbers is None or numbers.size != _core(unknown.where).size:
                return None
            result = result + self._laid(unknown, rest, (1.0, 0.0))
        near_one = nearest(truth, result)
        return None if near_one is None else near_one[1]

    def _laid(
        self, unknown: UnknownElements, source: SourceArray, fold: tuple[float, float]
    ) -> Array:
        """Torch's array at the parameter's elements."""
        numbers = self._torch.numbers(source)
        assert numbers is not None
        own = fold[0] * self._torch.values[numbers.reshape(-1)] + fold[1]
        core = _core(unknown.where)
        places, index = np.unique(unknown.where, return_inverse=True)
        laid = np.empty(places.size)
        laid[np.searchsorted(places, core.reshape(-1))] = own
        return np.asarray(laid[index.reshape(unknown.where.shape)])

    def _as_bias(self, unknown: UnknownElements, value: Array | None) -> bool:
        """Whether a parameter is the bias of a matched product; if so, place it.

        `value` is the product's result; None: something derived from the last product.
        """
        core = _core(unknown.where)
        own = None if value is None else np.array(marks(value))
        for bias in reversed(self._biases):
            if bias.size != core.size or any(source is None for source in bias.sources):
                continue
            if own is not None and np.abs(own - bias.result).max() > EXACT * max(own[0], 1e-300):
                continue
            numbers = np.empty(core.size, np.int64)
            flat = bias.columns.reshape(-1)
            for index, source in enumerate(bias.sources):
                assert source is not None
                its = self._torch.numbers(source)
                if its is None:
                    return False
                mine = flat // _UNIT == index
                numbers[mine] = its.reshape(-1)[flat[mine] % _UNIT]
            own = bias.factors.reshape(-1)
            self._fill_core(
                unknown, numbers, own / unknown.factor, -unknown.offset / unknown.factor
            )
            self._biases.remove(bias)
            self._agreed(self._name(unknown))
            return True
        return False

    # Comparison with torch.

    def _checked(
        self,
        call: UnitCall,
        result: Any,
        biases: Sequence[SourceArray | None],
        asking: str,
        equation: Any,
    ) -> Any:
        """Compare a product with torch's; return torch's if they differ."""
        truth = self._without(call, biases[0])
        if truth is None:
            return result
        near = nearest(truth, np.asarray(result))
        if near is None:
            return result
        if near[1] <= EXACT:
            self._agreed(asking)
            return result
        self._differs(asking, call.unit.name, equation, inside=True, distance=near[1])
        return self._as_torch(call, result, biases[0])

    def _as_torch(self, call: UnitCall, result: Any, bias: SourceArray | None) -> Any:
        import jax.numpy as jnp

        truth = self._without(call, bias)
        near = None if truth is None else nearest(truth, np.asarray(result))
        if near is None or truth is None:
            return result
        return jnp.asarray(near[0].pair("", "").as_mine(truth))

    def _without(self, call: UnitCall, bias: SourceArray | None) -> Array | None:
        """Output of a layer without its bias."""
        truth = self._torch.sources.output(call)
        if truth is None or bias is None:
            return truth
        numbers = self._torch.numbers(bias)
        if numbers is None:
            return None
        channels = call.unit.sources[0].kind.startswith(
            ("Conv", "BatchNorm", "GroupNorm", "Instance")
        )
        shape = [1] * truth.ndim
        shape[1 if channels and truth.ndim > 2 else -1] = numbers.size
        return np.asarray(truth - self._torch.values[numbers.reshape(-1)].reshape(shape))

    def _agreed(self, asking: str) -> None:
        if not self._parted:
            self.found.agreed += 1
        self.after = asking

    def _differs(
        self, asking: str, truth: str, equation: Any, *, inside: bool, distance: float
    ) -> None:
        place = placed(equation.source_info.traceback)
        difference = ModelDifference(asking, place, truth, self.after, inside, distance)
        self.found.differences.append(difference)
        if difference.rounding:
            return
        self._parted += 1
        if self._limit is not None and self._parted >= self._limit:
            raise EnoughSeen

    # Known elements.

    def _fill(self, unknown: UnknownElements, numbers: Array, factors: Array | float = 1.0) -> None:
        """Record the origin of a value's elements: torch's elements, times factors."""
        at, own = (
            unknown.where.reshape(-1),
            np.broadcast_to(factors, unknown.where.shape).reshape(-1),
        )
        self._put(at, numbers.reshape(-1), own / unknown.factor, -unknown.offset / unknown.factor)

    def _fill_core(
        self, unknown: UnknownElements, numbers: Array, factor: Array | float, offset: float
    ) -> None:
        self._put(_core(unknown.where).reshape(-1), numbers, factor, offset)

    def _put(self, at: Array, numbers: Array, factor: Array | float, offset: float) -> None:
        record = self.found
        record.origin[at], record.factor[at], record.offset[at] = numbers, factor, offset
        self._values[at] = self._torch.at(numbers, record.factor[at], record.offset[at])
        self._filled[at] = True

    def _take(self, kernel: Kernel, asking: str) -> None:
        for call in kernel.calls:
            self._used |= self._torch.sources.overlapping(call)
            self._taken.add(call.unit.name)
            self.found.layers += 1
        self._last[_above(asking)] = kernel.calls[0]
        self._sources_used |= {source.path for source in kernel.sources}

    def _is_left(self, call: UnitCall) -> bool:
        return call.key not in self._used and call.unit.name not in self._taken

    def _is_open(self, call: UnitCall) -> bool:
        """Whether a call is not matched yet, or only in part."""
        return self._is_left(call) or self._begun.get(call.unit.name) == call.key

    def _name(self, unknown: UnknownElements) -> str:
        return self.elements.names(unknown.where.reshape(-1)[:1])[0]

    def _rank(self, asking: str, names: Sequence[str]) -> int:
        if len(names) == 1:
            return 0
        scores = [likeness(asking, name) for name in names]
        order = sorted(range(len(names)), key=lambda index: -scores[index])
        return order[self._open(pattern(asking, names), len(names))]

    def _open(self, key: Any, count: int) -> int:
        """Choose one of several, and record that another choice is possible."""
        if count > 1:
            self.found.open.append(Open(key, count, self._parted))
        return self._choices.get(key, 0) % count

    # What no equation shows.

    def _forced(self, argument: Any, equation: Any) -> Any:
        its = _unknown_in(argument)
        for each in its:
            if not self._filled[each.where].all():
                self._force(each, placed(equation.source_info.traceback))
        return self._value(argument) if its else argument

    def _force(self, unknown: UnknownElements, place: str) -> None:
        """Place parameters beside their neighbors' layer, else by shape, names and order."""
        left = np.unique(unknown.where[~self._filled[unknown.where]])
        for name in self.elements.names(left):
            whole = self.elements.of(name)
            region = left[(left >= whole.flat[0]) & (left <= whole.flat[-1])]
            lying = whole if region.size == whole.size else _core(unknown.where)
            if lying.size != region.size:
                lying = region
            numbers = self._beside(name, lying) if lying.size else None
            if numbers is None:
                numbers = self._loose(name, lying)
            if numbers is None:
                self._values[region] = self._drawn[name].reshape(-1)[region - whole.flat[0]]
                self._filled[region] = True
                self.found.unplaced[name] = place
                continue
            self._put(lying.reshape(-1), numbers.reshape(-1), 1.0, 0.0)
            self.found.unsure[name] = None

    def _beside(self, name: str, lying: Array) -> Array | None:
        call = self._last.get(_above(name))
        if call is None:
            return None
        role = role_of(name, lying.shape)[1]
        for source in call.unit.sources:
            if source.role == role and source.leaf.info.size == lying.size:
                return self._torch.numbers(source)
        return None

    def _loose(self, name: str, lying: Array) -> Array | None:
        sources = [*self._torch.sources.loose]
        sources += [
            source
            for call in self._torch.sources.calls
            if self._is_left(call) and call.unit.part is None and not call.unit.hidden
            for source in call.unit.sources
        ]
        fitting = {}
        for source in sources:
            if source.path in self._sources_used or self._torch.numbers(source) is None:
                continue
            ways = ways_to_make({name: lying.shape}, [source])
            if ways:
                fitting[source.path] = source, ways[0][0].layout
        if not fitting:
            return None
        names = list(fitting)
        source, layout = fitting[names[self._rank(name, names)]]
        self._sources_used.add(source.path)
        numbers = self._torch.numbers(source)
        assert numbers is not None
        return np.asarray(layout.apply(numbers))


def _unknown_in(value: Any) -> tuple[UnknownElements, ...]:
    """Parameters in a value."""
    if isinstance(value, UnknownElements):
        return (value,)
    return value.unknown if isinstance(value, Computed) else ()


def pattern_of(what: str, asking: str) -> tuple[Any, ...]:
    """Key that is equal for the same question in repeated blocks."""
    return what, words_of(asking.replace(".", "/")).words


def _above(name: str) -> str:
    return name.rpartition("/")[0]


def _bias(call: UnitCall, kernel: SourceArray) -> SourceArray | None:
    rest = [source for source in call.unit.sources if source.role == "bias"]
    return rest[0] if len(rest) == 1 and rest[0].path != kernel.path else None


def _largest(call: UnitCall) -> SourceArray:
    return max(call.unit.sources, key=lambda source: source.leaf.info.size)


def _slice(scanned: Any, number: int) -> Any:
    return (
        replace(scanned, where=scanned.where[number])
        if isinstance(scanned, UnknownElements)
        else scanned[number]
    )


def _core(where: Array) -> Array:
    """Drop the axes along which the same elements are repeated."""
    for axis in range(where.ndim):
        first = where.take([0], axis)
        if where.shape[axis] > 1 and (where == first).all():
            where = first
    return where
