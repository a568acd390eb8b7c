"""Branches whose statements all go."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = "import torch\n\n\ndef start(gpu, model, first):\n"


def rewritten(body: str) -> str:
    """Return what becomes of the function `start` with this body, without its head."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    script = f"{HEAD}{lines}    return model.to('cuda')\n"
    done = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    start = done.index("def start(gpu, model, first):\n") + len("def start(gpu, model, first):\n")
    end = done.index("    return model")
    return textwrap.dedent(done[start:end]).strip()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if gpu is not None:\n    torch.cuda.set_device(gpu)", ""),
        ("if gpu is not None: torch.cuda.set_device(gpu)", ""),
        ("if is_main(gpu):\n    torch.cuda.set_device(gpu)", ""),
        ("for part in model.parts:\n    torch.cuda.empty_cache()", ""),
        ("for i in range(len(first)):\n    first[i] = torch.compile(first[i])", ""),
        # The loop may do something, and its name may be used below it.
        (
            "for part in make():\n    torch.cuda.empty_cache()",
            "for part in make():\n    pass",
        ),
        (
            "for part in model.parts:\n    torch.cuda.empty_cache()\nprint(part)",
            "for part in model.parts:\n    pass\nprint(part)",
        ),
        ("torch.cuda.empty_cache(); print(1); torch.cuda.empty_cache()", "print(1)"),
        ("print(1); torch.cuda.empty_cache();", "print(1)"),
        ("print(1);", "print(1);"),
        # The test may do something.
        (
            "if choose(gpu):\n    torch.cuda.set_device(gpu)",
            "if choose(gpu):\n    pass",
        ),
        (
            "if gpu is not None:\n    torch.cuda.set_device(gpu)\nelse:\n    print(1)",
            "if gpu is None:\n    print(1)",
        ),
        (
            "if gpu and first:\n    torch.cuda.set_device(gpu)\nelse:\n    print(1)",
            "if not (gpu and first):\n    print(1)",
        ),
        (
            "if gpu:\n    print(1)\nelse:\n    torch.cuda.set_device(0)",
            "if gpu:\n    print(1)",
        ),
        (
            "if gpu:\n    print(1)\nelif first:\n    torch.cuda.set_device(0)",
            "if gpu:\n    print(1)",
        ),
        # What an `elif` is asked after stays asked.
        (
            "if gpu:\n    torch.cuda.set_device(0)\nelif first:\n    print(1)",
            "if gpu:\n    pass\nelif first:\n    print(1)",
        ),
        (
            "if gpu:\n    if first:\n        torch.cuda.set_device(0)\nelse:\n    torch.cuda.set_device(1)",
            "",
        ),
        # Written by the author.
        ("if gpu:\n    pass", "if gpu:\n    pass"),
    ],
)
def test_an_emptied_branch_goes(body: str, expected: str) -> None:
    assert rewritten(body) == expected


def test_the_comment_above_stays() -> None:
    body = "# one process a device\nif gpu:\n    # this one\n    torch.cuda.set_device(gpu)"
    assert rewritten(body) == "# one process a device"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("try:\n    torch.cuda.set_device(gpu)\nexcept Exception:\n    print('no')", ""),
        (
            "try:\n    torch.cuda.set_device(gpu)\nexcept Exception as e:\n    print(e)\n    gpu = 0",
            "",
        ),
        (
            "try:\n    model.forward = torch.compile(model.forward)\nexcept RuntimeError:\n    print(1)",
            "",
        ),
        ("try: model = torch.compile(model)\nexcept: print(1)", ""),
        # What runs after a body that did not raise.
        (
            "try:\n    torch.cuda.set_device(gpu)\nexcept ValueError:\n    pass\nelse:\n    print(1)",
            "print(1)",
        ),
        ("try:\n    torch.cuda.set_device(gpu)\nfinally:\n    print(1)", "print(1)"),
        (
            "try:\n    torch.cuda.set_device(gpu)\nexcept ValueError:\n    pass\n"
            "else:\n    print(1)\nfinally:\n    print(2)",
            "try:\n    print(1)\nfinally:\n    print(2)",
        ),
        # A statement is left: so are the handlers.
        (
            "try:\n    torch.cuda.set_device(gpu)\n    first()\nexcept ValueError:\n    print(1)",
            "try:\n    first()\nexcept ValueError:\n    print(1)",
        ),
        # Written by the author.
        ("try:\n    pass\nexcept ValueError:\n    print(1)",) * 2,
    ],
)
def test_an_emptied_try_goes(body: str, expected: str) -> None:
    assert rewritten(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "with torch.autocast('cuda', dtype=torch.half if first else torch.bfloat16):\n    pass",
            "with torch.autocast('xla', dtype=torch.bfloat16):\n    pass",
        ),
        (
            "kind = torch.bfloat16 if gpu == 'b' else torch.float16\n"
            "with torch.autocast('cuda', dtype=kind):\n    pass",
            "kind = torch.bfloat16\nwith torch.autocast('xla', dtype=kind):\n    pass",
        ),
        ("model = torch.compile(model) if first else model", "model = model"),
        ("model = (torch.compile(model) if first else model)", "model = model"),
        # The test may do something.
        (
            "model = torch.compile(model) if choose() else model",
            "model = model if choose() else model",
        ),
        # Written by the author.
        ("gpu = 1 if first else 1",) * 2,
    ],
)
def test_a_choice_between_the_same_goes(body: str, expected: str) -> None:
    assert rewritten(body) == expected


def test_what_would_assign_a_name_to_itself_goes() -> None:
    body = "gpu = gpu and torch.cuda.is_available()\nfirst = gpu and torch.cuda.is_available()"
    assert rewritten(body) == "first = gpu"


@pytest.mark.parametrize(
    "waits",
    [
        "start.record()\nmodel(first)\nend.record()\ntorch.cuda.synchronize()",
        "torch.cuda.synchronize()\nstart.record()\nmodel(first)\nend.record()\nend.synchronize()",
    ],
)
def test_one_wait_stands_before_each_reading_of_the_clock(waits: str) -> None:
    events = "".join(
        f"{name} = torch.cuda.Event(enable_timing=True)\n" for name in ("start", "end")
    )
    done = rewritten(f"{events}{waits}\nprint(start.elapsed_time(end))")
    assert done.splitlines() == [
        "torch_xla.sync(wait=True)",
        "start = time.perf_counter()",
        "output = model(first)",
        "torch_xla.sync(wait=True)",
        "end = time.perf_counter()",
        "print((end - start) * 1000)",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('D = (\n    "cuda" if torch.cuda.is_available() else "cpu"\n)', 'D = "xla"'),
        ('D = ("cuda" if torch.cuda.is_available() else "cpu")', 'D = "xla"'),
        (
            'D = (  # where\n    "cuda" if torch.cuda.is_available() else "cpu"\n)',
            'D = (  # where\n    "xla"\n)',
        ),
        ('D = "cuda"; t = torch.float if D == "cuda" else torch.float', "t = torch.float"),
        ("t = 1 if torch else 1", "t = 1 if torch else 1"),
    ],
)
def test_nothing_is_left_of_a_choice_that_is_decided(before: str, after: str) -> None:
    done = [line.strip() for line in rewritten(before).splitlines()]
    assert after.replace("    ", "") in "\n".join(done)
