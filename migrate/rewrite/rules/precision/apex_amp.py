"""apex.amp: mixed precision before torch had it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.rewrite.edits.nodes import with_parentheses
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.precision.scalers import ScalerChange, edits
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, nodes_of, string_value

INITIALIZE = frozenset({"apex.amp.initialize", "apex.amp.frontend.initialize"})
SCALE_LOSS = frozenset({"apex.amp.scale_loss", "apex.amp.handle.scale_loss"})
PARAMETERS = (
    "models",
    "optimizers",
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
    "cast_model_outputs",
    "num_losses",
    "verbosity",
    "min_loss_scale",
    "max_loss_scale",
)
ALLOWED = frozenset(PARAMETERS) - {"cast_model_type", "cast_model_outputs"}

# Of what its findings are.
AMP = "apex.amp"


class ApexAmp(Rule):
    """apex.amp becomes autocast in bfloat16, without a loss scale.

    **What it does.** `amp.initialize(model, optimizer, opt_level="O1")` turns mixed precision on for
    everything that follows; so do the three lines in its place, for XLA and in bfloat16. The cache of
    cast weights is off: outside a region it would never be emptied, and training would go on with the
    first weights. `"O2"`, which kept float32 weights in the optimizer, becomes the same, since autocast
    keeps them in the model; `"O0"` is float32 and goes. `with amp.scale_loss(loss, optimizer) as scaled:`
    goes, its body stays and works on the loss; `amp.master_params(optimizer)` becomes the optimizer's
    parameters; the state of the loss scale in checkpoints is empty and not loaded.

    **Reported.** `initialize` in another form than `x, y = amp.initialize(x, y, …)`, with a type of its
    own, or with `"O3"`; a scaled loss that is used outside its block; the rest of `apex.amp`.

    Source: apex's documentation; torch_xla 2.9 (measured: the losses are those of a
    `torch.autocast` region around forward and loss; with the cache on they are wrong from the second
    step).
    """

    name = "apex-amp"
    code = "XLA419"
    targets = BOTH
    nodes = (cst.SimpleStatementLine, cst.With, cst.Call)
    words = "apex"
    examples = (
        rewritten(
            """
            import torch
            from apex import amp


            def overfit(model, optimizer, batch, args):
                model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
                loss = model(batch)
                # scaled for float16
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
                clip(amp.master_params(optimizer))
                optimizer.step()
                return {'model': model.state_dict(), 'amp': amp.state_dict()}
            """,
            """
            import torch


            def overfit(model, optimizer, batch, args):
                torch.set_autocast_dtype('xla', torch.bfloat16)
                torch.set_autocast_cache_enabled(False)
                torch.set_autocast_enabled('xla', args.opt_level != 'O0')
                loss = model(batch)
                # scaled for float16
                loss.backward()
                clip((p for group in optimizer.param_groups for p in group['params']))
                optimizer.step()
                return {'model': model.state_dict(), 'amp': {}}
            """,
        ),
        left_alone(
            """
            from mylib import amp

            model, optimizer = amp.initialize(model, optimizer)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            """
        ),
        reported(
            """
            from apex import amp

            pair = amp.initialize(model, optimizer, opt_level="O1")
            """,
            "around the forward and the loss",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one use of apex.amp."""
        if isinstance(node, cst.SimpleStatementLine):
            yield from self._line(node, context)
        elif isinstance(node, cst.With):
            yield from self._scaled(node, context)
        elif isinstance(node, cst.Call):
            yield from self._call(node, context)

    def _line(
        self, line: cst.SimpleStatementLine, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        statement = line.body[0]
        if len(line.body) != 1 or not isinstance(statement, cst.Expr | cst.Assign):
            return
        call = statement.value
        if not isinstance(call, cst.Call):
            return
        name = context.qualified_name(call.func)
        if name == "apex.amp.load_state_dict" and isinstance(statement, cst.Expr):
            message = "a loss scale is not loaded: bfloat16 has none"
            yield self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[call.func])
        if name not in INITIALIZE or not isinstance(statement, cst.Assign):
            return
        switch = self._switch(statement, call, context)
        if switch is None:
            return

        def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
            lines = [cst.parse_statement(text) for text in switch]
            lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
            last = lines[-1].with_changes(trailing_whitespace=updated.trailing_whitespace)
            return cst.FlattenSentinel([*lines[:-1], last])

        if switch and context.portable:
            yield from self.report(
                call,
                "on CUDA too this is bfloat16 without a loss scale from here on, where apex had float16 with "
                "one: for GPUs without bfloat16 (V100, T4) use shims.autocast(dtype=torch.float16) and "
                "shims.grad_scaler() by hand",
                subject=AMP,
            )
        if switch:
            message = "apex.amp.initialize → autocast on for XLA, in bfloat16"
            yield self.edit(line, replace, message, consumes=[call.func])
        else:
            message = "remove apex.amp.initialize: float32"
            yield self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[call.func])

    def _switch(
        self, statement: cst.Assign, call: cst.Call, context: Workspace
    ) -> list[str] | None:
        """Return the lines in place of `initialize`, none where it does nothing; None: not plain."""
        bound = bind(call, PARAMETERS)
        if bound is None or not bound.keys() <= ALLOWED or len(statement.targets) != 1:
            return None
        passed = [code(bound[n].value) for n in ("models", "optimizers") if n in bound]
        target = statement.targets[0].target
        wanted = (
            [code(e.value) for e in target.elements]
            if isinstance(target, cst.Tuple)
            else [code(target)]
        )
        level = bound.get("opt_level")
        literal = string_value(level.value) if level else "O1"
        if passed != wanted or literal == "O3":
            return None
        on = []
        if "enabled" in bound and code(bound["enabled"].value) != "True":
            on.append(code(bound["enabled"].value))
        if literal is None and level is not None:
            unequal = cst.ComparisonTarget(cst.NotEqual(), context.string("O0"))
            on.append(code(with_parentheses(cst.Comparison(level.value, [unequal]))))
        if literal == "O0" or on[:1] == ["False"]:
            return []
        value = " and ".join(f"({part})" if len(on) > 1 and " " in part else part for part in on)
        torch, xla = context.imports.require("torch"), code(context.vocabulary.device_type())
        return [
            f"{torch}.set_autocast_dtype({xla}, {torch}.bfloat16)",
            f"{torch}.set_autocast_cache_enabled(False)",
            f"{torch}.set_autocast_enabled({xla}, {value or 'True'})",
        ]

    def _scaled(self, node: cst.With, context: Workspace) -> Iterator[Edit | RuleFinding]:
        item = node.items[0]
        call = item.item
        if not isinstance(call, cst.Call) or context.qualified_name(call.func) not in SCALE_LOSS:
            return
        bound = bind(call, ("loss", "optimizers", "loss_id", "model", "delay_unscale"))
        alias = item.asname.name if item.asname else None
        plain = bound is not None and isinstance(alias, cst.Name) and len(node.items) == 1
        if bound is None or not isinstance(alias, cst.Name) or not plain:
            yield from self.report(
                call, "amp.scale_loss: use the loss itself, bfloat16 has no scale", subject=AMP
            )
            return
        uses = [name for name in context.below(node.body, cst.Name) if name.value == alias.value]
        around = context.function_around(node) or context.module
        if _count(around, alias.value) != len(uses) + _others(around, node, alias.value, context):
            message = f"`{alias.value}` is used outside of its block: use the loss itself"
            yield from self.report(call, message, subject=AMP)
            return
        loss = bound["loss"].value
        if next(nodes_of(loss, cst.Call), None) is not None:
            message = f"give `{code(loss)}` a name and run its backward"
            yield from self.report(call, message, subject=AMP)
            return
        changes = [
            ScalerChange(name, lambda _: loss.deep_clone(), name, f"{alias.value} → {code(loss)}")
            for name in uses
        ]

        def replace(updated: cst.With) -> cst.FlattenSentinel[cst.BaseStatement]:
            body = updated.body
            if not isinstance(body, cst.IndentedBlock):
                suite = cst.ensure_type(body, cst.SimpleStatementSuite)
                body = cst.IndentedBlock([cst.SimpleStatementLine(suite.body)])
            first = body.body[0]
            above = [*updated.leading_lines, *getattr(first, "leading_lines", ())]
            return cst.FlattenSentinel([first.with_changes(leading_lines=above), *body.body[1:]])

        changes.append(ScalerChange(node, replace, call.func, "the loss is not scaled in bfloat16"))
        yield from edits(self, changes, "a scaled loss", context)

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        name = context.qualified_name(call.func)
        if name in INITIALIZE:
            statement = context.parent(call)
            if (
                not isinstance(statement, cst.Assign)
                or self._switch(statement, call, context) is None
            ):
                message = (
                    f"{code(call)}: drop it, and put `with {_region(context)}:` "
                    "around the forward and the loss"
                )
                yield from self.report(call, message, subject=AMP)
        elif name == "apex.amp.master_params" and len(call.args) == 1:
            params = context.string("params").value
            groups = cst.Attribute(call.args[0].value, cst.Name("param_groups"))
            expression = cst.parse_expression(
                f"(p for group in {code(with_parentheses(groups))} for p in group[{params}])"
            )
            message = f"{code(call)} → the parameters of the optimizer"
            yield self.edit(call, lambda _: expression, message, consumes=[call])
        elif name == "apex.amp.state_dict":
            message = "the checkpoint has no loss scale: bfloat16 has none"
            yield self.edit(call, lambda _: cst.Dict([]), message, consumes=[call])


def _region(context: Workspace) -> str:
    return (
        "shims.autocast(dtype=torch.float16)"
        if context.portable
        else "torch.autocast('xla', dtype=torch.bfloat16)"
    )


def _count(root: cst.CSTNode, name: str) -> int:
    return sum(node.value == name for node in nodes_of(root, cst.Name))


def _others(root: cst.CSTNode, this: cst.With, name: str, context: Workspace) -> int:
    """Count the mentions of `name` in the other blocks that scale a loss, and the binding of `this`."""
    count = 1
    for block in context.below(root, cst.With):
        call = block.items[0].item
        if block is this or not isinstance(call, cst.Call):
            continue
        if context.qualified_name(call.func) in SCALE_LOSS:
            count += _count(block, name)
    return count
