"""Findings that were wrong in public projects, each as a small script."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.check.hazard import Severity
from migrate.rewrite.check_findings import check_and_mend


def reported(folder: Path, code: str, **files: str) -> list[Finding]:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return list(check_and_mend([folder], Config(select=(code,))).findings)


RUN = """
    import build
    import torch


    def run(net, config):
        net = torch.nn.DataParallel(net).cuda()
        optimizer, scheduler = build.optimizer_of(net, config)
        for epoch in range(0, config.epochs + 1):
            scheduler.step(epoch)
"""
BUILD = """
    import torch
    from schedules import own


    def optimizer_of(net, config):
        optimizer = torch.optim.Adam(net.parameters(), lr=config.lr)
        schedule = config.schedule
        if schedule.kind == "own":
            scheduler = own(optimizer, schedule.options)
        else:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, **schedule.options)
        return optimizer, scheduler
"""


def test_settings_of_which_a_scheduler_is_made_are_no_optimizer(tmp_path: Path) -> None:
    """The optimizer was said to be made before the model moves, which it is not."""
    assert not reported(tmp_path, "XLA805", run=RUN, build=BUILD)
    late = RUN.replace("config.epochs", "config.param_groups")
    assert reported(tmp_path, "XLA805", run=late, build=BUILD)


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("print(torch.cuda.is_available())", Severity.INFO),
        ('print(f"GPU: {torch.cuda.is_available()}")', Severity.INFO),
        ('print("%d GPUs" % torch.cuda.device_count())', Severity.INFO),
        ("print(list(range(torch.cuda.device_count())))", Severity.ERROR),
        ("start(torch.cuda.is_available())", Severity.ERROR),
    ],
)
def test_a_question_that_is_only_printed(tmp_path: Path, line: str, severity: Severity) -> None:
    """A printed `False` chooses no device; it was an error."""
    text = f"""
        import torch


        def main(start):
            {line}
            return torch.nn.Linear(2, 2).to("cuda:0")
    """
    assert [f.severity for f in reported(tmp_path, "XLA704", main=text)] == [severity]


ALONE = """
    import numpy as np
    import torch


    def evaluate(net, batches):
        return [(net(x.cuda()) > 0).float().mean().item() for x in batches]


    def main(net, batches, optimizer):
        net.cuda()
        best = 0
        for epoch in range(3):
            for x in batches:
                net(x.cuda()).mean().backward()
                optimizer.step()
            accuracy = np.mean(evaluate(net, batches))
            if accuracy > best:
                best = accuracy
                torch.save(net.state_dict(), "best.pt")


    {start}
"""
GUARD = 'if __name__ == "__main__":\n        main(*options())'
REPLICAS = """
    import torch
    import torch.distributed as dist


    def main():
        dist.init_process_group("nccl")
        print(dist.get_rank())


    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("start", "more", "apart"),
    [
        (GUARD, "", False),
        (GUARD, "import train\n", True),  # one process runs both
        ("", "", True),  # something else may load it
        (
            "from torch import distributed\n    print(distributed.get_rank())\n    " + GUARD,
            "",
            True,
        ),
    ],
)
def test_conditions_of_a_script_of_one_process(
    tmp_path: Path, start: str, more: str, apart: bool
) -> None:
    """Beside a script of several processes, its conditions were said to differ between replicas."""
    files = {"alone__eval": ALONE.replace("{start}", start), "train": REPLICAS}
    if more:
        files = {"eval": files["alone__eval"].replace("import numpy", more + "    import numpy", 1)}
        files["train"] = REPLICAS
    hits = [f for f in reported(tmp_path, "XLA301", **files) if "eval.py" in str(f.path)]
    assert any("net" in f.message or "accuracy > best" in f.message for f in hits) is apart


DATA = """
    import torch
    from torch_geometric.data import {base}


    class Molecules({base}):
        def process(self):
            data, slices = self.collate([])
            torch.save((data, slices), self.processed_paths[0])


    def train(net, x):
        return net.cuda()(x.cuda())
"""


def test_a_data_set_of_graphs_saves_on_the_host(tmp_path: Path) -> None:
    assert not reported(tmp_path, "XLA301", data=DATA.replace("{base}", "InMemoryDataset"))
    assert reported(tmp_path, "XLA301", data=DATA.replace("{base}", "Batch"))


@pytest.mark.parametrize(("names", "hits"), [("set_seed, send_to_device", 0), ("gather", 1)])
def test_helpers_of_accelerate(tmp_path: Path, names: str, hits: int) -> None:
    """An import of a helper said that Accelerate trains the script."""
    assert len(reported(tmp_path, "XLA411", a=f"from accelerate.utils import {names}\n")) == hits
