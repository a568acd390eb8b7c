"""`interface.py` of a program with several updates: its functions by torch's names, over a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import MODULE, SeenCall
from migrate.train.watch.step import class_name
from migrate.train.write.functions import FunctionTexts, Role
from migrate.train.write.interface import KEPT as KEPT_FILE
from migrate.train.write.interface import (
    WITHOUT_DROPOUT,
    FunctionGroup,
    Interface,
    OutputPath,
    all_text,
    by_name_text,
    helped_by,
    helpers_text,
    missing_rollouts,
    outputs_text,
    rollout_texts,
    state_text,
)
from migrate.train.write.public import PublicNames, Sources, defined, own_names
from migrate.train.write.split import functions_class
from migrate.train.write.texts import ProgramFacts
from migrate.train.write.updates import UpdateFacts


@dataclass(frozen=True)
class InterfaceFacts:
    """Facts of one update on which the interface depends.

    Attributes:
        update: facts of its texts.
        loss: the statements of its loss.
        recorded: the record.
        trained: names of the parameters that it trains, as torch has them.
        roles: functions that train, by qualified name.
        outputs: where its step has each recorded output; None: nowhere.
        failed: why nobody could look for them; empty: somebody did.
        differs: methods that give other values than the script's functions.
        tops: names of the top level of the parameters, by module.
    """

    update: UpdateFacts
    loss: LossSlice
    recorded: Mapping[str, Any]
    trained: Sequence[str]
    roles: Mapping[str, Role]
    outputs: Sequence[OutputPath | None]
    failed: str
    differs: frozenset[str]
    tops: Mapping[str, Sequence[str]]


def updates_interface_text(
    script: ScriptText,
    updates: Sequence[InterfaceFacts],
    sources: Mapping[str, str],
    facts: ProgramFacts,
) -> Interface:
    """Write the interface.

    Args:
        script: the script.
        updates: the updates, in the order in which `site` numbers them.
        sources: text of `data.py` and `model.py`, by file name.
        facts: facts of the program: its rollouts.
    """
    names = [of.update.name for of in updates]
    modules = tuple(dict.fromkeys(m for of in updates for m in of.update.modules))
    missing = _missing_outputs(updates)
    files = Sources(defined(sources["data.py"]), defined(sources["model.py"]), {})
    groups = _groups(updates)
    functions = [function for group in groups for function in group.functions]
    texts = FunctionTexts(
        script,
        functions,
        merged_roles([of.roles for of in updates]),
        tuple(dict.fromkeys(r for of in updates for r, _ in of.update.facts.inputs.values())),
        files.data,
        {name: part for of in updates for name, part in of.loss.unpacked.items()},
        rollouts=facts.starts,
        updates=names,
    )
    recorded = {
        "children": {n: cls for of in updates for n, cls in of.recorded["children"].items()},
        "constructors": {
            n: built for of in updates for n, built in of.recorded["constructors"].items()
        },
        "calls": (),
        "functions": functions,
        "function_classes": {group.title: group.config for group in groups if group.functions},
    }
    public = PublicNames(script, updates[0].loss, facts, recorded, files, texts).write()
    own = [name for name in own_names(facts) if not missing or name != "outputs"]
    missing += [f"{name}: {why}" for name, why in public.missing.items()]
    missing += missing_rollouts(facts)
    tops = {name: tops for of in updates for name, tops in of.tops.items()}
    helped = helped_by(public.functions)
    draws = any(of.update.facts.draws for of in updates)
    parts = [
        _HEAD.format(
            script=script.name.rpartition("/")[2],
            sites=", ".join(f"{number} is {name}" for number, name in enumerate(names)),
            rollouts="import rollouts as _rollouts\n" if facts.starts else "",
            batches="from data import batches\n" if facts.rollouts else "",
            imports="\n".join(public.imports),
        ),
        all_text((*own, *sorted(public.names))),
        _constants(names, modules, {of.update.name: of.trained for of in updates}),
        state_text(None, facts.starts),
        by_name_text(),
        _DRAWING if draws else _PLAIN,
        _FUNCTIONS,
        _outputs_text(updates, draws=draws) if "outputs" in own else "",
        "" if facts.rollouts else _BATCHES,
        *rollout_texts(facts),
        *([helpers_text(groups, tops, several=True)] if helped else ()),
        *public.functions,
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
    unlike = [
        f"{name}: functions.py gives other values than the script"
        for name in sorted(frozenset[str]().union(*(of.differs for of in updates)))
    ]
    failed = next((of.failed for of in updates if of.failed), "")
    return Interface(text, tuple(sorted(public.names)), (*missing, *unlike), failed)


def _missing_outputs(updates: Sequence[InterfaceFacts]) -> list[str]:
    """Return the reason for which no function gives outputs; empty if there is a function."""
    for of in updates:
        if None in of.outputs or not of.outputs:
            nowhere = "no layer of the program gives an output of the script's modules"
            return [f"outputs: {of.update.name}: {of.failed or nowhere}"]
    return []


def _groups(updates: Sequence[InterfaceFacts]) -> list[FunctionGroup]:
    """Functions of the script by the step whose methods they are: of several steps the first."""
    known: set[str] = set()
    groups = []
    for of in updates:
        own = [
            function
            for function in of.recorded["functions"]
            if function.method not in of.differs
            and not {function.qualified, function.method} & known
        ]
        known |= {name for function in own for name in (function.qualified, function.method)}
        title = class_name(of.update.name)
        groups.append(FunctionGroup(functions_class(title), f"{title}Config", of.update.facts, own))
    return groups


def merged_roles(roles: Sequence[Mapping[str, Role]]) -> dict[str, Role]:
    """Functions that train: those that have the same part in each update that they make.

    Args:
        roles: those of each update, by qualified name.
    """
    merged: dict[str, Role] = {}
    for name in dict.fromkeys(name for of in roles for name in of):
        own = [(site, of[name]) for site, of in enumerate(roles) if name in of]
        if len({role.kind for _, role in own}) == 1:
            (_, first), *_ = own
            call = _merged_call([role.call for _, role in own])
            merged[name] = replace(first, call=call, sites=tuple(site for site, _ in own))
    return merged


def _merged_call(calls: Sequence[SeenCall]) -> SeenCall:
    """A call as all updates know it: a module that one of them has, and what is alike in all."""
    first, *others = calls
    arguments = dict(first.arguments)
    for other in others:
        for name, (kind, value) in other.arguments.items():
            known = arguments.get(name, ("other", None))
            if kind == MODULE and not known[1]:
                arguments[name] = (kind, value)
            elif known[0] != MODULE and known != (kind, value):
                arguments[name] = ("other", None)
    held = dict.fromkeys(name for call in calls for name in call.held)
    return replace(first, arguments=arguments, held=tuple(held))


def _outputs_text(updates: Sequence[InterfaceFacts], *, draws: bool) -> str:
    """Text of `outputs`."""
    forms = any(of.update.facts.forms for of in updates)
    lines = []
    for of in updates:
        facts, name = of.update.facts, of.update.name
        options = []
        if facts.takes_mode:
            options.append(f'"deterministic": {not facts.training}')
        if facts.draws:
            keys = ", ".join(f'"{s}": jax.random.key({n})' for n, s in enumerate(facts.streams))
            options.append(f'"rngs": {{{keys}}}')
        paths = "".join(f"            {path!r},\n" for path in of.outputs)
        lines.append(
            f"    (\n        _loss.{name.upper()}_STEP,\n        {{{', '.join(options)}}},\n"
            f"        [\n{paths}        ],\n    ),\n"
        )
    within = "_without_dropout()" if draws else "contextlib.nullcontext()"
    return f"""
# Of each update the step, its options, and where Flax captures the output of each call of a module.
_STEPS = [
{"".join(lines)}]


@functools.partial(jax.jit, static_argnums=0)
def _captured(site, params, variables, inputs):
    step, options, places = _STEPS[site]
    with {within}:
        _, more = step.apply(
            {{**variables, "params": params}},
            **inputs,
            **options,
            mutable=["intermediates", "batch_stats"],
            capture_intermediates=lambda module, name: name != "setup",
        )
{outputs_text("places", forms=forms)}    update = _train.UPDATES[SITES[site]]
    others = {{kind: update.part(tree) for kind, tree in state.variables.items()}}
    return _captured(site, update.part(state.params), others, update.inputs_of(_by_name(batch)))
"""


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
import functools
import inspect
import shutil
import tempfile
from pathlib import Path

import data as _data
import jax
import jax.numpy as jnp
import loss as _loss
import model as _model
import numpy as np
import optimizer as _optimizer
{rollouts}import torch
import train as _train
from converters.conversion import convert
from converters.kept import kept_path
from converters.reverse import by_torch_names
{batches}from flax import linen as nn
from safetensors.numpy import load_file, save_file
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
