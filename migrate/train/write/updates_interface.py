"""`interface.py` of a program with several updates: its functions by torch's names, over a state."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from migrate.train.slice.text import FunctionNode, ScriptText
from migrate.train.write.interface import KEPT as KEPT_FILE
from migrate.train.write.interface import (
    WITHOUT_DROPOUT,
    Interface,
    by_name_text,
    rollout_texts,
    state_text,
)
from migrate.train.write.public import defined
from migrate.train.write.texts import ProgramFacts
from migrate.train.write.updates import UpdateFacts

_OWN = ("load", "weights", "loss_and_gradients", "step", "batches")
_ROLLOUTS = ("experience", "rollout")


def updates_interface_text(
    script: ScriptText,
    updates: Sequence[UpdateFacts],
    trained: Mapping[str, Sequence[str]],
    sources: Mapping[str, str],
    facts: ProgramFacts,
) -> Interface:
    """Write the interface.

    Args:
        script: the script.
        updates: the updates, in the order in which `site` numbers them.
        trained: update → names of the parameters that it trains, as torch has them.
        sources: text of `data.py` and `model.py`, by file name.
        facts: facts of the program: its rollouts.
    """
    names = [update.name for update in updates]
    modules = tuple(dict.fromkeys(m for update in updates for m in update.modules))
    imports, public, missing = _public(script, sources, {*_OWN, *_ROLLOUTS})
    own = [*_OWN, *(name for text in rollout_texts(facts) for name in defined(text))]
    sites = ", ".join(f"{number} is {name}" for number, name in enumerate(names))
    parts = [
        _HEAD.format(
            script=script.name.rpartition("/")[2],
            sites=sites,
            rollouts="import rollouts as _rollouts\n" if facts.starts else "",
            batches="from data import batches\n" if facts.rollouts else "",
            imports="\n".join(imports),
        ),
        "__all__ = [\n" + "".join(f"    {n!r},\n" for n in (*own, *sorted(public))) + "]",
        _constants(names, modules, trained),
        state_text(None, facts.starts),
        by_name_text(),
        _DRAWING if any(update.facts.draws for update in updates) else _PLAIN,
        _FUNCTIONS,
        "" if facts.rollouts else _BATCHES,
        *rollout_texts(facts),
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
    reasons = {
        "outputs": "the outputs of each update's model are not looked for, beside a second optimizer",
        **dict.fromkeys(
            missing, "the functions of a script with several optimizers are not ported"
        ),
    }
    return Interface(
        text, tuple(sorted(public)), tuple(f"{name}: {why}" for name, why in reasons.items())
    )


def _public(
    script: ScriptText, sources: Mapping[str, str], own: set[str]
) -> tuple[list[str], set[str], list[str]]:
    """Statements that import public names of the script, these names, and names without a counterpart."""
    public = {
        node.name: node
        for node in script.tree.body
        if isinstance(node, FunctionNode | ast.ClassDef) and node.name not in own
    }
    of_model = {
        name
        for name, node in defined(sources["model.py"]).items()
        if name in public and isinstance(node, ast.ClassDef)
    }
    of_data = {
        name
        for name, node in defined(sources["data.py"]).items()
        if name in public
        and name not in of_model
        and ast.unparse(node) == ast.unparse(public[name])
    }
    imports = [
        f"from {file} import {', '.join(sorted(names))}"
        for file, names in (("data", of_data), ("model", of_model))
        if names
    ]
    return imports, of_data | of_model, [n for n in public if n not in of_data | of_model]


def _constants(
    names: Sequence[str], modules: Sequence[str], trained: Mapping[str, Sequence[str]]
) -> str:
    lines = [
        "_HERE = Path(__file__).parent",
        "# Updates by their number, in the order in which the script makes them.",
        f"SITES = {tuple(names)!r}",
        "# Modules that the losses read.",
        f"MODULES = {tuple(modules)!r}",
        "# Parameters that each update trains: module.name, as torch has them.",
        "TRAINED = {",
    ]
    for name in names:
        lines += [f"    {name!r}: (", *(f"        {n!r}," for n in trained[name]), "    ),"]
    return "\n".join(
        [
            *lines,
            "}",
            "_folder = Path(tempfile.mkdtemp())",
            "atexit.register(shutil.rmtree, _folder, ignore_errors=True)",
            "# What the way back to torch needs beside the arrays: of the weights that were loaded last.",
            f'_kept = _HERE / "{KEPT_FILE}"',
        ]
    )


_HEAD = '''"""The program of {script} by torch's names: modules, parameters and their layouts.

A state is as `load` gives it. `site` is the number of an update: {sites}.
Dropout is off.
"""

import atexit
import contextlib
import shutil
import tempfile
from pathlib import Path

import data as _data
import jax
import jax.numpy as jnp
import numpy as np
{rollouts}import torch
import train as _train
from converters.conversion import convert
from converters.kept import kept_path
{batches}from flax import linen as nn
from safetensors.numpy import load_file, save_file
from torch_names import by_torch_names
{imports}'''

_PLAIN = """
_VALUE_AND_GRAD = _train.VALUE_AND_GRAD
"""

_DRAWING = f"""
{WITHOUT_DROPOUT}

def _undropped(loss_of):
    def loss(*arguments):
        with _without_dropout():
            return loss_of(*arguments)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


_VALUE_AND_GRAD = {{name: _undropped(update.loss_of) for name, update in _train.UPDATES.items()}}
"""

_FUNCTIONS = '''
def loss_and_gradients(state, batch, site=0):
    """The loss of a micro-batch of an update, and the gradients: module → name → array."""
    name = SITES[site]
    update = _train.UPDATES[name]
    others = {kind: update.part(tree) for kind, tree in state.variables.items()}
    inputs = update.inputs_of(_by_name(batch))
    (value, _), grads = _VALUE_AND_GRAD[name](update.part(state.params), others, inputs, _train.KEY)
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    named = _in_torch({**state.variables, "params": {**zeros, **grads}})
    gradients = {}
    for key in TRAINED[name]:
        module = next(m for m in MODULES if key.startswith(f"{m}."))
        own = key.removeprefix(f"{module}.")
        gradients.setdefault(module, {})[own] = named[module][own]
    return value, gradients


def step(state, micro, site=0, rollout=None):
    """One update of the weights over micro-batches; `rollout`, where they come from, is not read.

    Returns:
        The new state, and `losses` (one a micro-batch) and `learning_rate` (of the first group).
    """
    named = [_by_name(batch) for batch in micro]
    state, losses, rate = _train.train_step(state, SITES[site], named, _VALUE_AND_GRAD)
    return state, {"losses": losses, "learning_rate": rate}
'''

_BATCHES = '''
def batches():
    """Yield the micro-batches of each update, in the order of the script."""
    for name, micro in _data.batches():
        if name in SITES:
            yield micro
'''
