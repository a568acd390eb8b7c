"""`migrate port` around the compiler: the folder, the proof, and bad input in one line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from migrate.cli import commands
from tests.port import standin
from tests.port.conftest import Run
from tests.port.refusals import no_place

INPUTS = ("--inputs", "x=float32[2,7,12]")
ROOT = Path(__file__).parents[2]


def one_line(done: Result) -> str:
    """The one line that the command ended with; it has written nothing."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("… ")]
    assert line.startswith("migrate: ")
    return line


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_port_is_written_and_proven(run: Run, tmp_path: Path) -> None:
    done = run("net.py:Net", *INPUTS, "-o", "ported", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["verdict"] == "ported"
    proof = {case["name"]: case for case in said["proof"]}
    assert set(proof) == {
        "float32",
        "gradients",
        "the precision of a TPU, emulated",
        "batch 1",
        "batch 3",
        "length 6",
    }
    assert all(case["verdict"] == "match" for case in proof.values())
    assert proof["float32"]["relative_l2"] < 1e-6
    assert [one["verdict"] for one in said["bfloat16"]] == ["not tried"] * 2
    assert all(one["details"] for one in said["bfloat16"])
    folder = tmp_path / "ported" / "net"
    wanted = {"__init__.py", "modeling.py", "config.py", "params.safetensors", "convert.py"}
    assert wanted | {"test_parity.py", "README.md", "mapping.yaml"} <= names(folder)
    assert names(tmp_path / "ported") == {"net"}
    _works_alone(folder)
    _converts(folder, tmp_path)
    _is_clean(folder)
    _is_known_to_parity(tmp_path)


def _works_alone(folder: Path) -> None:
    """Its test passes; it imports nothing of ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parity.py"]
    blocked = "import sys\nsys.modules['migrate'] = sys.modules['converters'] = None\n"
    (folder / "conftest.py").write_text(blocked)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    (folder / "conftest.py").unlink()
    assert "1 passed" in done.stdout, done.stdout


def _converts(folder: Path, scratch: Path) -> None:
    """Another checkpoint, with the prefix of a wrapper and another depth, by the mapping alone."""
    sys.path.insert(0, str(scratch))
    import net  # type: ignore[import-not-found]

    sys.path.remove(str(scratch))
    state = net.Net().state_dict()
    state |= {key.replace("s.0.", "s.2."): one for key, one in state.items()}
    torch.save({f"module.{key}": one for key, one in state.items()}, scratch / "other.pt")
    command: list[Any] = [
        sys.executable,
        "convert.py",
        scratch / "other.pt",
        scratch / "other.safetensors",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert f"{no_place('Net', 'params/blocks_2/down/bias')}, " in refused.stderr.splitlines()[-1]
    assert not (scratch / "other.safetensors").exists()
    (scratch / "other.safetensors").write_text("of an earlier run")
    command += ["--size", "depth=3", "--force"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    code = (
        "import net, sys; from pathlib import Path; file = Path(sys.argv[1]); "
        "net.load_params(file, net.NetConfig(depth=3)); net.load_params(); net.load_params(file)"
    )
    command = [sys.executable, "-c", code, scratch / "other.safetensors"]
    done = subprocess.run(
        command, cwd=folder.parent, capture_output=True, text=True, env=environment
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ValueError: {scratch / 'other.safetensors'}: Net has no place for ")
    code = "import net; net.load_params(config=net.NetConfig(width=20))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        env=environment,
    )
    wrong = (
        "params/blocks_0/down/bias has the shape [16], Net's has [20]; give the config of its size"
    )
    assert done.stderr.splitlines()[-1] == f"ValueError: {folder / 'params.safetensors'}: {wrong}"
    from converters import load_pytree

    params = load_pytree(scratch / "other.safetensors")["params"]
    assert {"blocks_0", "blocks_1", "blocks_2", "inp", "head"} == set(params)


def _is_clean(folder: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (
        [*ruff, "format", "--check", "--isolated", "--line-length", "100", "."],
        [*ruff, "check", "--isolated", "--select", "E,F,W,I,UP,B,N,SIM,RUF", "--line-length=100"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def _is_known_to_parity(folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("migrate")), "parity", "net.py:Net"]
    words = ["port:ported/net", "--inputs", "x=float32[2,7,12]", "--count", "2", "--no-layers"]
    done = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_port_that_parts_is_exit_code_1_and_names_the_module(run: Run, tmp_path: Path) -> None:
    done = run("net.py:Net", *INPUTS, "-o", "ported", gives=standin.WRONG)
    assert done.exit_code == 1
    assert "comparisons in float32 agree; different: float32; " in done.stdout
    assert "the first module that differs: blocks.0.norm" in done.stdout
    assert ".tmp" not in done.stdout
    assert "blocks.0.norm" in (tmp_path / "ported" / "net" / "README.md").read_text()


def test_a_port_that_does_not_run_is_exit_code_1(run: Run, tmp_path: Path) -> None:
    broken = replace(
        standin.RIGHT, modeling=standin.RIGHT.modeling.replace("self.head(x)", "gone(x)")
    )
    done = run("net.py:Net", *INPUTS, "-o", "ported", gives=broken)
    assert done.exit_code == 1
    assert "gone" in done.stdout
    assert "ported/net/modeling.py" in done.stdout
    assert "could not be compared" in (tmp_path / "ported/net/README.md").read_text()


class TestMissingOperators:
    def test_all_are_listed_and_nothing_is_written(self, run: Run, tmp_path: Path) -> None:
        done = run("net.py:Net", *INPUTS, "-o", "ported", gives=standin.LACKING)
        assert done.exit_code == 2
        for one in standin.LACKING.missing:
            (row,) = [line for line in done.stderr.splitlines() if line.startswith(one.op)]
            assert one.reason in row
            assert one.path in row
            assert one.line in row
        assert not (tmp_path / "ported").exists()

    def test_as_json(self, run: Run) -> None:
        done = run("net.py:Net", *INPUTS, "-o", "ported", "--json", gives=standin.LACKING)
        assert done.exit_code == 2
        found = json.loads(done.stdout)["missing"]
        assert [one["op"] for one in found] == ["aten.a.default", "aten.b.default"]

    def test_stubs_are_written_if_allowed_and_are_no_success(
        self, run: Run, tmp_path: Path
    ) -> None:
        words = ("net.py:Net", *INPUTS, "-o", "ported", "--allow-stubs")
        done = run(*words, gives=standin.LACKING)
        assert done.exit_code == 1
        assert "ported with gaps" in done.stdout
        page = (tmp_path / "ported" / "net" / "README.md").read_text()
        assert "`aten.b.default`" in page
        assert "Not proven" in page


class TestEdits:
    WORDS = ("net.py:Net", *INPUTS, "-o", "ported", "--no-proof")

    def test_an_earlier_port_is_replaced_with_force(self, run: Run) -> None:
        assert run(*self.WORDS).exit_code == 0
        assert "already exists" in one_line(run(*self.WORDS))
        done = run(*self.WORDS, "--force")
        assert done.exit_code == 0
        assert "ported, not proven" in done.stdout

    def test_edits_are_named_and_kept(self, run: Run, tmp_path: Path) -> None:
        assert run(*self.WORDS).exit_code == 0
        source = tmp_path / "ported" / "net" / "modeling.py"
        source.write_text(source.read_text() + "# mine\n")
        for words in (self.WORDS, (*self.WORDS, "--force")):
            assert "has edits (modeling.py)" in one_line(run(*words))
        assert source.read_text().endswith("# mine\n")
        done = run(*self.WORDS, "--force", "--force")
        assert done.exit_code == 0
        assert "overwritten, with your edits: modeling.py" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("net.py:raises",), ("building the model failed", "no such thing", "net.py:")),
        (("net.py:number",), ("is a int",)),
        (("net.py:wide",), ("neither a torch module", "without arguments")),
        (("net.py:Gone",), ("has no Gone",)),
        (("net.py",), ("net.py:factory",)),
        (("gone.py:Net",), ("gone.py",)),
        (("gone.module:Net",), ("gone.module",)),
        (("empty",), ("config.json",)),
        (("jax:net.py:Net",), ("no torch module",)),
        (("net.py:Net", "--inputs", "x=float32[2,7,13]"), ("mat1 and mat2", "net.py:")),
        (("net.py:Net", "--inputs", "y=float32[2,7,12]"), ("does not take the input y",)),
        (("net.py:Net", "--inputs", "x=float31[2,7]"), ("float31",)),
        (("net.py:Net", "--inputs", "gone.npz"), ("gone.npz",)),
        (("net.py:Net", "--inputs", "3=float32[2,7,12]"), ("no argument number 3",)),
        (("net.py:Quantized", *INPUTS), ("scale is float8_e4m3fn",)),
        (("net.py:Net", *INPUTS, "--name", "3x"), ("--name 3x",)),
        (("net.py:Net", *INPUTS, "--weights", "gone.pt"), ("gone.pt",)),
        (
            ("net.py:Net", *INPUTS, "--weights", "other.pt"),
            ("the weights of other.pt do not fit", "1 missing", "1 surplus"),
        ),
        (("net.py:Net", *INPUTS, "--weights", "net.py"), ("net.py",)),
        (("net.py:Net", *INPUTS, "--lowerings", "gone.py"), ("gone.py",)),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    run: Run, tmp_path: Path, words: tuple[str, ...], said: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    state = {"gone.weight": torch.ones(3)}
    if "other.pt" in words:
        sys.path.insert(0, str(tmp_path))
        import net

        sys.path.remove(str(tmp_path))
        state |= net.Net().state_dict()
        del state["head.bias"]
    torch.save(state, tmp_path / "other.pt")
    before = names(tmp_path) | {"__pycache__"}
    line = one_line(run(*words, "-o", "ported"))
    for part in said:
        assert part in line
    assert names(tmp_path) | {"__pycache__"} == before


def test_source_that_is_not_python_is_a_fault_of_ours(run: Run, tmp_path: Path) -> None:
    broken = replace(standin.RIGHT, modeling="class Net(:\n")
    line = one_line(run("net.py:Net", *INPUTS, "-o", "ported", gives=broken))
    assert "modeling.py:1" in line
    assert not (tmp_path / "ported").exists()


@pytest.mark.long
def test_a_model_without_weights_has_no_file_of_them(run: Run, tmp_path: Path) -> None:
    source = """\
        import flax.linen as nn
        import jax

        from .config import NetConfig


        class Net(nn.Module):
            config: NetConfig

            def __call__(self, x: jax.Array) -> jax.Array:
                return 2 * x
        """
    import textwrap

    plain = replace(standin.RIGHT, modeling=textwrap.dedent(source))
    done = run("net.py:Plain", *INPUTS, "-o", "ported", gives=plain)
    assert done.exit_code == 0, done.output
    assert not {"params.safetensors", "convert.py"} & names(tmp_path / "ported" / "plain")


def test_the_command_is_known() -> None:
    assert "port" in commands.commands
