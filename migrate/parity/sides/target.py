"""Target: the model that a user names as a side, as in `xla:model.py:build`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from converters.model import nearest, no_file
from migrate.parity.ground.errors import TargetError

# Files of `migrate port`: a package with a function that builds the model, and the outcome of each key.
PORT_FILES = ("__init__.py", "modeling.py")
PORT_MAPPING = "mapping.yaml"
# File that makes a folder a checkpoint of transformers.
_CHECKPOINT = "config.json"
_KINDS = ("torch", "xla", "tpu", "linen", "nnx", "jax", "port", "dump")


@dataclass(frozen=True)
class Target:
    """Side as the user named it.

    Attributes:
        kind: "torch", "xla" (the same torch module under torch_xla), "tpu" (the same under torch_tpu),
            "linen", "nnx", "jax" (a plain function, of (params, *inputs) if it has weights), "dump"; ""
            until it is loaded: the kind of the object decides.
        spec: `pkg.module:name`, `file.py:name`, a folder.
        shown: the text of the user.
        start: for a function's weights, the pytree, or a function that returns it; "": unknown.
        method: method of the model to compare instead of its forward; "": the forward.
    """

    kind: str
    spec: str
    shown: str
    start: str = ""
    method: str = ""


def parse_target(text: str) -> Target:
    """Parse `[KIND:]SPEC`. A folder that `migrate port` wrote is a port without its kind, too.

    A folder around a single port, such as the `--output` of `migrate port`, means that port.

    Raises:
        TargetError: nothing follows the kind, the file or folder does not exist, or no object in it is named.
    """
    kind, rest = "", text
    if (match := re.match(r"([a-z]+):(?!:)(.+)", text)) and match[1] in _KINDS:
        kind, rest = match[1], match[2]
    path = Path(rest)
    if not rest or (":" not in rest and not path.exists() and path.suffix != ".py"):
        near = _nearest_path(path) if rest else ""
        if near or kind in ("port", "dump") or path.name != rest:
            there = f"did you mean {text.removesuffix(rest)}{near}?" if near else "check the path"
            raise TargetError(f"{text} does not exist", there)
        raise TargetError(
            f"{text}: there is no such file or folder, and it names no model",
            "write file.py:factory, pkg.module:factory, or a folder; if its kind is unclear, put "
            "torch:, xla:, tpu:, linen:, nnx:, jax:, port: or dump: before the name",
        )
    file, colon, name = rest.partition(":")
    if colon and file.endswith(".py") and not Path(file).is_file():
        missing = no_file(Path(file))
        raise TargetError(missing.what, missing.remedy)
    if colon and not (file and name):
        advice = f"write {text}factory" if file else f"write file.py{text}"
        raise TargetError(
            f"{text} names {'a file, but no object in it' if file else 'no file'}", advice
        )
    if colon and is_port(Path(file)):
        raise TargetError(
            f"{text}: {file} is a folder of migrate port, which builds its own model",
            f"write {text.removesuffix(f':{name}')}",
        )
    if colon and kind in ("", "port") and is_model_of_port(file, name):
        return Target("port", str(Path(file).parent), text)
    if kind in ("", "port"):
        inner = ports_in(path)
        if len(inner) == 1 and not (path / _CHECKPOINT).exists():
            kind, rest = "port", str(inner[0])
        elif not kind and is_port(path):
            kind = "port"
    return Target(kind, rest, text)


def _nearest_path(path: Path) -> str:
    """Return the path beside it that a misspelt path was probably meant to be; "" if none is near."""
    if not path.parent.is_dir():
        return ""
    near = nearest(path.name, [beside.name for beside in path.parent.iterdir()])
    inner = ports_in(path.parent / near) if near else []
    return str(inner[0] if len(inner) == 1 else path.parent / near) if near else ""


def ports_in(folder: Path) -> list[Path]:
    """Return the ports directly in a folder that is none itself, such as the `--output` of `migrate port`."""
    if not folder.is_dir() or is_port(folder):
        return []
    return [inner for inner in sorted(folder.iterdir()) if is_port(inner)]


def is_port(folder: Path) -> bool:
    """Whether `migrate port` wrote this folder."""
    return all((folder / name).is_file() for name in (*PORT_FILES, PORT_MAPPING))


def is_model_of_port(file: str, name: str) -> bool:
    """Whether `file:name` names the model class of a port, which its package builds with its sizes."""
    path = Path(file)
    if path.name != PORT_FILES[1] or not is_port(path.parent):
        return False
    package = ast.parse((path.parent / PORT_FILES[0]).read_text())
    return any(
        isinstance(node, ast.ImportFrom) and node.module == path.stem and node.level == 1
        for node in package.body
        if name in {alias.name for alias in getattr(node, "names", ())}
    )


def plain_spec(text: str, kinds: Collection[str], needed: str) -> str:
    """Return what a user named, without its kind, which has to be one of `kinds`.

    Args:
        text: `[KIND:]SPEC`, or any other text, which stays as it is.
        kinds: permitted kinds.
        needed: what the command needs there, for the error.

    Raises:
        TargetError: the text begins with another kind.
    """
    match = re.match(r"([a-z]+):(?!:|//)(.+)", text)
    if match is None or match[1] not in _KINDS or Path(text).exists():
        return text
    if match[1] not in kinds:
        raise TargetError(
            f"{text}: {match[1]}: names no {needed}", f"name {needed}: file.py:factory"
        )
    return match[2]
