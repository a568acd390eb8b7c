"""Models whose weights every replica draws itself, in programs without common weights on XLA.

On GPUs DistributedDataParallel gives all replicas the weights of the first. On XLA neither Accelerate nor the
Trainer of transformers wraps the model or sends its weights.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue import drawing
from migrate.model.calls.kinds import PREPARES, External
from migrate.model.calls.option_defaults import Site
from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.draws.randomness import Randomness, randomness_of
from migrate.model.objects.parts import passed_nodes
from migrate.model.replicated.shares import shares_of
from migrate.syntax.origins import at_line
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

TRAINERS = frozenset(
    f"transformers.{home}{name}"
    for home, name in (
        ("", "Trainer"),
        ("", "Seq2SeqTrainer"),
        ("trainer.", "Trainer"),
        ("trainer_seq2seq.", "Seq2SeqTrainer"),
    )
)
# Calls that give all replicas the weights of one.
SENDS = re.compile(rb"broadcast_master_param|broadcast_model_params|sync_module_states")
# Loads the whole model; a head for another task is not in the file.
LOADS = frozenset({"from_pretrained", "load_from_checkpoint"})
NEW_HEAD = re.compile(r".*(Classification|QuestionAnswering|MultipleChoice|Regression)\w*")
# Numbers that differ on every two replicas.
BY_CHANCE = re.compile(r"(time|random|secrets|uuid|numpy\.random)\.\w+|os\.(getpid|urandom)")
DEEPEST = 6


def drawn_weights(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of a file that prepare such a model, each with the reason why its weights differ."""
    if _sends(analysis):
        return
    weights = _Weights(analysis, top)
    for call, scope in analysis.calls_in(top):
        if why := weights.why(call, scope):
            yield call, why


@lru_cache(maxsize=2)
def _sends(analysis: Analysis) -> bool:
    """Whether a file of the project sends the weights of one replica to all."""
    return any(SENDS.search(scope.module.data) for scope in analysis.scopes.values())


class _Weights:
    """Reasons why the weights of a model differ between replicas.

    Args:
        analysis: the project.
        top: the file that prepares the model.
    """

    def __init__(self, analysis: Analysis, top: ModuleScope) -> None:
        self._analysis = analysis
        self._top = top
        self._evaluator = analysis.evaluator

    def why(self, call: ast.Call, scope: Scope) -> str:
        """Return why replicas draw different weights for the model that `call` prepares, or empty."""
        model = self._model(call, scope)
        if model is None or self._is_loaded(model, scope):
            return ""
        randomness = randomness_of(self._analysis)
        sites = list(self._made(model, scope)) or [(call, scope)]
        for entry in randomness.scripts_of(self._top):
            if why := self._unequal(randomness, entry, scope, sites):
                return why
        return ""

    def _model(self, call: ast.Call, scope: Scope) -> ast.expr | None:
        """Return the model that a call prepares; None if the call trains none."""
        if last_part(call.func) not in {"prepare", "prepare_model"} and not last_part(
            call.func
        ).endswith("Trainer"):
            return None
        names = self._evaluator.externals(call.func, scope)
        if names & PREPARES:
            is_model = self._evaluator.is_prepared_model
            return next((arg for arg in call.args if is_model(arg, scope)), None)
        if names & TRAINERS:
            named = {keyword.arg: keyword.value for keyword in call.keywords}
            if "model_init" in named:
                return None  # seeded before each model
            return named.get("model", call.args[0] if call.args else None)
        return None

    def _unequal(
        self, randomness: Randomness, entry: ModuleScope, scope: Scope, sites: list[Site]
    ) -> str:
        """Return why the weights differ in a script; empty if all replicas have the same seed."""
        seeds = list(randomness.seeds_of(entry, scope))
        before = [seed for seed in seeds if not randomness.comes_after(seed, sites)]
        own = [(seed, why) for seed in before if (why := self._own(seed))]
        alike = [s for s in before if not any(s is seed for seed, _ in own)]
        for seed, why in own:
            if not any(randomness.comes_after(other, [seed]) for other in alike):
                call, at = seed
                return f"the seed of {at_line(call.lineno, at.module.path)} {why}"
        if own:
            return ""
        if not alike:
            return "nothing seeds the replicas before it is made"
        if all(map(randomness.is_optional, alike)):
            call, at = alike[0]
            return f"only a seed that may not be given is set before ({at_line(call.lineno, at.module.path)})"
        return ""

    def _own(self, seed: Site) -> str:
        """Return why a seed differs between replicas; empty if no reason is known."""
        call, scope = seed
        names = self._evaluator.externals(call.func, scope)
        if names & drawing.BY_CHANCE:
            return "is drawn by chance"
        for keyword in call.keywords:
            is_set = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if keyword.arg == "device_specific" and is_set:
                return "is another on each replica (device_specific=True)"
        arguments = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "seed")]
        for value in arguments:
            share = shares_of(self._analysis).of(value, scope)
            if share is not None and not self._is_default(share.text, scope):
                return f"is another on each replica ({share.text})"
            if self._is_by_chance(value, scope):
                return f"is another in each process ({ast.unparse(value)})"
        return ""

    def _is_default(self, text: str, scope: Scope) -> bool:
        """Whether `text` is a parameter that no call passes: `rank=0` of `fix(seed, rank=0)`."""
        if not isinstance(scope, Function) or text not in scope.declared:
            return False
        default, _ = scope.declared[text]
        passed = passed_nodes(self._analysis).get((scope, text))
        return isinstance(default, ast.Constant) and not passed

    def _is_by_chance(self, node: ast.AST, scope: Scope, depth: int = 0) -> bool:
        for part in walk(node):
            if isinstance(part, ast.Call):
                values = self._evaluator.values(part.func, scope)
                names = [value.name for value in values if isinstance(value, External)]
                if any(BY_CHANCE.fullmatch(name) for name in names):
                    return True
            if isinstance(part, ast.Name) and depth < DEEPEST:
                bindings = list(self._evaluator.bindings_of(part.id, scope))
                if bindings and all(
                    binding.kind == "value"
                    and binding.value is not None
                    and self._is_by_chance(binding.value, binding.scope, depth + 1)
                    for binding in bindings
                ):
                    return True
        return False

    def _made(self, model: ast.expr, scope: Scope, depth: int = 0) -> Iterator[Site]:
        """Yield the calls that make the model, each with its scope."""
        if depth > DEEPEST:
            return
        if isinstance(model, ast.Call):
            yield model, scope
            return
        if isinstance(model, ast.Name):
            bindings = list(self._evaluator.bindings_of(model.id, scope))
        elif isinstance(model, ast.Attribute):
            bindings = list(self._evaluator.members_of(model.value, model.attr, scope))
        else:
            return
        passed = passed_nodes(self._analysis)
        for binding in bindings:
            value = binding.value
            if binding.kind == "param" and isinstance(binding.scope, Function):
                for arg, at in passed.get((binding.scope, binding.name), ()):
                    yield from self._made(arg, at, depth + 1)
            elif isinstance(value, ast.Call) and self._is_of(value, model):
                continue  # `model = accelerator.prepare(model)`, `model = model.to(device)`
            elif value is not None:
                yield from self._made(value, binding.scope, depth + 1)

    @staticmethod
    def _is_of(call: ast.Call, model: ast.expr) -> bool:
        """Whether a call takes the model, or is a method of it."""
        text = ast.unparse(model)
        parts = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        return any(ast.unparse(part) == text for part in parts)

    def _is_loaded(self, model: ast.expr, scope: Scope) -> bool:
        """Whether all weights of the model come from a file, on all replicas."""
        sites = list(self._made(model, scope))
        if sites and all(map(_loads, (call for call, _ in sites))):
            return True
        places = [(ast.unparse(model), scope)]
        places += [(name, at) for call, at in sites for name in _targets(call, at)]
        return any(self._is_filled(text, at) for text, at in places)

    def _is_filled(self, text: str, scope: Scope) -> bool:
        """Whether `model.load_state_dict(…)` is in the scope, under no condition."""
        above = parents(scope.module)
        for root in scope.roots:
            for region in self._analysis.regions(root):
                for call, _ in region.calls:
                    func = call.func
                    if not isinstance(func, ast.Attribute) or func.attr != "load_state_dict":
                        continue
                    strict = next((k.value for k in call.keywords if k.arg == "strict"), None)
                    if ast.unparse(func.value) != text or strict is not None:
                        continue
                    node = above.get(call)
                    while isinstance(node, ast.Expr | ast.Assign | ast.With):
                        node = above.get(node)
                    if not isinstance(node, ast.If | ast.Try | ast.For | ast.While | ast.IfExp):
                        return True
        return False


def _loads(call: ast.Call) -> bool:
    while isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if owner is None or last_part(call.func) not in LOADS:
        return False
    return NEW_HEAD.fullmatch(last_part(owner)) is None


def _targets(call: ast.Call, scope: Scope) -> Iterator[str]:
    """Yield the names bound to a call's result."""
    node = parents(scope.module).get(call)
    while isinstance(node, ast.Call | ast.Attribute):
        node = parents(scope.module).get(node)
    if isinstance(node, ast.Assign):
        yield from (ast.unparse(target) for target in node.targets)
