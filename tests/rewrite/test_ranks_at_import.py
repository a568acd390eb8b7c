"""A rank that an imported file asks for when it is read: replicas read the whole script once it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.results import FileRewrite

TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from lib.setting import describe


def main():
    dist.init_process_group("nccl")
    net = torch.nn.Linear(4, 2).cuda()
    model = DDP(net)
    print(describe(model))


if __name__ == "__main__":
    main()
"""
SETTING = """\
from lib.ranks import rank


def describe(model):
    return f"{rank}: {model}"
"""
AT_IMPORT = {
    "item": 'import os\n\nrank = int(os.environ["RANK"])\n',
    "default": 'import os\n\nrank = int(os.environ.get("LOCAL_RANK", 0))\n',
    "getenv": 'from os import getenv\n\nrank = int(getenv("RANK", "0"))\n',
    "choice": 'import os\n\nrank = int(os.environ["RANK"]) if "RANK" in os.environ else 0\n',
    "function": 'import os\n\n\ndef ask():\n    return int(os.environ["RANK"])\n\n\nrank = ask()\n',
    "class": 'import os\n\n\nclass rank:\n    index = int(os.environ["RANK"])\n',
    "instance": """import os


class World:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))


rank = World()
""",
    "fields": """import os
from dataclasses import dataclass, field


@dataclass
class World:
    index: int = field(default_factory=lambda: int(os.environ.get("RANK", 0)))


rank = World()
""",
    "afterwards": """import os
from dataclasses import dataclass


@dataclass
class World:
    index: int = 0

    def __post_init__(self):
        self.index = int(os.environ.get("RANK", self.index))


rank = World()
""",
    "default of a field": """import os
from dataclasses import dataclass


@dataclass
class rank:
    index: int = int(os.environ.get("RANK", 0))
""",
    "helper": """import os


def setting(name, default):
    return int(os.environ.get(name, default))


class rank:
    index = setting("RANK", 0)
    size = setting(name="WORLD_SIZE", default=1)
""",
    "loop": """import os

rank = {name: int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK")}
""",
    "default of a parameter": """import os


def rank(index=int(os.environ.get("RANK", 0))):
    return index
""",
    "default of a function": """import os


def setting():
    return int(os.environ.get("RANK", 0))


def rank(*, index=setting()):
    return index
""",
    "decorator": """import os


def on_first(function):
    return function if os.environ.get("RANK", "0") == "0" else print


@on_first
def rank():
    return 0
""",
    "made decorator": """import os


def on(index):
    def decorate(function):
        return function if int(os.environ.get("RANK", "0")) == index else print

    return decorate


@on(0)
def rank():
    return 0
""",
    "cache": """import functools
import os


@functools.cache
def setting():
    return int(os.environ.get("RANK", 0))


rank = setting()
""",
    "property": """import os


class World:
    @property
    def index(self):
        return int(os.environ.get("RANK", 0))


rank = World().index
""",
    "alias": """import os

environment = os.environ
rank = int(environment.get("RANK", 0))
""",
    "method": """import os


class World:
    def __init__(self):
        self.index = 0

    def find(self):
        self.index = int(os.environ.get("RANK", 0))
        return self


rank = World().find()
""",
    "class method": """import os


class World:
    @classmethod
    def of_environment(cls):
        return cls(int(os.environ.get("RANK", 0)))

    def __init__(self, index):
        self.index = index


rank = World.of_environment()
""",
    "inherited": """import os


class Base:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))


class World(Base):
    pass


rank = World()
""",
    "super": """import os


class Base:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))


class World(Base):
    def __init__(self):
        super().__init__()


rank = World()
""",
    "try": 'import os\n\ntry:\n    rank = int(os.environ["RANK"])\nexcept KeyError:\n    rank = 0\n',
}
LATER = {
    "function": 'import os\n\n\ndef rank():\n    return int(os.environ["RANK"])\n',
    "guard": 'import os\n\nrank = 0\nif __name__ == "__main__":\n    print(os.environ["RANK"])\n',
    "other": 'import os\n\nrank = os.environ.get("HOME")\n',
    "helper": """import os


def setting(name):
    return os.environ.get(name)


home = setting("HOME")


def rank():
    return setting("RANK")
""",
    "class": """import os


class World:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))

    @property
    def size(self):
        return int(os.environ.get("WORLD_SIZE", 1))


def rank():
    return World().index
""",
    "decorated": """import os


def on_first(function):
    def wrapped(*args):
        return function(*args) if os.environ.get("RANK", "0") == "0" else None

    return wrapped


@on_first
def rank():
    return 0
""",
    "method": """import os


class World:
    index = 0

    def find(self, at=0):
        self.index = int(os.environ.get("RANK", at))


rank = World()
""",
}


def rewritten(folder: Path, ranks: str, style: Style = "native") -> str:
    for name, text in {
        "train.py": TRAIN,
        "lib/__init__.py": "",
        "lib/setting.py": SETTING,
        "lib/ranks.py": ranks,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return of_script(folder, RewriteOptions(style=style)).after.decode()


def of_script(folder: Path, options: RewriteOptions) -> FileRewrite:
    done = rewrite_folder(folder, options=options, processes=1)
    return next(file for file in done.files if file.name == Path("train.py"))


@pytest.mark.parametrize("ranks", AT_IMPORT.values(), ids=AT_IMPORT)
def test_the_replicas_run_the_file(tmp_path: Path, ranks: str) -> None:
    text = rewritten(tmp_path, ranks)
    assert "runpy.run_path(__file__" in text
    assert text.index("torch_xla.launch") < text.index("from lib.setting")
    assert "shims.launch_script(__file__)" in rewritten(tmp_path, ranks, "portable")


@pytest.mark.parametrize("ranks", LATER.values(), ids=LATER)
def test_a_rank_asked_for_later_changes_nothing(tmp_path: Path, ranks: str) -> None:
    text = rewritten(tmp_path, ranks)
    assert "runpy" not in text
    assert text.endswith("torch_xla.launch(_mp_fn)\n")


COUNTING = {
    "enumerate": "    for at, rows in enumerate(loader):\n        yield at, rows\n",
    "range": "    rows = iter(loader)\n    for at in range(9):\n        yield at, next(rows)\n",
    "counted": "    at = 0\n    for rows in loader:\n        yield at, rows\n        at += 1\n",
}
COUNTED = """\
import torch

from lib.monitor import watched


def train(model, loader, optimizer, args):
    model.cuda()
    args.device = torch.device("cuda")
    for current, sample in watched(loader):
        images, labels = sample
        images = images.to(args.device)
        labels = labels.to(args.device)
        progress = current / 100
        loss = (model(images) - labels).pow(2).mean() * progress
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if current < 3:
            print(current)
"""


@pytest.mark.parametrize("body", COUNTING.values(), ids=COUNTING)
def test_the_number_that_a_generator_counts_stays_on_the_host(tmp_path: Path, body: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "monitor.py").write_text(f"def watched(loader):\n{body}")
    (tmp_path / "train.py").write_text(COUNTED)
    result = of_script(tmp_path, RewriteOptions())
    text = result.after.decode()
    assert "current.to(" not in text
    assert "with torch_xla.step():" in text
    assert not [note for note in result.findings if "current" in note.message]


ELSEWHERE = {
    "instance": (
        """import os


class World:
    def __init__(self):
        self.index = int(os.environ.get("RANK", 0))
""",
        "from lib.world import World\n\nrank = World()\n",
    ),
    "helper": (
        """import os


def setting(name):
    return int(os.environ.get(name, 0))
""",
        'from lib import world\n\n\nclass rank:\n    index = world.setting("RANK")\n',
    ),
}


@pytest.mark.parametrize(("world", "ranks"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_file_that_runs_a_function_of_another_file(
    tmp_path: Path, world: str, ranks: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "world.py").write_text(world)
    assert "runpy.run_path(__file__" in rewritten(tmp_path, ranks)


def test_an_instance_in_the_script(tmp_path: Path) -> None:
    """Helpers that ask for whatever variable they are given count in the script itself, too."""
    text = TRAIN.replace(
        "def main",
        'def ask(name):\n    return os.environ.get(name)\n\n\nR = ask("RANK")\n\n\ndef main',
    )
    (tmp_path / "train.py").write_text("import os\n\n" + text.replace("describe(model)", "R"))
    done = of_script(tmp_path, RewriteOptions())
    assert "runpy.run_path(__file__" in done.after.decode()
