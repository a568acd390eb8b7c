"""`emulated(function, "default")`: compute the products of a JAX function as a TPU would.

The function is traced, and its equations are run one by one. `dot_general` and convolutions of float32 run
in passes (`jax_products`), all other equations unchanged. Equations that contain others (jit, scan, while,
cond, remat, shard_map, custom derivatives) are rewritten if there is a product inside.

A precision written in an equation (`precision=lax.Precision.HIGHEST`) counts; the setting is for equations
without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.extend import linear_util as lu

from migrate.parity.emulate.jax_products import (
    PRODUCTS,
    is_float32,
    on_vector_unit,
    precision_of,
    product,
)
from migrate.parity.emulate.seen import Emulation
from migrate.parity.ground.settings import Precision

# Operations whose products are hidden in their kernel.
_OPAQUE = re.compile(
    r"cholesky|lu$|lu_|qr|geqrf|geqp3|householder_product|eig|svd|schur|hessenberg|tridiagonal|"
    r"triangular_solve|fft$|pallas_call|ffi_call|custom_call|pure_callback|io_callback|"
    r"custom_partitioning|dot_product_attention|scaled_matmul|tpu_custom|mosaic|cudnn|gemm|"
    r"symmetric_product|polar"
)
_WIDE = ("float32", "complex64")


class EmulatedFunction:
    """Function whose products are computed in passes; it is jitted, and can be jitted or differentiated.

    Apply it outermost: a transformation around it (`jax.vmap`) comes after the decision what a TPU computes
    on the vector unit. A derivative inside always works: `emulated(jax.grad(loss))`.

    `jax.grad` and `jax.vjp` around it give the same, except for a product inside a `jax.custom_jvp`
    function. JAX rejects these, and forward mode, with an error.

    Attributes:
        seen: what was emulated and what was not; complete after the function was called.
    """

    def __init__(self, function: Callable[..., Any], precision: Precision) -> None:
        self.seen = Emulation(precision)
        self._function = jax.jit(_Interpreter(self.seen).emulate(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


def emulated(function: Callable[..., Any], precision: Precision) -> EmulatedFunction:
    """Compute the float32 products of a function in the passes of a TPU's precision.

    Args:
        function: function of arrays and pytrees of arrays.
        precision: "default" (one pass), "high" (three) or "highest" (six).

    Raises:
        ValueError: the precision is unknown.
    """
    return EmulatedFunction(function, precision)


class _Interpreter:
    def __init__(self, seen: Emulation) -> None:
        self._seen = seen

    def emulate(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that this interpreter runs its equations."""

        def call(*args: Any, **kwargs: Any) -> Any:
            closed, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
            results = self._run(closed.jaxpr, closed.consts, jax.tree.leaves((args, kwargs)))
            return jax.tree.unflatten(jax.tree.structure(shape), results)

        return call

    def _run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= zip(jaxpr.invars, args, strict=True)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            with equation.ctx.manager:
                results = self._equation(equation, [read(atom) for atom in equation.invars])
            many = results if equation.primitive.multiple_results else [results]
            values |= zip(equation.outvars, many, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, args: list[Any]) -> Any:
        name = equation.primitive.name
        if name in PRODUCTS:
            return self._product(equation, args)
        inside = [jaxpr for value in equation.params.values() for jaxpr in _jaxprs(value)]
        if _OPAQUE.match(name) and (inside or _any_wide(equation.invars)):
            self._seen.unhandled.add(name)
            return _bind(equation, args)
        if not any(_has_products(jaxpr) for jaxpr in inside):
            return _bind(equation, args)
        if name in ("jit", "pjit", "closed_call", "core_call"):
            (closed,) = inside
            return self._run(closed.jaxpr, closed.consts, args)
        if name == "shard_map":
            return self._shard_map(equation, args)
        return self._with_jaxprs(equation, args)

    def _product(self, equation: Any, args: list[Any]) -> Any:
        name, parameters = equation.primitive.name, equation.params
        a, b = equation.invars[0].aval, equation.invars[1].aval
        if not is_float32(a, b):
            if any(operand.dtype == "complex64" for operand in (a, b)):
                self._seen.unhandled.add(f"{name} (complex64)")
            return _bind(equation, args)
        if on_vector_unit(name, a, b, parameters):
            self._seen.vector_unit[name] += 1
            return _bind(equation, args)
        precision = precision_of(parameters["precision"], self._seen.precision)
        if precision is None:
            self._seen.unhandled.add(f"{name} ({parameters['precision'].name})")
            return _bind(equation, args)
        self._seen.emulated[name] += 1
        return product(equation.primitive, parameters, tuple(args), precision, self.emulate)

    def _shard_map(self, equation: Any, args: list[Any]) -> Any:
        parameters = equation.params

        def body(*args: Any) -> Any:
            return tuple(self._run(parameters["jaxpr"], (), args))

        return jax.shard_map(
            body,
            mesh=parameters["mesh"],
            in_specs=parameters["in_specs"],
            out_specs=parameters["out_specs"],
            check_vma=parameters["check_vma"],
            axis_names=set(parameters["newly_manual_axes"]),
        )(*args)

    def _with_jaxprs(self, equation: Any, args: list[Any]) -> Any:
        """Run an equation whose inner jaxprs are rewritten: scan, while, cond, remat, custom derivatives."""
        parameters = {key: self._rewritten(value) for key, value in equation.params.items()}
        parameters = equation.primitive.get_bind_params(parameters)
        if "subfuns" in parameters:
            # The function itself was rewritten above; the rules of its derivative are still Python.
            function, *rules = parameters["subfuns"]
            parameters["subfuns"] = (function, *map(self._rule, rules))
        return equation.primitive.bind(*args, **parameters)

    def _rewritten(self, value: Any) -> Any:
        if isinstance(value, core.ClosedJaxpr):
            return self._traced(value)
        if isinstance(value, core.Jaxpr):
            closed = self._traced(core.ClosedJaxpr(value, ()))
            assert not closed.consts, "an open jaxpr has no room for constants"
            return closed.jaxpr
        if isinstance(value, tuple):
            items = [self._rewritten(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def _traced(self, closed: Any) -> Any:
        def run(*args: Any) -> Any:
            return self._run(closed.jaxpr, closed.consts, args)

        return jax.make_jaxpr(run)(
            *[
                jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
                for aval in closed.in_avals
            ]
        )

    def _rule(self, rule: Any) -> Any:
        """Rewrite the rule of a custom derivative; besides arrays it takes and returns marks of zeros."""

        def call(*args: Any) -> Any:
            places = [place for place, value in enumerate(args) if _is_array(value)]
            results: list[Any] = []

            def of_arrays(*values: Any) -> Any:
                arrays_by_position = dict(zip(places, values, strict=True))
                results[:] = rule.call_wrapped(
                    *[arrays_by_position.get(i, argument) for i, argument in enumerate(args)]
                )
                return [value for value in results if _is_array(value)]

            arrays = iter(self.emulate(of_arrays)(*[args[place] for place in places]))
            return [next(arrays) if _is_array(value) else value for value in results]

        return lu.wrap_init(call, debug_info=rule.debug_info)


def _is_array(value: Any) -> bool:
    return core.valid_jaxtype(value) and not isinstance(value, bool)


def _bind(equation: Any, args: list[Any]) -> Any:
    return equation.primitive.bind(*args, **equation.primitive.get_bind_params(equation.params))


def _any_wide(atoms: Sequence[Any]) -> bool:
    return any(str(getattr(atom.aval, "dtype", "")) in _WIDE for atom in atoms)


def _jaxprs(value: Any) -> list[Any]:
    """Closed jaxprs in a parameter of an equation."""
    if isinstance(value, core.ClosedJaxpr):
        return [value]
    if isinstance(value, core.Jaxpr):
        return [core.ClosedJaxpr(value, ())] if not value.constvars else []
    if isinstance(value, tuple | list):
        return [jaxpr for item in value for jaxpr in _jaxprs(item)]
    return []


def _has_products(closed: Any) -> bool:
    """Whether a jaxpr contains a product, or an operation that may hide one."""
    return any(
        equation.primitive.name in PRODUCTS
        or _OPAQUE.match(equation.primitive.name)
        or any(map(_has_products, _jaxprs(tuple(equation.params.values()))))
        for equation in closed.jaxpr.eqns
    )
