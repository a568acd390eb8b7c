"""Indices of devices that functions of other files calculate with."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

DATA = """
    from functools import partial

    import torch


    def init_worker(worker_id, rank, seed):
        torch.manual_seed(seed + worker_id + rank)


    def build(data, device, seed=0):
        init = partial(init_worker, rank=device, seed=seed)
        return torch.utils.data.DataLoader(data, 4, worker_init_fn=init)


    def seeded(x, device):
        return x.to(device) * (3 + device)


    def first(device):
        if device == 0:
            print("first")


    def place(x, device):
        return x.to(device)


    class Task:
        def __init__(self, device):
            self.device = device

        def seed(self):
            return 5 * self.device
"""
TRAIN = """
    import os

    import torch
    import torch.distributed as dist
    from data import Task, build, first, place, seeded


    def main(x):
        dist.init_process_group("nccl")
        local_rank = int(os.environ["LOCAL_RANK"])
        CALL


    if __name__ == "__main__":
        main(torch.ones(3))
"""


def rewritten(folder: Path, call: str, style: Style = "native") -> tuple[str, str]:
    (folder / "data.py").write_text(dedent(DATA).lstrip())
    (folder / "train.py").write_text(dedent(TRAIN).lstrip().replace("CALL", call))
    files = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1).files
    by_name = {file.name.name: file.after.decode() for file in files}
    return by_name["data.py"], by_name["train.py"]


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("build(x, device=torch.cuda.current_device())", "build(x, device={local})"),
        ("seeded(x, device=torch.cuda.current_device())", "seeded(x, device={local})"),
        ("seeded(x, torch.cuda.current_device())", "seeded(x, {local})"),
        ("seeded(x, device=local_rank)", "seeded(x, device=local_rank)"),
        ("first(device=torch.cuda.current_device())", "first(device={local})"),
        ("Task(device=torch.cuda.current_device()).seed()", "Task(device={local}).seed()"),
        ("device = torch.cuda.current_device(); seeded(x, device)", "device = {local}; "),
    ],
)
@pytest.mark.parametrize("style", ["native", "portable"])
def test_an_index_stays_a_number(tmp_path: Path, call: str, after: str, style: Style) -> None:
    local = "xr.local_ordinal()" if style == "native" else "shims.local_rank()"
    data, train = rewritten(tmp_path, call, style)
    assert f"    {after.format(local=local)}" in train
    if "seeded" in call:
        device = '"xla"' if style == "native" else "shims.device()"
        assert f"x.to({device}) * (3 + device)" in data


def test_an_index_that_only_says_where_becomes_the_device(tmp_path: Path) -> None:
    _, train = rewritten(tmp_path, "place(x, device=torch.cuda.current_device())")
    assert '    place(x, device="xla")' in train


def test_an_index_in_the_name_of_a_device(tmp_path: Path) -> None:
    call = 'device = f"cuda:{local_rank}"; place(x, device); print(int(device.split(":")[1]))'
    _, train = rewritten(tmp_path, call)
    assert 'device = "xla"; place(x, device); print(xr.local_ordinal())' in train


@pytest.mark.parametrize(
    ("uses", "result"),
    [
        ("peak = device_peak()\nprint(flops / peak)", "1979"),
        ("print(flops / device_peak())", "1979"),
        ("device = device_peak()\nnet.to(device)", '"xla"'),
        ("net.to(device_peak())", '"xla"'),
    ],
)
def test_a_number_that_a_function_named_like_a_device_returns(
    tmp_path: Path, uses: str, result: str
) -> None:
    script = f"import torch\n\n\ndef device_peak():\n    return 1979\n\n\nnet.cuda()\n{uses}\n"
    (tmp_path / "train.py").write_text(script)
    done = rewrite_folder(tmp_path, processes=1).files[0]
    assert f"return {result}" in done.after.decode()


FIT = """
    import torch


    class Trainer:
        def __init__(self, args):
            self.args = args
            self.net = torch.nn.Linear(4, 4).to(self.args.device)

        def fit(self, x):
            return self.net(x.to(self.args.device)) + torch.zeros(4, device=self.args.device)
"""
MAIN = """
    import os

    import torch
    import torch.distributed as dist
    from fit import Trainer


    def main(args):
        dist.init_process_group("nccl")
        args.device = int(os.environ["LOCAL_RANK"])
        args.first = args.device == 0
        Trainer(args).fit(torch.ones(4))


    if __name__ == "__main__":
        PARSED
        main(args)
"""
PARSED = "import argparse; args = argparse.ArgumentParser().parse_args()"
BY_SCRIPT = 'args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("parsed", [PARSED, f"{PARSED}; {BY_SCRIPT}"])
def test_a_device_that_a_rank_replaces_and_that_is_computed_with(
    tmp_path: Path, style: Style, parsed: str
) -> None:
    """The moves kept `args.device`, which held the number in each replica."""
    (tmp_path / "fit.py").write_text(dedent(FIT).lstrip())
    (tmp_path / "main.py").write_text(dedent(MAIN).lstrip().replace("PARSED", parsed))
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    fit = next(file for file in done.files if file.name.name == "fit.py").after.decode()
    device = '"xla"' if style == "native" else "shims.device()"
    assert fit.count(f"to({device})") == 2
    assert f"device={device}" in fit
