"""Hand-written scripts of torch_xla that move to torch_tpu."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.old import xla_sources
from migrate.syntax.source import parse

IMPORTS = """\
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


"""
OPTIONS = RewriteOptions(config=Config(target=TPU))


def moved(script: str) -> Rewrite:
    return rewrite_source(parse((IMPORTS + script).encode(), Path("train.py")), options=OPTIONS)


# Lines of a worker, each with what becomes of it.
LINES = {
    "kind = xr.device_type()": "kind = 'TPU'",
    "xm.master_print('a', 1)": "if dist.get_rank() == 0:\n        print('a', 1)",
    "xm.add_step_closure(print, args=(1, index), run_async=True)": "print(1, index)",
    "xm.add_step_closure(print, loader)": "print(*loader)",
    "step = torch_xla.compile(model.step, full_graph=True)": "step = model.step",
    "xm.wait_device_ops()": "torch.accelerator.synchronize()",
    "xm.broadcast_master_param(model)": "broadcast_weights(model)",
    "xm.reduce_gradients(optimizer)": "average_gradients(optimizer)",
    "value = xm.mesh_reduce('loss', 1.0, sum)": "value = mesh_reduce(1.0, sum)",
    "x = xm.all_reduce(xm.REDUCE_MAX, torch.ones(1))": (
        "x = all_reduce(dist.ReduceOp.MAX, torch.ones(1))"
    ),
    "xm.all_reduce('sum', [torch.ones(1)], scale=0.5)": (
        "all_reduce(dist.ReduceOp.SUM, [torch.ones(1)], 0.5)"
    ),
    "loader = pl.ParallelLoader(loader, ['xla'])": "loader = DeviceLoader(loader, 'tpu')",
    "loader = pl.MpDeviceLoader(loader, 'xla', loader_prefetch_size=2)": (
        "loader = DeviceLoader(loader, 'tpu')"
    ),
}
OPTIONAL = "if model.ddp:\n        dist.init_process_group('xla', init_method='xla://')"


def test_the_functions_of_torch_xla_and_the_group_that_they_need() -> None:
    body = "\n".join(f"    {line}" for line in (OPTIONAL, *LINES))
    done = moved(
        f"def worker(index, model, optimizer, loader):\n{body}\n\n\n"
        "if __name__ == '__main__':\n    torch_xla.launch(worker, args=(None, None, None))\n"
    )
    text = done.data.decode()
    assert "torch_xla" not in text
    # the group is joined, whatever the option says
    assert text.count("init_process_group") == 1
    assert "\n    dist.init_process_group('tpu_dist')\n" in text
    text = text.replace("int(os.environ['RANK'])", "dist.get_rank()")
    missing = [becomes for becomes in LINES.values() if f"    {becomes}\n" not in text]
    assert not missing


def test_the_worker_of_another_script_that_joins_does_not_join_this_one(tmp_path: Path) -> None:
    from migrate.rewrite.folder import rewrite_folder

    launch = "\n\nif __name__ == '__main__':\n    torch_xla.launch(worker)\n"
    head = f"{IMPORTS}def worker(index):\n"
    (tmp_path / "joins.py").write_text(
        f"{head}    dist.init_process_group('xla', init_method='xla://')\n{launch}"
    )
    (tmp_path / "steps.py").write_text(f"{head}    xm.rendezvous('a')\n{launch}")
    done = rewrite_folder(tmp_path, options=OPTIONS, processes=1)
    texts = {file.name.name: file.after.decode() for file in done.changed}
    assert texts["joins.py"].count("init_process_group") == 1
    assert texts["steps.py"].count("dist.init_process_group('tpu_dist')") == 1


def test_a_forked_launch_that_runs_its_file_goes() -> None:
    done = moved(
        """import os
import runpy
import sys


def _mp_fn(index):
    os.environ['RANK'] = str(index)
    os.environ['WORLD_SIZE'] = str(xr.world_size())
    runpy.run_path(__file__, run_name='__main__')


if __name__ == '__main__' and 'RANK' not in os.environ:
    torch_xla.launch(_mp_fn, start_method='fork')
    sys.exit()

dist.init_process_group('xla', init_method='xla://')
print(dist.get_rank())
"""
    )
    text = done.data.decode()
    assert "_mp_fn" not in text
    assert "runpy" not in text
    assert "dist.init_process_group('tpu_dist')" in text


def test_a_group_that_is_joined_at_times_stays_where_torchrun_starts_the_script() -> None:
    launches = (
        "def _mp_fn(index):\n    runpy.run_path(__file__, run_name='__main__')\n\n\n"
        "if __name__ == '__main__' and 'RANK' not in os.environ:\n"
        "    torch_xla.launch(_mp_fn, start_method='fork')\n    sys.exit()\n",
        "if __name__ == '__main__':\n    torch_xla.launch(worker, start_method='fork')\n",
    )
    for launch in launches:
        body = OPTIONAL.replace("model.ddp", "'RANK' in os.environ")
        done = moved(
            f"import os\nimport runpy\nimport sys\n\n\ndef worker(index):\n    {body}\n"
            f"    print(dist.get_rank())\n\n\n{launch}\n"
        )
        text = done.data.decode()
        assert "torch_xla" not in text
        assert "if 'RANK' in os.environ:\n        dist.init_process_group('tpu_dist')\n" in text


def test_the_number_of_ranks_of_a_launch_stays() -> None:
    done = moved(
        "def worker(index):\n    print(index)\n\n\n"
        "if __name__ == '__main__':\n    xmp.spawn(worker, nprocs=8, start_method='spawn')\n"
    )
    assert "    nprocs = 8\n" in done.data.decode()


def test_batches_move_with_what_is_in_them() -> None:
    import collections
    import collections.abc

    import torch

    space: dict[str, object] = {}
    source = xla_sources.LOADER.replace("{abc}", "collections.abc")
    exec(source, {"collections": collections}, space)
    loader = space["DeviceLoader"]
    pair = collections.namedtuple("pair", "x y")
    one = torch.ones(1)
    batch = {"a": [one, (one, 3)], "b": pair(one, "text")}
    made = loader([batch, batch], "meta")  # type: ignore[operator]
    for _ in range(2):  # one loader serves many epochs
        first, second = made
        assert first["a"][0].device.type == first["a"][1][0].device.type == "meta"
        assert first["a"][1][1] == 3
        assert second["b"].x.device.type == "meta"
        assert second["b"].y == "text"
    assert len(made) == 2


def test_rates_and_samples() -> None:
    clock = itertools.count()
    time = SimpleNamespace(time=lambda: next(clock))
    space: dict[str, object] = {}
    exec(xla_sources.RATE.replace("{time}", "time"), {"time": time}, space)
    exec(xla_sources.SAMPLES, {}, space)
    tracker = space["RateTracker"]()  # type: ignore[operator]
    tracker.add(4)
    assert 0 < tracker.rate() <= 4
    assert tracker.rate() >= 0
    assert tracker.global_rate() > 0
    samples = space["SampleGenerator"](data=1, sample_count=3)  # type: ignore[operator]
    assert list(samples) == list(samples) == [1, 1, 1]


LOGS = """
import torch_xla.test.test_utils as tests
from torch_xla.test.test_utils import print_test_update


def report(print_update, *args, **options):
    print_update(*args, **options)


def run(writer):
    report(tests.print_training_update, "xla:0", 3, 0.5, 2, 1.25, epoch=1, summary_writer=writer)
    report(tests.print_training_update, "xla:0", 4, torch.tensor(0.25), 2, 1)
    print_test_update("xla:0", 87.5, step=9)
    print_test_update("xla:0", None, 2)
    tests.write_to_summary(writer, 7, {"loss": 1.5}, True)
    tests.write_to_summary(tests.get_summary_writer(""), write_xla_metrics=True)
    tests.close_summary_writer(None)
    print(tests.now("%%"))
"""


def test_functions_for_logs_print_and_write_as_those_of_torch_xla(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = moved(LOGS)
    text = done.data.decode()
    assert "torch_xla" not in text
    # What a user of `write_xla_metrics` loses is in the list of edits.
    assert sum("no graphs to count" in edit.message for edit in done.edits) == 2
    space: dict[str, object] = {}
    exec(text, space)
    scalars: list[tuple[object, ...]] = []
    space["run"](SimpleNamespace(add_scalar=lambda *args: scalars.append(args)))  # type: ignore[operator]
    lines = [line.partition(" Time=")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "| Training Device=tpu:0/0 Epoch=1 Step=3 Loss=0.50000 Rate=2.00 GlobalRate=1.25",
        "| Training Device=tpu:0/0 Step=4 Loss=0.25000 Rate=2.00 GlobalRate=1.00",
        "| Test Device=tpu:0/0 Step=9 Accuracy=87.50",
        "| Test Device=tpu:0/0 Epoch=2",
        "%",
    ]
    rates = [("examples/sec", 2, None), ("average_examples/sec", 1.25, None)]
    assert scalars == [*rates, ("loss", 1.5, 7)]


METRICS = """
import torch_xla.debug.metrics as met


def worker(index):
    if index:
        print("metrics:", met.metrics_report())
        print(torch_xla._XLAC._xla_metrics_report())
    met.clear_all()
    xm.master_print(met.short_metrics_report(), flush=True)
    LINE


torch_xla.launch(worker)
"""


def test_lines_that_print_metrics_alone_go() -> None:
    """They count graphs, which torch_tpu has not."""
    done = moved(METRICS.replace("LINE", "print(index)"))
    text = done.data.decode()
    assert "metrics" not in text
    assert "met." not in text
    assert "torch_xla" not in text
    assert not [note.message for note in done.findings if "of torch_xla" in note.message]


@pytest.mark.parametrize(
    "line", ["print(index, met.metrics_report())", "index = met.metrics_report()"]
)
def test_metrics_that_are_used_otherwise_are_reported(line: str) -> None:
    done = moved(METRICS.replace("LINE", line))
    assert line in done.data.decode()
    assert any("metrics_report" in note.message for note in done.findings)
