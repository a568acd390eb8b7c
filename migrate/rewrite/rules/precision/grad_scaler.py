"""Gradient scalers: float16 needs one, bfloat16 does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import libcst as cst

from migrate.catalogue import torch_cuda, torch_xla
from migrate.catalogue.entry import names
from migrate.catalogue.prescan import named
from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_distributed import SHARDED_SCALER
from migrate.catalogue.torch_other import TYPED_SCALERS
from migrate.catalogue.words import words
from migrate.check.hazard import Severity
from migrate.check.manual_work import ManualWork
from migrate.reading.values.scalers import (
    SCALE,
    is_off,
    is_scaler,
    is_switched_off,
    is_used_as_scaler,
    scale_read,
)
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.precision.scaler_states import empty_states, takes_scale
from migrate.rewrite.rules.precision.scalers import (
    Removal,
    ScalerChange,
    edits,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword, string_value

SHARDED = names(*SHARDED_SCALER)
CUDA_SCALERS = SHARDED | names(*torch_cuda.SCALERS)
TORCH_SCALERS = names(*TYPED_SCALERS)
GONE_SCALERS = names(*torch_xla.SCALERS)
SCALERS = CUDA_SCALERS | TORCH_SCALERS | GONE_SCALERS
COMMENT = "# bfloat16 needs no loss scale: kept for checkpoints that the CUDA script loads too."
OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
INTERNALS = words(
    "_check_inf_per_device _found_inf_per_device _get_scale_async _lazy_init_scale_growth_tracker "
    "_growth_tracker _maybe_opt_step _per_optimizer_states _unscale_grads_"
)


class GradScaler(Rule):
    """Train without a gradient scaler.

    **Why.** bfloat16 has the range of float32, so no loss has to be scaled. A scaler stays enabled where
    torch_xla is installed, also a scaler for CUDA. Each step then waits to read a value from the device.

    **What it does.** If the scaler is a variable, and the script only calls its usual methods, they are
    removed: `scaler.scale(loss).backward()` becomes `loss.backward()`, `scaler.step(optimizer)` becomes
    `optimizer.step()`. Lines with `unscale_` and `update` are deleted, with a comment above them that is
    about scaling. If two branches of an `if` are then equal, one is left.

    If checkpoints have its state, the scaler stays, on the CPU: it scales nothing, and keeps the state that
    it has loaded. So the CUDA script and the rewrite load each other's checkpoints. The state may be saved
    or loaded in a function of the script that receives the scaler.

    Everywhere else the scaler is made with `enabled=False`: an attribute, an argument of another function,
    a variable that is tested for None, a use of `get_scale()`. Then `scale` returns its argument, `step`
    calls the optimizer, and `get_scale()` is 1.0. Its state is empty, and loading a state does nothing, so
    a checkpoint of the CUDA script still loads. `scaler._scale.item()` becomes `scaler.get_scale()`, which
    is the same number on CUDA.

    **Reported.** Where the state of such a scaler is saved: it is empty. If the CUDA script resumes from this
    checkpoint with its scaler enabled, it stops with "The source state dict is empty". Let the CUDA script
    load the state only where there is one: `if state: scaler.load_state_dict(state)`. It is a warning if
    the original's scaler is always enabled, and information if an option decides. Also the
    internals of a scaler, which a disabled one lacks, and a scaler made with `**` arguments.

    Source: torch 2.9 on torch_xla 2.9 (measured); `torch_xla.amp.GradScaler` is gone in 2.9.
    """

    name = "grad-scaler"
    code = "XLA804"
    targets = BOTH
    on_torch_tpu = "An enabled scaler raises in `unscale_` and `step`."
    beside_frameworks = True
    edited = Severity.WARNING
    work = ManualWork.CALLS  # a call of a scaler that is off: no dtype is to be chosen
    nodes = (cst.Module, cst.Attribute, cst.Call)
    words = f"caler|{SCALE}|" + named(INTERNALS)
    examples = (
        rewritten(
            """
            import torch


            def overfit(model, batch, optimizer, clip):
                # Creates a GradScaler once, before training.
                scaler = torch.cuda.amp.GradScaler()
                # the forward
                loss = model(batch)
                scaler.scale(loss / 2).backward()
                scaler.unscale_(optimizer)  # before the norm
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
            """,
            """
            import torch


            def overfit(model, batch, optimizer, clip):
                # the forward
                loss = model(batch)
                (loss / 2).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
            """,
        ),
        rewritten(
            """
            import torch


            def overfit(model, batch, optimizer, checkpoint):
                scaler = torch.cuda.amp.GradScaler(init_scale=1024)
                if checkpoint:
                    scaler.load_state_dict(checkpoint['scaler'])
                scaler.scale(model(batch)).backward()
                scaler.step(optimizer)
                scaler.update()
                return {'model': model.state_dict(), 'scaler': scaler.state_dict()}
            """,
            """
            import torch


            def overfit(model, batch, optimizer, checkpoint):
                # bfloat16 needs no loss scale: kept for checkpoints that the CUDA script loads too.
                scaler = torch.amp.GradScaler('cpu', init_scale=1024)
                if checkpoint:
                    scaler.load_state_dict(checkpoint['scaler'])
                model(batch).backward()
                optimizer.step()
                return {'model': model.state_dict(), 'scaler': scaler.state_dict()}
            """,
        ),
        rewritten(
            """
            from torch.amp import GradScaler


            def overfit(model, batch, optimizer, amp):
                scaler = GradScaler("cuda", enabled=amp)
                loss = model(batch)
                if amp:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
            """,
            """
            def overfit(model, batch, optimizer, amp):
                loss = model(batch)
                loss.backward()
                optimizer.step()
            """,
        ),
        rewritten(
            """
            import torch


            class LossScaler:
                def __init__(self):
                    self._scaler = torch.cuda.amp.GradScaler(init_scale=1024)

                def __call__(self, loss, optimizer):
                    self._scaler.scale(loss).backward()
                    self._scaler.step(optimizer)
                    self._scaler.update()

                def state_dict(self):
                    return self._scaler.state_dict()
            """,
            """
            import torch


            class LossScaler:
                def __init__(self):
                    self._scaler = torch.amp.GradScaler("xla", init_scale=1024, enabled=False)

                def __call__(self, loss, optimizer):
                    self._scaler.scale(loss).backward()
                    self._scaler.step(optimizer)
                    self._scaler.update()

                def state_dict(self):
                    return self._scaler.state_dict()
            """,
        ),
        left_alone(
            """
            from sklearn.preprocessing import StandardScaler
            from torch.cuda.amp import GradScaler

            scaler = StandardScaler()
            scaler.scale(rows)
            off = GradScaler(enabled=False)
            """
        ),
        rewritten(
            """
            import torch


            class Trainer:
                def __init__(self, mode):
                    self.scaler = torch.GradScaler() if mode == "amp" else None
                    self.other = torch.GradScaler("cuda", growth_interval=100)
            """,
            """
            import torch


            class Trainer:
                def __init__(self, mode):
                    self.scaler = torch.GradScaler(enabled=False) if mode == "amp" else None
                    self.other = torch.GradScaler("xla", growth_interval=100, enabled=False)
            """,
        ),
        rewritten(
            """
            def train(model, loss_scaler):
                model.cuda()
                scale = loss_scaler.state_dict()["scale"]
                print(scale)
            """,
            """
            def train(model, loss_scaler):
                model.to("xla")
                scale = loss_scaler.state_dict().get("scale", 1.0)
                print(scale)
            """,
        ),
        left_alone(
            """
            import torch

            scaler = torch.amp.GradScaler('cpu')
            scaler.load_state_dict(checkpoint['scaler'])
            checkpoint['scaler'] = scaler.state_dict()
            """
        ),
        rewritten(
            """
            import torch


            class Trainer:
                def __init__(self):
                    self.scaler = torch.amp.GradScaler("cuda")

                def scale(self):
                    return self.scaler._scale.item(), float(self.scaler._scale)
            """,
            """
            import torch


            class Trainer:
                def __init__(self):
                    self.scaler = torch.amp.GradScaler("xla", enabled=False)

                def scale(self):
                    return self.scaler.get_scale(), self.scaler.get_scale()
            """,
        ),
        reported(
            """
            def grow(scaler):
                scaler._scale *= 2
            """,
            "internals",
        ),
        reported(
            """
            def show(loss_scaler):
                print(loss_scaler._scale.item())
            """,
            "internals",
        ),
        reported(
            """
            def overflowed(scaler, optimizer):
                return sum(scaler._found_inf_per_device(optimizer).values())
            """,
            "internals",
        ),
        reported(
            """
            import torch


            def save(model, scaler, path):
                torch.save({'model': model.state_dict(), 'scaler': scaler.state_dict()}, path)
            """,
            "raises for an empty state",
        ),
        left_alone(
            """
            import torch


            def saved(scaler: Standardize, loss_scaler):
                mine = Standardize()
                return scaler.state_dict(), mine.state_dict(), loss_scaler.load_state_dict({})
            """
        ),
        checked(
            """
            from torch.cuda.amp import GradScaler

            scaler = GradScaler()  # XLA804
            other = GradScaler(enabled=True)  # XLA804
            """
        ),
        checked(
            """
            from functools import partial

            import torch

            scaler = torch.GradScaler()  # XLA804
            made = partial(torch.GradScaler, "cuda")  # XLA804 error
            off = torch.GradScaler("xla", enabled=False)


            class Scaler(torch.GradScaler):  # XLA804 error
                pass
            """
        ),
        checked(
            """
            import torch
            from torch_xla.amp import GradScaler

            scaler = GradScaler()  # XLA804 error


            def restore(scaler: torch.amp.GradScaler, state):
                if isinstance(scaler, torch.amp.GradScaler):
                    scaler.load_state_dict(state)
            """
        ),
        checked(
            """
            from sklearn.preprocessing import StandardScaler as GradScaler

            import torch

            scaler = GradScaler()
            off = torch.amp.GradScaler("xla", enabled=False)
            kept = torch.amp.GradScaler("cpu")
            checkpoint["scaler"] = kept.state_dict()
            """
        ),
        checked(
            """
            import torch

            scaler = torch.amp.GradScaler("cpu")  # XLA804
            scaler.scale(loss).backward()  # XLA804
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for every scaler of the script, or a finding at its internals."""
        if isinstance(node, cst.Attribute):
            yield from self._internals(node, context)
            return
        if isinstance(node, cst.Call):
            held = scale_read(node, context)
            if held is not None and _is_of_torch(held.value, context):
                yield self._get_scale(node, held)
            return
        if context.portable:
            for call in context.all_of(cst.Call):
                if context.qualified_name(call.func) in SCALERS:
                    yield from self._by_shims(call, context)
            return
        changes: list[ScalerChange] = []
        disabled: list[cst.Call] = []
        received: list[cst.Call] = []
        for call in context.all_of(cst.Call):
            if context.qualified_name(call.func) in SCALERS:
                removal = Removal(context, call, partial(_at_rest, call, context))
                planned = removal.plan()
                if planned is None:
                    disabled.append(call)
                    yield from self._disable(call, context)
                else:
                    changes += planned
                    received += removal.received
        yield from edits(self, changes, "a scaler", context)
        for save, is_on in empty_states(disabled, received, SCALERS, context):
            above = context.parent(save)
            if takes_scale(above):
                yield self._scale(above)
                continue
            if isinstance(above, cst.Attribute):
                continue  # `.get(…)` knows what to do
            holder = code(cst.ensure_type(save.func, cst.Attribute).value)
            message = (
                f"`{code(save)}` is empty: the scaler is disabled, as bfloat16 needs none. This matters "
                "only if the CUDA script resumes from this checkpoint with its scaler enabled: there it "
                f"raises for an empty state. In the CUDA script, write `if state: {holder}"
                ".load_state_dict(state)`"
            )
            yield from self.report(save, message, Severity.WARNING if is_on else Severity.INFO)

    def _scale(self, node: cst.Subscript) -> Edit:
        """Return the edit by which the scale that a disabled scaler does not tell is 1."""
        key = cst.ensure_type(node.slice[0].slice, cst.Index).value

        def replace(updated: cst.Subscript) -> cst.Call:
            get = cst.Attribute(updated.value, cst.Name("get"))
            return cst.Call(
                get,
                [cst.Arg(key), cst.Arg(cst.Float("1.0"))],
                lpar=updated.lpar,
                rpar=updated.rpar,
            )

        message = f"`{code(node)}` is a KeyError on a disabled scaler, whose scale is 1"
        return self.edit(node, replace, message)

    def _get_scale(self, call: cst.Call, held: cst.Attribute) -> Edit:
        """Return the edit of `scaler._scale.item()`, which a disabled scaler lacks."""

        def replace(updated: cst.Call) -> cst.Call:
            func = cst.Attribute(held.value, cst.Name("get_scale"))
            return cst.Call(func, lpar=updated.lpar, rpar=updated.rpar)

        message = f"{code(call)} → {code(held.value)}.get_scale()"
        wrong = f"`{code(held)}`: a disabled scaler has none, and raises; {code(held.value)}.get_scale()"
        return self.edit(
            call, replace, message, consumes=[held], wrong=wrong, severity=Severity.ERROR
        )

    def _internals(self, node: cst.Attribute, context: Workspace) -> Iterator[RuleFinding]:
        own = isinstance(node.value, cst.Name) and node.value.value == "self"
        if node.attr.value == SCALE and is_scaler(node.value, context):
            uses = (context.parent(node), context.parent(context.parent(node)))
            reads = any(scale_read(use, context) is not None for use in uses if use is not None)
            if reads and _is_of_torch(node.value, context):
                return  # edited
        elif node.attr.value not in INTERNALS:
            return
        if not own:
            yield from self.report(
                node,
                f"`{code(node)}`: a disabled scaler has no such internals; in bfloat16 no step is skipped",
            )

    def _by_shims(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edit in the portable style: a scaler for CUDA and the CPU, disabled on XLA."""
        name = context.qualified_name(call.func)
        if name in SHARDED:
            message = (
                f"{code(call)} asks all shards for an overflow, shims.grad_scaler only this rank's: keep it "
                'for CUDA, `… if shims.device_type() == "cuda" else shims.grad_scaler()`'
            )
            yield from self.report(call, message)
            return
        of_torch = name in TORCH_SCALERS or name in GONE_SCALERS
        parameters = (*(["device"] if of_torch else []), *OPTIONS)
        plain = [arg for arg in call.args if arg.star != "**"]
        bound = bind(call.with_changes(args=plain), parameters)
        if bound is None:
            message = f"{code(call)}: shims.grad_scaler takes the options of GradScaler by name"
            yield from self.report(call, message)
            return
        function = cst.parse_expression(f"{context.imports.require('shims')}.grad_scaler")
        names = {id(arg): key for key, arg in bound.items()}
        kept = [i for i, arg in enumerate(call.args) if names.get(id(arg)) != "device"]
        spelled = {index: names.get(id(call.args[index]), "") for index in kept}

        def replace(updated: cst.Call) -> cst.Call:
            args = []
            for index in kept:
                arg = updated.args[index]
                bare = arg.keyword is None and not arg.star
                args.append(keyword_arg(spelled[index], arg.value) if bare else arg)
            if not args:
                return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
            return with_args(updated, args).with_changes(func=function)

        gone = [arg for key, arg in bound.items() if key == "device"]
        message = f"{code(call)} → shims.grad_scaler, which scales nothing on XLA"
        yield self.edit(call, replace, message, consumes=[call.func, *gone])

    def _disable(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        if any(arg.star for arg in call.args):
            message = f"{code(call)}: make it with enabled=False, bfloat16 needs no scaling"
            yield from self.report(call, message)
            return
        name = context.qualified_name(call.func)
        enabled = keyword(call, "enabled")
        by_position = _position_of_enabled(call, name)
        if enabled is None and by_position is not None:
            enabled = call.args[by_position]
        device = _device(call, name)
        if enabled is not None and is_off(enabled.value, context) and name not in GONE_SCALERS:
            return
        xla = context.string(context.vocabulary.device_name, like=device.value if device else None)
        function = None
        # torch.cuda.amp.GradScaler is deprecated, and warns in each replica.
        if name in GONE_SCALERS or name in CUDA_SCALERS - SHARDED:
            function = cst.parse_expression(f"{context.imports.require('torch')}.amp.GradScaler")

        def replace(updated: cst.Call) -> cst.Call:
            args = list(updated.args)
            if enabled is not None:
                index = call.args.index(enabled)
                args[index] = args[index].with_changes(value=cst.Name("False"))
            else:
                args.append(keyword_arg("enabled", cst.Name("False")))
            if device is not None:
                index = call.args.index(device)
                args[index] = args[index].with_changes(value=xla)
            if function is not None:
                return with_args(updated, [cst.Arg(xla), *args]).with_changes(func=function)
            return with_args(updated, args)

        # Not `enabled`: another rule may edit what is in it, to no effect.
        gone = [call.func] if device is None else [call.func, device.value]
        message = (
            f"{code(call)}: disabled, so that its calls pass through; bfloat16 needs no scaling"
        )
        wrong = f"{_stays_on(name)} Disable it: enabled=False lets its calls pass through"
        named = not context.for_torch_tpu and name not in GONE_SCALERS
        yield self.edit(call, replace, message, consumes=gone, wrong=wrong if named else "")


def _stays_on(name: str | None) -> str:
    why = "stays enabled with torch_xla, and each step waits to read a value from the device"
    return f"{name} {why}; bfloat16 needs no scaler."


def _at_rest(call: cst.Call, context: Workspace) -> list[ScalerChange] | None:
    """Return the changes that keep only a scaler's state, on the CPU, or None if they are unknown."""
    name = context.qualified_name(call.func)
    of_cuda = name in CUDA_SCALERS - SHARDED
    bound = bind(call, OPTIONS if of_cuda else ("device", *OPTIONS))
    if bound is None or not (of_cuda or name in TORCH_SCALERS):
        return None
    device = bound.get("device")
    if device is not None and string_value(device.value) == "cpu":
        return []
    if is_switched_off(call, context):
        return []  # its state is empty as it was
    assign = context.parent(call)
    line = context.parent(assign)
    if not isinstance(line, cst.SimpleStatementLine) or not isinstance(assign, cst.Assign):
        return None
    at = line.body.index(assign)
    cpu = context.string("cpu", like=device.value if device else None)
    function = call.func
    if of_cuda:
        torch = context.imports.require("torch")
        function = cst.ensure_type(cst.parse_expression(f"{torch}.amp.GradScaler"), cst.Attribute)

    def made(updated: cst.Call) -> cst.Call:
        if device is None:
            return with_args(updated, [cst.Arg(cpu), *updated.args]).with_changes(func=function)
        args = list(updated.args)
        index = call.args.index(device)
        args[index] = args[index].with_changes(value=cpu)
        return updated.with_changes(args=args)

    def kept(updated: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        above = [*updated.leading_lines, cst.EmptyLine(comment=cst.Comment(COMMENT))]
        body = list(updated.body)
        scaler = cst.ensure_type(body[at], cst.Assign)
        value = made(cst.ensure_type(scaler.value, cst.Call))
        body[at] = scaler.with_changes(value=value)
        return updated.with_changes(leading_lines=above, body=body)

    gone = device.value if device else call.func if of_cuda else None
    message = (
        f"{code(call)} stays on the CPU, for its state in checkpoints; bfloat16 needs no scaling"
    )
    wrong = f"{_stays_on(name)} Its state is saved: keep it on the CPU, where it scales nothing"
    return [ScalerChange(line, kept, gone, message, "" if context.for_torch_tpu else wrong)]


def _device(call: cst.Call, name: str | None) -> cst.Arg | None:
    """Return the argument that names CUDA as the scaler's device."""
    if name not in TORCH_SCALERS:
        return None
    first = call.args[0] if call.args and call.args[0].keyword is None else keyword(call, "device")
    return first if first is not None and string_value(first.value) == "cuda" else None


def _position_of_enabled(call: cst.Call, name: str | None) -> int | None:
    """Return the index of `enabled` among the arguments if it is passed by position."""
    index = 4 if name in CUDA_SCALERS and name not in SHARDED else 5
    if len(call.args) > index and all(arg.keyword is None for arg in call.args[: index + 1]):
        return index
    return None


def _is_of_torch(held: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `held` is a scaler by what makes it or by its use, not by its name alone."""
    if is_used_as_scaler(held, context):
        return True
    values = context.values.given_to(held) if isinstance(held, cst.Name | cst.Attribute) else []
    return any(
        isinstance(value, cst.Call) and context.qualified_name(value.func) in SCALERS
        for value in values
    )
