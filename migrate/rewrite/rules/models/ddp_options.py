"""Arguments of DistributedDataParallel that dictionaries pass: `DDP(model, **options)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.catalogue.launchers import DDP, DDP_DEVICES
from migrate.reading.names.spread import KeywordEntry, Spread, others_than, spread_of
from migrate.rewrite.edits.nodes import with_args, without
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import dotted


class DdpOptions:
    """The `**` arguments of one construction of DistributedDataParallel.

    Args:
        rule: the rule that makes the edits.
        spreads: the `**` arguments.
        context: the script.

    Attributes:
        emptied: the `**` arguments that pass nothing but devices: `**({"device_ids": [0]} if many else {})`.
    """

    def __init__(self, rule: Rule, spreads: Sequence[cst.Arg], context: Workspace) -> None:
        self._rule = rule
        self._context = context
        every = [(arg, spread_of(arg, context)) for arg in spreads]
        self.emptied = [arg for arg, spread in every if _is_emptied(arg, spread)]
        self._spreads = [spread for arg, spread in every if arg not in self.emptied]

    @property
    def are_read(self) -> bool:
        """Whether no device is passed once the edits are made, as far as the script shows."""
        return all(
            spread.complete and not (_devices(spread) and self._is_shared(spread))
            for spread in self._spreads
        )

    def may_add(self, name: str) -> bool:
        """Whether the call may be given the argument `name`: no dictionary passes it."""
        return all(
            spread.complete and all(entry.key != name for entry in spread.entries)
            for spread in self._spreads
        )

    def edits(self) -> Iterator[Edit]:
        """Yield the edits that take the devices out of the dictionaries."""
        for spread in self._spreads:
            if self._is_shared(spread):
                continue
            holders: dict[int, list[KeywordEntry]] = {}
            for entry in _devices(spread):
                holders.setdefault(id(entry.holder), []).append(entry)
            for entries in holders.values():
                yield self._edit(entries)

    def _is_shared(self, spread: Spread) -> bool:
        """Whether something else than DistributedDataParallel uses the dictionary."""
        calls = frozenset(
            id(call)
            for call in self._context.all_of(cst.Call)
            if self._context.qualified_name(call.func) in DDP
        )
        return any(True for _ in others_than(spread, calls, self._context))

    def _edit(self, entries: list[KeywordEntry]) -> Edit:
        holder = entries[0].holder
        names = " and ".join(entry.key for entry in entries)
        message = f"remove {names}: names CUDA devices"
        at = [entry.index for entry in entries]
        if isinstance(holder, cst.Assign):
            return self._rule.edit(
                holder, lambda _: cst.RemoveFromParent(), message, consumes=[holder]
            )
        if isinstance(holder, cst.Dict):

            def shorter(updated: cst.Dict) -> cst.BaseExpression:
                left: cst.BaseExpression = updated
                for index in sorted(at, reverse=True):
                    left = without(left, index)
                return left

            gone = [holder.elements[index] for index in at]
            return self._rule.edit(holder, shorter, message, consumes=gone)
        line = self._context.parent(holder)
        if (
            dotted(holder.func).endswith(".update")
            and len(holder.args) == len(at)
            and isinstance(line, cst.Expr)
        ):
            return self._rule.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[line])

        def fewer(updated: cst.Call) -> cst.Call:
            kept = [arg for index, arg in enumerate(updated.args) if index not in at]
            return with_args(updated, kept)

        return self._rule.edit(
            holder, fewer, message, consumes=[holder.args[index] for index in at]
        )


def _is_emptied(arg: cst.Arg, spread: Spread) -> bool:
    """Whether the dictionary is written in the call itself and holds devices only."""
    inline = not isinstance(arg.value, cst.Name) and not spread.others
    return inline and spread.complete and len(_devices(spread)) == len(spread.entries)


def _devices(spread: Spread) -> list[KeywordEntry]:
    return [entry for entry in spread.entries if entry.key in DDP_DEVICES]
