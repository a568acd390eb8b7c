"""What must hold of a rewritten project, whatever it is: each is compared with the original.

A rewrite may leave what it cannot decide, if it says so; so a place counts only where neither a finding of
the rewrite (at the line of the original) nor one of `migrate check` (at the line of the result) is on its
statement. What the original does too is not ours, and does not count either.
"""

from __future__ import annotations

import ast
import importlib.machinery
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import cast

from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.notebook.cells import join
from migrate.syntax.notebook.text import SUFFIX, parse_notebook
from migrate.syntax.origins import origins

# Words that stand for one process of several, in a test or in the name of a decorator.
RANK_WORDS = re.compile(
    r"(^|_)(rank|ranks|is_?main|is_?master|is_?primary|is_?chief|main_process|master|chief|leader|main_proc)"
    r"(_|$|\d)|is_global_zero|ordinal",
    re.IGNORECASE,
)
# A test that asks if there are ranks at all.
CONFIGURES = re.compile(
    r"rank\w*(\(\))? is (not )?None|environ|rank\w* (!=|==|>=?|>) -1|\bhas_?attr\b"
)
CUDA_TEXT = re.compile(r"torch\.cuda|^nccl$|^cuda:|^cuda$|cuda:nccl")
# Options of kernels and memory that only CUDA has; a variable of this name stays False on XLA.
FOR_CUDA = re.compile(r"fused|pin_memory|pinned|non_blocking")
# What only tells something: not `sys.exit("needs CUDA")`.
SAYS = re.compile(r"print|log|info|warn|debug")
# What scripts keep the index of a device under.
DEVICE = re.compile(r"device|accelerator|gpu|cuda|rank|(^|[._])dev$")
# Calls in which all replicas have to take part, by the modules that have them.
COLLECTIVES = {
    "torch_xla.core.xla_model": frozenset(
        {
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "collective_permute",
            "rendezvous",
        }
        | {"save", "mesh_reduce", "optimizer_step", "reduce_gradients", "broadcast_master_param"}
    ),
    "torch.distributed": frozenset(
        {
            "all_reduce",
            "all_gather",
            "all_gather_object",
            "all_gather_into_tensor",
            "reduce_scatter",
        }
        | {
            "reduce_scatter_tensor",
            "all_to_all",
            "all_to_all_single",
            "barrier",
            "broadcast",
            "reduce",
        }
        | {"broadcast_object_list", "gather", "gather_object", "scatter", "monitored_barrier"}
    ),
    "torch_xla.utils.serialization": frozenset({"save"}),
    "mpi4py.MPI.COMM_WORLD": frozenset(
        {"bcast", "Bcast", "barrier", "Barrier", "allreduce", "allgather"}
    ),
}
OURS = "torch_xla"
SKIPPED_NAMES = frozenset(
    {"save", "load", "train", "main", "run", "step", "update", "get", "forward"}
)


@dataclass(frozen=True, order=True)
class Broken:
    """A place at which an invariant does not hold.

    Args:
        file, line: of the result.
        what: is wrong there.
    """

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class Code:
    """The Python of a file, or of the cells of a notebook.

    Args:
        name: its path in the project.
        data: its content.
    """

    def __init__(self, name: Path, data: bytes) -> None:
        self.name = name
        self.cells = join(parse_notebook(data, name)) if name.suffix == SUFFIX else None
        self.data = self.cells.code.encode() if self.cells else data
        self.tree = syntax_tree(self.data)
        self.lines = self.data.decode(errors="replace").splitlines()

    def line(self, line: int, cell: int | None) -> Iterator[int]:
        """Yield the lines that a finding at `line` of `cell` is on."""
        if self.cells is None or cell is None:
            yield line
            return
        yield from (n for n, place in enumerate(self.cells.places, 1) if place == (cell, line))

    @cached_property
    def statements(self) -> dict[int, tuple[int, int]]:
        """The first and the last line of the statement, or of the head of the block, on each line."""
        found: dict[int, tuple[int, int]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt | ast.excepthandler):
                first, last = node.lineno, node.end_lineno or node.lineno
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min([first, *(d.lineno for d in node.decorator_list)])
                if body := getattr(node, "body", None):
                    last = max(first, body[0].lineno - 1)
                found |= dict.fromkeys(range(first, last + 1), (first, last))
        return found

    @cached_property
    def above(self) -> dict[ast.AST, ast.AST]:
        """What is around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> dict[str, str]:
        """What the imported names of the file stand for; where one does twice, the last."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    head = alias.name.partition(".")[0]
                    found[alias.asname or head] = alias.name if alias.asname else head
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
        return found

    def dotted(self, node: ast.expr) -> str:
        """Return what a name stands for, by the imports; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imported.get(node.id, node.id), *reversed(parts)])

    @cached_property
    def texts(self) -> list[ast.Constant]:
        """The strings that are no documentation."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not isinstance(self.above.get(node), ast.Expr)
        ]


class Pair:
    """A file as it was and as it is.

    Args:
        before, after: its code.
        found: the lines of the original that have a finding of the rewrite.
        checked: the lines of the result that have one of the check.
    """

    def __init__(
        self, before: Code, after: Code, found: Iterable[int], checked: Iterable[int]
    ) -> None:
        self.before, self.after = before, after
        self.origins = {line: i for line, (i, _) in origins(before.lines, after.lines).items()}
        self.found, self.checked = set(found), set(checked)

    @property
    def name(self) -> str:
        """Its path in the project."""
        return self.after.name.as_posix()

    def told(self, line: int) -> bool:
        """Whether there is a finding on the statement at a line of the result."""
        first, last = self.after.statements.get(line, (line, line))
        if self.checked & set(range(first, last + 1)):
            return True
        for number in range(first, last + 1):
            if (origin := self.origins.get(number)) is not None:
                one, other = self.before.statements.get(origin, (origin, origin))
                if self.found & set(range(one, other + 1)):
                    return True
        return False


def cuda_left(pair: Pair, read: Set[str]) -> Iterator[Broken]:
    """Yield what names a GPU and nothing is said of: `torch.cuda`, `.cuda()`, "nccl", "cuda:0".

    An import alone does nothing. A scaler that is switched off does nothing either, and neither does the
    default of an option that nothing reads any more.

    Args:
        pair: the file.
        read: the attributes that are read anywhere in the result.
    """
    code = pair.after
    places: dict[int, str] = {}
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Attribute):
            name = code.dotted(node)
            if _is_of_cuda(node, name, code):
                places.setdefault(node.lineno, name)
            elif node.attr == "cuda" and not name.startswith("torch.") and _is_called(node, code):
                places.setdefault(node.lineno, ".cuda()")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = code.dotted(node)
            if _is_of_cuda(node, name, code):
                places.setdefault(node.lineno, name)
    for text in code.texts:
        if (
            CUDA_TEXT.search(text.value)
            and " " not in text.value
            and not _is_unread(text, code, read)
            and not _is_taken_out(text, code)
            and not _reads_entry(text, code)
        ):
            places.setdefault(text.lineno, repr(text.value))
    skipped = set(_well_skipped(code))
    for line, what in sorted(places.items()):
        if line not in skipped and not pair.told(line):
            yield Broken(pair.name, line, f"{what} is left")


def _well_skipped(code: Code) -> Iterator[int]:
    """Yield the lines of branches for the device "cuda" alone, which do what only CUDA can."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Assign) and _decides_for_cuda(node, code):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)
        if isinstance(node, ast.If) and _says_what_cuda_has(node):
            yield node.lineno
        asks = isinstance(node, ast.If | ast.IfExp) and _asks_for_cuda(node.test)
        if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Call):
            asks = code.dotted(node.test.func) == "torch.cuda.is_available"
        if isinstance(node, ast.If | ast.IfExp) and asks:
            body = node.body if isinstance(node.body, list) else [node.body]
            names = (below for one in body for below in ast.walk(one))
            if any(isinstance(n, ast.Attribute) and code.dotted(n) == "torch.cuda" for n in names):
                last = max(one.end_lineno or 0 for one in body)
                yield from range(node.lineno, last + 1)


def _says_what_cuda_has(branch: ast.If) -> bool:
    """Whether `branch` is `if device != "cuda":` and only says that something is left out."""
    test = branch.test
    differs = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)
    return (
        differs
        and _asks_for_cuda(test)
        and all(
            isinstance(one, ast.Expr)
            and isinstance(one.value, ast.Call)
            and SAYS.search(ast.unparse(one.value.func).rpartition(".")[2])
            and all(isinstance(arg, ast.Constant | ast.JoinedStr) for arg in one.value.args)
            for one in branch.body
        )
    )


def _decides_for_cuda(assign: ast.Assign, code: Code) -> bool:
    """Whether what is bound decides about memory and kernels of CUDA: by its name, or by all its uses."""
    name = ast.unparse(assign.targets[0])
    if FOR_CUDA.search(name):
        return True
    uses = [
        code.above.get(node)
        for node in ast.walk(code.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return bool(uses) and all(
        isinstance(use, ast.keyword) and FOR_CUDA.search(use.arg or "") for use in uses
    )


def _is_taken_out(text: ast.Constant, code: Code) -> bool:
    """Whether what has `text` has it no more: `name.replace("cuda:", "")`, `mock.patch("torch.cuda.…")`."""
    call = code.above.get(text)
    if not isinstance(call, ast.Call) or text not in call.args[:1]:
        return False
    if code.dotted(call.func) == "unittest.mock.patch":
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("replace", "patch")


def _reads_entry(text: ast.Constant, code: Code) -> bool:
    """Whether `text` names an entry that is read: `jobs["cuda:0"]`. What names it so has a finding."""
    key = code.above.get(text)
    if not isinstance(key, ast.JoinedStr):
        key = text
    entry = code.above.get(key)
    return isinstance(entry, ast.Subscript) and isinstance(entry.ctx, ast.Load)


def _asks_for_cuda(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value == "cuda"
        for compared in ast.walk(test)
        if isinstance(compared, ast.Compare)
        for node in ast.walk(compared)
    )


def _is_of_cuda(node: ast.Attribute | ast.Name, name: str, code: Code) -> bool:
    """Whether `node` is the whole of what the script says of a name of torch.cuda, and does something."""
    above = code.above.get(node)
    if not name.startswith("torch.cuda") or isinstance(above, ast.Attribute):
        return False
    if any(getattr(above, at, None) is node for at in ("annotation", "returns")):
        return False
    options = above.keywords if isinstance(above, ast.Call) and above.func is node else []
    if isinstance(above, ast.Call) and ast.unparse(above.func) == "isinstance":
        # The scaler that is left, switched off, is still of this class.
        return not name.endswith(".GradScaler")
    off = any(k.arg == "enabled" and ast.unparse(k.value) == "False" for k in options)
    return not (off and name.endswith(".GradScaler"))


def _is_unread(text: ast.Constant, code: Code, read: Set[str]) -> bool:
    """Whether `text` is the default of an option that nothing reads, or whose help says so."""
    keyword = code.above.get(text)
    call = code.above.get(keyword) if isinstance(keyword, ast.keyword) else None
    if not isinstance(call, ast.Call) or keyword.arg != "default":  # type: ignore[union-attr]
        return False
    if any(k.arg == "help" and "no effect on a TPU" in ast.unparse(k.value) for k in call.keywords):
        return True
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    names += [
        k.value.value
        for k in call.keywords
        if k.arg == "dest" and isinstance(k.value, ast.Constant)
    ]
    return bool(names) and not any(
        str(name).lstrip("-").replace("-", "_") in read for name in names
    )


def attributes_read(codes: Iterable[Code]) -> set[str]:
    """Return the names of all attributes that are read, and of those that are asked for as a text."""
    return {
        node.attr
        for code in codes
        for node in ast.walk(code.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def _is_called(node: ast.Attribute, code: Code) -> bool:
    above = code.above.get(node)
    return isinstance(above, ast.Call) and above.func is node


def names_of_rank(test: ast.AST) -> bool:
    """Whether an expression asks for the replica that runs it."""
    for node in ast.walk(test):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if isinstance(name, str) and RANK_WORDS.search(name):
            return True
    return False


@dataclass
class Program:
    """The functions of a project, and which of them have a collective in them.

    Args:
        codes: all files.
    """

    codes: Sequence[Code]
    functions: dict[str, list[tuple[Code, ast.FunctionDef]]] = field(init=False)

    def __post_init__(self) -> None:
        self.functions = defaultdict(list)
        for code in self.codes:
            for node in ast.walk(code.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.functions[node.name].append((code, cast(ast.FunctionDef, node)))

    @cached_property
    def collective(self) -> set[int]:
        """The functions, by id, that run a collective, themselves or by what they call."""
        found: set[int] = set()
        every = [one for same in self.functions.values() for one in same]
        while True:
            new = {
                id(function)
                for code, function in every
                if id(function) not in found
                and any(self._waits(call, code, found) for call in _calls(function.body))
            }
            if not new:
                return found
            found |= new

    def _waits(self, call: ast.Call, code: Code, known: set[int]) -> str:
        name = code.dotted(call.func)
        module, _, last = name.rpartition(".")
        if (
            last in COLLECTIVES.get(module, ())
            and not _of_a_group(call)
            and not (last == "save" and _writes_alone(call, code))
        ):
            return f"{module.rpartition('.')[2]}.{last}"
        if (runs := self._runs(call, code)) is not None and id(runs) in known:
            return f"{runs.name}, which has a collective"
        return ""

    def _runs(self, call: ast.Call, code: Code) -> ast.FunctionDef | None:
        """Return the function that a call runs, where its name leaves no doubt."""
        func = call.func
        if isinstance(func, ast.Name):
            same = self.functions.get(code.imported.get(func.id, func.id).rpartition(".")[2], [])
            here = [one for where, one in same if where is code]
            if func.id not in code.imported:
                return here[0] if len(here) == 1 else None
            return same[0][1] if len(same) == 1 else None
        if not isinstance(func, ast.Attribute):
            return None
        same = self.functions.get(func.attr, [])
        if isinstance(func.value, ast.Name) and func.value.id == "self":
            same = [one for one in same if one[0] is code]
        elif func.attr in SKIPPED_NAMES and code.dotted(func.value) not in code.imported.values():
            return None
        return same[0][1] if len(same) == 1 else None

    def guarded(self) -> Iterator[tuple[Code, int, str]]:
        """Yield the collectives that a test of the rank keeps from some replicas.

        Not what stands in both branches of a test.
        """
        for code in self.codes:
            for block, other in _guarded_blocks(code.tree):
                both = {ast.unparse(call.func) for call in _calls(other)}
                for call in _calls(block):
                    what = self._waits(call, code, self.collective)
                    if what and ast.unparse(call.func) not in both:
                        yield code, call.lineno, what


def _of_a_group(call: ast.Call) -> bool:
    """Whether a collective names the processes that take part."""
    return any(k.arg in ("group", "groups", "process_group") for k in call.keywords)


def _writes_alone(call: ast.Call, code: Code) -> bool:
    """Whether a save waits for no replica: each writes its own, and a sync above left nothing pending."""
    own = any(
        k.arg == "master_only" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in call.keywords
    )
    function: ast.AST | None = call
    while function is not None and not isinstance(function, ast.FunctionDef):
        function = code.above.get(function)
    body = function.body if isinstance(function, ast.FunctionDef) else code.tree.body
    # Statements of the function itself: every replica runs them, until one leaves.
    before = [one for one in body if isinstance(one, ast.Expr) and one.lineno < call.lineno]
    return own and any(
        isinstance(one.value, ast.Call) and code.dotted(one.value.func) == "torch_xla.sync"
        for one in before
    )


def _calls(body: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls of some statements, without those of functions that are only defined there."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def _guarded_blocks(tree: ast.AST) -> Iterator[tuple[list[ast.AST], list[ast.AST]]]:
    """Yield what stands below a test of the rank, on either side, or after one that leaves.

    With it comes what the other replicas run instead.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _asks_for_rank(node.test):
            yield [*node.body], [*node.orelse]
            yield [*node.orelse], [*node.body]
        if isinstance(node, ast.FunctionDef) and any(map(names_of_rank, node.decorator_list)):
            yield [*node.body], []
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for index, one in enumerate(body if isinstance(body, list) else ()):
                leaves = isinstance(one, ast.If) and isinstance(
                    one.body[-1], ast.Return | ast.Continue
                )
                if leaves and _asks_for_rank(one.test):
                    yield cast(list[ast.AST], body)[index + 1 :], [*one.body]


def _asks_for_rank(test: ast.expr) -> bool:
    """Whether some replicas take another branch; not so where a test asks if there are ranks at all."""
    return names_of_rank(test) and not CONFIGURES.search(ast.unparse(test))


def under_a_rank(pairs: Sequence[Pair]) -> Iterator[Broken]:
    """Yield the collectives of the result that only some replicas enter, and of which nothing is said."""
    before = Program([pair.before for pair in pairs])
    theirs = Counter((code.name, line) for code, line, _ in before.guarded())
    by_name = {pair.after.name: pair for pair in pairs}
    seen = set()
    for code, line, what in Program([pair.after for pair in pairs]).guarded():
        pair = by_name[code.name]
        place = (code.name, line)
        if place in seen or (code.name, pair.origins.get(line)) in theirs:
            continue
        seen.add(place)
        if not pair.told(line):
            yield Broken(pair.name, line, f"{what}, below a test of the rank")


def numbers_lost(pair: Pair) -> Iterator[Broken]:
    """Yield the numbers that became the name of a device, though nothing says that they were one."""
    before = {
        node.lineno: node for node in ast.walk(pair.before.tree) if isinstance(node, ast.Assign)
    }
    for node in ast.walk(pair.after.tree):
        if isinstance(node, ast.Assign) and getattr(node.value, "value", None) == "xla":
            was = before.get(pair.origins.get(node.lineno, 0))
            number = was.value if was is not None else None
            name = ast.unparse(node.targets[0])
            is_number = isinstance(number, ast.Constant) and isinstance(number.value, int)
            if is_number and not DEVICE.search(name):
                yield Broken(pair.name, node.lineno, f"{name} was a number")


def steps_in_steps(pair: Pair) -> Iterator[Broken]:
    """Yield the steps of the result that stand in another one, which the original had not."""
    theirs = len(list(_inner_steps(pair.before)))
    for block in list(_inner_steps(pair.after))[theirs:]:
        yield Broken(pair.name, block.lineno, "a step in a step")


def _inner_steps(code: Code) -> Iterator[ast.With]:
    """Yield the blocks of a step below another one of the same function."""
    for block in ast.walk(code.tree):
        if not isinstance(block, ast.With) or not _is_step(block, code):
            continue
        above = code.above.get(block)
        while above is not None and not isinstance(above, ast.FunctionDef | ast.Lambda):
            if isinstance(above, ast.With) and _is_step(above, code):
                yield block
                break
            above = code.above.get(above)


def _is_step(block: ast.With, code: Code) -> bool:
    calls = (i.context_expr for i in block.items if isinstance(i.context_expr, ast.Call))
    return any(code.dotted(call.func) in ("torch_xla.step", "shims.step") for call in calls)


MYPY = (
    *("-m", "mypy", "--follow-imports=skip", "--ignore-missing-imports", "--check-untyped-defs"),
    *("--allow-redefinition", "--no-error-summary", "--show-error-codes", "--hide-error-context"),
    "--show-column-numbers",
    *(
        "--no-color-output",
        "--no-pretty",
        "--no-warn-no-return",
        "--python-version=3.11",
        "--config-file=",
    ),
    *("--disable-error-code=annotation-unchecked", "--enable-error-code=possibly-undefined"),
)
UNBOUND_LINE = re.compile(
    r'^(?P<file>\S+?):(?P<line>\d+):(?P<column>\d+): error: (?:Name "(?P<name>\w+)".*|.*)'
    r"\[(?P<code>possibly-undefined|name-defined|used-before-def)\]$"
)
# What the guard of a script holds is a function to mypy on both sides: it looks into these alone.
MAIN = re.compile(rb"^if __name__ == .__main__.:", re.MULTILINE)
# Which files have which name unbound at which lines and columns (from 0), and mypy's word for it.
Unbound = Mapping[Path, Sequence[tuple[int, int, str, str]]]


def unbound(pairs: Sequence[Pair], scratch: Path, cache: Path) -> Iterator[Broken]:
    """Yield the names that a path reaches without binding them, in the result and not in the original.

    A name that the original reads below the same tests as it binds it is unbound on a path for mypy too;
    it counts where the result reads it below fewer tests than the original did.
    """
    changed = [pair for pair in pairs if pair.before.data != pair.after.data]
    before = _unbound([pair.before for pair in changed], scratch / "before", cache)
    after = _unbound([pair.after for pair in changed], scratch / "after", cache)
    for pair in changed:
        declared = {name for node in ast.walk(pair.after.tree) for name in _declared(node)}
        theirs: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for line, column, name, code in before.get(pair.before.name, ()):
            theirs[name, code][line] = column
        for line, column, name, code in after.get(pair.after.name, ()):
            origin = pair.origins.get(line)
            known = theirs[name, code]
            if code != "possibly-undefined":
                if not known and name not in declared and not pair.told(line):
                    yield Broken(pair.name, line, f"{name} is not defined")
                continue
            if known and (origin is None or origin not in known):
                origin = min(known, key=lambda one: abs(one - (origin or line)))
            if _has_its_test(pair.after, line, column, name):
                continue
            if known and origin is not None:
                tests = Counter(_tests(pair.before, origin, known[origin]))
                if not tests - Counter(_tests(pair.after, line, column)):
                    continue
            if not pair.told(line):
                yield Broken(pair.name, line, f"{name} may have no value")


def _declared(node: ast.AST) -> list[str]:
    """Return what `global` says is bound in the module; mypy wants to see it bound there."""
    return node.names if isinstance(node, ast.Global) else []


def _tests(code: Code, line: int, column: int) -> Iterator[str]:
    """Yield the tests around what stands at a place, one for each part of `a and b`."""
    places = (n for n in ast.walk(code.tree) if isinstance(n, ast.Name) and n.lineno == line)
    inner: ast.AST | None = next((n for n in places if n.col_offset == column), None)
    while inner is not None:
        above = code.above.get(inner)
        if isinstance(above, ast.If) and "__name__" not in ast.unparse(above.test):
            if inner in above.body:
                yield from ("if" for _ in _parts(above.test))
            else:
                yield "else" if inner in above.orelse else "test"
        elif isinstance(above, ast.IfExp):
            yield "if" if inner is above.body else "else" if inner is above.orelse else "test"
        inner = above


def _parts(test: ast.expr) -> list[ast.expr]:
    """Return the conditions that all must hold."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _has_its_test(code: Code, line: int, column: int, name: str) -> bool:
    """Whether `name` is read below a test, and bound below another one of the same words before."""
    reading: set[str] = set()
    binding: set[str] = set()
    for node in ast.walk(code.tree):
        if isinstance(node, ast.If | ast.IfExp):
            body = node.body if isinstance(node.body, list) else [node.body]
            below = [n for one in body for n in ast.walk(one) if isinstance(n, ast.Name)]
            if any((n.lineno, n.col_offset) == (line, column) for n in below):
                reading.update(map(ast.unparse, _parts(node.test)))
            elif any(
                n.id == name and isinstance(n.ctx, ast.Store) and n.lineno < line for n in below
            ):
                binding.add(ast.unparse(node.test))
    return bool(reading & binding)


def _unbound(codes: Sequence[Code], folder: Path, cache: Path) -> Unbound:
    """Return what mypy says of some files, each without the others."""
    # Deep enough for relative imports, and named apart.
    inner = folder.joinpath(*"abcdef")
    inner.mkdir(parents=True)
    for place in [inner, *inner.parents]:
        if place == folder:
            break
        (place / "__init__.py").touch()
    names = {}
    for number, code in enumerate(codes):
        path = inner / f"file_{number}.py"
        path.write_bytes(MAIN.sub(b"def __main__():", code.data))
        names[path.name] = code.name
    if not names:
        return {}
    command = [sys.executable, *MYPY, f"--cache-dir={cache}", str(folder / "a")]
    while True:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode in (0, 1):
            break
        refused = re.search(r"(\S*?(file_\d+\.py)):\d+:\d+: error: ", done.stdout)
        if refused is None:
            raise RuntimeError(f"mypy: {(done.stdout + done.stderr).strip()[-300:]}")
        (inner / refused[2]).unlink()  # a comment that begins as those of types do
    found: dict[Path, list[tuple[int, int, str, str]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if (match := UNBOUND_LINE.match(line)) and match["name"]:
            file = names[Path(match["file"]).name]
            place = int(match["line"]), int(match["column"]) - 1
            found[file].append((*place, match["name"], match["code"]))
    return found


class Imports:
    """Which imports of a project are found: in its own files, or among the installed packages.

    Args:
        codes: its files.
    """

    def __init__(self, codes: Sequence[Code]) -> None:
        self._files = {code.name.as_posix(): code for code in codes}
        self._folders = {
            parent.as_posix() for name in map(Path, self._files) for parent in name.parents
        }

    def missing(self, code: Code) -> Iterator[tuple[int, str]]:
        """Yield the imports of a file that nothing answers, with their lines."""
        for node in ast.walk(code.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if not self._is_module(alias.name, code):
                        yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                for alias in node.names:
                    if alias.name != "*" and not self._has(node.level, module, alias.name, code):
                        yield node.lineno, f"{'.' * node.level}{module}.{alias.name}"

    def _is_module(self, name: str, code: Code) -> bool:
        return self._local(0, name, code) is not None or installed(name) is not None

    def _has(self, level: int, module: str, name: str, code: Code) -> bool:
        local = self._local(level, module, code)
        if local is not None:
            inner = f"{module}.{name}" if module else name
            return (isinstance(local, Code) and _binds(local.tree, name)) or self._local(
                level, inner, code
            ) is not None
        if level:
            return False
        found = installed(module)
        return found is not None and (
            _offers(found, name) or installed(f"{module}.{name}") is not None
        )

    def _local(self, level: int, module: str, code: Code) -> Code | str | None:
        """Return the file of a module of the project; a folder without one as its name."""
        here = code.name.parent
        places = [here, *here.parents]
        if level:
            places = places[level - 1 : level]
        tail = module.replace(".", "/")
        for place in places:
            path = (place / tail).as_posix() if tail else place.as_posix()
            for file in (f"{path}.py", f"{path}/__init__.py".removeprefix("./")):
                if file in self._files and file != code.name.as_posix():
                    return self._files[file]
            if path in self._folders and path != ".":
                return path
        return None


def _binds(tree: ast.AST, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in (name, "__getattr__"):
                return True
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = {(a.asname or a.name.partition(".")[0]) for a in node.names}
            if name in bound or "*" in bound:
                return True
    return False


@lru_cache(None)
def installed(name: str) -> str | None:
    """Return where an installed module lies, without importing it or what is around it."""
    path: Sequence[str] | None = None
    spec = None
    if name.partition(".")[0] in sys.builtin_module_names:
        return "built-in"
    parts = name.split(".")
    for index in range(len(parts)):
        inner = ".".join(parts[: index + 1])
        finders = [importlib.machinery.PathFinder] if index else sys.meta_path  # editable ones too
        found = (finder.find_spec(inner, path) for finder in finders)
        spec = next(filter(None, found), None)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return (spec.origin or "namespace") if spec else None


@lru_cache(None)
def _offers(origin: str, name: str) -> bool:
    if not origin.endswith(".py"):
        return True  # compiled: not looked into
    try:
        tree = syntax_tree(Path(origin).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return True
    return _binds(tree, name) or "globals()" in Path(origin).read_text(errors="replace")


def unresolved(pairs: Sequence[Pair]) -> Iterator[Broken]:
    """Yield the imports of the result that nothing answers, where the original has no such import."""
    before, after = (Imports([getattr(p, side) for p in pairs]) for side in ("before", "after"))
    for pair in pairs:
        missing = list(after.missing(pair.after))
        theirs = {name for _, name in before.missing(pair.before)} if missing else set()
        for line, name in missing:
            if name not in theirs:
                yield Broken(pair.name, line, f"{name} is not found")
        yield from _unknown_words(pair)


def _unknown_words(pair: Pair) -> Iterator[Broken]:
    """Yield what the result asks of torch_xla and torch_xla does not have."""
    code = pair.after
    written = {name: full for name, full in code.imported.items() if full.startswith(OURS)}
    for node in ast.walk(code.tree) if written else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = written.get(node.value.id)
            origin = installed(module) if module else None
            if (
                origin
                and not _offers(origin, node.attr)
                and installed(f"{module}.{node.attr}") is None
            ):
                yield Broken(pair.name, node.lineno, f"{module}.{node.attr} is not found")


def compiles(name: Path, before: bytes, after: bytes) -> Broken | None:
    """Return what is wrong with a file of the result that Python compiled before."""
    try:
        compile(Code(name, before).data, str(name), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    try:
        compile(Code(name, after).data, str(name), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else 1
        return Broken(name.as_posix(), line or 1, f"does not compile: {error}")
    return None
