"""Construction of the torch model whose module tree determines the kind of each key.

The model is built on the meta device if possible: shapes, kinds and ties without memory for
weights.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_IMPORTABLE = "run the command where these imports work, or mend the file"
_BUILDABLE = "check that it can be built without arguments in the current directory"
# Arguments of timm's factory that come from a file, and those that would make it load weights.
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
# What gives a module names that no statement of it shows: `globals()["Net"] = …`, `from nets import *`.
_NAMING = frozenset(("globals", "vars", "locals", "exec", "setattr", "*"))
# Names that an error lists.
_SHOWN = 8
# Entry of a config.json that names classes in the folder itself.
_OWN_CODE = "auto_map"
_NAME_IT = "pass --model with the class that the checkpoint was saved from"
_OR_TRUST = f"{_NAME_IT}; or, of code that you have read, --trust-remote-code"


def load_model(spec: str) -> Any:
    """Load the `nn.Module` named by the user; its weights may be on the meta device.

    The module or file is imported, which runs its top-level code. The current directory (or the
    file's folder) is importable, as for a script.

    Args:
        spec: `pkg.mod:factory` or `path/file.py:factory`; the factory is an `nn.Module` class or a
            function, called without arguments or with those after its name (`split_call`).

    Raises:
        ModelLoadError: the module or attribute is not found, the factory raised, or its result is
            not an `nn.Module`.
        MissingDependencyError: torch is not installed.
    """
    named, args, kwargs = split_call(spec)
    location, _, name = named.rpartition(":")
    if not location or not name:
        raise ModelLoadError(f"{spec!r} does not name a model", _FORMS)
    with imported(spec, location) as module:
        factory = named_object(module, location, name)
        if args or kwargs:
            factory = functools.partial(factory, *args, **kwargs)
        return require_module(spec, factory if _is_module(factory) else build(spec, factory))


def split_call(spec: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Split a spec into the name and the arguments of the call: `pkg.mod:Net(10, width=64)`.

    Arguments are literals; nothing is evaluated.

    Raises:
        ModelLoadError: the arguments are not literals.
    """
    name, opened, inner = spec.partition("(")
    if not opened:
        return spec, (), {}
    try:
        call = ast.parse(f"f({inner}", mode="eval").body
        assert isinstance(call, ast.Call)
        args = tuple(ast.literal_eval(argument) for argument in call.args)
        kwargs = {
            str(keyword.arg): ast.literal_eval(keyword.value)
            for keyword in call.keywords
            if keyword.arg
        }
    except (SyntaxError, ValueError, AssertionError):
        raise ModelLoadError(
            f"{spec!r}: its arguments are no literals", "write it as pkg.mod:Net(10, width=64)"
        ) from None
    return name, args, kwargs


@contextmanager
def imported(where: str, location: str) -> Iterator[ModuleType]:
    """Import and run the user's module or file; files beside it are importable within this context.

    Args:
        where: the name in errors.
        location: `pkg.mod` or `path/file.py`.

    Raises:
        ModelLoadError: the module is missing, or raised.
    """
    is_file = location.endswith(".py")
    with _importable(Path(location).resolve().parent if is_file else Path.cwd()):
        yield _run(where, "importing", lambda: _import(location, is_file), _IMPORTABLE)


def named_object(module: ModuleType, location: str, name: str) -> Any:
    """Return the object that the user named in a module or file; dots lead into classes.

    Args:
        module: the imported module.
        location: its name in errors.
        name: `factory` or `Class.factory`.

    Raises:
        ModelLoadError: there is no such object; the error names the nearest ones.
    """
    try:
        return attrgetter(name)(module)
    except AttributeError:
        first = name.partition(".")[0]
        missing = first if not hasattr(module, first) else name
        raise ModelLoadError(f"{location} has no {missing}", _choices(module, missing)) from None


def require_defined(spec: str) -> None:
    """Raise an error if the file of `path/file.py:factory` has no such name. Nothing is imported.

    Where the file gives names to its module in other ways than by its statements, nothing is raised.

    Raises:
        ModelLoadError: there is no such file, or no such name in it.
    """
    location, _, name = split_call(spec)[0].rpartition(":")
    file, first = Path(location), name.partition(".")[0]
    if file.suffix != ".py" or re.match(r"[a-z]+:", location):  # a kind: jax:net.py
        return
    if not file.is_file():
        raise no_file(file)
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # the import reports it
        return
    defined = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    others = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            others |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if first in (*defined, *others) or "__getattr__" in defined or others & _NAMING:
        return
    near = nearest(first, defined) or nearest(first, others)
    shown = f"it defines {', '.join(defined[:_SHOWN])}" if defined else "check the name"
    raise ModelLoadError(f"{location} has no {first}", f"did you mean {near}?" if near else shown)


def _choices(module: ModuleType, name: str) -> str:
    """Advice after a name that a module does not have: the names that the user may have meant."""
    own = [
        known
        for known, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    near = nearest(name, own) or nearest(name, vars(module))
    if near:
        return f"did you mean {near}?"
    shown = f"{', '.join(own[:_SHOWN])}{f' and {len(own) - _SHOWN} more' * (len(own) > _SHOWN)}"
    return f"it defines {shown}" if own else "check the name: it defines no class and no function"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that a misspelt name was probably meant to be; "" if none is near."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(names), 1)), "")


def load_config_model(folder: Source, *, trust_remote_code: bool = False) -> Any:
    """Build the model described by a Hugging Face folder's `config.json`, of transformers or timm.

    For transformers, its class is the first of `architectures`, otherwise AutoModel's choice.
    Nothing is downloaded.

    Args:
        folder: a folder of this machine, a hub, a bucket or a server.
        trust_remote_code: run the code in the folder that its `auto_map` names, if any; otherwise
            no code of it runs.

    Returns:
        The model; None if its type is unknown (`describe_config` describes it).

    Raises:
        ModelLoadError: the configuration is damaged, or transformers does not know the model.
        MissingDependencyError: torch or transformers is not installed.
    """
    _torch()
    where = f"{folder}/config.json"
    values = _run(where, "reading", lambda: _values(folder), f"fix it, or {_NAME_IT}")
    if _is_of_timm(values):
        return _timm_model(where, values) if is_installed("timm") else None
    try:
        import transformers
    except ImportError:
        raise missing_error("transformers", needed_by=where) from None
    if trust_remote_code and _OWN_CODE in values:
        return _own_model(where, folder, values)
    config = _run(where, "reading", lambda: _config(folder, values), f"fix it, or {_NAME_IT}")
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
    """Build the model with the folder's own code, which runs."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    class_names = {kind: name for kind, name in values[_OWN_CODE].items() if isinstance(name, str)}
    wanted = next(iter(values.get("architectures") or ()), None)
    models = [name for kind, name in class_names.items() if kind.startswith("AutoModel")]
    named = next((name for name in models if name.rpartition(".")[2] == wanted), None)
    named = named or class_names.get("AutoModel") or next(iter(models), None)
    if named is None:
        raise ModelLoadError(f"{where} names no class of a model in its auto_map", _NAME_IT)
    with _code_of(folder) as near:

        def classes() -> tuple[Any, Any]:
            config = AutoConfig.from_pretrained(near, trust_remote_code=True, local_files_only=True)
            return config, get_class_from_dynamic_module(named, near, local_files_only=True)

        config, cls = _run(where, "reading", classes, f"fix it, or {_NAME_IT}")
        return build(where, lambda: cls(config))


@contextmanager
def _code_of(folder: Source) -> Iterator[Path]:
    """Yield a copy of the folder's code and configuration, in a folder with an importable name."""
    with TemporaryDirectory() as folder_of_copy:
        near = Path(folder_of_copy) / re.sub(r"\W", "_", folder.name)
        near.mkdir()
        for name in file_names(folder):
            if name == "config.json" or name.endswith(".py"):
                (near / name).parent.mkdir(parents=True, exist_ok=True)
                (near / name).write_bytes((folder / name).read_bytes())
        yield near


def describe_config(folder: Source) -> str:
    """Describe a `config.json` for which `load_config_model` builds no model, for the user."""
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
    """Whether timm wrote the file: its architecture is the name of a timm function."""
    name = values.get("architecture")
    return "model_type" not in values and isinstance(name, str) and name.isidentifier()


def _timm_model(where: str, values: Mapping[str, Any]) -> Any:
    """Build the model as timm does from such a file; nothing is loaded."""
    timm = importlib.import_module("timm")
    config = dict(values.get("pretrained_cfg", values))
    config |= {"num_classes": values["num_classes"]} if "num_classes" in values else {}
    config = {name: config[name] for name in _TIMM_TOLD if name in config}
    arguments = values.get("model_args") or {}
    options = {name: value for name, value in arguments.items() if name not in _TIMM_LOADS}
    name = values["architecture"]
    return build(where, lambda: timm.create_model(name, pretrained_cfg=config, **options))


def _config(folder: Source, values: Mapping[str, Any]) -> Any:
    """Return the configuration of these values, or None if they name no model; nothing is run or
    downloaded."""
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = values.get("model_type")
    has_own_classes = _OWN_CODE in values
    if kind is None and not has_own_classes:
        # For an old local folder that names no type, transformers detects the type by other means.
        try:
            return _of_folder(AutoConfig, folder) if isinstance(folder, Path) else None
        except ValueError:
            return None
    if kind not in CONFIG_MAPPING:
        code = " (its repository has code of its own, which is not run)" if has_own_classes else ""
        raise ModelLoadError(
            f"{folder}/config.json: transformers has no model type {kind!r}{code}",
            _OR_TRUST if has_own_classes else _NAME_IT,
        )
    if isinstance(folder, Path):
        return _of_folder(AutoConfig, folder)
    return CONFIG_MAPPING[kind].from_dict(values)


def _of_folder(auto: Any, folder: Path) -> Any:
    return auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def build(where: str, factory: Callable[[], Any]) -> Any:
    """Call a factory on the meta device; on the CPU if that is not possible.

    A constructor that reads values (`.item()`, `.tolist()`, loading weights) cannot run on the meta
    device.

    Raises:
        ModelLoadError: the factory raised on the CPU too.
        MissingDependencyError: torch is not installed.
    """
    torch = _torch()
    try:
        # Loading weights onto meta tensors does nothing and warns; only the module tree is needed
        # here.
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return factory()
    except (Exception, SystemExit):
        return _run(where, "building", factory)


def require_module(where: str, model: Any) -> Any:
    """Return the model itself; `where` names it in the error.

    Raises:
        ModelLoadError: the model is not an `nn.Module`.
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
        return _import_module(location)
    path = Path(location)
    if not path.is_file():
        raise no_file(path)
    # A separate name: the file must not replace an installed module of the same name.
    name = f"_converters_model_{path.stem}"
    if in_package(path):
        name = f"{_package_around(path.parent)}.{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses look up their module while it runs
    module_spec.loader.exec_module(module)
    return module


def in_package(path: Path) -> str:
    """Return the dotted name of a file that can only be imported as a part of its package; "" for others.

    It has a statement `from .name import …`, with no `try` around it, and its folder has an `__init__.py`.
    """
    if not (path.parent / "__init__.py").is_file():
        return ""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # its import reports the error
        return ""
    if not any(isinstance(node, ast.ImportFrom) and node.level for node in statements):
        return ""
    names = [path.stem]
    folder = path.resolve().parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _package_around(folder: Path) -> str:
    """Import the package of a folder, with those around it, under a separate name; return that name."""
    around = folder.resolve().parent
    above = (
        f"{_package_around(around)}." if (around / "__init__.py").is_file() else "_converters_in_"
    )
    name = f"{above}{folder.resolve().name}"
    for known in [known for known in sys.modules if f"{known}.".startswith(f"{name}.")]:
        del sys.modules[known]  # of another folder of the same name
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return name


def _import_module(location: str) -> ModuleType:
    """Import a module by its name.

    Raises:
        ModelLoadError: it is not there, or one of the packages above it.
    """
    try:
        return importlib.import_module(location)
    except ModuleNotFoundError as error:
        if missing_behind(error) or not f"{location}.".startswith(f"{error.name}."):
            raise  # a module that it imports itself
        raise ModelLoadError(
            f"no module {location} in the current directory or among the installed packages",
            _FORMS,
        ) from None


def no_file(path: Path) -> ModelLoadError:
    """Return the error for a Python file that does not exist."""
    if not path.parent.is_dir():
        return ModelLoadError(f"no file {path}", f"there is no folder {path.parent}")
    near = nearest(path.stem, [file.stem for file in path.parent.glob("*.py")])
    remedy = f"did you mean {path.with_stem(near)}?" if near else "check the path"
    return ModelLoadError(f"no file {path}", remedy)


def _run(where: str, doing: str, action: Callable[[], Any], hint: str = _BUILDABLE) -> Any:
    """Run the user's code; whatever it raises (`sys.exit` too) becomes one line."""
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
