"""XLA208: calls of objects whose class is chosen by name, at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend

METERS = """\
CLASSES = {}


def register(cls):
    CLASSES[cls.__name__] = cls
    return cls


def build_from_cfg(cfg):
    return CLASSES[cfg.pop("type")](**cfg)


@register
class LossMeter:
    def __init__(self):
        self.total = 0.0

    def update(self, loss):
        self.total += READ
"""
TRAINING = """\
import meters
import torch


def main(cfg, loader):
    model = torch.nn.Linear(2, 2).cuda()
    criterion = meters.CLASSES[cfg.loss]()
    meter = MADE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss)
"""


def reported(folder: Path, made: str, read: str) -> list[str]:
    (folder / "meters.py").write_text(METERS.replace("READ", read))
    (folder / "train.py").write_text(TRAINING.replace("MADE", made))
    findings = check_and_mend([folder], Config(select=("XLA208",))).findings
    return [f"{finding.path.name}:{finding.line}" for finding in findings]


@pytest.mark.parametrize(
    "made",
    [
        "meters.CLASSES[cfg.meter]()",
        "meters.build_from_cfg(cfg.meter)",
        "getattr(meters, cfg.meter)()",
        "meters.LossMeter()",
    ],
)
def test_a_read_at_every_step_is_reported(made: str, tmp_path: Path) -> None:
    assert reported(tmp_path, made, "loss.item()") == ["train.py:16"]


def test_a_class_that_reads_nothing_is_not(tmp_path: Path) -> None:
    assert reported(tmp_path, "getattr(meters, cfg.meter)()", "loss.detach()") == []


STORED = """\
class Shelf:
    def __init__(self):
        self._kinds = {}

    def add(self, name):
        def keep(cls):
            self._kinds[name] = cls
            return cls

        return keep

    def __call__(self, cls):
        self._kinds[cls.__name__] = cls
        return cls

    def get(self, name):
        return self._kinds[name]

    def make(self, options):
        return self._kinds[options.pop("kind")](**options)


class Shared:
    kinds = {}

    @classmethod
    def add(cls, kind):
        cls.kinds[kind.__name__] = kind
        return kind


class Base:
    kinds = {}

    def __init_subclass__(cls):
        Base.kinds[cls.__name__] = cls


KINDS, GROUPS, NAMES = {}, {"a": {}}, Shared
PARTS, FUNCTIONS, OTHERS = Shelf(), Shelf(), Shelf()


def put(name, kind):
    KINDS[name] = kind


def keep(cls):
    put(cls.__name__, cls)
    return cls


def name_only(cls):
    cls.title = cls.__name__
    return cls


def from_names(name):
    return globals()[name]()


class Reads:
    def note(self, loss):
        self.last = loss.item()


class Keeps:
    def note(self, loss):
        self.last = loss


PARTS.add("reads")(Reads)
OTHERS(Keeps)
GROUPS["a"]["reads"] = Reads


@keep
class Other(Base):
    def note(self, loss):
        self.last = loss.item()


@Shared.add
class Third(Reads):
    pass


@FUNCTIONS.add("f")
def show(loss):
    print(loss.item())


@name_only
class Named:
    def jot(self, loss):
        self.last = loss.item()
"""
OBJECTS = {
    "stored.PARTS.make(options)": ".note",
    "stored.KINDS[options.kind]()": ".note",
    "stored.GROUPS['a'].get(options.kind)()": ".note",
    "stored.Shared.kinds[options.kind]()": ".note",
    "stored.Base.kinds[options.kind]()": ".note",
    "stored.FUNCTIONS.get(options.kind)": "",
    "stored.from_names(options.kind)": ".note",
}


def loops(objects: dict[str, str]) -> str:
    functions = [
        f"def train{number}(options, loader):\n"
        "    model = torch.nn.Linear(2, 2).cuda()\n"
        f"    thing = {made}\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for x in loader:\n"
        "        loss = model(x.cuda()).sum()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        f"        thing{method}(loss)\n\n\n"
        for number, (made, method) in enumerate(objects.items())
    ]
    return "import stored\nimport torch\n\n\n" + "".join(functions)


def stored_reads(folder: Path, objects: dict[str, str]) -> int:
    (folder / "stored.py").write_text(STORED)
    (folder / "train.py").write_text(loops(objects))
    findings = check_and_mend([folder], Config(select=("XLA208",))).findings
    return sum(finding.path.name == "train.py" for finding in findings)


def test_what_stores_a_class_decides_whatever_it_is_called(tmp_path: Path) -> None:
    assert stored_reads(tmp_path, OBJECTS) == len(OBJECTS)


def test_a_shelf_without_a_reader_and_a_decorator_that_stores_nothing_are_not(
    tmp_path: Path,
) -> None:
    assert (
        stored_reads(tmp_path, {"stored.OTHERS.make(options)": ".note", "options.x()": ".jot"}) == 0
    )
