"""A killed conversion leaves nothing that loads, and is finished to the same bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from converters.checkpoint import PytreeLeaf, TensorInfo
from converters.errors import CheckpointDamagedError, OutputError
from converters.layers.layout import Permute
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.output import load_pytree, recipe_of, write_pytree
from converters.output.partial import partial_path
from tests.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[3]
SIDE = 1024  # 4 MB an array
COUNT = 12

# Writes the same pytree each time, a little slower than it would, so that a kill finds it at work.
WRITER = f"""
import sys, time, pathlib
import numpy as np
from converters.checkpoint import PytreeLeaf, TensorInfo
from converters.output import units, write_pytree

units.SLAB_BYTES = 1 << 20
def leaf(number):
    def read():
        time.sleep(0.01)
        rng = np.random.default_rng(number)
        return rng.integers(0, 2**32, ({SIDE}, {SIDE}), dtype=np.uint32).view(np.int32).T
    return PytreeLeaf(f"params/layer_{{number}}/kernel", TensorInfo(({SIDE}, {SIDE}), "int32"), read)

print("begun", flush=True)
done = write_pytree(
    pathlib.Path(sys.argv[1]), [leaf(n) for n in range({COUNT})], sys.argv[2], resume="resume" in sys.argv
)
print(done.resumed, flush=True)
"""


def start(tmp_path, *arguments):
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(tmp_path, *arguments):
    """Run to its end: the number of bytes that were kept, and how long it wrote."""
    run = start(tmp_path, *arguments)
    assert run.stdout.readline() == "begun\n"
    began = time.perf_counter()
    resumed = run.communicate(timeout=LIMIT)[0]
    assert run.returncode == 0
    return int(resumed), time.perf_counter() - began


def kill_and_resume(tmp_path, form, kills, seed):
    """Kill conversions at work, so many, and finish each; the number of bytes that were kept in all."""
    folder = tmp_path / "out"
    folder.mkdir()
    _, length = finish(tmp_path, folder / "whole", form)
    whole = (folder / "whole").read_bytes()
    draw = random.Random(seed)
    killed = kept = 0
    for number in range(10 * kills):
        if killed >= kills:
            break
        output = folder / f"x{number}"
        resume: tuple[str, ...] = ()
        for _ in range(draw.choice((1, 1, 2))):  # some are killed again while they resume
            run = start(tmp_path, output, form, *resume)
            assert run.stdout.readline() == "begun\n"
            time.sleep(draw.uniform(0, 0.9 * length))  # slow: a kill at any time
            run.send_signal(signal.SIGKILL)
            run.communicate()
            if output.exists():  # too late: whether it had exited or not, it was done
                break
            killed += 1
            resume = ("resume",)
            for left in folder.glob(f".x{number}.*"):
                if left.read_bytes() != whole:
                    with pytest.raises(CheckpointDamagedError):
                        load_pytree(left)
        if not output.exists():
            kept += finish(tmp_path, output, form, "resume")[0]
        assert output.read_bytes() == whole
        assert list(folder.glob(f".x{number}.*")) == []
        output.unlink()
    assert killed >= kills
    return kept


@pytest.mark.long
def test_killed_at_random_points(tmp_path):
    assert kill_and_resume(tmp_path, "safetensors", kills=5, seed=1) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
def test_killed_at_fifty_random_points(tmp_path, form):
    assert kill_and_resume(tmp_path, form, kills=50, seed=2) > 0


def leaf(number, stop=False):
    array = np.full((100, 1000), number, np.float32)

    def read():
        if stop:
            raise KeyboardInterrupt
        return array

    return PytreeLeaf(f"params/{number}", TensorInfo(array.shape, "float32"), read)


def interrupt(output, form="safetensors", recipe="", stop=3):
    """What Ctrl-C leaves: the first leaves, and the journal that says so."""
    with pytest.raises(KeyboardInterrupt):
        write_pytree(output, [leaf(n, n == stop) for n in range(5)], form, recipe=recipe)
    partial = partial_path(output)
    journal = partial.with_name(f"{partial.name}.journal")
    assert partial.exists()
    return partial, journal


@pytest.fixture
def whole(tmp_path):
    """The bytes of the finished conversion."""
    write_pytree(tmp_path / "whole", [leaf(n) for n in range(5)], "safetensors")
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    return data


def resume(output, **options):
    return write_pytree(output, [leaf(n) for n in range(5)], "safetensors", resume=True, **options)


def claimed(journal):
    return [json.loads(line)[0] for line in journal.read_text().splitlines()[1:]]


def test_ctrl_c_is_resumed_too(tmp_path, whole):
    _, journal = interrupt(tmp_path / "x")
    names = claimed(journal)
    assert names
    assert "params/3" not in names
    done = resume(tmp_path / "x")
    assert done.resumed == 400_000 * len(names)
    assert not done.left_over
    assert (tmp_path / "x").read_bytes() == whole
    assert os.listdir(tmp_path) == ["x"]


def test_without_resume_what_is_left_over_is_discarded_and_said(tmp_path, whole):
    interrupt(tmp_path / "x")
    done = write_pytree(tmp_path / "x", [leaf(n) for n in range(5)], "safetensors")
    assert done.left_over
    assert done.resumed == 0
    assert (tmp_path / "x").read_bytes() == whole
    assert os.listdir(tmp_path) == ["x"]


def test_nothing_to_resume(tmp_path, whole):
    done = resume(tmp_path / "x")
    assert (done.resumed, done.left_over) == (0, False)
    assert (tmp_path / "x").read_bytes() == whole


def test_what_is_claimed_but_not_there_is_written_again(tmp_path, whole):
    """A power cut may leave zeros where the journal says that something was written."""
    partial, journal = interrupt(tmp_path / "x")
    names = claimed(journal)
    data = bytearray(partial.read_bytes())
    first = len(data) - 5 * 400_000 + 400_000 * int(names[0][-1])
    data[first + 40_000 : first + 45_000] = b"\1" * 5000
    partial.write_bytes(data)
    assert resume(tmp_path / "x").resumed == 400_000 * (len(names) - 1)
    assert (tmp_path / "x").read_bytes() == whole


@pytest.mark.parametrize(
    "line",
    [
        "",
        '["params/4", [[0, 400',
        '["params/4", []]',
        '["params/4", [[0, 400000, 1, 0]]]',
        '["params/4", [[0, 8, 0, 0]]]',
        '["params/9", [[0, 8, 0, 0]]]',
        '["params/4", 7]',
        "[" * 20,
        "\0" * 500,
    ],
)
def test_a_journal_that_is_cut_off_or_wrong(tmp_path, whole, line):
    _, journal = interrupt(tmp_path / "x")
    names = claimed(journal)
    with journal.open("a") as file:
        file.write(line)
    assert resume(tmp_path / "x").resumed == 400_000 * len(names)
    assert (tmp_path / "x").read_bytes() == whole


def test_a_partial_file_without_its_journal_is_begun_anew(tmp_path, whole):
    partial, journal = interrupt(tmp_path / "x")
    journal.unlink()
    partial.write_bytes(b"\7" * 3_000_000)
    assert resume(tmp_path / "x").resumed == 0
    assert (tmp_path / "x").read_bytes() == whole


def test_another_conversion_is_not_resumed(tmp_path, whole, refused):
    partial, _ = interrupt(tmp_path / "x", recipe="one")
    with refused(OutputError, ".x.partial is of another conversion", "--force"):
        resume(tmp_path / "x", recipe="two")
    assert partial.exists()
    assert not (tmp_path / "x").exists()
    assert resume(tmp_path / "x", recipe="two", overwrite=True).resumed == 0
    assert (tmp_path / "x").read_bytes() == whole


def test_other_leaves_are_another_conversion(tmp_path, refused):
    interrupt(tmp_path / "x")
    with refused(OutputError, "another conversion"):
        write_pytree(tmp_path / "x", [leaf(n) for n in range(4)], "safetensors", resume=True)


def test_a_recipe_knows_the_plan_and_the_files(tmp_path):
    info = TensorInfo((3, 4), "float32")
    plan = [PlannedLeaf("params/a", info, (Piece("a"),))]
    turned = [PlannedLeaf("params/a", info, (Piece("a", Permute((1, 0))),))]
    file = tmp_path / "shard"
    file.write_text("values")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "shard"}}))
    parts = tmp_path / "parts"  # as torch.distributed.checkpoint writes them
    parts.mkdir()
    (parts / ".metadata").write_text("names")
    (parts / "__0_0.distcp").write_text("values")
    own = tmp_path / "own"  # the only one in its folder, under a name of its own
    own.mkdir()
    (own / "net.pt").write_text("values")
    for path in (file, index, tmp_path, parts, own):
        before = recipe_of(plan, path)
        assert before == recipe_of(plan, path)
        assert before != recipe_of(turned, path)
        for changed in (file, parts / "__0_0.distcp", own / "net.pt"):
            os.utime(changed, ns=(1, time.time_ns()))
        (tmp_path / "output.safetensors").write_text("beside it")
        assert before != recipe_of(plan, path)
    assert recipe_of(plan, None) == recipe_of(plan, None)
