"""Pair the layers of a side with those of the truth, and find how their tensors lie.

Layers are paired in this order:

- what an alignment file says;
- the same names, if the models are the same;
- the weights: a layer belongs to the layer that holds the same weights of the truth, a container to the
  container whose contents do. A layer called n times, with stacked or shared weights, belongs to n layers;
- inside known pairs and between known neighbors: order, kinds, shapes and values (`align.order`).
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from migrate.parity.align.layers import Key, Matching
from migrate.parity.align.model import Model
from migrate.parity.align.outputs import pair_outputs
from migrate.parity.align.tensors import Tensors, pair_tensors
from migrate.parity.dump.dump import Call, Dump, TensorRef
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.kinds import does_nothing
from migrate.parity.ground.outputs import OutputRules

Weights = Mapping[str, str | Sequence[str]]


def align(
    truth: Dump,
    mine: Dump,
    weights: Weights | None = None,
    explicit: Mapping[str, str] | None = None,
    rules: OutputRules | None = None,
    tied: Mapping[str, str] = {},
) -> LayerAlignment:
    """Align a side's dump with the truth's.

    Args:
        truth, mine: dumps captured on the same inputs, each model as it runs.
        weights: the side's weight names → names of the truth's weights that each is made from.
        explicit: layers of the side → of the truth, from `load_alignment_file`.
        rules: the user's rules for the outputs of two models; None: both sides run one model.
        tied: the truth's weight that no weight of the side is made from → the weight that is the same tensor.

    Raises:
        ParityError: `explicit` names layers that do not exist, or `rules` such outputs.
    """
    names = {
        name: (held,) if isinstance(held, str) else tuple(held)
        for name, held in (weights or {}).items()
    }
    identity = {token: (token,) for held in names.values() for token in held}
    identity |= {key: (token,) for key, token in tied.items()}
    tensors = Tensors(truth, mine)
    matching = Matching(Model(truth, identity), Model(mine, names), tensors)
    if explicit:
        _check(explicit, matching)
        matching.fixed(explicit, "file")
    if _same(truth, mine):
        matching.fixed({name: name for name in mine.layers}, "same model")
    if "" in truth.layers and "" in mine.layers:
        matching.fixed({"": ""}, "order")
    matching.by_weights()
    matching.by_order()
    matching.by_contents()
    matching.by_order()
    return _finished(truth, mine, matching, tensors, rules)


def load_alignment_file(path: Path) -> dict[str, str]:
    """Read the file of `--align`: a YAML mapping, the side's layers → the truth's.

    Raises:
        ParityError: the file cannot be read, or is no such mapping.
    """
    import yaml

    remedy = "write lines such as `encoder.layers_0: encoder.layer.0`"
    try:
        value = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ParityError(f"{path}: {error}", "check the file of --align") from None
    except yaml.YAMLError as error:
        raise ParityError(f"{path}: {' '.join(str(error).split())}", remedy) from None
    if not isinstance(value, dict) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        raise ParityError(f"{path}: not a mapping of names to names", remedy)
    twice = [name for name in value.values() if list(value.values()).count(name) > 1]
    if twice:
        raise ParityError(f"{path}: {twice[0]} appears twice", "name each layer once")
    return value


def _check(explicit: Mapping[str, str], matching: Matching) -> None:
    for names, model, whose in (
        (explicit.keys(), matching.mine, "this side"),
        (explicit.values(), matching.truth, "the truth"),
    ):
        known = set(model.called())
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise ParityError(
                    f"--align: no layer {name} is called in {whose}",
                    f"did you mean {near[0]}?" if near else "use a name from the report",
                )


def _same(truth: Dump, mine: Dump) -> bool:
    kinds = [
        {call.layer: dump.layers[call.layer].kind for call in dump.calls} for dump in (truth, mine)
    ]
    return len(kinds[0]) > 1 and kinds[0] == kinds[1]


def _finished(
    truth: Dump, mine: Dump, matching: Matching, tensors: Tensors, rules: OutputRules | None
) -> LayerAlignment:
    notes: list[str] = []
    first = min(truth.outputs, default=0)
    outputs_of_models = truth.outputs.get(first, ()), mine.outputs.get(first, ())
    of_model = pair_outputs(tensors, *outputs_of_models, rules)
    pairs = []
    for (layer, number), (other, truth_number), how in _merged(matching):
        calls = (
            matching.truth.nodes[other, truth_number or 0].call,
            matching.mine.nodes[layer, number or 0].call,
        )
        arguments, outputs = _tensors(tensors, *calls, notes)
        if _whole(calls, outputs_of_models) and of_model.pairs:
            outputs = of_model.pairs
        if calls[0].outputs and calls[1].outputs and not outputs:
            notes.append(f"{layer} and {other} belong together ({how}), but no output of them fits")
            continue
        idle = does_nothing(truth.layers[other].kind) and all(map(_hands_on, calls))
        if idle:  # an idle layer is not fed or judged: its caller's output shows the same values
            arguments = outputs = ()
        pairs.append(Pair(layer, other, how, number, truth_number, arguments, outputs))
    paired, others = {pair.layer for pair in pairs}, {pair.truth for pair in pairs}
    alone = [name for name in matching.mine.called() if name not in paired]
    truth_alone = [name for name in matching.truth.called() if name not in others]
    nothing = sum(does_nothing(truth.layers[name].kind) for name in truth_alone)
    nothing += sum(does_nothing(mine.layers[name].kind) for name in alone)
    if nothing:
        notes.append(f"{nothing} layers without a partner are dropout or identity: they do nothing")
    left = tuple(alone), tuple(truth_alone), tuple(notes)
    return LayerAlignment(tuple(pairs), of_model.pairs, *left, of_model.apart, of_model.notes)


def _hands_on(call: Call) -> bool:
    """Whether a call only returns its own arguments."""
    arguments = {(ref.file, ref.key) for ref in call.arguments}
    return all((ref.file, ref.key) in arguments for ref in call.outputs)


def _whole(calls: Sequence[Call], outputs_of_models: Sequence[Sequence[TensorRef]]) -> bool:
    """Whether both are calls of the models themselves, with the models' outputs."""
    return all(
        not call.layer and [ref.path for ref in call.outputs] == [ref.path for ref in refs]
        for call, refs in zip(calls, outputs_of_models, strict=True)
    )


def _tensors(
    tensors: Tensors, truth: Call, mine: Call, notes: list[str]
) -> tuple[tuple[TensorPair, ...], tuple[TensorPair, ...]]:
    arguments, unsure = pair_tensors(tensors, truth.arguments, mine.arguments)
    outputs, unsure_too = pair_tensors(tensors, truth.outputs, mine.outputs)
    for what, paths in (("argument", unsure), ("output", unsure_too)):
        notes += [f"how {what} {path or '0'} of {mine.layer} lies is not certain" for path in paths]
    return arguments, outputs


def _merged(
    matching: Matching,
) -> list[tuple[tuple[str, int | None], tuple[str, int | None], str]]:
    """Merge pairs of calls into pairs of layers, where all calls of both layers are paired in order."""
    by_layer: dict[str, list[tuple[Key, Key, str]]] = defaultdict(list)
    for mine, (truth, how) in matching.pairs.items():
        by_layer[mine[0]].append((mine, truth, how))
    merged: list[tuple[tuple[str, int | None], tuple[str, int | None], str]] = []
    for layer, pairs in by_layer.items():
        _, truth, how = pairs[0]
        counts = {matching.mine.calls(layer), matching.truth.calls(truth[0]), len(pairs)}
        if len(counts) == 1 and all(t == (truth[0], m[1]) for m, t, _ in pairs):
            merged.append(((layer, None), (truth[0], None), how))
        else:
            merged += pairs
    return sorted(
        merged, key=lambda pair: matching.mine.nodes[pair[0][0], pair[0][1] or 0].call.order
    )
