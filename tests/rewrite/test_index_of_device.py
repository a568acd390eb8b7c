"""The index of a device, None or 0 in every replica of XLA, and the module of torch for its type."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import torch
    import torch.distributed as dist


    def main(local, model):
        dist.init_process_group("nccl")
        place = {device}
        x = torch.zeros(2, device=place)
        model.to(place)
        if {asked} == 0:
            torch.save(model.state_dict(), "model.pt")
        print({asked})


    if __name__ == "__main__":
        torch.multiprocessing.spawn(main, (torch.nn.Linear(2, 2),), nprocs=8)
"""
LOCAL = {"native": "xr.local_ordinal()", "portable": "shims.local_rank()"}


def rewritten(script: str, style: Style) -> tuple[str, list[tuple[str, int]]]:
    source = parse(dedent(script).lstrip().encode(), Path("train.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    return done.data.decode(), [(note.rule, note.line) for note in done.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ('torch.device("cuda", local)', "place.index"),
        ('torch.device(f"cuda:{local}")', "place.index"),
        ("torch.device(local)", "x.device.index"),
        ('torch.device("cuda")', "x.device.index"),
        ('torch.device("cuda")', "x.get_device()"),
    ],
)
def test_the_index_is_that_of_the_replica(device: str, asked: str, style: Style) -> None:
    """`device.index == 0` was false in every replica, or true: no file, or a barrier in one of them."""
    text, _ = rewritten(SCRIPT.format(device=device, asked=asked), style)
    assert f"print({LOCAL[style]})" in text
    assert asked not in text
    save = "xm.save" if style == "native" else "shims.save"
    assert f"    {save}(model.state_dict()" in text
    assert "\n    if " not in text


@pytest.mark.parametrize("style", ["native", "portable"])
def test_an_index_that_is_none_stays(style: Style) -> None:
    script = """
        import torch

        place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        names = ["a", "b"]
        if place.index is None:
            print(names.index("a"), torch.zeros(2))
    """
    text, notes = rewritten(script, style)
    assert "if place.index is None:" in text
    assert notes == []


@pytest.mark.parametrize("style", ["native", "portable"])
def test_an_index_that_is_only_a_device_is_no_number(style: Style) -> None:
    script = """
        import torch


        def main(local, model):
            place = torch.device("cuda", local)
            torch.cuda.set_device(place.index)
            model.to(place)
            y = torch.zeros(2).to(f"cuda:{place.index}")
            return torch.nn.parallel.DistributedDataParallel(model, device_ids=[place.index]), y


        if __name__ == "__main__":
            torch.multiprocessing.spawn(main, (torch.nn.Linear(2, 2),), nprocs=8)
    """
    text, _ = rewritten(script, style)
    assert LOCAL[style] not in text
    assert style == "portable" or ".index" not in text


TRAINS = """
    import torch

    from tools import first, place


    class Runner:
        def __init__(self, local, model):
            self.device = place(local)
            self.model = model.to(self.device)

        def run(self):
            if self.device.index == 0:
                torch.save(self.model.state_dict(), "model.pt")
            first(self.device)


    def main(local, model):
        Runner(local, model).run()


    if __name__ == "__main__":
        torch.multiprocessing.spawn(main, (torch.nn.Linear(2, 2),), nprocs=8)
"""
TOOLS = """
    import torch


    def place(local):
        return torch.device("cuda", local)


    def first(device):
        if device.index == 0:
            print("first")
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_across_files(tmp_path: Path, style: Style) -> None:
    (tmp_path / "tools.py").write_text(dedent(TOOLS).lstrip())
    (tmp_path / "main.py").write_text(dedent(TRAINS).lstrip())
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    texts = {file.name.name: file.after.decode() for file in done.files}
    assert "index" not in texts["main.py"].split("def run")[1].split("first(")[0]
    assert f"if {LOCAL[style]} == 0:" in texts["tools.py"]


def test_an_index_of_an_unknown_device_is_reported() -> None:
    script = """
        import torch


        def first(device, other):
            torch.zeros(2).cuda()
            return device.index == 0 or other.index == 0 or device.index is None
    """
    _, notes = rewritten(script, "native")
    assert ("xla-index", 6) in notes
    assert [rule for rule, _ in notes].count("xla-index") == 1


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("asked", "do"),
    [
        ("getattr(torch, kind).manual_seed(3)", "torch_xla.manual_seed(seed)"),
        ("getattr(torch, place.type).synchronize()", "torch_xla.sync(wait=True)"),
        ("torch.get_device_module(place).synchronize()", "torch_xla.sync(wait=True)"),
        ("module = torch.get_device_module(kind)", "torch_xla.manual_seed(seed) seeds"),
    ],
)
def test_torch_has_no_module_for_xla(asked: str, do: str, style: Style) -> None:
    """The test of the type asked for 'xla' after the rewrite, and what it let run raised."""
    script = f"""
        import torch


        def start(rank):
            place = torch.device("cuda", rank)
            kind = place.type
            if kind in ("cuda", "mps"):
                {asked}
            return torch.zeros(2, device=place)
    """
    source = parse(dedent(script).lstrip().encode(), Path("train.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    (note,) = [note for note in done.findings if note.rule == "XLA865"]
    assert note.line == 8
    assert do in note.message


BOUNDED = """
    import torch
    import torch.distributed as dist


    def main():
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        count = max(1, torch.cuda.device_count())
        {name} = {index}
        print(torch.zeros(2).to({name}), count)


    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "index",
    [
        "rank % max(1, torch.cuda.device_count())",
        "rank % (torch.cuda.device_count() or 1)",
        "rank % max(int(torch.cuda.device_count()), 1)",
        "rank % count",
        "min(rank, torch.cuda.device_count() - 1)",
        "max(0, rank)",
    ],
)
def test_an_index_within_bounds_is_the_device(index: str, style: Style) -> None:
    """The count alone was rewritten, and `.to(0)` asked for CUDA."""
    device = '"xla"' if style == "native" else "shims.device()"
    text, _ = rewritten(BOUNDED.format(name="device", index=index), style)
    assert f"device = {device}\n" in text
    assert "zeros(2).to(device)" in text
    text, _ = rewritten(BOUNDED.format(name="place", index=index), style)
    assert f"zeros(2).to({device})" in text


def test_a_number_within_bounds_is_no_device() -> None:
    script = BOUNDED.format(name="device", index='"cpu"').replace("count)", "max(0, rank))")
    text, _ = rewritten(script, "native")
    assert "print(torch.zeros(2).to(device), max(0, rank))" in text
