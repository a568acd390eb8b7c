"""XLA109: functions that make batches of samples of different lengths."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

COLLATE = """
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence


def collate_fn(batch, longest=128):
LINES
"""


def severities(lines: str) -> list[str]:
    script = COLLATE.replace("LINES", textwrap.indent(textwrap.dedent(lines).strip(), "    "))
    hits = check_source(parse(script.encode(), Path("data.py")), Config())
    return [hit.severity.value for hit in hits if hit.code == "XLA109"]


@pytest.mark.parametrize(
    "lines",
    [
        "return pad_sequence([sample['ids'] for sample in batch], batch_first=True)",
        "return torch.cat([s.points for s in batch]), [s.points.shape[0] for s in batch]",
        "return torch.from_numpy(np.concatenate([s for s in batch])), [s.size(0) for s in batch]",
        "rows, offsets = [], [0]\nfor s in batch:\n    rows.append(s)\n    offsets.append(len(s))\n"
        "return torch.cat(rows), offsets",
        "boxes, counts = [], []\nfor s in batch:\n    boxes.extend(s['boxes'])\n"
        "    counts.append(len(s['boxes']))\nreturn torch.stack(boxes), torch.tensor(counts)",
        "most = max(len(s) for s in batch)\nreturn [F.pad(s, (0, most - len(s))) for s in batch]",
        "most = max([s.shape[0] for s in batch])\nout = torch.zeros(len(batch), most)\nreturn out",
        "sizes = [len(s) for s in batch]\nreturn torch.zeros(len(batch), max(sizes))",
        "rows, sizes = zip(*batch)\nmost = int(max(sizes))\nreturn torch.stack(rows)[:, :most]",
        "rows, sizes = map(torch.stack, zip(*batch))\nreturn rows[:, : sizes.max()]",
        "masks = torch.stack(batch)\nmost = torch.max(masks.sum(1)).item() + 1\nreturn torch.arange(most)",
        "sizes = torch.tensor([s['length'] for s in batch])\nmost = min(longest, sizes.amax().item())\n"
        "return batch[0].new_zeros(8, most)",
    ],
)
def test_batches_of_their_own_length(lines: str) -> None:
    assert severities(lines) == ["warning"]


@pytest.mark.parametrize(
    ("made", "severity"),
    [("Pad()", "warning"), ("Pad(size=64)", ""), ("Pad(size=None)", "warning"), ("Pad(n)", "")],
)
@pytest.mark.parametrize("group", ["dist.init_process_group('nccl')", ""])
def test_a_length_that_is_rounded_up_differs_between_replicas(
    tmp_path: Path, made: str, severity: str, group: str
) -> None:
    pad = """
        import math

        import torch


        class Pad:
            def __init__(self, size=None):
                self.size = size

            def __call__(self, batch):
                sizes = torch.tensor([len(x) for x in batch])
                longest = self.size or math.ceil(int(sizes.max()) / 8) * 8
                return batch[0].new_zeros(len(batch), longest)
    """
    main = f"""
        {"import torch.distributed as dist" if group else ""}
        from pad import Pad
        from torch.utils.data import DataLoader

        def load(data, n):
            {group or "pass"}
            return DataLoader(data, batch_size=4, collate_fn={made})
    """
    (tmp_path / "pad.py").write_text(textwrap.dedent(pad).lstrip())
    (tmp_path / "main.py").write_text(textwrap.dedent(main).lstrip())
    hits = check_paths([tmp_path], Config(select=("XLA109",))).findings
    expected = [severity] if severity and group else []
    assert [hit.severity.value for hit in hits] == expected
    assert all("rounding it up" in hit.message for hit in hits)


def test_samples_that_may_be_equally_long() -> None:
    assert severities("return torch.cat([sample[0] for sample in batch], dim=0)") == ["info"]


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.stack([s for s in batch])",
        "rows = torch.stack(batch)\nreturn rows[:, :longest] / rows.max()",
        "rows, sizes = zip(*batch)\nmost = math.ceil(max(sizes) / 64) * 64\n"
        "return torch.stack(rows)[:, :most]",
        "return torch.cat([s.unsqueeze(0) for s in batch])",
        "return torch.cat([s[None] for s in batch]), len(batch)",
        "return torch.cat([s[:longest] for s in batch])",
        "most = math.ceil(max(len(s) for s in batch) / 64) * 64\nreturn torch.zeros(len(batch), most)",
        "most = max(len(s) for s in batch)\nmost += -most % 64\nreturn torch.zeros(len(batch), most)",
        "ids = pad_sequence(batch, batch_first=True)\nreturn F.pad(ids, (0, longest - ids.size(1)))",
        "return max(s['label'] for s in batch)",
    ],
)
def test_batches_of_one_length(lines: str) -> None:
    assert severities(lines) == []


@pytest.mark.parametrize(
    "handed", ["pack", "functools.partial(pack, scale=2.0)", "Pack(2)", "Pack(2).of"]
)
def test_a_function_of_another_file_that_a_loader_is_given(tmp_path: Path, handed: str) -> None:
    pack = """
        import torch


        def pack(samples, scale=1.0):
            return torch.cat([s * scale for s in samples]), [len(s) for s in samples]


        class Pack:
            def __init__(self, scale):
                self.scale = scale

            def of(self, samples):
                return torch.cat([s for s in samples]), [len(s) for s in samples]

            def __call__(self, samples):
                return torch.cat([s for s in samples]), [len(s) for s in samples]


        def join(samples):
            return torch.cat([s for s in samples]), [len(s) for s in samples]
    """
    main = f"""
        import functools

        from pack import Pack, pack
        from torch.utils.data import DataLoader

        loader = DataLoader([], batch_size=4, collate_fn={handed})
    """
    (tmp_path / "pack.py").write_text(textwrap.dedent(pack).lstrip())
    (tmp_path / "main.py").write_text(textwrap.dedent(main).lstrip())
    hits = check_paths([tmp_path], Config()).findings
    line = {"Pack(2)": 16, "Pack(2).of": 13}.get(handed, 5)
    assert [hit.line for hit in hits if hit.code == "XLA109"] == [line]


CALLED = """
    import torch


    def NAME(samples):
        return torch.cat([s for s in samples]), [len(s) for s in samples]
"""


@pytest.mark.parametrize(
    ("main", "reported"),
    [
        ("def load(ds):\n    return DataLoader(ds, collate_fn=lambda s: NAME(s))", True),
        ("def collate(samples):\n    return NAME(samples)", True),
        ("def main(model):\n    return Trainer(model, data_collator=NAME)", True),
        ("def merge(parts):\n    return NAME(parts)", False),
        ("rows = NAME([torch.ones(3), torch.ones(4)])", False),
    ],
)
@pytest.mark.parametrize("name", ["join", "collate_results"])
def test_what_calls_a_function_decides_before_its_name(
    tmp_path: Path, main: str, reported: bool, name: str
) -> None:
    head = (
        "import torch\nfrom torch.utils.data import DataLoader\nfrom transformers import Trainer\n"
        f"from pack import {name}\n\n\n"
    )
    (tmp_path / "pack.py").write_text(textwrap.dedent(CALLED).lstrip().replace("NAME", name))
    (tmp_path / "main.py").write_text(head + main.replace("NAME", name) + "\n")
    hits = check_paths([tmp_path], Config()).findings
    assert [hit.line for hit in hits if hit.code == "XLA109"] == [5] * reported


@pytest.mark.parametrize(("name", "reported"), [("join", False), ("collate_results", True)])
def test_the_name_decides_where_nothing_is_seen_to_call_it(name: str, reported: bool) -> None:
    script = textwrap.dedent(CALLED).lstrip().replace("NAME", name)
    hits = check_source(parse(script.encode(), Path("data.py")), Config())
    assert [hit.line for hit in hits if hit.code == "XLA109"] == [5] * reported


@pytest.mark.parametrize(
    "lines",
    [
        "return {'indices': batch.masks.flatten().nonzero().flatten()}",
        "masks = torch.rand(4, 8) < 0.4\nindices = masks.nonzero()\nreturn {'x': batch, 'at': indices}",
        "indices = torch.nonzero(torch.rand(8) < 0.5)\nreturn indices",
        "at = torch.argwhere(batch[0] > 0)\nreturn batch, at",
        "out = {}\nout['kept'] = torch.masked_select(batch[0], batch[1])\nreturn out",
        "return torch.rand(8), torch.where(batch[0] > 0)",
    ],
)
def test_indices_of_a_mask_are_of_another_number_in_each_batch(lines: str) -> None:
    assert severities(lines) == ["warning"]


@pytest.mark.parametrize(
    "lines",
    [
        "mask = torch.rand(4, 8) < 0.4\nreturn {'x': torch.stack(batch), 'mask': mask}",
        "n = (torch.rand(8) < 0.4).nonzero()\nreturn {'count': len(n)}",
        "at = batch[0].nonzero()\nrows = torch.zeros(longest)\nrows[: len(at)] = at[:, 0]\nreturn rows",
        "return torch.where(batch[0] > 0, batch[0], 0)",
    ],
)
def test_a_mask_and_a_fixed_number_are_silent(lines: str) -> None:
    assert severities(lines) == []


LARGEST = """
import torch
import torch.nn.functional as F


def largest_of(shapes):
    sizes = shapes[0]
    for shape in shapes[1:]:
        sizes = [max(a, b) for a, b in zip(sizes, shape)]
    return sizes


def rounded(size):
    return [(n + 63) // 64 * 64 for n in size]


def padded(images):
LINES


def collate_fn(batch):
    images = [image for image, _ in batch]
    return padded(HANDED), torch.tensor([label for _, label in batch])
"""
MOST = "most = largest_of([list(image.shape) for image in images])\n"
FILL = "for image, row in zip(images, out):\n    row[: image.shape[0]].copy_(image)\nreturn out"


@pytest.mark.parametrize("handed", ["images", "list(zip(*batch))[0]", "[s[0] for s in batch]"])
@pytest.mark.parametrize(
    "lines",
    [
        MOST + "shape = [len(images)] + most\nout = torch.zeros(shape)\n" + FILL,
        MOST + "n, c, h, w = [len(images)] + most\nout = torch.zeros((n, c, h, w))\n" + FILL,
        MOST + "out = torch.zeros(len(images), *most)\nmask = torch.ones(most)\n" + FILL,
        "most = [max(s) for s in zip(*[image.shape for image in images])]\n"
        "out = torch.zeros([len(images)] + most)\n" + FILL,
        "most = torch.stack([torch.tensor(image.shape) for image in images]).max(0)[0].tolist()\n"
        "out = torch.zeros([len(images)] + most)\n" + FILL,
        MOST + "return [F.pad(x, (0, most[1] - x.shape[1])) for x in images]",
    ],
)
def test_a_batch_of_the_size_of_its_largest_sample(lines: str, handed: str) -> None:
    assert _of_largest(lines, handed) == ["warning"]


@pytest.mark.parametrize(
    "lines",
    [
        MOST + "most = rounded(most)\nout = torch.zeros([len(images)] + most)\n" + FILL,
        "out = torch.zeros([len(images)] + list(images[0].shape))\n" + FILL,
        "out = torch.zeros(len(images), 3, 64, 64)\n" + FILL,
        "return torch.stack([image for image in images])",
    ],
)
def test_a_batch_of_one_of_a_few_sizes(lines: str) -> None:
    assert _of_largest(lines, "images") == []


def _of_largest(lines: str, handed: str) -> list[str]:
    script = LARGEST.replace("LINES", textwrap.indent(lines, "    ")).replace("HANDED", handed)
    hits = check_source(parse(script.encode(), Path("data.py")), Config())
    return [hit.severity.value for hit in hits if hit.code == "XLA109"]


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        ("return tuple(zip(*batch))", ["info"]),
        (
            "batch = list(zip(*batch))\nbatch[0] = torch.stack(batch[0])\nreturn tuple(batch)",
            ["info"],
        ),
        (
            "batch = list(zip(*batch))\nbatch[0] = torch.stack(batch[0])\n"
            "batch[1] = torch.stack(batch[1])\nreturn tuple(batch)",
            [],
        ),
        ("images, labels = zip(*batch)\nreturn torch.stack(images), torch.stack(labels)", []),
    ],
)
def test_lists_that_are_left_as_they_are(lines: str, reported: list[str]) -> None:
    assert severities(lines) == reported


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.stack([x[0] for x in batch]), [x[1] for x in batch]",
        "images, targets = zip(*batch)\nreturn torch.stack(images), targets",
        "images, targets = zip(*batch)\nreturn torch.stack(images), list(targets)",
        "parts = list(zip(*batch))\nreturn torch.stack(parts[0]), parts[1]",
        "boxes = [torch.as_tensor(x['boxes']) for x in batch]\nreturn {'boxes': boxes}",
        "targets = [t for _, t in batch]\nout = (torch.stack([x for x, _ in batch]), targets)\nreturn out",
        "targets = []\nfor x in batch:\n    targets.append(x.boxes)\nreturn dict(targets=targets)",
        "batch = [x for x in batch if x is not None]\nreturn [x['boxes'].float() for x in batch]",
    ],
)
def test_a_list_beside_a_batch(lines: str) -> None:
    assert severities(lines) == ["info"]


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.stack([x[0] for x in batch]), torch.tensor([x[1] for x in batch])",
        "return torch.stack([x[0] for x in batch]), [x['file_name'] for x in batch]",
        "images, paths = zip(*batch)\nreturn torch.stack(images), paths",
        "return torch.stack([x[0] for x in batch]), [len(x[1]) for x in batch]",
        "y = [x[1] for x in batch]\ny = torch.stack(y)\nreturn y",
        "return [F.pad(x[1], (0, longest - len(x[1]))) for x in batch]",
        "return torch.stack([x[0] for x in batch]), [x[1][:longest] for x in batch]",
    ],
)
def test_no_list_of_tensors_beside_a_batch(lines: str) -> None:
    assert severities(lines) == []


@pytest.mark.parametrize(("imported", "reported"), [("cut", ["data.py"]), ("other", [])])
def test_a_script_alone_is_checked_with_the_batches_that_another_file_makes(
    tmp_path: Path, imported: str, reported: list[str]
) -> None:
    (tmp_path / "data.py").write_text(
        "import torch\n\n\ndef cut(samples):\n    rows, sizes = zip(*samples)\n"
        "    return torch.stack(rows)[:, : max(sizes)]\n\n\ndef other(samples):\n"
        "    return torch.stack(samples)\n"
    )
    (tmp_path / "train.py").write_text(
        f"from data import {imported}\nfrom torch.utils.data import DataLoader\n\n"
        f"loader = DataLoader([], 8, collate_fn={imported}, drop_last=True)\n"
    )
    done = check_paths([tmp_path / "train.py"], Config())
    assert [f.path.name for f in done.findings if f.code == "XLA109"] == reported
    assert done.imported == 1


FILLED = """
import torch
import torch.nn.functional as F


def pad_list(tensors):
    longest = max(t.shape[0] for t in tensors)
    for i in range(len(tensors)):
        tensors[i] = F.pad(tensors[i], (0, 0, 0, longest - tensors[i].shape[0]))
    return tensors


def together(samples):
    target = Target(points=[])
    for sample in samples:
        target.points.append(sample["points"])
    return torch.stack(pad_list(target.points))


def collate_chunks(batch, n):
    chunks = [batch[i::n] for i in range(n)]
    return [together(chunk) for chunk in chunks]


def longest_of(tensors):
    return torch.zeros(max(t.shape[0] for t in tensors))
"""


def test_a_list_that_is_filled_from_chunks_of_the_samples() -> None:
    hits = check_source(parse(FILLED.encode(), Path("data.py")), Config())
    assert [(hit.code, hit.line) for hit in hits] == [("XLA109", 7)]
