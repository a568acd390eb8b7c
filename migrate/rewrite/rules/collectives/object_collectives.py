"""Collectives of Python objects go over a gloo group."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.prescan import spelled
from migrate.check.common import is_a_type
from migrate.check.hazard import Severity
from migrate.reading.facts import Facts, facts_of
from migrate.reading.values.collectives import OBJECTS, called, makes_gloo_group
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.written import as_shims, beside
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

# The library whose evaluator gathers results by a collective of its own, and the method that does.
EVALUATORS = "faster_coco_eval"
GATHERS = "synchronize_between_processes"
GROUP = '''\
@{functools}.cache
def gloo_group():
    """Return the group that carries Python objects, which XLA does not."""
    return {new_group}(backend="gloo")
'''


class ObjectCollectives(Rule):
    """Send Python objects between the replicas over gloo.

    **Why.** `all_gather_object`, `gather_object`, `broadcast_object_list` and `scatter_object_list` raise
    on the XLA backend: the pickled objects have a length that differs by replica.

    **What it does.** The call gets `group=gloo_group()`, a function that is added to the script. It makes
    the group at its first call, which every replica makes, and keeps it. `device=` goes. A tensor on the
    device arrives as a tensor on the device (measured).

    **Reported.** The evaluator of faster_coco_eval, which sends its results so, from tensors of CUDA or of
    the host. A call with a group of its own that is not certainly one over gloo, and one with `*` or `**`
    arguments.

    Source: pytorch/xla#5492; torch_xla 2.9 (measured on two replicas); faster_coco_eval 1.6.6, 1.8.0
    (measured).
    """

    name = "object-collectives"
    code = "XLA811"
    beside_frameworks = True
    nodes = (cst.Call, cst.Attribute, cst.Name)
    of_names = True
    words = f"FasterCoco|{spelled(OBJECTS)}"
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def gather(found):
                results = [None] * dist.get_world_size()
                dist.all_gather_object(results, found)
                return results


            def same_everywhere(seed):
                seeds = [seed]
                dist.broadcast_object_list(seeds, src=0, device=torch.device("cuda"))
                return seeds[0]
            """,
            """
            import functools

            import torch.distributed as dist


            @functools.cache
            def gloo_group():
                \"\"\"Return the group that carries Python objects, which XLA does not.\"\"\"
                return dist.new_group(backend="gloo")


            def gather(found):
                results = [None] * dist.get_world_size()
                dist.all_gather_object(results, found, group=gloo_group())
                return results


            def same_everywhere(seed):
                seeds = [seed]
                dist.broadcast_object_list(seeds, src=0, group=gloo_group())
                return seeds[0]
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist


            def gather(found):
                group = dist.new_group(backend="gloo")
                results = [None] * dist.get_world_size()
                dist.all_gather_object(results, found, group=group)
                return results
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def gather(results, found, group):
                dist.all_gather_object(results, found, group=group)
            """,
            "a group over gloo",
        ),
        checked(
            """
            import torch.distributed as dist


            def collect(rows, out):
                dist.all_gather_object(out, rows)  # XLA811
            """
        ),
        checked(
            """
            import torch.distributed as dist
            from faster_coco_eval.utils.pytorch import FasterCocoEvaluator


            class Evaluator(FasterCocoEvaluator):  # XLA811
                pass


            class OverGloo(FasterCocoEvaluator):
                def synchronize_between_processes(self):
                    parts = [None] * dist.get_world_size()
                    group = dist.new_group(backend="gloo")
                    dist.all_gather_object(parts, self.results, group=group)


            def judge(truth):
                return FasterCocoEvaluator(truth, ["bbox"])  # XLA811
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one collective of objects, or the finding."""
        if not isinstance(node, cst.Call):
            yield from self._evaluator(node, context)
            return
        name = called(node, context)
        if name not in OBJECTS:
            return
        bound = bind(node, OBJECTS[name])
        if bound is None:
            message = f"{name} with * or ** arguments: see that its group is one over gloo"
            yield from self.report(node, message, Severity.INFO)
            return
        if context.portable and not bound.keys() & {"group_src", "group_dst"}:
            group = bound.get("group")
            if group is None or not makes_gloo_group(group.value, context):
                yield as_shims(self, node, context, bound, ("device",))
            return
        group = bound.get("group")
        device = bound.get("device")
        if group is not None and code(group.value) != "None":
            if not makes_gloo_group(group.value, context):
                message = (
                    f"{name} raises on XLA: see that `{code(group.value)}` is a group over gloo, "
                    "dist.new_group(backend='gloo')"
                )
                yield from self.report(node, message, Severity.INFO)
            return
        yield self._edit(node, context, name, [arg for arg in (group, device) if arg is not None])

    def _evaluator(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding at an evaluator that gathers the results of the replicas by itself."""
        name = context.qualified_name(node) or ""
        entry = catalogue.of_import(name) if name.startswith(EVALUATORS) else None
        if entry is not None and entry.code == self.code and _gathers(node, facts_of(context)):
            yield from self.report(node, f"{name}: {entry.says()}", subject=name)

    def _edit(self, node: cst.Call, context: Workspace, name: str, gone: list[cst.Arg]) -> Edit:
        definition = GROUP.format(
            functools=context.imports.require("functools"),
            new_group=beside(node, "new_group", context),
        )
        function = context.definitions.require("gloo_group", definition)
        added = keyword_arg("group", cst.parse_expression(f"{function}()"))
        kept = [index for index, arg in enumerate(node.args) if arg not in gone]
        names = {id(arg): key for key, arg in (bind(node, OBJECTS[name]) or {}).items()}
        spelled = [names[id(node.args[index])] for index in kept]

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for index, parameter in zip(kept, spelled, strict=True):
                arg = updated.args[index]
                after_gone = index > min((node.args.index(g) for g in gone), default=index)
                needs_name = after_gone and arg.keyword is None
                args.append(keyword_arg(parameter, arg.value) if needs_name else arg)
            return with_args(updated, [*args, added])

        # What is in `device=` may be another rule's to edit, before it goes with the argument.
        return self.edit(node, replace, f"{name} over a gloo group", consumes=[node.func])


def _gathers(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the evaluator `node` is that of several replicas, and gathers by itself."""
    arg = facts.context.parent(node)
    container = facts.context.parent(arg)
    overrides = (
        isinstance(container, cst.ClassDef)
        and any(arg is base for base in container.bases)
        and any(
            isinstance(method, cst.FunctionDef) and method.name.value == GATHERS
            for method in container.body.body
        )
    )
    replicated = facts.context.calls.replicated or "shims" in facts.names.roots
    return replicated and not overrides and not is_a_type(node, facts)
