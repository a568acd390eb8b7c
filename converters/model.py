"""Building the torch model whose tree of modules says what each key of a checkpoint is.

It is built on the meta device where possible: shapes, kinds and ties without memory for weights.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from converters.checkpoint.source import Source, file_names
from converters.errors import ModelLoadError
from converters.installing import is_installed, missing_behind, missing_error

_FORMS = "write it as pkg.mod:factory or path/file.py:factory"
_BUILDABLE = "check that it can be built without arguments in the current directory"
# What timm's factory is told of a file, and which of its arguments would have it load weights.
_TIMM_TOLD = (
    "num_classes",
    "global_pool",
    "input_size",
    "fixed_input_size",
    "first_conv",
    "classifier",
)
_TIMM_LOADS = (
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
)
# The entry of a config.json that names classes in the folder itself.
_OWN_CODE = "auto_map"
_NAME_IT = "pass --model with the class that the checkpoint was saved from"
_OR_TRUST = f"{_NAME_IT}; or, of code that you have read, --trust-remote-code"


def load_model(spec: str) -> Any:
    """The `nn.Module` that a user names; its weights may be on the meta device.

    The module or file is imported, which runs its top-level code, with the current directory (or
    the file's folder) importable as for a script.

    Args:
        spec: `pkg.mod:factory` or `path/file.py:factory`; the factory is an `nn.Module` class or a
            function, called without arguments, or with those that stand behind it (`split_call`).

    Raises:
        ModelLoadError: the module or attribute is not found, the factory raised, or what it gave is
            not an `nn.Module`.
        MissingDependencyError: torch is not installed.
    """
    named, args, kwargs = split_call(spec)
    location, _, name = named.rpartition(":")
    if not location or not name:
        raise ModelLoadError(f"{spec!r} does not name a model", _FORMS)
    with imported(spec, location) as module:
        try:
            factory = attrgetter(name)(module)
        except AttributeError:
            raise ModelLoadError(f"{location} has no {name}", _FORMS) from None
        if args or kwargs:
            factory = functools.partial(factory, *args, **kwargs)
        return require_module(spec, factory if _is_module(factory) else build(spec, factory))


def split_call(spec: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """What is named, and the arguments that it is to be called with: `pkg.mod:Net(10, width=64)`.

    Only literals are arguments; nothing is evaluated.

    Raises:
        ModelLoadError: the arguments are no literals.
    """
    name, opened, inner = spec.partition("(")
    if not opened:
        return spec, (), {}
    try:
        call = ast.parse(f"f({inner}", mode="eval").body
        assert isinstance(call, ast.Call)
        args = tuple(ast.literal_eval(one) for one in call.args)
        kwargs = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (SyntaxError, ValueError, AssertionError):
        raise ModelLoadError(
            f"{spec!r}: its arguments are no literals", "write it as pkg.mod:Net(10, width=64)"
        ) from None
    return name, args, kwargs


@contextmanager
def imported(where: str, location: str) -> Iterator[ModuleType]:
    """The user's module or file, run; what is beside it can be imported as long as this lasts.

    Args:
        where: what to call it in an error.
        location: `pkg.mod` or `path/file.py`.

    Raises:
        ModelLoadError: it is not there, or raised.
    """
    is_file = location.endswith(".py")
    with _importable(Path(location).resolve().parent if is_file else Path.cwd()):
        yield _run(where, "importing", lambda: _import(location, is_file))


def load_config_model(folder: Source, *, trust_remote_code: bool = False) -> Any:
    """The model that a Hugging Face folder's `config.json` describes, of transformers or of timm.

    Of transformers its class is the first of `architectures`, else AutoModel's choice. Nothing is downloaded.

    Args:
        folder: of this machine, a hub, a bucket or a server.
        trust_remote_code: run the code in the folder that its `auto_map` names, where it names any; else
            none of it is run.

    Returns:
        The model; None: it describes none that is known (`what_it_describes` says what).

    Raises:
        ModelLoadError: the configuration is damaged, or transformers does not know the model.
        MissingDependencyError: torch or transformers is not installed.
    """
    _torch()
    where = f"{folder}/config.json"
    values = _run(where, "reading", lambda: _values(folder), f"mend it, or {_NAME_IT}")
    if _is_of_timm(values):
        return _timm_model(where, values) if is_installed("timm") else None
    try:
        import transformers
    except ImportError:
        raise missing_error("transformers", needed_by=where) from None
    if trust_remote_code and _OWN_CODE in values:
        return _own_model(where, folder, values)
    config = _run(where, "reading", lambda: _config(folder, values), f"mend it, or {_NAME_IT}")
    if config is None:
        return None
    names = config.architectures or []
    if not names:
        return build(where, lambda: transformers.AutoModel.from_config(config))
    cls = getattr(transformers, names[0], None)
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise ModelLoadError(
            f"{where} names the architecture {names[0]}, which transformers "
            f"{transformers.__version__} does not have",
            _OR_TRUST if _OWN_CODE in values else _NAME_IT,
        )
    return build(where, lambda: cls(config))


def has_own_code(folder: Source) -> bool:
    """Whether a `config.json` names classes in the folder itself, which no library has."""
    return _OWN_CODE in _values(folder)


def _own_model(where: str, folder: Source, values: Mapping[str, Any]) -> Any:
    """The model as the folder's own code makes it, which is run."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    own = {kind: name for kind, name in values[_OWN_CODE].items() if isinstance(name, str)}
    wanted = next(iter(values.get("architectures") or ()), None)
    models = [name for kind, name in own.items() if kind.startswith("AutoModel")]
    named = next((name for name in models if name.rpartition(".")[2] == wanted), None)
    named = named or own.get("AutoModel") or next(iter(models), None)
    if named is None:
        raise ModelLoadError(f"{where} names no class of a model in its auto_map", _NAME_IT)
    with _code_of(folder) as near:

        def classes() -> tuple[Any, Any]:
            config = AutoConfig.from_pretrained(near, trust_remote_code=True, local_files_only=True)
            return config, get_class_from_dynamic_module(named, near, local_files_only=True)

        config, cls = _run(where, "reading", classes, f"mend it, or {_NAME_IT}")
        return build(where, lambda: cls(config))


@contextmanager
def _code_of(folder: Source) -> Iterator[Path]:
    """A copy of the folder's code and configuration; its name is that of a module that can be imported."""
    with TemporaryDirectory() as made:
        near = Path(made) / re.sub(r"\W", "_", folder.name)
        near.mkdir()
        for name in file_names(folder):
            if name == "config.json" or name.endswith(".py"):
                (near / name).parent.mkdir(parents=True, exist_ok=True)
                (near / name).write_bytes((folder / name).read_bytes())
        yield near


def what_it_describes(folder: Source) -> str:
    """What a `config.json` describes of which `load_config_model` makes no model, for the user."""
    of_timm = _is_of_timm(_values(folder))
    what = (
        "describes a model of timm, which is not installed" if of_timm else "names no known model"
    )
    return f"{folder}/config.json {what}"


def _values(folder: Source) -> dict[str, Any]:
    values = json.loads((folder / "config.json").read_bytes())
    if not isinstance(values, dict):
        raise ModelLoadError(f"{folder}/config.json does not describe a model", _NAME_IT)
    return values


def _is_of_timm(values: Mapping[str, Any]) -> bool:
    """Whether timm wrote it: it calls the name of a function of its own the architecture."""
    name = values.get("architecture")
    return "model_type" not in values and isinstance(name, str) and name.isidentifier()


def _timm_model(where: str, values: Mapping[str, Any]) -> Any:
    """The model as timm itself makes it of such a file; nothing is loaded."""
    timm = importlib.import_module("timm")
    told = dict(values.get("pretrained_cfg", values))
    told |= {"num_classes": values["num_classes"]} if "num_classes" in values else {}
    told = {name: told[name] for name in _TIMM_TOLD if name in told}
    given = values.get("model_args") or {}
    options = {name: value for name, value in given.items() if name not in _TIMM_LOADS}
    name = values["architecture"]
    return build(where, lambda: timm.create_model(name, pretrained_cfg=told, **options))


def _config(folder: Source, values: Mapping[str, Any]) -> Any:
    """The configuration of these values, None if they name no model; nothing is run or downloaded."""
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = values.get("model_type")
    own = _OWN_CODE in values
    if kind is None and not own:
        # Of an old folder on the disk that names no type, transformers tells it by other signs.
        try:
            return _of_folder(AutoConfig, folder) if isinstance(folder, Path) else None
        except ValueError:
            return None
    if kind not in CONFIG_MAPPING:
        code = " (its repository has code of its own, which is not run)" if own else ""
        raise ModelLoadError(
            f"{folder}/config.json: transformers has no model type {kind!r}{code}",
            _OR_TRUST if own else _NAME_IT,
        )
    if isinstance(folder, Path):
        return _of_folder(AutoConfig, folder)
    return CONFIG_MAPPING[kind].from_dict(values)


def _of_folder(auto: Any, folder: Path) -> Any:
    return auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def build(where: str, factory: Callable[[], Any]) -> Any:
    """Call a factory on the meta device; on the CPU if that is not possible.

    A constructor that reads values (`.item()`, `.tolist()`, loading weights) cannot run on meta.

    Raises:
        ModelLoadError: it raised on the CPU too.
        MissingDependencyError: torch is not installed.
    """
    torch = _torch()
    try:
        # Loading weights onto meta tensors does nothing and warns; only the tree is wanted here.
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return factory()
    except (Exception, SystemExit):
        return _run(where, "building", factory)


def require_module(where: str, model: Any) -> Any:
    """The model itself; `where` names it if it is none.

    Raises:
        ModelLoadError: it is not an `nn.Module`.
        MissingDependencyError: torch is not installed.
    """
    if not _is_module(model):
        raise ModelLoadError(f"{where} is a {type(model).__name__}, not an nn.Module", _FORMS)
    return model


def _is_module(value: Any) -> bool:
    return isinstance(value, _torch().nn.Module)


def _torch() -> ModuleType:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise missing_error("torch", needed_by="reading the tree of a torch model") from None


def _import(location: str, is_file: bool) -> ModuleType:
    if not is_file:
        return importlib.import_module(location)
    path = Path(location)
    if not path.is_file():
        raise FileNotFoundError(f"no file {location}")
    # A name of its own: the file must not replace an installed module of the same name.
    name = f"_converters_model_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being run
    module_spec.loader.exec_module(module)
    return module


def _run(where: str, doing: str, action: Callable[[], Any], hint: str = _BUILDABLE) -> Any:
    """Run what belongs to the user; whatever it raises (`sys.exit` too) is one line."""
    try:
        return action()
    except ModelLoadError:
        raise
    except (Exception, SystemExit) as error:
        if missing := missing_behind(error):
            raise missing from error
        raise ModelLoadError(
            f"{where}: {doing} the model failed ({type(error).__name__}: {str(error)[:200]})", hint
        ) from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have changed the path itself
            sys.path.remove(str(folder))
