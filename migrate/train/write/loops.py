"""Parts of a written `train.py` that depend on where the batches come from: a loader, or rollouts."""

from __future__ import annotations

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


OF_LOADER = LoopTexts(
    " [--checkpoints FOLDER [--every N]]",
    "",
    "",
    """
    folder = os.environ.get("CHECKPOINTS")
    add("--checkpoints", default=folder, help="folder to store the state in, and to resume from")
    add("--every", type=int, default=500, help="updates between two checkpoints; default: 500")
""".strip("\n"),
    """
    if asked.every < 1:
        parser.error(f"--every {asked.every}: at least 1")
    from checkpoints import PREEMPTED, Checkpoints
    from data import batches

    kept, pending = Checkpoints(asked.checkpoints, asked.every), None
    state, rest = kept.resume(load(), batches())
    for micro in rest:
        if state.step >= asked.updates:
            break
        number = state.step
        state, losses, rate = train_step(state, micro)
        if pending is not None:
            report(*pending)  # read one update late: the device need not wait
        pending = number, losses, rate
        if kept.ends(state, micro):
            break
    if pending is not None:
        report(*pending)
    kept.close()
    if kept.preempted:
        sys.exit(PREEMPTED)
""".strip("\n"),
)
OF_ROLLOUTS = LoopTexts(
    "",
    "\nfrom torch_names import by_torch_names",
    '''
KEPT = PARAMS.with_suffix(".torch.safetensors")  # what the way back to torch needs


def in_torch(state):
    """Weights of a state by torch's names: module.name → array."""
    return by_torch_names({"params": state.params, **state.variables}, KEPT)

''',
    """
    if os.environ.get("CHECKPOINTS"):
        parser.error("CHECKPOINTS is set, but a program with rollouts stores none: unset it")
""".strip("\n"),
    """
    from data import batches

    state = load()
    for micro in batches(lambda: in_torch(state)):
        if state.step >= asked.updates:
            break
        number = state.step
        state, losses, rate = train_step(state, micro)
        report(number, losses, rate)
""".strip("\n"),
)
