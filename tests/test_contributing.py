"""What the guides say is so: their files are there, the rule of CONTRIBUTING works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rule import ExampleKind, Rule
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Return the rule of CONTRIBUTING, from a file in a folder of rules, found as every rule is."""
    (source,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    (tmp_path / "empty_cache.py").write_text(source)
    package = sys.modules["migrate.rewrite.rules"]
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    all_rules.cache_clear()
    try:
        (found,) = all_rules()
    finally:
        all_rules.cache_clear()
        sys.modules.pop("migrate.rewrite.rules.empty_cache", None)
    return found


def test_the_rule_of_the_guide_is_clean(rule: Rule, tmp_path: Path) -> None:
    name = str(ROOT / "migrate/rewrite/rules/cuda/empty_cache.py")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--stdin-filename", name, "-"],
        input=(tmp_path / "empty_cache.py").read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# The entries that two recipes of docs/architecture.md add, and the script that uses them, for each target.
ADDED = """
from pathlib import Path

from migrate.catalogue import torch_cuda, torch_other
from migrate.catalogue.entry import launchers

launcher = launchers("forked", "run_ranks")
torch_other.SPAWN += launcher
torch_other.TORCH_OTHER += launcher
ignored = torch_cuda._told("no_memory_pool", "remove it")
torch_cuda.IGNORED += ignored
torch_cuda.TORCH_CUDA += ignored

from migrate.catalogue.target import TARGETS
from migrate.check.config import Config
from migrate.launch.framework import Framework
from migrate.launch.start import start_style
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = b'''
import forked
import torch


def work(rank, size):
    torch.cuda.no_memory_pool()
    print(torch.ones(size).cuda(rank))


if __name__ == "__main__":
    forked.run_ranks(work, args=(3,), nprocs=4)
'''
for target in TARGETS:
    options = RewriteOptions(config=Config(target=target))
    print(rewrite_source(parse(SCRIPT, Path("train.py")), options=options).data.decode())
print(start_style(Framework.TORCH_TPU, {"forked.run_ranks"}, set(), Path("train.py")).start)
"""


def test_an_entry_of_the_catalogue_is_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no_memory_pool" not in done.stdout
    assert "torch_xla.launch(work" in done.stdout
    assert "set_tpu_launch_env(nproc_per_node=4)" in done.stdout
    assert done.stdout.endswith("one process per host\n")


def test_the_rule_of_the_guide_works(rule: Rule) -> None:
    assert rule.name == "empty-cache"
    for example in rule.examples:
        done = rewrite_source(parse(example.before.encode(), Path("script.py")), [rule])
        own = [note.message for note in done.findings if note.rule == rule.name]
        match example.kind:
            case ExampleKind.REWRITTEN:
                assert done.data.decode() == example.after
            case ExampleKind.LEFT_ALONE:
                assert not done.changed
                assert not done.findings
            case ExampleKind.REPORTED:
                assert any(example.reports in message for message in own)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_a_guide_names_are_there(page: str) -> None:
    named = re.findall(
        r"`((?:migrate|converters|shims|tests|docs)/[\w./]*)`", (ROOT / page).read_text()
    )
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
