"""XLA873: a process group under an option, in a program that a launch starts on every chip."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder

SCRIPT = """
import argparse
import os

import torch
import torch_xla
import torch.distributed as dist


def join():
    dist.init_process_group("xla", init_method="xla://")


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddp", OPTION)
    parser.add_argument("--rank", default=0)
    return parser.parse_args()


def main(index):
    args = parsed()
    BEFORE
    if TEST:
        join()


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def found(
    tmp_path: Path,
    option: str = "action='store_true'",
    before: str = "pass",
    test: str = "args.ddp",
    launch: str = "torch_xla.launch(main)",
) -> list[tuple[str, str]]:
    script = tmp_path / "script.py"
    text = SCRIPT.replace("OPTION", option).replace("BEFORE", before).replace("TEST", test)
    script.write_text(text.replace("torch_xla.launch(main)", launch))
    findings = check_paths([script], Config(select=("XLA873",))).findings
    return [(one.severity.value, one.message) for one in findings]


@pytest.mark.parametrize(
    "option",
    ["action='store_true'", "default=False, type=bool", "action='store_true', default=False"],
)
def test_an_option_that_is_off_by_default_is_an_error(tmp_path: Path, option: str) -> None:
    ((severity, message),) = found(tmp_path, option)
    assert severity == "error"
    assert "only if `args.ddp`" in message


def test_a_name_for_the_option_is_followed(tmp_path: Path) -> None:
    assert found(tmp_path, before="use = args.ddp", test="use and torch.distributed.is_available()")


@pytest.mark.parametrize(
    ("option", "before", "test"),
    [
        ("action='store_false'", "pass", "args.ddp"),
        ("default=True", "pass", "args.ddp"),
        ("action='store_true'", "args.ddp = int(os.environ['WORLD_SIZE']) > 1", "args.ddp"),
        ("action='store_true'", "use = int(os.environ['WORLD_SIZE']) > 1", "use"),
        ("action='store_true'", "pass", "args.rank >= 0"),
        ("action='store_true'", "pass", "not dist.is_initialized()"),
        ("action='store_true'", "pass", "'RANK' in os.environ"),
    ],
)
def test_what_the_launch_decides_is_left_alone(
    tmp_path: Path, option: str, before: str, test: str
) -> None:
    assert found(tmp_path, option, before, test) == []


@pytest.mark.parametrize(
    ("other", "codes"), [("else", 0), ("elif args.rank", 0), ("elif args.ddp", 1)]
)
def test_the_other_branch_joins_too(tmp_path: Path, other: str, codes: int) -> None:
    test = f"args.ddp:\n        join()\n    {other}"
    assert len(found(tmp_path, test=test)) == codes


def test_a_script_that_launches_nothing_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, launch="main(0)") == []


STRATEGIES = """
class Alone:
    @property
    def joins(self):
        return False


class Shared:
    @property
    def joins(self):
        return True
"""
CONFIGURED = """
import hydra
import torch_xla
import torch.distributed as dist

import strategies


def main(index):
    strategy = hydra.utils.instantiate({"_target_": "strategies.Alone"})
    if strategy.joins:
        dist.init_process_group("xla", init_method="xla://")


if __name__ == "__main__":
    torch_xla.launch(main)
"""


def test_a_property_of_a_class_that_a_configuration_names_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    script = tmp_path / "train.py"
    script.write_text(CONFIGURED)
    (one,) = check_paths([tmp_path], Config(select=("XLA873",))).findings
    assert one.severity.value == "warning"
    script.write_text(CONFIGURED.replace("instantiate({", "instantiate(strategies.Shared, {"))
    (tmp_path / "strategies.py").write_text(STRATEGIES.replace("return False", "return True"))
    assert check_paths([tmp_path], Config(select=("XLA873",))).findings == ()


CHOSEN = """
import argparse
import os
from dataclasses import dataclass

import fire
import click
import torch
import torch_xla
import torch.distributed as dist


class Alone:
    def __init__(self, args):
        self.rank = 0


class Shared:
    def __init__(self, args):
        dist.init_process_group("xla", init_method="xla://")
        self.rank = dist.get_rank()


KINDS = {"nccl": Shared, None: Alone}


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default=DEFAULT)
    return parser.parse_args()


def main(index):
    args = parsed()
    model = torch.nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    CHOICE
    for _ in range(3):
        model(torch.ones(1, 2, device="xla")).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    torch_xla.launch(main)
"""
INLINE = [
    "kind = KINDS[args.backend](args)",
    "kind = KINDS.get(args.backend)(args)",
    "kind = {'nccl': Shared}.get(args.backend, Alone)(args)",
    "kind = Shared(args) if args.backend else Alone(args)",
    "kind = Alone(args) if args.backend is None else Shared(args)",
    "kind = (Shared if args.backend == 'nccl' else Alone)(args)",
    "if args.backend == 'nccl':\n        kind = Shared(args)\n    else:\n        kind = Alone(args)",
    "if not args.backend:\n        kind = Alone(args)\n    else:\n        kind = Shared(args)",
    "of = Alone\n    if args.backend in ('nccl', 'gloo'):\n        of = Shared\n    kind = of(args)",
    "match args.backend:\n        case 'nccl':\n            kind = Shared(args)\n"
    "        case _:\n            kind = Alone(args)",
]
OUTSIDE = [
    "def made(args):\n    if args.backend is None:\n        return Alone(args)\n    return Shared(args)\n",
    "def made(args):\n    return of(args.backend)(args)\n\n\ndef of(name):\n    if name == 'nccl':\n"
    "        return Shared\n    return Alone\n",
    "def made(args):\n    return KINDS[args.backend](args)\n",
    "def made(args):\n    kind = of(args)\n    kind.start()\n    return kind\n\n\ndef of(args):\n"
    "    return Later() if args.backend else Alone(args)\n\n\nclass Later:\n    def start(self):\n"
    "        dist.init_process_group('xla', init_method='xla://')\n",
]


def chosen(tmp_path: Path, choice: str, default: str, before: str = "") -> list[str]:
    script = tmp_path / "script.py"
    text = CHOSEN.replace("DEFAULT", default).replace("CHOICE", choice)
    script.write_text(text.replace("def main(", f"{before}\n\ndef main("))
    findings = check_paths([script], Config(select=("XLA873",))).findings
    return [one.severity.value for one in findings]


@pytest.mark.parametrize("choice", INLINE)
def test_a_class_chosen_by_an_option(tmp_path: Path, choice: str) -> None:
    assert chosen(tmp_path, choice, "None") == ["error"]
    # All replicas join by default: the launch is what the option says.
    assert chosen(tmp_path, choice, "'nccl'") == []


@pytest.mark.parametrize("before", OUTSIDE)
def test_a_class_that_a_function_chooses(tmp_path: Path, before: str) -> None:
    assert chosen(tmp_path, "kind = made(args)", "None", before) == ["error"]
    assert chosen(tmp_path, "kind = made(args)", "'nccl'", before) == []


SETTINGS = [
    ("FLAG = False", "FLAG"),
    ("", "os.environ.get('TOGETHER') == '1'"),
    ("", "os.getenv('TOGETHER')"),
    (
        "@dataclass\nclass Options:\n    together: bool = False\n\n\nOPTIONS = Options()",
        "OPTIONS.together",
    ),
    ("def asks(args):\n    return args.backend is not None\n", "asks(args)"),
]


@pytest.mark.parametrize(("before", "test"), SETTINGS)
def test_other_settings(tmp_path: Path, before: str, test: str) -> None:
    choice = f"if {test}:\n        kind = Shared(args)"
    assert chosen(tmp_path, choice, "None", before) == ["error"]


@pytest.mark.parametrize(
    ("before", "test"),
    [
        ("FLAG = True", "FLAG"),
        ("", "'RANK' in os.environ"),
        ("", "os.environ.get('WORLD_SIZE', '1') != '1'"),
        ("", "os.environ.get('SLURM_PROCID')"),
        (
            "FLAG = False\n\n\ndef switch():\n    global FLAG\n    FLAG = os.cpu_count() > 4\n",
            "FLAG",
        ),
        (
            "@dataclass\nclass Options:\n    together: bool = False\n\n\nOPTIONS = Options(True)",
            "OPTIONS.together",
        ),
    ],
)
def test_settings_that_are_on_or_that_others_decide(tmp_path: Path, before: str, test: str) -> None:
    choice = f"if {test}:\n        kind = Shared(args)"
    assert chosen(tmp_path, choice, "None", before) == []


@pytest.mark.parametrize(
    ("decorator", "start", "default", "severities"),
    [
        ("", "fire.Fire(work)", "False", ["error"]),
        ("", "fire.Fire(work)", "True", []),
        (
            "@click.command()\n@click.option('--together', is_flag=True)\n",
            "work()",
            None,
            ["error"],
        ),
        ("", "work(True)", "False", []),
        ("", "work()", "False", ["error"]),
    ],
)
def test_parameters_as_options(
    tmp_path: Path, decorator: str, start: str, default: str | None, severities: list[str]
) -> None:
    parameter = "together" + (f"={default}" if default else "")
    before = f"{decorator}def work({parameter}):\n    if together:\n        Shared(None)\n"
    if decorator:
        start = "work.main()"
    assert chosen(tmp_path, start, "None", before) == severities


def test_a_test_without_which_nothing_trains_decides_nothing(tmp_path: Path) -> None:
    before = (
        "def train(args):\n    Shared(args)\n    model = torch.nn.Linear(2, 1).to('xla')\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for _ in range(3):\n"
        "        model(torch.ones(1, 2, device='xla')).sum().backward()\n        optimizer.step()\n"
    )
    choice = "if args.backend:\n        train(args)\n    return"
    assert chosen(tmp_path, choice, "None", before) == []


def test_the_choice_in_a_file_that_no_edit_changes(tmp_path: Path) -> None:
    """The launch is an edit of another file: the file with the choice is asked again."""
    (tmp_path / "kinds.py").write_text(
        "from shared import Shared\n\n\nclass Alone:\n    def __init__(self, args):\n"
        "        self.rank = 0\n\n\n"
        "KINDS = {'together': Shared, None: Alone}\n\n\ndef made(args):\n    return KINDS[args.kind](args)\n"
    )
    (tmp_path / "shared.py").write_text(
        "import torch.distributed as dist\n\n\nclass Shared:\n    def __init__(self, args):\n"
        "        dist.init_process_group('nccl')\n        self.rank = dist.get_rank()\n"
    )
    (tmp_path / "train.py").write_text(
        "import argparse\n\nimport torch\nfrom kinds import made\nfrom torch.nn.parallel import "
        "DistributedDataParallel as DDP\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--kind', default=None)\n    args = parser.parse_args()\n"
        "    kind = made(args)\n    model = torch.nn.Linear(2, 1).cuda(kind.rank)\n"
        "    model = model if args.kind is None else DDP(model)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for _ in range(3):\n"
        "        model(torch.ones(1, 2).cuda(kind.rank)).sum().backward()\n        optimizer.step()\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    result = rewrite_folder(tmp_path)
    codes = {file.name.name: [one.rule for one in file.findings] for file in result.files}
    assert "XLA873" in codes.get("kinds.py", ())
