"""The transformer example rewritten for torch_tpu, rightly and wrongly: every fault is found, and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.prove.compare.verdict import ProofVerdict, judge_with_floor
from migrate.prove.proof import record_run
from migrate.prove.recording.records import RankRecord
from migrate.prove.runtimes import RUNTIMES
from migrate.prove.settings import Settings
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions
from tests.prove.test_faults import edited
from tests.prove.test_faults_of_the_transformer import ARGS, EXAMPLE, FAULTS, SETTINGS, Twice
from tests.prove.test_faults_on_torch_tpu import for_torch_tpu

pytestmark = [pytest.mark.torch_tpu, pytest.mark.long]

ON_TPU = {
    name: replace(
        fault,
        edits=tuple((for_torch_tpu(old), for_torch_tpu(new)) for old, new in fault.edits),
        says=tuple(map(RUNTIMES[TPU].in_words, fault.says)),
    )
    for name, fault in FAULTS.items()
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """The original, run twice for all faults: its noise is that of Adam, for gradients near zero."""
    runs = []
    for reordered in (False, True):
        folder = tmp_path_factory.mktemp("original")
        script = folder / "train.py"
        script.write_text((EXAMPLE / "before.py").read_text())
        how: dict[str, Any] = {"side": "original", "replicas": 2, "folder": folder}
        runs.append(record_run(script, ARGS, settings=SETTINGS, reordered=reordered, **how)[0])
    return runs[0], runs[1]


@pytest.fixture(scope="module")
def written() -> str:
    options = RewriteOptions(config=Config(target=TPU))
    return rewrite_file(EXAMPLE / "before.py", options).data.decode()


def recorded(
    folder: Path, settings: Settings, text: str, *edits: tuple[str, str]
) -> tuple[Path, dict[int, RankRecord]]:
    script = folder / "train_tpu.py"
    script.write_text(edited(text, *edits))
    how: dict[str, Any] = {"side": "tpu", "replicas": 2, "folder": folder}
    return script, record_run(script, ARGS, settings=settings, **how)[0]


@pytest.mark.parametrize("name", ON_TPU)
def test_a_fault_is_found_at_its_step_and_named(
    name: str, original: Twice, written: str, tmp_path: Path
) -> None:
    fault = ON_TPU[name]
    script, ours = recorded(tmp_path, fault.settings(amp="off"), written, *fault.edits)
    judgement = judge_with_floor(original[0], ours, lambda: original[1])
    assert judgement.verdict is ProofVerdict.DIFFERS, judgement.message
    assert judgement.difference is not None
    message = RUNTIMES[TPU].in_words(judgement.message)
    assert (judgement.difference.step, judgement.difference.kind) == (fault.step, fault.kind), (
        message
    )
    for part in fault.says:
        assert part in message
    if fault.at:
        lines = script.read_text().splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if fault.at in line]
        assert f"{script.name}:{number}" in message


def test_the_rewrite_is_equal(original: Twice, written: str, tmp_path: Path) -> None:
    judgement = judge_with_floor(
        original[0], recorded(tmp_path, SETTINGS, written)[1], lambda: original[1]
    )
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    assert judgement.difference is None
