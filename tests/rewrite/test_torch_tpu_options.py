"""Arguments and options of calls that `--target torch_tpu` edits: kept, or reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

OPTIONS = RewriteOptions(config=Config(target=TPU))


def run(script: str) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("script.py")), options=OPTIONS)


def reported(done: Rewrite, rule: str) -> list[str]:
    return [note.message for note in done.findings if note.rule == rule]


LAUNCH = """\
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp


def worker(index):
    print(index)


if __name__ == "__main__":
    CALL
"""


@pytest.mark.parametrize(
    "call",
    [
        "xmp.spawn(worker, join=False)",
    ],
)
def test_a_launch_with_options_is_reported(call: str) -> None:
    done = run(LAUNCH.replace("CALL", call))
    assert call in done.data.decode()
    assert 'os.environ["RANK"]' not in done.data.decode()
    option = call.partition(", ")[2].rstrip(")")
    assert any(option in message for message in reported(done, "launch-from-xla"))


def test_a_launch_with_the_options_of_none_is_edited() -> None:
    done = run(LAUNCH.replace("CALL", "xmp.spawn(worker, nprocs=None, join=True)"))
    assert "mp.spawn(worker, nprocs=nprocs)" in done.data.decode()


@pytest.mark.parametrize(
    ("line", "is_reported"),
    [
        ("noise = torch.randn(2, device=torch_xla.device())", True),
        ("noise = torch.randn(2)", False),  # on the host, where each process has its own seed
        ("torch_xla.manual_seed(0); noise = torch.randn(2, device=torch_xla.device())", False),
        ("torch.manual_seed(index); noise = torch.randn(2, device=torch_xla.device())", False),
        ("xm.set_rng_state(3); noise = torch.randn(2, device=torch_xla.device())", False),
    ],
)
def test_ranks_that_nothing_seeds_draw_other_numbers_than_on_torch_xla(
    line: str, is_reported: bool
) -> None:
    script = LAUNCH.replace("print(index)", line).replace("CALL", "xmp.spawn(worker)")
    imports = "import torch\nimport torch_xla.core.xla_model as xm\n"
    done = run(imports + script)
    messages = reported(done, "launch-from-xla")
    assert any("torch_tpu each at a seed of its own" in text for text in messages) is is_reported
    assert "mp.spawn(worker, nprocs=nprocs)" in done.data.decode()


def test_the_number_of_ranks_takes_no_name_of_the_script() -> None:
    script = LAUNCH.replace(
        "    CALL", "    nprocs = 3\n    torch_xla.launch(worker)\n    print(nprocs)"
    )
    text = run(script).data.decode()
    assert "nprocs_ = torch.accelerator.device_count()" in text
    assert "mp.spawn(worker, nprocs=nprocs_)" in text
    assert "    nprocs = torch" not in text


def test_lines_of_the_rank_stay_where_the_launch_does() -> None:
    script = """\
import os

import torch_xla
import torch_xla.runtime as xr


def worker(index):
    os.environ["RANK"] = str(index)
    os.environ["WORLD_SIZE"] = str(xr.world_size())
    print(xr.global_ordinal())


def main():
    return torch_xla.launch(worker)


if __name__ == "__main__":
    main()
"""
    done = run(script)
    assert done.data.decode() == script
    assert reported(done, "launch-from-xla")


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("torch_xla", "torch_xla.launch(worker, args=(MODE,))"),
        ("torch.multiprocessing as mp", "mp.spawn(worker, args=(MODE,), nprocs=4)"),
    ],
)
def test_two_launches_of_one_worker_are_edited(module: str, call: str) -> None:
    script = f"""\
import sys
import {module}


def worker(index, mode):
    print(index)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {call.replace("MODE", '"train"')}
    else:
        {call.replace("MODE", '"test"')}
"""
    done = run(script)
    text = done.data.decode()
    assert text.count("set_tpu_launch_env(nproc_per_node=") == 2
    assert text.count('os.environ["LOCAL_RANK"] = str(index)') == 1
    assert not done.findings


GROUP = """\
import os

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("nccl", rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))
    torch.ones(1).cuda()


main()
"""


def test_a_rank_of_another_variable_is_set_for_torch_tpu() -> None:
    slurm = 'int(os.environ["SLURM_PROCID"])'
    done = run(GROUP.replace("RANK,", f"{slurm},"))
    text = done.data.decode()
    assert f'os.environ["RANK"] = str({slurm})' in text
    assert 'os.environ["WORLD_SIZE"] =' not in text
    assert any("LOCAL_RANK" in message for message in reported(done, "tpu-process-group"))


def test_a_rank_of_its_own_variable_is_not_set_again() -> None:
    text = run(GROUP.replace("RANK,", 'int(os.environ["RANK"]),')).data.decode()
    assert 'os.environ["RANK"] =' not in text


XM = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch_xla.sync(True)", "torch.accelerator.synchronize()"),
        ("xm.mark_step(True)", "torch.accelerator.synchronize()"),
        ("torch_xla.sync(reset_scope=False)", ""),
        ("print(xr.addressable_device_count())", "print(torch.accelerator.device_count())"),
        ("xm.save(file_or_path=path, data=state)", "torch.save(state, path)"),
        (
            "xm.save(state, file_or_path=path, global_master=True, master_only=False)",
            "torch.save(state, path)",
        ),
        ("xm.optimizer_step(barrier=True, optimizer=opt)", "opt.step()"),
        (
            "torch_xla.manual_seed(7 + xr.global_ordinal())",
            'torch.tpu.manual_seed(7 + int(os.environ.get("RANK", "0")))',
        ),
        (
            "xm.set_rng_state(7 + xr.global_ordinal())",
            'torch.tpu.manual_seed(7 + int(os.environ.get("RANK", "0")))',
        ),
        ("torch.manual_seed(7)\ntorch_xla.manual_seed(7, d)", "torch.manual_seed(7)\n"),
        (
            "torch.manual_seed(7)\ntorch_xla.manual_seed(7 + rank)",
            "torch.tpu.manual_seed(7 + rank)",
        ),
        ("torch.manual_seed(7)\nx = draw()\ntorch_xla.manual_seed(7)", "torch.tpu.manual_seed(7)"),
        ("torch.cuda.set_rng_state(device=0, new_state=s)", "torch.tpu.set_rng_state(s)"),
        ("torch.cuda.set_rng_state(s, 0)", "torch.tpu.set_rng_state(s)"),
    ],
)
def test_arguments_are_taken_by_their_names(before: str, after: str) -> None:
    done = run(f"{XM}{before}\n")
    assert after in done.data.decode()
    assert before not in done.data.decode()


@pytest.mark.parametrize(
    "call",
    [
        'xm.optimizer_step(opt, optimizer_args={"closure": closure})',
        "xm.optimizer_step(opt, False, groups=groups)",
        "xm.save(state, path, master)",
        "xm.save(**options)",
        "torch.cuda.set_rng_state(*states)",
    ],
)
def test_arguments_that_would_be_lost_are_reported(call: str) -> None:
    done = run(f"{XM}{call}\n")
    assert call in done.data.decode()
    assert any(note.line == 6 and note.rule != "XLA894" for note in done.findings), done.findings


def test_a_seed_of_the_host_that_would_undo_the_seed_of_the_device_is_reported() -> None:
    done = run(f"{XM}torch_xla.manual_seed(7 + rank)\ntorch.manual_seed(7)\n")
    assert "torch.tpu.manual_seed(7 + rank)\n" in done.data.decode()
    assert any("seeds the TPU too, after" in m for m in reported(done, "leave-torch-xla"))


def test_the_master_of_a_variable_is_reported() -> None:
    done = run(f"{XM}\ndef first(local):\n    return xm.is_master_ordinal(local)\n")
    assert "xm.is_master_ordinal(local)" in done.data.decode()
    assert any("is_master_ordinal" in m for m in reported(done, "leave-torch-xla"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('backend.to("xla")', "tpu"),
        ('y = self.backend(x, "xla")', "tpu"),
        ('backend = torch.ones(2, device="xla")', "tpu"),
        ('args.dist_backend = "xla"', "tpu_dist"),
        ('backend = args.backend or "xla"', "tpu_dist"),
        ('options["backend"] = "xla"', "tpu_dist"),
        ('train(backend="xla")', "tpu_dist"),
        ('backend = options.get("backend", "xla")', "tpu_dist"),
        ('same = torch.distributed.get_backend() in ("xla", "gloo")', "tpu_dist"),
        ('same = options["backend"] == "xla"', "tpu_dist"),
        ('parser.add_argument("--backend", default="xla")', "tpu_dist"),
        ('torch.distributed.is_backend_available("xla")', "tpu_dist"),
    ],
)
def test_the_name_under_which_a_literal_stands_decides(line: str, name: str) -> None:
    text = run(f"import torch\nimport torch_xla\n\n\ndef main(self):\n    {line}\n").data.decode()
    assert line.replace('"xla"', f'"{name}"') in text


def test_the_method_of_a_model_compiles_too() -> None:
    script = """\
import torch

model = torch.nn.Linear(2, 2)
model.compile(mode="max-autotune", fullgraph=True)
pattern.compile(mode="max-autotune")
"""
    text = run(script).data.decode()
    assert "model.compile(fullgraph=True)" in text
    assert 'pattern.compile(mode="max-autotune")' in text


def test_messages_quote_the_code_of_the_user_as_it_is() -> None:
    script = """\
import torch.distributed as dist

GROUP = dist.new_group(
    [0, 1],
    backend="xla",
)
dist.init_process_group("on XLA", init_method="xla://", world_size=1, rank=0)
"""
    done = run(script)
    messages = [note.message for note in (*done.edits, *done.findings)]
    assert any('backend="xla"' in message for message in messages), messages
    assert not any('backend="tpu"' in message for message in messages), messages


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("torch_xla.launch(worker, debug_single_process=True)", "1"),
        ("xmp.spawn(worker, nprocs=1)", "1"),
        ("xmp.spawn(worker, nprocs=count)", "count or torch.accelerator.device_count()"),
        ("xmp.spawn(worker, nprocs=None)", "torch.accelerator.device_count()"),
    ],
)
def test_the_number_of_ranks_is_kept(call: str, count: str) -> None:
    done = run(LAUNCH.replace("CALL", call))
    assert f"    nprocs = {count}\n" in done.data.decode()
    assert not done.findings


def test_loaders_of_torch_xla_become_a_class_of_the_script() -> None:
    script = """\
import torch
import torch_xla.distributed.parallel_loader as pl


def train(model, loader):
    for x in pl.ParallelLoader(loader, ["xla"]).per_device_loader("xla"):
        model(x)
    for x in pl.MpDeviceLoader(loader, "xla"):
        model(x)
"""
    done = run(script)
    assert not done.findings
    assert done.data.decode().count('in DeviceLoader(loader, "tpu"):') == 2


@pytest.mark.parametrize("value", ['xm.mesh_reduce("loss", loss, sum)', "averaged(loss)"])
def test_what_all_ranks_compute_does_not_go_below_a_test_of_the_rank(value: str) -> None:
    script = f"""\
import torch.distributed as dist
import torch_xla.core.xla_model as xm


def averaged(x):
    dist.all_reduce(x)
    return x


def worker(loss):
    dist.init_process_group("xla", init_method="xla://")
    xm.master_print("loss", {value})
"""
    done = run(script)
    assert "if dist.get_rank() == 0" not in done.data.decode()
    assert any("is computed by all ranks" in m for m in reported(done, "xla-library"))


@pytest.mark.parametrize(
    "line", ['os.environ["XLA_USE_BF16"] = "1"', 'os.environ.setdefault("XLA_DOWNCAST_BF16", "1")']
)
def test_a_variable_that_torch_tpu_does_not_read_is_reported(line: str) -> None:
    done = run(f'import os\n\n{line}\nimport torch_xla\n\nx = torch.ones(2, device="xla")\n')
    assert line in done.data.decode()
    assert any("torch_tpu does not read XLA_" in message for message in reported(done, "XLA505"))
    unset = line.replace('"1"', '"0"')
    off = run(f"import os\n\n{unset}\nimport torch_xla\n")
    assert not reported(off, "XLA505")
