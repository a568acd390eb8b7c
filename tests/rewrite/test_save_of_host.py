"""Saves of scripts that train nothing and use no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.hazard import Severity
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rules.saving.save_calls import TO_CPU_FIRST
from migrate.syntax.source import parse

SCRIPT = """\
import os

import torch
import torch.distributed as dist


class Tokenizer:
    def __init__(self, text):
        self.words = sorted(set(text.split()))

    def encode(self, text):
        return torch.tensor([self.words.index(word) for word in text.split()])

    def keep(self, path):
        torch.save(self.words, path)


def main():
    rank = int(os.environ.get("RANK", 0))
    text = open("text.txt").read()
    tokenizer = Tokenizer(text)
    ids = tokenizer.encode(text)
    counts = {word: torch.zeros(3) for word in tokenizer.words}
    if rank == 0:
        torch.save(ids, "ids.pt")
        torch.save({"ids": ids, "counts": counts, "sizes": [1, 2]}, "all.pt")
        tokenizer.keep("words.pt")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_tokenizer_keeps_its_saves(style: str) -> None:
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    done = rewrite_source(parse(SCRIPT.encode(), Path("tokenize.py")), options=options)
    after = done.data.decode()
    assert after.count("torch.save(") == 3
    assert "    if rank == 0:\n        torch.save(ids" in after
    assert [f for f in done.findings if f.rule in ("save", "XLA301")] == []


@pytest.mark.parametrize(
    "more",
    [
        "    ids = ids.to(os.environ['DEVICE'])\n",
        "    ids = torch.zeros(3, device=os.environ['DEVICE'])\n",
        "    ids = torch.load('ids.pt')\n",
        "    ids = torch.load('ids.pt', map_location=text)\n",
        "    ids = torch.zeros(3).to(torch.device('cuda'))\n",
        "    ids = torch.nn.Linear(2, 2).weight\n",
    ],
)
def test_with_a_device_or_a_model_they_are_looked_at(more: str) -> None:
    script = SCRIPT.replace("    counts", f"{more}    counts", 1)
    done = rewrite_source(parse(script.encode(), Path("tokenize.py")))
    assert "torch.save(ids" not in done.data.decode() or done.findings


AVERAGE = """\
import argparse

import torch
from safetensors import safe_open
from tables import size


def change(path, info, out):
    state = torch.load(path, map_location="cpu")
    state["info"] = INFO
    torch.save(state, out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    average = {}
    for path in parser.parse_args().paths:
        states = torch.load(path, map_location=torch.device("cpu"))
        for key in states.keys():
            average[key] = average[key] + states[key] if key in average else states[key].clone()
    torch.save(average, "average.pt")
    tensors = {}
    with safe_open("model.safetensors", framework="pt", device="cpu") as file:
        for key in file.keys():
            tensors["model." + key] = file.get_tensor(key)
            tensors["bias"] = torch.zeros_like(tensors["model." + key][: size(key), 0])
    torch.save(tensors, "model.pt")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("info", "lines"), [("1", []), ("info", [11])])
def test_what_is_loaded_on_the_host_is_saved_from_there(info: str, lines: list[int]) -> None:
    done = rewrite_source(parse(AVERAGE.replace("INFO", info).encode(), Path("average.py")))
    assert [f.line for f in done.findings] == lines
    assert not done.edits


SOUNDS = """\
import os

import torch
from spectra import spectrum
from torch.utils.data import Dataset


class Sounds(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.read(self.files[index])

    def read(self, path):
        if os.path.exists(path + ".pt"):
            return torch.load(path + ".pt", map_location="cpu")
        values = spectrum(path)
        MOVE
        torch.save(values, path + ".pt")
        return values
"""


@pytest.mark.parametrize("move", ["", "values = values.to(self.device)"])
def test_a_dataset_saves_what_the_loaders_workers_made(move: str) -> None:
    done = rewrite_source(parse(SOUNDS.replace("MOVE", move).encode(), Path("sounds.py")))
    stays = "torch.save(values" in done.data.decode() and not done.findings
    assert stays is not bool(move)


def test_what_another_file_hands_over_is_looked_at() -> None:
    script = "import torch\n\n\ndef keep(state, path):\n    torch.save(state, path)\n"
    done = rewrite_source(parse(script.encode(), Path("keep.py")))
    assert ["if it is on the device" in f.message for f in done.findings] == [True]


BUFFER = """\
import io

import torch
import torch.distributed as dist


def load_ema(ema, checkpoint):
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    ema.load(buffer)


def resume(args, model, ema):
    dist.init_process_group("nccl")
    model.cuda()
    if args.resume.startswith("https"):
        checkpoint = torch.hub.load_state_dict_from_url(args.resume, map_location="cpu")
    else:
        checkpoint = torch.load(args.resume, map_location=PLACE)
    load_ema(ema, {"ema": checkpoint["ema"]})
"""


@pytest.mark.parametrize(("place", "reported"), [('"cpu"', False), ("args.device", True)])
def test_what_callers_pass_from_a_checkpoint_on_the_host_may_go_into_a_buffer(
    place: str, reported: bool
) -> None:
    script = BUFFER.replace("PLACE", place).encode()
    done = rewrite_source(parse(script, Path("script.py")))
    assert bool([one for one in done.findings if one.rule == "save"]) is reported
    assert b"torch.save(checkpoint, buffer)" in done.data


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("saved", "reported"),
    [
        ('{"ema": checkpoint}', False),
        ('{"ema": checkpoint["ema"], "epoch": 3, "best": None}', False),
        ("[checkpoint, checkpoint]", False),
        ('{"ema": checkpoint, "model": ema.state_dict()}', True),
        ('{"ema": checkpoint, **others}', True),
    ],
)
def test_what_is_put_around_a_checkpoint_on_the_host(
    style: Style, saved: str, reported: bool
) -> None:
    script = BUFFER.replace("PLACE", '"cpu"').replace("save(checkpoint,", f"save({saved},").encode()
    done = rewrite_source(parse(script, Path("script.py")), options=RewriteOptions(style=style))
    assert bool([one for one in done.findings if one.rule == "save"]) is reported


@pytest.mark.parametrize(
    ("load", "reported"),
    [
        ('torch.load("model.pt", map_location="cpu")', False),
        ('torch.load("model.pt", "cpu")["ema"]', False),
        ('torch.hub.load_state_dict_from_url(URL, map_location="cpu")', False),
        ('torch.load("model.pt")', True),
        ("model.state_dict()", True),
    ],
)
def test_what_another_file_loads_on_the_host_may_go_into_a_buffer(
    tmp_path: Path, load: str, reported: bool
) -> None:
    (tmp_path / "helpers.py").write_text(
        "import io\n\nimport torch\n\n\ndef load_ema(ema, checkpoint):\n    buffer = io.BytesIO()\n"
        '    torch.save({"ema": checkpoint}, buffer)\n    ema.load(buffer)\n'
    )
    (tmp_path / "main.py").write_text(
        "import helpers\nimport torch\n\nmodel = torch.nn.Linear(2, 2).cuda()\n"
        f"state = {load}\nhelpers.load_ema(model, state)\n"
    )
    done = rewrite_folder(tmp_path, processes=1)
    saves = [one for file in done.files for one in file.findings if one.rule == "save"]
    assert bool(saves) is reported


CACHE = """\
import torch
import torch.distributed as dist
import torchvision
from torchvision.datasets import ImageFolder


def cache(folder, path, more):
    MADE
    if dist.get_rank() == 0:
        SAVE
    dist.barrier()


def finish(model, path):
    model.to("cuda")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("made", "saved", "stays"),
    [
        ("data = ImageFolder(folder)", "data", True),
        ("pass", "torchvision.datasets.ImageFolder(folder)", True),
        ("data = ImageFolder(folder)", "data.samples", True),
        ("data = ImageFolder(folder)", "{'data': data, 'depth': 1}", True),
        ("data = ImageFolder(folder)", "{'data': data, 'more': more}", False),
        ("data = Images(folder)", "data", False),
        ("data = ImageFolder(folder); data = more", "data", False),
    ],
)
def test_a_dataset_of_torchvision_is_saved_by_the_first_replica(
    made: str, saved: str, stays: bool
) -> None:
    line = f"torch.save({saved}, path)"
    script = CACHE.replace("MADE", made).replace("SAVE", line)
    after = rewrite_source(parse(script.encode(), Path("cache.py"))).data.decode()
    assert (f"        {line}\n" in after) is stays
    assert after.count("xm.save(") == 2 - stays


def test_a_dataset_in_a_function_of_another_file_stays_below_the_test_of_the_rank(
    tmp_path: Path,
) -> None:
    helper = "import torch\nfrom torchvision.datasets import ImageFolder\n\n\n"
    helper += (
        "def cache(folder, path):\n    data = ImageFolder(folder)\n    torch.save(data, path)\n"
    )
    (tmp_path / "caching.py").write_text(helper)
    main = (
        CACHE.replace("MADE", "pass")
        .replace("SAVE", "caching.cache(folder, path)")
        .replace("import torchvision", "import caching")
    )
    (tmp_path / "main.py").write_text(main)
    done = rewrite_folder(tmp_path, processes=1)
    texts = {one.name.name: one.after.decode() for one in done.files}
    assert "torch.save(data, path)" in texts.get("caching.py", helper)
    assert "    if dist.get_rank() == 0:\n        caching.cache(folder, path)" in texts["main.py"]


def test_a_dataset_that_is_loaded_in_the_other_branch_is_saved_as_it_is() -> None:
    made = (
        "if path.exists():\n        data = torch.load(path)\n    else:\n"
        "        data = ImageFolder(folder)\n        torch.save(data, path, pickle_protocol=4)"
    )
    script = CACHE.replace("MADE", made).replace("SAVE", "pass")
    done = rewrite_source(parse(script.encode(), Path("cache.py")))
    assert "torch.save(data, path, pickle_protocol=4)" in done.data.decode()
    assert not [one for one in done.findings if TO_CPU_FIRST in one.message]


STATS = """\
import os

import torch
from safetensors import safe_open


class Latents(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.files = sorted(os.listdir(folder))
        self.mean = self.stats(os.path.join(folder, "stats.pt"))

    def stats(self, path):
        if not os.path.exists(path):
            mean = self.compute()
            torch.save(mean, path)
        else:
            mean = torch.load(path)
        return mean

    def compute(self):
        parts = []
        for name in self.files:
            with safe_open(name, framework="pt", device="PLACE") as file:
                parts.append(file.get_slice("x")[0:1])
        parts = torch.cat(parts, dim=0)
        return {"mean": parts.mean(dim=0)}
"""


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_what_is_made_of_files_of_safetensors_is_no_matter_of_all_ranks(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "latents.py").write_text(STATS.replace("PLACE", place))
    main = CACHE.replace("MADE", "pass").replace("SAVE", "latents.Latents(folder)")
    (tmp_path / "main.py").write_text(main.replace("import torchvision\n", "import latents\n"))
    done = rewrite_folder(tmp_path, processes=1)
    messages = [one.message for file in done.files for one in file.findings if one.rule == "save"]
    assert bool(messages) is (place == "cuda")


@pytest.mark.parametrize(
    ("test", "severity"), [("args.resume", Severity.INFO), ("dist.get_rank() == 0", Severity.ERROR)]
)
def test_what_goes_into_a_buffer_stays(test: str, severity: Severity) -> None:
    script = BUFFER.replace("PLACE", "args.device").replace(
        'load_ema(ema, {"ema": checkpoint["ema"]})',
        f"if {test}:\n        kept = io.BytesIO()\n        torch.save(model.state_dict(), kept)",
    )
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    kept = [f for f in done.findings if f.rule == "save" and "model.state_dict()" in f.message]
    assert [finding.severity for finding in kept] == [severity]
    assert "into a buffer in memory" in kept[0].message
    assert "path" not in kept[0].message
    assert b"torch.save(model.state_dict(), kept)" in done.data


STATES = """\
import random

import numpy as np
import torch
import torch.distributed as dist


def keep(model, folder):
    states = {
        "torch": torch.random.get_rng_state(),
        "gpu": torch.cuda.get_rng_state(),
        "numpy": np.random.get_state(),
    }
    states["python"] = random.getstate()
    torch.save(states, f"{folder}/{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), f"{folder}/model.pt")


def resume(folder):
    states = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=False)
    random.setstate(states["python"])


def main(folder):
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2, 2).cuda()
    resume(folder)
    keep(model, folder)


if __name__ == "__main__":
    main("states")
"""


@pytest.mark.parametrize("mixed", [False, True])
def test_states_of_generators_are_on_the_host(mixed: bool) -> None:
    """Beside a model's weights xm.save has to write them, and their tuples come back as lists."""
    script = STATES.replace("states[", 'states["model"] = model.state_dict()\n    states[', mixed)
    done = rewrite_source(parse(script.encode(), Path("states.py")))
    assert ("torch.save(states" in done.data.decode()) is not mixed
    assert [f.rule for f in done.findings] == (["XLA831"] if mixed else [])
