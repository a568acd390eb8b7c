"""Layers from names, shapes and companions: right where it is said, refused where shapes allow two."""

import pytest
import torch
from torch import nn

from converters.checkpoint.reader import TensorInfo
from converters.inference import Confidence, infer, parse_assumptions
from converters.mapping import Outcome, make_plan, read_slots


def infos_of(model):
    return {
        key: TensorInfo(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for key, value in model.state_dict().items()
    }


def guess_of(infos, key, *assumptions):
    inference = infer(infos, parse_assumptions(assumptions))
    return next(it.guess for it in inference.guesses if key in it.keys)


def shapes(**of):
    return {key.replace("__", "."): TensorInfo(shape, "float32") for key, shape in of.items()}


class Named(nn.Module):
    """Layers whose names and shapes leave no doubt, with asymmetric sides."""

    def __init__(self):
        super().__init__()
        self.tok_embed = nn.Embedding(11, 6)
        self.cls_token = nn.Parameter(torch.ones(1, 1, 6))
        self.register_buffer("table", torch.arange(4))
        self.stem = nn.Conv2d(3, 8, (3, 5))
        self.pair = nn.Conv1d(4, 8, 3, groups=2, bias=False)
        self.volume = nn.Conv3d(3, 4, (2, 3, 5))
        self.upscale = nn.ConvTranspose2d(8, 4, (2, 3))
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(6, 2, 10) for _ in range(2))
        self.net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))
        self.lstm = nn.LSTM(5, 6, 2, bidirectional=True)
        self.projected = nn.LSTM(5, 6, proj_size=4)
        self.gru = nn.GRU(5, 7, bias=False)
        self.rnn = nn.RNN(5, 7)
        self.cell = nn.GRUCell(5, 7)
        self.act = nn.PReLU(5)
        self.head = nn.Linear(5, 11, bias=False)


@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_the_same_places_as_with_the_module(api):
    model = Named()
    inference = infer(infos_of(model), parse_assumptions(["heads=2"]), api)
    assert inference.ambiguous == ()
    assert inference.unused == ()
    truth = read_slots(model, api)
    assert list(inference.slots) == list(model.state_dict())
    for key, slot in inference.slots.items():
        assert (slot.outcome, slot.targets) == (truth[key].outcome, truth[key].targets), key


def test_sorted_keys_give_the_same():
    infos = infos_of(Named())
    one, other = (
        infer(it, parse_assumptions(["heads=2"])) for it in (infos, dict(sorted(infos.items())))
    )
    assert dict(one.slots) == dict(other.slots)
    assert list(other.slots) == sorted(infos)


def test_kinds_confidence_and_evidence():
    infos = infos_of(Named())
    assert guess_of(infos, "net.0.weight").kind == "Linear"
    assert guess_of(infos, "net.0.weight").confidence is Confidence.CERTAIN
    assert "as long as" in guess_of(infos, "net.0.weight").evidence
    head = guess_of(infos, "head.weight")
    assert (head.kind, head.confidence) == ("Linear", Confidence.LIKELY)
    assert guess_of(infos, "upscale.bias").kind == "ConvTranspose2d"
    assert guess_of(infos, "lstm.weight_ih_l0").options["layers"] == 2
    assert guess_of(infos, "norm.running_var").kind == "BatchNorm"
    assert guess_of(infos, "cls_token").kind == "Parameter"


@pytest.mark.parametrize(
    "infos",
    [
        shapes(thing__weight=(8, 6)),  # Linear or Embedding
        shapes(thing__weight=(6, 6)),
        shapes(gate__weight=(4, 6)),  # Linear or a bare parameter
        shapes(up__weight=(4, 4, 3, 3), up__bias=(4,)),  # Conv or ConvTranspose
        shapes(main__weight=(4, 8, 4, 4)),
        shapes(attn__in_proj_weight=(18, 6), attn__out_proj__weight=(6, 6)),  # how many heads?
        shapes(mlp__experts__up=(4, 6, 8)),
        shapes(layer__weight=(8, 6), layer__bias=(8,), layer__gain=(8,)),
        shapes(layer__weight=(8, 6), layer__bias=(5,)),
        shapes(layer__parametrizations__weight__original=(8, 6), layer__bias=(8,)),
        shapes(layer__qweight=(8, 6), layer__scales=(8,)),
        shapes(rnn__weight_ih_l0=(10, 3), rnn__weight_hh_l0=(10, 4)),
        shapes(proj_embed__weight=(8, 6)),
        shapes(patch_embed__weight=(8, 6)),
        shapes(mix__weight=(7, 4, 33), mix__bias=(7,)),  # Bilinear or Conv1d
        shapes(in_proj__weight=(7, 4, 3)),
    ],
    ids=lambda infos: next(iter(infos)),
)
def test_what_shapes_allow_two_readings_of_is_refused(infos):
    inference = infer(infos)
    for key, slot in inference.slots.items():
        assert slot.outcome is Outcome.REFUSED, key
        assert slot.note.startswith("ambiguous: ")
        assert "--assume" in slot.note
    assert inference.counts["ambiguous"] == len(infos)
    assert inference.ambiguous[0].guess.alternatives
    plan = make_plan("a checkpoint", infos, inference.slots)
    assert len(plan.refused) == len(infos)


@pytest.mark.parametrize(
    ("key", "shape", "assumption", "layout"),
    [
        ("thing.weight", (8, 6), "thing=Linear", "transpose(1, 0)"),
        ("thing.weight", (8, 6), "th.*=Embedding", "unchanged"),
        ("thing.weight", (8, 6), r"thing\.weight=Parameter", "unchanged"),
        ("thing.weight", (8, 6), "thing=Conv1D", "unchanged"),
        ("up.weight", (4, 4, 3, 3), "up=Conv2d", "transpose(2, 3, 1, 0)"),
        ("experts.up", (4, 6, 8), "experts=Parameter", "unchanged"),
    ],
)
def test_an_assumption_decides(key, shape, assumption, layout):
    slot = infer({key: TensorInfo(shape, "float32")}, parse_assumptions([assumption])).slots[key]
    assert slot.outcome is Outcome.MAPPED
    assert [str(target.layout) for target in slot.targets] == [layout]
    assert slot.evidence == f"assumed: --assume {assumption}"


def test_a_transposed_convolution_is_assumed():
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3))
    slots = infer(infos_of(model), parse_assumptions(["0=ConvTranspose"])).slots
    assert slots["0.weight"].targets == read_slots(model)["0.weight"].targets


def test_an_assumption_that_does_not_fit_is_refused():
    infos = shapes(thing__weight=(8, 6, 3))
    slot = infer(infos, parse_assumptions(["thing=Embedding"])).slots["thing.weight"]
    assert slot.outcome is Outcome.REFUSED
    assert "Embedding" in slot.note


def test_heads_must_divide():
    infos = shapes(attn__in_proj_weight=(18, 6), attn__out_proj__weight=(6, 6))
    assert (
        "do not divide"
        in infer(infos, parse_assumptions(["heads=4"])).slots["attn.in_proj_weight"].note
    )
    for text in ("heads=2", "attn: heads=2", "attn=MultiheadAttention(heads=2)"):
        slots = infer(infos, parse_assumptions([text])).slots
        assert {slot.outcome for slot in slots.values()} == {Outcome.MAPPED}, text


def test_some_keys_dropped():
    infos = shapes(rope__inv_freq=(4,), rope__weight=(4,))
    slots = infer(infos, parse_assumptions([r".*\.inv_freq=dropped"])).slots
    assert slots["rope.inv_freq"].outcome is Outcome.DROPPED
    assert slots["rope.weight"].outcome is Outcome.MAPPED


def test_one_key_of_a_group():
    """An Embedding with a parameter beside its weight, as a subclass has it."""
    infos = shapes(tok__weight=(8, 6), tok__extra=(6,))
    assert infer(infos).slots["tok.weight"].outcome is Outcome.REFUSED
    slots = infer(infos, parse_assumptions([r"tok\.weight=Embedding"])).slots
    assert {key: slot.targets[0].path for key, slot in slots.items()} == {
        "tok.weight": "params/tok/embedding",
        "tok.extra": "params/tok/extra",
    }


def test_unused_assumptions_are_told():
    infos = shapes(head__weight=(8, 6))
    assert infer(infos, parse_assumptions(["gone=Linear", "head=Linear"])).unused == (
        "gone=Linear",
    )


def test_the_transposed_linear_of_gpt2():
    infos = shapes(
        h__0__c_attn__weight=(6, 18),
        h__0__c_attn__bias=(18,),
        h__0__attn__c_proj__weight=(6, 6),
        h__0__attn__c_proj__bias=(6,),
        h__0__mlp__c_proj__weight=(24, 6),
        h__0__mlp__c_proj__bias=(6,),
        h__0__other__weight=(6, 6),
        h__0__other__bias=(6,),
    )
    slots = infer(infos).slots
    assert slots["h.0.c_attn.weight"].targets[0].path == "params/h_0/c_attn/kernel"
    assert str(slots["h.0.attn.c_proj.weight"].targets[0].layout) == "unchanged"
    assert slots["h.0.attn.c_proj.weight"].kind == "Conv1D"
    assert slots["h.0.other.weight"].outcome is Outcome.REFUSED  # both kinds are there


def test_a_batch_norm_after_it_tells_which_convolution():
    infos = shapes(
        main__0__weight=(6, 4, 4, 4), main__1__running_mean=(6,), main__1__running_var=(6,)
    )
    assert guess_of(infos, "main.0.weight").kind == "Conv2d"
    infos = shapes(
        main__0__weight=(6, 4, 4, 4), main__1__running_mean=(4,), main__1__running_var=(4,)
    )
    guess = guess_of(infos, "main.0.weight")  # DCGAN's generator
    assert guess.confidence is Confidence.AMBIGUOUS
    assert "as if it were transposed" in guess.evidence


def test_the_order_of_the_keys_is_no_evidence():
    """conv2 goes into norm2, although safetensors lists norm1 behind it."""
    infos = shapes(
        b__conv1__weight=(4, 8, 4, 4),
        b__conv2__weight=(8, 16, 4, 4),
        b__norm1__running_mean=(8,),
        b__norm1__running_var=(8,),
        b__norm2__running_mean=(16,),
        b__norm2__running_var=(16,),
    )
    for key in ("b.conv1.weight", "b.conv2.weight"):
        assert guess_of(infos, key).confidence is Confidence.AMBIGUOUS
        assert guess_of(dict(reversed(infos.items())), key) == guess_of(infos, key)


def test_a_head_that_shares_its_tensor():
    infos = shapes(thing__weight=(8, 6), lm_head__weight=(8, 6))
    assert infer(infos).slots["thing.weight"].outcome is Outcome.REFUSED
    slots = infer(infos, shared=[frozenset(infos)]).slots
    assert slots["thing.weight"].kind == "Embedding"
    assert slots["lm_head.weight"].tied == "thing.weight"
    plan = make_plan("a checkpoint", infos, slots)
    assert plan.counts == {"mapped": 1, "tied": 1, "dropped": 0, "refused": 0}


def test_a_tensor_shared_with_the_ambiguous_is_ambiguous():
    infos = shapes(tok__weight=(8, 6), tok__extra=(6,), lm_head__weight=(8, 6))
    shared = [frozenset({"tok.weight", "lm_head.weight"})]
    slots = infer(infos, shared=shared).slots
    assert slots["lm_head.weight"].outcome is Outcome.REFUSED
    assert "one tensor with tok.weight" in slots["lm_head.weight"].note
    slots = infer(infos, parse_assumptions([r"tok\.weight=Embedding"]), shared=shared).slots
    assert slots["lm_head.weight"].tied == "tok.weight"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
        nn.ModuleDict({"net": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))}),
        nn.ModuleDict({"net": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))}),
        nn.ModuleDict({"ls": nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])}),
        nn.ModuleDict({"ps": nn.ParameterList([torch.ones(2, 3), torch.ones(3)])}),
        nn.Linear(3, 4),
    ],
    ids=["top", "gap", "kinds", "list", "parameters", "single"],
)
@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_containers(model, api):
    if isinstance(model, nn.ModuleDict):  # a plain module looks the same
        holder = nn.Module()
        holder.add_module(*next(iter(model.items())))
        model = holder
    slots, truth = infer(infos_of(model), api=api).slots, read_slots(model, api)
    assert {k: s.targets for k, s in slots.items()} == {k: truth[k].targets for k in slots}


def test_containers_are_assumed():
    infos = shapes(net__0__weight=(4, 3), net__0__bias=(4,))
    slot = infer(infos, parse_assumptions(["net=Sequential"])).slots["net.0.weight"]
    assert slot.targets[0].path == "params/net/layers_0/kernel"
    assert infer(infos).slots["net.0.weight"].targets[0].path == "params/net_0/kernel"


@pytest.mark.parametrize(
    "make", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm], ids=["old", "new"]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm(make):
    model = nn.Sequential(make(nn.Linear(3, 4)), make(nn.Conv1d(3, 4, 5), dim=2))
    slots, truth = infer(infos_of(model)).slots, read_slots(model)
    for key, slot in slots.items():
        assert (slot.outcome, slot.targets) == (truth[key].outcome, truth[key].targets), key


ODD_KEYS = ["", ".", "a.", ".weight", "a..weight", "weight", "0.weight", "a/b.weight", "01.weight"]


@pytest.mark.parametrize(
    "key",
    [
        *ODD_KEYS,
        "x" * 300 + ".weight",
        "99999999.weight",
        "type.forward.weight",
        ".".join(["a"] * 3000),
    ],
)
def test_odd_keys_have_an_outcome(key):
    infos = {key: TensorInfo((3, 4), "float32"), "b.bias": TensorInfo((3,), "float32")}
    slots = infer(infos, parse_assumptions([".*weight.*=Linear"])).slots
    assert list(slots) == list(infos)
    assert (slots[key].outcome is Outcome.REFUSED) == (
        key in ("", ".", "a.", ".weight") or len(key) > 400 or ".." in key or "/" in key
    )


@pytest.mark.parametrize("shape", [(), (0,), (0, 0), (1,) * 7, (0, 3, 3), (3, 0, 1, 1)])
@pytest.mark.parametrize(
    "name", ["weight", "bias", "weight_ih_l0", "weight_g", "running_mean", "x"]
)
def test_odd_shapes_have_an_outcome(name, shape):
    names = [name, "weight_hh_l0", "weight_v", "running_var"]
    infos = {f"m.{it}": TensorInfo(shape, "float32") for it in names}
    assert list(infer(infos).slots) == list(infos)


ADAPTED = {
    "emb.base_layer.weight": (11, 8),
    "emb.lora_embedding_A.default": (2, 11),
    "emb.lora_embedding_B.default": (8, 2),
    "q.base_layer.weight": (6, 8),
    "q.lora_A.default.weight": (2, 8),
    "q.lora_B.default.weight": (6, 2),
    "c.base_layer.weight": (8, 6),  # GPT-2's Conv1D keeps (in, out)
    "c.lora_A.weight": (2, 8),
    "c.lora_B.weight": (6, 2),
    "s.base_layer.weight": (8, 8),
    "s.lora_A.weight": (2, 8),
    "s.lora_B.weight": (8, 2),
    "base_layer.weight": (5, 4),
}


@pytest.mark.parametrize(
    ("key", "kind", "confidence"),
    [
        ("emb.base_layer.weight", "Embedding", Confidence.CERTAIN),
        ("emb.lora_embedding_A.default", "Parameter", Confidence.CERTAIN),
        ("q.base_layer.weight", "Linear", Confidence.CERTAIN),
        ("q.lora_A.default.weight", "Linear", Confidence.CERTAIN),
        ("q.lora_B.default.weight", "Linear", Confidence.CERTAIN),
        ("c.base_layer.weight", "Conv1D", Confidence.CERTAIN),
        ("c.lora_B.weight", "Linear", Confidence.CERTAIN),
        ("s.base_layer.weight", "Linear", Confidence.LIKELY),
        ("base_layer.weight", "unknown", Confidence.AMBIGUOUS),  # no adapter beside it
    ],
)
def test_adapters_of_peft_and_the_layers_that_they_are_around(key, kind, confidence):
    guess = guess_of({key: TensorInfo(shape, "float32") for key, shape in ADAPTED.items()}, key)
    assert (guess.kind, guess.confidence) == (kind, confidence)
