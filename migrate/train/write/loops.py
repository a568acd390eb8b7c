"""Parts of a written `train.py` that depend on where the batches come from: a loader, or rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.train.slice.evaluation import EVALUATED
from migrate.train.write.logged import logged_texts


@dataclass(frozen=True)
class LoopTexts:
    """Parts of `train.py`.

    Attributes:
        usage: options of the command line, beside those of every program.
        imports: a further line of imports.
        functions: further functions.
        options: statements that add options.
        loop: the loop of `main`.
        reports: what prints the updates late.
    """

    usage: str
    imports: str
    functions: str
    options: str
    loop: str
    reports: str


_CHECKPOINTS = """
    add("--checkpoints", default=os.environ.get("CHECKPOINTS"), help="folder to resume from")
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


# Prints an update when the next one is under way.
_LATE = '''

class Late:
    """Reports each update once the next one is under way: the device need not wait."""

    def __init__(self):
        self._update = ()

    def __call__(self, *update):
        if self._update:
            report(*self._update)
        self._update = update
'''
_FIRST_HOST = """
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # the first host prints
"""


def loop_texts(
    *,
    rollouts: bool,
    several: bool = False,
    forwards: bool = False,
    evaluates: bool = False,
    norm: bool = False,
    logged: Sequence[str] = (),
) -> LoopTexts:
    """Parts of `train.py`.

    Args:
        rollouts: whether `data.py` runs the trained modules.
        several: whether there are several kinds of updates, each with a name.
        forwards: whether there are calls of modules between them.
        evaluates: whether the loop evaluates.
        norm: whether reports have the norm of the gradients.
        logged: values of an update that log lines in `data.py` read; no update is reported beside them.
    """
    name = "name, " if several else ""
    count = "sum(state.counts.values())" if several else "state.step"
    ends = f"""
        if {count} >= asked.updates:
            break"""
    if rollouts:
        turns = "batches(lambda: in_torch(state))"
        if not forwards:  # a rollout for no update takes long
            turns, ends = f"itertools.islice({turns}, asked.updates)", ""
        loop = f"""
    from data import batches
{_FIRST_HOST}
    state = load()
    for {name}micro in {turns}:{ends}
        state, losses, rate = train_step(state, {name}micro)
        report({count} - 1, {name}losses, rate)
"""
        imports = "from converters.reverse import by_torch_names\n"
        return LoopTexts("", imports, _IN_TORCH, _NO_CHECKPOINTS, loop.strip("\n"), "")
    imported = evaluator = moved = started = ""
    data = "import data" if evaluates or logged else "from data import batches"
    named = "data.batches()" if evaluates or logged else "batches()"
    fresh = "load()"
    if evaluates:
        imported = "\n    from evaluate import Evaluations"
        before = "" if logged else ", late"
        fresh = "evaluations.state"
        evaluator = (
            f"\n    evaluations = data.{EVALUATED} = Evaluations(load(), kept.values{before})"
        )
        moved = "\n        evaluations.state = state"
    resumed = f"state, rest = kept.resume({fresh}, {named})"
    if evaluates or logged:
        resumed = f"""\
with contextlib.redirect_stdout(None):  # what the updates print that are skipped
        {resumed}"""
    more = ", state.norm" if norm else ""
    update, last = f"{count} - 1, {name}losses, rate{more}", ""
    if logged:
        started, late = logged_texts(logged)
    elif evaluates or forwards:
        late, last = f"late({update})", "\n    late()"
    else:
        late = f"""\
if shown:  # the update before this one: the device need not wait
            report(*shown)
        shown = {update}"""
        last = "\n    if shown:\n        report(*shown)"
    if forwards:  # a call between the updates is none: the loop counts the updates alone
        late = f"if name in UPDATES:\n            {late}"
    kept = "kept = Checkpoints(asked.checkpoints, asked.every)"
    if late.startswith("late") or forwards:
        kept = f"{kept.replace('kept', 'kept, late', 1)}, Late()"
    elif not logged:
        kept = f"{kept.replace('kept', 'kept, shown', 1)}, ()"
    loop = f"""
    if asked.every < 1:
        parser.error(f"--every {{asked.every}}: at least 1")
    {data}{imported}
{_FIRST_HOST}
    {kept}{evaluator}
    {resumed}{moved.replace("        ", "    ")}{started}
    for {name}micro in rest:{ends}
        state, losses, rate = train_step(state, {name}micro){moved}
        {late}
        kept.store(state, {"(name, micro)" if several else "micro"}){last}
    kept.close()
"""
    return LoopTexts(
        " [--checkpoints FOLDER [--every N]]",
        "from checkpoints import Checkpoints\n",
        "",
        _CHECKPOINTS,
        loop.strip("\n"),
        _LATE if last.endswith("late()") else "",
    )
