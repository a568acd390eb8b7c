"""Split a branch for the first replica into what all replicas can run and what stays with the first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.catalogue.words import (
    IN_A_FORWARD,
    KEEPING,
    LOG_METHODS,
    METER_METHODS,
    READ_METHODS,
    SAVE,
    words,
)
from migrate.check.rules.ranks.parting.evaluations import evaluates
from migrate.check.rules.ranks.parting.unrun import computed_after
from migrate.model.calls.kind import Kind
from migrate.reading.collectives.pending_values import is_description
from migrate.reading.facts import Facts
from migrate.reading.flow.reads import in_text, is_log
from migrate.reading.replicas.first_replica import Rest, on_first
from migrate.reading.replicas.options import same_on_all
from migrate.rewrite.rules.ranks.one_tensor import is_one_tensor
from migrate.syntax.tree import (
    base_name,
    code,
    first_line,
    is_docstring,
    last_part,
    nodes,
    nodes_of,
    targets,
    used,
)
from migrate.syntax.walk import children

# Reads of what may be a list or a dict of tensors, as a model returns them.
ON_HOST = "on_host"
# Modules whose functions compute, and what of them does more.
COMPUTING = (
    "collections.",
    "copy.",
    "functools.",
    "itertools.",
    "math.",
    "numpy.",
    "os.path.",
    "random.",
    "time.",
    "torch.",
    "torch_xla.",
    "torchvision.",
    "tqdm.",
)
ACTING = re.compile(
    r"torch\.(save|load|distributed\..*|jit\..*|onnx\..*|optim\..*|utils\.tensorboard.*)|numpy\.save.*"
    r"|torchvision\.(io|utils\.save)\w*.*|torch_xla\.(?!step$|sync$).*"
)
BUILTINS = words(
    "abs bool dict enumerate float getattr hasattr int isinstance iter len list map max min range reversed "
    "round set sorted str sum tuple tqdm type zip"
)
OF_MODE = words("eval train")
# Decorators after which a function is run as before.
PLAIN = words("classmethod property staticmethod wraps")
OF_TEXT = words("format join split strip items keys values get copy")
TENSOR_METHODS = (
    IN_A_FORWARD | READ_METHODS | words("argmax argmin topk softmax sigmoid abs eq sqrt pow")
)


ENDS = (cst.Else, cst.Finally, cst.ExceptHandler)


class CannotError(Exception):
    """A branch cannot be run by all replicas; why."""


@dataclass
class BranchWork:
    """Plan for running a branch of the first replica on all replicas.

    Args:
        guard: the test of the rank.
        rest: the remaining condition of the test.
        blocks: the blocks whose other statements all replicas run.
        kept: the statements in these blocks that stay with the first replica.
        read: for each kept statement, the values that it gets from the device, each with how the value is
            read: the text that follows it, or `ON_HOST`.
        makers: earlier branches that compute what this branch needs, with the names.
    """

    guard: cst.If
    rest: Rest
    blocks: list[cst.IndentedBlock] = field(default_factory=list)
    kept: list[cst.BaseStatement] = field(default_factory=list)
    read: dict[int, list[tuple[cst.BaseExpression, str]]] = field(default_factory=dict)
    makers: list[tuple[BranchWork, frozenset[str]]] = field(default_factory=list)


def work_of(guard: cst.If, facts: Facts, needed: frozenset[str] = frozenset()) -> BranchWork:
    """Return how all replicas run the work on the device below `guard`.

    Args:
        guard: the test of the rank.
        facts: the script.
        needed: names that other branches need of this one.

    Raises:
        CannotError: they cannot.
    """
    work = _Branch(guard, facts, needed, only=False).work()
    if not work.blocks:
        raise CannotError("no statement below the test is known to compute on the device")
    return work


def made_by(guard: cst.If, facts: Facts, needed: frozenset[str]) -> BranchWork:
    """Return how all replicas run what of a branch makes the names `needed`.

    Raises:
        CannotError: they cannot.
    """
    return _Branch(guard, facts, needed).work()


class _Branch:
    """A branch for the first replica.

    Args:
        guard: the test of the rank.
        facts: the script.
        needed: names that another branch needs from this branch, or None.
        only: whether these names alone count, and not the branch's work on the device.
    """

    def __init__(
        self,
        guard: cst.If,
        facts: Facts,
        needed: frozenset[str] | None = None,
        *,
        only: bool = True,
    ) -> None:
        self._facts = facts
        self._context = facts.context
        self._guard = guard
        self._needed = needed
        self._only = only and needed is not None
        self._goes: set[int] = set()
        self._leaves: list[cst.BaseStatement] = []
        self._read: dict[int, list[tuple[cst.BaseExpression, str]]] = {}

    def work(self) -> BranchWork:
        """Return the statements that move and those that stay."""
        guard, context = self._guard, self._context
        rest = on_first(guard.test, context)
        above = context.parent(guard)
        plain = guard.orelse is None and isinstance(above, cst.IndentedBlock | cst.Module)
        if rest is None or not plain or not isinstance(guard.body, cst.IndentedBlock):
            raise CannotError("the test has an `else`, or lets another replica in")
        if context.guards.around(guard) is not None:
            raise CannotError("the test is below another test of the rank")
        for part in rest.others:
            if not same_on_all(part, self._context):
                raise CannotError(f"`{code(part)}` may differ between the replicas")
        self._leaves = list(_leaves(guard.body))
        self._local = {name for leaf in self._leaves for name in _bound(leaf)}
        self._local |= {
            name for loop in self._facts.below(guard, cst.For) for name in _names(loop.target)
        }
        needed = set(self._needed or ())
        for leaf in self._leaves:
            if not self._only:
                if self._works(leaf):
                    self._take(leaf, needed)
                elif not self._is_out(leaf):
                    self._look(leaf, needed)
        if not self._only and self._goes:
            for leaf in self._leaves:
                if _is_mode(leaf):
                    self._take(leaf, needed)
        self._close(needed)
        work = BranchWork(guard, rest, read=self._read)
        if not self._goes:
            return work
        self._sort(guard.body, work)
        self._see_names(work)
        return work

    def _close(self, needed: set[str]) -> None:
        """Move everything that binds what moved statements need or that redirects their loops."""
        before = -1
        while before != len(self._goes):
            before = len(self._goes)
            for leaf in self._leaves:
                if not self._is_out(leaf) and _bound(leaf) & needed:
                    self._take(leaf, needed)
            for leaf in self._leaves:
                if self._is_out(leaf) or not _leads(leaf):
                    continue
                loop = self._loop(leaf)
                if loop is None:
                    if isinstance(_small(leaf), cst.Break | cst.Continue | cst.Return):
                        raise CannotError(f"`{code(leaf).strip()}` leaves the branch")
                elif id(loop) in self._goes:
                    self._take(leaf, needed)

    def _loop(self, leaf: cst.CSTNode) -> cst.CSTNode | None:
        for above in self._context.ancestors(leaf):
            if above is self._guard:
                return None
            if isinstance(above, cst.For):
                return above
        return None

    def _is_out(self, node: cst.CSTNode) -> bool:
        return id(node) in self._goes

    def _take(self, leaf: cst.BaseStatement, needed: set[str]) -> None:
        """Let `leaf` go, with the blocks around it."""
        if not self._may_go(leaf):
            raise CannotError(f"`{first_line(leaf)}` does more than compute")
        self._keep_iterators(leaf, leaf)
        self._goes.add(id(leaf))
        needed |= {code(name) for name in used(leaf)}
        self._frames(leaf, needed)

    def _keep_iterators(self, part: cst.CSTNode, statement: cst.CSTNode) -> None:
        """Check that `part` of a statement does not run through an iterator that others go on with."""
        iterated = self._context.calls.iterated
        for node in nodes(part) if iterated else ():
            named = isinstance(node, cst.Name | cst.Attribute)
            if not named or base_name(node) in self._local:
                continue
            if self._context.place(node) in iterated:
                raise CannotError(
                    f"`{first_line(statement)}` takes from the iterator `{code(node)}`"
                )

    def _frames(self, leaf: cst.CSTNode, needed: set[str]) -> None:
        for above in self._context.ancestors(leaf):
            if above is self._guard:
                return
            if id(above) in self._goes:
                continue
            if isinstance(above, cst.For | cst.With | cst.If):
                header = _header(above)
                if isinstance(above, cst.For) and (
                    above.orelse is not None or above.asynchronous is not None
                ):
                    raise CannotError("a loop below the test has an `else`")
                if isinstance(above, cst.If) and not same_on_all(above.test, self._context):
                    raise CannotError(f"`{code(above.test)}` may differ between the replicas")
                if not all(self._quiet(call) for part in header for call in _calls(part)):
                    raise CannotError(f"`{first_line(above)}` does more than compute")
                for part in header:
                    self._keep_iterators(part, above)
                self._goes.add(id(above))
                needed |= {code(name) for part in header for name in used(part)}
            elif isinstance(above, cst.BaseCompoundStatement):
                raise CannotError(f"`{first_line(above)}` cannot be followed")

    def _look(self, leaf: cst.BaseStatement, needed: set[str]) -> None:
        """Record the device values that a staying statement gets."""
        reads: list[tuple[cst.BaseExpression, str]] = []
        shown = nodes_of(leaf, cst.FormattedStringExpression)
        outside: list[cst.Call | cst.FormattedStringExpression] = [*_calls(leaf), *shown]
        for node in sorted(outside, key=self._place):  # what is around comes before what is inside
            around = {id(above) for above in self._context.ancestors(node)} | {id(node)}
            if any(id(value) in around for value, _ in reads):
                continue
            if isinstance(node, cst.FormattedStringExpression):
                self._given(node.expression, reads, in_log=True)
                continue
            if is_description(node):
                continue  # `len(x)`
            if evaluates(node, self._facts):
                # It computes on the device with what it is given: a copy on the host is no help.
                raise CannotError(f"`{first_line(leaf)}` computes on the device, and does more")
            for arg in node.args:
                self._given(arg.value, reads, in_log=is_log(node, self._context))
        if not reads:
            return
        if not isinstance(leaf, cst.SimpleStatementLine):
            raise CannotError(f"`{first_line(leaf)}` cannot be followed")
        for value, _ in reads:
            if not all(self._quiet(call) for call in _calls(value)):
                raise CannotError(f"`{code(value)}` does more than compute")
            needed |= {code(name) for name in used(value)}
        self._read[id(leaf)] = reads
        self._frames(leaf, needed)
        self._goes.add(id(self._guard))

    def _place(self, node: cst.CSTNode) -> int:
        return sum(1 for _ in self._context.ancestors(node))

    def _given(
        self,
        value: cst.BaseExpression,
        reads: list[tuple[cst.BaseExpression, str]],
        *,
        in_log: bool,
    ) -> None:
        if any(value is read for read, _ in reads):
            return
        if isinstance(value, cst.Call) and code(value.func).endswith(".state_dict"):
            return  # what is in it has been computed
        if isinstance(value, cst.Call | cst.Subscript | cst.BinaryOperation | cst.Comparison):
            if _is_read(value) and self._is_pending(_receiver(value)):
                reads.append((value, ""))
                return
            if self._facts.values.on_device(value) and not isinstance(value, cst.Comparison):
                reads.append((value, self._to_host(value)))
                return
            if isinstance(value, cst.Call) and evaluates(value, self._facts):
                reads.append((value, ""))
                return
            if isinstance(value, cst.BinaryOperation) and in_text(value):
                self._given(value.right, reads, in_log=in_log)
                return
        elif isinstance(value, cst.Name) and self._facts.values.on_device(value):
            # What the step has computed is there already when it is logged; what all compute after it, or
            # the branch computes, is not.
            if not in_log or value.value in self._local or self._is_pending(value):
                reads.append((value, self._to_host(value)))
            return
        if isinstance(value, cst.Dict | cst.Tuple | cst.List):
            for element in value.elements:
                self._given(element.value, reads, in_log=in_log)

    def _to_host(self, value: cst.BaseExpression) -> str:
        return ".cpu()" if is_one_tensor(value, self._facts) else ON_HOST

    def _is_pending(self, value: cst.BaseExpression | None) -> bool:
        """Whether `value` is computed where it stands, or by all replicas after the step."""
        if isinstance(value, cst.Name):
            return computed_after(value, value, self._facts) is not None
        return self._computes(value)

    def _computes(self, value: cst.BaseExpression | None) -> bool:
        inner = value
        while isinstance(inner, cst.Call) and code(inner.func).endswith((".detach", ".cpu")):
            assert isinstance(inner.func, cst.Attribute)
            inner = inner.func.value
        known = self._facts.values.kind(inner)
        is_computed = isinstance(
            inner, cst.Call | cst.Subscript | cst.BinaryOperation | cst.Comparison
        )
        return is_computed and known is not Kind.HOST

    def _works(self, leaf: cst.CSTNode) -> bool:
        """Whether a statement that may go computes, reads or makes something on the device."""
        small = _small(leaf)
        if not isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.Expr):
            return False
        values = self._facts.values
        for call in _calls(leaf):
            if _is_read(call) and self._is_pending(_receiver(call)):
                return not isinstance(small, cst.Expr) or self._runs_quietly(small.value)
            if isinstance(small, cst.Expr) and not self._runs_quietly(small.value):
                continue
            if values.on_device(call) or values.kind(call.func) is Kind.MODEL:
                return True
            if evaluates(call, self._facts):
                return not is_log(call, self._context)
            if any(values.on_device(arg.value) for arg in call.args):
                return not is_log(call, self._context)
        value = getattr(small, "value", None)
        is_computed = isinstance(value, cst.BinaryOperation | cst.Subscript)
        return is_computed and values.on_device(value)

    def _runs_quietly(self, value: cst.CSTNode) -> bool:
        """Whether a statement only calls a function of the project without external effects."""
        return (
            isinstance(value, cst.Call) and bool(self._context.run_by(value)) and self._quiet(value)
        )

    def _may_go(self, leaf: cst.CSTNode) -> bool:
        if isinstance(leaf, cst.If):  # `if done: break`
            lines = leaf.body.body if isinstance(leaf.body, cst.SimpleStatementSuite) else ()
            alike = leaf.orelse is None and same_on_all(leaf.test, self._context)
            return alike and bool(lines) and all(map(self._may_go, lines))
        small = _small(leaf)
        if isinstance(small, cst.Pass | cst.Break | cst.Continue):
            return True
        if isinstance(small, cst.Del):
            return all(code(name) in self._local for name in used(small))
        if isinstance(small, cst.Expr):
            return _is_mode(leaf) or self._keeps(small.value) or self._runs_quietly(small.value)
        if not isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign):
            return False
        for target in targets(small):
            if isinstance(target, cst.Subscript):
                target = target.value
                if base_name(target) not in self._local:
                    return False
            if not isinstance(target, cst.Name):
                return False
        return all(self._quiet(call) for call in _calls(small))

    def _keeps(self, value: cst.BaseExpression) -> bool:
        """Whether `value` is `values.append(x)` of a list that the branch makes."""
        func = value.func if isinstance(value, cst.Call) else None
        if not isinstance(func, cst.Attribute) or func.attr.value not in KEEPING:
            return False
        own = isinstance(func.value, cst.Name) and func.value.value in self._local
        return own and all(self._quiet(call) for call in _calls(value) if call is not value)

    def _quiet(self, call: cst.Call) -> bool:
        """Whether `call` computes and reads, and does nothing else that all replicas must not do."""
        context, func = self._context, call.func
        name = context.qualified_name(func)
        if name is not None and not context.run_by(call):
            if not f"{name}.".startswith(COMPUTING):
                return False
            if name == "torch.load" or ACTING.fullmatch(name):
                return False
            return not (name.endswith("_") or name.startswith("torch.cuda."))
        if context.run_by(call):
            own_kind = self._facts.values.kind(func) is Kind.MODEL
            if any(map(context.partly_bound.in_function, context.called(call))):
                return False
            if any(map(self._is_wrapped, context.called(call))):
                return False
            return own_kind or not (context.effects.acts(call) or context.effects.of(call))
        if isinstance(func, cst.Name):
            model = self._facts.values.kind(func) is Kind.MODEL
            return model or (func.value in BUILTINS and not context.bindings(func))
        if not isinstance(func, cst.Attribute):
            # `(model.module if hasattr(model, "module") else model)(x)`
            return isinstance(func, cst.IfExp) and self._facts.values.kind(func) is Kind.MODEL
        return self._quiet_method(call, func)

    def _is_wrapped(self, function: cst.FunctionDef) -> bool:
        """Whether a decorator of the project is around a function: it may let one replica alone run it."""
        if self._context.guards.is_for_first(function):
            return True
        for decorator in function.decorators:
            named = decorator.decorator
            named = named.func if isinstance(named, cst.Call) else named
            name = self._context.qualified_name(named) or ""
            if last_part(named) not in PLAIN and not f"{name}.".startswith(COMPUTING):
                return True
        return False

    def _quiet_method(self, call: cst.Call, func: cst.Attribute) -> bool:
        method = func.attr.value
        if isinstance(func.value, cst.BaseString) or method in OF_TEXT:
            return True
        own = base_name(func.value) in self._local
        if method.endswith("_") and not method.endswith("__"):
            return own
        if own or method in TENSOR_METHODS or self._facts.values.is_tensor(func.value):
            return True
        if LOG_METHODS.fullmatch(method) or SAVE.fullmatch(method) or method in METER_METHODS:
            return False
        if method in ("step", "backward", "zero_grad", "dump", "load_state_dict", "flush", "close"):
            return False
        values = [value for _, value in self._context.attributes.get(method, ())]
        calls = [self._context.qualified_name(v.func) for v in values if isinstance(v, cst.Call)]
        if any((name or "").startswith("torch.nn.") for name in calls):
            return True
        model = self._facts.values.kind(func) is Kind.MODEL
        return model or any(self._facts.values.on_device(arg.value) for arg in call.args)

    def _sort(self, block: cst.IndentedBlock, work: BranchWork) -> None:
        """Record which statements of `block` stay, and inspect the statements that move."""
        work.blocks.append(block)
        for statement in block.body:
            if isinstance(statement, cst.SimpleStatementLine):
                if not self._is_out(statement) and not is_docstring(statement):
                    work.kept.append(statement)
            elif self._is_out(statement):
                assert isinstance(statement, cst.For | cst.With | cst.If)
                if isinstance(statement.body, cst.SimpleStatementSuite):
                    continue
                self._sort(cst.ensure_type(statement.body, cst.IndentedBlock), work)
                orelse = statement.orelse if isinstance(statement, cst.If) else None
                if isinstance(orelse, cst.If):
                    raise CannotError(f"`{first_line(orelse)}` cannot be followed")
                if isinstance(orelse, cst.Else):
                    self._sort(cst.ensure_type(orelse.body, cst.IndentedBlock), work)
            else:
                work.kept.append(statement)

    def _see_names(self, work: BranchWork) -> None:
        """Check that all replicas have what moved statements need. No other code may see what they bind."""
        context = self._context
        going = [leaf for leaf in self._leaves if self._is_out(leaf)]
        frames = [
            part
            for kind in (cst.For, cst.With, cst.If)
            for statement in nodes_of(self._guard, kind)
            if self._is_out(statement) and statement is not self._guard
            for part in _header(statement)
        ]
        values = [value for read in self._read.values() for value, _ in read]
        missing: dict[int, tuple[cst.If, set[str]]] = {}
        for root in (*going, *frames, *values, *work.rest.others):
            for name in used(root):
                above = context.partly_bound.guard(name, (*going, self._guard))
                if above is None or above is self._guard:
                    continue
                if context.function_around(above) is not context.function_around(self._guard):
                    raise CannotError(f"only some replicas have `{code(name)}`")
                missing.setdefault(id(above), (above, set()))[1].add(code(name))
        if self._only:
            for _, names in missing.values():
                raise CannotError(f"only some replicas have `{min(names)}`")
            return
        for above, names in missing.values():
            maker = made_by(above, self._facts, frozenset(names))
            if not maker.blocks:
                raise CannotError(f"only some replicas have `{min(names)}`")
            work.makers.append((maker, frozenset(names)))
        bound = {name for leaf in going for name in _bound(leaf)}
        bound |= {
            name
            for loop in self._facts.below(self._guard, cst.For)
            if self._is_out(loop)
            for name in _names(loop.target)
        }
        for text in sorted(bound):
            if self._is_seen(text):
                raise CannotError(f"`{text}` is read after the branch")

    def _is_seen(self, name: str) -> bool:
        """Whether what the branch binds to `name` is read after it, outside of it."""
        below: cst.CSTNode = self._guard
        for above in self._context.ancestors(self._guard):
            if isinstance(above, cst.IndentedBlock | cst.Module):
                later = above.body[above.body.index(below) + 1 :]
                use = self._first_use(later, name)
                if use != "":
                    return use == "read"
            elif isinstance(above, cst.For | cst.While):
                again = [above.target] if isinstance(above, cst.For) else []
                if any(name in _names(target) for target in again):
                    return False
                body = cst.ensure_type(above.body, cst.IndentedBlock).body
                use = self._first_use(body[: body.index(self._inside(above))], name)
                if use != "":
                    return use == "read"
            elif isinstance(above, cst.FunctionDef | cst.Module):
                return False
            if isinstance(above, cst.BaseStatement):
                below = above
        return False

    def _first_use(self, statements: Sequence[cst.CSTNode], name: str) -> str:
        """Return whether all replicas first "read" or "bind" `name`. Nothing if neither is certain."""
        for statement in statements:
            use = self._use(statement, name)
            if use:
                return use
        return ""

    def _use(self, node: cst.CSTNode, name: str) -> str:
        if isinstance(node, cst.SimpleStatementLine):
            return self._first_use(node.body, name)
        if isinstance(node, cst.Assign | cst.AnnAssign | cst.AugAssign):
            bound = {code(target) for target in targets(node)}
            value = node.value
            reads = value is not None and _reads(value, name)
            if reads or (isinstance(node, cst.AugAssign) and name in bound):
                return "read"
            return "bind" if name in bound else "read" if _mentions(node, name) else ""
        if not isinstance(node, cst.For | cst.While | cst.With | cst.If | cst.Try):
            return "read" if _mentions(node, name) else ""
        header = [*_header(node), *([node.test] if isinstance(node, cst.While) else [])]
        if any(_reads(part, name) for part in header):
            return "read"
        if isinstance(node, cst.For) and name in _names(node.target):
            return ""  # bound where the loop turns at all
        if isinstance(node, cst.If) and self._is_for_first(node):
            return ""  # the first replica has read it before
        uses = [
            self._use(child, name)
            if isinstance(child, cst.If)
            else self._first_use(child.body, name)
            for part in children(node)
            for child in [part.body if isinstance(part, ENDS) else part]
            if isinstance(child, cst.BaseSuite | cst.If)
        ]
        if "read" in uses:
            return "read"
        return "bind" if isinstance(node, cst.With) and "bind" in uses else ""

    def _is_for_first(self, node: cst.If) -> bool:
        context = self._context
        return (
            node.orelse is None
            and context.guards.asks(node.test)
            and on_first(node.test, context) is not None
        )

    def _inside(self, loop: cst.For | cst.While) -> cst.BaseStatement:
        """Return the statement of the body of `loop` that holds the branch."""
        around = {
            id(self._guard),
            *(id(ancestor) for ancestor in self._context.ancestors(self._guard)),
        }
        body = cst.ensure_type(loop.body, cst.IndentedBlock).body
        return next(statement for statement in body if id(statement) in around)


def _leaves(block: cst.IndentedBlock) -> Iterator[cst.BaseStatement]:
    """Yield the simple statements of a branch, and compound ones that hold together."""
    for statement in block.body:
        if isinstance(statement, cst.For | cst.With | cst.If) and isinstance(
            statement.body, cst.IndentedBlock
        ):
            yield from _leaves(statement.body)
            orelse = getattr(statement, "orelse", None)
            while isinstance(orelse, cst.If | cst.Else):
                if isinstance(orelse.body, cst.IndentedBlock):
                    yield from _leaves(orelse.body)
                orelse = getattr(orelse, "orelse", None)
        else:
            yield statement


def _small(leaf: cst.CSTNode) -> cst.CSTNode | None:
    if isinstance(leaf, cst.SimpleStatementLine):
        return leaf.body[0] if len(leaf.body) == 1 else None
    return leaf if isinstance(leaf, cst.BaseSmallStatement) else None


def _leads(leaf: cst.CSTNode) -> bool:
    """Whether a statement leaves what is around it."""
    leaving = (cst.Break, cst.Continue, cst.Return, cst.Raise)
    if isinstance(leaf, cst.SimpleStatementLine):
        return any(isinstance(small, leaving) for small in leaf.body)
    return any(True for kind in leaving for _ in nodes_of(leaf, kind))


def _is_mode(leaf: cst.CSTNode) -> bool:
    """Whether a statement is `model.eval()` or `model.train()`."""
    small = _small(leaf)
    call = small.value if isinstance(small, cst.Expr) else None
    func = call.func if isinstance(call, cst.Call) else None
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value in OF_MODE
        and isinstance(func.value, cst.Name | cst.Attribute)
        and isinstance(call, cst.Call)
        and not call.args
    )


def _header(node: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(node, cst.For):
        return [node.iter]
    if isinstance(node, cst.With):
        return [item.item for item in node.items]
    return [node.test] if isinstance(node, cst.If) else []


def _calls(node: cst.CSTNode) -> list[cst.Call]:
    return list(nodes_of(node, cst.Call))


def _is_read(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in READ_METHODS
        and not node.args
    )


def _receiver(call: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what a chain of reads reads: `x.mean()` of `x.mean().cpu().numpy()`."""
    node: cst.CSTNode | None = call
    while node is not None and _is_read(node):
        assert isinstance(node, cst.Call)
        assert isinstance(node.func, cst.Attribute)
        node = node.func.value
    return node if isinstance(node, cst.BaseExpression) else None


def _names(target: cst.CSTNode) -> set[str]:
    return {name.value for name in nodes_of(target, cst.Name)}


def _bound(leaf: cst.CSTNode) -> set[str]:
    """Return the names that a statement binds, or into which it puts something."""
    names = set()
    for target in targets(leaf):
        name = base_name(target) if isinstance(target, cst.Subscript) else None
        if isinstance(target, cst.Name):
            name = target.value
        if name:
            names.add(name)
    small = _small(leaf)
    call = small.value if isinstance(small, cst.Expr) else None
    func = call.func if isinstance(call, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value in KEEPING:
        names |= {func.value.value} if isinstance(func.value, cst.Name) else set()
    return names


def _reads(node: cst.CSTNode, name: str) -> bool:
    return any(code(mention) == name for mention in used(node))


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return any(mention.value == name for mention in nodes_of(node, cst.Name))
