"""Evaluators of libraries that merge the results of the replicas by a collective of their own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

EVALUATOR = """
    from faster_coco_eval.utils.pytorch import FasterCocoEvaluator


    class Evaluator(FasterCocoEvaluator):
        {body}
"""
JUDGE = """
    import torch
    from evaluator import Evaluator


    def main():
        {start}
        model = torch.nn.Linear(4, 4).to("cuda")
        evaluator = Evaluator(None, ["bbox"])
        evaluator.update({1: model(torch.ones(4, device="cuda"))})
        evaluator.synchronize_between_processes()


    if __name__ == "__main__":
        main()
"""
JOINS = 'torch.distributed.init_process_group("nccl")'


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("body", "start", "reported"),
    [
        ("pass", JOINS, True),
        ("def summarize(self): ...", JOINS, True),
        ("def synchronize_between_processes(self): ...", JOINS, False),
        ("pass", 'print("alone")', False),
    ],
)
def test_an_evaluator_that_gathers_by_itself(
    tmp_path: Path, body: str, start: str, reported: bool, style: Style
) -> None:
    """It raised at the end of the first evaluation, and nothing had been said."""
    (tmp_path / "evaluator.py").write_text(textwrap.dedent(EVALUATOR.replace("{body}", body)))
    (tmp_path / "judge.py").write_text(textwrap.dedent(JUDGE.replace("{start}", start)))
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    hits = [
        (file.name.name, note.line)
        for file in done.files
        for note in file.findings
        if "faster_coco_eval" in note.message
    ]
    assert hits == [("evaluator.py", 5)] * reported
