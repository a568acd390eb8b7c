"""Ignores, configuration, walking and the formats of `migrate check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.catalogue import catalogue
from migrate.catalogue.prescan import concerns_rules
from migrate.check import check as check_module
from migrate.check.config import BadConfigError, Config, find_config
from migrate.check.hazard import Severity
from migrate.check.prescan import may_hold_hazards
from migrate.check.project import check_paths, python_files
from migrate.cli import commands
from migrate.rewrite.file import rewrite_file
from migrate.syntax.source import UnreadableScriptError

ERROR = "import torch\n\ntorch.ops.load_library('kernels.so')\n"
WARNING = "import torch\n\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, ["check", *(str(arg) for arg in args)])


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def codes(folder: Path, text: str, config: Config | None = None) -> list[str]:
    path = written(folder, text)
    return [one.code for one in check_paths([path], config or Config()).findings]


class TestIgnores:
    @pytest.mark.parametrize(
        "comment", ["ignore", "ignore[XLA401]", "ignore[xla4]", "ignore[XLA101, XLA401]"]
    )
    def test_a_comment_silences_its_line(self, tmp_path: Path, comment: str) -> None:
        found = codes(tmp_path, f"{ERROR.rstrip()}  # migrate: {comment}\n")
        assert "XLA401" not in found

    def test_another_code_and_another_line_stay(self, tmp_path: Path) -> None:
        text = f"{ERROR.rstrip()}  # migrate: ignore[XLA101]\n"
        assert codes(tmp_path, text) == ["XLA401", "XLA001"]
        assert codes(tmp_path, f"# migrate: ignore\n{ERROR}") == ["XLA001", "XLA401"]

    def test_a_string_is_no_comment(self, tmp_path: Path) -> None:
        text = ERROR.replace("kernels", "# migrate: ignore")
        assert codes(tmp_path, text) == ["XLA401"]

    def test_an_unused_comment_is_named_with_its_code(self, tmp_path: Path) -> None:
        path = written(tmp_path, "import torch\n\nx = 1  # migrate: ignore[XLA201]\n")
        (one,) = check_paths([path], Config()).findings
        assert (one.code, one.line, one.severity) == ("XLA001", 3, Severity.INFO)
        assert "XLA201" in one.message


class TestConfig:
    @pytest.mark.parametrize(
        ("select", "ignore", "reported"),
        [
            ((), (), True),
            (("XLA4",), (), True),
            (("XLA1",), (), False),
            ((), ("XLA4",), False),
            (("XLA401",), ("XLA4",), True),
            (("XLA4",), ("XLA401",), False),
        ],
    )
    def test_the_longer_code_decides(
        self, tmp_path: Path, select: tuple[str, ...], ignore: tuple[str, ...], reported: bool
    ) -> None:
        config = Config(select=select, ignore=ignore)
        assert ("XLA401" in codes(tmp_path, ERROR, config)) is reported

    def test_pyproject_selects_excludes_and_changes_severities(self, tmp_path: Path) -> None:
        written(
            tmp_path,
            "[tool.migrate]\nignore = ['XLA704']\nexclude = ['old', 'lib/third*']\n"
            "severity = { XLA4 = 'warning', XLA401 = 'info' }\n",
            "pyproject.toml",
        )
        for name in ("train.py", "old/train.py", "lib/third_party.py", "lib/own.py"):
            written(tmp_path, ERROR + WARNING, name)
        done = run(tmp_path)
        assert done.exit_code == 0
        assert done.stdout.count("XLA401 info") == 2
        assert "XLA704" not in done.stdout
        assert "old" not in done.stdout
        assert "third_party" not in done.stdout

    def test_the_nearest_table_counts(self, tmp_path: Path) -> None:
        written(tmp_path, "[tool.migrate]\nselect = ['XLA2']\n", "pyproject.toml")
        written(tmp_path, "[project]\nname = 'x'\n", "part/pyproject.toml")
        assert find_config(tmp_path / "part").select == ("XLA2",)

    @pytest.mark.parametrize(
        ("table", "says"),
        [
            ("selected = []", "no key 'selected'"),
            ("select = 'XLA1'", "not a list"),
            ("ignore = ['XLA999']", "no hazard XLA999"),
            ("ignore = ['E501']", "not a code"),
            ("severity = { XLA1 = 'fatal' }", "'fatal'"),
            ("severity = 1", "not a table"),
            ("exclude = [1]", "exclude"),
            ("select = [", "pyproject.toml"),
        ],
    )
    def test_what_it_cannot_mean_is_an_error(self, tmp_path: Path, table: str, says: str) -> None:
        written(tmp_path, f"[tool.migrate]\n{table}\n", "pyproject.toml")
        with pytest.raises(BadConfigError, match=says):
            find_config(tmp_path)
        done = run(written(tmp_path, WARNING))
        assert done.exit_code == 2
        assert done.stderr.startswith("migrate: ")


class TestFiles:
    def test_folders_are_walked_without_hidden_ones_and_environments(self, tmp_path: Path) -> None:
        for name in ("a.py", "b/c.py", ".hidden/d.py", "env/e.py", "node_modules/f.py", "g.txt"):
            written(tmp_path, WARNING, name)
        written(tmp_path, "", "env/pyvenv.cfg")
        names = [str(p.relative_to(tmp_path)) for p in python_files(tmp_path, Config())]
        assert names == ["a.py", "b/c.py"]
        assert len(list(python_files(tmp_path / ".hidden", Config()))) == 1

    def test_a_file_that_imports_what_the_catalogue_has_is_looked_at(self) -> None:
        entries = catalogue.IMPORTS.values()
        hazards = [one.name for one in entries if one.code]
        rules = [one.name for one in entries if one.code or one.rule]
        assert len(hazards) > 100
        assert [name for name in hazards if not may_hold_hazards(f"import {name}".encode())] == []
        assert [name for name in rules if not concerns_rules(f"import {name}".encode())] == []

    def test_a_library_alone_is_a_hazard(self, tmp_path: Path) -> None:
        written(tmp_path, "from mamba_ssm import Mamba\n\nblock = Mamba(8)\n")
        assert "XLA410" in run(tmp_path).stdout

    def test_a_file_that_names_nothing_of_ours_is_not_parsed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check_module, "parse", None)
        assert codes(tmp_path, "import numpy as np\n\nx = np.unique([1]).nonzero()\n") == []
        assert may_hold_hazards(b"from torch import nn")
        assert may_hold_hazards(b"import cupy")

    def test_many_files_are_checked_by_several_processes(self, tmp_path: Path) -> None:
        for number in range(45):
            written(tmp_path, ERROR, f"m{number:02}.py")
        checked = check_paths([tmp_path], Config())
        assert [one.path.name for one in checked.findings] == [f"m{n:02}.py" for n in range(45)]

    def test_a_syntax_error_is_a_finding_and_stops_nothing(self, tmp_path: Path) -> None:
        written(tmp_path, "import torch\nx.cuda(async=True)\n", "a.py")
        written(tmp_path, ERROR, "b.py")
        first, second = check_paths([tmp_path], Config()).findings
        assert (first.code, first.line) == ("XLA000", 2)
        assert second.code == "XLA401"

    def test_a_missing_path_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableScriptError):
            check_paths([tmp_path / "missing.py"], Config())
        assert run(tmp_path / "missing.py").exit_code == 2
        assert run().exit_code == 2


class TestOutput:
    def test_text_and_exit_codes(self, tmp_path: Path) -> None:
        bad = written(tmp_path, ERROR)
        done = run(bad)
        assert done.exit_code == 1
        first, last = done.stdout.splitlines()
        assert first.startswith(f"{bad}:3:1: XLA401 error ")
        assert last.startswith("1 error in 1 of 1 file;")
        assert run(written(tmp_path, WARNING, "b.py")).exit_code == 0
        clean = run(written(tmp_path, "import torch\n", "c.py"))
        assert (clean.exit_code, clean.stdout) == (0, "No hazards in 1 file\n")
        assert run(bad, "--ignore", "XLA401").exit_code == 0
        assert run(bad, "--select", "XLA1,XLA2").exit_code == 0
        assert run(bad, "--select", "NOPE").exit_code == 2

    def test_json(self, tmp_path: Path) -> None:
        bad = written(tmp_path, ERROR)
        for arguments in (["--json"], ["--format", "json"]):
            shown = json.loads(run(bad, *arguments).stdout)
            assert shown["counts"] == {"error": 1, "warning": 0, "info": 0}
            (one,) = shown["findings"]
            assert one["path"] == str(bad)
            assert (one["line"], one["column"], one["end_line"], one["end_column"]) == (3, 1, 3, 37)
            assert (one["code"], one["name"], one["severity"]) == (
                "XLA401",
                "cuda-extension",
                "error",
            )

    def test_github_annotations(self, tmp_path: Path) -> None:
        bad = written(tmp_path, ERROR, "a,b.py")
        (line,) = run(bad, "--format", "github").stdout.splitlines()
        place = str(bad).replace(",", "%2C")
        assert line.startswith(
            f"::error file={place},line=3,col=1,endLine=3,endColumn=37,title=XLA401 cuda-extension::"
        )

    def test_sarif_has_what_the_schema_requires(self, tmp_path: Path) -> None:
        """Required properties and value ranges of sarif-schema-2.1.0.json, for what is written."""
        written(tmp_path, ERROR, "a b.py")
        written(tmp_path, WARNING + "y = 1  # migrate: ignore\n", "c.py")
        log = json.loads(run(tmp_path, "--format", "sarif").stdout)
        assert log["version"] == "2.1.0"
        assert log["$schema"].endswith("sarif-schema-2.1.0.json")
        (ran,) = log["runs"]
        driver = ran["tool"]["driver"]
        assert driver["name"]
        rules = [rule["id"] for rule in driver["rules"]]
        assert len(rules) == len(set(rules)) > 70
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"]
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        pages = {r["id"]: r["help"]["markdown"] for r in driver["rules"] if "help" in r}
        assert pages.keys() == {"XLA401", "XLA704"}
        assert "## Mended" in pages["XLA401"]
        assert ran["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
        assert [one["ruleId"] for one in ran["results"]] == ["XLA401", "XLA704", "XLA001"]
        for one in ran["results"]:
            assert rules[one["ruleIndex"]] == one["ruleId"]
            assert one["level"] in ("none", "note", "warning", "error")
            assert one["message"]["text"]
            (location,) = one["locations"]
            physical = location["physicalLocation"]
            assert " " not in physical["artifactLocation"]["uri"]
            region = physical["region"]
            assert all(isinstance(value, int) and value >= 1 for value in region.values())
            assert (region["endLine"], region["endColumn"]) > (
                region["startLine"],
                region["startColumn"],
            )

    def test_the_fix_of_a_file_is_its_rewrite(self, tmp_path: Path) -> None:
        script = written(
            tmp_path, "import torch\n\nx = torch.zeros(2)\nx = x.cuda()\ny = x.cuda()\n"
        )
        log = json.loads(run(script, "--format", "sarif").stdout)
        fixes = [fix for one in log["runs"][0]["results"] for fix in one.get("fixes", ())]
        (change,) = fixes[0]["artifactChanges"]
        assert len(fixes) == 1
        lines = script.read_text().splitlines(keepends=True)
        for one in reversed(change["replacements"]):
            region = one["deletedRegion"]
            assert region["startColumn"] == region["endColumn"] == 1
            start, end = region["startLine"] - 1, region["endLine"] - 1
            lines[start:end] = one["insertedContent"]["text"].splitlines(keepends=True)
        (rewritten,) = json.loads(run(script, "--format", "json").stdout)["rewrites"].values()
        assert "".join(lines) == rewritten["after"] == rewrite_file(script).data.decode()
        assert rewritten["before"] == script.read_text()

    def test_the_fix_keeps_the_encoding_of_the_script(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        text = "# -*- coding: latin-1 -*-\nimport torch\n\nname = 'é'\nx = torch.zeros(2).cuda()\n"
        script.write_bytes(text.encode("latin-1"))
        (rewritten,) = json.loads(run(script, "--format", "json").stdout)["rewrites"].values()
        assert rewritten["before"] == text
        assert "name = 'é'" in rewritten["after"]

    def test_explain_prints_the_page_and_the_list(self) -> None:
        page = run("--explain", "xla201")
        assert page.exit_code == 0
        assert "**What to do.**" in page.stdout
        assert run("--explain", "item-in-step").stdout == page.stdout
        listed = run("--explain", "list").stdout.splitlines()
        assert listed[0].startswith("XLA101")
        assert run("--explain", "XLA999").exit_code == 2

    def test_explain_shows_the_first_example_and_its_mend(self) -> None:
        """The others are tests of small differences: the page in docs has them."""
        page = run("--explain", "XLA307").stdout
        assert page.count("```python") == 2
        assert "## Left alone" not in page
        assert page.rstrip().endswith("More examples: docs/hazards/XLA307.md")
        assert run("--explain", "mp-spawn").stdout.count("```diff") == 1


@pytest.mark.parametrize("others", [0, 20], ids=["here", "in other processes"])
@pytest.mark.long_cases("in other processes")
def test_a_link_that_leads_nowhere_is_one_file_of_many(others: int, tmp_path: Path) -> None:
    for number in range(2 * others):
        (tmp_path / f"file_{number}.py").write_text("import torch\n")
    (tmp_path / "train.py").write_text("import torch\n\nx = torch.zeros(2, dtype=torch.double)\n")
    link = tmp_path / "linked.py"
    link.symlink_to("nowhere.py")
    told, hazard = check_paths([tmp_path], Config()).findings
    assert (told.path, told.severity) == (link, Severity.WARNING)
    assert told.message == "no such file or directory: nothing in this file is checked"
    assert hazard.path.name == "train.py"


def test_a_byte_that_is_no_text_is_found_at_its_line(tmp_path: Path) -> None:
    """The line stood in the message, beside a 1 of our own."""
    (tmp_path / "old.py").write_bytes(b'import torch\nx = "\xe9"\n')
    (found,) = check_paths([tmp_path], Config()).findings
    assert found.line == 2
    assert found.message.startswith("byte 0xe9 is not valid utf-8")
