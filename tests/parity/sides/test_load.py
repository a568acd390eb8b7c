"""What a user names as a side, and is no model."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from migrate.parity.ground.errors import ParityError, TargetError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import PORT_FILES, PORT_MAPPING, Target, parse_target, plain_spec
from shims import simulate_tpu


def test_a_file_without_a_name_in_it(tmp_path: Path) -> None:
    for name, part in (
        ("net.safetensors", "is a file, and no model"),
        ("net.py", "net.py:factory"),
    ):
        (tmp_path / name).write_bytes(b"x")
        spec = str(tmp_path / name)
        with pytest.raises(TargetError, match=part):
            load_runner(Target("", spec, spec))


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("port:here/nett", "here/nett does not exist", "did you mean port:here/net?"),
        ("here/nett", "here/nett does not exist", "did you mean here/net?"),
        ("port:gone", "gone does not exist", "check the path"),
        ("Net", "names no model", "write file.py:factory"),
    ],
)
def test_what_names_nothing(
    text: str, what: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "net").mkdir(parents=True)
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert what in caught.value.what
    assert caught.value.remedy.startswith(remedy)


def test_a_folder_of_migrate_port_is_a_port(tmp_path: Path) -> None:
    for name in (*PORT_FILES, PORT_MAPPING):
        (tmp_path / name).touch()
    assert parse_target(str(tmp_path)).kind == parse_target(f"port:{tmp_path}").kind == "port"
    with pytest.raises(TargetError) as caught:
        parse_target(f"{tmp_path}:build")
    assert caught.value.remedy == f"write {tmp_path}"
    (tmp_path / PORT_MAPPING).unlink()
    assert parse_target(str(tmp_path)).kind == ""


def test_a_folder_around_one_port_means_the_port(tmp_path: Path) -> None:
    out = tmp_path / "ported"
    for name in ("first", "second"):
        (out / name).mkdir(parents=True)
        for file in (*PORT_FILES, PORT_MAPPING):
            (out / name / file).touch()
        if name == "first":
            for text in (f"port:{out}", str(out)):
                target = parse_target(text)
                assert (target.kind, target.spec) == ("port", str(out / name))
            with pytest.raises(TargetError) as caught:
                parse_target(f"port:{tmp_path / 'portde'}")
            assert caught.value.remedy == f"did you mean port:{out / name}?"
    target = parse_target(f"port:{out}")
    with pytest.raises(TargetError) as caught:
        load_runner(target)
    first, second = out / "first", out / "second"
    assert caught.value.remedy == f"did you mean port:{first} or port:{second}?"
    (out / "config.json").touch()
    assert parse_target(str(out)).kind == ""


def test_kinds_before_what_is_no_side() -> None:
    assert plain_spec("torch:net.py:Net", ("torch",), "torch module") == "net.py:Net"
    assert plain_spec("net.py:Net", ("torch",), "torch module") == "net.py:Net"
    with pytest.raises(TargetError, match="linen: names no torch module"):
        plain_spec("linen:net.py:Net", ("torch",), "torch module")


_PORT = """
import flax.linen as nn

UNUSED = frozenset(["params/layers_#/spare/kernel"])


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(x)


def build():
    return Net()
"""


def test_a_port_leaves_out_the_weights_that_its_original_does_not_read(tmp_path: Path) -> None:
    """Its file has them, so that a checkpoint keeps them; other weights without a place are refused."""
    (tmp_path / "__init__.py").write_text(_PORT)
    (tmp_path / "modeling.py").write_text("")
    arrays = {
        "params/head/kernel": np.ones((4, 3), np.float32),
        "params/head/bias": np.ones(3, np.float32),
        "params/layers_11/spare/kernel": np.ones((2, 2), np.float32),
    }
    inputs = write_inputs(tmp_path / "inputs", [{"x": np.ones((2, 4), np.float32)}])
    for extra, fits in ({}, True), ({"params/layers_11/other": np.ones(2, np.float32)}, False):
        save_file(arrays | extra, tmp_path / "params.safetensors")
        runner, weights = load_runner(Target("port", str(tmp_path), "port"))
        assert weights is not None
        runner.load_weights(weights)
        told = pytest.raises(ParityError, match=r"1 surplus \(params/layers_11/other\)")
        with nullcontext() if fits else told:
            runner.prepare(SideSettings(), inputs)


def test_a_side_on_torch_tpu_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(
        TargetError, match=r"^tpu:net\.py:Net: torch_tpu is not installed; .*--python-b"
    ):
        load_runner(Target("tpu", "net.py:Net", "tpu:net.py:Net"))


def test_a_side_on_torch_tpu_on_a_machine_with_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_tpu, "chips", lambda: 4)
    with pytest.raises(TargetError, match=r"on simulated TPUs only.*; PJRT_DEVICE=CPU"):
        load_runner(Target("tpu", "net.py:Net", "tpu:net.py:Net"))
