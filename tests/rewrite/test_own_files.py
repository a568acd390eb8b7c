"""Saves of which each replica makes its own, by a share of the work: no file is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.results import FolderRewrite

START = """\
import torch.distributed as dist


def start(args):
    dist.init_process_group("nccl")
    args.rank = dist.get_rank()
    args.world_size = dist.get_world_size()


def share(items, rank, count):
    return items[rank::count]
"""
MAIN = """\
import os

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from start import share, start
from store import keep


def main(args, files, dataset):
    start(args)
    model = torch.nn.Linear(4, 2).cuda()
{loop}
"""
STORE = """\
import torch


def keep(value, name):
    torch.save(value, f"out/{name}.pt")
"""
SAVE = 'torch.save(model(torch.load(name).cuda()), f"{name}.out")'
# Loops over the share of a replica; `SAVE` stands for the save of one of its files.
LOOPS = {
    "a range from the rank of an option": """
    first = args.begin + args.rank * args.each
    last = first + args.each
    names = [i for i in range(first, min(last, args.end))]
    for name in names:
        path = os.path.join(args.out, "{}.pt".format(name))
        SAVE
""",
    "each so many": "    for name in files[args.rank :: args.world_size]:\n        SAVE\n",
    "a part of a list, and zip": """
    numbers = [i for i in range(len(files))]
    each = len(files) // args.world_size
    numbers = numbers[args.rank * each : (args.rank + 1) * each]
    for name, file in zip(numbers, files):
        SAVE
""",
    "those that a test keeps": """
    mine = [f for i, f in enumerate(files) if i % args.world_size == args.rank]
    for number, name in enumerate(mine):
        SAVE
""",
    "a list that a loop fills": """
    mine = []
    for i, file in enumerate(files):
        if i % args.world_size == args.rank:
            mine.append(file)
    for name in sorted(mine):
        SAVE
""",
    "by a function of another file": """
    for name in share(files, args.rank, args.world_size):
        SAVE
""",
    "names from the batch": """
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for images, names in loader:
        for image, name in zip(images, names):
            SAVE
""",
    "turns, and those of others are left out": """
    for i, name in enumerate(files):
        if i % args.world_size != args.rank:
            continue
        SAVE
""",
    "turns": """
    for i, name in enumerate(files):
        if i % args.world_size == args.rank:
            SAVE
""",
    "turns, counted from the rank": """
    for i, name in enumerate(files):
        if (i - args.rank) % args.world_size == 0:
            SAVE
""",
    "a range of two values": """
    ends = args.rank * args.each, args.rank * args.each + args.each
    for name in range(*ends):
        SAVE
""",
    "an attribute": """
    args.mine = files[args.rank :: args.world_size]
    for name in args.mine:
        SAVE
""",
    "a while": """
    name = args.rank * args.each
    while name < min(args.end, (args.rank + 1) * args.each):
        SAVE
        name += 1
""",
}
# What every replica does alike.
ALIKE = {
    "a range": "    for name in range(args.epochs):\n        SAVE\n",
    "a count of the batches": """
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for name, (image, label) in enumerate(loader):
        SAVE
""",
    "a checkpoint that was loaded onto the replica's device": """
    state = torch.load("last.pt", map_location=f"cuda:{args.rank}")
    for name in range(state["epoch"], args.epochs):
        SAVE
""",
    "a name that is broadcast": """
    names = [f"{args.rank}-{os.getpid()}"]
    torch.distributed.broadcast_object_list(names, src=0)
    for name in names:
        SAVE
""",
}


def rewritten(folder: Path, loop: str, style: str = "native") -> tuple[FolderRewrite, str]:
    (folder / "start.py").write_text(START)
    (folder / "store.py").write_text(STORE)
    (folder / "main.py").write_text(MAIN.format(loop=loop.strip("\n")))
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    done = rewrite_folder(folder, processes=1, options=options)
    assert not [file.problem for file in done.files if file.problem]
    return done, {file.name.as_posix(): file.after.decode() for file in done.files}["main.py"]


@pytest.mark.parametrize("loop", LOOPS)
def test_each_replica_writes_its_files(loop: str, tmp_path: Path) -> None:
    _, after = rewritten(tmp_path, LOOPS[loop].replace("SAVE", SAVE))
    line = next(line for line in after.splitlines() if ".save(" in line).strip()
    assert line.startswith("torch.save(model(")
    assert line.endswith('.cpu(), f"{name}.out")')
    assert "xm.save" not in after


@pytest.mark.parametrize("loop", LOOPS)
def test_the_portable_style_lets_all_write(loop: str, tmp_path: Path) -> None:
    _, after = rewritten(tmp_path, LOOPS[loop].replace("SAVE", SAVE), "portable")
    (line,) = (line for line in after.splitlines() if ".save(" in line)
    if "turns" in loop:  # by a test, which one replica passes
        assert line.strip().startswith("torch.save(model(")
        assert line.endswith('.cpu(), f"{name}.out")')
    else:
        assert "shims.save(" in line
        assert 'writers="all"' in line


@pytest.mark.parametrize("loop", ALIKE)
def test_what_all_write_alike_is_written_once(loop: str, tmp_path: Path) -> None:
    save = 'torch.save(model.state_dict(), f"{name}.pt")'
    _, after = rewritten(tmp_path, ALIKE[loop].replace("SAVE", save))
    assert 'xm.save(model.state_dict(), f"{name}.pt", global_master=True)' in after


def test_a_save_in_another_file_follows_its_caller(tmp_path: Path) -> None:
    save = "keep(model(torch.load(name).cuda()), name)"
    done, _ = rewritten(tmp_path, LOOPS["each so many"].replace("SAVE", save))
    (store,) = (file for file in done.files if file.name.name == "store.py")
    after = store.after.decode()
    assert "xm.save" not in after
    messages = [note.message for note in store.findings if note.rule == "save"]
    assert "torch.save(value.cpu()" in after or "so that no file is lost" in messages[0]


def on_the_cpu(name: str) -> str:
    return f"`{name}` is on the CPU"


def test_values_of_the_host_stay_and_unknown_ones_are_reported(tmp_path: Path) -> None:
    loop = """
    for name in files[args.rank :: args.world_size]:
        rows = {"rows": []}
        rows["rows"].append(model(torch.load(name).cuda()).cpu())
        torch.save(rows, f"{name}.a")
        other = args.make(name)
        torch.save(other, f"{name}.b")
"""
    done, after = rewritten(tmp_path, loop)
    assert 'torch.save(rows, f"{name}.a")' in after
    assert 'torch.save(other, f"{name}.b")' in after
    (main,) = (file for file in done.files if file.name.name == "main.py")
    (message,) = (note.message for note in main.findings if note.rule == "save")
    assert "`files[args.rank::args.world_size]` (line 13) divides them" in message
    assert f"see that {on_the_cpu('other')} first" in message


def test_a_file_for_each_rank_is_written_by_all_together(tmp_path: Path) -> None:
    loop = '    part = args.rank * 2\n    torch.save(model.state_dict(), f"part{part}.pt")\n'
    _, after = rewritten(tmp_path, loop)
    assert 'xm.save(model.state_dict(), f"part{part}.pt", master_only=False)' in after


ON_ALL = """\
import torch
import torch.distributed as dist

from saving import save_on_all


def main(state):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    rank = dist.get_rank()
    print(torch.ones(2).cuda())
{calls}
"""
SAVING = """\
import torch


def moved(x):
    return x.cuda()


def save_on_all(*args, **kwargs):
    torch.save(*args, **kwargs)
"""


@pytest.mark.parametrize(
    ("calls", "option"),
    [
        ('    save_on_all(state, f"{rank}.pth")', "master_only=False"),
        ('    save_on_all(state, f=f"{rank}.pth")', "master_only=False"),
        ('    save_on_all(state, "last.pth")', "global_master=True"),
        ('    save_on_all(state, "last.pth")\n    save_on_all(state, f"{rank}.pth")', None),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_save_that_hands_on_all_its_arguments(
    tmp_path: Path, calls: str, option: str | None, elsewhere: bool
) -> None:
    main = ON_ALL.format(calls=calls)
    if not elsewhere:
        main = main.replace(
            "from saving import save_on_all\n", SAVING.partition("import torch\n\n\n")[2]
        )
    (tmp_path / "main.py").write_text(main)
    if elsewhere:
        (tmp_path / "saving.py").write_text(SAVING)
    name = "saving.py" if elsewhere else "main.py"
    done = rewrite_folder(tmp_path, processes=1)
    file = next(file for file in done.files if file.name == Path(name))
    if option is None:
        assert "    torch.save(*args, **kwargs)" in file.after.decode()
        assert any("on some ways only" in note.message for note in file.findings)
    else:
        assert f"xm.save(*args, **kwargs, {option})" in file.after.decode()


def test_names_that_are_reached_in_many_ways_are_followed_once(tmp_path: Path) -> None:
    """Each name is bound to the last one twice: there are 2 ** 60 ways to the first."""
    chain = "\n".join(
        f"    name_{i} = os.path.join(name_{i - 1}, name_{i - 1})" for i in range(1, 61)
    )
    loop = f"    name_0 = args.folder\n{chain}\n    torch.save(model.state_dict(), name_60)"
    _, text = rewritten(tmp_path, loop)
    assert "xm.save(model.state_dict(), name_60, global_master=True)" in text


# Saves of which each replica makes its own; `VALUE` is what a batch gives.
SHARDS = """
    shard, parts = 0, []
    for name in files[args.rank :: args.world_size]:
        VALUE
        if len(parts) == 10:
            parts = torch.cat(parts, dim=0)
            state = {"x": parts}
            torch.save(state, f"{args.rank}-{shard}.pt")
            shard, parts = shard + 1, []
    if len(parts) > 0:
        parts = torch.cat(parts, dim=0)
        state = {"x": parts}
        torch.save(state, f"{args.rank}-{shard}.pt")
"""


def test_a_dict_that_is_made_at_two_places_is_no_tensor(tmp_path: Path) -> None:
    value = "parts.append(model(torch.load(name).cuda()))"
    done, after = rewritten(tmp_path, SHARDS.replace("VALUE", value))
    assert "state.cpu()" not in after
    (main,) = (file for file in done.files if file.name.name == "main.py")
    assert [f for f in main.findings if f.rule == "save" and on_the_cpu("state") in f.message]


def test_shards_that_are_on_the_host_stay_without_a_word(tmp_path: Path) -> None:
    value = "parts.append(model(torch.load(name).cuda()).detach().cpu())"
    done, after = rewritten(
        tmp_path,
        SHARDS.replace("shard, parts = 0, []", "shard = 0\n    parts = []")
        .replace("shard, parts = shard + 1, []", "shard += 1\n            parts = []")
        .replace("VALUE", value),
    )
    assert after.count("torch.save(state, ") == 2
    (main,) = (file for file in done.files if file.name.name == "main.py")
    assert [f.message for f in main.findings if f.rule == "save"] == []


@pytest.mark.parametrize(
    ("made", "edited"),
    [
        ("x = model(torch.load(name).cuda())\n        x = x + 1", True),
        ("x = model(torch.load(name).cuda()).cpu()\n        x = x.cuda()", True),
        ("x = model(torch.load(name).cuda()).cpu()\n        x = x.float().mean(0)", False),
    ],
)
def test_a_tensor_of_two_bindings(tmp_path: Path, made: str, edited: bool) -> None:
    loop = f"    for name in files[args.rank :: args.world_size]:\n        {made}\n"
    _, after = rewritten(tmp_path, loop + '        torch.save(x, f"{name}.out")\n')
    assert ("torch.save(x.cpu(), " in after) is edited
