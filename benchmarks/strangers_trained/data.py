"""Tiny data of our own for the projects: made at random, from fixed seeds."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import wave
from pathlib import Path

SIDE = 72


def images(project: Path, folder: Path) -> None:
    """Make JPEG files as ImageFolder wants them: 2 classes, 8 images each to train, 4 to validate."""
    draw = random.Random(0)
    for split, count in (("train", 8), ("val", 4)):
        for label in ("cat", "dog"):
            for number in range(count):
                _image(draw, folder / "images" / split / label / f"{label}_{number}.jpg", SIDE)


def small_images(project: Path, folder: Path) -> None:
    """Make PNG files of 16 x 16 in one folder."""
    draw = random.Random(0)
    for number in range(64):
        _image(draw, folder / "images" / f"{number}.png", 16)


def small_images_and_edit(project: Path, folder: Path) -> None:
    """Make the PNG files, and edit the line that XLA309 names: all replicas report what rank 0 alone did."""
    small_images(project, folder)
    statistics = project / "torch_utils" / "training_stats.py"
    source = statistics.read_text()
    named = "report(name, value if _rank == 0 else [])"
    assert source.count(named) == 1
    statistics.write_text(source.replace(named, "report(name, value)"))


def tokens(project: Path, folder: Path) -> None:
    """Write random tokens where llama2.c looks for a vocabulary of 64."""
    draw = random.Random(0)
    shards = project / "data" / "tok64"
    shards.mkdir(parents=True)
    for number in range(2):
        drawn = [draw.randrange(64) for _ in range(4096)]
        (shards / f"data{number:02}.bin").write_bytes(struct.pack(f"<{len(drawn)}H", *drawn))


def sounds(project: Path, folder: Path) -> None:
    """Make WAV files of noise, the lists of them, and a configuration of hifi-gan for a small generator."""
    draw = random.Random(0)
    names = [f"sound{number}" for number in range(5)]
    for name in names:
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            heights = [int(draw.gauss(0, 4000)) for _ in range(4096)]
            clipped = [max(-32000, min(32000, height)) for height in heights]
            file.writeframes(struct.pack(f"<{len(clipped)}h", *clipped))
    (folder / "training.txt").write_text("".join(f"{name}|\n" for name in names[:4]))
    (folder / "validation.txt").write_text("".join(f"{name}|\n" for name in names[4:]))
    small = json.loads((project / "config_v3.json").read_text()) | {
        "batch_size": 4,
        "upsample_rates": [8, 8],
        "upsample_kernel_sizes": [16, 16],
        "upsample_initial_channel": 16,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 2]],
        "segment_size": 1024,
        "num_mels": 80,
        "n_fft": 256,
        "hop_size": 64,
        "win_size": 256,
        "sampling_rate": 8000,
        "fmax": 4000,
        "num_workers": 0,
    }
    (folder / "config.json").write_text(json.dumps(small))


def boxes(project: Path, folder: Path) -> None:
    """Make images with boxes in the format of COCO: 8 to train, 4 to validate.

    Two boxes each: DETR's shapes follow from their number, and replicas with other shapes part.
    """
    draw = random.Random(0)
    for split, count in (("train2017", 8), ("val2017", 4)):
        found = []
        for number in range(count):
            _image(draw, folder / split / f"{number:012}.jpg", SIDE)
            for _ in range(2):
                x, y, width, height = (draw.randrange(8, 30) for _ in range(4))
                found.append(
                    {
                        "id": len(found) + 1,
                        "image_id": number,
                        "category_id": draw.randrange(1, 5),
                        "bbox": [x, y, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                        "segmentation": [[x, y, x + width, y, x + width, y + height]],
                    }
                )
        told = {
            "info": {},
            "images": [
                {"id": number, "file_name": f"{number:012}.jpg", "height": SIDE, "width": SIDE}
                for number in range(count)
            ],
            "categories": [{"id": number, "name": f"thing{number}"} for number in range(1, 5)],
            "annotations": found,
        }
        file = folder / "annotations" / f"instances_{split}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(told))


def images_and_vae(project: Path, folder: Path) -> None:
    """Make images, and the checkpoint of a VAE that VAR would download: initialized, not trained.

    VAR asks git for the commit of its folder.
    """
    images(project, folder)
    identity = ("-c", "user.name=n", "-c", "user.email=n@localhost")
    for command in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "copied")):
        subprocess.run(["git", *command], cwd=project, check=True)
    program = (
        "import torch; torch.manual_seed(0)\n"
        "from models import VQVAE\n"
        "vae = VQVAE(vocab_size=32, z_channels=8, ch=32, test_mode=True, share_quant_resi=4, "
        "v_patch_nums=(1, 2, 3))\n"
        "torch.save(vae.state_dict(), 'vae_ch160v4096z32.pth')\n"
    )
    variables = {
        **os.environ,
        "PYTHONPATH": f"{project}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    subprocess.run([sys.executable, "-c", program], cwd=project, env=variables, check=True)


def _image(draw: random.Random, path: Path, side: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (side, side), draw.randbytes(side * side * 3)).save(path)
