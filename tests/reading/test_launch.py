"""How scripts are started: which get a launcher, in which form, and which are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.reading.replicas.launch import Style
from migrate.reading.script import Script
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

GUARDED = """
import argparse
import os
import torch.distributed as dist

{top}


def main():
    dist.init_process_group("nccl")
    {body}


if __name__ == "__main__":
    {guard}
"""


def run(text: str) -> Rewrite:
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    compile(done.data, "script.py", "exec")
    return done


def style(text: str) -> Style:
    return Script(parse(text.encode(), Path("script.py"))).launch.style


def guarded(top: str = "", body: str = "pass", guard: str = "main()") -> str:
    return GUARDED.format(top=top, body=body, guard=guard.replace("\n", "\n    "))


class TestStyle:
    def test_a_guard_whose_code_joins_a_group(self) -> None:
        assert style(guarded()) is Style.MAIN

    @pytest.mark.parametrize(
        "top",
        [
            "RANK = int(os.environ.get('RANK', 0))",
            "print('RANK' in os.environ)",
            "def rank():\n    return os.getenv('LOCAL_RANK')\n\n\nME = rank()",
            "import torch\nweight = torch.zeros(3).cuda()",
            "p = argparse.ArgumentParser()\np.add_argument('--local_rank')\nargs = p.parse_args()",
            "rank = int(os.environ['SLURM_PROCID'])",
            "def run(local_rank=int(os.environ.get('LOCAL_RANK', 0))):\n    print(local_rank)",
            "class Settings:\n    local_rank = int(os.environ['LOCAL_RANK'])",
            "class Settings:\n    def rank(self, default=os.getenv('RANK')):\n        return default",
            "@only_if(os.environ['RANK'] == '0')\ndef log(text):\n    print(text)",
        ],
    )
    def test_what_asks_for_the_rank_or_the_device_while_it_is_read_runs_as_a_whole(
        self, top: str
    ) -> None:
        assert style(guarded(top)) is Style.MODULE
        assert "runpy.run_path(__file__" in run(guarded(top)).data.decode()

    @pytest.mark.parametrize(
        "top",
        [
            "def rank():\n    return os.environ['RANK']",
            "os.environ['RANK'] = '0'",
            "EPOCHS = 3",
            "class Settings:\n    def rank(self, default=-1):\n        return os.getenv('RANK', default)",
        ],
    )
    def test_what_only_defines_does_not(self, top: str) -> None:
        assert style(guarded(top)) is Style.MAIN

    @pytest.mark.parametrize(
        "text",
        [
            "import deepspeed\n" + guarded(),
            "from accelerate import Accelerator\n" + guarded(),
            "import torch.distributed.rpc as rpc\nrpc.init_rpc('a')\n" + guarded(),
            guarded(guard="print('a self-test')"),
            "import os\nLOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))",
            "from torch.nn.parallel import DistributedDataParallel\n\n\ndef wrap(m):\n"
            "    return DistributedDataParallel(m)",
        ],
    )
    def test_other_launchers_and_modules_get_none(self, text: str) -> None:
        assert style(text) is Style.NONE
        assert "torch_xla.launch" not in run(text).data.decode()

    @pytest.mark.parametrize(
        "top",
        [
            "def options(args):\n    if args.deepspeed:\n        import deepspeed\n        return deepspeed",
            "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None",
        ],
    )
    def test_a_framework_that_an_option_chooses_does_not_start_the_others(self, top: str) -> None:
        assert style(guarded(top)) is Style.MAIN

    def test_a_framework_that_only_the_program_imports_starts_it(self) -> None:
        assert style(guarded(guard="import deepspeed\nmain()")) is Style.NONE

    def test_a_function_of_the_users_own_module_counts_by_its_name(self) -> None:
        text = "import utils\n\nif __name__ == '__main__':\n    utils.init_distributed_mode(None)\n"
        assert style(text) is Style.MAIN
        assert style(text.replace("init_distributed_mode", "init_weights")) is Style.NONE


class TestGuard:
    def test_names_that_functions_read_are_global(self) -> None:
        text = guarded(
            top="def show():\n    print(lr, [n for n in names])",
            body="show()",
            guard="import json\nlr = 1\nnames = []\nother = 2\nmain()",
        )
        assert "    global lr, names\n" in run(text).data.decode()

    def test_parameters_of_that_name_need_no_global(self) -> None:
        text = guarded(top="def show(args):\n    print(args.lr)", guard="args = 1\nmain()")
        assert "global" not in run(text).data.decode()

    def test_all_names_are_global_where_code_is_executed(self) -> None:
        text = guarded(
            body="exec('print(lr)', globals())", guard="lr = 1\nfor i in []: pass\nmain()"
        )
        assert "    global i, lr\n" in run(text).data.decode()

    def test_an_annotated_global_loses_its_annotation(self) -> None:
        text = guarded(body="print(lr, late)", guard="lr: float = 1.0\nlate: int\nlate = 2\nmain()")
        after = run(text).data.decode()
        assert "    lr = 1.0\n    late = 2\n" in after

    def test_a_script_launches_once(self) -> None:
        once = run(guarded()).data
        assert not rewrite_source(parse(once, Path("script.py"))).edits

    @pytest.mark.parametrize("name", ["_mp_fn", "index"])
    def test_taken_names_are_not_taken_again(self, name: str) -> None:
        after = run(guarded(top=f"{name} = 3", body=f"print({name})")).data.decode()
        assert f"{name}_" in after


class TestHelperModule:
    HELPER = """
import os

import torch.distributed as dist


def init_distributed_mode(args):
    args.rank = int(os.environ["RANK"])
    dist.init_process_group(args.dist_backend, init_method=args.dist_url, rank=args.rank)
"""

    def test_it_is_rewritten_by_itself_and_says_who_has_to_set_the_rank(self) -> None:
        done = run(self.HELPER)
        assert 'init_process_group("xla", init_method="xla://")' in done.data.decode()
        assert [note.rule for note in done.findings] == ["rank-environment"]


class TestIndex:
    SPAWN = """
import torch.multiprocessing as mp


def worker({parameters}):
    {body}


def main(args):
    {before}
    mp.spawn(worker, nprocs={count}, args={passed})


if __name__ == "__main__":
    main(None)
"""

    def test_a_number_on_args_is_asked_for_where_a_replica_reads_it(self) -> None:
        text = self.SPAWN.format(
            parameters="gpu, opt",
            body="print(opt.world_size, opt.nodes * opt.gpus + gpu)",
            before="args.world_size = args.gpus * args.nodes",
            count="args.gpus",
            passed="(args,)",
        )
        done = run(text)
        after = done.data.decode()
        assert "    opt.world_size = xr.world_size()\n" in after
        assert "args.world_size = args.gpus" not in after

    def test_a_count_for_each_node_stays_one(self) -> None:
        text = self.SPAWN.format(
            parameters="gpu, ngpus_per_node, args",
            body="args.batch_size = int(args.batch_size / ngpus_per_node)",
            before="n = 8",
            count="n",
            passed="(n, args)",
        )
        assert "ngpus_per_node = xr.local_device_count()" in run(text).data.decode()

    def test_a_direct_call_of_the_worker_loses_the_argument_too(self) -> None:
        text = self.SPAWN.format(
            parameters="gpu, n, args",
            body="print(n)",
            before="n = 8\n    if args: return worker(0, n, args)",
            count="n",
            passed="(n, args)",
        )
        after = run(text).data.decode()
        assert "worker(0, args)" in after
        assert "torch_xla.launch(worker, args=(args,))" in after


SWITCHED = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

{top}


def train(distributed, rank=0):
    model = torch.nn.Linear(4, 1)
    {train}
        model = DDP(model.cuda(rank), device_ids=[rank])
    model(torch.ones(2, 4).cuda()).mean().backward()


def main(distributed={default}):
    {main}
        dist.init_process_group("nccl")
    {call}


if __name__ == "__main__":
    main()
"""
OFF: tuple[dict[str, str], ...] = (
    {
        "main": "spread, size = (False, 1)\n    if spread:",
        "call": "train(spread)",
    },
    {"main": "size = 1\n    if size > 1:", "call": "train(size > 1, rank=0)"},
    {"top": "DDP_ON = False", "main": "if DDP_ON:", "call": "train(DDP_ON)"},
    {"main": "if distributed:"},
    {"main": "if not distributed:\n        return train(distributed)\n    if True:"},
)
UNKNOWN: tuple[dict[str, str], ...] = (
    {"main": "distributed: bool = int(os.environ['WORLD_SIZE']) > 1\n    if distributed:"},
    {"top": "ON = False\nif 'RANK' in os.environ:\n    ON = True", "main": "if ON:"},
    {"top": "ON = os.environ.get('DDP') is not None", "main": "if ON:"},
    {"default": "True", "main": "if distributed:"},
    {"main": "if distributed:", "call": "train(distributed)\n    train('RANK' in os.environ)"},
    {"top": "ON = False\n\n\ndef switch():\n    global ON\n    ON = True\n", "main": "if ON:"},
)


def switched(changes: dict[str, str]) -> str:
    words = {
        "top": "",
        "train": "if distributed:",
        "default": "False",
        "call": "train(distributed)",
    }
    return SWITCHED.format(**{**words, **changes})


@pytest.mark.parametrize("changes", OFF)
def test_what_a_constant_switches_off_gets_no_launch(changes: dict[str, str]) -> None:
    script = switched(changes)
    assert style(script) is Style.NONE
    assert b"launch" not in run(script).data


@pytest.mark.parametrize("changes", UNKNOWN)
def test_what_may_be_switched_on_is_launched(changes: dict[str, str]) -> None:
    assert style(switched(changes)) is not Style.NONE


SETTINGS = """
import torch.distributed as dist


class Trainer:
    def __init__(self):
        {set}

    def run(self):
        if self.distributed:
            dist.init_process_group("nccl")


if __name__ == "__main__":
    Trainer().run()
"""


def test_an_attribute_that_is_a_constant() -> None:
    assert style(SETTINGS.format(set="self.distributed = False")) is Style.NONE
    assert style(SETTINGS.format(set="self.distributed = True")) is Style.MAIN
    chosen = "self.distributed = False\n        self.distributed = dist.is_torchelastic_launched()"
    assert style(SETTINGS.format(set=chosen)) is Style.MAIN
