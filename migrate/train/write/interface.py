"""`interface.py` of a written program: its functions by torch's names, and public names of the script."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from migrate.train.optimizer.recorded import RecordedOptimizer
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.watch.functions import PortedFunction
from migrate.train.write.factor import UNSCALED
from migrate.train.write.functions import FunctionTexts, Role, helpers, parameter_names
from migrate.train.write.public import (
    EXPERIENCE,
    ROLLOUT,
    PublicNames,
    Sources,
    defined,
    own_names,
)
from migrate.train.write.texts import PARAMS, ProgramFacts

KEPT = PARAMS.replace(".safetensors", ".torch.safetensors")
OutputPath = tuple[str | int, ...]


# A function of every `interface.py` whose model has dropout.
WITHOUT_DROPOUT = '''\
@contextlib.contextmanager
def _without_dropout():
    """Make dropout the identity: two programs never draw the same masks."""
    original = nn.Dropout.__call__
    nn.Dropout.__call__ = lambda self, inputs, *args, **kwargs: inputs
    try:
        yield
    finally:
        nn.Dropout.__call__ = original
'''


@dataclass(frozen=True)
class Interface:
    """Source of `interface.py`.

    Attributes:
        text: the source.
        names: public names of the script in it.
        missing: public functions and classes of the script that are not in it, and functions of the program
            that could not be written, each with the reason.
        failed: why the outputs could not be looked for: the program does not run as it should.
    """

    text: str
    names: tuple[str, ...]
    missing: tuple[str, ...]
    failed: str = ""


def interface_text(
    script: ScriptText,
    loss: LossSlice,
    facts: ProgramFacts,
    recorded: Mapping[str, Any],
    trained: Collection[str],
    sources: Mapping[str, str],
    outputs: Sequence[OutputPath | None],
    failed: str = "",
    roles: Mapping[str, Role] | None = None,
    tops: Mapping[str, Sequence[str]] | None = None,
) -> Interface:
    """Write the interface.

    Args:
        script: the script.
        loss: the statements of the loss.
        facts: facts about the step.
        recorded: the recorded run.
        trained: names of the parameters that are trained, as torch has them.
        sources: text of `data.py`, `model.py` and `optimizer.py`, by file name.
        outputs: where the program has each recorded output; None: nowhere.
        failed: why nobody could look for them; empty: somebody did.
        roles: functions that train, by qualified name.
        tops: names of the top level of the parameters, by module.
    """
    missing: list[str] = []
    contained: Mapping[str, str] = recorded.get("contained", {})
    of_parts = outputs[len(recorded["outputs"]) :] if contained and not failed else ()
    outputs = outputs[: len(recorded["outputs"])] if contained and not failed else outputs
    if None in outputs or not outputs:
        nowhere = "no layer of the program gives the output of the script's model"
        missing.append(f"outputs: {failed or nowhere}")
    places = None if missing else [path for path in outputs if path is not None]
    files = Sources(*(defined(sources[name]) for name in ("data.py", "model.py", "optimizer.py")))
    functions = recorded.get("functions", ())
    batch = dict.fromkeys(root for root, _ in facts.inputs.values())
    texts = FunctionTexts(
        script,
        functions,
        roles or {},
        tuple(batch),
        files.data,
        loss.unpacked,
        rollouts=facts.starts,
        rates=_rates(recorded["optimizer"], files.optimizer),
    )
    written = PublicNames(script, loss, facts, recorded, files, texts).write()
    missing += [f"{name}: {why}" for name, why in written.missing.items()]
    modules = tuple(recorded["children"])
    without = sorted(name for name in recorded["state"] if name not in trained)
    taken = {} if facts.rollouts else recorded.get("taken", {})
    head = _head(facts, written.imports, bool(taken or facts.batch_names))
    own = [name for name in own_names(facts) if places is not None or name != "outputs"]
    missing += missing_rollouts(facts)
    groups = [FunctionGroup("Functions", "StepConfig", facts, functions)]
    parts = [
        head,
        all_text((*own, *sorted(written.names))),
        _constants(modules, without, places, contained, of_parts),
        _batches_text(taken, facts.batch_names),
        state_text(_averaged(facts, recorded, trained), facts.starts, contained),
        by_name_text(taken),
        _INPUTS_BY_NAME.format(names=tuple(facts.inputs)) if facts.same_names else _INPUTS,
        _apart(facts, places, contained),
        *rollout_texts(facts),
        *([helpers_text(groups, tops or {})] if helped_by(written.functions) else ()),
        *written.functions,
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
    return Interface(text, tuple(sorted(written.names)), tuple(missing), failed)


def _rates(
    optimizer: RecordedOptimizer, written: Mapping[str, ast.stmt]
) -> dict[int, tuple[str, list[str]]]:
    """First lines of functions of learning rates, with their names and parameters in `optimizer.py`."""
    functions = {f.line: f.name for s in optimizer.schedules for f in s.functions}
    return {
        line: (name, parameter_names(own))
        for line, name in functions.items()
        if isinstance(own := written.get(name), ast.FunctionDef)
    }


# ---------------------------------------------------------------------------- functions of every program


def _head(facts: ProgramFacts, imports: Sequence[str], moved: bool) -> str:
    own = "\n".join(imports)
    imported = "import rollouts as _rollouts\n" if facts.starts else ""
    return f'''"""The program of {facts.script} by torch's names: modules, parameters and their layouts.

Where a function of the script takes the model, it takes a state here, as `load` gives it.
Dropout is off in `outputs`, `loss_and_gradients` and `step`.
"""

import atexit
import contextlib
import functools
import inspect
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import data as _data
import loss as _loss
import model as _model
import numpy as np
import optimizer as _optimizer
{imported}import torch
import train as _train
from converters.conversion import convert
from converters.kept import kept_path
from converters.reverse import by_torch_names
{"" if moved else "from data import batches"}
from flax import linen as nn
from safetensors.numpy import load_file, save_file
{own}'''


def all_text(names: Sequence[str]) -> str:
    """The names for others: imports among them are there to be imported again."""
    return "\n".join(["__all__ = [", *(f"    {name!r}," for name in names), "]"])


def _constants(
    modules: Sequence[str],
    without: Sequence[str],
    places: Sequence[OutputPath] | None,
    contained: Mapping[str, str],
    of_parts: Sequence[OutputPath | None],
) -> str:
    lines = [
        "_HERE = Path(__file__).parent",
        "# Modules that the loss reads.",
        f"MODULES = {tuple(modules)!r}",
        "# Entries of their state dicts that have no gradient: buffers, frozen and tied ones.",
        "WITHOUT_GRADIENT = {",
        *(f"    {name!r}," for name in without),
        "}" if without else "",
    ]
    if not without:
        lines = [*lines[:-2], "WITHOUT_GRADIENT = set()"]
    if places is not None:
        lines += [
            "# Where Flax captures the output of each call of a trained module.",
            "_OUTPUTS = [",
            *(f"    {path!r}," for path in places),
            "]",
        ]
    if contained:
        known = () if None in of_parts else of_parts
        lines += [
            "# Parts of modules that hold nothing beside them. Weights may have these names instead; then",
            "# gradients have them too, and outputs are those of the parts.",
            f"PARTS = {dict(contained)!r}",
            "_modules = {name: name for name in MODULES}",
            f"_OUTPUTS_OF_PARTS = {[*known]!r}",
        ]
    lines += [
        "_folder = Path(tempfile.mkdtemp())",
        "atexit.register(shutil.rmtree, _folder, ignore_errors=True)",
        "# What the way back to torch needs beside the arrays: of the weights that were loaded last.",
        f'_kept = _HERE / "{KEPT}"',
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class FunctionGroup:
    """Functions of the script that are methods of one step.

    Attributes:
        title: their class in `functions.py`.
        config: class of its sizes.
        facts: facts of the step.
        functions: the functions.
    """

    title: str
    config: str
    facts: ProgramFacts
    functions: Sequence[PortedFunction]


def helped_by(functions: Sequence[str]) -> bool:
    """Whether functions of an interface need its helpers."""
    names = ("_called", "_fresh", "_absent", "_like", "_trained")
    return any(f"{name}(" in text for text in functions for name in names)


def helpers_text(
    groups: Sequence[FunctionGroup], tops: Mapping[str, Sequence[str]], *, several: bool = False
) -> str:
    """Constants and helpers of the script's functions."""
    head = f"# Names of each module in the parameters.\nMODULES_IN_FLAX = {dict(tops)!r}"
    own = helpers(several=several)
    groups = [group for group in groups if group.functions]
    if not groups:
        return f"{head}\n\n\n{own}"
    entries = "".join(
        f"    {function.method!r}: ({group.title}({group.config}()), {not group.facts.training}),\n"
        for group in groups
        for function in group.functions
    )
    options = []
    streams = dict.fromkeys(s for g in groups if g.facts.draws for s in g.facts.streams)
    if streams:
        keys = ", ".join(f'"{n}": jax.random.key({i})' for i, n in enumerate(streams))
        options.append(f"rngs={{{keys}}}")
    statistics = any(group.facts.statistics and group.facts.training for group in groups)
    if statistics:
        options.append('mutable=["batch_stats"]')
    more = "".join(f", {option}" for option in options)
    call = f"step.apply({{**variables, 'params': params}}, **inputs, **modes, method=method{more})"
    within = (
        f"    with _without_dropout():\n        values = {call}"
        if streams
        else f"    values = {call}"
    )
    return f"""{head}
# Functions of the script: the step with each as a method, and whether it computes in evaluation mode.
_FUNCTIONS = {{
{entries}}}


{own}


@functools.partial(jax.jit, static_argnums=0)
def _values(method, params, variables, inputs):
    step, deterministic = _FUNCTIONS[method]
    known = inspect.signature(getattr(type(step), method)).parameters
    modes = {{"deterministic": deterministic}} if "deterministic" in known else {{}}
{within}
    return values{"[0]" if statistics else ""}
"""


def _averaged(
    facts: ProgramFacts, recorded: Mapping[str, Any], trained: Collection[str]
) -> tuple[str, str] | None:
    """The trained module and the script's name of the average of its weights; None if there is none."""
    modules = {name.partition(".")[0] for name in trained}
    if not facts.average or len(modules) != 1:
        return None
    return modules.pop(), recorded["average"].name.rpartition(".")[2]


_LOAD_AVERAGE = (
    """
    global _average
    alike = [
        name
        for name in weights
        if name not in MODULES and set(weights[name]) == set(weights[_AVERAGED])
    ]
    average = None
    if _average in alike or len(alike) == 1:
        _average = _average if _average in alike else alike[0]
        average = _loaded({**weights, _AVERAGED: weights[_average]}).params
""",
    """
    return state if average is None else state._replace(average=average)
""",
)


_OTHERS = """
    others = {name: given for name, given in weights.items() if name not in MODULES}
    state = state._replace(others=others)
"""


def state_text(
    averaged: tuple[str, str] | None,
    others: bool,
    contained: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Text of `load` and `weights`.

    Args:
        averaged: the module whose weights have a moving average, and the average's name.
        others: whether the state has modules that the loss does not read.
        contained: parts of modules, under whose names weights may be given.
    """
    conversion = _in_parts(_CONVERSION) if contained else _CONVERSION
    constants = before = values = loaded = ""
    of_others = "are for rollouts" if others else "are left out"
    after = "    return state"
    if averaged is not None:
        before, after = (text.strip("\n") for text in _LOAD_AVERAGE)
        before = f"{before}\n"
        constants = f"""
# The module whose weights have a moving average, and the average's name among the modules.
_AVERAGED, _average = {averaged[0]!r}, {averaged[1]!r}

"""
        values = """    of_average = _in_torch({"params": state.average, **state.variables})
    named[_average] = of_average[_AVERAGED]
"""
    if others:
        values = f"    named |= state.others or {{}}\n{values}"
    if averaged is not None or others:
        of_state = _OTHERS.replace("in MODULES", "in _modules") if contained else _OTHERS
        loaded = "    state = _loaded(weights)" + (of_state if others else "\n") + after
        loaded = f"{before}{loaded}\n\n{_LOADED}"
    weights = '_in_torch({"params": state.params, **state.variables})'
    returned = (
        f"    named = {weights}\n{values}    return named" if values else f"    return {weights}"
    )
    return f'''{constants}
def load(weights):
    """A fresh state with these weights, a new optimizer, at step 0.

    Args:
        weights: module → name → array, as torch's state dict of the module has them. Modules that the loss
            does not read {of_others}.
    """
{loaded}{conversion}

def weights(state):
    """Weights of a state: module → name → array, as torch's state dict has them."""
{returned}
'''


def _in_parts(text: str) -> str:
    """The conversion, where weights may have the names of parts."""
    changes = {
        "    global _kept\n": "    global _kept, _modules\n",
        """    missing = [module for module in MODULES if module not in weights]
""": """    names = {name: name for name in MODULES if name in weights}
    names |= {name: PARTS[name] for name in PARTS if PARTS[name].partition(".")[0] not in names}
    _modules = {name: place for name, place in names.items() if name in weights}
    missing = [name for name in names if name not in weights]
    held = {place.partition(".")[0] for place in names.values()}
    missing += [name for name in MODULES if name not in held]
""",
        """        f"{module}.{name}": torch.tensor(np.asarray(array))
        for module in MODULES
""": """        f"{place}.{name}": torch.tensor(np.asarray(array))
        for module, place in _modules.items()
""",
        """        module = next(m for m in MODULES if name.startswith(f"{m}."))
        named.setdefault(module, {})[name.removeprefix(f"{module}.")] = array
""": """        module, place = next((m, p) for m, p in _modules.items() if name.startswith(f"{p}."))
        named.setdefault(module, {})[name.removeprefix(f"{place}.")] = array
""",
    }
    for before, after in changes.items():
        text = text.replace(before, after)
    return text


_LOADED = '''
def _loaded(weights):
    """A fresh state with these weights."""
'''
_CONVERSION = '''\
    global _kept
    missing = [module for module in MODULES if module not in weights]
    if missing:
        raise KeyError(f"no weights of the module {missing[0]}")
    named = {
        f"{module}.{name}": torch.tensor(np.asarray(array))
        for module in MODULES
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
        module = next(m for m in MODULES if name.startswith(f"{m}."))
        named.setdefault(module, {})[name.removeprefix(f"{module}.")] = array
    return named


def _require(name, value, expected):
    """Require the value that the program was written for: it is a number in its files."""
    if value != expected:
        raise ValueError(f"the program is written for {name}={expected!r}, not {value!r}")


def _one_loss(site):
    if site != 0:
        raise ValueError("the program has one loss: site is 0")
'''


_BY_NAME = '''
def _by_name(batch):
    """The batch by the names in the loss: `name` for a key `function:name`."""
{body}
'''
_INPUTS = """
def _inputs(batch):
    return _loss.inputs_of(_by_name(batch))
"""
_INPUTS_BY_NAME = """
def _inputs(batch):
    named = _by_name(batch)
    return {{name: named[name] for name in {names!r}}}
"""
_PUT_BACK = """
    for name, (whole, key) in _TAKEN.items():
        if name in named:
            named[whole] = {**named[whole], key: named.pop(name)}"""


def by_name_text(taken: Mapping[str, tuple[str, str]] | None = None) -> str:
    """Text of `_by_name`; `taken`: variables of the script → batch and key from which it took them."""
    named = '{name.rpartition(":")[2]: value for name, value in batch.items()}'
    body = f"    named = {named}{_PUT_BACK}\n    return named" if taken else f"    return {named}"
    return _BY_NAME.format(body=body)


def _batches_text(taken: Mapping[str, tuple[str, str]], names: Mapping[str, str]) -> str:
    """Text of `batches`, if micro-batches are not those of `data.py`; else "".

    Args:
        taken: variables that hold parts of a batch where the script calls its model → batch and key.
        names: variable → its name in the interface, if that is another one.
    """
    if not taken and not names:
        return ""
    constants, parts = "", "    batch = dict(batch)\n"
    if taken:
        constants = f"""# Parts that the script took out before it calls its model: variable → batch and key.
_TAKEN = {taken!r}
"""
        parts += """    for name, (whole, key) in _TAKEN.items():
        batch[whole] = dict(batch[whole])
        batch[name] = batch[whole].pop(key)
"""
    end = "    return batch\n"
    if names:
        constants += f"""# Variables of the script → their names in a micro-batch.
_NAMES = {dict(names)!r}
"""
        end = "    return {_NAMES.get(name, name): value for name, value in batch.items()}\n"
    return f'''
{constants}

def batches():
    """Yield the micro-batches of each update, as variables of the script where it calls its model."""
    for micro in _data.batches():
        yield [_as_called(batch) for batch in micro]


def _as_called(batch):
{parts}{end}'''


# Text before `outputs` of a loss with forms for other sizes.
_WITH_FORMS = '''\
def _part(values, key):
    """A layer, or what it gave. A form of the loss for other sizes calls another method of the layer."""
    if isinstance(values, dict) and key not in values:
        [key] = [name for name, value in values.items() if isinstance(value, tuple)]
    return values[key]


'''


def outputs_text(places: str, *, forms: bool) -> str:
    """End of a function that has the captured outputs in `more`, and the beginning of `outputs`.

    Args:
        places: expression of where they are.
        forms: whether the loss has forms for other sizes.
    """
    part = "_part(value, key)" if forms else "value[key]"
    return f'''    found = []
    for path in {places}:
        value = more["intermediates"]
        for key in path:
            value = {part}
        found.append(value)
    return found


{_WITH_FORMS if forms else ""}def outputs(state, batch, site=0):
    """What each outermost call of a trained module gives in the loss of a batch, in order."""
'''


def _apart(
    facts: ProgramFacts, places: Sequence[OutputPath] | None, contained: Mapping[str, str]
) -> str:
    """Functions whose text depends on dropout and statistics."""
    statistics = facts.statistics and facts.training
    key = ", jax.random.key(0)" if facts.draws else ""
    aux = ", has_aux=True" if statistics else ""
    value = "(value, _)" if statistics else "value"
    parts = []
    if facts.draws:
        parts.append(f"\n{WITHOUT_DROPOUT}")
    within = "    with _without_dropout():\n    " if facts.draws else ""
    if facts.draws:
        parts.append(f"""
def _loss_of(params, variables, inputs):
    with _without_dropout():
        return _loss.loss_of(params, variables, inputs{key})


_value_and_grad = jax.jit(jax.value_and_grad(_loss_of{aux}))
""")
    else:
        parts.append("_loss_of, _value_and_grad = _loss.loss_of, _train.value_and_grad")
    if places is not None:
        options = []
        if facts.takes_mode:
            options.append(f"deterministic={not facts.training}")
        if facts.draws:
            keys = ", ".join(
                f'"{name}": jax.random.key({n})' for n, name in enumerate(facts.streams)
            )
            options.append(f"rngs={{{keys}}}")
        kept = '["intermediates", "batch_stats"]' if statistics else '["intermediates"]'
        optional = "".join(f"            {option},\n" for option in options)
        body = f"""_, more = _loss.STEP.apply(
            {{**variables, "params": params}},
            **inputs,
{optional}            mutable={kept},
            capture_intermediates=lambda module, name: name != "setup",
        )"""
        own, returned = (
            "_OUTPUTS",
            "return _captured(state.params, state.variables, _inputs(batch))",
        )
        if contained:
            own = "(*_OUTPUTS, *_OUTPUTS_OF_PARTS)"
            returned = """every = _captured(state.params, state.variables, _inputs(batch))
    count = len(_OUTPUTS)
    return every[count:] if set(_modules) & set(PARTS) else every[:count]"""
        parts.append(f"""
@jax.jit
def _captured(params, variables, inputs):
{within}    {body}
{outputs_text(own, forms=facts.forms)}    _one_loss(site)
    {returned}
""")
    place = "_modules[module]" if contained else "module"
    parts.append(f'''
def loss_and_gradients(state, batch, site=0):
    """The number on which {facts.script} calls backward, and the gradients: module → name → array."""
    _one_loss(site)
    {value}, grads = _value_and_grad(state.params, state.variables, _inputs(batch))
    named = _in_torch({{**state.variables, "params": grads}})
    return value, {{
        module: {{n: x for n, x in arrays.items() if f"{{{place}}}.{{n}}" not in WITHOUT_GRADIENT}}
        for module, arrays in named.items()
    }}
''')
    parts.append(_step(facts))
    return "\n\n\n".join(part.strip("\n") for part in parts)


def missing_rollouts(facts: ProgramFacts) -> list[str]:
    """Functions for rollouts that cannot be written, each with the reason."""
    if not facts.rollouts:
        return []
    if not facts.starts:
        why = "the loop makes its modules anew, so that they cannot start from a state"
        return [f"{EXPERIENCE}, {ROLLOUT}: {why}"]
    unnamed = "pass --scores FUNCTION:NAME, the variable of the script with the scores of a rollout"
    return [] if facts.scores else [f"{ROLLOUT}: {unnamed}"]


def rollout_texts(facts: ProgramFacts) -> list[str]:
    """Functions for rollouts."""
    texts = []
    if facts.starts:
        texts.append(f'''
def {EXPERIENCE}(state, sampled):
    """What updates learn from: variables of the script after a rollout of given sequences.

    Args:
        state: the state whose weights the rollout has.
        sampled: variable → value in place of the sampled one. rollouts.py says how variables are named.

    Returns:
        Variable → array, for each variable of the functions that run then.
    """
    return _rollouts.{EXPERIENCE}(lambda: _train.in_torch(state), sampled, state.others)
''')
    if facts.starts and facts.scores:
        texts.append(f'''
def {ROLLOUT}(state, seed):
    """Scores ({facts.scores} of the script) of one rollout, its prompts included, from a seed of its own."""
    return _rollouts.{ROLLOUT}(lambda: _train.in_torch(state), seed, state.others)[{facts.scores!r}]
''')
    return texts


def _step(facts: ProgramFacts) -> str:
    refused = """
    if rollout is not None:
        raise ValueError("the program has no rollouts: rollout is None")"""
    about_rollout = """

    `rollout` is what the batches come from; an update reads the batches alone."""
    head = f'''
def step(state, micro, site=0, rollout=None):
    """One update of the weights over micro-batches.{about_rollout if facts.rollouts else ""}

    Returns:
        The new state, and `losses` (one a micro-batch) and `learning_rate` (of the first group).
    """
    _one_loss(site){"" if facts.rollouts else refused}
'''.rstrip("\n")
    if not facts.draws:
        read = "_inputs" if facts.same_names else "_by_name"
        return f"""{head}
    state, losses, rate = _train.train_step(state, [{read}(batch) for batch in micro])
    return state, {{"losses": losses, "learning_rate": rate}}
"""
    statistics = facts.statistics and facts.training
    value = "(value, others)" if statistics else "value"
    others = "        variables = {**variables, **others}\n" if statistics else ""
    average = (
        ", average=_train.averaged(state.average, params, state.step)" if facts.average else ""
    )
    refreshed = "\n    state = _train.refreshed(state)" if facts.copies_every else ""
    turns, counts = "batch in micro", ""
    gradients = "_value_and_grad(state.params, variables, _inputs(batch))"
    if facts.counted:
        turns = "inputs, share in zip(batches, shares, strict=True)"
        gradients = "_train.weighted(_value_and_grad(state.params, variables, inputs), share)"
        counts = """
    batches = [_inputs(batch) for batch in micro]
    shares = _train.shares_of([_train.count(state.params, variables, x) for x in batches])"""
    scaled = facts.scaled or UNSCALED
    counts += scaled.counts("map(_inputs, micro)", "_train.count")
    return f"""{head}{refreshed}
    losses, grads, variables = [], None, state.variables{counts}
    for {turns}:
        {value}, more = {gradients}
{others}        losses.append(value)
        grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
    rate = _optimizer.learning_rate_of(state.step)
    params, opt_state, *_ = _train.apply(state.params, state.opt_state, grads{scaled.argument})
    state = state._replace(
        params=params, variables=variables, opt_state=opt_state, step=state.step + 1{average}
    )
    return state, {{"losses": losses, "learning_rate": rate}}
"""
