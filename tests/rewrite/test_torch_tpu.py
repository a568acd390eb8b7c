"""What `--target torch_tpu` makes of the scripts of all rules and hazards."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from migrate.catalogue import catalogue
from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.rules import all_hazards
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rule import ExampleKind
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse
from tests.rewrite.cuda_left import unaccounted

OPTIONS = RewriteOptions(config=Config(target=TPU))
XLA = re.compile(r"xla", re.IGNORECASE)
SCRIPTS = sorted(
    {
        *(e.before for rule in all_rules() for e in rule.examples),
        *(e.script for hazard in all_hazards() for e in hazard.examples),
    }
)
HANDLED = {
    example.before
    for rule in all_rules()
    for example in rule.examples
    if example.kind is not ExampleKind.LEFT_ALONE
}
CUDA_SCRIPTS = [
    script
    for script in SCRIPTS
    if not XLA.search(re.sub(r"# XLA\d+.*", "", script)) and "shims" not in script
]


@functools.cache
def run(script: str) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("script.py")), options=OPTIONS)


@pytest.mark.parametrize("part", range(8))
def test_a_second_run_changes_nothing_and_what_is_left_of_cuda_is_named(part: int) -> None:
    for script in SCRIPTS[part::8]:
        again = rewrite_source(parse(run(script).data, Path("script.py")), options=OPTIONS)
        assert not again.edits, script
        if script in HANDLED:
            assert unaccounted(again.data.decode(), again.findings) == [], script


@pytest.mark.parametrize("part", range(8))
def test_neither_code_nor_messages_speak_of_torch_xla(part: int) -> None:
    for script in CUDA_SCRIPTS[part::8]:
        done = run(script)
        assert not XLA.search(re.sub(r"# XLA\d+.*", "", done.data.decode())), script
        for note in (*done.edits, *done.findings, *done.hints):
            text = re.sub(r"# XLA\d+", "", f"{note.message} {note.wrong}")
            assert not XLA.search(text), (note, script)
            assert "failed here" not in note.message, (note, script)


def test_every_name_of_cuda_has_an_entry() -> None:
    missing = [
        name
        for name in catalogue.NAMES
        if name.startswith("torch.cuda.") and catalogue.of(name, TPU) is None
    ]
    assert not missing


ROOT = Path(__file__).parents[2]
REWRITTEN = sorted(path for path in (ROOT / "examples").glob("launch_*/after.py"))


@pytest.mark.parametrize("path", REWRITTEN, ids=lambda path: path.parent.name)
def test_what_the_rewrite_for_torch_xla_writes_moves_to_torch_tpu(path: Path) -> None:
    done = rewrite_source(parse(path.read_bytes(), path), options=OPTIONS)
    left = [note for note in done.findings if note.severity is not Severity.INFO]
    assert not left
    assert b"xla" not in done.data
    # A file that runs while it is read is started by torchrun.
    assert b"set_tpu_launch_env" in done.data or path.parent.name == "launch_module"


def test_a_mesh_and_a_generator_change_their_device() -> None:
    script = """\
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (4,))
generator = torch.Generator("cuda").manual_seed(0)
fully_shard(torch.nn.Linear(2, 2).to("cuda"), mesh=mesh)
"""
    done = run(script)
    assert done.data.decode() == script.replace('"cuda"', '"tpu"')
    # The mesh joins the process group.
    assert [(note.line, note.rule) for note in done.findings] == [(5, "tpu-process-group")]
    joined = run(script.replace("mesh =", "torch.distributed.init_process_group()\nmesh ="))
    assert [(note.line, note.rule) for note in joined.findings] == [(5, "tpu-process-group")]


def test_a_count_that_a_module_asks_for_may_be_asked_in_a_rank(tmp_path: Path) -> None:
    """It is the number of ranks where torchrun starts them, and is reported where the project does."""
    source = (
        "import torch\n\ndef enough(least):\n    return torch.accelerator.device_count() >= least\n"
    )
    machine = tmp_path / "machine.py"
    machine.write_text(source)
    train = tmp_path / "train.py"
    text = """\
import torch
import torch.distributed as dist
from machine import enough

assert enough(2)
dist.init_process_group("nccl")
weight = torch.ones(4, device="cuda", requires_grad=True)
weight.sum().backward()
"""

    def rewritten() -> tuple[str, list[str]]:
        done = rewrite_folder(tmp_path, options=OPTIONS, processes=1)
        left = [str(path) for path, note in done.left_to_do if note.rule == "tpu-count"]
        (data,) = (file.after.decode() for file in done.files if file.name == Path("machine.py"))
        return data, left

    train.write_text(text)
    asked = 'int(os.environ.get("LOCAL_WORLD_SIZE", torch.accelerator.device_count())) >= least'
    data, left = rewritten()
    assert asked in data
    assert left == []
    machine.write_text(data)
    assert rewritten() == (data, [])
    machine.write_text(source)
    launch = "torch.multiprocessing.spawn(enough, nprocs=2)\n"
    train.write_text(
        text.replace("assert enough(2)\n", f"def run(rank):\n    enough(2)\n\n{launch}")
    )
    assert rewritten() == (source, ["machine.py"])
    train.write_text(
        text.replace('dist.init_process_group("nccl")\n', "").replace(".distributed as dist", "")
    )
    assert rewritten() == (source, [])


def test_saves_and_evaluation_stay_below_their_rank_test() -> None:
    script = """\
import torch
import torch.distributed as dist


def finish(model, batch, path):
    if dist.get_rank() == 0:
        print(model.module(batch).mean().item())
        torch.save(model.state_dict(), path)
"""
    done = run(script)
    assert done.data.decode() == script
    assert not done.findings


MAY_WRAP = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(index, options):
    torch.distributed.init_process_group("xla", init_method="xla://")
    model = torch.nn.Linear(2, 2).to("xla")
    if options.ddp:
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 2, device="xla")).mean().backward()
    xm.optimizer_step(optimizer)


if __name__ == "__main__":
    torch_xla.launch(worker, args=(options,))
"""


def test_gradients_are_averaged_where_ddp_is_an_option() -> None:
    text = run(MAY_WRAP).data.decode()
    assert "    average_gradients(optimizer)\n    optimizer.step()\n" in text


SINGLE = """\
import torch
import torch_xla.core.xla_model as xm


def main(model, optimizer, path):
    model.to("xla:0")
    for index in range(2):
        model(torch.ones(2, 2, device=f"xla:{index}")).mean().backward()
        xm.optimizer_step(optimizer, barrier=True)
    print(xm.get_ordinal(), xm.xrt_world_size())
    xm.set_rng_state(1234, xm.xla_device(1))
    xm.save(model.state_dict(), path)
    xm.rendezvous("end")


if __name__ == "__main__":
    main(*arguments)
"""
SINGLE_ON_TPU = """\
import os

import torch


def main(model, optimizer, path):
    model.to("tpu:0")
    for index in range(2):
        model(torch.ones(2, 2, device="tpu:0")).mean().backward()
        optimizer.step()
    print(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    torch.tpu.manual_seed(1234)
    torch.save(model.state_dict(), path)


if __name__ == "__main__":
    main(*arguments)
"""


def test_a_script_of_one_process_needs_no_ranks() -> None:
    done = run(SINGLE)
    assert done.data.decode() == SINGLE_ON_TPU
    assert not [note for note in done.findings if note.severity is not Severity.INFO]


def test_ranks_wait_for_a_save_that_they_load() -> None:
    script = """\
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    xm.save({}, "state.pt")
    print(torch.load("state.pt"))


if __name__ == "__main__":
    torch_xla.launch(worker)
"""
    saved = """\
    if int(os.environ["LOCAL_RANK"]) == 0:
        torch.save({}, "state.pt")
    dist.barrier()
"""
    assert saved in run(script).data.decode()
    alone = run(script.replace('    dist.init_process_group("xla", init_method="xla://")\n', ""))
    assert 'dist.init_process_group("tpu_dist")' in alone.data.decode()
    assert saved in alone.data.decode()


def test_a_device_that_is_compared_has_the_index_of_tensors() -> None:
    script = """\
import torch_xla


def moved(x):
    device = torch_xla.device()
    return x if x.device == device else x.to(device)
"""
    assert 'device = torch.device("tpu", 0)' in run(script).data.decode()


def test_messages_quote_the_script_and_name_what_takes_the_place() -> None:
    script = """\
import torch_xla.core.xla_model as xm


def worker(model, loss):
    model.to("xla")
    xm.master_print(xm.all_reduce(xm.REDUCE_SUM, loss))
"""
    done = run(script)
    assert '"xla" → "tpu"' in {note.message for note in done.edits}
    messages = [note.message for note in done.findings if note.rule == "xla-library"]
    assert any("xm.all_reduce(xm.REDUCE_SUM, loss) is computed by all ranks" in m for m in messages)
    assert "xm.master_print(" in done.data.decode()


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("model.register_comm_hook(None, hook)\n", "is not known to work on the group"),
        (
            "from torch.utils.data import DataLoader\n\n\ndef load(data, pin):\n"
            "    return DataLoader(data, pin_memory=pin)\n",
            "needs the allocator of the TPU's runtime",
        ),
        (
            "import torch\n\nmodel = torch.nn.LazyLinear(8)\nmodel.to('xla')\n",
            "torch_tpu makes one of no elements",
        ),
    ],
)
def test_reasons_are_those_of_torch_tpu(script: str, part: str) -> None:
    messages = [note.message for note in run(script).findings]
    assert any(part in message for message in messages), messages


def test_settings_at_module_level_hold_in_ranks_that_are_processes() -> None:
    script = """\
import torch
import torch_xla

torch.set_grad_enabled(False)


def worker(index):
    print(index)


if __name__ == "__main__":
    torch_xla.launch(worker)
"""
    assert "XLA706" not in {note.rule for note in run(script).findings}
