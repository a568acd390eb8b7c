"""Source of a program with several updates, each with a loss, an optimizer and a part of the model."""

from __future__ import annotations

import ast
import io
import itertools
import re
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate.train.watch.step import class_name
from migrate.train.write.loops import loop_texts
from migrate.train.write.split import SplitSource
from migrate.train.write.texts import LOAD, PARAMS, SAVE, ProgramFacts, with_rate


@dataclass(frozen=True)
class UpdateFacts:
    """Facts on which the texts of an update depend.

    Attributes:
        name: its name: that of its loss, say.
        facts: facts of its step.
        optimizer: its optimizer, as `optimizer_source` gives it.
        sources: the port of its loss, as model and loss.
        config: the sizes of its step.
        modules: modules that its loss reads.
        seen: modules whose statistics an update before it has counted already, in the same statements.
    """

    name: str
    facts: ProgramFacts
    optimizer: Any
    sources: SplitSource
    config: str
    modules: tuple[str, ...]
    seen: tuple[str, ...]


@dataclass(frozen=True)
class ForwardFacts:
    """Facts on which the texts of a module's call outside of the updates depend.

    Attributes:
        name: name of the function.
        where: position and text of the script's statement.
        inputs: inputs of the module.
        sources: the port of the call, as model and loss.
        config: the sizes of the module.
        modules: the module.
        title: name of the class of the call.
    """

    name: str
    where: str
    inputs: tuple[str, ...]
    sources: SplitSource
    config: str
    modules: tuple[str, ...]
    title: str


def apart(
    updates: Sequence[UpdateFacts], forwards: Sequence[ForwardFacts] = ()
) -> tuple[list[UpdateFacts], list[ForwardFacts]]:
    """Give definitions another name that are written differently for a later update, or a call after them."""
    result = _apart([*updates, *forwards])
    return result[: len(updates)], result[len(updates) :]


def _apart(updates: Sequence[Any]) -> list[Any]:
    known: dict[str, str] = {}
    result = []
    for update in updates:
        texts = [
            update.sources.model,
            update.sources.loss,
            update.config,
            update.sources.functions,
        ]
        while True:
            named = [
                (n, ast.dump(d)) for text in texts for n, d in _definitions(ast.parse(text)).items()
            ]
            differ = {name for name, written in named if known.get(name, written) != written}
            if not differ:
                break
            title = class_name(update.name).removesuffix("Step")
            new = {
                n: f"{n}Of{title}" if n[:1].isupper() else f"{n}_of_{update.name}" for n in differ
            }
            texts = [_renamed(text, new) for text in texts]
        known |= dict(named)
        model, loss, config, functions = texts
        sources = SplitSource(model, loss, functions)
        result.append(replace(update, sources=sources, config=config))
    return result


def _definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """Definitions of a module by name."""
    return {
        getattr(node, "name", "") or ast.unparse(getattr(node, "targets", [node])[0]): node
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
    }


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with other names, in code alone; attributes and methods keep theirs."""
    lines = text.splitlines(keepends=True)
    tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
    for before, token in reversed([*itertools.pairwise(tokens)]):
        owned = before.string == "." or (before.string == "def" and before.start[1] > 0)
        if token.type == tokenize.NAME and token.string in names and not owned:
            row, start = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:start] + names[token.string] + line[start + len(token.string) :]
    return "".join(lines)


def together(texts: Sequence[str]) -> str:
    """Join modules: definitions that are alike stand in it once."""
    head: dict[str, None] = {}
    known: dict[str, str] = {}
    docstring = ""
    for text in texts:
        tree, lines = ast.parse(text), text.splitlines()
        definitions = {id(node): name for name, node in _definitions(tree).items()}
        docstring = docstring or ast.get_docstring(tree) or ""
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                head |= dict.fromkeys(_single_imports(node))
        last = 0
        for node in tree.body:
            if name := definitions.get(id(node), ""):
                decorators = getattr(node, "decorator_list", [])
                first = min([node.lineno, *(d.lineno for d in decorators)])
                while first - 2 >= last and lines[first - 2].startswith("#"):
                    first -= 1  # a comment above
                known.setdefault(name, "\n".join(lines[first - 1 : node.end_lineno]))
            last = node.end_lineno or 0
    body = "\n\n\n".join(known.values())
    imports = "\n".join(sorted(head, key=lambda line: (not line.startswith("from __"), line)))
    return f'"""{docstring}"""\n\n{imports}\n\n\n{body}\n'


def model_text(sizes: Sequence[str], models: Sequence[str]) -> str:
    """`model.py`: the model, with its sizes, which a port has in a file of their own."""
    doc = ast.get_docstring(ast.parse(models[0]))
    return together([f'"""{doc}"""', *sizes, *models])


def _single_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    """A statement of import as one statement for each name."""
    parts = []
    for alias in node.names:
        if isinstance(node, ast.Import):
            parts.append(ast.unparse(ast.Import([alias])))
        else:
            parts.append(ast.unparse(ast.ImportFrom(node.module, [alias], node.level)))
    return parts


def losses_text(
    updates: Sequence[UpdateFacts], forwards: Sequence[ForwardFacts], script: str
) -> str:
    """`loss.py`: for each update the step's class, its arrays of a batch, and its loss."""
    sources = [update.sources for update in updates] + [call.sources for call in forwards]
    source = together([part.loss for part in sources])
    hold = ""
    if any(update.facts.frozen for update in updates):
        hold = '''

def hold(params, frozen):
    """The parameters, without gradients for those that an update does not train."""

    def held(path, value):
        name = "/".join(key.key for key in path)
        return jax.lax.stop_gradient(value) if name in frozen else value

    return jax.tree_util.tree_map_with_path(held, params)
'''
    parts = [*map(_loss_text, updates), *map(_forward_text, forwards)]
    doc = f'"""The losses of {script}: what each of its updates computes of a batch."""'
    source = re.sub(r'\A""".*?"""', lambda _: doc, source, count=1, flags=re.DOTALL)
    return f"{source}{hold}\n\n" + "\n\n".join(parts)


def _loss_text(update: UpdateFacts) -> str:
    facts, name = update.facts, update.name
    step, frozen = f"{name.upper()}_STEP", f"FROZEN_IN_{name.upper()}"
    reads = [
        f"        {key!r}: batch[{root!r}]" + "".join(f"[{part!r}]" for part in path) + ","
        for key, (root, path) in facts.inputs.items()
    ]
    arguments = ["**inputs"]
    if facts.takes_mode:
        arguments.append(f"deterministic={not facts.training}")
    if facts.draws:
        keys = ", ".join(
            f'"{stream}": jax.random.fold_in(key, {n})' for n, stream in enumerate(facts.streams)
        )
        arguments.append(f"rngs={{{keys}}}")
    statistics = facts.statistics and facts.training
    if statistics:
        arguments.append('mutable=["batch_stats"]')
    held = [f"    {path.removeprefix('params/')!r}," for path in facts.frozen]
    tree = f"hold(params, {frozen})" if held else "params"
    call = f"{step}.apply({{**state, 'params': {tree}}}, {', '.join(arguments)})"
    lines = [
        *(
            [f"# Parameters that {name} does not train.", f"{frozen} = {{", *held, "}"]
            if held
            else []
        ),
        f"{step} = {class_name(name)}({class_name(name)}Config())",
        "",
        "",
        f"def inputs_of_{name}(batch):",
        f'    """Arrays of a batch that {name} reads."""',
        "    return {",
        *reads,
        "    }",
        "",
        "",
        f"def {name}(params, state, inputs, key):",
        f'    """Loss of a micro-batch, of the backward at {facts.position}, and new statistics."""',
    ]
    if not statistics:
        return "\n".join([*lines, f"    return {call}, {{}}", ""])
    lines.append(f"    value, new = {call}")
    if update.seen:
        lines += [
            f"    # Statistics of {', '.join(update.seen)}: an update before has counted this batch already.",
            f"    seen = {set(update.seen)!r}",
            "    new = {c: {m: x for m, x in of.items() if m not in seen} for c, of in new.items()}",
        ]
    return "\n".join([*lines, "    return value, new", ""])


def _forward_text(forward: ForwardFacts) -> str:
    name, step = forward.name, f"{forward.name.upper()}_STEP"
    return f'''{step} = {forward.title}({forward.title}Config())


def {name}(params, state, inputs):
    """New statistics after {forward.where}."""
    _, new = {step}.apply(
        {{**state, "params": params}}, **inputs, deterministic=False, mutable=["batch_stats"]
    )
    return new
'''


def optimizers_text(updates: Sequence[UpdateFacts], script: str) -> str:
    """`optimizer.py`: a function for each update that gives its optimizer and its learning rate."""
    head: dict[str, None] = {}
    parts = []
    for update in updates:
        source = with_rate(update.optimizer)
        tree, lines = ast.parse(source), source.splitlines()
        imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        head |= dict.fromkeys(line for node in imports for line in _single_imports(node))
        first = max((n.end_lineno or 0 for n in (tree.body[0], *imports)), default=0)
        doc = ast.get_docstring(tree) or ""
        body = textwrap.indent("\n".join(lines[first:]).strip("\n"), "    ")
        parts.append(
            f'def {update.name}_optimizer():\n    """{doc}: the update, and its learning rate."""\n'
            f"{body}\n\n    return optimizer, learning_rate_of\n"
        )
    imported = "\n".join(head)
    return f'"""The optimizers of {script}."""\n\n{imported}\n\n\n' + "\n\n".join(parts)


def updates_train_text(
    updates: Sequence[UpdateFacts],
    forwards: Sequence[ForwardFacts],
    script: str,
    *,
    rollouts: bool,
    starts: bool,
) -> str:
    """`train.py`: the state, the updates, and the loop."""
    names = [update.name for update in updates]
    needed = [text for n in names for text in (n, f"inputs_of_{n}")]
    imported = ", ".join(sorted([*needed, *(forward.name for forward in forwards)]))
    called = _FORWARDS.format(
        entries="".join(
            f"    {f.name!r}: (jax.jit({f.name}, out_shardings=EVERYWHERE), {f.modules[0]!r}),\n"
            for f in forwards
        )
    )
    called, calls = (called, _CALLS_FORWARD) if forwards else ("", "")
    counted = "all updates"
    if forwards:
        counted = "updates and of FORWARDS"
    optimizers = ", ".join(sorted(f"{name}_optimizer" for name in names))
    entries = "".join(
        f"    {u.name!r}: Update({u.name}, inputs_of_{u.name}, *{u.name}_optimizer(), {u.modules!r}),\n"
        for u in updates
    )
    texts = loop_texts(rollouts=rollouts, several=True, forwards=bool(forwards))
    others_field = same_others = ""
    if starts:
        others_field = "\n    others: Any = None  # weights of modules that rollouts alone run"
        same_others = "\n        state.others,"
    return f'''"""The training of {script} in JAX: {len(names)} updates, each with a loss and an optimizer.

    python train.py [--updates N]{texts.usage} [--save FILE]
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
{texts.imports}from devices import EVERYWHERE, by_rows, replicated
from flax.traverse_util import flatten_dict, unflatten_dict
from loss import {imported}
from optimizer import {optimizers}
from safetensors.flax import load_file, save_file

PARAMS = Path(__file__).with_name({PARAMS!r})
KEY = jax.random.key(0)  # of random numbers


class Update(NamedTuple):
    """One kind of update: its loss, its optimizer, and the modules that its loss reads."""

    loss_of: Callable[..., Any]
    inputs_of: Callable[..., Any]
    optimizer: optax.GradientTransformation
    learning_rate_of: Callable[..., Any]
    modules: tuple[str, ...]

    def part(self, tree):
        """The part of a tree of modules that the loss reads."""
        return {{name: tree[name] for name in self.modules if name in tree}}


UPDATES = {{
{entries}}}


class State(NamedTuple):
    """Parameters, other variables, each optimizer's state, updates by name, the number of {counted}."""

    params: Any
    variables: Any
    opt_states: Any
    counts: Any
    step: int{others_field}


{LOAD}
    opt_states = {{name: u.optimizer.init(u.part(params)) for name, u in UPDATES.items()}}
    counts = dict.fromkeys(UPDATES, 0)
    return State(*replicated((params, variables, opt_states)), counts, 0)


{SAVE}

{texts.functions}
VALUE_AND_GRAD = {{
    name: jax.jit(jax.value_and_grad(update.loss_of, has_aux=True), out_shardings=EVERYWHERE)
    for name, update in UPDATES.items()
}}


@functools.partial(jax.jit, static_argnums=0, out_shardings=EVERYWHERE)
def apply(name, params, opt_state, grads):
    """One update of the weights."""
    updates, opt_state = UPDATES[name].optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


{called}def train_step(state, name, micro, value_and_grad=VALUE_AND_GRAD):
    """The update of a name over micro-batches, whose gradients are summed as torch sums them.

    Returns:
        The new state, the loss of each micro-batch, and the learning rate.
    """{calls}
    update = UPDATES[name]
    params = update.part(state.params)
    variables = {{kind: dict(tree) for kind, tree in state.variables.items()}}
    losses, grads = [], None
    for number, batch in enumerate(micro):
        inputs = by_rows(update.inputs_of(batch))
        others = {{kind: update.part(tree) for kind, tree in variables.items()}}
        key = jax.random.fold_in(KEY, state.step * 1024 + number)
        (value, new), more = value_and_grad[name](params, others, inputs, key)
        for kind, tree in new.items():
            variables[kind].update(tree)
        losses.append(value)
        grads = more if grads is None else jax.tree.map(jnp.add, grads, more)
    params, opt_state = apply(name, params, state.opt_states[name], grads)
    count = state.counts[name]
    new = State(
        {{**state.params, **params}},
        variables,
        {{**state.opt_states, name: opt_state}},
        {{**state.counts, name: count + 1}},
        state.step + 1,{same_others}
    )
    return new, losses, update.learning_rate_of(count)


def main():
    """Train on the script's batches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\\n")[0])
    add = parser.add_argument
    add("--updates", type=int, default=sys.maxsize, help="updates of the weights in all")
{texts.options}
    add("--save", type=Path, help="file for the trained weights")
    asked = parser.parse_args()
{texts.loop}
    if asked.save is not None and jax.process_index() == 0:
        save(state, asked.save)


def report(number, name, losses, rate):
    """Print one update."""
    loss = sum(float(x) for x in losses)
    print(f"update {{number}}: {{name}} {{loss:.6f}}, learning rate {{float(rate):.3e}}", flush=True)
{texts.reports}

if __name__ == "__main__":
    main()
'''


_FORWARDS = '''\
# Calls of modules outside of the updates, in training mode: data.py gives their inputs at their places.
FORWARDS = {{
{entries}}}


def run_forward(state, name, inputs):
    """The call of a name: it moves the running statistics of its module."""
    statistics_of, module = FORWARDS[name]
    own = {{kind: {{module: of[module]}} for kind, of in state.variables.items() if module in of}}
    params = {{module: state.params[module]}}
    new = statistics_of(params, own, by_rows(inputs))
    variables = {{kind: {{**of, **new.get(kind, {{}})}} for kind, of in state.variables.items()}}
    return state._replace(variables=variables, step=state.step + 1)


'''
_CALLS_FORWARD = """
    if name in FORWARDS:
        [inputs] = micro
        return run_forward(state, name, inputs), [], None"""


def updates_test_text(
    updates: Sequence[UpdateFacts], forwards: Sequence[ForwardFacts], script: str, count: int
) -> str:
    """`test_same.py`: the program against the recorded run of the script."""
    noise = any(update.facts.noise for update in updates)
    linen = "from flax import linen as nn\n"
    wrapped = ""
    if noise:
        linen += "from migrate.train.noise import with_noise\n"
        wrapped = "import loss\n\n# The script drew these numbers too.\n" + "".join(
            f"loss.{u.name} = with_noise(loss.{u.name})\n" for u in updates
        )
    inputs = {update.name: dict(update.facts.inputs) for update in updates}
    inputs |= {forward.name: {n: (n, ()) for n in forward.inputs} for forward in forwards}
    return f'''"""The program gives the losses of the first {count} updates of {script}.

    python -m pytest test_same.py
"""

import sys
from pathlib import Path

import jax
import numpy as np
{linen}
sys.path.insert(0, str(Path(__file__).parent))
{wrapped}
import train

RECORDED = Path(__file__).with_name("recorded.npz")
INPUTS = {inputs!r}


def updates():
    """The recorded updates: name, micro-batches, and the script's losses."""
    recorded = np.load(RECORDED)
    for number in range(int(recorded["updates"])):
        name = str(recorded[f"{{number}}/name"])
        micro = []
        for position in range(int(recorded[f"{{number}}/micro"])):
            batch = {{}}
            for argument, (root, path) in INPUTS[name].items():
                put(batch, (root, *path), recorded[f"{{number}}/{{position}}/{{argument}}"])
            micro.append(batch)
        yield name, micro, recorded[f"{{number}}/losses"]


def put(batch, keys, value):
    """Put a value into nested dictionaries; the loss reads lists by index too."""
    *above, last = keys
    for key in above:
        batch = batch.setdefault(key, {{}})
    batch[last] = value


def test_losses_are_the_scripts(monkeypatch):
    monkeypatch.setattr(nn.Dropout, "__call__", lambda self, inputs, *args, **kwargs: inputs)
    with jax.default_matmul_precision("highest"):
        state = train.load()
        for name, micro, expected in updates():
            state, losses, _ = train.train_step(state, name, micro)
            np.testing.assert_allclose(np.array(losses), expected, rtol=1e-5)
'''
