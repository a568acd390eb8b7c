"""The pictures: made from what a command prints on a terminal, and stale when that changes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.report.browser import browser

ROOT = Path(__file__).parents[1]


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pictures", module)  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


def test_a_command_is_drawn_as_a_terminal_shows_it(
    pictures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = pictures.Screen("x", "echo $COLUMNS.$NO_COLOR.", lambda folder: None, 0)
    assert pictures.printed(screen) == "..\n"
    command = r"test -t 1 && printf '\033[31mred\033[0m <b> :100:\n' && stty size"
    screen = pictures.Screen("x", command, lambda folder: None, 0, measured=False)
    said = pictures.printed(screen)
    assert said == f"\033[31mred\033[0m <b> :100:\n50 {pictures.COLUMNS}\n"
    svg, text = pictures.drawn(screen, said)
    assert text == f"$ {command}\nred <b> :100:\n50 {pictures.COLUMNS}\n"
    assert svg.startswith("<svg")
    assert "&lt;b&gt;" in svg
    assert pictures.drawn(screen, said) == (svg, text)
    failing = pictures.Screen("x", "echo no; exit 3", lambda folder: None, 0)
    with pytest.raises(SystemExit, match="exit code 3\nno"):
        pictures.printed(failing)


def test_only_what_is_measured_may_have_other_numbers(pictures: ModuleType) -> None:
    one, other = "a step:  12.3 ms, 1.4e-07\n", "a step: 8.25 ms, 3e-08\n"
    assert pictures.same(one, other, True)
    assert not pictures.same(one, other, False)
    assert not pictures.same(one, "a step took 12.3 ms, 1.4e-07\n", True)


def test_the_readme_shows_one_and_all_are_there(pictures: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"\]\(docs/pictures/(\w+)\.svg\)", readme)
    names = [screen.name for screen in pictures.SCREENS]
    assert shown == ["rewrite"]
    assert set(shown) <= set(names)
    for name in names:
        screen = next(screen for screen in pictures.SCREENS if screen.name == name)
        svg, _ = pictures.drawn(screen, "")
        drawn = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        assert f"{name}-title" in svg
        assert f"{name}-title" in drawn


def test_a_page_is_shown_in_both_schemes_and_again_only_when_it_changed(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "PICTURES", tmp_path / "pictures")
    style = "<style>@media (prefers-color-scheme: dark) { body { background: black } }</style>"
    command = f'echo "{style}<p>took 1.5 s in $PWD/x.py<svg></svg>" > page.html; exit 1'
    page = pictures.Page("x", command, lambda folder: None, (1,), pictures.PLOT)
    with browser(tmp_path / "profile") as tab:
        assert pictures.photograph(page, tab, False)
        assert not pictures.photograph(page, tab, False)
        assert pictures.photograph(page, tab, True)
        with pytest.raises(SystemExit, match="exit code 1"):
            pictures.photograph(pictures.Page("x", command, lambda folder: None, (0,)), tab, True)
    light, dark = (tmp_path / "pictures" / f"page-x-{kind}.png" for kind in ("light", "dark"))
    assert light.read_bytes() != dark.read_bytes()
    assert "took 1.5 s in x.py" in (tmp_path / "pictures" / "page-x.txt").read_text()


def test_pictures_of_pages_stay_without_chromium(
    pictures: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    assert pictures.photographs([]) == []
    assert "chromium is not installed" in capsys.readouterr().out


@pytest.mark.long
def test_they_are_what_the_commands_print() -> None:
    check = [sys.executable, ROOT / "docs" / "pictures.py", "--check"]
    ran = subprocess.run(check, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
