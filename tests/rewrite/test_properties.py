"""Whatever constructs, comments and formatting a script mixes: the result stands, and nothing is lost."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from textwrap import indent

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

IMPORTS = (
    "import torch",
    "import torch.distributed as dist",
    "from torch import distributed as dist, nn",
    "import torch, os",
    "from torch.nn.parallel import DistributedDataParallel as DDP",
    "from torch.cuda import amp",
    "import os\nimport argparse",
)
# What a script does before its loop, in a function whose parameters are `rank`, `model` and `loader`.
STATEMENTS = (
    "dist.init_process_group('nccl', rank=rank, world_size=2)",
    "torch.cuda.set_device(rank)",
    "model = model.cuda(rank)",
    "model = model.to(rank)",
    "model.to(\n    f'cuda:{rank}',\n)",
    "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
    "if torch.cuda.is_available():\n    model.cuda()\nelse:\n    print('slow')",
    "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    "model = DDP(model, device_ids=[rank])",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "scaler = torch.cuda.amp.GradScaler()",
    "dist.barrier()",
    "torch.cuda.empty_cache()",
    "torch.backends.cudnn.benchmark = True",
    "x = torch.zeros(3, device='cuda')",
    "total = torch.tensor([1.0]).cuda(); dist.all_reduce(total)",
    "torch.cuda.manual_seed_all(0)",
    "if rank == 0:\n    torch.save(model.state_dict(), 'model.pt')",
    "state = torch.load('model.pt', map_location=f'cuda:{rank}')",
    "path = os.environ['LOCAL_RANK']",
    "try:\n    dist.destroy_process_group()\nfinally:\n    pass",
)
STEPS = (
    "optimizer.zero_grad()",
    "x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)",
    "x = x.to(rank)",
    "loss = model(x).sum()",
    "with torch.cuda.amp.autocast():\n    loss = model(x).mean()",
    "loss.backward()",
    "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "optimizer.step()",
    "if i % 10 == 0:\n    print(loss.item())",
    "if rank == 0 and i % 10 == 0: print(i)",
    "torch.cuda.synchronize()",
)
# Nothing here is any rule's business.
PLAIN = (
    "import os",
    "def f(a, *, b=1): return a if b else {a: [b, *a]}",
    "class C:\n    x: int = 1\n\n    def cuda(self): return self\n\nC().cuda()",
    "for i in range(3):\n    total = i ** 2\nelse:\n    pass",
    "text = '''a\n  b'''",
    "with open('x') as a, open('y') as b: print(a, b)",
    "x = [\n    1,  # one\n    2\n]",
    "match = {'rank': 0}; rank = match['rank']",
    "print('{}'.format(1),\n      end = '')",
    "lambda *a, **k: (a, k)",
)
SPACES = st.sampled_from(("", "\n", "\n\n\n"))
INDENTS = st.sampled_from(("    ", "  ", "\t"))
ENDINGS = st.sampled_from(("\n", "\r\n"))
MARKS = st.sampled_from((b"", b"\xef\xbb\xbf"))
EXAMPLES = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def blocks(draw: st.DrawFn, snippets: tuple[str, ...], most: int) -> str:
    """Statements of `snippets` with comments above, behind and between them, and blank lines."""
    parts = []
    for number, snippet in enumerate(
        draw(st.lists(st.sampled_from(snippets), min_size=1, max_size=most))
    ):
        above = f"# above {number}\n" if draw(st.booleans()) else ""
        behind = "  # behind" if draw(st.booleans()) and not snippet.startswith("text") else ""
        first, line, rest = snippet.partition("\n")
        parts.append(f"{draw(SPACES)}{above}{first}{behind}{line}{rest}\n")
    return "".join(parts)


@st.composite
def scripts(draw: st.DrawFn) -> bytes:
    """DDP scripts, as complete and as sane as chance makes them; they parse, they need not run."""
    inside = draw(blocks(STATEMENTS, 6))
    if draw(st.booleans()):
        loop = draw(st.sampled_from(("for i, (x, y) in enumerate(loader):", "while True:")))
        inside += f"{loop}\n" + indent(draw(blocks(STEPS, 7)), "    ")
    imports = draw(st.lists(st.sampled_from(IMPORTS), min_size=2, max_size=5, unique=True))
    body = "\n".join(imports) + "\n\n\ndef main(rank, model, loader):\n" + indent(inside, "    ")
    if draw(st.booleans()):
        call = "torch.multiprocessing.spawn(main, args=(), nprocs=torch.cuda.device_count())"
        body += f"\n\nif __name__ == '__main__':\n    {call}\n"
    if draw(st.booleans()):
        body += "# the end"
    return _bytes(body, draw(INDENTS), draw(ENDINGS), draw(MARKS))


@st.composite
def plain_scripts(draw: st.DrawFn) -> bytes:
    """Scripts with nothing of ours; their white space is odd."""
    body = draw(st.sampled_from(("", "#!/usr/bin/env python\n", "# -*- coding: utf-8 -*-\n")))
    body += draw(blocks(PLAIN, 6))
    body += draw(st.sampled_from(("", "\n\n", "   \n", "\x0c\n", "# é", "x = 1 \\\n  + 2\t\n")))
    return _bytes(body, draw(INDENTS), draw(ENDINGS), draw(MARKS))


def _bytes(text: str, step: str, ending: str, mark: bytes) -> bytes:
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        deep, rest = divmod(len(line) - len(bare), 4)
        lines.append(step * deep + " " * rest + bare)
    return mark + ending.join(lines).encode()


def comments(data: bytes) -> Counter[str]:
    tokens = tokenize.tokenize(io.BytesIO(data).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def rewritten(data: bytes) -> Rewrite:
    path = Path("script.py")
    return rewrite_source(parse(data, path))


@EXAMPLES
@given(scripts())
def test_a_rewritten_script_parses_and_a_second_run_changes_nothing(data: bytes) -> None:
    done = rewritten(data)
    ast.parse(done.data)
    assert rewritten(done.data).data == done.data


@EXAMPLES
@given(scripts())
def test_a_comment_survives_or_is_named(data: bytes) -> None:
    done = rewritten(data)
    named = Counter(
        note.message.partition(": ")[2] for note in done.edits if note.rule == "comments"
    )
    assert not comments(data) - comments(done.data) - named


@EXAMPLES
@given(scripts())
def test_line_endings_and_byte_order_mark_stay(data: bytes) -> None:
    done = rewritten(data).data
    assert done.startswith(b"\xef\xbb\xbf") == data.startswith(b"\xef\xbb\xbf")
    if b"\r\n" in data:
        assert done.count(b"\n") == done.count(b"\r\n")
    else:
        assert b"\r" not in done


@settings(EXAMPLES, max_examples=40)
@given(plain_scripts())
def test_code_without_anything_of_ours_is_left_byte_for_byte(data: bytes) -> None:
    ast.parse(data)
    done = rewritten(data)
    assert done.data == data
    assert not done.edits
