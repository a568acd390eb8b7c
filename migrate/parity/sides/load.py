"""From what a user names to a model that runs: the kind of a side is what its object is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from converters.errors import ConversionError
from converters.model import imported
from migrate.parity.ground.errors import TargetError
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.target import Target

_TORCH = ("torch", "xla")
_FLAX = ("linen", "nnx", "jax")
# What `migrate port` writes: the function that builds the model, in this file of its folder.
_PORT = ("model.py", "build")
_PORT_WEIGHTS = ("*.flax.safetensors", "*.safetensors", "*.msgpack")


def load_runner(target: Target, seed: int = 0) -> tuple[Runner, Path | None]:
    """Load the model that a user named.

    The module or file is imported and its factory called without arguments, torch's random numbers (or
    nnx's) seeded.

    Returns:
        It, and the file of weights that came with it (a folder of `migrate port`), if one did.

    Raises:
        TargetError: there is no such thing, it cannot be built, or it is no model.
    """
    if target.kind == "port":
        return _port(target, seed)
    if Path(target.spec).is_dir():
        return _torch_runner(_pretrained(Path(target.spec)), target), None
    found = _object(target.spec)
    if target.kind == "jax":
        return _jax_runner(found, "jax", target), None
    return _runner(_model(found, target, seed), target), None


def _port(target: Target, seed: int) -> tuple[Runner, Path]:
    folder, (file, name) = Path(target.spec), _PORT
    weights = next((one for form in _PORT_WEIGHTS for one in sorted(folder.glob(form))), None)
    if not (folder / file).is_file() or weights is None:
        raise TargetError(
            f"{folder}: is no folder of migrate port, it lacks {file} or weights",
            "name the folder that migrate port wrote",
        )
    inner = Target("", f"{folder / file}:{name}", target.shown)
    return _runner(_model(_object(inner.spec), inner, seed), inner), weights


def _object(spec: str) -> Any:
    location, _, name = spec.rpartition(":")
    if not location:
        raise TargetError(f"{spec}: names a file, but nothing in it", f"write {spec}:factory")
    try:
        with imported(spec, location) as module:
            return attrgetter(name)(module)
    except AttributeError:
        raise TargetError(f"{location}: has no {name}", "check the name") from None
    except ConversionError as error:
        raise TargetError(error.what, error.remedy) from error


def _model(found: Any, target: Target, seed: int) -> Any:
    """The model that the object is or builds; a function that takes inputs is one itself."""
    if _kind_of(found) or _takes_inputs(found):
        return found
    if not callable(found):
        raise TargetError(
            f"{target.shown}: is a {type(found).__name__}, no model and no function that builds one",
            "name a torch, linen or nnx module, or a function",
        )
    try:
        return _built(found, seed)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        raise TargetError(
            f"{target.shown}: building the model failed ({what})",
            "check that it can be built without arguments in the current directory",
        ) from error


def _built(factory: Callable[..., Any], seed: int) -> Any:
    import sys

    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)
    if "rngs" in _parameters(factory):
        from flax import nnx

        return factory(rngs=nnx.Rngs(seed))
    return factory()


def _takes_inputs(found: Any) -> bool:
    """Whether a function cannot be called without arguments: then it is what is compared."""
    if isinstance(found, type):
        return False
    required = [
        one
        for one in _parameters(found).values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    return bool([one for one in required if one.name != "rngs"])


def _parameters(found: Any) -> dict[str, inspect.Parameter]:
    # Of a class its own __init__: the metaclass of nnx takes anything.
    maker = found.__init__ if isinstance(found, type) else found  # type: ignore[misc]
    try:
        return dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):
        return {}


def _kind_of(model: Any) -> Literal["torch", "linen", "nnx", ""]:
    """What an object is, without importing a framework that it cannot be of."""
    for cls in type(model).__mro__:
        name = f"{cls.__module__}.{cls.__name__}"
        if name == "torch.nn.modules.module.Module":
            return "torch"
        if name == "flax.linen.module.Module":
            return "linen"
        if cls.__module__.startswith("flax.nnx") and cls.__name__ == "Module":
            return "nnx"
    if hasattr(model, "params_shape_tree") and hasattr(model, "module"):
        return "linen"  # transformers' FlaxPreTrainedModel, whose .module is the linen module
    return ""


def _runner(model: Any, target: Target) -> Runner:
    kind = _kind_of(model)
    wanted = target.kind
    if kind == "torch" and wanted in ("", *_TORCH):
        return _torch_runner(model, target)
    if kind in ("linen", "nnx") and wanted in ("", kind):
        return _jax_runner(
            getattr(model, "module", model) if kind == "linen" else model, kind, target
        )
    if not kind and callable(model) and wanted == "":
        return _jax_runner(model, "jax", target)
    is_a = {"torch": "a torch module", "": f"a {type(model).__name__}"}.get(
        kind, f"a {kind} module"
    )
    raise TargetError(
        f"{target.shown}: is {is_a}, not what {wanted or 'a side'} needs",
        "name a torch module for torch: and xla:, a Flax one for linen: and nnx:, a function for jax:",
    )


def _torch_runner(model: Any, target: Target) -> Runner:
    from migrate.parity.sides.torch.runner import TorchRunner

    if target.kind in _FLAX:
        raise TargetError(f"{target.shown}: is a torch module", f"leave {target.kind}: out")
    return TorchRunner(model, "xla" if target.kind == "xla" else "torch", target.shown)


def _jax_runner(model: Any, kind: Literal["linen", "nnx", "jax"], target: Target) -> Runner:
    from migrate.parity.sides.jax.runner import JaxRunner

    return JaxRunner(model, kind, target.shown)


def _pretrained(folder: Path) -> Any:
    """The transformers model in a folder, of the class that its config names, with its weights."""
    if not (folder / "config.json").is_file():
        raise TargetError(
            f"{folder}: has no config.json", "name a Hugging Face folder, or file.py:factory"
        )
    try:
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        named = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        model = named.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        raise TargetError(
            f"{folder}: the model cannot be loaded ({what})", "check the folder with transformers"
        ) from error
    return model
