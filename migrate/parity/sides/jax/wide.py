"""JAX function in float64 throughout, even where its code says float32, as torch's truth is.

Many models compute a norm or a softmax in float32 by name. The function is traced and its equations are run
one by one; an equation that creates a narrower floating array creates a float64 array instead. float32
constants keep their rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_NARROW = ("float32", "bfloat16", "float16")
_DTYPES = ("new_dtype", "dtype", "preferred_element_type")
# Primitives that only call the jaxpr that they hold.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function to float64; its floating results are float64 too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        results = Evaluation().run(closed.jaxpr, closed.consts, jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


class Evaluation:
    """Evaluation of the equations of traced functions; subclasses may override single equations."""

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Return the results for these arguments."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= zip(jaxpr.invars, args, strict=True)
        last = _last_uses(jaxpr)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            with equation.ctx.manager:
                results = self.equation(equation, [read(atom) for atom in equation.invars])
            values |= zip(equation.outvars, results, strict=True)
            for atom in last.get(number, ()):
                values.pop(atom, None)
        return [read(atom) for atom in jaxpr.outvars]

    def shown(self, result: Any) -> Any:
        """Return a result as an array."""
        return result

    def equation(self, equation: Any, args: list[Any]) -> list[Any]:
        """Return the results of an equation."""
        name = equation.primitive.name
        inside = held(equation)
        if not inside:
            return _plain(equation, args)
        if name in _CALLS:
            return self.run(inside[0].jaxpr, inside[0].consts, args)
        if not any(map(_is_narrow, inside)):
            return bound(equation, args)
        if name == "scan":
            return self._scan(equation, args)
        if name == "while":
            return self._while(equation, args)
        if name == "cond":
            index, *operands = args
            branches = [self._function(jaxpr) for jaxpr in inside]
            return list(jax.lax.switch(index, branches, *map(widened, operands)))
        return _plain(equation, args)

    def _function(self, closed: Any) -> Callable[..., tuple[Any, ...]]:
        def call(*args: Any) -> tuple[Any, ...]:
            return tuple(map(widened, self.run(closed.jaxpr, closed.consts, args)))

        return call

    def _scan(self, equation: Any, args: list[Any]) -> list[Any]:
        held_, carried = equation.params["num_consts"], equation.params["num_carry"]
        body = self._function(equation.params["jaxpr"])
        consts, start = args[:held_], tuple(map(widened, args[held_ : held_ + carried]))
        slices = tuple(map(widened, args[held_ + carried :]))

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            results = body(*consts, *carry, *row)
            return results[:carried], results[carried:]

        end, rows = jax.lax.scan(
            step,
            start,
            slices,
            length=equation.params["length"],
            reverse=equation.params["reverse"],
        )
        return [*end, *rows]

    def _while(self, equation: Any, args: list[Any]) -> list[Any]:
        first, second = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        of_condition, of_body = args[:first], args[first : first + second]
        condition = self._function(equation.params["cond_jaxpr"])
        body = self._function(equation.params["body_jaxpr"])
        return list(
            jax.lax.while_loop(
                lambda carry: condition(*of_condition, *carry)[0],
                lambda carry: body(*of_body, *carry),
                tuple(map(widened, args[first + second :])),
            )
        )


def held(equation: Any) -> list[Any]:
    """Closed jaxprs in an equation's parameters."""
    jaxprs: list[Any] = []
    for value in equation.params.values():
        for parameter in value if isinstance(value, tuple | list) else (value,):
            if isinstance(parameter, core.ClosedJaxpr):
                jaxprs.append(parameter)
            elif isinstance(parameter, core.Jaxpr):
                jaxprs.append(core.ClosedJaxpr(parameter, ()))
    return jaxprs


def is_call(equation: Any) -> bool:
    """Whether an equation only calls the single jaxpr that it holds."""
    return equation.primitive.name in _CALLS


def bound(equation: Any, args: Sequence[Any]) -> list[Any]:
    """Results of an unchanged equation."""
    return _bound(equation.primitive, args, equation.params)


def _bound(primitive: Any, args: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
    bind_params = primitive.get_bind_params(parameters)
    # Before JAX 0.5, functions among the parameters were returned separately.
    functions, named = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    results = primitive.bind(*functions, *args, **named)
    return list(results) if primitive.multiple_results else [results]


def _plain(equation: Any, args: Sequence[Any]) -> list[Any]:
    """Results of an equation without inner jaxprs."""
    name = equation.primitive.name
    if name == "convert_element_type" and jnp.issubdtype(
        equation.params["new_dtype"], jnp.floating
    ):
        return [jnp.asarray(args[0], "float64")]
    if name == "reduce_precision":
        return [widened(args[0])]
    if name in ("bitcast_convert_type", "pure_callback", "io_callback", "ffi_call", "custom_call"):
        as_said = [
            jnp.asarray(argument, atom.aval.dtype)
            for argument, atom in zip(args, equation.invars, strict=True)
        ]
        return bound(equation, as_said)
    parameters = dict(equation.params)
    for key in _DTYPES:
        if key in parameters and parameters[key] is not None and _narrow(parameters[key]):
            parameters[key] = np.dtype("float64")
    return _bound(equation.primitive, [widened(argument) for argument in args], parameters)


def widened(array: Any) -> Any:
    """Convert an array to float64 if it is floating."""
    dtype = getattr(array, "dtype", None)
    return array.astype("float64") if dtype is not None and _narrow(dtype) else array


def _narrow(dtype: Any) -> bool:
    return str(dtype) in _NARROW


def _is_narrow(closed: Any) -> bool:
    """Whether a value in the jaxpr is narrower than float64."""
    return any(
        any(
            _narrow(getattr(atom.aval, "dtype", ""))
            for atom in (*equation.invars, *equation.outvars)
        )
        or any(map(_is_narrow, held(equation)))
        for equation in closed.jaxpr.eqns
    )


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Equation → the values that no later equation reads."""
    last: dict[Any, int] = {}
    for number, equation in enumerate(jaxpr.eqns):
        for atom in (*equation.invars, *equation.outvars):
            if not isinstance(atom, core.Literal):
                last[atom] = number
    for atom in jaxpr.outvars:
        if not isinstance(atom, core.Literal):
            last.pop(atom, None)
    last_reads: dict[int, list[Any]] = {}
    for atom, number in last.items():
        last_reads.setdefault(number, []).append(atom)
    return last_reads
