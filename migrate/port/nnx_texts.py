"""The package of an nnx port, and the lines of its test that run it."""

from __future__ import annotations

from collections.abc import Sequence

from migrate.parity.sides.jax.weights import LAYER_NUMBER
from migrate.port.substitution import substitute


def nnx_package_text(
    model: str,
    config: str,
    what: str,
    unused: Sequence[str] = (),
    frozen: Sequence[str] = (),
    constants: bool = False,
) -> str:
    """`__init__.py`: see `migrate.port.texts.package_text`."""
    text = _PACKAGE.replace("MODEL", model).replace("CONFIG", config).replace("WHAT", what)
    text = with_advice(text, constants)
    text = substitute(text, {"LAYER_NUMBER": LAYER_NUMBER})
    more = ["trainable"] if frozen else []
    names = sorted([model, config, "build", "load_params", "require_params", *more])
    text = text.replace("NAMES", repr(names)).replace("UNUSED_PATHS", _paths(unused))
    return text + _TRAINABLE.replace("FROZEN_PATHS", _paths(frozen)) if frozen else text


def with_advice(text: str, constants: bool) -> str:
    """Return the package with what its errors advise where arrays are missing.

    Args:
        text: the text of `__init__.py`.
        constants: whether the port has arrays that are not in torch's checkpoints.
    """
    if not constants:
        return substitute(text, {"ADVICE": "give the config of its size"})
    imports = "from flax import nnx\n" if "from flax import nnx\n" in text else "import jax\n"
    return substitute(
        text,
        {
            "ADVICE": "{_advice(expected - present)}",
            "def require_params(": f"{_ADVICE}\ndef require_params(",
            imports: f"{imports}from safetensors import safe_open\n",
        },
    )


_ADVICE = '''\
def _advice(lacking: set[str]) -> str:
    """What to do where arrays are missing: torch's checkpoints do not hold the constants."""
    with safe_open(PARAMS.with_name("constants.safetensors"), framework="numpy") as file:
        constants = {re.sub(r"LAYER_NUMBER", r"\\1#", path) for path in file.keys()}
    if lacking and {re.sub(r"LAYER_NUMBER", r"\\1#", path) for path in lacking} <= constants:
        return "torch does not save them: convert the checkpoint with convert.py beside this file"
    return "give the config of its size"

'''


def _paths(paths: Sequence[str]) -> str:
    lines = "".join(f"    {path!r},\n" for path in paths)
    return f"frozenset([\n{lines}])" if lines else "frozenset()"


# Lines of `require_params`, between the paths of the model and of the arrays and the error.
PROBLEMS_OF_PATHS = """\
    surplus = {
        path
        for path in present - expected
        if re.sub(r"LAYER_NUMBER", r"\\1#", path) not in UNUSED
    }
    problems = [
        f"{what} {', '.join(sorted(group)[:5])}{f' and {len(group) - 5} more' * (len(group) > 5)}"
        for what, group in (("lacks", expected - present), ("has no place for", surplus))
        if group
    ]
"""
_PACKAGE = (
    '''\
"""WHAT: see README.md."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from .config import CONFIG
from .modeling import MODEL

__all__ = NAMES

PARAMS = Path(__file__).with_name("params.safetensors")
# Arrays of the original that its forward does not read; numbers of layers are left out.
UNUSED: frozenset[str] = UNUSED_PATHS


def build(
    config: CONFIG | None = None, file: Path = PARAMS, *, seed: int = 0, **numerics: Any
) -> MODEL:
    """The model with the weights of a file, in evaluation mode: `model.train()` is for training.

    Args:
        config: its sizes; None: those of the original.
        file: a file that convert.py wrote; without one, the weights are drawn.
        seed: of what the model draws, as the masks of dropout.
        numerics: `dtype`, `param_dtype` and `precision`, where the model takes them.
    """

    def create() -> MODEL:
        return MODEL(config or CONFIG(), rngs=nnx.Rngs(seed), **numerics)

    state = load_params(file, config) if file.exists() else nnx.State({})
    loaded = {path: variable for path, variable in nnx.to_flat_state(state)}

    @jax.jit
    def rest() -> nnx.State:
        """Variables that no file has: keys, and arrays that the constructor computes."""
        return nnx.state(create(), lambda path, _: tuple(path) not in loaded)

    model = nnx.eval_shape(create)
    if "param_dtype" in numerics:
        own = dict(nnx.to_flat_state(nnx.state(model)))
        cast = {path: v.replace(v[...].astype(own[path].dtype)) for path, v in loaded.items()}
        state = nnx.from_flat_state(list(cast.items()))
    nnx.update(model, rest(), state)
    model.eval()
    return model


def load_params(file: Path = PARAMS, config: CONFIG | None = None) -> nnx.State:
    """The state in a file that convert.py wrote: `nnx.update(model, load_params())`.

    Args:
        file: the file.
        config: of a model of another size.

    Raises:
        ValueError: arrays are missing or have another shape, or the model has no place for some.
    """
    from safetensors.flax import load_file

    arrays = load_file(file)
    require_params(arrays, config, str(file))
    own = _variables(config)
    for name, (_, variable) in own.items():
        if arrays[name].shape != variable.shape:
            shapes = f"the shape {list(arrays[name].shape)}, MODEL's has {list(variable.shape)}"
            raise ValueError(f"{file}: {name} has {shapes}; give the config of its size")
    return nnx.from_flat_state(
        [(path, variable.replace(arrays[name])) for name, (path, variable) in own.items()]
    )


def model_paths(config: CONFIG | None = None) -> set[str]:
    """The paths of all variables that the model has: "layers/0/kernel"."""
    return set(_variables(config))


def require_params(paths: Iterable[str], config: CONFIG | None = None, file: str = "") -> None:
    """Raise ValueError where arrays are missing, or the model has no place for some."""
    expected, present = model_paths(config), set(paths)
'''
    + PROBLEMS_OF_PATHS
    + '''\
    if problems:
        whose = f"{file}: " if file else ""
        raise ValueError(f"{whose}MODEL {' and '.join(problems)}; ADVICE")


def _variables(config: CONFIG | None) -> dict[str, tuple[Any, Any]]:
    """Name → path and variable, of all that a file holds: parameters, statistics and buffers."""
    model = nnx.eval_shape(lambda: MODEL(config or CONFIG(), rngs=nnx.Rngs(0)))
    held = nnx.to_flat_state(nnx.state(model, nnx.All(nnx.Variable, nnx.Not(nnx.RngState))))
    return {"/".join(map(str, path)): (path, variable) for path, variable in held}
'''
)
_TRAINABLE = '''

# Weights that the original does not train (`requires_grad=False`).
FROZEN: frozenset[str] = FROZEN_PATHS


def trainable(path: tuple[Any, ...], variable: Any) -> bool:
    """Whether the original trains a variable: `nnx.Optimizer(model, optimizer, wrt=trainable)`."""
    return isinstance(variable, nnx.Param) and "/".join(map(str, path)) not in FROZEN
'''
