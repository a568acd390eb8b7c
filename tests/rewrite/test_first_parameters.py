"""Parameters for which calls pass a rank test: `averager.update(model, dist.get_rank() == 0)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

SCRIPT = """
import copy

import torch
import torch.distributed as dist


class Averager:
    def __init__(self, model, leads):
        self.module, self.leads = copy.deepcopy(model), leads

    def update(self, model, chosen):
        for mean, now in zip(self.module.parameters(), model.parameters()):
            mean.data.lerp_(now.data, 0.1)
        if TEST:
            torch.save(self.module.state_dict(), "mean.pt")


def leads():
    return dist.get_rank() == 0


def main(model):
    model = model.cuda()
    averager = Averager(model, LEADS)
    lead = dist.get_rank() == 0
    CALL
    dist.barrier()
"""


def run(call: str, test: str = "chosen", leads: str = "True") -> Rewrite:
    text = SCRIPT.replace("CALL", call).replace("TEST", test).replace("LEADS", leads)
    return rewrite_source(parse(text.encode(), Path("script.py")))


def says(done: Rewrite) -> list[str]:
    return [note.message for note in done.findings if note.rule == "save"]


@pytest.mark.parametrize(
    "call",
    [
        "averager.update(model, dist.get_rank() == 0)",
        "averager.update(model, chosen=dist.get_rank() == 0)",
        "averager.update(model, lead)",
        "averager.update(model, leads())",
        "averager.update(model, not dist.get_rank())",
        "averager.update(model, lead)\n    averager.update(model, True)",
    ],
)
def test_the_test_of_the_caller_is_the_guard(call: str) -> None:
    done = run(call)
    assert "        xm.save(self.module.state_dict()" in done.data.decode()
    assert "if chosen" not in done.data.decode()
    assert says(done) == []


def test_a_default_of_one_process_changes_nothing() -> None:
    text = SCRIPT.replace("chosen):", "chosen=True):").replace("TEST", "chosen")
    text = text.replace("LEADS", "True").replace("CALL", "averager.update(model, lead)")
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    assert "if chosen" not in done.data.decode()


def test_a_parameter_that_an_attribute_keeps() -> None:
    done = run("averager.update(model, True)", "self.leads", "dist.get_rank() == 0")
    assert "if self.leads" not in done.data.decode()
    assert "xm.save" in done.data.decode()


@pytest.mark.parametrize(
    "call",
    [
        # Another call saves nowhere: a save without the test would be one too many.
        "averager.update(model, lead)\n    averager.update(model, False)",
        # Without the first replica: `xm.save` waits for it for ever.
        "averager.update(model, dist.get_rank() != 0)",
    ],
)
def test_other_tests_are_reported(call: str) -> None:
    done = run(call)
    assert "torch.save" in done.data.decode()
    (message,) = says(done)
    assert "not every call passes a test for the first replica as `chosen`" in message


def test_a_parameter_without_a_test_of_the_rank_is_no_guard() -> None:
    done = run("averager.update(model, True)")
    assert "if chosen:" in done.data.decode()


def test_the_call_in_another_file(tmp_path: Path) -> None:
    head, _, tail = SCRIPT.replace("TEST", "chosen").partition("def leads")
    (tmp_path / "means.py").write_text(head)
    main = "def leads" + tail.replace("LEADS", "True").replace(
        "CALL", "averager.update(model, leads())"
    )
    imports = "import torch.distributed as dist\n\nfrom means import Averager\n\n\n"
    (tmp_path / "train.py").write_text(imports + main)
    files = {file.name.name: file.after.decode() for file in rewrite_folder(tmp_path).files}
    assert "xm.save" in files["means.py"]
    assert "if chosen" not in files["means.py"]


EVALUATED = """
import copy

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch.distributed as dist
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel as DDP


class Averager:
    def __init__(self, model):
        self.module = copy.deepcopy(model.module)

    @torch.no_grad()
    def update(self, model):
        for mean, now in zip(self.module.parameters(), model.module.parameters()):
            mean.lerp_(now, 0.1)
            MEET


def evaluate(averager, x, chosen):
    if not chosen:
        return
    with torch.no_grad():
        print(averager.module(x).sum().item())


def _mp_fn(index):
    dist.init_process_group("xla", init_method="xla://")
    model = DDP(torch.nn.Linear(2, 1).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = Averager(model)
    for _ in range(4):
        with torch_xla.step():
            x = torch.ones(1, 2, device="xla")
            model(x).sum().backward()
            optimizer.step()
        averager.update(model)
        evaluate(averager, x, dist.get_rank() == 0)


if __name__ == "__main__":
    torch_xla.launch(_mp_fn)
"""


def test_an_average_that_the_first_replica_evaluates(tmp_path: Path) -> None:
    """What the first replica runs has no collective of the others in it: no replica waits.

    The step before has ended, and the next one begins with a sync of its own (`torch_xla.compile`), so the
    others compute the average in a graph without collectives. With a collective in the average they part.
    """
    script = tmp_path / "script.py"
    plain = EVALUATED.replace("MEET", "pass")
    apart = EVALUATED.replace("MEET", 'xm.all_reduce("sum", [mean])').replace(
        "        evaluate(averager, x, dist.get_rank() == 0)\n",
        "        if dist.get_rank() == 0:\n            print(averager.module(x).sum().item())\n",
    )
    for text, are_apart in ((plain, False), (apart, True)):
        script.write_text(text)
        findings = check_paths([script], Config(select=("XLA305",))).findings
        assert bool(findings) is are_apart
