"""XLA's generator gets the seed that a GPU's has, in each replica."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from shims.patches.rng import HostGenerators
from tests.rewrite.test_early_seeds import texts

SCRIPT = """\
import os
{imports}
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

{top}


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    {seed}
    net = DDP({net}.cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.zeros(8, 4).cuda()
        loss = net(x{draw}).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
NOISE = " + torch.randn_like(x)"
OWN = "    torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())\n"
FOLLOWS = "    torch_xla.manual_seed(torch.initial_seed())\n"
JOINS = '    dist.init_process_group("xla", init_method="xla://")\n'


def script(
    imports: str = "",
    top: str = "",
    seed: str = "pass",
    net: str = "nn.Linear(4, 4)",
    draw: str = NOISE,
) -> str:
    return SCRIPT.format(imports=imports, top=top, seed=seed, net=net, draw=draw)


def rewritten(folder: Path, before: str, style: str = "native") -> str:
    path = folder / "train.py"
    path.write_text(before)
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    done = rewrite_file(path, options=options)
    assert not [note for note in done.findings if note.rule == "rng"]
    path.write_bytes(done.data)
    assert rewrite_file(path, options=options).data == done.data
    return done.data.decode()


@pytest.mark.parametrize(
    ("net", "draw"),
    [
        ("nn.Linear(4, 4)", NOISE),
        ("nn.Linear(4, 4)", " + torch.rand(8, 4, device=x.device)"),
        ("nn.Linear(4, 4)", " * torch.empty_like(x).bernoulli_(0.5)"),
        ("nn.Linear(4, 4)", " + torch.nn.functional.dropout(x)"),
        ("nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))", ""),
        ("nn.TransformerEncoderLayer(4, 2)", ""),
        ("nn.LSTM(4, 4, 2, dropout=0.5)", ""),
        ("nn.LSTM(4, 4, 2, True, True, 0.5)", ""),
        ("nn.MultiheadAttention(4, 2, 0.1)", ""),
    ],
)
def test_each_replica_of_a_script_without_a_seed_draws_its_own(
    tmp_path: Path, net: str, draw: str
) -> None:
    text = rewritten(tmp_path, script(net=net, draw=draw))
    assert text.count("manual_seed") == 1
    comment = (
        "    # XLA starts all replicas at the same seed: each gets its own, as each GPU does.\n"
    )
    assert JOINS + comment + OWN in text


NAMED = {
    "another name": ("from torch.nn import Dropout as Thin", "", "Thin(0.1)", ""),
    "a subclass": ("", "class Thin(nn.Dropout):\n    pass", "Thin(0.1)", ""),
    "a variable": (
        "",
        "def thin(x):\n    mask = torch.empty_like(x)\n    return x * mask.bernoulli_(0.5)",
        "nn.Linear(4, 4)",
        " + thin(x)",
    ),
}


@pytest.mark.parametrize(("imports", "top", "net", "draw"), NAMED.values(), ids=NAMED)
def test_what_draws_is_known_by_what_it_is(
    tmp_path: Path, imports: str, top: str, net: str, draw: str
) -> None:
    before = script(imports=imports, top=top, net=net, draw=draw)
    assert OWN in rewritten(tmp_path, before)


def test_a_function_of_the_project_called_dropout_draws_nothing(tmp_path: Path) -> None:
    before = script(top="def dropout(x):\n    return x * 0.5", draw=" + dropout(x)")
    assert "manual_seed" not in rewritten(tmp_path, before)


@pytest.mark.parametrize(
    ("net", "draw"),
    [
        ("nn.Linear(4, 4)", ""),
        ("nn.LSTM(4, 4, 2, True, True, 0.0)", ""),
        ("nn.Linear(4, 4)", " + torch.randn(8, 4).cuda()"),
        ("nn.Sequential(nn.Linear(4, 4), nn.Dropout(p=0.0))", ""),
    ],
)
def test_a_script_that_draws_nothing_on_the_device_is_not_seeded(
    tmp_path: Path, net: str, draw: str
) -> None:
    assert "manual_seed" not in rewritten(tmp_path, script(net=net, draw=draw))


@pytest.mark.parametrize(
    ("seed", "added"),
    [
        ("torch.manual_seed(5)", "torch_xla.manual_seed(5)"),
        ("torch.random.manual_seed(5 + rank)", "torch_xla.manual_seed(5 + rank)"),
        ("torch.seed()", "torch_xla.manual_seed(torch.initial_seed())"),
    ],
)
def test_the_seed_of_the_script_is_followed(tmp_path: Path, seed: str, added: str) -> None:
    text = rewritten(tmp_path, script(seed=seed))
    assert f"    {seed}\n    {added}\n" in text
    assert text.count("torch_xla.manual_seed") == 1


def test_a_script_that_names_no_device_and_spawns(tmp_path: Path) -> None:
    before = """\
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    net = DDP(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(rank), device_ids=[rank])
    print(net)


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
"""
    assert OWN in rewritten(tmp_path, before)


def test_a_seed_of_numpy_seeds_no_device(tmp_path: Path) -> None:
    text = rewritten(tmp_path, script("import numpy as np", seed="np.random.seed(0)"))
    assert text.count(OWN) == 1


@pytest.mark.parametrize(
    ("imports", "seed"),
    [
        ("from transformers import set_seed", "set_seed(7 + rank)"),
        ("from timm.utils import random_seed as seed_all", "seed_all(1, rank)"),
        ("import monai", "monai.utils.set_determinism(seed=0)"),
        ("from detectron2.utils.env import seed_all_rng", "seed_all_rng(rank)"),
    ],
)
def test_the_seed_of_a_library_is_followed(tmp_path: Path, imports: str, seed: str) -> None:
    text = rewritten(tmp_path, script(imports, seed=seed))
    assert f"    {seed}\n{FOLLOWS}" in text
    assert text.count("torch_xla.manual_seed") == 1


def test_what_seeds_xla_by_itself_is_not_followed(tmp_path: Path) -> None:
    text = rewritten(tmp_path, script("from accelerate.utils import set_seed", seed="set_seed(7)"))
    assert "manual_seed" not in text


@pytest.mark.parametrize(
    "top",
    [
        "torch.manual_seed(0)\nif torch.cuda.is_available():\n    torch.cuda.manual_seed_all(0)",
        "def fix(seed):\n    torch.manual_seed(seed)\n    torch.cuda.manual_seed(seed)\n\n\nfix(0)",
        "import transformers\n\ntransformers.set_seed(0)",
    ],
)
def test_a_seed_at_import_is_set_on_xla_in_the_replica(tmp_path: Path, top: str) -> None:
    text = rewritten(tmp_path, script(top=top))
    assert JOINS + FOLLOWS in text
    assert text.count("torch_xla.manual_seed") == 1
    assert "cuda" not in text


def test_a_script_that_runs_as_it_is_read_seeds_where_torch_is_seeded(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("import torch\n\ntorch.manual_seed(3)\n")
    body = script("import config", "torch.manual_seed(0)").partition("def main():\n")
    lines = body[2].partition("\n\nif __name__")[0].splitlines()
    text = rewritten(tmp_path, body[0] + "\n".join(line[4:] for line in lines) + "\n")
    assert "torch.manual_seed(0)\ntorch_xla.manual_seed(0)\n" in text
    assert text.count("torch_xla.manual_seed") == 1


def test_a_seed_at_the_import_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("import torch\n\ntorch.manual_seed(0)\n")
    assert JOINS + FOLLOWS in rewritten(tmp_path, script("import config"))


@pytest.mark.parametrize("call", ["set_seed(42 + dist.get_rank())", "Seeds().set(rank)"])
def test_a_seed_of_another_file_is_followed(tmp_path: Path, call: str) -> None:
    seeds = (
        "import torch\n\n\ndef set_seed(seed):\n    torch.manual_seed(seed)\n\n\n"
        "class Seeds:\n    def set(self, seed):\n        torch.manual_seed(seed)\n"
    )
    before = script("from seeds import Seeds, set_seed", seed=call)
    (tmp_path / "requirements.txt").write_text("torch\n")
    (tmp_path / "seeds.py").write_text(seeds)
    (tmp_path / "train.py").write_text(before)
    whole = texts(rewrite_folder(tmp_path, processes=1))
    assert "torch.manual_seed(seed)\n    torch_xla.manual_seed(seed)\n" in whole["seeds.py"]
    assert "torch_xla.manual_seed" not in whole["train.py"]
    (tmp_path / "seeds.py").write_text(seeds)
    assert FOLLOWS in rewritten(tmp_path, before)


def test_the_processes_of_a_loader_are_kept_from_xla(tmp_path: Path) -> None:
    top = "def seed_worker(number):\n    torch.manual_seed(number)"
    loader = "loader = torch.utils.data.DataLoader(range(3), worker_init_fn=seed_worker)"
    text = rewritten(tmp_path, script(top=top, seed=loader))
    assert top in text
    assert text.count("torch_xla.manual_seed") == text.count(OWN) == 1
    portable = rewritten(tmp_path, script(top=top, seed=loader), "portable")
    assert top in portable
    assert "shims.manual_seed" not in portable


IN_ITEM = """class Items(torch.utils.data.Dataset):
    def __getitem__(self, index):
        torch.manual_seed(index)
        return torch.randn(2)
"""
IN_WORKER = """class Items(torch.utils.data.IterableDataset):
    def start(self):
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            torch.manual_seed(worker.id)
"""


@pytest.mark.parametrize("top", [IN_ITEM, IN_WORKER])
@pytest.mark.parametrize("style", ["native", "portable"])
def test_what_seeds_in_a_data_set_is_kept_from_xla(top: str, style: str, tmp_path: Path) -> None:
    """A process of a loader that seeds XLA opens the TPU, which the replica has."""
    text = rewritten(tmp_path, script(top=top, seed="items = Items()"), style)
    assert top.strip() in text
    assert text.count("torch_xla.manual_seed") == text.count(OWN)
    assert "shims.manual_seed" not in text


@pytest.mark.parametrize("seed", ["items = Items()", "reseed(1)"])
def test_a_function_that_only_a_data_set_calls_is_kept_from_xla(seed: str, tmp_path: Path) -> None:
    before = "import torch\n\n\ndef reseed(seed):\n    torch.manual_seed(seed)\n"
    (tmp_path / "seeds.py").write_text(before)
    items = (
        "class Items(torch.utils.data.Dataset):\n    def __getitem__(self, index):\n"
        "        return self.made(index)\n\n"
        "    def made(self, index):\n        reseed(index)\n        return torch.randn(2)\n"
    )
    top = f"from seeds import reseed\n\n\n{items}"
    (tmp_path / "train.py").write_text(script(top=top, seed=seed))
    after = texts(rewrite_folder(tmp_path, processes=1)).get("seeds.py", before)
    assert ("torch_xla.manual_seed" in after) is (seed == "reseed(1)")


def test_the_portable_style_leaves_a_missing_seed_to_shims(tmp_path: Path) -> None:
    assert "manual_seed" not in rewritten(tmp_path, script(), "portable")
    before = script("from transformers import set_seed", seed="set_seed(7)")
    text = rewritten(tmp_path, before, "portable")
    assert "    set_seed(7)\n    shims.manual_seed(torch.initial_seed())\n" in text


RESUMED = """\
import torch


def resume(path):
    state = torch.load(path, map_location="cpu")
    {put}


def around(model):
    before = torch.cuda.get_rng_state()
    model(torch.ones(3).cuda())
    torch.cuda.set_rng_state(before)


class Kept:
    def keep(self):
        self.state = torch.cuda.get_rng_state()

    def put_back(self):
        torch.cuda.set_rng_state(self.state)
"""


@pytest.mark.parametrize(
    ("put", "value"),
    [
        ("torch.cuda.set_rng_state(state['cuda_rng'].cpu())", "state['cuda_rng'].cpu()"),
        ("torch.cuda.set_rng_state_all(state['rng_states'])", "state['rng_states'][0]"),
        ("torch.cuda.random.set_rng_state(state.pop('rng'))", "state.pop('rng')"),
        ("torch.cuda.set_rng_state(device='cuda', new_state=state['cuda'])", "state['cuda']"),
    ],
)
def test_xla_takes_the_seed_of_a_gpu_from_a_checkpoint(
    tmp_path: Path, put: str, value: str
) -> None:
    text = rewritten(tmp_path, RESUMED.format(put=put)).replace('"', "'")
    assert f"    xm.set_rng_state(int.from_bytes({value}[:8].tolist(), 'little'))\n" in text
    assert "\n    before = xm.get_rng_state()\n" in text
    assert "\n    xm.set_rng_state(before)\n" in text
    assert "xm.set_rng_state(int.from_bytes(self.state[:8].tolist(), 'little'))\n" in text


@pytest.mark.parametrize("number", [7, 2**64 - 5])
def test_a_state_of_xla_is_saved_in_the_form_of_a_gpu(tmp_path: Path, number: int) -> None:
    """CUDA's state is 16 bytes, the seed and a position that is a multiple of four."""
    text = rewritten(tmp_path, "import torch\n\nsaved = torch.cuda.get_rng_state_all()\n")
    expression = text.partition("saved = ")[2]
    xm = SimpleNamespace(get_rng_state=lambda: number)
    (state,) = eval(expression, {"torch": torch, "xm": xm})
    assert state.dtype is torch.uint8
    seed, position = np.frombuffer(state.numpy(), dtype="uint64")
    assert (seed, position) == (number, 0)
    generators = HostGenerators(cast("Any", SimpleNamespace(count=1, current=0, index=lambda _: 0)))
    generators.set_rng_state(state)
    assert generators.initial_seed() == number


PARSED = """\
import argparse, random
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int{default})
args = parser.parse_args()


def set_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def set_given(seed):
    if seed is None:
        return
    torch.manual_seed(seed)
"""


@pytest.mark.parametrize(
    ("default", "seed"),
    [
        ("", "if args.seed is not None:\n        torch.manual_seed(args.seed)"),
        ("", "if args.seed is not None:\n        set_all(args.seed + rank)"),
        ("", "set_given(args.seed)"),
        (", default=0", "if args.seed:\n        set_all(args.seed)"),
        (", default=-1", "if args.seed >= 0 and rank >= 0:\n        set_all(args.seed)"),
        (", default=None", "if not args.seed is None:\n        torch.manual_seed(args.seed)"),
    ],
)
def test_a_seed_that_may_not_be_given_leaves_each_replica_its_own(
    tmp_path: Path, default: str, seed: str
) -> None:
    text = rewritten(tmp_path, script(top=PARSED.format(default=default), seed=seed))
    assert OWN in text
    assert text.index(OWN) > text.index(JOINS)
    assert OWN not in rewritten(
        tmp_path, script(top=PARSED.format(default=default), seed=seed, draw="")
    )


@pytest.mark.parametrize(
    ("default", "seed"),
    [
        (", default=7", "if args.seed is not None:\n        torch.manual_seed(args.seed)"),
        (", default=7", "if args.seed:\n        set_all(args.seed)"),
        ("", "if args.seed is None:\n        args.seed = 3\n    torch.manual_seed(args.seed)"),
        (
            "",
            "if args.seed is not None:\n        set_all(args.seed)\n"
            "    else:\n        set_all(random.randint(0, 9))",
        ),
        ("", "if rank is not None:\n        torch.manual_seed(3)"),
    ],
)
def test_a_seed_that_is_always_given_is_the_only_one(
    tmp_path: Path, default: str, seed: str
) -> None:
    text = rewritten(tmp_path, script(top=PARSED.format(default=default), seed=seed))
    assert "initial_seed" not in text


def test_a_seed_that_may_not_be_given_before_the_replica_joins(tmp_path: Path) -> None:
    before = script(top=PARSED.format(default="")).replace(
        '    dist.init_process_group("nccl")\n',
        "    if args.seed is not None:\n        torch.manual_seed(args.seed)\n"
        '    dist.init_process_group("nccl")\n',
    )
    text = rewritten(tmp_path, before)
    comment = "    # Where no seed is given, XLA would start all replicas at the same one.\n"
    assert JOINS + comment + FOLLOWS in text


def test_a_seed_of_another_file_that_may_not_be_given(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "import torch\nimport torch.distributed as dist\n\n\n"
        "def fix(seed):\n    torch.manual_seed(seed + dist.get_rank())\n\n\n"
        "def start(seed=None):\n"
        '    dist.init_process_group("nccl")\n'
        "    torch.cuda.set_device(dist.get_rank())\n"
        "    if seed is not None:\n        fix(seed)\n"
    )
    before = script(imports="from setup import start", top=PARSED.format(default=""))
    before = before.replace('dist.init_process_group("nccl")', "start(args.seed)")
    (tmp_path / "train.py").write_text(before.replace("torch.cuda.set_device(rank)", "pass"))
    done = texts(rewrite_folder(tmp_path, processes=1))
    assert OWN in done["setup.py"]
    assert "initial_seed" not in done["train.py"]


MESH = 'init_device_mesh("cuda", (2,))'


@pytest.mark.parametrize(("group", "after"), [("pass", "mesh"), (JOINS.strip(), "group")])
def test_a_device_mesh_joins_where_nothing_else_does(
    tmp_path: Path, group: str, after: str
) -> None:
    before = script("from torch.distributed.device_mesh import init_device_mesh")
    before = before.replace(
        '    dist.init_process_group("nccl")\n', f"    {group}\n    mesh = {MESH}\n"
    )
    path = tmp_path / "train.py"
    path.write_text(before)
    lines = rewrite_file(path).data.decode().splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if line == OWN]
    joined = next(line for line in reversed(lines[:place]) if "#" not in line)
    assert ("init_device_mesh" in joined) == (after == "mesh")
    assert ("init_process_group" in joined) == (after == "group")
