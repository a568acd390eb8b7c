"""Saves and loads of safetensors, by functions that come into the script.

safetensors tells weights that modules share by the address of their memory, which tensors of XLA do not have:
`save_model` and `load_model` raise. The functions tell them by what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.values.saved import OF_SAFETENSORS
from migrate.rewrite.edits.nodes import with_args

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

LOAD = "safetensors.torch.load_model"
SAVE_FILE = '''\
def save_tensors(tensors, path, metadata=None):
    """Write a safetensors file from {first}; all replicas call it."""
    on_host = {{name: value.cpu() for name, value in tensors.items()}}
    if {test}:
        {safetensors}.save_file(on_host, path, metadata)
'''
SAVE_MODEL = '''\
def save_weights(model, path, metadata=None):
    """Write a safetensors file of a model from {first}; all replicas call it."""
    weights, names, metadata = {{}}, {{}}, dict(metadata or {{}})
    for name, value in sorted(model.state_dict(keep_vars=True).items()):
        first = names.setdefault(id(value), name)
        if first == name:
            weights[name] = value.detach()
        else:
            metadata[name] = first  # shared: written once, as safetensors does
    on_host = {{name: value.cpu() for name, value in weights.items()}}
    if {test}:
        {safetensors}.save_file(on_host, path, metadata or None)
'''
LOAD_MODEL = '''\
def load_weights(model, path, strict=True):
    """Load a safetensors file into a model; weights that modules share may be in it once."""
    weights, names = {safetensors}.load_file(path), {{}}
    for name, value in sorted(model.state_dict(keep_vars=True).items()):
        first = names.setdefault(id(value), name)
        if first in weights:
            weights.setdefault(name, weights[first])
    return model.load_state_dict(weights, strict=strict)
'''
FIRST = {False: "the first replica", True: "the first replica of each host"}


def as_safetensors_save(
    call: cst.Call, local: bool, context: Workspace
) -> tuple[str, Callable[[cst.Call], cst.Call]]:
    """Return the function that saves what `call` does, and the edit of `call` into a call of it.

    Args:
        call: a call of safetensors.torch.save_file or save_model.
        local: whether the first replica of every host writes.
        context: the script.
    """
    of_model = context.qualified_name(call.func) == "safetensors.torch.save_model"
    definition = (SAVE_MODEL if of_model else SAVE_FILE).format(
        first=FIRST[local],
        test=context.vocabulary.write("is first here" if local else "is first"),
        safetensors=context.imports.require("safetensors.torch"),
    )
    name = "save_weights" if of_model else "save_tensors"
    if local:
        name, definition = f"{name}_here", definition.replace(f"def {name}(", f"def {name}_here(")
    name = context.definitions.require(name, definition)
    return name, _renamed(name, frozenset({"force_contiguous"}), 3)


def as_load(context: Workspace) -> Callable[[cst.Call], cst.Call]:
    """Return the edit of `call`, a call of safetensors.torch.load_model, to load on the host."""
    safetensors = context.imports.require("safetensors.torch")
    name = context.definitions.require("load_weights", LOAD_MODEL.format(safetensors=safetensors))
    return _renamed(name, frozenset({"device"}), 3)


def _renamed(name: str, gone: frozenset[str], most: int) -> Callable[[cst.Call], cst.Call]:
    """Return the edit of a call into one of `name`, without `gone` and what is past `most` positions."""

    def replace(updated: cst.Call) -> cst.Call:
        args = []
        for number, arg in enumerate(updated.args):
            key = arg.keyword.value if arg.keyword is not None else ""
            if key in gone or (not key and number >= most):
                continue
            if key in ("filename", "tensors"):
                key = "path" if OF_SAFETENSORS[key] == "f" else key
                arg = arg.with_changes(keyword=cst.Name(key))
            args.append(arg)
        return with_args(updated, args).with_changes(func=cst.Name(name))

    return replace
