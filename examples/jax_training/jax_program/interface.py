"""The program of before.py by torch's names: modules, parameters and their layouts.

Where a function of the script takes the model, it takes a state here, as `load` gives it.
Dropout is off in `outputs`, `loss_and_gradients` and `step`.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import data as _data
import jax
import loss as _loss
import model as _model
import numpy as np
import torch
import train as _train
from converters.conversion import convert
from converters.kept import kept_path
from converters.reverse import by_torch_names
from data import batches, make_dataset
from safetensors.numpy import load_file, save_file

__all__ = [
    "load",
    "weights",
    "outputs",
    "loss_and_gradients",
    "step",
    "batches",
    "ToyModel",
    "_mp_fn",
    "make_dataset",
]


_HERE = Path(__file__).parent
# Modules that the loss reads.
MODULES = ("ddp_model",)
# Entries of their state dicts that have no gradient: buffers, frozen and tied ones.
WITHOUT_GRADIENT = set()
# Where Flax captures the output of each call of a trained module.
_OUTPUTS = [
    ("ddp_model", "__call__", 0),
]
# Parts of modules that hold nothing beside them. Weights may have these names instead; then
# gradients have them too, and outputs are those of the parts.
PARTS = {"net1": "ddp_model.net1", "net2": "ddp_model.net2"}
_modules = {name: name for name in MODULES}
_OUTPUTS_OF_PARTS = [("ddp_model", "net1", "__call__", 0), ("ddp_model", "__call__", 0)]
_folder = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
# What the way back to torch needs beside the arrays: of the weights that were loaded last.
_kept = _HERE / "params.torch.safetensors"


def load(weights):
    """A fresh state with these weights, a new optimizer, at step 0.

    Args:
        weights: module → name → array, as torch's state dict of the module has them. Modules that the loss
            does not read are left out.
    """
    global _kept, _modules
    names = {name: name for name in MODULES if name in weights}
    names |= {name: PARTS[name] for name in PARTS if PARTS[name].partition(".")[0] not in names}
    _modules = {name: place for name, place in names.items() if name in weights}
    missing = [name for name in names if name not in weights]
    held = {place.partition(".")[0] for place in names.values()}
    missing += [name for name in MODULES if name not in held]
    if missing:
        raise KeyError(f"no weights of the module {missing[0]}")
    named = {
        f"{place}.{name}": torch.tensor(np.asarray(array))
        for module, place in _modules.items()
        for name, array in weights[module].items()
    }
    source, output = (_folder / f"weights.{end}" for end in ("pt", "safetensors"))
    torch.save(named, source)
    convert(source, mapping=_HERE / "mapping.yaml", output=output, overwrite=True)
    _kept = kept_path(output)
    # Arrays that are no weights of the script stay the program's own.
    save_file({**load_file(_train.PARAMS), **load_file(output)}, output)
    return _train.load(output)


def _in_torch(tree):
    named = {}
    for name, array in by_torch_names(tree, _kept).items():
        module, place = next((m, p) for m, p in _modules.items() if name.startswith(f"{p}."))
        named.setdefault(module, {})[name.removeprefix(f"{place}.")] = array
    return named


def _require(name, value, expected):
    """Require the value that the program was written for: it is a number in its files."""
    if value != expected:
        raise ValueError(f"the program is written for {name}={expected!r}, not {value!r}")


def _one_loss(site):
    if site != 0:
        raise ValueError("the program has one loss: site is 0")


def weights(state):
    """Weights of a state: module → name → array, as torch's state dict has them."""
    return _in_torch({"params": state.params, **state.variables})


def _by_name(batch):
    """The batch by the names in the loss: `name` for a key `function:name`."""
    return {name.rpartition(":")[2]: value for name, value in batch.items()}


def _inputs(batch):
    named = _by_name(batch)
    return {name: named[name] for name in ("inputs", "labels")}


_loss_of, _value_and_grad = _loss.loss_of, _train.value_and_grad


@jax.jit
def _captured(params, variables, inputs):
    _, more = _loss.STEP.apply(
        {**variables, "params": params},
        **inputs,
        mutable=["intermediates"],
        capture_intermediates=lambda module, name: name != "setup",
    )
    found = []
    for path in (*_OUTPUTS, *_OUTPUTS_OF_PARTS):
        value = more["intermediates"]
        for key in path:
            value = value[key]
        found.append(value)
    return found


def outputs(state, batch, site=0):
    """What each outermost call of a trained module gives in the loss of a batch, in order."""
    _one_loss(site)
    every = _captured(state.params, state.variables, _inputs(batch))
    count = len(_OUTPUTS)
    return every[count:] if set(_modules) & set(PARTS) else every[:count]


def loss_and_gradients(state, batch, site=0):
    """The number on which before.py calls backward, and the gradients: module → name → array."""
    _one_loss(site)
    value, grads = _value_and_grad(state.params, state.variables, _inputs(batch))
    named = _in_torch({**state.variables, "params": grads})
    return value, {
        module: {
            n: x for n, x in arrays.items() if f"{_modules[module]}.{n}" not in WITHOUT_GRADIENT
        }
        for module, arrays in named.items()
    }


def step(state, micro, site=0, rollout=None):
    """One update of the weights over micro-batches.

    Returns:
        The new state, and `losses` (one a micro-batch) and `learning_rate` (of the first group).
    """
    _one_loss(site)
    if rollout is not None:
        raise ValueError("the program has no rollouts: rollout is None")
    state, losses, rate = _train.train_step(state, [_inputs(batch) for batch in micro])
    return state, {"losses": losses, "learning_rate": rate}


# Names of each module in the parameters.
MODULES_IN_FLAX = {"ddp_model": ["ddp_model"]}


@functools.cache
def _fresh():
    """The state with which the script starts."""
    return _train.load()


def ToyModel():
    """The module `ToyModel` in Flax, without weights."""
    return _model.ToyModel()


def _mp_fn(rank, world_size):
    """`_mp_fn`: the whole training, on the batches of the program.

    Returns the trained state.
    """
    _require("rank", rank, 0)
    _require("world_size", world_size, 1)
    state = _fresh()
    for micro in _data.batches():
        state = _train.train_step(state, micro)[0]
    return state
