"""What `dir()`, `help()` and `from … import *` show of the packages: their public names, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

import converters
import shims


@pytest.mark.parametrize("package", [converters, shims])
def test_dir_shows_the_public_names_alone(package):
    shown = {name for name in dir(package) if not name.startswith("__")}
    assert shown - {"patches"} == set(package.__all__)
    assert package.__all__ == sorted(package.__all__)


def test_the_names_of_shims_are_those_that_it_imports_when_used():
    assert set(shims.__all__) == set(shims._HOMES)


@pytest.mark.parametrize("package", [converters, shims])
def test_every_public_name_has_a_docstring(package):
    bare = [name for name in package.__all__ if not getattr(package, name).__doc__]
    # A type alias has none.
    assert bare in ([], ["Pytree"])


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("converters", ["convert(", "convert_to_pytree(", "load_pytree("]),
        ("shims", ["clip_grad_norm(", "init_distributed(", "launch(", "class BucketSampler"]),
    ],
)
def test_help_lists_the_public_names(package, names):
    shown = subprocess.run(
        [sys.executable, "-m", "pydoc", package], capture_output=True, text=True, check=True
    ).stdout
    assert [name for name in names if name not in shown] == []
