"""The question whether there is a GPU is answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import OnXla
from migrate.catalogue.prescan import named
from migrate.check.hazard import Severity
from migrate.model.calls.devices import COUNTS
from migrate.reading.replicas.for_cuda import decides_about_pinned, lists_of_gpus, needs_cuda
from migrate.reading.steps.leaving import never_reached
from migrate.reading.values.devices import is_device_count, is_move, names_cuda
from migrate.reading.values.shown import is_shown
from migrate.rewrite.edits.branch import body_of
from migrate.rewrite.edits.gpu_conditions import (
    ASKED,
    Answer,
    first_of,
    fold,
    is_asked,
    parenthesized,
    whole_condition,
)
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    Stage,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.cuda.cuda_memory import FIELDS, FIGURES
from migrate.rewrite.rules.cuda.fused_optimizer import chooses_the_code
from migrate.rewrite.rules.devices.availability import insists, question
from migrate.rewrite.rules.devices.gpu_test_severity import SHOWN, as_bad_as_it_is
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, nodes, nodes_of, string_value

# Libraries to which an accelerator is XLA.
OURS = frozenset({"torch", "torch_xla", "shims"})
OF_WORKERS = (
    "a TPU host has no GPUs to list, and a replica one device: launch a replica for each worker"
)


class CudaAvailable(Rule):
    """Answer `torch.cuda.is_available()` with yes, where the script chooses by it.

    **Why.** On a TPU the question is answered with False: `"cuda" if torch.cuda.is_available() else "cpu"`
    trains on the CPU of the TPU host, without a word. Where only seeds, waits or figures of the memory depend
    on it, or nothing that a TPU needs, this is information.

    **What it does.** Where the script chooses by it, the choice for the accelerator stays:

    - `"cuda" if torch.cuda.is_available() else "cpu"` becomes `"xla"`;
    - `if torch.cuda.is_available(): …` becomes its body, `if not …` its `else`; where the body returns,
      the `return` below it goes;
    - `use_cuda = torch.cuda.is_available() and not args.cpu` becomes `use_cuda = not args.cpu`, and so do the
      flags `enabled=` and `non_blocking=`;
    - a variable of a function with the answer that only `if` statements and choices ask goes, and so do the
      branches that it decides;
    - `assert torch.cuda.is_available()` goes.

    What the script chooses for a GPU alone goes: `torch.cuda.stream(s) if … else nullcontext()`, and
    `"CUDAExecutionProvider"` of ONNX Runtime.

    `torch.accelerator.is_available()` and `torch.cuda.device_count() > 0` are the same question, and
    `torch.cuda.is_bf16_supported()` has the same answer: every TPU has bfloat16.

    **Left alone.** `torch.distributed.is_available()`, which is another question; `fused=` of an optimizer,
    which goes by another rule; `pin_memory and torch.cuda.is_available()`: only CUDA pins memory, and False
    is right.

    **Reported.** Every other use, as in `start(torch.cuda.is_available())` (information if the answer is only
    printed), a choice of the backend
    (`"nccl" if … else "gloo"`), an answer that only another library gets (`faiss.Kmeans(gpu=…)`). A branch
    that asks CUDA for memory figures or the properties of the GPU stays: nothing on XLA answers, and it is
    well skipped; with it stays a branch of the same function that prepares for it. So does one that lists the
    GPUs of the host for workers: the list would be empty.

    Source: torch_xla 2.9 (measured: both are False beside an XLA device).
    """

    name = "cuda-available"
    code = "XLA704"
    stage = Stage.DEVICE
    edited = Severity.WARNING
    nodes = (cst.Call,)
    words = named(ASKED | COUNTS)
    examples = (
        rewritten(
            """
            import torch
            from torch.cuda import is_available as has_gpu

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            where = torch.device("cuda") if has_gpu() else torch.device("cpu")
            """,
            """
            import torch
            import torch_xla

            device = torch.device("xla")
            where = torch.device("xla")
            """,
        ),
        rewritten(
            """
            import torch

            use_gpu = torch.cuda.is_available() and torch.cuda.device_count() > 0
            device = torch.device("cuda:0" if torch.cuda.device_count() >= 1 else "cpu")
            if torch.cuda.device_count() == 0:
                raise SystemExit("no GPU")
            model = torch.nn.Linear(2, 2).cuda() if torch.cuda.device_count() else torch.nn.Linear(2, 2)
            """,
            """
            import torch
            import torch_xla

            use_gpu = True
            device = torch.device("xla")
            model = torch.nn.Linear(2, 2).to("xla")
            """,
        ),
        rewritten(
            """
            import torch

            name = "c" if torch.cuda.is_available() else "b" if torch.cuda.is_available() else "a"
            ones = torch.ones(2)
            """,
            """
            import torch

            name = "c"
            ones = torch.ones(2)
            """,
        ),
        rewritten(
            """
            import torch


            def place(net, index):
                use_cuda = torch.cuda.is_available()
                if use_cuda:
                    device = torch.device("cuda", index)
                else:
                    device = torch.device("cpu")
                return net.to(device), torch.device("cuda") if use_cuda else None


            def place_and_say(net):
                use_cuda = torch.cuda.is_available()
                if use_cuda:
                    net = net.cuda()
                print("CUDA:", use_cuda)
            """,
            """
            import torch


            def place(net, index):
                device = torch.device("xla")
                return net.to(device), torch.device("xla")


            def place_and_say(net):
                use_cuda = True
                if use_cuda:
                    net = net.to("xla")
                print("CUDA:", use_cuda)
            """,
        ),
        rewritten(
            """
            import argparse

            import torch

            parser = argparse.ArgumentParser()
            parser.add_argument('--no-cuda', action='store_true')
            args = parser.parse_args()
            assert torch.cuda.is_available(), 'needs a GPU'
            use_cuda = not args.no_cuda and torch.cuda.is_available()
            batch = torch.ones(2).cuda(non_blocking=torch.cuda.is_available())
            device = torch.device('cuda' if torch.cuda.is_available() and not args.no_cuda else 'cpu')

            # where the model goes
            if torch.cuda.is_available():
                # the fast way
                model = torch.nn.Linear(2, 2).cuda()
                # done
            else:
                model = torch.nn.Linear(2, 2)
            if not torch.cuda.is_available():
                raise SystemExit('no GPU')
            print(model)
            """,
            """
            import argparse

            import torch
            import torch_xla

            parser = argparse.ArgumentParser()
            parser.add_argument('--no-cuda', action='store_true')
            args = parser.parse_args()
            use_cuda = not args.no_cuda
            batch = torch.ones(2).to('xla', non_blocking=True)
            device = torch.device('xla' if not args.no_cuda else 'cpu')

            # where the model goes
            # the fast way
            model = torch.nn.Linear(2, 2).to('xla')
            # done
            print(model)
            """,
        ),
        rewritten(
            """
            import torch


            def where(mps):
                if mps:
                    return torch.device("mps")
                elif torch.cuda.is_available():
                    return torch.device("cuda")
                else:
                    return torch.device("cpu")
            """,
            """
            import torch


            def where(mps):
                if mps:
                    return torch.device("mps")
                else:
                    return torch.device("xla")
            """,
        ),
        rewritten(
            """
            import torch


            def where():
                if torch.cuda.is_available():
                    return torch.device("cuda")
                if torch.backends.mps.is_available():
                    return torch.device("mps")
                return torch.device("cpu")
            """,
            """
            import torch


            def where():
                return torch.device("xla")
            """,
        ),
        rewritten(
            """
            import torch


            def warn(args):
                print(args)

                # where it runs
                if not torch.cuda.is_available():
                    print("slow")
                elif args.gpu:
                    print("fast")
            """,
            """
            def warn(args):
                print(args)

                # where it runs
                if args.gpu:
                    print("fast")
            """,
        ),
        rewritten(
            """
            from contextlib import nullcontext

            import torch

            kernels = ["CUDAExecutionProvider" if torch.cuda.is_available() else "CPUExecutionProvider"]
            order = torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else nullcontext()
            """,
            """
            from contextlib import nullcontext

            kernels = ["CPUExecutionProvider"]
            order = nullcontext()
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist

            if dist.is_available():
                print("distributed")
            """
        ),
        reported(
            """
            import torch

            line = "step {step}"
            if torch.cuda.is_available():
                line += ", {memory}"
            if torch.cuda.is_available():
                print(line.format(step=1, memory=torch.cuda.memory_summary()))
            else:
                print(line.format(step=1))
            """,
            "is skipped",
        ),
        reported(
            """
            import torch


            def step(self):
                if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                    raise RuntimeError("a graph is captured")
            """,
            "is False on a TPU: what only CUDA can tell is skipped",
        ),
        reported(
            """
            import torch

            print(torch.cuda.is_available())
            """,
            "is only shown",
        ),
        reported(
            """
            import torch
            from runs import start

            start(torch.cuda.is_available())
            """,
            "is False on a TPU",
        ),
        reported(
            """
            import faiss
            import torch


            def cluster(sample, size):
                use_gpu = torch.cuda.is_available()
                return faiss.Kmeans(size, 8, gpu=use_gpu).train(sample)
            """,
            "see that this is right for faiss",
        ),
        checked(
            """
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"  # XLA704
            other = "cuda" if torch.accelerator.is_available() else "cpu"  # XLA704
            """
        ),
        checked(
            """
            import torch

            first = "cuda:0" if torch.cuda.is_available() else "cpu"  # XLA704
            device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")  # XLA704
            found = torch.cuda.is_available() and torch.cuda.device_count() > 0  # XLA704
            many = torch.cuda.is_available() and torch.cuda.device_count() > 1  # XLA704 error
            model = torch.nn.Linear(2, 2)
            if torch.cuda.is_available():  # XLA704
                model.cuda()
            else:
                model.to("cpu")
            """
        ),
        checked(
            """
            import torch


            def seed(number):
                torch.manual_seed(number)
                if torch.cuda.is_available():  # XLA704 info
                    torch.cuda.manual_seed_all(number)
                workers = torch.cuda.device_count()  # XLA704 error
                print(max(workers, 1))
                if torch.cuda.device_count() > 1:  # XLA704 error
                    return torch.cuda.device_count()  # XLA704 error
            """
        ),
        checked(
            """
            import torch

            device = "mps" if torch.backends.mps.is_available() else "cpu"
            """
        ),
        checked(
            """
            import torch
            from torch.utils.data import DataLoader


            def make(model, data):
                loader = DataLoader(data, pin_memory=torch.cuda.is_available())
                settings = {"fused": torch.cuda.is_available()}
                return loader, torch.optim.AdamW(model.parameters(), **settings)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for the choice that one call decides."""
        assert isinstance(node, cst.Call)
        return as_bad_as_it_is(self._found(node, context), node, context)

    def _found(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if not is_asked(node, context) or context.devices.says_where_to_load(node):
            return
        if id(node) in context.for_cuda and not context.portable:
            return
        if decides_about_pinned(node, context):
            return  # False on a TPU, which is right
        if is_shown(node, context):
            there = "0" if is_device_count(node, context) else "False"
            message = f"{code(node)} {SHOWN.format(there)}"
            yield from self.report(node, message, Severity.INFO)
            return
        is_part = not isinstance(context.parent(node), cst.Arg | cst.DictElement)
        if not (context.portable and is_part) and chooses_the_code(node, context):
            return  # the argument goes, is left to CUDA, or is told
        condition = whole_condition(node, context)
        above = context.parent(condition)
        if context.portable and not insists(above, condition, fold(condition, condition, context)):
            if isinstance(above, cst.If | cst.IfExp) and _stays(above.body, context):
                yield from self.report(
                    node, f"`{code(node)}`: what only CUDA can tell is skipped elsewhere"
                )
                for gpu_list in lists_of_gpus(above.body, context):
                    yield from self.report(gpu_list, f"`{code(gpu_list)}`: {OF_WORKERS}")
            else:
                yield from question(self, node, context)
            return
        if not first_of(condition, node, context):
            return  # the first question of a condition answers for all of them
        if _goes_with_choice(node, context):
            return
        if _asks_what_raises(condition, context):
            message = f"`{code(condition)}` is False on a TPU: what only CUDA can tell is skipped"
            yield from self.report(node, message, Severity.INFO)
            return
        answer = fold(condition, condition, context)
        if isinstance(above, cst.If) and above.test is condition:
            if _stays(above.body, context):
                skipped = "what only CUDA can tell is skipped"
                if any(names_cuda(below) for below in nodes(above.body)):
                    skipped = "the device that is chosen below it is not taken"
                yield from self.report(node, f"`{code(condition)}` is False on a TPU: {skipped}")
                for gpu_list in lists_of_gpus(above.body, context):
                    yield from self.report(gpu_list, f"`{code(gpu_list)}`: {OF_WORKERS}")
            else:
                yield from self._if(above, condition, answer, context)
            return
        if isinstance(above, cst.IfExp) and above.test is condition:
            if answer is True and _is_for_gpus(above, context):
                yield from self._choice(above, condition, False, context)
                return
            if not _is_about_the_backend(above) and not _stays(above.body, context):
                yield from self._choice(above, condition, answer, context)
                return
        elif isinstance(above, cst.Assert) and above.test is condition and answer is not False:
            yield from self._assert(above, condition, answer, context)
            return
        elif library := _goes_to(above, context):
            message = f"`{code(node)}` is False on a TPU: see that this is right for {library}"
            yield from self.report(node, message, Severity.INFO)
            return
        elif isinstance(above, cst.Assign) and _gives_itself(above, answer):
            message = f"remove `{code(above)}`: what is left of it assigns a name to itself"
            yield self.edit(above, lambda _: cst.RemoveFromParent(), message, consumes=[above])
            return
        elif isinstance(above, cst.Assign) and (tests := _tests_of(above, answer, context)):
            # Nothing asks the variable then, and the statement goes (`rewrite.left.dead`).
            yield self._test(condition, answer, context)
            yield from self._known(tests, answer, context.position(above).line, context)
            return
        elif isinstance(above, cst.Assign | cst.AnnAssign | cst.Return) or _is_flag(above):
            yield self._test(condition, answer, context)
            return
        there = "0" if is_device_count(node, context) else "False"
        message = (
            f"{code(node)} is {there} on a TPU: the script would silently take the way for the CPU"
        )
        yield from self.report(node, message)

    def _if(
        self, node: cst.If, test: cst.BaseExpression, answer: Answer, context: Workspace
    ) -> Iterable[Edit]:
        if not isinstance(answer, bool):
            yield self._test(test, answer, context)
            return
        below = context.parent(node)
        is_elif = isinstance(below, cst.If) and below.orelse is node
        gone: list[cst.CSTNode] = [test]
        gone.append(node.body if answer is False else node.orelse or test)

        def replace(updated: cst.If) -> Replacement:
            if is_elif and answer:
                return cst.Else(body=updated.body, leading_lines=updated.leading_lines)
            if answer:
                return body_of(updated, updated.body)
            if not is_elif and isinstance(updated.orelse, cst.If):
                lines = [*updated.leading_lines, *updated.orelse.leading_lines]
                return updated.orelse.with_changes(leading_lines=lines)
            if is_elif:
                return updated.orelse or cst.RemoveFromParent()
            if updated.orelse is not None:
                return body_of(updated, updated.orelse.body)
            return cst.RemoveFromParent()

        yield self.edit(node, replace, f"`if {code(test)}` is decided: {answer}", consumes=gone)
        if answer and not is_elif:
            for statement in never_reached(node, context):
                message = f"remove `{code(statement)}`: it never runs"
                yield self.edit(
                    statement,
                    lambda _: cst.RemoveFromParent(),
                    message,
                    consumes=[statement],
                    wrong=f"`{code(statement)}`: runs where there is no CUDA, on a TPU too",
                    severity=Severity.INFO,
                )

    def _choice(
        self, node: cst.IfExp, test: cst.BaseExpression, answer: Answer, context: Workspace
    ) -> Iterable[Edit]:
        if not isinstance(answer, bool):
            yield self._test(test, answer, context)
            return
        gone = [test, node.orelse if answer else node.body]
        left = node.body if answer else node.orelse
        # The type of the device, whoever asks for it.
        is_type = string_value(node.body) == "cuda" and string_value(node.orelse) == "cpu"
        own = context.string("xla", like=left) if is_type and not context.portable else None
        if own is not None:
            gone.append(left)

        def replace(updated: cst.IfExp) -> cst.BaseExpression:
            taken = updated.body if answer else updated.orelse
            return parenthesized(taken if own is None else own, updated)

        message = f"`{code(node)}` is decided: {code(left if own is None else own)}"
        edit = self.edit(node, replace, message, consumes=gone)
        # The type that a decided choice of CUDA comes to is a device, too.
        yield dataclasses.replace(edit, names_device=string_value(node.body) == "cuda")

    def _assert(
        self, node: cst.Assert, test: cst.BaseExpression, answer: Answer, context: Workspace
    ) -> Iterable[Edit]:
        if isinstance(answer, bool):
            message = f"remove `{code(node)}`: it fails on a TPU"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        else:
            yield self._test(test, answer, context)

    def _known(
        self, tests: Sequence[cst.Name], answer: Answer, line: int, context: Workspace
    ) -> Iterable[Edit]:
        """Yield the edits that decide the branches which ask a variable with the answer, made in `line`."""
        asks = f"`{code(tests[0])}` ({at_line(line)}) asks for CUDA"
        wrong = f"{asks}: on a TPU the branch for the CPU would run"
        for test in tests:
            above = context.parent(test)
            edits: Iterable[Edit] = ()
            if isinstance(above, cst.If):
                edits = self._if(above, test, answer, context)
            elif isinstance(above, cst.IfExp):
                edits = self._choice(above, test, answer, context)
            for edit in edits:
                yield dataclasses.replace(edit, wrong=wrong, severity=Severity.INFO)

    def _test(self, test: cst.BaseExpression, answer: Answer, context: Workspace) -> Edit:
        """Return the edit of a partly decided condition, or of a value."""

        def replace(updated: cst.BaseExpression) -> cst.BaseExpression:
            left = fold(test, updated, context)
            return cst.Name(str(left)) if isinstance(left, bool) else left

        shown = str(answer) if isinstance(answer, bool) else code(answer)
        asked = [c for c in context.below(test, cst.Call) if is_asked(c, context)]
        gone: list[cst.CSTNode] = [test] if isinstance(answer, bool) else [*asked]
        return self.edit(test, replace, f"`{code(test)}` → `{shown}`", consumes=gone)


def _goes_with_choice(node: cst.Call, context: Workspace) -> bool:
    """Whether the choice around `node` is decided against its part: `a if cuda() else b if cuda() else c`."""
    below: cst.CSTNode = node
    for above in context.ancestors(node):
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        if isinstance(above, cst.IfExp) and below is not above.test:
            answer = fold(above.test, above.test, context)
            asks = any(is_asked(call, context) for call in context.below(above.test, cst.Call))
            if asks and isinstance(answer, bool) and below is (above.body, above.orelse)[answer]:
                return True
        below = above
    return False


def _tests_of(assign: cst.Assign, answer: Answer, context: Workspace) -> tuple[cst.Name, ...]:
    """Return the mentions of a variable of a function, if branches ask it and nothing else uses it."""
    target = assign.targets[0].target
    function = context.function_around(assign)
    if not isinstance(answer, bool) or len(assign.targets) != 1 or function is None:
        return ()
    if not isinstance(target, cst.Name) or len(context.bindings(target)) != 1:
        return ()
    mentions = [
        name
        for name in context.below(function, cst.Name)
        if name.value == target.value and name is not target
    ]
    for name in mentions:
        above = context.parent(name)
        if not isinstance(above, cst.If | cst.IfExp) or above.test is not name:
            return ()
        if _stays(above.body, context) or lists_of_gpus(above.body, context):
            return ()
        if isinstance(above, cst.IfExp) and _is_for_gpus(above, context):
            return ()
    return tuple(mentions)


def _gives_itself(assign: cst.Assign, answer: Answer) -> bool:
    """Whether nothing is left of an assignment but `log = log`."""
    if isinstance(answer, bool) or len(assign.targets) != 1:
        return False
    return code(assign.targets[0].target) == code(answer)


def _is_flag(node: cst.CSTNode | None) -> bool:
    """Whether `node` is an argument that controls the use of the device: `enabled` of autocast."""
    keyword = node.keyword if isinstance(node, cst.Arg) else None
    return keyword is not None and keyword.value in ("enabled", "non_blocking")


def _goes_to(assign: cst.CSTNode | None, context: Workspace) -> str:
    """Return the library that alone gets what `assign` binds, `faiss` of `Kmeans(gpu=use_gpu)`; "" if none.

    It knows nothing of XLA, and would look for a GPU.
    """
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return ""
    target = assign.targets[0].target
    if not isinstance(target, cst.Name):
        return ""
    names = set()
    for use in context.references(target.value):
        if use is target or context.bound_to(use)[1] is not assign.value:
            continue
        arg = context.parent(use)
        call = context.parent(arg) if isinstance(arg, cst.Arg) else None
        name = context.qualified_name(call.func) if isinstance(call, cst.Call) else None
        root = (name or "").partition(".")[0]
        names.add("" if context.calls.is_local(name or "") or root in OURS else root)
    return names.pop() if len(names) == 1 else ""


def _is_for_gpus(choice: cst.IfExp, context: Workspace) -> bool:
    """Whether only a GPU has what is chosen for CUDA: one of its streams, ONNX's kernels."""
    if string_value(choice.body) == "CUDAExecutionProvider":
        return True
    sides = [
        context.qualified_name(side.func) if isinstance(side, cst.Call) else None
        for side in (choice.body, choice.orelse)
    ]
    return sides == ["torch.cuda.stream", "contextlib.nullcontext"]


def _is_about_the_backend(choice: cst.IfExp) -> bool:
    return any(name in code(choice) for name in ("nccl", "gloo"))


def _stays(branch: cst.CSTNode, context: Workspace) -> bool:
    """Whether `branch` asks what only CUDA answers, or prepares for a branch that does.

    A branch prepares that has nothing of CUDA in it, in a function where another one asks.
    """
    if _asks_for_figures(branch, context) or _is_only_cudas(branch, context):
        return True
    if lists_of_gpus(branch, context):
        return True  # without it nothing would be left of the workers
    calls = list(nodes_of(branch, cst.Call))
    uses = any((context.qualified_name(c.func) or "").startswith("torch.cuda.") for c in calls)
    if uses or any(names_cuda(node) for node in nodes(branch)):
        return False
    if any(is_move(call, context) for call in calls):
        return False
    around = context.function_around(branch) or context.module
    others = (node for node in context.below(around, cst.If) if node.body is not branch)
    return any(
        any(is_asked(call, context) for call in context.below(other.test, cst.Call))
        and _asks_for_figures(other.body, context)
        for other in others
    )


def _asks_what_raises(condition: cst.BaseExpression, context: Workspace) -> bool:
    """Whether a condition also calls what raises without CUDA, and stays: the question protects that call."""
    if not isinstance(condition, cst.BooleanOperation):
        return False
    entries = (
        catalogue.of(context.qualified_name(call.func) or "")
        for call in context.below(condition, cst.Call)
        if not is_asked(call, context)
    )
    return any(
        entry is not None and entry.on_xla is OnXla.RAISES and not entry.rule for entry in entries
    )


def _is_only_cudas(branch: cst.CSTNode, context: Workspace) -> bool:
    """Whether `branch` does what only CUDA can; in the portable style some of that is done everywhere."""
    names = (context.qualified_name(call.func) for call in context.below(branch, cst.Call))
    if context.portable and any(name in FIELDS for name in names):
        return False
    return needs_cuda(branch, context)


def _asks_for_figures(branch: cst.CSTNode, context: Workspace) -> bool:
    calls = nodes_of(branch, cst.Call)
    # In the portable style some figures are those of every device.
    figures = FIGURES - FIELDS.keys() if context.portable else FIGURES
    return any(context.qualified_name(call.func) in figures for call in calls)
