"""Source of the written program around the port: batches, loss, training loop, test."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from converters.graph.expression import NOISE
from migrate.train.optimizer.write import WrittenOptimizer
from migrate.train.options import TrainOptions
from migrate.train.slice.data import ARGUMENTS, HAND_OVER
from migrate.train.slice.emit import DECORATED, GIVEN, RESTORE
from migrate.train.slice.logged import NORM
from migrate.train.write.counts import CountedSource
from migrate.train.write.evaluation import with_evaluations
from migrate.train.write.factor import UNSCALED, ScaledGradients
from migrate.train.write.log import Log
from migrate.train.write.logged import with_logged
from migrate.train.write.loops import loop_texts
from migrate.train.write.means import COUNTS, SHARES, count_text
from migrate.train.write.shadow import GUARD
from migrate.train.write.unused import without_unused

PARAMS, DRAWS, RECORDED = "params.safetensors", "draws.npz", "recorded.npz"
# Files that do not depend on the script.
CARRIED = ("devices.py", "checkpoints.py")
OF_ROLLOUT = "rollouts.py"
# How `data.py` gives its batches; a loop that runs what is trained takes the program's weights.
_BATCHES, _OF_ROLLOUTS = "def batches():", "def batches(weights):"
ROLLOUTS = (
    "the loop runs what it trains (rollouts): data.py does so by the script's own statements, with torch on "
    "the host, and its modules get the program's weights after each update. The program stores no checkpoints"
)


# Parts of every program's `train.py`, whatever its state holds.
LOAD = '''\
def load(path=PARAMS):
    """A fresh state with the weights of a file."""
    variables = unflatten_dict(load_file(path), sep="/")
    params = variables.pop("params")'''
SAVE = '''\
def save(state, path):
    """Write the weights of a state."""
    save_file(flatten_dict({"params": state.params, **state.variables}, sep="/"), path)'''

_REPORT = '''\
def report(number, losses, rate):
    """Print one update."""
    loss = sum(float(x) for x in losses)
    print(f"update {number}: loss {loss:.6f}, learning rate {float(rate):.3e}", flush=True)
'''


@dataclass(frozen=True)
class ProgramFacts:
    """Facts on which the texts depend.

    Attributes:
        script: name of the script.
        position: file and line of its backward.
        inputs: input of the step → variable of the script and keys in it.
        takes_mode: whether the model has the argument `deterministic`.
        training: whether the loss is computed in training mode.
        streams: names of random streams that training draws from.
        statistics: whether training updates statistics.
        frozen: paths of parameters that are not trained.
        average: decay of the moving average of the weights, as an expression of `step`; "" for none.
        rollouts: whether `data.py` runs the trained modules, with the program's weights.
        starts: whether its first rollout has the program's weights too.
        copied: path of a frozen parameter → path of the trained one that it becomes a copy of.
        copies_every: number of updates between two copies; 0: none.
        copies_keep: the part of itself that a frozen parameter keeps then; 0: none.
        counted: source of the port with its counts, if the micro-batches of an update are weighted by them.
        scaled: the factor of the summed gradients of an update; None for none.
        scores: variable of the script with the scores of a rollout; "" if nobody named it.
        batch_names: variable of a micro-batch → its name in `interface.py`, if that is another one.
        forms: whether the step has further forms for batches of other sizes.
        single: whether each update has one micro-batch, whatever the script's options are.
        evaluations: the script's evaluations that the program has.
        log: what prints an update, if it is the script's own.
        logged: values of an update that log lines in `data.py` read.
        logged_lines: these lines of the script.
    """

    script: str
    position: str
    inputs: Mapping[str, tuple[str, tuple[Any, ...]]]
    takes_mode: bool
    training: bool
    streams: tuple[str, ...]
    statistics: bool
    frozen: tuple[str, ...]
    average: str = ""
    rollouts: bool = False
    starts: bool = False
    scores: str = ""
    batch_names: Mapping[str, str] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    copies_every: int = 0
    copies_keep: float = 0.0
    counted: CountedSource | None = None
    scaled: ScaledGradients | None = None
    forms: bool = False
    single: bool = False
    evaluations: tuple[Mapping[str, Any], ...] = ()
    log: Log | None = None
    logged: tuple[str, ...] = ()
    logged_lines: tuple[int, ...] = ()

    @property
    def same_names(self) -> bool:
        """Whether the step reads a batch as it is: each input is a variable of its name."""
        return all((name, ()) == (root, path) for name, (root, path) in self.inputs.items())

    @property
    def counts(self) -> CountedSource | None:
        """Source of the port with the counts that the program needs, if it needs any."""
        return self.counted or (self.scaled.counted if self.scaled else None)

    @property
    def draws(self) -> bool:
        """Whether the training step needs random numbers."""
        return self.noise or (self.training and bool(self.streams))

    @property
    def noise(self) -> bool:
        """Whether the loss draws random numbers beside those of dropout."""
        return NOISE in self.streams


def loss_text(source: str, facts: ProgramFacts) -> str:
    """`loss.py`: the step's class, and the loss of a batch."""
    reads = [
        f"        {name!r}: batch[{root!r}]" + "".join(f"[{key!r}]" for key in path) + ","
        for name, (root, path) in facts.inputs.items()
    ]
    arguments = ["**inputs"]
    if facts.takes_mode:
        arguments.append(f"deterministic={not facts.training}")
    if facts.draws:
        keys = ", ".join(
            f'"{name}": jax.random.fold_in(key, {n})' for n, name in enumerate(facts.streams)
        )
        arguments.append(f"rngs={{{keys}}}")
    statistics = facts.statistics and facts.training
    if statistics:
        arguments.append('mutable=["batch_stats"]')
    held = [f"    {path.removeprefix('params/')!r}," for path in facts.frozen]
    frozen = (
        ["# Parameters that the script does not train.", "FROZEN = {", *held, "}", "", ""]
        if held
        else []
    )
    hold = (
        [
            "",
            "",
            "def hold(params):",
            '    """The parameters, without gradients for those that are not trained."""',
            "    def held(path, value):",
            '        name = "/".join(key.key for key in path)',
            "        return jax.lax.stop_gradient(value) if name in FROZEN else value",
            "",
            "    return jax.tree_util.tree_map_with_path(held, params)",
        ]
        if held
        else []
    )
    inputs = [
        "def inputs_of(batch):",
        '    """Arrays of a batch that the loss reads."""',
        "    return {",
        *reads,
        "    }",
        "",
        "",
    ]
    key = ", key" if facts.draws else ""
    tree = "hold(params)" if held else "params"
    call = [f"    return STEP.apply({{**state, 'params': {tree}}}, {', '.join(arguments)})"]
    if statistics:
        call = [
            f"    value, state = STEP.apply({{**state, 'params': {tree}}}, {', '.join(arguments)})",
            "    return value, state",
        ]
    what = (
        "Loss of a micro-batch, and the new statistics" if statistics else "Loss of a micro-batch"
    )
    return "\n".join(
        [
            source.rstrip(),
            "",
            "",
            *frozen,
            "STEP = Step(StepConfig())",
            *hold,
            "",
            "",
            *([] if facts.same_names else inputs),
            f"def loss_of(params, state, inputs{key}):",
            f'    """{what}: the number on which {facts.position} calls backward."""',
            *call,
            *(count_text(facts.counts) if facts.counts else ()),
            "",
        ]
    )


def restore_text(script: str, *, once: bool = False, torch_alone: bool = False) -> str:
    """The function of `data.py` that sets the random generators as they were in the script.

    Args:
        script: name of the script.
        once: whether it is called once.
        torch_alone: whether the data draw from torch's generator alone.
    """
    which = 0 if once else "number"
    lines = [f'draws = np.load(Path(__file__).with_name("{DRAWS}"), allow_pickle=False)']
    if not once:
        lines = [
            "number = next(RESTORED)",
            *lines,
            'if number >= len(draws["torch"]):',
            "    return",
        ]
    lines.append(f'torch.set_rng_state(torch.from_numpy(draws["torch"][{which}]))')
    if not torch_alone:
        lines += [
            f'kind, keys, gauss = json.loads(str(draws["python"][{which}]))',
            "random.setstate((kind, tuple(keys), gauss))",
            'if "numpy" in draws:',
            f'    position = json.loads(str(draws["position"][{which}]))',
            f'    np.random.set_state(("MT19937", draws["numpy"][{which}], *position))',
        ]
    count = "" if once else "\nRESTORED = itertools.count()\n\n"
    later = "" if once else "\n\n    After the recorded times they go on from where they are.\n   "
    head = (
        f"Set the random generators as they were in {script} here: other parts of it drew before."
    )
    body = "".join(f"    {line}\n" for line in lines)
    return f'{count}\ndef {RESTORE}():\n    """{head}{later}"""\n{body}'


def data_text(
    source: str,
    script: str,
    folder: str,
    restores: bool,
    hidden: Sequence[str] = (),
    ranks: Mapping[str, str] = MappingProxyType({}),
    *,
    args: Sequence[str] = (),
    rollouts: bool = False,
    on_gpu: bool = False,
    several: bool = False,
    bfloat16: bool = False,
    evaluations: Sequence[Mapping[str, Any]] = (),
    logged: Sequence[str] = (),
) -> str:
    """`data.py`: the script's loop, and its batches as NumPy arrays.

    With `several` updates each has its name beside its batches. Imports of modules in `hidden` are inside
    `with script_modules():`. `ranks` are variables of torchrun, `args` the arguments of the script. With
    `on_gpu`, what the script puts on a GPU stays in host memory. With `bfloat16` there are such tensors,
    which torch does not hand to NumPy. `logged` are the values of an update that log lines of the loop read.
    """
    host = shims = halves = ""
    if bfloat16:
        halves = """
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return value.detach().cpu().float().numpy().astype(ml_dtypes.bfloat16)"""
    if on_gpu:
        shims = "\nfrom shims import patches"
        host = f"""
# {script} trains on a GPU. Here its tensors stay in the memory of the host.
patches.install("cpu", 1)
"""
    guard = f'''
# Modules of the script with the names of the program's files.
HIDDEN = {tuple(hidden)!r}


@contextlib.contextmanager
def {GUARD}():
    """Import the script's modules of these names, not the program's."""

    def hide():
        return {{n: sys.modules.pop(n) for n in [*sys.modules] if n.partition(".")[0] in HIDDEN}}

    own = hide()
    sys.modules.update({GUARD}.known)
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        {GUARD}.known = hide()
        sys.modules.update(own)


{GUARD}.known = {{}}
'''
    restore = restore_text(script)
    hand_over = f'''
WEIGHTS = []  # the function that gives the program's weights, as `batches` got it


def {HAND_OVER}(modules):
    """Give modules of {script} the weights that the program has after an update."""
    now = WEIGHTS[-1]()
    for name, module in modules.items():
        start = f"{{name}}."
        own = {{n.removeprefix(start): x for n, x in now.items() if n.startswith(start)}}
        module.load_state_dict({{n: torch.tensor(x) for n, x in own.items()}})
'''
    taken = of_weights = handed = ""
    if rollouts:
        handed = hand_over
        taken = "\n    WEIGHTS[:] = [weights]"
        of_weights = " `weights()` are the program's, by torch's names."
    decorated = ""
    if f"@{DECORATED}\n" in source:
        decorated = f'''
GIVEN = []


def {DECORATED}(function):
    """The function for its decorator, which may look where it is, or call it and give nothing back."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        GIVEN[:] = [function(*args, **kwargs)]
        return GIVEN[0]

    function.__module__ = called.__module__ = "__main__"
    function.__code__ = function.__code__.replace(co_filename=str(FOLDER / {script!r}))
    return called


def {GIVEN}(result):
    """What the function gave inside of its decorator."""
    return GIVEN.pop() if result is None else result

'''
    named = {n: v for n, v in ranks.items() if f'"{n}"' in source or f"'{n}'" in source}
    set_ranks = f"""
# As they were when the program was written: one process loads all of a batch.
for name, rank in {named!r}.items():
    os.environ.setdefault(name, rank)
"""
    each = """        for batch in micro_batches():
            if batch is None:
                yield micro
                micro = []
            else:
                micro.append(arrays(batch))
"""
    empty = "[]"
    if several:
        empty = "{}"
        each = """        for name, batch in micro_batches():
            if batch is None:
                yield name, micro.pop(name, [])
            else:
                micro.setdefault(name, []).append(arrays(batch))
"""
    of_each = (
        "the name and the micro-batches of each update"
        if several
        else "the micro-batches of each update"
    )
    text = f'''"""The batches of {script}: its own loop, without what trains."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path

{"import ml_dtypes" + chr(10) if bfloat16 else ""}import numpy as np
import torch
import torch.distributed{shims}

FOLDER = {folder}  # of the script, with its modules
# Arguments that {script} was run with. The other files have their numbers: for other arguments, write another
# program with `migrate train`.
ARGV = {list(args)!r}
sys.path.append(str(FOLDER))
{host}{set_ranks if named else ""}{guard if hidden else ""}{restore if restores else ""}{handed}{decorated}

class Ended(BaseException):
    """The script ends here."""


@contextlib.contextmanager
def {ARGUMENTS}():
    """The command line of {script}: its own statements read it."""
    kept, sys.argv = sys.argv, [str(FOLDER / {script!r}), *ARGV]
    try:
        yield
    finally:
        sys.argv = kept


{source.rstrip()}


def arrays(value):
    """The value as dictionaries, lists and NumPy arrays."""{halves}
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, tuple | list):
        return [arrays(item) for item in value]
    if isinstance(value, Mapping):
        return {{key: arrays(item) for key, item in value.items()}}
    if dataclasses.is_dataclass(value):
        return {{f.name: arrays(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    return value


{_OF_ROLLOUTS if rollouts else _BATCHES}
    """Yield {of_each} of the weights.{of_weights}"""{taken}
    micro = {empty}
    with {ARGUMENTS}(), contextlib.suppress(Ended):
{each}'''
    if evaluations:
        text = with_evaluations(text, evaluations).replace(
            "import json\n", "import json\nimport math\n"
        )
    return with_logged(text, logged)


def has_rollouts(source: str) -> bool:
    """Whether a text of `data.py` runs the trained modules."""
    return f"\n{_OF_ROLLOUTS}\n" in source


def with_rate(optimizer: WrittenOptimizer) -> str:
    """`optimizer.py`: the optimizer, and the learning rate of an update."""
    rate, doc = optimizer.rates.rates[0], "# Learning rate of the first group in an update.\n"
    tree = ast.parse(optimizer.source)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    numbers = {
        ast.unparse(target)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
    }
    if rate in functions:
        text = f"{doc}learning_rate_of = {rate}"
    elif rate in numbers or isinstance(ast.parse(rate, mode="eval").body, ast.Constant):
        text = f"{doc}learning_rate_of = optax.constant_schedule({rate})"
    else:
        text = f'''\
def learning_rate_of(count):
    """Learning rate of the first group in an update."""
    rate = {rate}
    return rate(count) if callable(rate) else rate'''
    return f"{optimizer.source.rstrip()}\n\n\n{text}\n"


def train_text(facts: ProgramFacts) -> str:
    """`train.py`: the state, one update, and the loop."""
    statistics = facts.statistics and facts.training
    draws, starts = facts.draws, facts.starts
    keyed = ", jax.random.fold_in(KEY, state.step * 1024 + number)" if draws else ""
    own = "by_rows(batch)" if facts.same_names else "by_rows(inputs_of(batch))"
    reads = "" if facts.same_names else "inputs_of, "
    turns, each, inputs = "batch", "micro", f"\n        inputs = {own}"
    gradients = f"value_and_grad(state.params, variables, inputs{keyed})"
    counts = shared = counted = ""
    summed = "summed as torch sums them"
    if facts.counted:
        shared, counted = SHARES, "count_of, "
        summed = "summed by the numbers of elements that count"
        inputs, gradients = "", f"weighted({gradients}, share)"
        turns, each = "inputs, share", "zip(batches, shares, strict=True)"
        counts = f"""
    batches = [{own} for batch in micro]
    shares = shares_of([count(state.params, variables, inputs) for inputs in batches])"""
    scaled = facts.scaled or UNSCALED
    if scaled.counted:
        shared, counted = COUNTS, "count_of, "
        counts = scaled.counts(f"[{own} for batch in micro]")
    head = (
        f"for number, {f'({turns})' if facts.counted else turns} in enumerate({each}):"
        if draws
        else f"for {turns} in {each}:"
    )
    aux = ", has_aux=True" if statistics else ""
    value = "(value, others)" if statistics else "value"
    others = "\n        variables = {**variables, **others}" if statistics else ""
    numbers = "\nKEY = jax.random.key(0)  # of random numbers" if draws else ""
    fields = "\n    average: Any" if facts.average else ""
    norm = norm_of = start_norm = new_norm = settings = ""
    report = "" if facts.logged else _REPORT
    if facts.log is not None:
        report, settings = facts.log.function, facts.log.settings
    if NORM in facts.logged or (facts.log is not None and facts.log.norm):
        fields += "\n    norm: Any  # of the gradients of the last update"
        norm, norm_of = ", norm", "\n    norm = optax.global_norm(grads)"
        start_norm, new_norm = ", norm=replicated(jnp.zeros(()))", ", norm=norm"
    fields += "\n    others: Any = None  # weights of modules that only rollouts run" * starts
    texts = loop_texts(
        rollouts=facts.rollouts,
        evaluates=bool(facts.evaluations),
        norm=bool(norm),
        logged=facts.logged,
    )
    averaged = moved = option = stored = start_average = moved_field = ""
    copied = refreshed = ""
    if facts.copies_every:
        lines = "".join(f"    {to!r}: {of!r},\n" for to, of in facts.copied.items())
        sets, become = "sets to trained ones", "jnp.copy(flat[COPIED[name]])"
        if facts.copies_keep:
            away = float(f"{1 - facts.copies_keep:.10g}")
            sets = "moves towards trained ones"
            become = f"{facts.copies_keep!r} * x + {away!r} * flat[COPIED[name]]"
        every = "" if facts.copies_every == 1 else f"{facts.copies_every} "
        updates = f"every {every}update{'s' * (facts.copies_every > 1)}"
        copied = f'''
# Frozen parameters that {facts.script} {sets} {updates}.
COPIED = {{
{lines}}}


def refreshed(state):
    """The state at an update, with the copies that the script makes before it."""
    if state.step == 0 or state.step % {facts.copies_every}:
        return state
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    flat = {{"/".join(key.key for key in path): x for path, x in leaves}}

    def copy(path, x):
        name = "/".join(key.key for key in path)
        return {become} if name in COPIED else x

    return state._replace(params=jax.tree_util.tree_map_with_path(copy, state.params))

'''
        refreshed = "\n    state = refreshed(state)"
    if facts.average:
        start_average = ", replicated(jax.tree.map(jnp.copy, params))"
        moved_field = ", average"
        averaged = f'''
@functools.partial(jax.jit, donate_argnums=0, out_shardings=EVERYWHERE)
def averaged(average, params, step):
    """The moving average of the weights after an update."""
    return optax.incremental_update(params, average, 1 - {facts.average})


'''
        moved = "\n    average = averaged(state.average, params, state.step)"
        option = (
            '\n    add("--save-average", type=Path, help="file for the average of the weights")'
        )
        stored = """
    if asked.save_average is not None and jax.process_index() == 0:
        save(state._replace(params=state.average), asked.save_average)"""
    more_fields = f"{moved_field}{new_norm}{', state.others' * starts}"
    update = f"""\
def train_step(state, micro):
    \"\"\"One update over micro-batches, whose gradients are {summed}.

    Returns:
        The new state, the loss of each micro-batch, and the learning rate.
    \"\"\"{refreshed}
    losses, grads, variables = [], None, state.variables{counts}
    {head}{inputs}
        {value}, more = {gradients}{others}
        losses.append({"value"})
        grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
    params, opt_state{norm} = apply(state.params, state.opt_state, grads{scaled.argument}){moved}
    new = State(params, variables, opt_state, state.step + 1{more_fields})
    return new, losses, learning_rate_of(state.step)
"""
    if facts.single and not facts.counts:
        changed = "{**state.variables, **others}" if statistics else "state.variables"
        key = ", jax.random.fold_in(KEY, state.step)" * draws
        update = f"""\
def train_step(state, micro):
    \"\"\"One update, of one batch.

    Returns:
        The new state, the loss, and the learning rate.
    \"\"\"{refreshed}
    [batch] = micro
    {value}, grads = value_and_grad(state.params, state.variables, {own}{key})
    params, opt_state{norm} = apply(state.params, state.opt_state, grads{scaled.argument}){moved}
    new = State(params, {changed}, opt_state, state.step + 1{moved_field}{new_norm})
    return new, [value], learning_rate_of(state.step)
"""
    return f'''"""The training of {facts.script} in JAX.

    python train.py [--updates N]{texts.usage} [--save FILE]
"""

import argparse
import contextlib
import functools
import itertools
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
{texts.imports}from devices import EVERYWHERE, by_rows, replicated
from flax.traverse_util import flatten_dict, unflatten_dict
from loss import {counted}{reads}loss_of
from optimizer import learning_rate_of, optimizer
from safetensors.flax import load_file, save_file

PARAMS = Path(__file__).with_name({PARAMS!r}){numbers}
{settings}

class State(NamedTuple):
    """Trained parameters, other variables of the model, the optimizer's state, the number of updates."""

    params: Any
    variables: Any
    opt_state: Any
    step: int{fields}


{LOAD}
    return State(*replicated((params, variables, optimizer.init(params))), 0{start_average}{start_norm})


{SAVE}

{texts.functions}
value_and_grad = jax.jit(jax.value_and_grad(loss_of{aux}), out_shardings=EVERYWHERE)
{shared}

@functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=EVERYWHERE)
def apply(params, opt_state, grads{scaled.argument}):
    """One update of the weights."""{scaled.lines if facts.scaled else ""}{norm_of}
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state{norm}


{copied}{averaged}{update}

def main():
    """Train on the script's batches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\\n")[0])
    add = parser.add_argument
    add("--updates", type=int, default=sys.maxsize, help="updates of the weights in all")
{texts.options}
    add("--save", type=Path, help="file for the trained weights"){option}
    asked = parser.parse_args()
{texts.loop}
    if asked.save is not None and jax.process_index() == 0:
        save(state, asked.save){stored}


{report}{texts.reports}

if __name__ == "__main__":
    main()
'''


def carried_files(*, rollouts: bool) -> tuple[str, ...]:
    """Names of the files that do not depend on the script; a program with rollouts stores no checkpoints."""
    return tuple(name for name in CARRIED if not (rollouts and name == "checkpoints.py"))


def carried_text(name: str) -> str:
    """Source of a file that each program carries as it is: `checkpoints.py`, `devices.py`."""
    package = resources.files("migrate.train.write.program")
    return package.joinpath(name).read_text(encoding="utf-8")


def test_text(facts: ProgramFacts, updates: int) -> str:
    """`test_same.py`: the program against the recorded run of the script."""
    dropout = (
        """
    monkeypatch.setattr(nn.Dropout, "__call__", lambda self, inputs, *args, **kwargs: inputs)"""
        if facts.draws
        else ""
    )
    argument = "monkeypatch" if facts.draws else ""
    linen = "from flax import linen as nn\n" if facts.draws else ""
    noise = drawing = ""
    if facts.noise:
        linen += "from migrate.train.noise import with_noise\n"
        drawing = "\nimport loss"
        noise = "\n# The script drew these numbers too.\nloss.loss_of = with_noise(loss.loss_of)\n"
    return f'''"""The program gives the losses of the first {updates} updates of {facts.script}.

    python -m pytest test_same.py
"""

import sys
from pathlib import Path

import jax
import numpy as np
{linen}
sys.path.insert(0, str(Path(__file__).parent))
{drawing}{noise}
import train

RECORDED = Path(__file__).with_name({RECORDED!r})
INPUTS = {dict(facts.inputs)!r}


def updates():
    """The recorded updates: micro-batches, and the script's losses."""
    recorded = np.load(RECORDED)
    for number in range(int(recorded["updates"])):
        micro = []
        for position in range(int(recorded[f"{{number}}/micro"])):
            batch = {{}}
            for name, (root, path) in INPUTS.items():
                put(batch, (root, *path), recorded[f"{{number}}/{{position}}/{{name}}"])
            micro.append(batch)
        yield micro, recorded[f"{{number}}/losses"]


def put(batch, keys, value):
    """Put a value into nested dictionaries; the loss reads lists by index too."""
    *above, last = keys
    for key in above:
        batch = batch.setdefault(key, {{}})
    batch[last] = value


def test_losses_are_the_scripts({argument}):{dropout}
    with jax.default_matmul_precision("highest"):
        state = train.load()
        for micro, expected in updates():
            state, losses, _ = train.train_step(state, micro)
            np.testing.assert_allclose(np.array(losses), expected, rtol=1e-5)
'''


def without_folder(text: str, script: Path, output: Path) -> str:
    """The text of a program, with files as their folders name them where the command had whole paths."""
    shorter = [(script.parent, ""), (output.parent, ""), (script.parent.parent, f"..{os.sep}")]
    for folder, name in shorter:
        if folder.is_absolute() and folder != folder.parent:
            text = text.replace(f"{folder}{os.sep}", name)
    return text


def tidied(folder: Path, options: TrainOptions) -> list[str]:
    """Remove imports and helpers that a file does not use, and functions.py if no file imports it."""
    for file in folder.glob("*.py"):
        if file.name != "data.py":  # has the script's own texts
            text = without_folder(file.read_text(), options.script, options.output)
            file.write_text(without_unused(text) if file.name == "interface.py" else text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--no-cache"]
    rules = ["--select", "F401,F811", "--fix", "--exit-zero", str(folder)]
    done = subprocess.run([*command, *rules], capture_output=True, text=True, check=False)
    texts = [file.read_text() for file in folder.glob("*.py")]
    if not any("from functions import " in text for text in texts):
        (folder / "functions.py").unlink(missing_ok=True)
    return [] if done.returncode == 0 else ["imports are not sorted out: it needs ruff"]
