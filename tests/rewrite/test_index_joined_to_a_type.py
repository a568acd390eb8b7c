"""A device put together of a type and an index: a replica sees one device, and `xla:3` raises."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

STYLES = ("native", "portable")
SCRIPT = """
    import torch


    def attach(local, device="cuda", name="run", title="a"):
        kind = {kind}
        {target} = {joined}
        label = f"{{name}}:{{title}}" + ":" + "{{}}:{{}}".format(name, title)
        return torch.zeros(2).to({target}), label
"""
WAY = {"native": '"xla"', "portable": "shims.device"}


def rewritten(text: str, style: Style) -> str:
    done = rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    return done.data.decode()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("target", ["device", "own_device", "place"])
@pytest.mark.parametrize(
    ("kind", "joined"),
    [
        ('device.split(":", maxsplit=1)[0]', 'f"{kind}:{local}"'),
        ('device.partition(":")[0]', 'kind + ":" + str(local)'),
        ('"cuda" if torch.cuda.is_available() else "cpu"', 'kind + f":{local}"'),
        ("torch.device(device).type", '"%s:%d" % (kind, local)'),
        ("device", '"{}:{}".format(kind, local)'),
        ("None", 'f"cuda:{local}"'),
    ],
)
def test_the_device_has_no_index(kind: str, joined: str, target: str, style: Style) -> None:
    text = rewritten(dedent(SCRIPT).format(kind=kind, joined=joined, target=target), style)
    assert f"    {target} = {WAY[style]}" in text
    assert '    label = f"{name}:{title}" + ":" + "{}:{}".format(name, title)\n' in text


@pytest.mark.parametrize("style", STYLES)
def test_a_type_that_is_taken_apart_with_a_star_in_another_file(
    tmp_path: Path, style: Style
) -> None:
    (tmp_path / "places.py").write_text(
        dedent(
            """
            import torch


            def attach(device, local):
                device_type, *index = device.split(":", maxsplit=1)
                if local is not None:
                    device = f"{device_type}:{local}"
                return device
            """
        )
    )
    (tmp_path / "main.py").write_text(
        dedent(
            """
            import torch

            from places import attach


            class Runner:
                def __init__(self, model, local):
                    self.place = torch.device(attach("cuda", local))
                    self.model = model.to(self.place)
            """
        )
    )
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    texts = {file.name.name: file.after.decode() for file in done.files}
    assert f"        device = {WAY[style]}" in texts["places.py"]


@pytest.mark.parametrize("style", STYLES)
def test_a_text_for_people_keeps_its_index(style: Style) -> None:
    text = """
import torch


def show(model, local, device="cuda"):
    model.to(device)
    print(f"{device}:{local}")
    key = f"{device}:{local}"
    return {key: model}
"""
    assert 'key = f"{device}:{local}"' in rewritten(text, style)
