"""A port at the sizes of another instance: its weights through the port's own mapping, its outputs."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from converters.graph.expression import DROPOUT, NOISE
from converters.graph.recording.libraries import is_user_file
from converters.graph.writing.original.names import attribute_lines, source_file
from converters.mapping.paths import has_layers
from migrate.parity.ground.draws import Draws
from migrate.parity.sides.jax.draws import drawn
from migrate.port.dtypes import narrow
from migrate.port.nnx_model import NnxPort, is_nnx
from migrate.port.package import stacked, unstacked
from migrate.port.sizes.instance import SEED, Array, Arrays, flat, quiet
from migrate.port.weights import CONSTANTS, MAPPING, PARAMS

Shape = tuple[int, ...]
# Characters of what a class of the port says about a size.
_SHOWN = 160
# File with the classes of a port.
_SOURCE = "modeling.py"


class PortRefusesError(Exception):
    """Error of a port that does not run at these sizes. The text is the reason, after "the port".

    Attributes:
        path: path of a weight that does not fit, as Flax has it; "" for other reasons.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.path = path


@dataclass(frozen=True)
class PortAtSize:
    """A port at the sizes of another instance, with the weights of the original at these.

    Attributes:
        package: package of the port.
        folder: folder of the port.
        config: configuration of the port.
        model: the Flax model.
        arrays: path → array: its weights.
        inputs: what it is given.
    """

    package: Any
    folder: Path
    config: Any
    model: Any
    arrays: Mapping[str, Array]
    inputs: Arrays

    def shapes(self) -> list[Shape]:
        """Shapes of the outputs; nothing is computed or compiled.

        Raises:
            PortRefusesError: its weights have other paths or shapes, or a layer takes no such shapes.
        """
        import jax

        with self.refusing():
            inputs = _abstract(self.inputs)
            if isinstance(self.model, NnxPort):
                self.require_paths()
                results = jax.eval_shape(self.apply, self.variables(self.weights()), **inputs)
                return [tuple(leaf.shape) for leaf in flat(results)]
            key = jax.random.key(0)

            def init(**inputs: Any) -> Any:
                outputs, variables = self.model.init_with_output(key, **inputs)
                return outputs, unstacked(self.package, variables)

            outputs, variables = jax.eval_shape(init, **inputs)
            wanted = {
                "/".join(str(step.key) for step in path): tuple(leaf.shape)
                for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
            }
            if wanted != {path: tuple(array.shape) for path, array in self.arrays.items()}:
                self.require_paths()
            return [tuple(leaf.shape) for leaf in flat(outputs)]

    def outputs(self, method: tuple[str, Arrays] | None = None) -> list[Array]:
        """Return the outputs of the port.

        Args:
            method: a further method, and what it is given; None: the forward.

        Raises:
            PortRefusesError: see `shapes`; or the port raises when it runs.
        """
        import jax

        with self.refusing():
            self.require_paths()
            variables = self.variables(self.weights())
            apply, inputs = self.apply, self.inputs
            if method is not None:
                apply = partial(apply, method=method[0])
                inputs = {name: narrow(array) for name, array in method[1].items()}
            with drawn(Draws(SEED)):  # as the original is
                program = jax.jit(apply).lower(variables, **inputs)
            options = {"xla_backend_optimization_level": 0}
            value = program.compile(options)(variables, **inputs)
            return [np.asarray(leaf) for leaf in flat(value)]

    def variables(self, arrays: Mapping[str, Any]) -> Any:
        """The first argument of `apply`, of weights by path: the layers of a scan stacked."""
        if isinstance(self.model, NnxPort):
            return dict(arrays)
        return stacked(self.package, nested(arrays))

    def parameters(self) -> set[str]:
        """Paths of the weights that are trained."""
        if isinstance(self.model, NnxPort):
            return self.model.parameters()
        return {path for path in self.arrays if path.startswith("params/")}

    @property
    def apply(self) -> Any:
        """The model's `apply`, with keys for what it draws."""
        import jax

        if isinstance(self.model, NnxPort):
            return self.model.apply
        rngs = {name: jax.random.key(SEED) for name in (NOISE, DROPOUT)}
        return partial(self.model.apply, rngs=rngs)

    def weights(self) -> dict[str, Array]:
        """Path → array, with JAX's 32 bits; of an nnx model also what no file has."""
        rest = self.model.rest() if isinstance(self.model, NnxPort) else {}
        return {path: narrow(array) for path, array in self.arrays.items()} | rest

    def require_paths(self) -> None:
        """Raise the port package's own error if weights are missing, misshapen or have no place."""
        if self.arrays:
            inputs = {} if isinstance(self.model, NnxPort) else _abstract(self.inputs)
            self.package.require_params(self.arrays, self.config, **inputs)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise PortRefusesError for whatever is raised, on the CPU and in full precision."""
        import jax

        cpu = jax.devices("cpu")[0]
        highest = jax.default_matmul_precision("highest")
        with refused(self.folder), quiet(), jax.default_device(cpu), highest:
            yield


def port_at(
    package: Any,
    folder: Path,
    names: tuple[str, str],
    settings: Mapping[str, Any],
    module: Any,
    inputs: Arrays,
) -> PortAtSize:
    """Make a port at other sizes, with the weights of the original at these.

    Args:
        package: package of the port.
        folder: folder of the port.
        names: names of its model class and its configuration class.
        settings: the sizes.
        module: the original at these.
        inputs: what both are given.

    Raises:
        PortRefusesError: the port's mapping or configuration refuses the sizes.
    """
    with refused(folder):
        config = getattr(package, names[1])(**settings)
        model_class = getattr(package, names[0])
        nnx = is_nnx(model_class)
        arrays = _converted(folder, module, nnx, settings) if (folder / PARAMS).exists() else {}
        model = NnxPort(model_class, config) if nnx else model_class(config)
        inputs = {name: narrow(array) for name, array in inputs.items()}
        return PortAtSize(package, folder, config, model, arrays, inputs)


def outputs_of(
    package: Any,
    folder: Path,
    names: tuple[str, str],
    settings: Mapping[str, Any],
    module: Any,
    inputs: Arrays,
) -> list[Array]:
    """Return the outputs of a port at other sizes. See `port_at` for the arguments.

    Raises:
        PortRefusesError: its classes, its mapping or its configuration refuse them.
    """
    return port_at(package, folder, names, settings, module, inputs).outputs()


def computes_weights(folder: Path) -> bool:
    """Whether torch computes weights of the port from several tensors (weight_norm)."""
    from converters.mapping import Outcome
    from converters.mapping.file import load_mapping

    file = folder / MAPPING
    return file.exists() and any(
        rule.outcome is Outcome.REFUSED for rule in load_mapping(file).rules
    )


@contextmanager
def refused(folder: Path) -> Iterator[None]:
    """Raise PortRefusesError for whatever is raised."""
    try:
        yield
    except PortRefusesError:
        raise
    except (
        Exception
    ) as error:  # whatever Flax, JAX or the mapping raise at a size that does not fit
        raise PortRefusesError(*_reason(error, folder)) from error


def origin(error: PortRefusesError, module: Any) -> str:
    """The class and line of the original that an error concerns: `RMSNorm, net.py:31`; "" if unknown.

    For a weight: the line of a constructor that makes its layer. Else: the class in whose port JAX raised.

    Args:
        error: the error.
        module: the original.
    """
    owner, attribute = _owner(module, error.path) if error.path else (None, "")
    if owner is None:
        frames = traceback.walk_tb(error.__cause__.__traceback__ if error.__cause__ else None)
        names = [
            frame.f_code.co_qualname.partition(".")[0]
            for frame, _ in frames
            if Path(frame.f_code.co_filename).name == _SOURCE
        ]
        classes = {type(inner).__name__: type(inner) for inner in module.modules()}
        known = [name if name in classes else name.rstrip("0123456789") for name in names]
        owner = next((classes[name] for name in reversed(known) if name in classes), None)
    if owner is None or not is_user_file(source_file(owner)):
        return ""
    line = attribute_lines(owner).get(attribute)
    number = line.line if line is not None else inspect.getsourcelines(owner)[1]
    return f"{owner.__name__}, {Path(source_file(owner)).name}:{number}"


def _owner(module: Any, path: str) -> tuple[type | None, str]:
    """The class of the user that makes the layer of a weight, and the attribute it keeps it under."""
    owner, attribute = None, ""
    for part in path.split("/"):
        name, _, index = part.rpartition("_")
        children = getattr(module, "_modules", {})
        held = part in children or (name in children and index.isdigit())
        if is_user_file(source_file(type(module))):
            owner, attribute = type(module), part if part in children or not held else name
        if part in children:
            module = children[part]
        elif held:
            module = list(children[name].children())[int(index)]
        elif name == "layers" and has_layers(module) and int(index) < len(children):
            module = list(children.values())[int(index)]
        else:
            break
    return owner, attribute


# Messages about weights that do not fit → what they say about the source; it follows "the port".
_PLAIN = (
    (
        r"(?:^|: )(?P<key>(?P<layer>\S+)\.(?:weight|bias)_\w+_l\d+(?:_reverse)?) is matched by no rule$",
        "has no place for {key}: the number of layers of `{layer}` is fixed in modeling.py",
    ),
    (
        r"(?:^|: )(?P<key>\S+) is matched by no rule$",
        "has no place for {key}: the number of its layers is fixed in modeling.py",
    ),
    (
        r"^\w+/(?P<path>\S+) has the shape (?P<theirs>\[.*?\]), (?:the )?\w+'s has (?P<ours>\[.*?\])",
        "has the size {ours} of `{path}` written as a number in modeling.py, the original has {theirs} there",
    ),
    (
        r"(?:parameter )\"(?P<name>\w+)\" in \"/?(?P<path>[^\"]*)\".*expected to generate shape "
        r"\((?P<ours>.*?),?\), but the existing parameter it received has shape \((?P<theirs>.*?),?\)",
        "has the size [{ours}] of `{path}/{name}` written as a number in modeling.py, the original has "
        "[{theirs}] there",
    ),
    (
        r"^\w+ (?P<what>(?:lacks|has no place for) .*?)(?:; give the config of its size)?$",
        "has other layers than the original there: it {what}",
    ),
)


def _reason(error: Exception, folder: Path) -> tuple[str, str]:
    """Reason why a port does not run at other sizes, and the path of a weight that does not fit.

    The reason follows "the port" in a sentence.
    """
    from flax.errors import ScopeParamShapeError

    from converters.errors import ConversionError, MappingFileError

    message = " ".join(str(error).replace(f"{folder}/", "").split())
    start, path = f"raises {type(error).__name__}: ", ""
    if isinstance(error, ConversionError):
        start = "does not take the original's weights there: "
        message = error.problems[0] if isinstance(error, MappingFileError) else message
    elif isinstance(error, ScopeParamShapeError):
        start = "does not take the original's weights there: "
        message = message.partition(" (https:")[0]
    for pattern, said in _PLAIN:
        if isinstance(error, ConversionError | ScopeParamShapeError | ValueError) and (
            match := re.search(pattern, message)
        ):
            groups = match.groupdict()
            start, message = "", said.format(**groups)
            path = "/".join(filter(None, (groups.get("path"), groups.get("name"))))
            break
    if len(message) > _SHOWN:
        message = f"{message[:_SHOWN].rpartition(' ')[0]} …"
    if not message:
        line = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{Path(line.filename).name}:{line.lineno}"
    return start + message, path


def _converted(
    folder: Path, module: Any, nnx: bool, settings: Mapping[str, Any]
) -> dict[str, Array]:
    """The weights of the original by the mapping of the port: path → array."""
    from safetensors.numpy import load_file

    from converters.checkpoint import flatten
    from converters.conversion import convert_to_pytree

    how: dict[str, Any] = (
        {"model": module, **({"to": "nnx"} if nnx else {})}
        if computes_weights(folder)
        else {"mapping": folder / MAPPING, "sizes": settings}
    )
    with quiet():
        arrays: dict[str, Array] = flatten(convert_to_pytree(module.state_dict(), **how))
    constants = folder / CONSTANTS
    return arrays | (load_file(constants) if constants.exists() else {})


def nested(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the variables of a Flax model."""
    from converters.checkpoint import nest

    values: dict[str, Any] = nest(arrays.items())
    return values


def _abstract(arrays: Arrays) -> dict[str, Any]:
    import jax

    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}
