"""Parts of a written `train.py` that depend on where the batches come from: a loader, or rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.train.slice.evaluation import EVALUATED


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
) -> LoopTexts:
    """Parts of `train.py`.

    Args:
        rollouts: whether `data.py` runs the trained modules.
        several: whether there are several kinds of updates, each with a name.
        forwards: whether there are calls of modules between them.
        evaluates: whether the loop evaluates.
        norm: whether reports have the norm of the gradients.
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
    imported = evaluator = moved = ""
    data = "from data import batches"
    resumed = "\n    state, rest = kept.resume(load(), batches())"
    if evaluates:
        imported = "\n    from evaluate import Evaluations"
        data = "import data"
        evaluator = f"\n    evaluations = data.{EVALUATED} = Evaluations(load(), kept.values, late)"
        resumed = """
    with contextlib.redirect_stdout(None):  # what the updates print that are skipped
        state, rest = kept.resume(evaluations.state, data.batches())
    evaluations.state = state"""
        moved = "\n        evaluations.state = state"
    more = ", state.norm" if norm else ""
    late = f"late({count} - 1, {name}losses, rate{more})"
    if forwards:  # a call between the updates is none: the loop counts the updates alone
        late = f"if name in UPDATES:\n            {late}"
    loop = f"""
    if asked.every < 1:
        parser.error(f"--every {{asked.every}}: at least 1")
    {data}{imported}
{_FIRST_HOST}
    kept, late = Checkpoints(asked.checkpoints, asked.every), Late(){evaluator}{resumed}
    for {name}micro in rest:{ends}
        state, losses, rate = train_step(state, {name}micro){moved}
        {late}
        kept.store(state, {"(name, micro)" if several else "micro"})
    late()
    kept.close()
"""
    return LoopTexts(
        " [--checkpoints FOLDER [--every N]]",
        "from checkpoints import Checkpoints\n",
        "",
        _CHECKPOINTS,
        loop.strip("\n"),
        _LATE,
    )
