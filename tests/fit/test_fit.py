"""`migrate fit` as a user meets it, with the real TPU compiler."""

from __future__ import annotations

import errno
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.compiler.compile import Compiled
from migrate.counts import binary_size
from migrate.fit import cache, judge, pipeline
from tests.fit.by_hand import as_by_hand, by_hand
from tests.fit.here import Here

HERE = Path(__file__).parent
MODELS, NETS = HERE / "models.py", HERE / "nets.py"
PLANTED = HERE / "planted" / "models.py"
pytestmark = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
SCRIPT = """
import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import nn


def main(index=0):
    device = torch_xla.device()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    total = 0.0
    assert xr.local_device_count() == xr.global_device_count() == xr.world_size()
    for _ in range(int(sys.argv[1])):
        x = torch.randn(64 // xr.world_size(), 64).to(device)
        with torch_xla.step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            REDUCED
            READ


if __name__ == "__main__":
    torch_xla.launch(main)
"""

# Two epochs of a step, each with its accuracy and its snapshot, from which it goes on.
SAVING = (
    SCRIPT.replace(
        "    for _ in range(int(sys.argv[1])):\n",
        """
    snapshot = os.path.join(os.path.dirname(__file__), "last.pt")
    first = torch.load(snapshot)["epoch"] if os.path.exists(snapshot) else 0
    for epoch in range(first, 2):
""",
    )
    .replace("import sys", "import os")
    .replace("REDUCED", "xm.optimizer_step(optimizer)")
    .replace(
        "            READ\n",
        """
        with torch.no_grad():
            total += model(torch.ones(4, 64).to(device)).square().mean().item()
        torch.save({"epoch": epoch + 1}, snapshot)
""",
    )
)
# Read in the step that is taken, which is the fourth: the third is the first that repeats.
ONCE = """if (total := total + 1) == 4:
                loss.item()"""

UNDER_TORCHRUN = """
import argparse
import os

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
options = parser.parse_args()
if options.batch_size > 8192:
    raise SystemExit("more than I take")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("xla", rank=rank, world_size=size)
device = torch_xla.device()
net = DistributedDataParallel(nn.Linear(1024, 8).to(device), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    with torch_xla.step():
        x = torch.zeros(options.batch_size // size, 1024).to(device)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
"""

# torch_xla comes first: torch is imported while it is.
ACCUMULATING = """
import torch_xla
import torch
import torch_xla.core.xla_model as xm
from torch import nn


def main(index=0):
    device = torch_xla.device()
    model = nn.Linear(64, 128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(12):
        x = torch.randn(16, 64).to(device)
        with torch_xla.step():
            model(x).square().mean().backward()
        if number % 2:
            with torch_xla.step():
                xm.optimizer_step(optimizer)
                optimizer.zero_grad()
        METRIC


if __name__ == "__main__":
    torch_xla.launch(main)
"""

SYNCHRONIZED = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shims


def main(index=0):
    dist.init_process_group("xla", init_method="xla://")
    net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 8))
    net = shims.sync_batch_norm(net).to("xla")
    net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(8):
        x = torch.randn(16, 64)
        with torch_xla.step():
            optimizer.zero_grad()
            loss = net(x.to("xla")).square().mean()
            total = loss.detach().clone()
            shims.all_reduce(total)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    torch_xla.launch(main)
"""


IN_BLOCKS = """
import argparse
import sys

import torch
import torch_xla
import torch_xla.core.xla_model as xm

sys.path.insert(0, FOLDER)
from tests.fit.nets import Blocks

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
options = parser.parse_args()


def main(index=0):
    model = Blocks().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        x = torch.zeros(options.batch, 256).to("xla")
        with torch_xla.step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            xm.optimizer_step(optimizer)


if __name__ == "__main__":
    torch_xla.launch(main)
"""

METRIC = "total = xm.all_reduce('sum', x.square().mean()).item()"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*args: object) -> Result:
    """In this process, which starts those that lower and compile."""
    return CliRunner().invoke(commands, ["fit", *map(str, args)])


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By processes of its own, as a user has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        done = run(
            *("--json", f"{MODELS}:Tower", "--inputs", "x=float32[64,512]", "--train", "adamw")
        )
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestFlax:
    def test_a_step_is_what_jax_compiles_by_hand(self, tower: dict[str, Any], here: Here) -> None:
        """The same step in plain JAX, compiled for the same slice."""
        assert as_by_hand(tower) == here.ask(by_hand, "tower")

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("model", "inputs"),
        [("Llama", "x=float32[2,64,128]"), ("ViT", "image=float32[4,32,32,3]"),
         ("ResNet50", "image=float32[4,64,64,3]")],
    )  # fmt: skip
    def test_whole_architectures_are_too(self, model: str, inputs: str, here: Here) -> None:
        found = here.fitted(f"{HERE / 'whole.py'}:{model}", "--inputs", inputs, "--train", "adamw")
        assert as_by_hand(found) == here.ask(by_hand, model)

    def test_what_lies_in_memory_is_explained(self, tower: dict[str, Any]) -> None:
        (told,) = tower["slices"]
        assert told["state"] == "fits"
        assert told["hbm"]["at_peak"] == pytest.approx(told["hbm"]["needed"], rel=0.05)
        kinds = told["hbm"]["by_kind"]
        weights = 4 * (512 * 1024 + 1024 + 1024 * 16 + 16)
        assert kinds["parameters"] >= weights
        assert kinds["optimizer state"] >= 2 * kinds["parameters"]
        names = [one["name"] for one in told["hbm"]["largest"]]
        assert "params/Dense_0/kernel" in names

    def test_gradients_are_exchanged_and_lines_are_the_models(self, tower: dict[str, Any]) -> None:
        (told,) = tower["slices"]
        reduced = [one for one in told["collectives"] if one["kind"] == "all-reduce"]
        assert {one["group"] for one in reduced} == {8}
        # Gradients of all weights, and the loss.
        assert sum(one["bytes"] for one in reduced) == 4 * (512 * 1024 + 1024 + 1024 * 16 + 16 + 1)
        busiest = max(told["lines"], key=lambda line: line["flops"])
        assert str(Path(busiest["source"]).absolute()).startswith(str(MODELS))
        bound = told["lower_bound"]
        assert bound["seconds"] == max(bound["mxu"], bound["hbm"], bound["ici"])

    def test_weights_cut_along_a_mesh_take_less(
        self, here: Here, tower: dict[str, Any], tmp_path: Path
    ) -> None:
        rules = tmp_path / "rules.yaml"
        rules.write_text("Dense_0/kernel: [null, model]\nDense_0/bias: [model]\ndefault: []\n")
        args = (f"{MODELS}:Tower", "--inputs", "x=float32[64,512]", "--train", "adamw")
        found = here.fitted(*args, "--mesh", "data=2,model=4", "--spec", rules)
        before = tower["slices"][0]["hbm"]["by_kind"]["parameters"]
        assert found["slices"][0]["hbm"]["by_kind"]["parameters"] < before / 2

    @pytest.mark.parametrize("train", ["optax.lion", f"{MODELS}:clipped"])
    def test_an_optimizer_of_optax_or_of_the_user(
        self, train: str, here: Here, tower: dict[str, Any]
    ) -> None:
        """Both keep one value for each weight, Adam two."""
        args = (f"{MODELS}:Tower", "--inputs", "x=float32[64,512]", "--train", train)
        (told,) = here.fitted(*args)["slices"]
        kinds, adam = told["hbm"]["by_kind"], tower["slices"][0]["hbm"]["by_kind"]
        assert kinds["parameters"] == adam["parameters"]
        assert kinds["optimizer state"] == pytest.approx(adam["optimizer state"] / 2, rel=0.02)

    def test_a_change_is_tried_and_compared(self, here: Here, tmp_path: Path) -> None:
        args = (
            f"{MODELS}:Tower",
            "--inputs",
            "x=float32[64,512]",
            "--train",
            "sgd",
            "--tpu",
            "v5e-1",
        )
        page = tmp_path / "fit.html"
        before = here.fitted(*args)
        kept = tmp_path / "before.json"
        kept.write_text(json.dumps(before))
        found = here.fitted(*args, "--try", "bf16", "--html", page)
        (tried,) = found["tried"]
        assert tried["what"] == "bf16"
        less = tried["slices"][0]["hbm"]["needed"] / before["slices"][0]["hbm"]["needed"]
        assert less == pytest.approx(0.5, abs=0.1)
        assert found["slices"][0]["cached"]
        assert "params/Dense_0/kernel" in page.read_text()
        other = here.fitted(
            *args, "--dtype", "bfloat16", "--baseline", kept, "--max-hbm", "0.001%", code=1
        )
        assert any("HBM -4" in line or "HBM -5" in line for line in other["changes"])
        assert "more than 0.001%" in other["limits_passed"][0]

    def test_too_big_is_said_with_what_fills_it(self, here: Here) -> None:
        args = (f"{MODELS}:huge", "--inputs", "x=float32[8,16384]", "--train", "adamw")
        found = here.fitted(*args, "--tpu", "v5e-1", code=1)
        (told,) = found["slices"]
        assert told["state"] == "too big"
        assert told["hbm"]["needed"] > told["hbm"]["available"]
        missing = told["hbm"]["needed"] - told["hbm"]["available"]
        assert f"{binary_size(missing)} are missing" in told["why"]
        weights = 3 * 4 * 16384 * (1 << 17)
        assert told["hbm"]["needed"] == pytest.approx(weights, rel=0.2)
        assert told["hbm"]["largest"][0]["name"].endswith("Dense_0/kernel")

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("model", "inputs", "train"),
        [
            (f"{MODELS}:huge", "x=float32[8,16384]", ("--train", "adamw")),
            (f"{PLANTED}:Kept", "x=float32[400000,1024]", ()),
            (f"{PLANTED}:Windows", "x=float32[6000,33,65,128]", ()),
            (f"{MODELS}:Tower", "x=float32[4000000,512]", ("--train", "adamw")),
        ],
    )
    def test_what_is_too_much_is_what_the_compiler_says(
        self, model: str, inputs: str, train: tuple[str, ...], here: Here
    ) -> None:
        """What is listed as alive, as it lies in a larger chip, against the compiler's own message."""
        found = here.fitted(model, "--inputs", inputs, *train, "--tpu", "v5e-1", code=1)
        (told,) = found["slices"]
        hbm = told["hbm"]
        assert (told["state"], hbm["explained_by"][:3]) == ("too big", "v5p")
        missing = hbm["needed"] - hbm["available"]
        assert hbm["at_peak"] - hbm["available"] == pytest.approx(missing, rel=0.02)

    @pytest.mark.long
    def test_what_is_computed_again_to_fit_has_its_cost(self, here: Here) -> None:
        args = (f"{MODELS}:Deep", "--inputs", "x=float32[450000,1024]", "--train", "sgd")
        (told,) = here.fitted(*args, "--tpu", "v5e-1")["slices"]
        hbm = told["hbm"]
        assert hbm["rematerialized"]
        # A layer: two operations for each of 450,000 × 1,024 × 1,024, as often as it is told.
        layer = 2 * 450_000 * 1024 * 1024
        assert hbm["rematerialized_flops"] == pytest.approx(hbm["rematerialized"] * layer, rel=0.01)
        assert hbm["by_kind"]["activations"] > 0.7 * hbm["at_peak"]

    @pytest.mark.long
    def test_values_computed_again_in_pieces_take_less(self, here: Here) -> None:
        args = (f"{MODELS}:Deep", "--inputs", "x=float32[100000,1024]", "--train", "sgd")
        found = here.fitted(*args, "--tpu", "v5e-1", "--try", "remat")
        (before,), ((after,),) = found["slices"], [one["slices"] for one in found["tried"]]
        assert after["hbm"]["needed"] < 0.8 * before["hbm"]["needed"]
        # At most its forward pass once more, a third of the step.
        assert 1.05 < after["flops"] / before["flops"] < 1.35
        assert any("models.py:" in line["source"] for line in after["lines"][:2])

    def test_a_clean_model_wastes_nothing(self, here: Here) -> None:
        args = (f"{MODELS}:Tower", "--inputs", "x=float32[1024,1024]", "--tpu", "v5e-1")
        assert here.fitted(*args)["slices"][0]["waste"] == []


class TestTorch:
    pytestmark = pytest.mark.xla

    def test_a_step_of_a_module(self, here: Here) -> None:
        args = (
            f"{NETS}:Net",
            "--inputs",
            "x=float32[32,256]",
            "--train",
            "adamw",
            "--tpu",
            "v5e-4",
        )
        (told,) = here.fitted(*args)["slices"]
        assert told["state"] == "fits"
        weights = 256 * 512 + 512 + 2 * 512 + 512 * 16 + 16
        assert sum(one["bytes"] for one in told["collectives"]) == pytest.approx(
            4 * weights, rel=0.01
        )
        kinds = told["hbm"]["by_kind"]
        assert kinds["optimizer state"] == pytest.approx(2 * kinds["parameters"], rel=0.05)
        # They live until the next step.
        assert kinds["gradients"] == pytest.approx(kinds["parameters"], rel=0.05)
        assert not [one for one in told["waste"] if one["kind"] == "not donated"]
        assert any(
            str(Path(line["source"]).absolute()).startswith(str(NETS)) for line in told["lines"]
        )

    @pytest.mark.long
    def test_blocks_computed_again_take_less(self, here: Here) -> None:
        args = (f"{NETS}:Blocks", "--inputs", "x=float32[8192,256]", "--train", "sgd")
        found = here.fitted(*args, "--tpu", "v5e-1", "--try", "remat,shard")
        (before,) = found["slices"]
        again, cut = found["tried"]
        (after,) = again["slices"]
        assert after["hbm"]["needed"] < 0.6 * before["hbm"]["needed"]
        # The first product of each block once more: one of six.
        assert after["flops"] / before["flops"] == pytest.approx(7 / 6, rel=0.03)
        assert (cut["slices"], "shard: " in cut["what"]) == ([], True)
        assert cut["what"].endswith("a torch module runs as replicas")

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (("--mesh", "data=8"), "are for Flax models"),
            (("--loss", "nowhere.py:loss", "--train", "sgd"), "nowhere.py"),
        ],
    )
    @pytest.mark.long_cases("more1-nowhere.py")
    def test_what_would_have_no_effect_is_refused(self, more: tuple[str, ...], said: str) -> None:
        done = run(f"{NETS}:Net", "--inputs", "x=float32[4,256]", *more)
        assert done.exit_code == 2
        assert said in done.stderr

    @pytest.mark.parametrize(
        ("steps", "reduced", "read", "state"),
        [
            (8, "xm.optimizer_step(optimizer)", "pass", "fits"),
            pytest.param(8, "optimizer.step()", "pass", "no collectives", marks=pytest.mark.long),
            pytest.param(2, "xm.optimizer_step(optimizer)", "pass", "fits", marks=pytest.mark.long),
            pytest.param(
                *(8, "xm.optimizer_step(optimizer)", "total += loss.item()", "cut"),
                marks=pytest.mark.long,
            ),
        ],
    )
    def test_a_script(
        self, here: Here, steps: int, reduced: str, read: str, state: str, tmp_path: Path
    ) -> None:
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("REDUCED", reduced).replace("READ", read))
        found = here.fitted(script, "--tpu", "v5e-4", "--", steps, code=0 if state == "fits" else 1)
        (told,) = found["slices"]
        assert told["state"] == state
        if state == "fits":
            weights = 64 * 128 + 128 + 128 * 8 + 8
            # The gradients, and the token that keeps all-reduces in order.
            assert sum(one["bytes"] for one in told["collectives"]) == 4 * (weights + 1)
            shown = [one for one in told["hbm"]["largest"] if one["kind"] == "input"]
            assert any(one["array"] == "f32[16,64]" for one in shown)  # a quarter of the batch
        if state == "cut":
            assert told["where"].endswith(
                f"{script}:{SCRIPT.count(chr(10), 0, SCRIPT.index('READ')) + 1}"
            )
        assert any("was seen" in note for note in found["notes"]) == (steps == 2)

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("remedy", "what"),
        [
            ("bf16", "bf16 (automatic mixed precision)"),
            ("remat", "remat (blocks)"),
            ("batch", "half the batch"),
        ],
    )
    def test_a_script_with_a_remedy(
        self, remedy: str, what: str, here: Here, tmp_path: Path
    ) -> None:
        script = tmp_path / "train.py"
        script.write_text(IN_BLOCKS.replace("FOLDER", repr(str(HERE.parents[1]))))
        batch = ("--batch-option", "--batch") if remedy == "batch" else ()
        found = here.fitted(
            *(script, "--tpu", "v5e-4", "--try", remedy, *batch, "--", "--batch", "8192")
        )
        (before,), (tried,) = found["slices"], found["tried"]
        (after,) = tried["slices"]
        assert (tried["what"], before["state"], after["state"]) == (what, "fits", "fits")
        assert after["hbm"]["needed"] < 0.65 * before["hbm"]["needed"]
        if remedy == "remat":
            # The first product of each block once more: one of six.
            assert after["flops"] / before["flops"] == pytest.approx(7 / 6, rel=0.03)
        if remedy == "bf16":
            assert any(one["array"].startswith("bf16[") for one in after["hbm"]["largest"])
        # The gradients are reduced as before; those of the biases as they come with bf16: in two bytes.
        sent = [sum(each["bytes"] for each in one["collectives"]) for one in (before, after)]
        biases = 4 * (2048 + 256)
        assert sent[0] - sent[1] == (2 * biases if remedy == "bf16" else 0)

    @pytest.mark.long
    def test_torchruns_variables_and_the_largest_batch(self, here: Here, tmp_path: Path) -> None:
        """A script that reads its rank and its batch, whose batch is looked for by its own option."""
        script = tmp_path / "train.py"
        script.write_text(UNDER_TORCHRUN)
        done = run(script, "--tpu", "v5e-4", "--", "--batch_size=64")
        assert done.exit_code == 2
        assert "add --torchrun" in done.stderr
        found = here.fitted(
            *(script, "--tpu", "v5e-4", "--torchrun", "--batch", "auto"),
            *("--batch-option", "--batch_size", "--", "--batch_size=4096"),
        )
        (told,) = found["slices"]
        assert told["state"] == "fits"
        assert {one["group"] for one in told["collectives"]} == {4}
        shown = [one["array"] for one in told["hbm"]["largest"] if one["kind"] == "input"]
        assert "f32[1024,1024]" in shown  # a quarter of the batch
        (tried,) = found["tried"]
        assert tried["what"].startswith("--batch_size 8192, which fits; the search ended there: ")
        assert "more than I take" in tried["what"]
        assert tried["slices"][0]["hbm"]["needed"] > told["hbm"]["needed"]

    @pytest.mark.long
    def test_statistics_of_all_replicas_and_a_metric_that_runs_at_once(
        self, here: Here, tmp_path: Path
    ) -> None:
        """Synchronized batch norm cuts no step; a collective of shims that is no step's does."""
        script = tmp_path / "train.py"
        script.write_text(SYNCHRONIZED)
        found = here.fitted(script, "--tpu", "v5e-4")
        (told,) = found["slices"]
        assert told["state"] == "fits"
        assert any("a step is 2 programs" in note for note in found["notes"])
        assert {one["group"] for one in told["collectives"]} == {4}

    @pytest.mark.long
    @pytest.mark.parametrize("metric", ["", METRIC])
    def test_a_step_of_several_programs(self, metric: str, here: Here, tmp_path: Path) -> None:
        """Gradients of two batches, each a program, and the update, which alone is given the momentum.

        A metric of all replicas is read between them: where only traced, it has its value of before.
        """
        script = tmp_path / "train.py"
        script.write_text(ACCUMULATING.replace("METRIC", metric))
        found = here.fitted(script, "--tpu", "v5e-4")
        (told,) = found["slices"]
        assert told["state"] == "fits"
        # The first batch makes the gradients, the second adds to them.
        assert any("3 programs, each once" in note for note in found["notes"])
        assert sum(one["times"] for one in told["collectives"]) == 1
        read = ACCUMULATING.count("\n", 0, ACCUMULATING.index("METRIC")) + 1
        assert any(f"{script}:{read}" in note for note in found["notes"]) == bool(metric)
        momentum = 64 * 128 * 4
        state = told["hbm"]["by_kind"].get("optimizer state", 0)
        assert told["hbm"]["beside"] + state >= momentum

    @pytest.mark.long
    def test_a_script_that_ends_early_and_would_resume(self, here: Here, tmp_path: Path) -> None:
        """Two steps, and a value read between them: a second run takes the last one, and finds no snapshot.

        Nor is one found in the user's folder. And the compiler is asked once.
        """
        script = tmp_path / "train.py"
        script.write_text(SAVING)
        first, second = (here.fitted(script, "--tpu", "v5e-4")["slices"][0] for _ in range(2))
        assert first["state"] == second["state"] == "fits"
        assert {one["group"] for one in first["collectives"]} == {4}
        assert any(line["source"].startswith(f"{script}:") for line in first["lines"])
        assert (bool(first["cached"]), bool(second["cached"])) == (False, True)
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]

    @pytest.mark.long
    def test_a_value_that_no_step_before_has_read_is_told(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(
            SCRIPT.replace("REDUCED", "xm.optimizer_step(optimizer)").replace("READ", ONCE)
        )
        done = run(script, "--tpu", "v5e-4", "--", "8")
        assert done.exit_code == 2
        line = SCRIPT.count("\n", 0, SCRIPT.index("READ")) + 2
        assert f"{script}:{line} reads a value in the recorded step only" in done.stderr

    @pytest.mark.long
    def test_a_script_in_the_words_of_shims(self, here: Here, tmp_path: Path) -> None:
        own = Path(__file__).parents[2] / "examples" / "portable" / "train.py"
        script = tmp_path / "train.py"  # its checkpoint lies beside it
        script.write_bytes(own.read_bytes())
        (told,) = here.fitted(script, "--tpu", "v5e-8")["slices"]
        assert told["state"] == "fits"
        (exchanged,) = told["collectives"]
        assert exchanged["kind"] == "all-reduce"

    @pytest.mark.long
    def test_a_cuda_script_is_rewritten_and_its_own_lines_are_named(self, here: Here) -> None:
        script = Path(__file__).parents[2] / "examples" / "transformer" / "before.py"
        (told,) = here.fitted(script, "--tpu", "v5e-8", "--", "--examples", "1024")["slices"]
        assert told["state"] == "fits"
        assert any(line["source"].startswith(f"{script}:") for line in told["lines"])
        assert told["collectives"]


class TestPrograms:
    def test_a_file_of_stablehlo(self, here: Here, tmp_path: Path) -> None:
        file = tmp_path / "f.mlir"
        file.write_text(jax.jit(lambda x: x @ x).lower(jnp.zeros((256, 256))).as_text())
        (told,) = here.fitted(file, "--tpu", "v6e-1")["slices"]
        assert told["state"] == "fits"
        assert told["flops"] >= 2 * 256**3


def test_a_compiler_that_is_not_there_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setattr(pipeline, "lowered", None)  # nothing is made that it could not compile
    done = run(f"{MODELS}:Tower", "--inputs", "x=float32[8,64]", "--tpu", "v5e-1")
    assert done.exit_code == 2
    assert done.stderr == (
        "migrate: libtpu is not installed; pip install '.[tpu]' in a clone of tpu-migrate\n"
    )


def test_a_compile_past_its_limit_is_undetermined(tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(jax.jit(lambda x: x @ x).lower(jnp.zeros((256, 256))).as_text())
    done = run("--json", file, "--tpu", "v6e-1", "--timeout", "0.01")
    assert done.exit_code == 1
    (told,) = json.loads(done.stdout)["slices"]
    assert (told["state"], told["why"].partition(":")[0]) == ("undetermined", "timed out")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("net.py",), "does not exist"),
        (("nowhere/net.py:Net",), "no file nowhere/net.py; there is no folder nowhere"),
        (("net.py:Net",), "no file net.py; check the path"),
        (("port:nowhere",), "port:nowhere does not exist; check the path"),
        ((f"{MODELS}:",), "names a file, but no object in it; write "),
        ((":Net",), ":Net names no file; write file.py:Net"),
        (
            (f"{MODELS}:Tower", "--tpu", "h100"),
            "h100: no such TPU slice; name a generation of TPUs",
        ),
        ((f"{MODELS}:Tower",), "input shapes are unknown"),
        ((f"{MODELS}:Tower", "--tpu", "v5e-9"), "no such TPU slice; near: v5e-8"),
        ((f"{MODELS}:Tower", "--batch", "auto"), "--batch auto changes the batch of --inputs"),
        ((f"{MODELS}:Nope", "--inputs", "x=float32[2]"), "has no Nope"),
        ((f"{MODELS}:Tower", "--inputs", "x=float32[2]", "--mesh", "data=3"), "has 3 devices"),
        ((f"{MODELS}:Tower", "--inputs", "x=float32[2,3]", "--try", "luck"), "--try luck"),
        ((f"{MODELS}:Tower", "--max-hbm", "nine"), "not a share"),
        (("nope.mlir",), "cannot be read"),
        ((f"{MODELS}:Tower", "--spec", "rules.yaml"), "add --mesh"),
        ((f"{MODELS}:Tower", "--inputs", "x=float32[2,3]", "--", "--epochs"), "takes no arguments"),
        (("f.mlir", "--dtype", "bfloat16"), "--dtype applies to models"),
        (("f.mlir", "--torchrun"), "--torchrun applies to scripts"),
        ((f"{MODELS}:Tower", "--batch", "auto", "--batch-option", "-b"), "applies to scripts"),
        ((f"{MODELS}:Tower", "--batch-option", "-b"), "needs --batch auto"),
        (("f.mlir", "--try", "shard"), "--try applies to models"),
        ((f"{MODELS}:Tower", "--try", "remat"), "--try remat needs a training step"),
        ((__file__, "--try", "shard"), "--try shard applies to Flax models"),
        ((__file__, "--try", "batch"), "the batch option of the script is unknown"),
        ((f"{MODELS}:Tower", "--baseline", str(MODELS)), "not JSON"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], said: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("…")]
    assert said in line


def test_the_slice_that_nobody_named_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(jax.jit(lambda x: x @ x).lower(jnp.zeros((8, 8))).as_text())
    told = [run(file, *named, "--quick").stdout for named in ((), ("--tpu", "v5e-8"))]
    note = "compiled for v5e-8 (8 devices), the default; --tpu names another slice"
    assert [note in text for text in told] == [True, False]


def test_a_path_is_read_before_a_program_is_made(tmp_path: Path) -> None:
    done = run(f"{tmp_path}/net.py:Net")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_a_script_for_torch_tpu_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nmodel = torch.nn.Linear(4, 4).to('tpu')\nprint(model)\n")
    done = run(str(script))
    assert done.exit_code == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    assert "train.py is for torch_tpu" in line


def test_another_libtpu_than_the_one_asked_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pipeline.metadata, "requires", lambda _: ["numpy", 'libtpu==0.0.42.*; extra == "tpu"']
    )
    monkeypatch.setattr(pipeline.metadata, "version", lambda _: "0.0.42.1")
    assert list(pipeline.another_libtpu("jax")) == []
    monkeypatch.setattr(pipeline.metadata, "version", lambda _: "0.0.420")
    (said,) = pipeline.another_libtpu("jax")
    assert "runs on a TPU with libtpu 0.0.42.*. Here libtpu 0.0.420 compiled" in said


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr(pipeline, "lowered", full)
    done = run(f"{MODELS}:Tower", "--inputs", "x=float32[8,64]")
    assert done.exit_code == 2
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("…")]
    assert line.startswith("migrate: /tmp/x: No space left on device; make room")


def test_no_answer_is_undetermined_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        judge, "compile_for_tpu", lambda *_, **__: Compiled((), "", "", "no answer in 1 s")
    )
    args = (f"{MODELS}:Tower", "--inputs", "x=float32[8,64]", "--tpu", "v5e-1")
    done = run("--json", *args)
    assert done.exit_code == 1, done.output
    (told,) = json.loads(done.stdout)["slices"]
    assert (told["state"], told["why"]) == ("undetermined", "no answer in 1 s")
    assert not list(cache.folder().glob("*.gz"))
