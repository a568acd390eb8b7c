"""Saves that move out of a test of the rank, and those that cannot."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.reading.tree.source import parse
from migrate.rewrite.story import Rewrite, rewrite_source

HEAD = "import os\n\nimport torch\nimport torch.distributed as dist\n\nDISTRIBUTED = dist.is_available()\n"


def run(script: str) -> Rewrite:
    text = HEAD + "\n\n" + textwrap.dedent(script).strip() + "\n"
    return rewrite_source(parse(text.encode(), Path("script.py")))


def after(script: str) -> str:
    """What is left of the script, without its imports."""
    return run(script).data.decode().split("\n\n\n", 1)[1]


def says(script: str) -> str:
    done = run(script)
    assert "xm.save" not in done.data.decode()
    return "\n".join(note.message for note in done.findings if note.rule == "save")


def test_one_save_a_host_stays_one_a_host() -> None:
    done = after(
        "def f(m, local_rank):\n    if local_rank == 0:\n        torch.save(m.state_dict(), 'a')"
    )
    assert done == "def f(m, local_rank):\n    xm.save(m.state_dict(), 'a')\n".replace('"', "'")


def test_a_file_of_each_replica() -> None:
    done = after("def f(m):\n    torch.save(m.state_dict(), f'{dist.get_rank()}.pt')")
    assert "xm.save(m.state_dict(), f'{dist.get_rank()}.pt', master_only=False)" in done


def test_keywords_and_star_arguments() -> None:
    assert "xm.save(data=x, file_or_path=p, global_master=True)" in after(
        "def f(x, p):\n    torch.save(obj=x, f=p, _use_new_zipfile_serialization=False)"
    )
    assert after(
        "def save(*args, **kwargs):\n    if dist.get_rank() == 0:\n        torch.save(*args, **kwargs)"
    ) == ("def save(*args, **kwargs):\n    xm.save(*args, **kwargs, global_master=True)\n")


def test_what_follows_the_save_stays_with_the_first_replica() -> None:
    script = """
        class Trainer:
            def _save(self, epoch):
                state = self.model.state_dict()
                torch.save(state, self.path)
                print("saved")
                os.remove("old")

            def train(self):
                for epoch in range(3):
                    if self.gpu_id == 0 and epoch % self.save_every == 0:
                        self._save(epoch)
    """
    done = after(script)
    assert "        xm.save(state, self.path, global_master=True)\n" in done
    assert (
        "        if xm.is_master_ordinal(local=False):\n"
        '            print("saved")\n'
        '            os.remove("old")\n'
    ) in done
    assert (
        "            if epoch % self.save_every == 0:\n                self._save(epoch)\n" in done
    )


def test_the_rest_of_the_branch_keeps_its_test_and_comments() -> None:
    script = """
        def f(model, rank, path):
            # checkpoint
            if rank == 0:
                os.makedirs(path)
                # what is kept
                state = {"model": model.state_dict()}
                torch.save(state, path)  # here
    """
    assert after(script) == textwrap.dedent(
        """\
        def f(model, rank, path):
            # checkpoint
            if rank == 0:
                os.makedirs(path)
            # what is kept
            state = {"model": model.state_dict()}
            xm.save(state, path, global_master=True)  # here
        """
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("if rank == 0:\n    pass\nelse:\n    torch.save(x, 'p')", "on all ranks"),
        ("if rank == 1:\n    torch.save(x, 'p')", "rank == 1"),
        ("if rank == 0:\n    if acc > best:\n        torch.save(x, 'p')", "may differ"),
        ("if rank == 0:\n    p = make_path()\n    torch.save(x, p)", "side effects"),
        ("if rank == 0:\n    torch.save(x, open('p', 'wb'))", "open file"),
        ("def f(m):\n    m.train()\n    torch.save(m, 'p')", "state_dict"),
        ("def f(m):\n    torch.save(m, 'p', pickle_protocol=4)", "pickle"),
        ("def f(x):\n    if rank != 0:\n        return\n    torch.save(x, 'p')", "on all ranks"),
        ("def f(x):\n    torch.save(x, 'p')\n    return 1\n\n\nif rank == 0:\n    f(1)", "returns"),
    ],
)
def test_reported(script: str, said: str) -> None:
    assert said in says(script)


def test_a_script_without_devices_is_only_told() -> None:
    data = b"import torch\n\n\ndef f(x):\n    torch.save(x, 'p')\n"
    done = rewrite_source(parse(data, Path("script.py")))
    assert not done.changed
    assert [note.rule for note in done.findings] == ["save"]
