"""Each run of a script has a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from migrate import place as places
from migrate.place import Place
from migrate.prove.run import run_script


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project beside its data, and the working directory."""
    folder = tmp_path / "project"
    (folder / "sub" / "old").mkdir(parents=True)
    (folder / "train.py").write_text("")
    (folder / "last.pt").write_text("old")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").write_text("many")
    monkeypatch.chdir(folder)
    return folder


def made(project: Path, tmp_path: Path, name: str = "train.py") -> Place:
    root = tmp_path / "mirror"
    root.mkdir()
    return Place(root, project / name, Path.cwd())


def test_what_a_run_writes_stays_in_its_mirror(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "print(Path('../data/images').read_text(), Path('last.pt').read_text())\n"
        "for path in ('last.pt', 'sub/new', Path(__file__).resolve().with_name('beside'), sys.argv[1]):\n"
        "    Path(path).write_text('new')\n"
        "raise ValueError(f'no {os.getcwd()}')\n"
    )
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    place = made(project, tmp_path)
    result = run_script(
        Path("train.py"),
        [f"{project}/out"],
        side="original",
        replicas=1,
        output="capture",
        place=place,
    )
    assert result.output.startswith("many old\n")
    assert f"ValueError: no {project}\n" in result.output
    assert str(tmp_path / "mirror") not in result.output
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    for name in ("last.pt", "sub/new", "beside", "out"):
        assert place.inside(Path(name)).read_text() == "new", name
    assert place.changed() == []


def test_arguments_and_variables_name_the_mirror(project: Path, tmp_path: Path) -> None:
    place = made(project, tmp_path)
    mirrored = place.inside(project)
    assert place.args([f"--out={project}/out", f"{project}2", f"/x{project}", "out"]) == [
        f"--out={mirrored}/out",
        f"{project}2",
        f"/x{project}",
        "out",
    ]
    path = os.pathsep.join([str(project / "sub"), "/usr/lib"])
    found = place.environment({"PYTHONPATH": path})
    assert found["PYTHONPATH"] == os.pathsep.join([str(mirrored / "sub"), "/usr/lib"])


def test_what_is_too_large_is_linked_and_a_change_is_told(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LARGE", 10)
    monkeypatch.setattr(places, "CROWDED", 5)
    (project / "large.pt").write_bytes(b"0" * 11)
    (project / "images").mkdir()
    for number in range(6):
        (project / "images" / str(number)).touch()
    (project / ".git").mkdir()
    place = made(project, tmp_path)
    assert place.inside(Path("large.pt")).is_symlink()
    assert place.inside(Path("images")).is_symlink()
    assert not place.inside(Path("train.py")).is_symlink()
    assert place.owns(Path("large.pt"))
    assert not place.owns(Path("images/0"))
    (project / ".git" / "index.lock").touch()
    place.inside(Path("large.pt")).write_bytes(b"1" * 12)
    assert place.changed() == [project / "large.pt"]


def test_a_script_outside_of_the_working_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    place = made(project, tmp_path)
    assert place.folder == place.inside(other)
    assert place.inside(project / "last.pt").read_text() == "old"
    assert not place.inside(project / "last.pt").is_symlink()


def test_a_home_folder_is_not_copied(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    place = made(project, tmp_path)
    assert place.inside(Path("data")).is_symlink()
    assert not place.inside(Path("project/last.pt")).is_symlink()


def test_a_script_in_the_folder_of_temporary_files(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(project))
    place = made(project, tmp_path)
    assert place.inside(Path("sub")).is_symlink()
    place.folder.joinpath("new").touch()
    assert not (project / "new").exists()


def test_a_file_of_the_user_is_never_replaced(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary files are in the script's folder, which is not copied; the script runs from elsewhere."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(project / "sub"))
    place = made(project, tmp_path)
    script, text = project / "train.py", tmp_path / "text.py"
    before = script.read_text()
    text.write_text("replaced")
    place.put(script, text)
    assert script.read_text() == before
    assert place.inside(script).read_text() == "replaced"
    with pytest.raises(ValueError, match=r"text\.py is not in the mirror"):
        place.put(text, script)
    assert text.read_text() == "replaced"
