"""A device that comes to the training loop by a way of its own: the loop gets its step, or a finding.

Small projects of two or three files, and single scripts. In each the file with the loop does not name a
GPU; some other place does.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import FolderRewrite, rewrite_folder
from migrate.rewrite.pipeline import rewrite, rewrite_source
from migrate.rewrite.rules.step.inputs import NOT_MOVED, NOT_SHOWN
from migrate.rewrite.rules.step.steps import UNSEEN
from migrate.syntax.source import parse

LOOP = """
        for inputs, labels in loader:
            inputs, labels = inputs.to({device}), labels.to({device})
            loss = loss_fn(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


TRAIN = "\n\n\ndef train(model, loader, optimizer, loss_fn):"


def loop(device: str, depth: int) -> str:
    """Return a training loop over batches that it moves to `device`."""
    return textwrap.indent(textwrap.dedent(LOOP.format(device=device)), "    " * depth)


def written(folder: Path, files: dict[str, str]) -> Path:
    """Write the files and return the folder."""
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).strip() + "\n")
    return folder


def after(done: FolderRewrite, name: str) -> str:
    """Return what became of the file `name`; none of the folder may have a problem."""
    assert not done.problems, [file.problem for file in done.problems]
    return next(file.after.decode() for file in done.files if file.name == Path(name))


PARAMETER = {
    "main.py": """
        import torch
        from engine import train_one_epoch

        device = torch.device("cuda")
        model = torch.nn.Linear(2, 2)
        model.to(device)
        for epoch in range(3):
            train_one_epoch(model, loader, optimizer, loss_fn, device)
    """,
    "engine.py": "import torch\n\n\ndef train_one_epoch(model, loader, optimizer, loss_fn, device):"
    + loop("device", 1),
}
RETURNED = {
    "where.py": """
        import torch


        def pick():
            if torch.cuda.is_available():
                return torch.device("cuda")
            return torch.device("cpu")
    """,
    "train.py": "import torch\nfrom where import pick\n\nwhere = pick()\nmodel = Net().to(where)\n"
    + loop("where", 0),
}
RETURNED_WITH_OTHERS = {
    "setup.py": """
        import os
        import torch


        def init(kind):
            rank = int(os.environ.get("RANK", 0))
            device = torch.device("cuda", rank) if kind == "cuda" else torch.device(kind)
            return rank, 1, device
    """,
    "train.py": "import torch\nfrom setup import init\n\nrank, world, device = init('cuda')\n"
    + "model = Net().to(device)\n"
    + loop("device", 0),
}
GLOBAL = {
    "state.py": """
        import torch

        device = None


        def setup():
            global device
            device = torch.device("cuda")
    """,
    "train.py": "import state" + TRAIN + "\n    state.setup()\n" + loop("state.device", 1),
}
ATTRIBUTE = {
    "base.py": """
        import torch


        class Worker:
            def __init__(self):
                self.where = torch.device("cuda")
    """,
    "train.py": "from base import Worker"
    + TRAIN
    + "\n    worker = Worker()\n"
    + loop("worker.where", 1),
}
DATACLASS = {
    "settings.py": """
        from dataclasses import dataclass


        @dataclass
        class Settings:
            rate: float = 0.1
            device: str = "cuda"
    """,
    "train.py": "from settings import Settings"
    + TRAIN.replace("(", "(settings: Settings, ")
    + loop("settings.device", 1),
}
DATACLASS_GIVEN = {
    "settings.py": """
        from dataclasses import dataclass


        @dataclass
        class Settings:
            device: str
            rate: float = 0.1
    """,
    "main.py": """
        from settings import Settings
        from train import train

        train(Settings("cuda"), model, loader, optimizer, loss_fn)
    """,
    "train.py": "def train(settings, model, loader, optimizer, loss_fn):"
    + loop("settings.device", 1),
}
NAMESPACE = {
    "options.py": """
        import argparse


        def parse():
            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda")
            parser.add_argument("--rate", type=float, default=0.1)
            return parser.parse_args()
    """,
    "train.py": "from options import parse"
    + TRAIN
    + "\n    opt = parse()\n"
    + loop("opt.device", 1),
}
NAMESPACE_PASSED = {
    "main.py": """
        import argparse
        from engine import train

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        args = parser.parse_args()
        train(args, model, loader, optimizer, loss_fn)
    """,
    "engine.py": "def train(cfg, model, loader, optimizer, loss_fn):" + loop("cfg.device", 1),
}
CLOSURE = {
    "where.py": "import torch\n\n\ndef best():\n    return torch.device('cuda')\n",
    "train.py": "from where import best"
    + TRAIN.replace("train", "make")
    + "\n    spot = best()\n\n    def epoch():"
    + loop("spot", 2)
    + "\n    return epoch\n",
}
STAR = {
    "common.py": "import torch\n\nDEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n",
    "train.py": "from common import *" + TRAIN + loop("DEVICE", 1),
}
CONFIG = {
    "config.py": "rate = 0.1\ndevice = 'cuda'\n",
    "train.py": "import config as C" + TRAIN + loop("C.device", 1),
}
FACTORY = {
    "factory.py": """
        import torch


        class Runtime:
            def __init__(self, device):
                self.device = device


        def make_runtime():
            return Runtime(torch.device("cuda"))
    """,
    "train.py": "from factory import make_runtime"
    + TRAIN
    + "\n    run = make_runtime()\n"
    + loop("run.device", 1),
}
PARTIAL = {
    "main.py": """
        import functools
        import torch
        from engine import train

        fit = functools.partial(train, where=torch.device("cuda"))
        fit(model, loader, optimizer, loss_fn)
    """,
    "engine.py": "def train(model, loader, optimizer, loss_fn, where):" + loop("where", 1),
}
BASE = {
    "base.py": """
        import torch


        class Base:
            def __init__(self, model):
                self.gpu = torch.device("cuda")
                self.model = model
    """,
    "train.py": "from base import Base\n\n\nclass Trainer(Base):"
    + "\n    def epoch(self, model, loader, optimizer, loss_fn):"
    + loop("self.gpu", 2),
}
DICTIONARY = {
    "config.py": "CONFIG = {'rate': 0.1, 'device': 'cuda'}\n",
    "train.py": "from config import CONFIG" + TRAIN + loop("CONFIG['device']", 1),
}
INDEX = {
    "main.py": """
        import os
        from engine import train

        local = int(os.environ["LOCAL_RANK"])
        train(model.cuda(local), loader, optimizer, loss_fn, local)
    """,
    "engine.py": "def train(model, loader, optimizer, loss_fn, where):" + loop("where", 1),
}
# Who makes the trainer is not to be seen: the name alone says what is given as a device.
INDEX_NAMED = {
    "shared.py": """
        import torch


        def moved(batch, place):
            return {name: value.to(place) for name, value in batch.items()}


        def gathered(values, rank):
            return torch.empty_like(values).to(rank)
    """,
    "main.py": """
        import trainers

        getattr(trainers, config.trainer)(model).train(loader)
    """,
    "train.py": """
        import torch
        from shared import gathered, moved


        class Trainer:
            def __init__(self, model, rank=0):
                self.model = model
                self.rank = rank

            def train(self, loader):
                torch.manual_seed(0)
                torch.save({}, "first.pt")
                for batch in loader:
                    batch = moved(batch, self.rank)
                    loss = self.model(batch)
                    loss.backward()
                    self.optimizer.step()
                    self.seen = gathered(loss, self.rank)
    """,
}

PROJECTS = {
    "parameter": (PARAMETER, "engine.py"),
    "returned": (RETURNED, "train.py"),
    "returned with others": (RETURNED_WITH_OTHERS, "train.py"),
    "global": (GLOBAL, "train.py"),
    "attribute": (ATTRIBUTE, "train.py"),
    "dataclass field": (DATACLASS, "train.py"),
    "dataclass field that is given": (DATACLASS_GIVEN, "train.py"),
    "namespace of argparse": (NAMESPACE, "train.py"),
    "namespace that is passed": (NAMESPACE_PASSED, "engine.py"),
    "closure": (CLOSURE, "train.py"),
    "star import": (STAR, "train.py"),
    "module of settings": (CONFIG, "train.py"),
    "factory": (FACTORY, "train.py"),
    "partial": (PARTIAL, "engine.py"),
    "base class": (BASE, "train.py"),
    "dictionary": (DICTIONARY, "train.py"),
    "index": (INDEX, "engine.py"),
    "index by its name": (INDEX_NAMED, "train.py"),
}


@pytest.mark.parametrize(("files", "name"), PROJECTS.values(), ids=PROJECTS)
def test_the_loop_of_a_project_gets_its_step(
    tmp_path: Path, files: dict[str, str], name: str
) -> None:
    done = rewrite_folder(written(tmp_path, files), processes=1)
    text = after(done, name)
    assert "with torch_xla.step():" in text
    assert "cuda" not in "".join(after(done, str(file.name)) for file in done.changed)


def test_a_file_whose_loop_trains_loads_for_the_device(tmp_path: Path) -> None:
    """It names no device itself: what the project says of its loop is what counts, before and after."""
    load = "\n\n\ndef resume(path):\n    return torch.load(path)\n"
    files = PARAMETER | {"engine.py": "import torch\n\n" + PARAMETER["engine.py"] + load}
    done = rewrite_folder(written(tmp_path, files), processes=1)
    assert not [file.problem for file in done.files if file.problem]
    assert "torch.load(path, map_location='cpu')" in after(done, "engine.py").replace('"', "'")


SCRIPTS = {
    "parameter": "import torch\n\n\ndef train(model, loader, optimizer, loss_fn, device):"
    + loop("device", 1)
    + "\n\ndef main(gpu):\n    run = Runner(torch.device('cuda'))\n    train(m, l, o, f, run.where)\n"
    + "\n\nclass Runner:\n    def __init__(self, where):\n        self.where = where\n",
    "returned": "import torch\n\n\ndef pick():"
    + "\n    return torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
    + "\n\ndef train(model, loader, optimizer, loss_fn):\n    where = pick()\n"
    + loop("where", 1),
    "global": "import torch\n\n\ndef setup():\n    global where\n    where = torch.device('cuda')\n"
    + "\n\ndef train(model, loader, optimizer, loss_fn):"
    + loop("where", 1),
    "method": "import torch\n\n\nclass Trainer:\n    def where(self):\n        return torch.device('cuda')\n"
    + "\n    def train(self, model, loader, optimizer, loss_fn):\n        spot = self.where()\n"
    + loop("spot", 2),
    "class attribute": "class Trainer:\n    spot = 'cuda'\n"
    + "\n    def train(self, model, loader, optimizer, loss_fn):\n"
    + loop("self.spot", 2),
    "partial": "from functools import partial\n\n\ndef train(model, loader, optimizer, loss_fn, spot):"
    + loop("spot", 1)
    + "\n\nfit = partial(train, spot='cuda')\nfit(m, l, o, f)\n",
    "nonlocal": "import torch\n\n\ndef make(model, loader, optimizer, loss_fn):\n    spot = None\n"
    + "\n    def setup():\n        nonlocal spot\n        spot = torch.device('cuda')\n\n    def epoch():\n"
    + loop("spot", 2)
    + "\n    return setup, epoch\n",
}


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_the_loop_of_a_script_gets_its_step(tmp_path: Path, source: str) -> None:
    written(tmp_path, {"train.py": source})
    text = rewrite(tmp_path / "train.py").data.decode()
    assert "with torch_xla.step():" in text
    assert "cuda" not in text


def test_names_that_a_star_brings_are_known(tmp_path: Path) -> None:
    files = {
        "common.py": """
            import time
            import torch
            import torch.distributed as dist
            from torch import nn


            def idle():
                torch.cuda.synchronize()
        """,
        "more.py": "from common import *\n",
        "train.py": """
            from more import *


            def train(model, loader, optimizer):
                model.cuda()
                for x in loader:
                    loss = model(x.cuda()).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                print(torch.cuda.memory_summary(), dist.get_backend())


            def main():
                dist.init_process_group("nccl")
                train(nn.Linear(2, 2), [], None)
        """,
    }
    done = rewrite_folder(written(tmp_path, files), processes=1)
    text = after(done, "train.py")
    assert "with torch_xla.step():" in text
    assert "torch.cuda.synchronize" not in text
    assert "torch.cuda.empty_cache" not in text
    assert "nccl" not in text
    notes = next(file for file in done.files if file.name == Path("train.py")).findings
    assert any("memory_summary" in note.message for note in notes)
    assert "import torch" in after(done, "common.py")  # train.py takes it from there


def test_a_star_of_torch_itself_is_known(tmp_path: Path) -> None:
    script = """
        from torch import *


        def train(model, loader, optimizer):
            for x in loader:
                loss = model(x.to(device("cuda"))).mean()
                loss.backward()
                optimizer.step()
            cuda.synchronize()
            print(len(loader))
    """
    written(tmp_path, {"train.py": script})
    text = rewrite(tmp_path / "train.py").data.decode()
    assert "with torch_xla.step():" in text
    assert "cuda" not in text


def test_a_device_from_a_helper_seeds_xla_too_and_stands(tmp_path: Path) -> None:
    files = {
        "where.py": "import torch\n\n\ndef pick():\n    return torch.device('cuda')\n",
        "train.py": """
            import torch
            from where import pick

            torch.manual_seed(0)
            device = pick()
            model = torch.nn.Linear(2, 2).to(device)
        """,
    }
    done = rewrite_folder(written(tmp_path, files), processes=1)
    text = after(done, "train.py")
    assert "torch_xla.manual_seed(0)" in text
    assert "device = pick()" in text


def findings(done: FolderRewrite, name: str) -> list[str]:
    """Return what is said of the steps of the file `name`."""
    file = next(file for file in done.files if file.name == Path(name))
    return [note.message for note in file.findings if note.rule == "step"]


UNDECIDED = {
    "an object of the outside": "from outside import settings" + TRAIN + loop("settings.device", 1),
    "a parameter that nobody passes": TRAIN.replace("):", ", device):") + loop("device", 1),
    "an option that is the CPU by default": "import argparse\n\nparser = argparse.ArgumentParser()"
    + "\nparser.add_argument('--device', default='cpu')\nargs = parser.parse_args()\n"
    + loop("args.device", 0),
}


@pytest.mark.parametrize("source", UNDECIDED.values(), ids=UNDECIDED)
def test_what_cannot_be_decided_is_said_and_a_mark_answers_it(tmp_path: Path, source: str) -> None:
    written(tmp_path, {"train.py": source})
    done = rewrite_folder(tmp_path, processes=1)
    assert "torch_xla.step()" not in after(done, "train.py")
    assert UNSEEN in findings(done, "train.py")
    marked = source.replace(
        "for inputs, labels in loader:", "for inputs, labels in loader:  # migrate: step"
    )
    written(tmp_path, {"train.py": marked})
    assert "with torch_xla.step():" in after(rewrite_folder(tmp_path, processes=1), "train.py")


ON_THE_CPU = {
    "nothing moves": "import torch"
    + TRAIN.replace("):", "):\n    torch.set_num_threads(2)")
    + "\n"
    + loop("'cpu'", 1),
    "the device is the CPU": "import torch\n\ndevice = torch.device('cpu')\n" + loop("device", 0),
    "only the type changes": "import torch" + TRAIN + loop("torch.float32", 1),
}


@pytest.mark.parametrize("source", ON_THE_CPU.values(), ids=ON_THE_CPU)
def test_a_loop_that_is_seen_to_train_on_the_cpu_stays(tmp_path: Path, source: str) -> None:
    written(tmp_path, {"train.py": source})
    done = rewrite_folder(tmp_path, processes=1)
    assert not done.changed
    assert not findings(done, "train.py")


OPTIMIZERS = {
    "a list of them": "for one in optimizers:\n                one.step()",
    "with their schedulers": "for one, two in zip(optimizers, schedulers):"
    "\n                one.step()\n                two.step()",
    "a dictionary": "for one in optimizers.values():\n                one.step()",
}


@pytest.mark.parametrize("steps", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_several_optimizers_are_one_step(tmp_path: Path, steps: str) -> None:
    script = f"""
        def train(model, loader, optimizers, schedulers):
            model.cuda()
            for x in loader:
                loss = model(x.cuda()).mean()
                loss.backward()
                {textwrap.dedent(steps).replace("                ", "    " * 5)}
    """
    written(tmp_path, {"train.py": script})
    text = rewrite(tmp_path / "train.py").data.decode()
    assert text.count("with torch_xla.step():") == 1
    assert text.index("with torch_xla.step():") < text.index("loss.backward()")


def test_schedulers_are_no_optimizers(tmp_path: Path) -> None:
    script = """
        def update(model, schedulers):
            model.cuda()
            for one in schedulers:
                one.step()
    """
    written(tmp_path, {"train.py": script})
    done = rewrite(tmp_path / "train.py")
    assert b"step():" not in done.data
    assert not done.findings


@pytest.mark.parametrize(
    "calls",
    [
        "optimizer.zero_grad()\n    engine.compute(x.cuda())\n    optimizer.step()",
        "loss = model(x.cuda()).mean()\n    loss.backward()\n    engine.update()",
    ],
)
def test_half_of_the_training_in_plain_sight_is_said(tmp_path: Path, calls: str) -> None:
    script = "from outside import engine\n\nfor x in loader:\n    " + calls
    written(tmp_path, {"train.py": script})
    done = rewrite_folder(tmp_path, processes=1)
    assert any(NOT_SHOWN in message for message in findings(done, "train.py"))


def test_a_method_put_on_an_object_hides_no_step(tmp_path: Path) -> None:
    files = {
        "patch.py": "def patch(optimizer):\n    optimizer.step = lambda: None\n",
        "train.py": """
            from patch import patch


            class Optimizers:
                def step(self):
                    self.one.step()


            def train(model, loader, debug):
                optimizer = Optimizers()
                if debug:
                    patch(optimizer)
                for x in loader:
                    model(x.cuda()).mean().backward()
                    optimizer.step()
        """,
    }
    done = rewrite_folder(written(tmp_path, files), processes=1)
    assert "with torch_xla.step():" in after(done, "train.py")


def test_a_device_beside_an_index_stands(tmp_path: Path) -> None:
    """What sets up the ranks hands over the device and the rank in one mapping: both may be the device."""
    start = """
        import os


        def set_up(args):
            found = set_up_here(args.device)
            args.device = found["device"]


        def set_up_here(device):
            rank = int(os.environ["LOCAL_RANK"])
            return dict(device=device, rank=rank)
    """
    main = """
        import argparse
        from engine import train
        from start import set_up


        def main(model, loader, optimizer, loss_fn):
            parser = argparse.ArgumentParser()
            parser.add_argument("--device", default="cuda")
            args = parser.parse_args()
            set_up(args)
            train(args, model.to(args.device), loader, optimizer, loss_fn)
    """
    engine = (
        "import torch\n\n\ndef train(args, model, loader, optimizer, loss_fn):\n"
        "    device = torch.device(args.device)" + loop("device", 1)
    )
    folder = written(tmp_path / "project", {"start.py": start, "main.py": main})
    (folder / "engine.py").write_text(engine)
    assert "with torch_xla.step():" in after(rewrite_folder(folder), "engine.py")


def test_a_loop_of_a_model_that_another_file_moves_is_settled_in_one_turn(
    tmp_path: Path,
) -> None:
    files = {
        "factory.py": "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2).to('cuda')\n",
        "train.py": """
            import torch
            from factory import make


            def fit(loader, loss_fn):
                torch.manual_seed(0)
                model = make()
                optimizer = torch.optim.Adam(model.parameters())
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss_fn(model(inputs), labels).backward()
                    optimizer.step()
                torch.save(model.state_dict(), "model.pt")
        """,
    }
    done = rewrite_folder(written(tmp_path, files), processes=1)
    text = after(done, "train.py")
    assert "torch_xla.manual_seed(0)" in text
    assert "xm.save(" in text
    assert "with torch_xla.step():" in text


def test_an_accuracy_and_a_development_set_are_no_devices() -> None:
    """`acc` and `dev` are also what scripts call these; a number under such a name stays one."""
    kept = (
        "best_acc = 0\nepoch_train_acc = 0\nacc, dev_acc = 0, 0\nacc = 0\nbest_dev = 0\ndevice_time = 0\n"
        "device_time += 1\n\n\ndef last_dev():\n    return 0\n"
    )
    source = f"import torch\n\nmodel = torch.nn.Linear(1, 1).cuda()\n{kept}"
    done = rewrite_source(parse(source.encode(), Path("script.py")))
    assert kept in done.data.decode()


READS_FILES = """
import torch
{more}

def main(model, optimizer, names):
    model.cuda()
    for first, second in zip(names[:-1], names[1:]):
        one = load(first)
        two = load(second)
        model(one, two).sum().backward()
        optimizer.step()
"""
LOAD = "\n\ndef load(name):\n    return torch.load(name)"


@pytest.mark.parametrize(("load", "said"), [(LOAD, True), (LOAD + ".cuda()", False)])
def test_names_of_files_are_not_moved(load: str, said: bool) -> None:
    """What a loop hands to a function of the user's may be no tensor."""
    source = READS_FILES.format(more=load)
    done = rewrite_source(parse(source.encode(), Path("script.py")))
    after = done.data.decode()
    assert "with torch_xla.step():" in after
    assert "first.to(" not in after
    messages = [note.message for note in done.findings]
    shown = "the script does not show where first, second move to the device"
    assert any(shown in message for message in messages) is said


def test_names_of_languages_are_not_moved(tmp_path: Path) -> None:
    """A step that a method of another file makes; what it is given is no tensor."""
    files = {
        "trainer.py": """
            class Trainer:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model.cuda(), optimizer

                def make_step(self, source, target):
                    self.model(self.batch(source, target).cuda()).sum().backward()
                    self.optimizer.step()
        """,
        "train.py": """
            import torch
            from trainer import Trainer

            trainer = Trainer(torch.nn.Linear(1, 1), optimizer)
            for source, target in [("en", "fr")]:
                trainer.make_step(source, target)
        """,
    }
    done = rewrite_folder(written(tmp_path, files), processes=1)
    text = after(done, "train.py")
    assert "with torch_xla.step():" in text
    assert "source.to(" not in text
    assert not any(NOT_SHOWN in m or NOT_MOVED in m for m in findings(done, "train.py"))


def test_a_device_that_the_user_may_hand_over_stays_his_choice() -> None:
    """yolov7: `device or …` was taken for the device that stands in it, and replaced as a whole."""
    script = textwrap.dedent(
        """
        import torch


        def profile(x, module, device=None):
            device = device or torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
            return module.to(device)(x.to(device))
        """
    )
    text = rewrite_source(parse(script.encode(), Path("profile.py"))).data.decode()
    assert '    device = device or torch.device("xla")\n' in text


HYDRA = {
    "setup.py": """
        import torch


        def prepare(cfg):
            if cfg.no_cuda:
                cfg.device = "cpu"
            else:
                cfg.device = str(torch.device("cuda", cfg.local_rank))
            return cfg
    """,
    "train.py": """
        import hydra
        import torch
        from setup import prepare


        class Trainer:
            def __init__(self, cfg):
                self.cfg = cfg
                self.model = torch.nn.Linear(2, 2)
                self.model.to(cfg.device)
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

            def train(self, loader):
                for x in loader:
                    loss = self.model(x.to(self.cfg.device)).mean()
                    loss.backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()


        MAIN
            cfg = prepare(cfg)
            Trainer(cfg).train([])
    """,
}
OPTIONS = {
    "hydra": '@hydra.main(config_path="conf", config_name="train")\n        def main(cfg):',
    "hydra, imported": "@hydra_main(version_base=None)\n        def main(cfg):",
    "OmegaConf": "def main(path):\n            cfg = OmegaConf.merge(OmegaConf.load(path))",
}


@pytest.mark.parametrize("way", OPTIONS)
def test_a_device_that_is_put_on_the_configuration(way: str, tmp_path: Path) -> None:
    """DPR: nothing was known of `cfg.device`, and the step came only once another file said XLA."""
    imports = (
        "import hydra",
        "from hydra import main as hydra_main",
        "from omegaconf import OmegaConf",
    )
    train = HYDRA["train.py"].replace(imports[0], "\n        ".join(imports))
    train = train.replace("MAIN", OPTIONS[way])
    done = rewrite_folder(written(tmp_path, {**HYDRA, "train.py": train}), processes=1)
    assert after(done, "train.py").count("with torch_xla.step():") == 1


def test_a_rank_that_another_file_takes_from_the_environment_is_set(tmp_path: Path) -> None:
    train = """
        import argparse

        import torch.distributed as dist
        from launch import init_distributed_mode

        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=int, default=0)


        def main():
            args = parser.parse_args()
            {call}
            dist.init_process_group("nccl")
            print(args.rank)


        if __name__ == "__main__":
            main()
    """
    launch = """
        import os


        def init_distributed_mode(args):
            args.rank = int(os.environ["RANK"])


        class Log:
            def __init__(self, args):
                self.rank = args.rank
    """
    said = {}
    for call in ("init_distributed_mode(args)", "print(args)"):
        folder = tmp_path / call.partition("(")[0]
        files = {"train.py": textwrap.dedent(train).format(call=call), "launch.py": launch}
        done = rewrite_folder(written(folder, files), processes=1)
        file = next(file for file in done.files if file.name == Path("train.py"))
        said[call] = [note.message for note in file.findings if note.rule == "rank-arguments"]
    assert said["init_distributed_mode(args)"] == []
    assert "nobody passes --rank" in said["print(args)"][0]


def test_what_a_loader_of_another_file_moves_is_not_moved_again(tmp_path: Path) -> None:
    """efficientdet-pytorch: its loader moves dictionaries too, which have no `to`."""
    train = """
        import torch
        from data import create_loader


        def main(model, dataset, optimizer):
            model.cuda()
            loader = make_loader(dataset)
            train(model, loader, optimizer)


        def make_loader(dataset):
            loader = create_loader(dataset, 8)
            return loader


        def train(model, loader, optimizer):
            for x, target in loader:
                loss = model(x, target).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """
    data = """
        import torch


        def create_loader(dataset, size):
            mean = torch.zeros(3).cuda()
            for x, target in torch.utils.data.DataLoader(dataset, size):
                yield x.cuda() - mean, {k: v.cuda() for k, v in target.items()}
    """
    done = rewrite_folder(written(tmp_path, {"train.py": train, "data.py": data}), processes=1)
    text = after(done, "train.py")
    assert "with torch_xla.step():" in text
    assert "target.to(" not in text
    assert findings(done, "train.py") == [
        "x, target: see that the device to which they are moved is 'xla'"
    ]


@pytest.mark.parametrize("option", [True, False])
def test_a_logger_of_another_file_may_move_what_it_passes_on(tmp_path: Path, option: bool) -> None:
    train = """
        import torch
        from logger import Logger


        def train(model, loader, optimizer):
            model.cuda()
            logger = Logger(prefetch=True)
            for step, batch in enumerate(logger.log_every(loader, 10)):
                loss = model(batch).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """
    move = (
        "            if self.prefetch:\n                item = moved(item, torch.device('cuda'))\n"
    )
    logger = f"""
def moved(x, device):
    return {{k: v.to(device) for k, v in x.items()}}


class Logger:
    def __init__(self, prefetch=False):
        self.prefetch = prefetch

    def log_every(self, items, print_freq):
        for i, item in enumerate(items):
{move if option else ""}            yield item
"""
    (tmp_path / "logger.py").write_text("import torch\n" + logger)
    done = rewrite_folder(written(tmp_path, {"train.py": train}), processes=1)
    assert findings(done, "train.py") == [
        "batch: see that the device to which they are moved is 'xla'"
        if option
        else "is `batch` on the device? It is not moved in the loop"
    ]


def test_a_module_that_a_star_brings_is_not_imported_once_more(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Tied(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.into = nn.Embedding(5, 4)\n"
        "        self.out = nn.Linear(4, 5, bias=False)\n        self.out.weight = self.into.weight\n"
    )
    (tmp_path / "train.py").write_text("from common import *\n\nmodel = Tied()\nmodel.cuda()\n")
    after = {f.name.name: f.after.decode() for f in rewrite_folder(tmp_path, processes=1).files}
    assert "\ntorch.__future__.set_swap_module_params_on_conversion(True)" in after["train.py"]
    assert "import torch as" not in after["train.py"]


OWN_CUDA = """
    import torch
    from torch import nn


    class Sampler(object):
        def __init__(self, probs):
            self.probs = probs

        def cuda(self):
            self.probs = self.probs.cuda()


    class Memory(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.sampler = Sampler(torch.ones(size))
            self.sampler.cuda()


    sampler = Sampler(torch.ones(3))
    sampler.cuda()
    memory = Memory(3).cuda()
"""


def test_a_method_of_the_projects_own_is_called_as_before(tmp_path: Path) -> None:
    """It has a `cuda`, and no `to`."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(OWN_CUDA))
    text = rewrite(script).data.decode()
    assert 'self.probs = self.probs.to("xla")' in text
    assert "self.sampler.cuda()" in text
    assert "\nsampler.cuda()" in text
    assert 'memory = Memory(3).to("xla")' in text


CONFIGURED = """
    import torch
    from config import Config

    config = Config()
    model = torch.nn.Linear(2, 2).to(config.device)
    print(model(torch.ones(2, 2).to(config.device)).mean().item()){more}
"""
CONFIG = """
    import sys


    class Config:
        def __init__(self):
            self.size = 0
            self.device = {value}
"""
NUMBERS = {
    "0": "'xla'",
    "[0, 'cpu'][0]": "['xla', 'cpu'][0]",
    "(1, 'cpu')['--cpu' in sys.argv]": "('xla', 'cpu')['--cpu' in sys.argv]",
    "{'gpu': 0, 'cpu': 'cpu'}['gpu']": "{'gpu': 'xla', 'cpu': 'cpu'}['gpu']",
    "'cpu' if '--cpu' in sys.argv else 0": "'cpu' if '--cpu' in sys.argv else 'xla'",
    "['cpu', 'cuda:0'][0]": "['cpu', 'xla'][0]",
}


@pytest.mark.parametrize("value", NUMBERS)
def test_a_number_in_a_configuration_that_another_file_moves_to(tmp_path: Path, value: str) -> None:
    files = {"config.py": CONFIG.format(value=value), "main.py": CONFIGURED.format(more="")}
    done = rewrite_folder(written(tmp_path, files), processes=1)
    assert f"self.device = {NUMBERS[value]}\n" in after(done, "config.py").replace('"', "'")
    assert "self.size = 0\n" in after(done, "config.py")


def test_a_number_of_a_configuration_without_a_move_stays(tmp_path: Path) -> None:
    main = "import torch\nfrom config import Config\n\nprint(torch.ones(2), Config().device)\n"
    files = {"config.py": CONFIG.format(value="[0, 'cpu'][0]"), "main.py": main}
    done = rewrite_folder(written(tmp_path, files), processes=1)
    assert all(file.name != Path("config.py") for file in done.files)


def test_a_number_of_a_configuration_that_a_test_compares_stays(tmp_path: Path) -> None:
    more = "\n    if config.device == 0:\n        print(model)"
    files = {"config.py": CONFIG.format(value="0"), "main.py": CONFIGURED.format(more=more)}
    done = rewrite_folder(written(tmp_path, files), processes=1)
    assert all(file.name != Path("config.py") for file in done.files)


def test_a_choice_of_devices_in_one_script() -> None:
    text = "import torch\n\ndevice = [0, 'cpu'][0]\nprint(torch.ones(2).to(device))\n"
    done = rewrite_source(parse(text.encode(), Path("script.py"))).data.decode()
    assert "device = ['xla', 'cpu'][0]" in done.replace('"', "'")


def test_a_number_that_another_framework_moves_to_stays(tmp_path: Path) -> None:
    main = "import paddle\nfrom config import Config\n\nx = paddle.ones([2]).to(Config().device)\n"
    files = {"config.py": CONFIG.format(value="0"), "main.py": main}
    assert not rewrite_folder(written(tmp_path, files), processes=1).files
