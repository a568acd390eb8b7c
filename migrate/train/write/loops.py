"""Parts of a written `train.py` that depend on where the batches come from: a loader, or rollouts."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopTexts:
    """Parts of `train.py`.

    Attributes:
        usage: options of the command line, beside those of every program.
        imports: a further line of imports.
        functions: further functions.
        options: statements that add options.
        loop: the loop of `main`.
    """

    usage: str
    imports: str
    functions: str
    options: str
    loop: str


_CHECKPOINTS = """
    folder = os.environ.get("CHECKPOINTS")
    add("--checkpoints", default=folder, help="folder to store the state in, and to resume from")
    add("--every", type=int, default=500, help="updates between two checkpoints; default: 500")
""".strip("\n")
_NO_CHECKPOINTS = """
    if os.environ.get("CHECKPOINTS"):
        parser.error("CHECKPOINTS is set, but a program with rollouts stores none: unset it")
""".strip("\n")
_IN_TORCH = '''
KEPT = PARAMS.with_suffix(".torch.safetensors")  # what the way back to torch needs


def in_torch(state):
    """Weights of a state by torch's names: module.name → array."""
    return by_torch_names({"params": state.params, **state.variables}, KEPT)

'''


# The last updates are reported before an evaluation.
_EVALUATE = """
    def report_late():
        nonlocal late
        if late:
            report(*late)
        late = None

    evaluations = Evaluations(asked.checkpoints, report_late)
    with contextlib.redirect_stdout(None):  # evaluations of updates that are skipped
        state, rest = kept.resume(load(), batches(evaluations))
    evaluations.start(state)
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # the first host prints
"""


def loop_texts(
    *, rollouts: bool, several: bool = False, forwards: bool = False, evaluates: bool = False
) -> LoopTexts:
    """Parts of `train.py`.

    Args:
        rollouts: whether `data.py` runs the trained modules.
        several: whether there are several kinds of updates, each with a name.
        forwards: whether there are calls of modules between them.
        evaluates: whether the loop evaluates.
    """
    name = "name, " if several else ""
    batch = "(name, micro)" if several else "micro"
    count = "sum(state.counts.values())" if several else "state.step"
    if forwards:  # a call between the updates is none: the loop counts the updates alone
        turns, ends = (
            "BATCHES",
            f"""
        if {count} >= asked.updates:
            break""",
        )
    else:
        turns, ends = f"itertools.islice(BATCHES, max(0, asked.updates - {count}))", ""
    if rollouts:
        turns = turns.replace("BATCHES", "batches(lambda: in_torch(state))")
        loop = f"""
    from data import batches

    state = load()
    for {name}micro in {turns}:{ends}
        state, losses, rate = train_step(state, {name}micro)
        report({count} - 1, {name}losses, rate)
"""
        imports = "from converters.reverse import by_torch_names\n"
        return LoopTexts("", imports, _IN_TORCH, _NO_CHECKPOINTS, loop.strip("\n"))
    late = f"""
        if late:
            report(*late)  # read one update late: the device need not wait
        late = {count} - 1, {name}losses, rate"""
    if forwards:
        late = f"""
        if name in UPDATES:{textwrap.indent(late, "    ")}"""
    loop = f"""
    if asked.every < 1:
        parser.error(f"--every {{asked.every}}: at least 1")
    from checkpoints import PREEMPTED, Checkpoints
    from data import batches

    kept, late = Checkpoints(asked.checkpoints, asked.every), None
    state, rest = kept.resume(load(), batches())
    for {name}micro in {turns.replace("BATCHES", "rest")}:{ends}
        state, losses, rate = train_step(state, {name}micro){late}
        if kept.ends(state, {batch}):
            break
    if late:
        report(*late)
    kept.close()
    if kept.preempted:
        sys.exit(PREEMPTED)
"""
    if evaluates:
        resumed = "    state, rest = kept.resume(load(), batches())\n"
        loop = loop.replace(resumed, _EVALUATE)
        loop = loop.replace(
            "import batches\n", "import batches\n    from evaluate import Evaluations\n"
        )
        stepped = "train_step(state, micro)\n"
        loop = loop.replace(stepped, f"{stepped}        evaluations.state = state\n")
    return LoopTexts(" [--checkpoints FOLDER [--every N]]", "", "", _CHECKPOINTS, loop.strip("\n"))
