"""The parameter at each position of an optimizer's state: decided by evidence, or refused."""

import json

import pytest
import torch
from torch import nn

from converters import convert, plan
from converters.errors import OptimizerError
from converters.optimizer.convert import convert_optimizer, optimizer_to_torch
from converters.optimizer.file import read_optimizer_file
from converters.optimizer.order import read_order

OPTION = r"--optimizer-order FILE, registration or sorted"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.mid(self.norm(self.inp(x))))


class Layers(nn.Module):
    """Shapes that tell the order of a single group: weights and biases take turns."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x):
        return self.second(self.first(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x.abs().long().clamp(max=4)))


def named(model, keep=lambda name, parameter: True):
    return {n: p for n, p in model.named_parameters() if keep(n, p)}


def is_matrix(name, parameter):
    return parameter.ndim > 1


def is_vector(name, parameter):
    return parameter.ndim < 2


def sorted_groups(model):
    groups = []
    for test, decay in ((is_matrix, 0.1), (is_vector, 0.0)):
        its = named(model, test)
        groups.append({"params": [its[name] for name in sorted(its)], "weight_decay": decay})
    return groups


def registered_groups(model):
    return [
        {"params": list(named(model, test).values()), "weight_decay": decay}
        for test, decay in ((is_matrix, 0.1), (is_vector, 0.0))
    ]


def layer_groups(model):
    """A learning rate for each layer, the last one first."""
    layers = [model.head, model.mid, model.norm, model.inp]
    return [{"params": list(m.parameters()), "lr": 1e-3 / (i + 1)} for i, m in enumerate(layers)]


def trained(model, groups, make=torch.optim.AdamW, steps=3):
    torch.manual_seed(1)
    optimizer = make(groups, lr=1e-3)
    width = next(model.parameters()).shape[-1]
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.randn(4, width)) - 1).pow(2).mean().backward()
        optimizer.step()
    return optimizer


def converted(net, state, /, **options):
    return convert_optimizer(state, plan=plan(net.state_dict(), model=net), **options)


def assert_right(model, optimizer, path, moment="exp_avg"):
    """Every parameter's moment is its own."""
    positions = read_optimizer_file(path).positions
    back = optimizer_to_torch(path)["state"]
    for name, parameter in named(model).items():
        if parameter in optimizer.state:
            assert torch.equal(back[positions[name]][moment], optimizer.state[parameter][moment])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def mixed_groups(model):
    """Matrices by sorted names, vectors in the order of registration."""
    return [sorted_groups(model)[0], registered_groups(model)[1]]


AMBIGUOUS = {
    "mixed groups": mixed_groups,
    "sorted groups": sorted_groups,
    "registered groups": registered_groups,
    "layer-wise rates": layer_groups,
    "matrices first": lambda m: [*named(m, is_matrix).values(), *named(m, is_vector).values()],
    "matrices last": lambda m: [*named(m, is_vector).values(), *named(m, is_matrix).values()],
}


@pytest.mark.parametrize("groups", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("with_model", [True, False])
def test_orders_that_fit_are_refused(net, groups, with_model):
    state = trained(net, groups(net)).state_dict()
    with pytest.raises(OptimizerError, match=OPTION):
        converted(net, state, model=net if with_model else None)


def test_each_different_order_is_named_once(net):
    with pytest.raises(OptimizerError) as caught:
        converted(net, trained(net, sorted_groups(net)).state_dict())
    message = str(caught.value)
    assert '"registration", "sorted", "registration, reversed", "sorted, reversed"' in message
    assert "two or more dimensions first" not in message  # in two groups, the same as registration
    assert "position 0 is inp.weight or head.weight" in message


@pytest.mark.parametrize(
    ("groups", "order"), [(sorted_groups, "sorted"), (registered_groups, "registration")]
)
def test_a_word_decides(net, groups, order, tmp_path):
    optimizer = trained(net, groups(net))
    path = tmp_path / "opt.safetensors"
    converted(net, optimizer.state_dict(), order=order, output=path)
    assert_right(net, optimizer, path)


def test_reversed_shapes_tell(tmp_path):
    model = Layers()
    optimizer = trained(model, list(model.parameters())[::-1])
    path = tmp_path / "opt.safetensors"
    converted(model, optimizer.state_dict(), output=path)
    assert_right(model, optimizer, path)


def test_the_usual_order_needs_no_word(tmp_path):
    model = Layers()
    optimizer = trained(model, model.parameters())
    path = tmp_path / "opt.safetensors"
    converted(model, optimizer.state_dict(), output=path)
    assert_right(model, optimizer, path)


def test_equal_states_may_change_places(net):
    optimizer = trained(net, sorted_groups(net))
    for entries in optimizer.state.values():
        entries["exp_avg"].fill_(0.5)
        entries["exp_avg_sq"].fill_(0.25)
    assert converted(net, optimizer.state_dict()).arrays == 18


def test_names_in_the_state_decide(net, tmp_path):
    named_groups = [
        {"params": [(f"module.{name}", p) for name, p in sorted(named(net, test).items())]}
        for test in (is_matrix, is_vector)
    ]
    optimizer = trained(net, named_groups)
    path = tmp_path / "opt.safetensors"
    converted(net, optimizer.state_dict(), output=path)
    assert_right(net, optimizer, path)


def test_names_of_distributed_checkpoint_decide(net, tmp_path):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    optimizer = trained(net, sorted_groups(net))
    by_name = get_optimizer_state_dict(net, optimizer)
    assert "inp.weight" in by_name["state"]
    path = tmp_path / "opt.safetensors"
    converted(net, by_name, output=path)
    assert_right(net, optimizer, path)


def test_names_may_be_of_a_shared_weight(tmp_path):
    model = Tied()
    optimizer = trained_tied(model)
    for stored in ("embed.weight", "head.weight"):
        weights = {stored: model.embed.weight.detach()}
        made = plan(weights, model=model)
        path = tmp_path / f"{stored}.safetensors"
        convert_optimizer(
            optimizer.state_dict(), plan=made, model=model, order=["head.weight"], output=path
        )
        back = optimizer_to_torch(path)["state"][0]["exp_avg"]
        assert torch.equal(back, optimizer.state[model.embed.weight]["exp_avg"])


def trained_tied(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, dtype=torch.long)).sum().backward()
    optimizer.step()
    return optimizer


def test_frozen_parameters_that_were_left_out(net, tmp_path):
    net.inp.requires_grad_(False)
    free = [p for p in net.parameters() if p.requires_grad]
    optimizer = trained(net, free)
    state = optimizer.state_dict()
    with pytest.raises(OptimizerError, match="has 6 parameters, the model 8"):
        converted(net, state)
    path = tmp_path / "opt.safetensors"
    converted(net, state, model=net, order="registration", output=path)
    assert_right(net, optimizer, path)


def test_two_models_in_one_optimizer(net):
    other = Net()
    optimizer = torch.optim.AdamW([*net.parameters(), *other.parameters()])
    (net(torch.ones(1, 8)) + other(torch.ones(1, 8))).sum().backward()
    optimizer.step()
    with pytest.raises(OptimizerError, match="has 16 parameters, the model 8"):
        converted(net, optimizer.state_dict(), model=net)
    names = list(named(net))
    with pytest.raises(OptimizerError, match=r"inp\.weight is named twice"):
        converted(net, optimizer.state_dict(), order=[*names, *names])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Layers()
        self.second = Layers()

    def forward(self, x):
        return self.first(x) * self.second(x + 1)


def test_two_networks_of_the_same_shapes_may_have_changed_places():
    pair = Pair()
    swapped = [*pair.second.parameters(), *pair.first.parameters()]
    with pytest.raises(OptimizerError, match='"registration", "second before first"'):
        converted(pair, trained(pair, swapped).state_dict())


def test_parameters_without_a_state_leave_the_order_open(net):
    optimizer = torch.optim.SGD(sorted_groups(net), momentum=0.9)
    net.norm(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    with pytest.raises(OptimizerError, match="the order of the parameters is unknown"):
        converted(net, optimizer.state_dict())


def test_both_factors_of_adafactor_tell(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 3, bias=False))
    optimizer = trained(model, list(model.parameters())[::-1], torch.optim.Adafactor)
    path = tmp_path / "opt.safetensors"
    converted(model, optimizer.state_dict(), output=path)
    assert_right(model, optimizer, path, "row_var")


def test_sorted_checkpoints_do_not_tell_the_registration(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    optimizer = trained(model, model.parameters())
    weights, state = tmp_path / "model.safetensors", tmp_path / "opt.pt"
    save_file(model.state_dict(), weights)
    torch.save(optimizer.state_dict(), state)
    options = {"optimizer": state, "output": tmp_path / "out.safetensors"}
    with pytest.raises(OptimizerError, match="name the module, --model"):
        convert(weights, assume=["0=Linear", "1=Linear"], **options)


def test_orders_in_files(tmp_path, net):
    names = ["a.weight", "a.bias"]
    text, listed, grouped = (tmp_path / name for name in ("a.txt", "b.json", "c.json"))
    text.write_text("# group 0\na.weight\n\na.bias\n")
    listed.write_text(json.dumps(names))
    grouped.write_text(json.dumps([names[:1], names[1:]]))
    assert [read_order(str(path)) for path in (text, listed, grouped)] == [names] * 3
    assert read_order("sorted") == "sorted"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("", "holds no names"), ("[1]", "not a name"), ("[", "not JSON")],
)
def test_bad_files(tmp_path, content, message, refused):
    path = tmp_path / "order.txt"
    if content is not None:
        path.write_text(content)
    with refused(OptimizerError, message):
        read_order(str(path))


def test_names_that_do_not_fit(net, refused):
    state = trained(net, registered_groups(net)).state_dict()
    names = [*named(net, is_matrix), *named(net, is_vector)]
    with refused(OptimizerError, "position 0 has moments of (8, 8), head.bias is (8,)"):
        converted(net, state, order=names[::-1])
    with refused(OptimizerError, "nothing is no parameter that is converted"):
        converted(net, state, order=["nothing", *names[1:]])
