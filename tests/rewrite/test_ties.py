"""Weights that modules share: which moves untie them, where the modules are in other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.results import Rewrite

SWAP = "torch.__future__.set_swap_module_params_on_conversion(True)"

BESIDE = """\
import torch
from model import Language


def prepared(tokens):
    loader = torch.utils.data.DataLoader(tokens, 4)
    model = Language(100)
    model.to("cuda")
    return {"model": model, "loader": loader}


def train(state, device):
    for inputs in state["loader"]:
        state["model"](inputs["ids"][:, :-1].to(device))


if __name__ == "__main__":
    train(prepared(torch.zeros(8)), torch.device("cuda"))
"""
TIED = """\
import torch


class Language(torch.nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, 8)
        self.head = torch.nn.Linear(8, words, bias=False)
        self.head.weight = self.embedding.weight
"""
TRAIN = """\
import torch
from model import Language


def train(rank):
    model = Language(100)
    model.to(rank)
    torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
"""
RETURNED = """

class Schedule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("betas", torch.linspace(0, 1, 8))


def made(words):
    return Language(words), Schedule()
"""
INSIDE = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Language(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.net = GPT2LMHeadModel(config)
"""
IN_A_DICT = """\
    models = {"policy": Language(config), "value": torch.nn.Linear(2, 1)}
    for model in models.values():
        model.to(rank)
"""
LOADED = TIED.replace(
    "class Language(torch.nn.Module):",
    "class Base(torch.nn.Module):\n    @classmethod\n    def from_disk(cls, path, words):\n"
    "        model = cls(words)\n        model.load_state_dict(torch.load(path))\n"
    "        return model\n\n\nclass Language(Base):",
)
IN_A_TRAINER = """\
import torch
from model import Language


class Trainer:
    def __init__(self, loader, rank):
        self.loader = loader
        self.rank = rank
        self.model = Language(100).eval()

    def fit(self):
        for batch in enumerate(iter(self.loader, getattr(self, "most", 3))):
            batch = {k: v.to(self.rank) for k, v in batch.items()}
            found = torch.cat(batch).to(self.rank)
            loss = self.model(batch["x"].to(self.rank))
            loss.to(self.rank)


def train(loader, rank):
    trainer = Trainer(loader, rank)
    trainer.fit()
"""
# Ways from a tie in another file to the move, each with the line of the move.
FLOWS = {
    "made and moved": (TIED, TRAIN),
    "a second name of a parameter": (TIED.replace("self.head.weight = ", "self.first = "), TRAIN),
    "a method that is called": (
        TIED.replace(
            "        self.head.weight", "\n    def tie_weights(self):\n        self.head.weight"
        ),
        TRAIN.replace("    model.to", "    model.tie_weights()\n    model.to"),
    ),
    "a part of the model": (
        f"{TIED}\n\nclass Both(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.text = Language(9)\n",
        TRAIN.replace("import Language", "import Both").replace("Language(100)", "Both()"),
    ),
    "a weight that is handed over": (
        TIED.replace("self.embedding.weight", "embedding_weights").replace(
            "(self, words)", "(self, words, embedding_weights)"
        ),
        TRAIN,
    ),
    "a function that makes it": (
        TIED.replace("        self.head.weight = self.embedding.weight\n", "")
        + "\n\ndef build(words):\n    model = Language(words)\n"
        "    model.head.weight = model.embedding.weight\n    return model\n",
        TRAIN.replace("import Language", "import build").replace("Language(100)", "build(100)"),
    ),
    "a parameter of a class": (
        TIED,
        """\
import torch
from model import Language


class Trainer:
    def __init__(self, model, rank):
        self.model = model
        self.model.to(rank)


def train(rank):
    Trainer(Language(100), rank)
    torch.cuda.set_device(rank)
""",
    ),
    "a wrapper": (TIED, TRAIN.replace("model.to(rank)", "model = torch.compile(model).cuda()")),
    "of transformers, by a class of the project": (
        "from transformers import GPT2LMHeadModel\n\n\nclass Language(GPT2LMHeadModel):\n    pass\n",
        TRAIN,
    ),
    "one level inside a module": (INSIDE, TRAIN.replace("Language(100)", "Language(config)")),
    "in a list, in a module": (
        f"{INSIDE}\n\nclass Deep(torch.nn.Module):\n    def __init__(self, config):\n"
        "        super().__init__()\n        self.parts = torch.nn.ModuleList([Language(config)])\n",
        TRAIN.replace("import Language", "import Deep").replace("Language(100)", "Deep(config)"),
    ),
    "by a factory that chooses the class": (
        f"{INSIDE}\n\nCLASSES = {{'a': Language}}\n\n\ndef build(config):\n"
        "    return CLASSES[config.name](config)\n",
        TRAIN.replace("import Language", "import build").replace("Language(100)", "build(config)"),
    ),
    "in a Sequential": (
        TIED.replace("import torch", "import torch\nfrom torch import nn"),
        TRAIN.replace("Language(100)", "torch.nn.Sequential(torch.nn.Identity(), Language(100))"),
    ),
    "in a wrapper of another library": (
        INSIDE.replace(
            "GPT2LMHeadModel(config)", "get_peft_model(GPT2LMHeadModel(config), config.lora)"
        ).replace("import torch\n", "import torch\nfrom peft import get_peft_model\n"),
        TRAIN.replace("Language(100)", "Language(config)"),
    ),
    "a class method of a base class": (
        LOADED,
        TRAIN.replace("Language(100)", 'Language.from_disk("a.pt", 100)'),
    ),
    "a class method of a library": (
        TIED.replace("(torch.nn.Module)", "(torch.nn.Module, PyTorchModelHubMixin)").replace(
            "import torch\n", "import torch\nfrom huggingface_hub import PyTorchModelHubMixin\n"
        ),
        TRAIN.replace("Language(100)", 'Language.from_pretrained("a")'),
    ),
    "in a dict": (
        INSIDE,
        TRAIN.replace("    model = Language(100)\n    model.to(rank)\n", IN_A_DICT),
    ),
}
NO_FLOWS = {
    "a module that makes another kind of model": (
        INSIDE.replace("GPT2LMHeadModel", "ViTForImageClassification"),
        TRAIN.replace("Language(100)", "Language(config)"),
    ),
    "told not to share": (
        INSIDE.replace("(config)\n", "(GPT2Config(tie_word_embeddings=False))\n"),
        TRAIN.replace("Language(100)", "Language(config)"),
    ),
    "a configuration that shares nothing by itself": (
        INSIDE.replace("GPT2Config, GPT2LMHeadModel", "LlamaConfig, LlamaForCausalLM").replace(
            "GPT2LMHeadModel(config)\n", "LlamaForCausalLM(LlamaConfig(vocab_size=config))\n"
        ),
        TRAIN,
    ),
    "what a function returns beside the model": (
        TIED + RETURNED,
        TRAIN.replace("import Language", "import made").replace(
            "model = Language(100)", "_, model = made(100)"
        ),
    ),
    "another part of it": (
        INSIDE + "        self.head = torch.nn.Linear(8, 2)\n",
        TRAIN.replace("Language(100)", "Language(config).head"),
    ),
    "what a dataset yields": (
        INSIDE.replace("class Language(torch.nn.Module)", "class Data(torch.utils.data.Dataset)"),
        TRAIN.replace("import Language", "import Data").replace(
            "    model = Language(100)\n", "    for model in Data(config):\n    "
        ),
    ),
    "what a loop takes from a loader, and what the model gives": (TIED, IN_A_TRAINER),
    "nothing is shared": (
        TIED.replace("self.head.weight = self.embedding", "self.size = self.embedding").replace(
            "embedding.weight", "embedding.weight.shape"
        ),
        TRAIN,
    ),
    "a second name outside of a module": (
        TIED.replace("self.head.weight = ", "self.first = ").replace("torch.nn.Module", "object"),
        TRAIN,
    ),
    "tied after the move": (
        TIED.replace(
            "        self.head.weight", "\n    def tie_weights(self):\n        self.head.weight"
        ),
        TRAIN.replace("(rank)\n    torch", "(rank)\n    model.tie_weights()\n    torch"),
    ),
    "another class of that file": (
        f"{TIED}\n\nclass Other(torch.nn.Linear):\n    pass\n",
        TRAIN.replace("Language", "Other"),
    ),
    "a type": (TIED, TRAIN.replace("model.to(rank)", "model.to(torch.bfloat16)")),
    "the CPU": (TIED, TRAIN.replace("model.to(rank)", "model.to('cpu')")),
    "kept already": (TIED, TRAIN.replace("    model.to", f"    {SWAP}\n    model.to")),
}


def project(folder: Path, model: str, train: str) -> Path:
    (folder / "model.py").write_text(model)
    (folder / "train.py").write_text(train)
    return folder / "train.py"


def said(done: Rewrite) -> list[str]:
    notes = (*done.edits, *done.findings)
    return [note.message for note in notes if note.rule in ("tied-weights", "XLA818")]


@pytest.mark.parametrize("flow", FLOWS)
def test_a_script_keeps_what_another_file_ties(flow: str, tmp_path: Path) -> None:
    script = project(tmp_path, *FLOWS[flow])
    done = rewrite(script)
    assert done.data.decode().count(SWAP) == 1
    before, _, after = done.data.decode().partition(SWAP)
    assert '("xla")' in after.splitlines()[1]
    assert "# Weights that modules of the model share stay shared." in before.splitlines()[-2]
    (message,) = said(done)
    assert ("model.py:" in message) or "transformers.GPT2LMHeadModel" in message


@pytest.mark.parametrize("flow", FLOWS)
def test_a_folder_says_the_same(flow: str, tmp_path: Path) -> None:
    project(tmp_path, *FLOWS[flow])
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    assert files["train.py"].after.decode().count(SWAP) == 1
    findings = [note for file in files.values() for note in file.findings]
    assert not [note for note in findings if note.rule in ("tied-weights", "XLA818")]


@pytest.mark.parametrize("flow", NO_FLOWS)
def test_what_needs_no_line_gets_none(flow: str, tmp_path: Path) -> None:
    model, train = NO_FLOWS[flow]
    done = rewrite(project(tmp_path, model, train))
    assert done.data.decode().count(SWAP) == train.count(SWAP)
    assert said(done) == []


@pytest.mark.parametrize(
    "other",
    [
        "import torch\nfrom model import Base\n\n\ndef move(model: Base):\n    return model.cuda()\n",
        "import torch\nimport model\n\n\ndef make(name):\n    kind = getattr(model, name)\n"
        "    net = kind(9)\n    return net.cuda()\n",
    ],
)
def test_a_move_that_keeps_a_tie_does_not_hide_one_of_an_unseen_class(
    other: str, tmp_path: Path
) -> None:
    project(tmp_path, LOADED, TRAIN)
    (tmp_path / "other.py").write_text(other)
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    assert files["train.py"].after.decode().count(SWAP) == 1
    rules = [finding.rule for finding in files["model.py"].findings]
    assert "tied-weights" in rules


def test_what_stands_beside_the_model_in_a_dict_is_no_model(tmp_path: Path) -> None:
    """`set_swap_module_params_on_conversion(True)` stood before the move of each batch."""
    lines = rewrite(project(tmp_path, TIED, BESIDE)).data.decode().splitlines()
    at = [number for number, line in enumerate(lines) if SWAP in line]
    assert [lines[number + 1].strip() for number in at] == ['model.to("xla")']


def test_a_long_table_beside_it_hides_no_tie(tmp_path: Path) -> None:
    """The search ended at 500 parts, numbers among them."""
    table = ", ".join(str(number) for number in range(600))
    long = (
        "class Long(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        self.inner = GPT2LMHeadModel.from_pretrained('gpt2')\n"
        f"        self.steps = [{table}]\n"
    )
    script = TRAIN.replace("Language(100)", "Long()").replace("def train", f"{long}\n\ndef train")
    script = script.replace(
        "from model import Language", "from transformers import GPT2LMHeadModel"
    )
    assert SWAP in rewrite(project(tmp_path, TIED, script)).data.decode()


def test_a_device_that_is_not_known_is_one(tmp_path: Path) -> None:
    unknown = TRAIN.replace("    model.to(rank)", "    device = choose(rank)\n    model.to(device)")
    done = rewrite(project(tmp_path, TIED, unknown))
    assert SWAP not in done.data.decode()
    assert "if that is XLA" in said(done)[0]
    with_cuda = unknown.replace("    device =", "    torch.cuda.empty_cache()\n    device =")
    done = rewrite(project(tmp_path, TIED, with_cuda))
    assert f"{SWAP}\n    model.to(device)" in done.data.decode()


def test_each_branch_that_moves_keeps_the_ties(tmp_path: Path) -> None:
    branches = """\
    if rank == 0:
        model.to(rank)
        model.cuda(rank)
    else:
        model.cuda()
"""
    done = rewrite(project(tmp_path, TIED, TRAIN.replace("    model.to(rank)\n", branches)))
    assert done.data.decode().count(SWAP) == 2


@pytest.mark.parametrize("where", ["here", "in another file"])
def test_where_state_dicts_are_loaded_the_switch_is_on_for_the_move_alone(
    where: str, tmp_path: Path
) -> None:
    load = "\n\ndef resume(model, state):\n    model.load_state_dict(state)\n"
    model, train = (TIED, TRAIN + load) if where == "here" else (TIED + load, TRAIN)
    done = rewrite(project(tmp_path, model, train))
    off = SWAP.replace("True", "False")
    assert f'    {SWAP}\n    model.to("xla")\n    {off}\n' in done.data.decode()
    twice = train.replace("    model.to(rank)\n", "    model.to(rank)\n    model.cuda(rank)\n")
    done = rewrite(project(tmp_path, model, twice))
    assert done.data.decode().count(SWAP) == done.data.decode().count(off) == 2


def test_an_optimizer_that_is_made_before_gets_the_only_line(tmp_path: Path) -> None:
    early = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    model.to"
    done = rewrite(project(tmp_path, TIED, TRAIN.replace("    model.to", early)))
    assert done.data.decode().count(SWAP) == 1
    assert said(done) == []


def test_a_model_chosen_by_name_is_reported_with_the_place_of_the_tie(tmp_path: Path) -> None:
    by_name = TRAIN.replace("from model import Language", "import model as models").replace(
        "Language(100)", "vars(models)['Language'](100)"
    )
    done = rewrite(project(tmp_path, TIED, by_name))
    (message,) = said(done)
    assert "`self.head.weight = self.embedding.weight` (model.py:9): after" in message
    assert [note.line for note in done.findings if note.rule == "tied-weights"] == [2]
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    assert [note.line for note in files["model.py"].findings] == [9]
    assert not [note for note in files["train.py"].findings if note.rule == "tied-weights"]


@pytest.mark.parametrize("flow", ["made and moved", "a function that makes it"])
def test_check_of_a_script_alone_names_the_move(flow: str, tmp_path: Path) -> None:
    script = project(tmp_path, *FLOWS[flow])
    found = [one for one in findings_of([script], Config())[1] if one.code == "XLA818"]
    assert [one.line for one in found] == [7]
    assert "model.py:" in found[0].message


SHARED = """
import torch


class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = {made}


class Language(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        self.first = torch.nn.ModuleDict({{name: Embedding() for name in names}})
        self.second = torch.nn.ModuleDict({{name: Embedding() for name in names}})
        self.token = torch.nn.Parameter(torch.zeros(8, 4))
        self.head = torch.nn.Linear(4, 8)
        self.share(names)

    def share(self, names):
        for name in names:
            {tie}
"""
OF_PARTS = "self.second[name].kind = self.first[name].kind"


@pytest.mark.parametrize(
    ("made", "tie", "kept"),
    [
        ("torch.nn.Parameter(torch.zeros(1, 4))", OF_PARTS, True),
        ("torch.nn.Parameter(torch.ones(4)) if torch.rand(1) else None", OF_PARTS, True),
        ("'plain'", OF_PARTS, False),
        ("'plain'", "self.head.weight = self.token", True),
        ("'plain'", "self.head.name = self.name", False),
    ],
)
def test_a_parameter_of_any_name_that_modules_share_stays_shared(
    made: str, tie: str, kept: bool, tmp_path: Path
) -> None:
    done = rewrite(project(tmp_path, SHARED.format(made=made, tie=tie), TRAIN))
    assert (SWAP in done.data.decode()) is kept


@pytest.mark.parametrize(("model", "severity"), [("Other", "info"), ("Language", "error")])
def test_a_tie_of_a_model_that_no_program_trains_is_information(
    tmp_path: Path, model: str, severity: str
) -> None:
    train = f"""\
import torch
from model import Language
from other import Other


def main(make=Other):
    model = make(({model}(4),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.randn(8, 2, 2):
        model(x.cuda()).mean().backward()
        optimizer.step()


main()
"""
    project(tmp_path, TIED, train)
    (tmp_path / "other.py").write_text("def Other(layers):\n    return layers[0]\n")
    files = {file.name.name: file for file in rewrite_folder(tmp_path, processes=1).files}
    notes = [note for note in files["model.py"].findings if note.rule == "tied-weights"]
    assert [note.severity.value for note in notes] == [severity]


AVERAGE = """\
from copy import deepcopy

import torch


class Average:
    def __init__(self, model, device=None, dtype=torch.float32):
        self.module = deepcopy(model).to(dtype=dtype, device=device)
"""


@pytest.mark.parametrize(("moves_first", "lines"), [(True, []), (False, [8])])
def test_a_deep_copy_of_a_model_on_the_device_keeps_its_ties(
    tmp_path: Path, moves_first: bool, lines: list[int]
) -> None:
    above, below = ("", "    average = Average(model)\n")[:: 1 if moves_first else -1]
    move = "    model.to(rank)\n"
    train = TRAIN.replace(move, f"{above}{move}{below}").replace(
        "from model", "from average import Average\nfrom model"
    )
    for name, text in (("average.py", AVERAGE), ("model.py", TIED), ("train.py", train)):
        (tmp_path / name).write_text(text)
    average, *_ = rewrite_folder(tmp_path, processes=1).files
    assert [note.line for note in average.findings if note.rule == "tied-weights"] == lines
