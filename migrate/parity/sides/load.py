"""Load the model that a user names; its object decides the kind of the side."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, new_class
from typing import Any, Literal

import numpy as np

from converters.errors import ConversionError
from converters.installing import missing_behind
from converters.model import imported, named_object, split_call
from converters.other_method import calling
from migrate.parity.ground.errors import ArgumentsError, TargetError
from migrate.parity.ground.requests import TORCH
from migrate.parity.sides.frames import raised
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.target import PORT_FILES, Target, ports_in
from shims import simulate_tpu
from shims._simulated_tpu.versions import INSTALL
from shims.errors import NotSimulatedError

_FLAX = ("linen", "nnx", "jax")
# A port's function that builds the model, and its weights.
_PORT_BUILDS = "build"
_PORT_WEIGHTS = "params.safetensors"
_PORT_UNUSED = "UNUSED"
# Function of a port with partition rules: the spec of each weight on a mesh.
_PORT_PARTITION = "partition_specs"
# Name in a port's `sharding.py`: the axes of a mesh that its batch is divided over.
_PORT_BATCH_AXES = "BATCH"
_PORT_CONSTANTS = "constants.safetensors"
_TORCH_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def load_runner(target: Target, seed: int = 0) -> tuple[Runner, Path | None]:
    """Load the model that a user named.

    The module or file is imported and its factory called without arguments, with seeded random numbers of
    torch (or nnx).

    Returns:
        The runner, and the file of weights that came with the model, as in a folder of `migrate port`.

    Raises:
        TargetError: the object does not exist, cannot be built, or is no model.
    """
    if target.kind == "port":
        return _port(target, seed)
    if target.kind == "tpu":
        _simulate_tpu(target)
    if Path(target.spec).is_dir():
        loaded = _pretrained(Path(target.spec), seed)
        model = _torch_method(loaded, target.method) if target.method else loaded
        return _torch_runner(model, target), None
    loaded = _object(target.spec)
    if target.kind == "jax":
        return _jax_runner(loaded, "jax", target), None
    return _runner(_model(loaded, target, seed), target), None


def _simulate_tpu(target: Target) -> None:
    """Start torch_tpu on a simulated TPU in this process, before anything imports torch.

    Raises:
        TargetError: this environment or this machine cannot run it.
    """
    try:
        simulate_tpu.refuse_tpu()
        simulate_tpu.install(1)
    except NotSimulatedError as error:
        remedy = error.remedy
        if INSTALL in remedy:
            remedy += "; run the command there (migrate parity also takes its Python: --python-a, --python-b)"
        raise TargetError(f"{target.shown}: {error.what}", remedy) from error


@dataclass(frozen=True)
class LoadedPort:
    """Package in a folder of `migrate port`.

    Attributes:
        folder: the folder.
        package: the imported package.
        constants: arrays that its files of weights have and torch's checkpoints have not, by path.
    """

    folder: Path
    package: ModuleType
    constants: Mapping[str, np.ndarray[Any, Any]]

    def require(self, paths: Collection[str]) -> None:
        """Check that the port has a place for each array of these paths, and needs no others.

        Raises:
            TargetError: it does not fit; the message names arrays.
        """
        try:
            self.package.require_params([*paths, *self.constants])
        except ValueError as error:
            what = str(error).partition(";")[0]
            raise TargetError(
                f"{self.folder}: {what}",
                "for a model of another size: python convert.py CHECKPOINT OUTPUT --size FIELD=VALUE there",
            ) from error


def load_port(folder: Path) -> LoadedPort:
    """Import the package in a folder of `migrate port`.

    Raises:
        TargetError: it is no such folder, or its import fails.
    """
    package = _imported_port(folder, str(folder))
    file = folder / _PORT_CONSTANTS
    if not file.is_file():
        return LoadedPort(folder, package, {})
    from safetensors.numpy import load_file

    return LoadedPort(folder, package, load_file(file))


def _port(target: Target, seed: int) -> tuple[Runner, Path | None]:
    folder = Path(target.spec)
    package = _imported_port(folder, target.shown)
    build = getattr(package, _PORT_BUILDS)
    weights = folder / _PORT_WEIGHTS
    inner = Target("", target.spec, target.shown, method=target.method)
    runner = _runner(_model(build, inner, seed), inner)
    _spare(runner, frozenset(getattr(package, _PORT_UNUSED, ())), target.method)
    _stacks(runner, package)
    _partition(runner, package)
    return runner, weights if weights.is_file() else None


def _imported_port(folder: Path, shown: str) -> ModuleType:
    """Import the package in a folder of `migrate port`; `shown` names it in errors.

    Raises:
        TargetError: it is no such folder, or its import fails.
    """
    lacking = [name for name in PORT_FILES if not (folder / name).is_file()]
    if lacking:
        inner = " or ".join(f"port:{port}" for port in ports_in(folder))
        raise TargetError(
            f"{folder}: not a folder of migrate port; missing: {' and '.join(lacking)}",
            f"did you mean {inner}?" if inner else "name the folder that migrate port wrote",
        )
    try:
        package = _package(folder)
        getattr(package, _PORT_BUILDS)
        return package
    except (Exception, SystemExit) as error:
        if missing := missing_behind(error):
            raise missing from error
        at = raised(error.__traceback__, ("importlib",))
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise TargetError(
            f"{shown}: import failed ({what}{f', {at}' if at else ''})",
            "fix the edited file, or port the model again",
        ) from error


def _stacks(runner: Any, package: Any) -> None:
    """Tell a port's model how the weights of its layers are stacked, if they are."""
    from migrate.parity.sides.jax.linen import LinenModel

    model = getattr(runner, "model", None)
    if isinstance(model, LinenModel) and hasattr(package, "stack_layers"):
        model.stack, model.unstack = package.stack_layers, package.unstack_layers


def _spare(runner: Any, unused: Collection[str], method: str) -> None:
    """Tell a port's model which weights may lack a place: a method may use only some of them."""
    from migrate.parity.sides.jax.runner import JaxRunner
    from migrate.parity.sides.jax.weights import numberless

    if isinstance(runner, JaxRunner):
        runner.model.spare = lambda path: bool(method) or numberless(path) in unused


def _partition(runner: Any, package: ModuleType) -> None:
    """Give a port's model the partition rules of its package, if there are any."""
    from migrate.parity.sides.jax.runner import JaxRunner

    if isinstance(runner, JaxRunner):
        runner.model.partition = getattr(package, _PORT_PARTITION, None)
        rules = getattr(package, "sharding", None)
        runner.model.batch_axes = tuple(getattr(rules, _PORT_BATCH_AXES, ()))


def port_constants(target: Target) -> Path | None:
    """File of arrays that a port has besides weights, if there is one."""
    file = Path(target.spec) / _PORT_CONSTANTS
    return file if file.is_file() else None


def _package(folder: Path) -> ModuleType:
    """Import the package in a folder under a unique name, so that a package of the same name stays
    unchanged.
    """
    name = f"_migrate_port_{folder.resolve().name.strip('.')}"
    for known in [
        known_name
        for known_name in sys.modules
        if known_name == name or known_name.startswith(f"{name}.")
    ]:
        del sys.modules[known]
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


def _object(spec: str) -> Any:
    try:
        named, args, kwargs = split_call(spec)
        location, _, name = named.rpartition(":")
        if not location and Path(spec).is_file() and Path(spec).suffix != ".py":
            raise TargetError(
                f"{spec}: is a file, and no model",
                "name the folder with its config.json, or a model with this file as --weights",
            )
        if not location:
            raise TargetError(f"{spec}: names a file, but no object in it", f"write {spec}:factory")
        with imported(spec, location) as module:
            loaded = named_object(module, location, name)
    except ConversionError as error:
        raise TargetError(error.what, error.remedy) from error
    return functools.partial(loaded, *args, **kwargs) if args or kwargs else loaded


def _model(loaded: Any, target: Target, seed: int) -> Any:
    """Model that the object is or builds; a function of inputs is a model itself."""
    if _kind_of(loaded) or _takes_inputs(loaded):
        return loaded
    if lacking := [name for name, parameter in _required(loaded).items() if _is_number(parameter)]:
        raise ArgumentsError(
            f"{target.shown}: cannot be built without {', '.join(lacking)}",
            f"write {target.spec}({', '.join(f'{name}=…' for name in lacking)})",
            tuple(lacking),
        )
    if not callable(loaded):
        raise TargetError(
            f"{target.shown}: is a {type(loaded).__name__}, no model and no function that builds one",
            "name a torch, linen or nnx module, or a function",
        )
    try:
        return _built(loaded, seed)
    except (Exception, SystemExit) as error:
        if missing := missing_behind(error):
            raise missing from error
        at = raised(error.__traceback__)
        what = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        raise TargetError(
            f"{target.shown}: building the model failed ({what}{f', {at}' if at else ''})",
            "check that it can be built without arguments in the current directory",
        ) from error


def _built(factory: Callable[..., Any], seed: int) -> Any:
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)
    if "rngs" in _parameters(factory):
        from flax import nnx

        return factory(rngs=nnx.Rngs(seed))
    return factory()


def _takes_inputs(function: Any) -> bool:
    """Whether a function cannot be called without arguments: then it is the model to compare."""
    if isinstance(function, type):
        return False
    required = _required(function)
    return bool(required) and not all(map(_is_number, required.values()))


def _required(function: Any) -> dict[str, inspect.Parameter]:
    """Required parameters, without `rngs` and a method's own object."""
    return {
        name: parameter
        for name, parameter in _parameters(function).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in ("self", "rngs")
    }


def _is_number(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a setting by its annotation, as the number of classes is, and no input."""
    said = parameter.annotation
    return (said.__name__ if isinstance(said, type) else str(said)) in ("int", "float", "str")


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    # For a class, its own __init__: the metaclass of nnx takes anything.
    maker = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):
        return {}


def _kind_of(model: Any) -> Literal["torch", "linen", "nnx", ""]:
    """Kind of an object, without importing unneeded frameworks."""
    for cls in type(model).__mro__:
        name = f"{cls.__module__}.{cls.__name__}"
        if name == "torch.nn.modules.module.Module":
            return "torch"
        if name == "flax.linen.module.Module":
            return "linen"
        if cls.__module__.startswith("flax.nnx") and cls.__name__ == "Module":
            return "nnx"
    if hasattr(model, "params_shape_tree") and hasattr(model, "module"):
        return "linen"  # transformers' FlaxPreTrainedModel, which holds a linen module
    return ""


def _runner(model: Any, target: Target) -> Runner:
    kind = _kind_of(model)
    wanted = target.kind
    if target.method and kind in _BY_METHOD:
        model = _BY_METHOD[kind](model, target.method)
    if kind == "torch" and wanted in ("", *TORCH):
        return _torch_runner(model, target)
    if kind in ("linen", "nnx") and wanted in ("", kind):
        return _jax_runner(model, kind, target)
    if not kind and callable(model) and wanted == "":
        return _jax_runner(model, "jax", target)
    is_a = {"torch": "a torch module", "": f"a {type(model).__name__}"}.get(
        kind, f"a {kind} module"
    )
    raise TargetError(
        f"{target.shown}: is {is_a}, not what {wanted or 'a side'} needs",
        "name a torch module for torch:, xla: and tpu:, a Flax one for linen: and nnx:, a function for jax:",
    )


def _torch_method(model: Any, method: str) -> Any:
    """Module whose call runs another of its methods."""
    model.__class__ = calling(type(model), method)
    return model


def _linen_method(model: Any, method: str) -> Any:
    """Module whose call runs another of its methods."""
    cls = type(model)
    inner = getattr(cls, method)

    @functools.wraps(inner)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inner(self, *args, **kwargs)

    call.__name__ = call.__qualname__ = "__call__"
    subclass = type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__})
    fields = [
        attribute.name
        for attribute in dataclasses.fields(model)
        if attribute.name not in ("parent", "name")
    ]
    return subclass(**{name: getattr(model, name) for name in fields})


def _nnx_method(model: Any, method: str) -> Any:
    """Module whose call runs another of its methods."""
    cls = type(model)
    namespace = {"__call__": getattr(cls, method), "__module__": cls.__module__}
    subclass: Any = new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(namespace))
    model.__class__ = subclass
    return model


_BY_METHOD: dict[str, Callable[[Any, str], Any]] = {
    "torch": _torch_method,
    "linen": _linen_method,
    "nnx": _nnx_method,
}


def _torch_runner(model: Any, target: Target) -> Runner:
    from migrate.parity.sides.torch.runner import TorchRunner

    if target.kind in _FLAX:
        raise TargetError(f"{target.shown}: is a torch module", f"leave {target.kind}: out")
    kind: Any = target.kind if target.kind in TORCH else "torch"
    return TorchRunner(model, kind, target.shown)


def _jax_runner(model: Any, kind: Literal["linen", "nnx", "jax"], target: Target) -> Runner:
    from migrate.parity.sides.jax.runner import JaxRunner

    start = _object(target.start) if target.start else None
    return JaxRunner(model, kind, target.shown, start)


def has_weights(folder: Path) -> bool:
    """Whether a Hugging Face folder holds weights besides its config.json."""
    return any(True for form in _TORCH_WEIGHTS for _ in folder.glob(form))


def untrained(folder: Path, seed: int) -> Any:
    """Build the transformers model of a folder's config, without reading the folder's weights.

    Raises:
        TargetError: the model cannot be built.
    """
    return _pretrained(folder, seed, trained=False)


def _pretrained(folder: Path, seed: int, trained: bool = True) -> Any:
    """Load the transformers model in a folder, of the class that its config names.

    Its weights are the folder's; without any, torch draws them from the seed.
    """
    if not (folder / "config.json").is_file():
        raise TargetError(
            f"{folder}: has no config.json", "name a Hugging Face folder, or file.py:factory"
        )
    try:
        import transformers

        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        named = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        if trained and has_weights(folder):
            return named.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        auto = named is transformers.AutoModel
        return _built(lambda: named.from_config(config) if auto else named(config), seed)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        raise TargetError(
            f"{folder}: the model cannot be loaded ({what})", "check the folder with transformers"
        ) from error
