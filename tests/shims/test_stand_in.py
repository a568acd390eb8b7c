"""A script in a folder of its own that runs as if it lay where another one lies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shims import activate
from shims._started import stand_in

SCRIPT = """\
import json
import multiprocessing
import sys
from pathlib import Path

import {sibling}


def told(_=None):
    beside = sorted(path.name for path in Path(__file__).parent.glob("*.py"))
    return [__file__, {sibling}.__file__, beside, told.__code__.co_filename]


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(told, [0])
    print(json.dumps([told(), *spawned]))
"""


@pytest.mark.parametrize("flags", [[], ["-P"]], ids=["plain", "safe path"])
def test_its_file_and_imports_are_those_of_the_other(tmp_path: Path, flags: list[str]) -> None:
    # A name that nothing installed has, which the folder of the tests has neither.
    there, apart = tmp_path / "project", tmp_path / "apart"
    there.mkdir()
    apart.mkdir()
    (there / "sibling_of_train.py").write_text("")
    original, script = there / "train.py", apart / "train_xla.py"
    original.write_text("raise SystemExit('the original ran')\n")
    script.write_text(SCRIPT.format(sibling="sibling_of_train"))
    assert stand_in.stands_for(script) is None
    assert stand_in.environment(script) == {}
    stand_in.mark(script, original)
    assert stand_in.stands_for(script) == original

    variables = activate.environment(activate.NO_BACKEND) | stand_in.environment(script)
    ran = subprocess.run(
        [sys.executable, *flags, script],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    beside = ["sibling_of_train.py", "train.py"]
    told = [str(original), str(there / "sibling_of_train.py"), beside, str(script)]
    assert json.loads(ran.stdout) == [told, told]


MODULES = """\
import multiprocessing
import json
from pathlib import Path

import sibling_of_train
from package_of_train import inner


def told(_=None):
    modules = (sibling_of_train, inner)
    return [[one.SAYS, one.__file__, one.says.__code__.co_filename] for one in modules]


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(told, [0])
    print(json.dumps([told(), *spawned]))
"""


@pytest.mark.parametrize("mirrored", [False, True])
def test_modules_have_stand_ins_too(tmp_path: Path, mirrored: bool) -> None:
    there, apart = tmp_path / "project", tmp_path / "apart"
    module = "SAYS = {!r}\n\n\ndef says():\n    pass\n"
    originals = [there / "sibling_of_train.py", there / "package_of_train" / "inner.py"]
    files = {path: apart / f"{path.stem}_xla.py" for path in originals}
    (there / "package_of_train").mkdir(parents=True)
    apart.mkdir()
    for path, file in files.items():
        path.write_text(module.format("original"))
        file.write_text(module.format(file.name))
    (there / "train.py").write_text("raise SystemExit('the original ran')\n")
    script = apart / "train_xla.py"
    script.write_text(MODULES)
    stand_in.mark(script, there / "train.py", files)
    assert stand_in.files(script) == files

    variables = activate.environment(activate.NO_BACKEND) | stand_in.environment(script)
    mirror = tmp_path / "mirror" if mirrored else Path("/")
    if mirrored:
        shutil.copytree(there, mirror / there.relative_to("/"))
        variables |= {
            stand_in.STANDS_FOR: str(mirror / (there / "train.py").relative_to("/")),
            stand_in.MIRROR: str(mirror),
        }
    ran = subprocess.run(
        [sys.executable, "-P", script],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    told = [
        [file.name, str(mirror / path.relative_to("/")), str(file)] for path, file in files.items()
    ]
    assert json.loads(ran.stdout) == [told, told]
