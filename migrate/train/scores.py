"""The option `--scores`: the variable of a script with the scores of a rollout."""

from __future__ import annotations

from pathlib import Path

from migrate import process
from migrate.train.errors import TrainError
from migrate.train.proof.program import child


def require_scores(scores: str, place: Path, work: Path, timeout: float) -> None:
    """Require the variable with the scores of a rollout.

    Args:
        scores: the variable, as `function:name`.
        place: the folder of the program.
        work: a folder for the answer.
        timeout: seconds.

    Raises:
        TrainError: it is not there when the first update is computed.
    """
    answer = work / "scores.json"
    module = "migrate.train.proof.rollouts_child"
    code, said = child(module, (place, scores, answer), timeout)
    if code == 0 and answer.exists():
        return
    why = process.last_line(said).rpartition("Error: ")[2].strip("\"'")[:200]
    raise TrainError(
        f"--scores {scores}: {why or 'the rollout took too long'}",
        "name a variable that is there when the first update is computed, as FUNCTION:NAME",
    )
