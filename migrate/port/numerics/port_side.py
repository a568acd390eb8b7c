"""A port in bfloat16, in a process of its own.

    python -m migrate.port.numerics.port_side REQUEST

REQUEST is a JSON file: the folder of the port, its weights, files of inputs, and where the answer goes: one
file of arrays for each setting and input, and a JSON file with dtypes and products, or an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from migrate.parity.ground.draws import Draws
from migrate.parity.sides.jax.draws import drawn
from migrate.port.nnx_model import NnxPort, is_nnx, takes_dtypes
from migrate.port.numerics.results import BFLOAT16, SEED, SETTINGS, Products
from migrate.port.package import package_of, stacked

_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}


def main(request: Path) -> None:
    """Run the port as requested."""
    values = json.loads(request.read_text())
    answer: dict[str, Any]
    try:
        with package_of(Path(values["folder"])) as package:
            answer = {
                setting: _run(package, values, setting, at) for at, setting in enumerate(SETTINGS)
            }
    except Exception as error:  # whatever the port's source raises
        line = " ".join(str(error).split())
        answer = {"error": f"{type(error).__name__}: {line[:400]} ({_place(error)})"}
    Path(values["answer"]).write_text(json.dumps(answer))


def _run(package: Any, values: Mapping[str, Any], setting: str, at: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from safetensors.flax import load_file
    from safetensors.numpy import save_file

    model_class = getattr(package, values["model"])
    config = getattr(package, values["config"])()
    narrow = setting == BFLOAT16
    typed = takes_dtypes(model_class)
    more = {"param_dtype" if narrow else "dtype": jnp.bfloat16} if typed else {}
    nnx_port = NnxPort(model_class, config, SEED, **more) if is_nnx(model_class) else None
    model = nnx_port or model_class(config, **more)
    variables: dict[str, Any] = dict(nnx_port.rest()) if nnx_port is not None else {}
    for path, array in (load_file(values["params"]) if values["params"] else {}).items():
        *above, name = path.split("/") if nnx_port is None else (path,)
        node = variables
        for step in above:
            node = node.setdefault(step, {})
        if path not in values["unsaved"]:
            rounded = _narrowed(array)
            # In float32, too, they have the values that the original is given: XLA may leave a rounding out.
            array = rounded if narrow else rounded.astype(array.dtype)
        node[name] = array
    variables = stacked(package, variables)
    inputs = [
        {name: _narrowed(array) for name, array in load_file(file).items()}
        for file in values["inputs"]
    ]

    def traced(arrays: Mapping[str, Any]) -> Any:
        # What it draws is the same in each pass, and what the original draws.
        rngs = {name: jax.random.key(SEED) for name in values["streams"]}
        apply = partial(model.apply, rngs=rngs) if rngs and nnx_port is None else model.apply
        with drawn(Draws(SEED)) if rngs else nullcontext():
            return jax.jit(apply).trace(variables, **arrays)

    if values["modules"]:
        rngs = {name: jax.random.key(SEED) for name in values["streams"]}
        captured = {} if nnx_port is not None else _captured(model, variables, inputs[0], rngs)
        save_file(captured, Path(values["outputs"]) / f"modules{at}.safetensors")
        return {}
    first = traced(inputs[0])
    # An input may have a mask, or have none.
    runs = {tuple(inputs[0]): first.lower().compile()}
    dtypes: dict[str, str] = {}
    for number, arrays in enumerate(inputs):
        if tuple(arrays) not in runs:
            runs[tuple(arrays)] = traced(arrays).lower().compile()
        outputs = dict(_leaves(runs[tuple(arrays)](variables, **arrays)))
        dtypes = {path: output.dtype.name for path, output in outputs.items()}
        wide = {
            path or "output": output.astype(jnp.float32) if output.dtype == jnp.bfloat16 else output
            for path, output in outputs.items()
        }
        save_file(
            {path: jax.device_get(output) for path, output in wide.items()},
            Path(values["outputs"]) / f"{at}_{number}.safetensors",
        )
    products: Products = {}
    _note(first.jaxpr.jaxpr, (), products)
    return {
        "dtypes": dtypes,
        "products": {path: sorted(kinds) for path, kinds in products.items()},
    }


def _captured(model: Any, variables: Any, arrays: Any, rngs: Any) -> dict[str, Any]:
    """Torch's path → the first floating output of each module that is called once."""
    import jax
    import jax.numpy as jnp

    def run(variables: Any, arrays: Any) -> Any:
        with drawn(Draws(SEED)) if rngs else nullcontext():
            return model.apply(
                variables, **arrays, rngs=rngs, capture_intermediates=True, mutable="intermediates"
            )[1]["intermediates"]

    outputs = {}
    for path, array in jax.tree_util.tree_leaves_with_path(jax.jit(run)(variables, arrays)):
        names = [str(getattr(step, "key", getattr(step, "idx", ""))) for step in path]
        modules, rest = names[: names.index("__call__")], names[names.index("__call__") + 1 :]
        name = ".".join(re.sub(r"_(\d+)$", r".\1", part) for part in modules)
        if jnp.issubdtype(array.dtype, jnp.floating) and set(rest) <= {"0"}:
            outputs[name or "model"] = jax.device_get(array.astype(jnp.float32))
        elif rest[:1] != ["0"]:
            outputs[name or "model"] = None  # a second call
    return {name: array for name, array in outputs.items() if array is not None}


def _narrowed(array: Any) -> Any:
    import jax.numpy as jnp

    return array.astype(jnp.bfloat16) if array.dtype == jnp.float32 else array


def _note(jaxpr: Any, above: tuple[str, ...], products: Products) -> None:
    from jax.extend import core

    for equation in jaxpr.eqns:
        names = (*above, *str(equation.source_info.name_stack).split("/"))
        if equation.primitive.name in _PRODUCTS:
            kinds = {variable.aval.dtype.name for variable in equation.invars[:2]}
            products.setdefault(_path(names), set()).update(kinds)
        for inner in core.jaxprs_in_params(equation.params):
            _note(inner, names, products)


def _path(names: tuple[str, ...]) -> str:
    """The torch path of a module, of the names that Flax gives: layers_0 → layers.0."""
    parts = []
    for name in names[1:] if names and not names[0] else names:
        if not re.fullmatch(r"\w+(\.\w+)?", name):
            break  # a transformation of JAX's, within the module
        parts.append(name.partition(".")[0])
    return ".".join(re.sub(r"_(\d+)", r".\1", part) for part in parts[1:])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner: Any = list(value.items())
    elif isinstance(value, tuple | list):
        inner = list(enumerate(value))
    elif is_dataclass(value):
        inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        if hasattr(value, "shape"):
            yield path, value
        return
    for key, inner_value in inner:
        yield from _leaves(inner_value, f"{path}.{key}" if path else str(key))


def _place(error: BaseException) -> str:
    place, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.endswith("modeling.py"):
            place = f"modeling.py:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place or "not in modeling.py"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
