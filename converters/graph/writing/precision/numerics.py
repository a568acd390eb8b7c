"""`dtype`, `param_dtype` and `precision` as fields of the classes, given on to what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set

from converters.graph.expression import code

# The method of it that makes a weight.
PARAM = "cast_param"
# The class that all of a port's classes are derived from which hold weights.
BASE = "Module"
_SOURCE = '''
class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None
'''.strip()
_NUMERICS = """

    @property
    def numerics(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype, "precision": self.precision}
""".rstrip()
_WITH_DTYPES = """

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}
""".rstrip()
_BOTH = """

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}
""".rstrip()
_CAST = '''

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> jax.Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)
'''.rstrip()
_DTYPES = {"dtype", "param_dtype"}
NUMERICS = frozenset({*_DTYPES, "precision"})
READ = {*NUMERICS, "dtypes", "numerics", PARAM}


def base(text: str) -> str:
    """The class that the classes in a source are derived from, with what they use of it."""
    dtypes, numerics = ("self.dtypes" in text, "self.numerics" in text)
    parts = [_WITH_DTYPES] if dtypes else []
    parts += [_BOTH if dtypes else _NUMERICS] if numerics else []
    parts += [_CAST] if f"self.{PARAM}(" in text else []
    return _SOURCE + "".join(parts)


def with_numerics(layer_call: ast.expr, fields: Set[str]) -> ast.expr:
    """A call that makes a layer, given what it takes of the dtypes and the precision."""
    assert isinstance(layer_call, ast.Call)
    if fields >= NUMERICS:
        more = [ast.keyword(None, code("self.numerics"))]
    elif fields >= _DTYPES:
        more = [ast.keyword(None, code("self.dtypes"))]
    else:
        more = [ast.keyword(field, code(f"self.{field}")) for field in sorted(fields & NUMERICS)]
    return ast.Call(layer_call.func, layer_call.args, [*layer_call.keywords, *more])


def reads_numerics(trees: Iterable[ast.AST]) -> bool:
    """Whether the source of a class reads one of the fields."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in READ
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for tree in trees
        for node in ast.walk(tree)
    )
