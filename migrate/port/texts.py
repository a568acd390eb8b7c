"""The files of a port beside its source: the package, `convert.py` and `test_parity.py`."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from converters.model import in_package
from migrate.parity.sides.jax.weights import LAYER_NUMBER
from migrate.port.nnx_texts import PROBLEMS_OF_PATHS, nnx_package_text, with_advice
from migrate.port.substitution import substitute

TEST_INPUTS = "test_inputs.safetensors"
# Masks of padded batches, and positions beside them: "left.attention_mask".
TEST_PADDING = "test_padding.safetensors"


def inputs_file(method: str) -> str:
    """Return the file of a method's test inputs; "" is the forward."""
    return f"test_inputs_{method}.safetensors" if method else TEST_INPUTS


LIMIT = 1e-5  # relative L2 of outputs in float32; the goal of every port


def package_text(
    model: str,
    config: str,
    what: str,
    inputs: Mapping[str, tuple[tuple[int, ...], str]],
    unused: Sequence[str] = (),
    frozen: Sequence[str] = (),
    api: str = "linen",
    scanned: bool = False,
    more: Sequence[str] = (),
    collections: Sequence[str] = ("params",),
    constants: bool = False,
) -> str:
    """`__init__.py`: the names, the model with its sizes, the weights.

    Args:
        model: the model's class.
        config: the class of its sizes.
        what: the model, in words.
        inputs: shape and dtype of each input of the recording.
        unused: paths of weights that the original has and its forward does not read.
        frozen: paths of weights that the original does not train (`requires_grad=False`).
        api: API of Flax.
        scanned: whether the weights of layers are stacked, by `layers.py`.
        more: names of `sharding.py` that the package has too.
        collections: names of the collections of variables that the file of weights has.
        constants: whether the port has arrays that are not in torch's checkpoints (`constants.safetensors`).
    """
    if api == "nnx":
        return nnx_package_text(model, config, what, unused, frozen, constants)
    shapes = "".join(
        f'    "{name}": jax.ShapeDtypeStruct({shape!r}, "{dtype}"),\n'
        for name, (shape, dtype) in inputs.items()
    )
    text = _PACKAGE.replace("MODEL", model).replace("CONFIG", config).replace("WHAT", what)
    text = with_advice(text, constants)
    text = substitute(text, {"LAYER_NUMBER": LAYER_NUMBER})
    extra = ["trainable"] if frozen else []
    if scanned:
        extra += ["stack_layers", "unstack_layers"]
        text = substitute(text, _SCANNED)
    if len(collections) > 1:
        parts = ", ".join(f'"{name}": ...' for name in collections)
        text = substitute(
            text, {'convert.py wrote: `{"params": ...}`.\n': f"convert.py wrote: `{{{parts}}}`.\n"}
        )
    names = sorted([model, config, "build", "load_params", "require_params", *more, *extra])
    if more:
        import_ = f"from .modeling import {model}\nfrom .sharding import {', '.join(more)}\n"
        text = substitute(text, {f"from .modeling import {model}\n": import_})
    apart = "".join(f"    {path!r},\n" for path in unused)
    text = text.replace("NAMES", repr(names)).replace("SHAPES\n", shapes)
    text = text.replace("UNUSED_PATHS", f"frozenset([\n{apart}])" if apart else "frozenset()")
    still = "".join(f"    {path!r},\n" for path in frozen)
    return text + _TRAINABLE.replace("FROZEN_PATHS", f"frozenset([\n{still}])") if frozen else text


def with_tied_inputs(text: str, config: str, tied: Mapping[tuple[str, int], str]) -> str:
    """`__init__.py` of which the inputs follow the sizes that they are tied to.

    Args:
        text: its source.
        config: the class of the sizes.
        tied: (input, axis) → the setting, as an expression: "n_mels", "2 * width".
    """
    inputs: dict[str, dict[int, str]] = defaultdict(dict)
    for (name, axis), said in tied.items():
        inputs[name][axis] = re.sub(r"[A-Za-z_]\w*", r"config.\g<0>", said)
    lines = []
    for name, axes in inputs.items():
        written = re.search(rf'"{name}": jax\.ShapeDtypeStruct\((\(.*?\)), "(\w+)"\)', text)
        assert written is not None
        sides = [str(side) for side in ast.literal_eval(written[1])]
        for axis, said in axes.items():
            sides[axis] = said
        shape = f"({', '.join(sides)}{',' * (len(sides) == 1)})"
        lines.append(f'        "{name}": jax.ShapeDtypeStruct({shape}, "{written[2]}"),\n')
    function = _TIED.replace("CONFIG", config).replace("LINES\n", "".join(lines))
    return substitute(
        text,
        {
            "{**INPUTS, **inputs}": "{**inputs_at(model.config), **inputs}",
            "\n\ndef model_arrays(": f"\n\n{function}\n\ndef model_arrays(",
        },
    )


_TIED = '''\
def inputs_at(config: CONFIG) -> dict[str, jax.ShapeDtypeStruct]:
    """INPUTS at the sizes of a config."""
    return {
        **INPUTS,
LINES
    }
'''

_PACKAGE = (
    '''\
"""WHAT: see README.md."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from .config import CONFIG
from .modeling import MODEL

__all__ = NAMES

PARAMS = Path(__file__).with_name("params.safetensors")
# Inputs of the recording: `init` is traced with their shapes to see which arrays the model has.
INPUTS = {
SHAPES
}
# Arrays of the original that its forward does not read; numbers of layers are left out.
UNUSED: frozenset[str] = UNUSED_PATHS


def build() -> MODEL:
    """The model, with the sizes of the original."""
    return MODEL(CONFIG())


def load_params(
    file: Path = PARAMS, config: CONFIG | None = None, param_dtype: Any = None, **inputs: Any
) -> dict[str, Any]:
    """The variables in a file that convert.py wrote: `{"params": ...}`.

    Args:
        file: the file.
        config: config of a model of another size.
        param_dtype: dtype of weights and saved buffers, as in
            `MODEL(CONFIG(), param_dtype=param_dtype)`. None: the dtypes of the file.
        inputs: examples of the inputs that have other shapes at that size.

    Raises:
        ValueError: arrays are missing or have another shape, or the model has no place for some.
    """
    from safetensors.flax import load_file

    arrays = load_file(file)
    require_params(arrays, config, str(file), **inputs)
    if param_dtype is not None:
        model = model_arrays(MODEL(config or CONFIG(), param_dtype=param_dtype), **inputs)
        arrays = {path: array.astype(model.get(path, array).dtype) for path, array in arrays.items()}
    variables: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = path.split("/")
        node = variables
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = array
    return variables


def model_arrays(model: MODEL, **inputs: Any) -> dict[str, Any]:
    """Shape and dtype of each array that the model has, by path: "params/head/kernel"."""
    variables = jax.eval_shape(model.init, jax.random.key(0), **{**INPUTS, **inputs})
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return {"/".join(str(step.key) for step in path): leaf for path, leaf in leaves}


def model_shapes(config: CONFIG | None = None, **inputs: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each array that the model has, by path."""
    arrays = model_arrays(MODEL(config or CONFIG()), **inputs)
    return {path: array.shape for path, array in arrays.items()}


def model_paths(config: CONFIG | None = None, **inputs: Any) -> set[str]:
    """The paths of all arrays that the model has."""
    return set(model_shapes(config, **inputs))


def require_params(
    arrays: Mapping[str, Any] | Iterable[str],
    config: CONFIG | None = None,
    file: str = "",
    **inputs: Any,
) -> None:
    """Raise ValueError where arrays are missing, or the model has no place for some.

    Args:
        arrays: path → array, whose shapes are checked too; or the paths alone.
        config: config of a model of another size.
        file: the file that has them, for the message.
        inputs: examples of the inputs that have other shapes at that size.
    """
    try:
        shapes = model_shapes(config, **inputs)
    except NotImplementedError:
        return  # an operator is still to be written: no array can be used yet
    expected, present = set(shapes), set(arrays)
'''
    + PROBLEMS_OF_PATHS
    + """\
    whose = f"{file}: " if file else ""
    if problems:
        raise ValueError(f"{whose}MODEL {' and '.join(problems)}; ADVICE")
    for path, shape in shapes.items() if isinstance(arrays, Mapping) else ():
        if arrays[path].shape != shape:
            both = f"the shape {list(arrays[path].shape)}, MODEL's has {list(shape)}"
            raise ValueError(f"{whose}{path} has {both}; give the config of its size")
"""
)

# What a package with stacked layers says otherwise.
_SCANNED = {
    "from .config": "from .layers import stack_layers, unstack_layers\nfrom .config",
    '"""The variables in a file that convert.py wrote: `{"params": ...}`.\n': (
        '"""The variables in a file that convert.py wrote: `{"params": ...}`.\n\n'
        "    Weights of repeated layers are stacked; the file has each layer by itself.\n"
    ),
    "    return variables\n": "    return stack_layers(variables)\n",
    "    variables = jax.eval_shape(model.init, jax.random.key(0), **{**INPUTS, **inputs})\n": (
        "\n    def init(**inputs: Any) -> dict[str, Any]:\n"
        "        return unstack_layers(model.init(jax.random.key(0), **inputs))\n\n"
        "    variables = jax.eval_shape(init, **{**INPUTS, **inputs})\n"
    ),
    "that the model has, by path:": "that the model has, by path, each layer's apart:",
}

_TRAINABLE = '''

# Weights that the original does not train (`requires_grad=False`).
FROZEN: frozenset[str] = FROZEN_PATHS


def trainable(params: Any) -> Any:
    """Which weights the original trains: True and False, laid out as `variables["params"]`.

    For optax: `optax.partition({True: optimizer, False: optax.set_to_zero()}, trainable)`.
    """

    def is_trained(path: tuple[Any, ...], _: Any) -> bool:
        return "params/" + "/".join(str(step.key) for step in path) not in FROZEN

    return jax.tree_util.tree_map_with_path(is_trained, params)
'''


def convert_text(
    model: str,
    config: str,
    original: str,
    by_mapping: bool,
    constants: bool,
    api: str = "linen",
    *,
    sized: bool = False,
) -> str:
    """`convert.py`: another checkpoint of the architecture; `sized`: the mapping names sizes of the port."""
    how = 'mapping=HERE / "mapping.yaml"' if by_mapping else "model=ORIGINAL"
    how += ', to="nnx"' if api == "nnx" and not by_mapping else ""
    how += ", sizes=vars(config)" if sized else ""
    extra = ", extra=constants" if constants else ""
    paths = ", *constants" if constants else ""
    lines = [
        f'"""Convert a torch checkpoint of the original to the variables of {model}.',
        "",
        "    python convert.py CHECKPOINT OUTPUT.safetensors [--size FIELD=VALUE] [--force]",
        "",
        "Needs tpu-migrate. Fails if a key of the checkpoint has no place in the model, or the checkpoint",
        "lacks an array of the model.",
        '"""',
        "",
        "import argparse",
        "import ast",
        "import dataclasses",
        "import importlib.util",
        "import os",
        "import sys",
        "from collections.abc import Iterable",
        "from pathlib import Path",
        "from typing import Any",
        "",
        "from converters import ConversionError, convert, plan",
        *(["from safetensors.numpy import load_file"] if constants else []),
        "",
        "# Only shapes are computed, which needs no TPU.",
        'os.environ.setdefault("JAX_PLATFORMS", "cpu")',
        "HERE = Path(__file__).parent",
        *(
            []
            if by_mapping
            else [
                "# Torch computes some weights from several tensors: its module must say how.",
                f"ORIGINAL = {original!r}",
            ]
        ),
        "",
        "",
        "def package() -> Any:",
        '    """The package of this folder, wherever it lies."""',
        "    spec = importlib.util.spec_from_file_location(",
        '        HERE.name, HERE / "__init__.py", submodule_search_locations=[str(HERE)]',
        "    )",
        "    assert spec is not None",
        "    assert spec.loader is not None",
        "    module = importlib.util.module_from_spec(spec)",
        "    sys.modules[HERE.name] = module",
        "    spec.loader.exec_module(module)",
        "    return module",
        "",
        "",
        "def size(text: str) -> tuple[str, Any]:",
        '    """A field of the config and its value: `depth=3`."""',
        '    name, _, value = text.partition("=")',
        "    try:",
        "        return name, ast.literal_eval(value)",
        "    except (SyntaxError, ValueError):",
        "        raise argparse.ArgumentTypeError(",
        '            f"{text}: write a field of config.py and its value, such as depth=3"',
        "        ) from None",
        "",
        "",
        "def config_of(port: Any, sizes: Iterable[tuple[str, Any]]) -> Any:",
        '    """The config with other sizes than those of config.py."""',
        f"    fields = [field.name for field in dataclasses.fields(port.{config})]",
        "    for name, _ in sizes:",
        "        if name not in fields:",
        "            raise ValueError(f\"--size {name}: config.py has {', '.join(fields)}\")",
        f"    return port.{config}(**dict(sizes))",
        "",
        "",
        "def main() -> None:",
        '    """Convert what the command line names."""',
        "    parser = argparse.ArgumentParser(description=__doc__)",
        '    parser.add_argument("checkpoint", type=Path)',
        '    parser.add_argument("output", type=Path)',
        "    parser.add_argument(",
        '        "--force", action="store_true", help="Replace the output if it exists."',
        "    )",
        "    parser.add_argument(",
        '        "--size",',
        "        type=size,",
        '        action="append",',
        "        default=[],",
        '        metavar="FIELD=VALUE",',
        '        help="Set a size that differs from config.py.",',
        "    )",
        "    args = parser.parse_args()",
        *(['    constants = load_file(HERE / "constants.safetensors")'] if constants else []),
        "    try:",
        *(
            [
                "        port = package()",
                "        config = config_of(port, args.size)",
                f"        paths = [leaf.path for leaf in plan(args.checkpoint, {how}).leaves]",
                f"        port.require_params([*paths{paths}], config)",
            ]
            if sized
            else [
                f"        paths = [leaf.path for leaf in plan(args.checkpoint, {how}).leaves]",
                "        port = package()",
                f"        port.require_params([*paths{paths}], config_of(port, args.size))",
            ]
        ),
        f"        result = convert(args.checkpoint, {how}, output=args.output{extra}, overwrite=args.force)",
        "    except (ConversionError, ValueError, TypeError) as error:",
        "        parser.error(str(error))",
        '    print(f"{result.output}: {result.parameters:,} parameters")',
        "",
        "",
        'if __name__ == "__main__":',
        "    main()",
        "",
    ]
    return "\n".join(lines)


def test_text(
    model: str,
    how: OriginalTexts,
    seed: int,
    params: bool,
    streams: Sequence[str],
    methods: Sequence[str],
    paddings: Sequence[str],
    api: str,
) -> str:
    """`test_parity.py`: the port against the original, without this project unless it draws.

    Args:
        model: the model's class.
        how: how the test comes to the original.
        seed: seed of the factory.
        params: whether the port has weights.
        streams: streams of random numbers that the model draws from.
        methods: methods of the port beside its forward.
        paddings: names of the padded batches whose masks are in `TEST_PADDING`.
        api: API of Flax.
    """
    nnx = api == "nnx"
    weights = "package.load_params()" if params else "{}"
    rngs = "" if nnx else ", ".join(f'"{name}": jax.random.key(0)' for name in streams)
    run_method, run_forward = (_NNX_METHOD, _NNX_FORWARD) if nnx else (_RUN_METHOD, _RUN_FORWARD)
    parts = (_PARAMETRIZED, _METHOD, run_method) if methods else ("", _FORWARD, run_forward)
    masked = _PADDED.format(paddings=list(paddings), inputs=TEST_INPUTS, padding=TEST_PADDING)
    rows = "".join(f'("{name}", "{inputs_file(name)}"), ' for name in methods)
    return _text(_TEST).format(
        parametrized=parts[0].format(rows=f'("forward", "{TEST_INPUTS}"), {rows}'.rstrip(", ")),
        signature=parts[1],
        inputs="inputs" if methods else f'"{TEST_INPUTS}"',
        partial="from functools import partial\n" if methods and not nnx else "",
        nnx="from flax import nnx\n" if nnx else "",
        variables="model = package.build()" if nnx else f"variables = {weights}",
        first="model" if nnx else "variables",
        jit="nnx" if nnx else "jax",
        method=', method: str = "forward"' if methods else "",
        run=", method" if methods else "",
        padded=masked.rstrip() if paddings else "",
        called=parts[2][0],
        applied=parts[2][1],
        alone="and, as the model draws, tpu-migrate" if streams else "and not tpu-migrate",
        draws=_DRAWS if streams else "",
        torch_draws=", torch_side.Drawn(draws.Draws(SEED))" if streams else "",
        jax_draws=", jax_side.drawn(draws.Draws(SEED))" if streams else "",
        rngs=f", rngs={{{rngs}}}" if rngs else "",
        model=model,
        place=how.place,
        load=how.load,
        pickle="import pickle\n" if how.pickled else "",
        module_type="from types import ModuleType\n" if how.pickled else "",
        reader=_TENSORS_ONLY.lstrip() + "\n\n" if how.pickled else "",
        seed=seed,
        limit=LIMIT,
    )


class OriginalTexts:
    """Source lines by which a test of the port loads the original.

    Attributes:
        place: lines that name it.
        load: lines of a function's body that give the module.
        pickled: whether the weights are in a file of `torch.save`.
    """

    def __init__(self, spec: str, folder: Path, checkpoint: Path | None, weights: bool) -> None:
        source, self.pickled = Path(spec), False
        if source.is_dir():
            self.place = f"ORIGINAL = HERE / {_relative(source, folder)!r}"
            self.load = _FOLDER_WITH_WEIGHTS if weights else _FOLDER
        else:
            location, _, name = spec.rpartition(":")
            if location.endswith(".py"):
                self.place = f"ORIGINAL = HERE / {_relative(Path(location), folder)!r}"
                module = in_package(Path(location))
                form = _PACKAGED if module else _FILE
                self.load = form.format(name=name, module=module, depth=module.count("."))
            else:
                self.place = f"ORIGINAL = {location!r}"
                self.load = _MODULE.format(name=name)
            if checkpoint is not None:
                self.place += f"\nCHECKPOINT = HERE / {_relative(checkpoint, folder)!r}"
                self.pickled = checkpoint.suffix != ".safetensors"
                self.load += _CHECKPOINT if self.pickled else _SAFETENSORS
        self.load = self.load.rstrip() + "\n    return module.eval()"


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _text(text: str) -> str:
    return dedent(text)


_FOLDER_WITH_WEIGHTS = """\
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(ORIGINAL, local_files_only=True)
    kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
    module = kind.from_pretrained(ORIGINAL, local_files_only=True).float()
"""
_FOLDER = """\
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(ORIGINAL, local_files_only=True)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    torch.manual_seed(SEED)
    module = kind(config) if kind else transformers.AutoModel.from_config(config)
"""
_FILE = """\
    if not ORIGINAL.is_file():
        pytest.skip(f"the original is not at {{ORIGINAL}}")
    sys.path.insert(0, str(ORIGINAL.parent))
    spec = importlib.util.spec_from_file_location("original_module", ORIGINAL)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules["original_module"] = source
    spec.loader.exec_module(source)
    torch.manual_seed(SEED)
    module = source.{name}
    module = module if isinstance(module, torch.nn.Module) else module()
"""
_PACKAGED = """\
    if not ORIGINAL.is_file():
        pytest.skip(f"the original is not at {{ORIGINAL}}")
    sys.path.insert(0, str(ORIGINAL.parents[{depth}]))
    source = importlib.import_module("{module}")
    torch.manual_seed(SEED)
    module = source.{name}
    module = module if isinstance(module, torch.nn.Module) else module()
"""
_MODULE = """\
    source = pytest.importorskip(ORIGINAL)
    torch.manual_seed(SEED)
    module = source.{name}
    module = module if isinstance(module, torch.nn.Module) else module()
"""
_READ_PICKLED = """\
    state = torch.load(
        CHECKPOINT, map_location="cpu", weights_only=False, pickle_module=tensors_only
    )
"""
_READ_SAFETENSORS = """\
    from safetensors.torch import load_file

    state = load_file(CHECKPOINT)
"""
_FITTED = """\
    # As training scripts store it: below a name, and with a wrapper's prefix.
    for entry in ("state_dict", "model_state_dict", "model"):
        state = state.get(entry, state)
    own = module.state_dict()
    state = {next((end for end in ends(key) if end in own), key): one for key, one in state.items()}
    module.load_state_dict(state)
"""
_CHECKPOINT, _SAFETENSORS = _READ_PICKLED + _FITTED, _READ_SAFETENSORS + _FITTED
# The classes of `torch.save` that hold tensors are read, as in `converters.checkpoint`.
_TENSORS_ONLY = """\


class Inert:
    \"\"\"Stands for an object of a checkpoint that is no tensor: a config, an optimizer.\"\"\"

    def __init__(self, *args: Any, **named: Any) -> None:
        self.items: dict[Any, Any] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        self.items[len(self.items)] = value

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


TENSORS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.nn.parameter", "Parameter"),
}


class TensorsOnly(pickle.Unpickler):
    \"\"\"Reads tensors. No other object of a checkpoint is made, so that no code in it runs.\"\"\"

    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in TENSORS
        if module == "torch":
            known = known or isinstance(getattr(torch, name, None), torch.dtype)
        return super().find_class(module, name) if known else type(name, (Inert,), {})


def load_tensors(file: Any, **named: Any) -> Any:
    return TensorsOnly(file, **named).load()


# As a module, as `torch.load` takes it.
tensors_only = ModuleType("tensors_only")
vars(tensors_only).update(Unpickler=TensorsOnly, load=load_tensors)
"""
_PARAMETRIZED = """@pytest.mark.parametrize(("method", "inputs"), [{rows}])
"""
_METHOD = "method: str, inputs: str) -> None:"
_FORWARD = ") -> None:"
_RUN_METHOD = (
    "getattr(module, method)",
    'partial(package.build().apply, method="__call__" if method == "forward" else method)',
)
_RUN_FORWARD = ("module", "package.build().apply")
_NNX_METHOD = (
    "getattr(module, method)",
    'lambda model, **inputs: getattr(model, "__call__" if method == "forward" else method)(**inputs)',
)
_NNX_FORWARD = ("module", "lambda model, **inputs: model(**inputs)")
_PADDED = """

@pytest.mark.parametrize("padding", {paddings})
def test_padded_batches_are_those_of_the_original(padding: str) -> None:
    masks = load_file(HERE / "{padding}")
    mine = {{key.partition(".")[2]: one for key, one in masks.items() if key.startswith(padding)}}
    compare({{**load_file(HERE / "{inputs}"), **mine}})
"""
_DRAWS = """\
# Both sides draw the same numbers.
draws = pytest.importorskip("migrate.parity.ground.draws")
jax_side = pytest.importorskip("migrate.parity.sides.jax.draws")
torch_side = pytest.importorskip("migrate.parity.sides.torch.draws")
"""
_TEST = '''\
    """{model} computes what the original computes: `pytest test_parity.py`.

    Needs torch and the original beside jax and flax, {alone}.
    """

    import importlib.util
    {pickle}import sys
    from collections.abc import Iterator, Mapping
    from dataclasses import fields, is_dataclass
    {partial}from pathlib import Path
    {module_type}from typing import Any

    import jax
    import numpy as np
    import pytest
    {nnx}from safetensors.numpy import load_file

    torch = pytest.importorskip("torch")
    {draws}
    HERE = Path(__file__).parent
    {place}
    SEED = {seed}
    LIMIT = {limit:g}  # relative L2


    def port() -> Any:
        """The package of this folder, wherever it lies."""
        spec = importlib.util.spec_from_file_location(
            HERE.name, HERE / "__init__.py", submodule_search_locations=[str(HERE)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[HERE.name] = package
        spec.loader.exec_module(package)
        return package


    def ends(key: str) -> list[str]:
        """The key, and what is left of it without its first steps."""
        steps = key.split(".")
        return [".".join(steps[start:]) for start in range(len(steps))]


    {reader}def original() -> Any:
        """The torch module."""
    {load}


    def leaves(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
        """The arrays of an output, each with the names on the way to it."""
        if isinstance(value, Mapping):
            inner = list(value.items())
        elif hasattr(value, "_asdict"):
            inner = list(value._asdict().items())
        elif isinstance(value, list | tuple):
            inner = list(enumerate(value))
        elif is_dataclass(value):
            inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
        elif hasattr(value, "shape"):
            yield path, np.asarray(value.detach() if hasattr(value, "detach") else value)
            return
        else:
            return
        for name, one in inner:
            yield from leaves(one, f"{{path}}.{{name}}" if path else str(name))


    def compare(given: dict[str, np.ndarray]{method}) -> None:
        """Run both with the same inputs."""
        module = original()
        with torch.no_grad(){torch_draws}:
            tensors = {{name: torch.from_numpy(array) for name, array in given.items()}}
            expected = dict(leaves({called}(**tensors)))
        package = port()
        {variables}
        with jax.default_matmul_precision("highest"){jax_draws}:
            run = {jit}.jit({applied})
            found = dict(leaves(run({first}, **given{rngs})))
        if expected.keys() != found.keys():
            found = dict(zip(expected, found.values(), strict=True))
        assert expected
        for name, array in expected.items():
            assert array.shape == found[name].shape, name
            if array.dtype.kind in "biu":
                np.testing.assert_array_equal(found[name], array, name)
                continue
            distance = np.linalg.norm((found[name] - array).ravel())
            assert distance <= LIMIT * np.linalg.norm(array.ravel()), name


    {parametrized}def test_outputs_are_those_of_the_original({signature}
        compare(load_file(HERE / {inputs}){run})
    {padded}
    '''
