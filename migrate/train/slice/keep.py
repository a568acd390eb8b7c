"""The statements of a function or module that stay: a batch, or the loops around it, depends on them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from migrate.model.calls.rank_tests import last_part
from migrate.model.objects.objects import KEEPS
from migrate.train.errors import TrainError
from migrate.train.slice.items import passes_items
from migrate.train.slice.logged import UpdateNames
from migrate.train.slice.loops import LOOPS
from migrate.train.slice.sets import sets_in_arguments
from migrate.train.slice.statements import (
    every_statement,
    is_exit,
    is_guard,
    is_in_inert,
    loop_targets,
    names_read,
    own_group,
    set_attributes,
)
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    free_names,
    loads,
    root,
    stores,
)

ENDED = "Ended"
_SEEDS = ("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything")
# What reorders its argument: a function of `random` and `numpy.random`, a method of their generators.
_IN_PLACE = "shuffle"
_LEAVES = ast.Break | ast.Continue


class ReadsTrainedError(Exception):
    """The loop reads what is trained, and `data.py` has it as it starts; `refusal` says where."""

    def __init__(self, refusal: TrainError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class ReadsLossError(TrainError):
    """The batches or the end of the loop depend on what the statements of the loss compute."""


@dataclass
class KeptPart:
    """Kept part of a function or of the module.

    Attributes:
        body: its statements.
        line: line of the call in it that trains.
        marks: statement → what stands in its place.
        dropped: statements that train.
        needed: names that kept statements read.
        valued: those of which they read more than whether they are None.
        inside: those that are read in the loops that train, or by functions, which may run there. What a
            statement in these loops binds matters to them alone.
        kept: kept statements.
        ends: kept statement that leaves the function or the script, or opens a process group → what stands in
            its place.
        trained: names of what is trained, of its optimizer and of its schedule.
        again: statements of the loss that `data.py` runs too, before the update.
        bound_together: names that kept statements bind, read or not: a sampler beside its loader.
        asked: statements that evaluate, and those that read their values.
        opened: kept statements whose block alone is kept: a `with` without an effect on the batches.
        of_update: names that get values of an update from the program.
    """

    body: list[ast.stmt]
    line: int = 0
    marks: dict[ast.stmt, str] = field(default_factory=dict)
    before: dict[ast.stmt, str] = field(default_factory=dict)
    dropped: set[ast.stmt] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    valued: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    kept: set[ast.stmt] = field(default_factory=set)
    ends: dict[ast.stmt, str] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    again: set[ast.stmt] = field(default_factory=set)
    bound_together: set[str] = field(default_factory=set)
    asked: set[ast.stmt] = field(default_factory=set)
    opened: set[ast.stmt] = field(default_factory=set)
    of_update: UpdateNames = field(default_factory=UpdateNames)

    def need(
        self, names: Collection[str], *, inside: bool = True, tested: Collection[str] = ()
    ) -> None:
        """Note names that are read, also in the loops or only before them.

        Args:
            names: the names.
            inside: whether they are read in the loops.
            tested: those that are only compared with None.
        """
        self.needed |= set(names)
        self.valued |= set(names) - set(tested)
        if inside:
            self.inside |= set(names)

    def trains(self, statement: ast.stmt) -> bool:
        """Whether a statement that trains is in it."""
        return any(
            node in self.marks or node in self.dropped
            for node in ast.walk(statement)
            if isinstance(node, ast.stmt)
        )


class Keeper:
    """Decides which statements stay.

    Args:
        script: the script.
    """

    def __init__(self, script: ScriptText) -> None:
        self._script = script
        self._read = set[str]()  # attributes that the functions with the loops read
        self._kept_reads = set[str]()  # attributes and keys that kept statements read
        self._whole = set[str]()  # names that kept statements hand over as a whole
        self._modules = {
            (alias.asname or alias.name).partition(".")[0]
            for node in script.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }

    def settle(self, scope: KeptPart, bound: Iterable[str] = ()) -> None:
        """Keep statements until no kept one reads a name that another one binds."""
        while True:
            before = len(scope.kept), len(scope.needed), len(scope.inside)
            for statement in scope.body:
                self.visit(scope, statement)
            if before == (len(scope.kept), len(scope.needed), len(scope.inside)):
                break
        self.require_independent(scope, bound)

    def follow(self, codes: Iterable[ast.AST]) -> None:
        """Note which attributes the functions with the loops read, and functions that these call."""
        for code in codes:
            if isinstance(code, FunctionNode):
                for node in (n for part in (code, *self._called(code)) for n in ast.walk(part)):
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                        self._read.add(node.attr)

    def require_independent(self, scope: KeptPart, bound: Iterable[str] = ()) -> None:
        """Report batches and loops that depend on what the training step computes."""
        kept = {
            name
            for statement in {*scope.kept, *scope.again}
            if statement not in scope.marks or statement in scope.again
            for name in (
                loop_targets(statement) if any(blocks(statement)) else stores(statement)[0]
            )
        }
        for statement in (*scope.dropped, *scope.marks):
            lost = stores(statement)[0] & scope.needed - kept - set(bound) - scope.of_update.names
            if lost:
                raise ReadsLossError(
                    f"{self._script.at(first_line(statement))}: the batches depend on {min(lost)}, "
                    "which the training step computes",
                    "let the data and the end of the loop depend on counters alone",
                )

    def require_untrained(self, scope: KeptPart) -> None:
        """Report loops and conditions around the training step that read what it trains.

        `data.py` has the model as it starts.
        """
        loops = [
            node
            for statement in scope.body
            for node in every_statement(statement)
            if isinstance(node, LOOPS) and scope.trains(node)
        ]
        kept = [
            statement
            for statement in dict.fromkeys(
                inner for loop in loops for inner in every_statement(loop)
            )
            if statement in scope.kept
            and statement not in scope.marks
            and statement not in scope.ends
            and statement not in scope.again
            and not isinstance(statement, FunctionNode | ast.ClassDef)
        ]
        reads = {statement: names_read(statement) for statement in kept}
        decides = set[str]().union(*(r for s, r in reads.items() if not isinstance(s, ast.Expr)))
        for statement in kept:
            read = reads[statement]
            if isinstance(statement, ast.Expr):  # self.evaluate(), which sets what ends the loop
                called = self._called(statement)
                sets = {ast.unparse(node) for code in called for node in set_attributes(code)}
                read = set[str]().union(*map(names_read, called)) if sets & decides else set()
            # Its method may run what is trained.
            if self._fills(scope, statement) or _takes_from_method(statement):
                read = read | self._read_of_object(statement)
            if read & scope.trained:
                refusal = TrainError(
                    f"{self._script.at(first_line(statement))}: the loop depends on "
                    f"{min(read & scope.trained)}, which is trained",
                    "let the data and the end of the loop depend on counters alone",
                )
                raise ReadsTrainedError(refusal)

    def require_logs_untrained(self, scope: KeptPart) -> None:
        """Report log lines that read what is trained, themselves or in a function of the script."""
        own = {
            inner
            for top in scope.body
            for loop in every_statement(top)
            if isinstance(loop, LOOPS) and scope.trains(loop)
            for inner in every_statement(loop)
        }
        trains = {*scope.marks, *scope.dropped}
        for statement in scope.kept & (scope.asked | own) - trains:
            # What a block holds is looked at by itself.
            called = [] if any(blocks(statement)) else self._called(statement)
            read = names_read(statement).union(*map(free_names, called))
            if read & scope.trained:
                raise TrainError(
                    f"{self._script.at(first_line(statement))}: this log line reads "
                    f"{min(read & scope.trained)}, which is trained",
                    "log it after the training",
                )

    def _called(self, statement: ast.stmt) -> list[ast.stmt]:
        """Functions of the script that a statement may call, and those that they may call."""
        functions: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(self._script.tree):
            if isinstance(node, FunctionNode):
                functions.setdefault(node.name, []).append(node)
        called: list[ast.stmt] = []
        pending = [statement]
        while pending:
            for node in ast.walk(pending.pop()):
                more = functions.pop(last_part(node), []) if isinstance(node, ast.expr) else []
                called += more
                pending += more
        return called

    def visit(
        self, scope: KeptPart, statement: ast.stmt, around: tuple[ast.stmt, ...] = ()
    ) -> bool:
        """Keep a statement if it is needed, with what is needed inside of it; return whether it is kept.

        Args:
            scope: the part that is kept so far.
            statement: the statement.
            around: statements that it is in, from the outermost loop that trains on.
        """
        if statement in scope.dropped:
            return False
        if statement in scope.marks:
            scope.kept.add(statement)
            return True
        if statement in scope.asked and statement in scope.ends:
            scope.kept.add(statement)
            scope.need(loads(ast.parse(scope.ends[statement])))
            return True
        if statement in scope.asked:
            self.keep(scope, statement, whole=True, inside=bool(around))
            return True
        if around and is_guard(statement) and not scope.trains(statement):
            return False  # the batches are the same until there
        inner = [child for block in blocks(statement) for child in block]
        if inner and not isinstance(statement, FunctionNode | ast.ClassDef):
            trains = scope.trains(statement)
            inside = around or (trains and isinstance(statement, LOOPS))
            within = (*around, statement) if inside else ()
            kept = [self.visit(scope, child, within) for child in inner]
            # Another loop, over an evaluation set say, may use the names of the training loop.
            own = loop_targets(statement) & scope.needed - self.loop_names(scope)
            if any(kept) and trains and is_in_inert(statement, self._script.tree):
                scope.kept.add(statement)
                scope.opened.add(statement)
                return True
            if any(kept) or (own and not trains):
                # Branches that make the model, say, are not those that read the data.
                parts = trains or around or isinstance(statement, ast.If)
                self.keep(scope, statement, whole=not parts, inside=bool(within))
                return True
            return False
        if around and self._leaves(scope, statement, around):
            if isinstance(statement, ast.Raise) and statement not in scope.ends:
                self.keep(scope, statement, whole=True)
            scope.kept.add(statement)
            return True
        if self._sets_what_is_read(scope, statement):
            self.keep(scope, statement, whole=True, inside=bool(around))
            return True
        if group := own_group(self._script.tree, statement):
            scope.ends[statement] = group
            scope.kept.add(statement)
            scope.need(loads(ast.parse(group)))
            return True
        binds, changes = stores(statement)
        if around:  # model.require_backward_grad_sync = … is no part of the data
            changes -= scope.trained
        read = scope.inside if around else scope.needed
        if statement not in scope.of_update.region:
            read = read - scope.of_update.names
        if (
            (binds | changes) & read
            or self._fills(scope, statement)
            or (
                self._is_call(scope, statement)
                and not (around and self._changes_nothing(scope, statement))
            )
        ):
            self.keep(scope, statement, whole=True, inside=bool(around))
            return True
        return False

    def _leaves(self, scope: KeptPart, statement: ast.stmt, around: tuple[ast.stmt, ...]) -> bool:
        """Whether a statement ends a loop that trains, or a kept block inside of it."""
        if isinstance(statement, _LEAVES):
            loop = next(s for s in reversed(around) if isinstance(s, LOOPS))
            # An evaluation may end its own loop as it likes.
            return loop in scope.kept or scope.trains(loop)
        if isinstance(statement, ast.Return):
            scope.ends[statement] = "return"
            return True
        if is_exit(statement):
            scope.ends[statement] = f"raise {ENDED}"
            return True
        if isinstance(statement, ast.Raise) and statement.exc is None:
            # It goes on with what was raised in the block.
            return any(isinstance(s, ast.Try) and s in scope.kept for s in around)
        return isinstance(statement, ast.Raise)

    def keep(
        self, scope: KeptPart, statement: ast.stmt, *, whole: bool, inside: bool = True
    ) -> None:
        """Keep a statement; names that it reads are needed, in the loops that train or before them."""
        scope.kept.add(statement)
        read, tested = set[str](), set[str]()
        if isinstance(statement, ast.Assign):
            scope.bound_together |= stores(statement)[0] - scope.needed - scope.trained
        if whole:
            nodes = list(ast.walk(statement))
            scope.kept |= {node for node in nodes if isinstance(node, ast.stmt)}
            read |= loads(statement)
            read |= {
                root(n)
                for n in nodes
                if isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store)
            } - {""}
        else:
            for name in ("test", "iter", "items", "subject"):
                part = getattr(statement, name, None)
                for node in part if isinstance(part, list) else [part] if part is not None else []:
                    read |= loads(node)
                    tested |= _compared_with_none(node)
                    self._note_reads(node)
        if whole:
            self._note_reads(statement)
        scope.need(read, inside=inside or first_line(statement) > scope.line, tested=tested)

    def _note_reads(self, code: ast.AST) -> None:
        """Note which attributes, keys and whole objects kept code reads, with functions that it calls."""
        called = self._called(code) if isinstance(code, ast.stmt) else []
        for part in (code, *called):
            of_attribute = set[ast.AST]()
            for node in ast.walk(part):
                if isinstance(node, ast.Attribute):
                    self._kept_reads.add(node.attr)
                    of_attribute.add(node.value)
                elif isinstance(node, ast.Subscript):
                    of_attribute.add(node.value)
                    if isinstance(node.slice, ast.Constant):
                        self._kept_reads.add(str(node.slice.value))
                elif isinstance(node, ast.Name) and node not in of_attribute:
                    self._whole.add(node.id)

    def _sets_what_is_read(self, scope: KeptPart, statement: ast.stmt) -> bool:
        """Whether a statement calls a function that sets an attribute which kept statements read.

        `init_distributed_mode(args)` sets `args.distributed`.
        """
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        return any(
            name in scope.needed and (parts & self._kept_reads or name in self._whole)
            for name, parts in sets_in_arguments(self._script, statement.value).items()
            if name not in scope.trained
        )

    def loop_names(self, scope: KeptPart) -> set[str]:
        """Names that the loops around the training step bind."""
        return set[str]().union(
            *(
                loop_targets(node)
                for statement in scope.body
                for node in every_statement(statement)
                if isinstance(node, LOOPS) and scope.trains(node)
            )
        )

    def _changes_nothing(self, scope: KeptPart, statement: ast.stmt) -> bool:
        """Whether a statement calls a method of the script that changes no object: it saves, or prints."""
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        method = last_part(statement.value.func)
        called = self._called(statement)
        if method in _SEEDS or not any(getattr(code, "name", "") == method for code in called):
            return False
        known = {getattr(code, "name", "") for code in called}
        for node in (node for code in called for node in ast.walk(code)):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(
                node.ctx, ast.Load
            ):
                return False
            if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
                return False
            if isinstance(node, ast.Call) and last_part(node.func) in ("next", *_SEEDS):
                return False
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                of_object = isinstance(function, ast.Attribute) and root(function) == "self"
                is_trained = ast.unparse(getattr(function, "value", function)) in scope.trained
                if of_object and last_part(function) not in known and not is_trained:
                    return False
        return True

    def _fills(self, scope: KeptPart, statement: ast.stmt) -> bool:
        """Whether a statement calls a method of a kept object that changes what the loops read of the object.

        `reward = trainer.make_experience(prompts)` appends to `self.buffer`, say.
        """
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            return False
        function = statement.value.func
        if (
            not isinstance(function, ast.Attribute)
            or root(function) not in scope.needed - self._modules
        ):
            return False
        changed: set[str] = set()
        for code in self._called(statement):
            for node in ast.walk(code):
                called = node.func if isinstance(node, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr in KEEPS:
                    changed.add(last_part(called.value))
        return bool(changed & self._read)

    def _read_of_object(self, statement: ast.stmt) -> set[str]:
        """Attributes of their object that the methods of a call read, by its name in the statement."""
        call = getattr(statement, "value", None)
        owner = ast.unparse(call.func.value) if isinstance(call, ast.Call) else ""  # type: ignore[attr-defined]
        read = set[str]().union(*map(names_read, self._called(statement)))
        return {f"{owner}.{n.removeprefix('self.')}" for n in read if n.startswith("self.")}

    def _is_call(self, scope: KeptPart, statement: ast.stmt) -> bool:
        """Whether a statement is a call that may change a value that is kept, or a seed."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        function = statement.value.func
        if last_part(function) in _SEEDS:
            return True
        changed = statement.value.args if last_part(function) == _IN_PLACE else []
        if any(root(argument) in scope.needed for argument in changed):
            return True
        receiver = root(function) if isinstance(function, ast.Attribute) else ""
        if receiver not in scope.bound_together:
            # `scaler.update()` changes nothing that `if scaler is not None` asks.
            return receiver in scope.valued - self._modules and not passes_items(
                self._script, scope.body, scope.kept, receiver
            )
        trains = set[str]().union(*(stores(s)[0] for s in (*scope.dropped, *scope.marks)))
        return not loads(statement) & (trains | scope.trained)


def _compared_with_none(test: ast.AST) -> set[str]:
    """Names that an expression compares with None, and of which it reads nothing else."""
    compared = [
        node.left
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and all(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
        and all(isinstance(c, ast.Constant) and c.value is None for c in node.comparators)
    ]
    others = (n for n in ast.walk(test) if isinstance(n, ast.Name) and n not in compared)
    return {name.id for name in compared} - {name.id for name in others}


def _takes_from_method(statement: ast.stmt) -> bool:
    """Whether a statement gives a name to what a method returns: `samples = self.sample(n)`."""
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    )
