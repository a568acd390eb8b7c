"""Checkpoints that real programs write themselves: are they read, and as with the class at hand?

    python benchmarks/written_checkpoints.py FOLDER [PROGRAM...]

Each program below builds small models of its own and saves them by its own code, in a temporary folder;
nothing is downloaded. Packages are found as Python finds them (PYTHONPATH), checkouts as FOLDER/OWNER+NAME.
What is not there is passed over. Each file is planned without the class of its model, then with it: a key
whose layout differs is a wrong guess, unless it was refused as ambiguous. A file that has several models is
planned for each.

Prints a row for each program; exit code 1 where a guess is wrong or a file is refused.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import pickle
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import real_checkpoints
from history import append


class Written(NamedTuple):
    """A file: its path, the model that is in it, and the entry that is meant."""

    path: Path
    model: Any
    key: str | None = None


def ultralytics(folder: Path, _: Path) -> Iterator[Written]:
    """Whole modules, as YOLO.save writes them; and what its trainer leaves after an epoch."""
    import os

    os.environ |= {"YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}
    from ultralytics import YOLO

    for name in (
        *("yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov9t", "yolov10n", "yolo11n"),
        *(
            "yolo12n",
            "yolov8n-seg",
            "yolov8n-cls",
            "yolov8n-pose",
            "yolov8n-obb",
            "yolov8n-worldv2",
        ),
    ):
        model = YOLO(f"{name}.yaml")
        model.save(folder / f"{name}.pt")
        yield Written(folder / f"{name}.pt", model.model)
    import numpy as np
    from PIL import Image

    for part in ("images", "labels"):
        (folder / "data" / part).mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(4):
        image = Image.fromarray(random.integers(0, 255, (64, 64, 3), np.uint8))
        image.save(folder / f"data/images/{number}.jpg")
        (folder / f"data/labels/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}/data\ntrain: images\nval: images\nnames: {{0: thing}}\n")
    trained = YOLO("yolov8n.yaml")
    trained.train(
        data=data, epochs=2, imgsz=64, batch=2, workers=0, device="cpu", project=folder,
        name="run", plots=False, val=False, amp=False, save_period=1,
    )  # fmt: skip
    for kept in ("last", "epoch0"):  # the last one without its optimizer, the other one with it
        yield Written(folder / f"run/weights/{kept}.pt", trained.model)


def yolov5(folder: Path, checkout: Path) -> Iterator[Written]:
    """The dict of yolov5's train.py: two whole modules and all options."""
    from datetime import datetime

    import torch

    sys.path.insert(0, str(checkout))
    from models.yolo import Model  # type: ignore[import-not-found]

    for name in ("yolov5n", "segment/yolov5n-seg"):
        model = Model(f"{checkout}/models/{name}.yaml", ch=3, nc=80)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
        path = folder / f"{name.replace('/', '-')}.pt"
        torch.save(
            {
                "epoch": 3,
                "best_fitness": __import__("numpy").array([0.3]),
                "model": copy.deepcopy(model).half(),
                "ema": copy.deepcopy(model).half(),
                "updates": 12,
                "optimizer": optimizer.state_dict(),
                "opt": vars(
                    argparse.Namespace(hyp={"lr0": 0.01}, save_dir=str(folder), image_weights=False)
                ),
                "git": {"remote": None, "branch": None, "commit": None},
                "date": datetime.now().isoformat(),
            },
            path,
        )
        for key in ("model", "ema"):
            yield Written(path, model, key)


def dit(folder: Path, checkout: Path) -> Iterator[Written]:
    """The dict of DiT's train.py: the model, its average, the optimizer and its args."""
    import torch

    sys.path.insert(0, str(checkout))
    from models import DiT  # type: ignore[import-not-found]

    model = DiT(input_size=8, patch_size=2, hidden_size=64, depth=2, num_heads=4, num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    model(torch.randn(2, 4, 8, 8), torch.tensor([1, 2]), torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    args = argparse.Namespace(data_path="data", results_dir="results", model="DiT-XL/2", vae="ema")
    path = folder / "0050000.pt"
    torch.save(
        {
            "model": model.state_dict(),
            "ema": copy.deepcopy(model).state_dict(),
            "opt": optimizer.state_dict(),
            "args": args,
        },
        path,
    )
    for key in ("model", "ema"):
        yield Written(path, model, key)


def detectron2(folder: Path, checkout: Path) -> Iterator[Written]:
    """What its checkpointer (fvcore's) writes, a model of its zoo's form, and its yacs config beside."""
    import torch

    sys.path.insert(0, str(checkout))
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    for name in (
        "COCO-Detection/retinanet_R_50_FPN_1x",
        "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x",
    ):
        config = get_cfg()
        config.merge_from_file(f"{checkout}/configs/{name}.yaml")
        config.MODEL.DEVICE, config.MODEL.WEIGHTS = "cpu", ""
        config.MODEL.RESNETS.DEPTH, config.MODEL.RESNETS.RES2_OUT_CHANNELS = 18, 64
        model = build_model(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        saved = DetectionCheckpointer(model, str(folder), optimizer=optimizer)
        called = name.rpartition("/")[2]
        saved.save(called, iteration=9, cfg=config)
        yield Written(folder / f"{called}.pth", model)
        zoo = folder / f"{called}.pkl"  # as its tools write those of the model zoo
        arrays = {key: value.numpy() for key, value in model.state_dict().items()}
        content = {"model": arrays, "__author__": "Detectron2", "matching_heuristics": True}
        zoo.write_bytes(pickle.dumps(content))
        yield Written(zoo, model)


def lightning(folder: Path, _: Path) -> Iterator[Written]:
    """What Trainer.save_checkpoint writes, with hyper-parameters of OmegaConf."""
    import pytorch_lightning
    import torch
    from omegaconf import OmegaConf

    class Net(pytorch_lightning.LightningModule):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3),
                torch.nn.BatchNorm2d(8),
                torch.nn.ReLU(),
                torch.nn.Conv2d(8, 4, 1),
            )

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.config.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    model = Net(OmegaConf.create({"lr": 0.1, "layers": [1, 2], "root": "${lr}"}))
    trainer = pytorch_lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=folder,
        callbacks=[pytorch_lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=1)],
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 3, 8, 8), 4))
    trainer.save_checkpoint(folder / "net.ckpt")
    yield Written(folder / "net.ckpt", model)
    trainer.save_checkpoint(folder / "weights.ckpt", weights_only=True)
    yield Written(folder / "weights.ckpt", model)


def mmengine(folder: Path, _: Path) -> Iterator[Written]:
    """What its runner's save_checkpoint writes: meta, message hub, schedulers."""
    import torch
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Net(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8))
            self.head = torch.nn.Linear(8, 2)

        def forward(self, inputs: Any, mode: str = "tensor") -> Any:
            return {"loss": self.head(self.backbone(inputs).mean((2, 3))).square().mean()}

    model = Net()
    runner = Runner(
        model, str(folder), train_cfg={"by_epoch": True, "max_epochs": 1}, experiment_name="net",
        train_dataloader={
            "batch_size": 2, "dataset": [torch.randn(3, 8, 8) for _ in range(4)],
            "sampler": {"type": "DefaultSampler", "shuffle": True}, "collate_fn": {"type": "default_collate"},
        },
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
        param_scheduler={"type": "MultiStepLR", "milestones": [1]}, log_level="ERROR",
    )  # fmt: skip
    model.data_preprocessor.cast_data = lambda data: {"inputs": data}
    runner.train()
    yield Written(folder / "epoch_1.pth", model)


def timm(folder: Path, _: Path) -> Iterator[Written]:
    """What its CheckpointSaver writes, and whole models."""
    import timm
    import torch
    from timm.utils import CheckpointSaver, ModelEmaV2

    names = (
        *(
            "resnet18",
            "vit_tiny_patch16_224",
            "convnext_atto",
            "efficientnet_lite0",
            "mobilenetv3_small_050",
        ),
        *(
            "swin_tiny_patch4_window7_224",
            "deit_tiny_distilled_patch16_224",
            "regnetx_002",
            "mixer_s32_224",
        ),
        *("xcit_nano_12_p16_224", "poolformer_s12", "maxvit_pico_rw_256", "beit_base_patch16_224"),
    )
    for name in names:
        model = timm.create_model(name, depth=2) if "beit" in name else timm.create_model(name)
        torch.save(model, folder / f"{name}.pt")
        yield Written(folder / f"{name}.pt", model)
    model = timm.create_model("resnet18")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = ModelEmaV2(model)
    args = argparse.Namespace(model="resnet18", mean=(0.5,), amp=False, data_dir=Path("data"))
    saver = CheckpointSaver(
        model, optimizer, args, average, checkpoint_dir=str(folder), max_history=2
    )
    saver.save_checkpoint(1, metric=0.5)
    for key in ("state_dict", "state_dict_ema"):
        yield Written(folder / "last.pth.tar", model, key)


def torchvision(folder: Path, _: Path) -> Iterator[Written]:
    """Whole models of it, and TorchScript of one."""
    import torch
    import torchvision.models as models

    for name in (
        *(
            "alexnet",
            "vgg11_bn",
            "resnet18",
            "googlenet",
            "densenet121",
            "mobilenet_v2",
            "swin_t",
            "vit_b_32",
        ),
        *("maxvit_t", "convnext_tiny", "efficientnet_v2_s", "shufflenet_v2_x0_5", "mnasnet0_5"),
        *("detection.fasterrcnn_mobilenet_v3_large_fpn", "detection.ssdlite320_mobilenet_v3_large"),
        *("segmentation.deeplabv3_mobilenet_v3_large", "segmentation.lraspp_mobilenet_v3_large"),
        *("video.r3d_18", "optical_flow.raft_small"),
    ):
        module, _, factory = name.rpartition(".")
        given = {"weights_backbone": None} if module in ("detection", "segmentation") else {}
        if name == "googlenet":
            given = {"init_weights": False}
        model = getattr(getattr(models, module) if module else models, factory)(**given)
        torch.save(model, folder / f"{name}.pt")
        yield Written(folder / f"{name}.pt", model)
        (folder / f"{name}.pt").unlink()
        if name == "resnet18":
            torch.jit.script(model).save(folder / "script.pt")
            yield Written(folder / "script.pt", model)


Write = Callable[[Path, Path], Iterator[Written]]
# Program → its checkout, if it is no package, and what writes its files.
PROGRAMS: dict[str, tuple[str, Write]] = {
    "ultralytics": ("", ultralytics),
    "ultralytics/yolov5": ("ultralytics+yolov5", yolov5),
    "facebookresearch/DiT": ("facebookresearch+DiT", dit),
    "facebookresearch/detectron2": ("facebookresearch+detectron2", detectron2),
    "pytorch_lightning": ("", lightning),
    "mmengine": ("", mmengine),
    "timm": ("", timm),
    "torchvision": ("", torchvision),
}
COLUMNS = ("files", "read", "modules", "keys", "equal", "paths", "flattened", "asked", "wrong")


def examine(program: str, place: str) -> tuple[Counter[str], list[str]]:
    """What became of a program's files, and what is wrong."""
    warnings.simplefilter("ignore")
    from converters.errors import ConversionError
    from converters.mapping import Outcome
    from converters.planning import planned
    from converters.request import PlanOptions

    counts: Counter[str] = Counter()
    notes = []
    with tempfile.TemporaryDirectory() as made:
        for path, model, key in PROGRAMS[program][1](Path(made), Path(place)):
            counts["files"] += 1
            name = path.name + (f" --key {key}" if key else "")
            try:
                ours = planned(path, PlanOptions(key=key))
            except ConversionError as error:
                notes.append(f"{name} is refused: {error}")
                continue
            counts["read"] += 1
            counts["modules"] += bool(ours.checkpoint.modules)
            counts["keys"] += len(ours.plan.rows)
            counts["asked"] += sum(row.outcome is Outcome.REFUSED for row in ours.plan.rows)
            truth = planned(path, PlanOptions(key=key, model=model.float()))
            same, wrong = real_checkpoints.compared(ours, truth)
            counts += same
            notes += [f"{name}: {line}" for line in wrong]
    return counts, notes


def main() -> int:
    """Run, and print a row for each program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    given = parser.parse_args()
    bad = False
    print("| program | " + " | ".join(COLUMNS) + " |")
    for program in given.programs or PROGRAMS:
        place = given.folder.resolve() / PROGRAMS[program][0]
        # A process for each: checkouts have modules of the same names ("models", "utils").
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                counts, notes = pool.apply(examine, (program, str(place)))
            except ImportError as error:
                print(f"  {program}: {error}", file=sys.stderr)
                continue
        for note in notes:
            print(f"  {program}: {note}", file=sys.stderr)
        print(
            f"| {program} | " + " | ".join(str(counts[name]) for name in COLUMNS) + " |", flush=True
        )
        figures = {real_checkpoints.TITLES.get(name, name): counts[name] for name in COLUMNS}
        append("written-checkpoints", {"program": program} | figures)
        bad |= bool(counts["wrong"]) or counts["read"] < counts["files"]
    return bad


if __name__ == "__main__":
    sys.exit(main())
