"""Texts that a loop writes from names of classes, and no values of tensors."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

SCRIPT = """
    import torch


    def weights(model, tokenizer, classes, templates, prefix):
        rows = []
        with torch.no_grad():
            for name in classes:
                TEXTS
                tokens = tokenizer(texts, return_tensors="pt").to("cuda")
                rows.append(model(**tokens)["embedding"].mean(dim=0))
        return torch.stack(rows)
"""
TEXTS = [
    "texts = [t.format(name) for t in templates]; texts = [f'{prefix}: {text}' for text in texts]",
    "texts = [f'{prefix}: {name}' for t in templates]",
    "texts = [f'{t.upper()} {t.format(name)}' for t in templates]",
    "label = name.lower(); texts = [f'{label}' for t in templates]",
]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("texts", TEXTS)
def test_a_text_reads_no_value(tmp_path: Path, style: Style, texts: str) -> None:
    (tmp_path / "main.py").write_text(dedent(SCRIPT).lstrip().replace("TEXTS", texts))
    (file,) = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1).files
    assert "step():" in (file.after or b"").decode()
    assert not [n for n in file.findings if n.rule in ("step", "evaluation-loop")]


def test_a_loop_over_names_has_its_step_whatever_the_device_is_called(tmp_path: Path) -> None:
    text = dedent(SCRIPT).lstrip().replace("TEXTS", TEXTS[0])
    text = text.replace("prefix):", "prefix, device):").replace('"cuda"', "device")
    text += "\n\ndef main(model, *rest):\n    return weights(model.cuda(), *rest, device='cuda')\n"
    (tmp_path / "main.py").write_text(text)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert "step():" in (file.after or b"").decode()


READ = """
    import torch


    def weights(model, tokenizer, classes):
        rows = []
        with torch.no_grad():
            for name in classes:
                tokens = tokenizer(name, return_tensors="pt").to("cuda")
                out = model(**tokens)["embedding"].mean(dim=0)
                text = f"{name} {out.mean()}"
                rows.append(model(**tokenizer(text).to("cuda"))["embedding"].mean(dim=0))
        return torch.stack(rows)
"""


def test_a_text_of_a_tensor_does(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(dedent(READ).lstrip())
    (file,) = rewrite_folder(tmp_path, processes=1).files
    messages = [n.message for n in file.findings if n.own_code == "XLA204"]
    assert len(messages) == 1
    assert "{out.mean()}" in messages[0]


TABLE = """
    import torch
    from transformers import CLIPTextModel, CLIPTokenizer

    GO = "go"
    TASKS = dict({"a": {"text": GO, "size": 3}, "b": {"text": "stand", "size": 2}})
    tokenizer = CLIPTokenizer.from_pretrained("clip")
    model = CLIPTextModel.from_pretrained("clip")
    model.eval()
    model.to("cuda")

    for name, task in TASKS.items():
        tokens = tokenizer(f'{task["text"]}.', return_tensors="pt")
        tokens = {k: v.to("cuda") for k, v in tokens.items()}
        with torch.no_grad():
            found = model(**tokens).last_hidden_state
        task["embedding"] = found.mean(dim=1).cpu().tolist()
"""


@pytest.mark.parametrize(("value", "reads"), [("GO", False), ("torch.ones(2)", True)])
def test_what_stands_in_a_written_table_decides(tmp_path: Path, value: str, reads: bool) -> None:
    text = dedent(TABLE).lstrip().replace('"text": GO', f'"text": {value}')
    (tmp_path / "main.py").write_text(text)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert bool([n for n in file.findings if n.rule == "evaluation-loop"]) == reads
