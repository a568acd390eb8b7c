"""Mistakes planted into programs of `migrate train`: does `migrate prove --against` find and name each?

    python benchmarks/train_mistakes/planted.py [--only WORD] [--only WORD]

Two scripts beside this file are written as programs once, and run once more for the comparison. Each mistake
is a change of the text of a program's file, or of its weights. It counts as named if the cause that the proof
reports begins with the mistake's words.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from migrate.progress import no_progress  # noqa: E402
from migrate.train.against import compare_program, record_script  # noqa: E402
from migrate.train.options import TrainOptions  # noqa: E402
from migrate.train.pipeline import train_program  # noqa: E402

UPDATES = 6


@dataclass(frozen=True)
class Planted:
    """A mistake.

    Attributes:
        script: the script whose program gets it.
        file: file of the program.
        before: text there.
        after: text in its place.
        words: beginning of the cause that has to be reported.
    """

    script: str
    file: str
    before: str
    after: str
    words: str


_ENTROPY = "nll = cross_entropy(nll, nll_2)"
_ROWS = (
    "nll = jnp.stack([cross_entropy(*row) for row in "
    "zip(nll.reshape(4, 11, -1), nll_2.reshape(4, 11))]).mean()"
)
_ADAMW = "optax.adamw(scheduler, b1=0.9, b2=0.95, eps=1e-08, weight_decay=0.1, mask=decayed)"
_COUPLED = (
    "optax.add_decayed_weights(0.1, decayed), optax.adam(scheduler, b1=0.9, b2=0.95, eps=1e-08)"
)
_APPLY = "apply(state.params, state.opt_state, grads)"
_AVERAGED = "apply(state.params, state.opt_state, jax.tree.map(lambda x: x / len(micro), grads))"
_SUM = "grads = more if grads is None else jax.tree.map(jnp.add, grads, more)"
_FOLDED = "jax.random.fold_in(KEY, state.step * 1024 + number)"
_ANY = "params.safetensors"

_BATCHES = "enumerate(make_batches(40))"
_LATE = "enumerate(list(make_batches(40))[1:])"
_PADDED = "loss = jnp.where(counts, loss, 0.0)"
_NORM, _OTHER = "momentum=0.1, **self.dtypes", "momentum=0.9, **self.dtypes"
_FACTOR = "return (nll + pull * 0.5) / 2"

# Of each script: file of the program, text there, text in its place, and how the cause begins.
_LANGUAGE = (
    (
        "loss.py",
        "jax.lax.stop_gradient(hidden.mean(axis=1))",
        "hidden.mean(axis=1)",
        "lost stop_gradient",
    ),
    (
        "loss.py",
        "loss.sum() / counts.sum()",
        "loss.mean()",
        "padding counted: ignored labels count",
    ),
    (
        "loss.py",
        _PADDED,
        "counts = jnp.ones_like(counts)",
        "padding counted: ignored labels are taken",
    ),
    ("loss.py", _ENTROPY, _ROWS, "mean of means"),
    (
        "loss.py",
        "shift_labels = labels[:, 1:]",
        "shift_labels = labels[:, :-1]",
        "labels not shifted",
    ),
    ("loss.py", "rewards.var(ddof=1)", "rewards.var()", "biased variance"),
    ("loss.py", _FACTOR, "return nll + pull * 0.5", "the loss is 2 times"),
    ("train.py", _APPLY, _AVERAGED, "double averaging"),
    ("train.py", _SUM, "grads = more", "only the last micro-batch"),
    ("optimizer.py", ", mask=decayed", "", "decay on biases"),
    ("optimizer.py", "weight_decay=0.1", "weight_decay=0.0", "lost weight decay"),
    ("optimizer.py", _ADAMW, _COUPLED, "coupled weight decay"),
    ("optimizer.py", "* rate(step)", "* rate(step + 1)", "schedule off by one"),
    ("optimizer.py", "b2=0.95", "b2=0.999", "other betas"),
    ("optimizer.py", "optax.clip_by_global_norm(0.5),", "", "lost clipping"),
    ("optimizer.py", "eps=1e-08", "eps=0.001", "another eps"),
    ("data.py", _BATCHES, _LATE, "batches are ahead"),
    ("data.py", "np.asarray(labels)", "np.asarray(tokens)", "labels not shifted"),
    (_ANY, "params/model/hidden/kernel", "", "other initialization"),
)
_VISION = (
    ("loss.py", "deterministic=False", "deterministic=True", "evaluation mode"),
    ("model.py", "unbiased = var * (rows / (rows - 1))", "unbiased = var", "biased variance"),
    ("model.py", _NORM, _OTHER, "another momentum of running statistics"),
    ("optimizer.py", "momentum=0.9", "momentum=0.9, nesterov=True", "momentum of Nesterov"),
    ("loss.py", ", smoothing=0.1", "", "lost label smoothing"),
    ("train.py", _FOLDED, "KEY", "dropout draws the same masks"),
    ("data.py", "shuffle=True", "shuffle=False", "another order"),
)
MISTAKES = tuple(
    Planted(script, *mistake)
    for script, mistakes in (("language", _LANGUAGE), ("vision", _VISION))
    for mistake in mistakes
)


@dataclass(frozen=True)
class Outcome:
    """What the proof says of a mistake.

    Attributes:
        mistake: the mistake.
        found: whether a comparison differs.
        causes: the causes that it reports.
    """

    mistake: Planted
    found: bool
    causes: tuple[str, ...]

    @property
    def named(self) -> bool:
        """Whether the first cause is the mistake."""
        return bool(self.causes) and self.causes[0].startswith(self.mistake.words)


def outcomes(work: Path, only: Sequence[str] = ()) -> Iterator[Outcome]:
    """Write the programs, plant each mistake, and yield what the proof says.

    Raises:
        ValueError: a program without a mistake differs, or has not the text that a mistake replaces.
    """
    for script in dict.fromkeys(mistake.script for mistake in MISTAKES):
        own = [m for m in MISTAKES if m.script == script]
        chosen = [m for m in own if not only or any(word in name_of(m) for word in only)]
        if not chosen:
            continue
        folder, run_folder = work / script, work / f"{script}-run"
        run_folder.mkdir(parents=True)
        options = TrainOptions(HERE / f"{script}.py", folder, updates=UPDATES, proof=False)
        train_program(options, "", no_progress)
        for mistake in chosen:
            require_text(folder, mistake)
        (folder / "interface.py").unlink()  # it is the same in all: nothing is planted there
        run = record_script(options, run_folder, no_progress)
        right = compare_program(folder, run)
        if not right.same:
            raise ValueError(f"{script}: the program differs without a mistake: {right}")
        for mistake in chosen:
            planted = work / "planted"
            shutil.copytree(folder, planted)
            plant(planted, mistake)
            proof = compare_program(planted, run)
            shutil.rmtree(planted)
            causes = [c.cause or c.what for c in proof.comparisons if not c.same]
            yield Outcome(mistake, not proof.same, (*causes, *filter(None, [proof.error])))


def name_of(mistake: Planted) -> str:
    """Script and words; the file, too, where an earlier mistake of the script has the same words."""
    alike = [m for m in MISTAKES if (m.script, m.words) == (mistake.script, mistake.words)]
    file = "" if mistake == alike[0] else f", {mistake.file}"
    return f"{mistake.script}{file}: {mistake.words}"


def plant(folder: Path, mistake: Planted) -> None:
    """Put a mistake into a program.

    Raises:
        ValueError: the file has not the text.
    """
    file = folder / mistake.file
    if mistake.file == _ANY:
        from safetensors.numpy import load_file, save_file

        arrays = load_file(file)
        arrays[mistake.before] = arrays[mistake.before] ** 3
        save_file(arrays, file)
        return
    require_text(folder, mistake)
    file.write_text(file.read_text().replace(mistake.before, mistake.after))


def require_text(folder: Path, mistake: Planted) -> None:
    """Require that a program has the text that a mistake replaces.

    Raises:
        ValueError: it has not.
    """
    file = folder / mistake.file
    if mistake.file != _ANY and mistake.before not in file.read_text():
        raise ValueError(f"{file} has no {mistake.before!r}")


def main() -> None:
    """Print a line for each mistake, and append them to the history."""
    from history import append

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    asked = parser.parse_args()
    named = count = 0
    with tempfile.TemporaryDirectory(prefix="train-mistakes-") as work:
        for outcome in outcomes(Path(work), asked.only):
            mistake = outcome.mistake
            count += 1
            named += outcome.named
            first = outcome.causes[0] if outcome.causes else ""
            print(
                f"{'named' if outcome.named else 'MISSED'} | {mistake.words} | {outcome.causes}",
                flush=True,
            )
            row = {
                "mistake": name_of(mistake),
                "found": "yes" if outcome.found else "no",
                "named": "yes" if outcome.named else "no",
                "cause": first,
            }
            append("train-mistakes", row)
    print(f"{named} of {count} named")


if __name__ == "__main__":
    main()
