"""Feed-forward, residual and norm, embedding."""

import copy
import io
import itertools
import math

import pytest
import torch
from helpers import DTYPES, assert_same, normal, seeded, stir

from aiayn import (
    PositionalEncoding,
    PositionwiseFeedForward,
    Sublayer,
    TokenEmbedding,
    sinusoidal_encoding,
)
from aiayn.sublayers import residual


def layer_norm(x, gain, shift, eps=1e-5):
    """Mean and biased variance of each vector, in plain arithmetic."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + eps).sqrt() * gain + shift


@pytest.mark.equation("eq-feed-forward")
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_by_hand(bias):
    """max(0, x W₁ + b₁) W₂ + b₂, one hidden unit after the other."""
    torch.manual_seed(0)
    module = PositionwiseFeedForward(4, 7, bias=bias).double()
    stir(module, seed=1)
    x = normal(2, 3, 4)
    expected = torch.zeros(2, 3, 4, dtype=torch.float64)
    if bias:
        expected += module.outer.bias
    for unit in range(7):
        hidden = (x * module.inner.weight[unit]).sum(-1)
        hidden = hidden + (module.inner.bias[unit] if bias else 0.0)
        hidden = torch.where(hidden > 0, hidden, 0.0)
        expected = expected + hidden.unsqueeze(-1) * module.outer.weight[:, unit]
    assert_same(module(x), expected.detach())
    assert len(list(module.parameters())) == (4 if bias else 2)


def test_feed_forward_is_the_same_at_every_position():
    torch.manual_seed(0)
    module = PositionwiseFeedForward(4, 7).double()
    x = normal(2, 3, 4)
    for b in range(2):
        for t in range(3):
            assert_same(module(x)[b, t], module(x[b, t]).detach(), 1e-12)
    moved = x.clone()
    moved[:, 1] += 1.0
    assert torch.equal(module(moved)[:, [0, 2]], module(x)[:, [0, 2]])


@pytest.mark.equation("eq-post-norm")
def test_post_norm_by_hand():
    """norm(x + f(x)): the residual goes through the norm."""
    sublayer = Sublayer(6, 0.0).double()
    stir(sublayer, seed=1)
    x = normal(2, 3, 6)
    expected = layer_norm(
        x + x.roll(1, -1) ** 2, sublayer.norm.weight, sublayer.norm.bias
    )
    assert_same(sublayer(x, lambda y: y.roll(1, -1) ** 2), expected.detach())


@pytest.mark.equation("eq-pre-norm")
def test_pre_norm_by_hand():
    """x + f(norm(x)): the residual is left alone."""
    sublayer = Sublayer(6, 0.0, norm_first=True).double()
    stir(sublayer, seed=1)
    x = normal(2, 3, 6)
    normed = layer_norm(x, sublayer.norm.weight, sublayer.norm.bias)
    expected = x + normed.roll(1, -1) ** 2
    assert_same(sublayer(x, lambda y: y.roll(1, -1) ** 2), expected.detach())


def test_norm_divides_by_the_biased_standard_deviation():
    """annotated-transformer#119, allennlp#953: n − 1, and eps outside the root."""
    norm = Sublayer(4, 0.0).double().norm
    assert norm.eps == 1e-5
    norm.eps = 1e-6
    x = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert_same(norm(x), [1.732046, -0.577349, -0.577349, -0.577349], 1e-6)


def test_a_constant_vector_has_norm_zero_and_finite_gradient():
    sublayer = Sublayer(4, 0.0).double()
    x = torch.full((1, 4), 3.0, dtype=torch.float64, requires_grad=True)
    out = sublayer(x, torch.zeros_like)
    assert torch.equal(out, torch.zeros(1, 4, dtype=torch.float64))
    out.backward(normal(1, 4))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_acts_on_the_sublayer_and_only_in_training(norm_first):
    """pytorch#124464, timm#1978, wenet#2699: dropping went on in eval."""
    sublayer = Sublayer(6, 0.9, norm_first=norm_first).double()
    plain = Sublayer(6, 0.0, norm_first=norm_first).double()
    x = normal(2, 3, 6)
    f = torch.sin
    torch.manual_seed(0)
    sublayer.eval()
    assert torch.equal(sublayer(x, f), sublayer(x, f))
    assert torch.equal(sublayer(x, f), plain(x, f))
    sublayer.train()
    assert not torch.equal(sublayer(x, f), sublayer(x, f))


def test_dropout_scales_what_it_keeps_and_never_drops_the_residual():
    sublayer = Sublayer(6, 0.5, norm_first=True).double().train()
    torch.manual_seed(0)
    x = normal(50, 6)
    change = sublayer(x, torch.ones_like) - x
    kept = change != 0
    assert_same(change[kept], torch.full((int(kept.sum()),), 2.0), 1e-9)
    assert 0.35 < kept.double().mean() < 0.65


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropping_everything_leaves_the_residual(norm_first):
    sublayer = Sublayer(6, 1.0, norm_first=norm_first).double().train()
    x = normal(2, 6)
    expected = x if norm_first else layer_norm(x, 1.0, 0.0)
    assert_same(sublayer(x, torch.exp), expected, 1e-12)


@pytest.mark.equation("eq-embedding")
def test_embedding_is_scaled_on_the_way_in():
    """tutorials#2849, OpenNMT-py#1722: √d_model forgotten, inverted, after PE."""
    embedding = TokenEmbedding(5, 16).double()
    torch.nn.init.ones_(embedding.weight)
    tokens = torch.tensor([[4, 0], [1, 1]])
    looked_up = embedding(tokens)
    assert torch.equal(looked_up, torch.full((2, 2, 16), 4.0, dtype=torch.float64))
    table = sinusoidal_encoding(2, 16, dtype=torch.float64)
    expected = (4.0 + table).expand(2, 2, 16)
    assert torch.equal(PositionalEncoding(16)(looked_up), expected)


@pytest.mark.equation("eq-embedding")
def test_embedding_looks_up_its_own_row_for_each_token():
    torch.manual_seed(0)
    embedding = TokenEmbedding(5, 6).double()
    tokens = torch.tensor([[4, 0, 2], [1, 1, 3]])
    one_hot = torch.nn.functional.one_hot(tokens, 5).double()
    expected = (one_hot @ embedding.weight) * math.sqrt(6)
    assert_same(embedding(tokens), expected.detach(), 1e-12)
    assert torch.equal(embedding(tokens.to(torch.int32)), embedding(tokens))


def test_the_embedding_of_padding_is_trained_like_any_other_until_masked():
    """No row is special: masks hide padding, not a row of zeros."""
    embedding = TokenEmbedding(3, 4)
    embedding(torch.tensor([0, 0, 2])).sum().backward()
    assert_same(embedding.weight.grad[:, 0], [4.0, 0.0, 2.0], 1e-6)


@pytest.mark.parametrize(("std", "expected"), [(None, 1 / 8), (0.05, 0.05), (2, 2.0)])
def test_spread_of_a_new_embedding(std, expected):
    embedding = TokenEmbedding(3000, 64, std=std)
    embedding.reset_parameters(seeded(0))
    assert embedding.weight.std().item() == pytest.approx(expected, rel=0.02)
    output = embedding(torch.arange(3000))
    assert output.std().item() == pytest.approx(8 * expected, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    torch.manual_seed(0)
    parts = TokenEmbedding(5, 8), PositionwiseFeedForward(8, 16), Sublayer(8, 0.0)
    embedding, feed_forward, sublayer = (part.double() for part in parts)
    tokens = torch.tensor([[1, 4, 3]])
    expected = sublayer(embedding(tokens), feed_forward).detach()
    for part in parts:
        part.to(dtype)
    out = sublayer(embedding(tokens), feed_forward)
    assert out.dtype == dtype
    assert_same(out.double().detach(), expected, 16 * torch.finfo(dtype).eps)


@pytest.mark.equation("eq-feed-forward-memory")
@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 3, 4), (0, 4)])
def test_feed_forward_is_a_sum_over_memories(notebook_function, shape):
    """One key and one value after the other; those that do not answer add nothing."""
    memory = notebook_function("05_sublayers", "memory")
    module = PositionwiseFeedForward(4, 7).double().requires_grad_(False)
    stir(module, seed=1)
    x = normal(*shape)
    expected = module.outer.bias.expand(shape).clone()
    answered = 0
    for i in range(7):
        key, value = module.inner.weight[i], module.outer.weight[:, i]
        agreement = torch.einsum("...d,d->...", x, key) + module.inner.bias[i]
        answers = agreement > 0
        answered += int(answers.sum())
        expected[answers] += agreement[answers].unsqueeze(-1) * value
    assert_same(memory(x, module), expected)
    assert_same(module(x), expected)
    assert x.numel() == 0 or 0 < answered < 7 * x[..., 0].numel()


@pytest.mark.equation("eq-feed-forward")
def test_feed_forward_is_two_convolutions_of_width_one():
    module = PositionwiseFeedForward(4, 7).double()
    stir(module, seed=1)
    x = normal(2, 5, 4)
    hidden = torch.nn.functional.conv1d(
        x.mT, module.inner.weight.unsqueeze(-1), module.inner.bias
    )
    out = torch.nn.functional.conv1d(
        hidden.clamp(min=0), module.outer.weight.unsqueeze(-1), module.outer.bias
    )
    assert_same(module(x), out.mT.detach(), 1e-12)


@pytest.mark.equation("res-residual-paths")
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_stacks_jacobian_is_the_sum_over_all_paths(n):
    """Autograd through the residual connections, against 2^n products."""
    torch.manual_seed(0)
    parts = [PositionwiseFeedForward(3, 6).double() for _ in range(n)]
    for i, part in enumerate(parts):
        stir(part, seed=i)

    def stack(x):
        for part in parts:
            x = residual(x, part(x))
        return x

    x, total = normal(3), torch.zeros(3, 3, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(stack, x)
    jacobians = []
    for part in parts:
        jacobians.append(torch.autograd.functional.jacobian(part, x))
        x = (x + part(x)).detach()
    for taken in itertools.product([False, True], repeat=n):
        path = torch.eye(3, dtype=torch.float64)
        for takes, jacobian in zip(taken, jacobians, strict=True):
            path = jacobian @ path if takes else path
        total += path
    assert_same(whole, total)


@pytest.mark.equation("eq-layer-norm-gradient")
@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 3, 8), (1, 1, 513)])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradient_of_the_norm(notebook_function, shape, eps, scale):
    """Against autograd through torch's own norm, with gains that differ."""
    gradient = notebook_function("05_sublayers", "layer_norm_gradient")
    x = (scale * (normal(*shape, seed=1) + 0.7)).requires_grad_()
    gain = normal(shape[-1], seed=2)
    upstream = normal(*shape, seed=3)
    out = torch.nn.functional.layer_norm(x, shape[-1:], gain, eps=eps)
    (expected,) = torch.autograd.grad(out, x, upstream)
    found = gradient(x.detach(), upstream, gain, eps)
    assert_same(found * scale, expected * scale, 1e-8)


@pytest.mark.equation("eq-layer-norm-gradient")
def test_gradient_of_the_norm_by_small_steps(notebook_function):
    """Central differences: no derivative rule at all."""
    gradient = notebook_function("05_sublayers", "layer_norm_gradient")
    x, upstream, gain = normal(6, seed=1), normal(6, seed=2), normal(6, seed=3)
    found, step = gradient(x, upstream, gain, 0.01), 1e-6
    for j in range(6):
        move = torch.zeros(6, dtype=torch.float64)
        move[j] = step
        high, low = (layer_norm(x + m, gain, 0.0, 0.01) for m in (move, -move))
        slope = ((high - low) * upstream).sum() / (2 * step)
        assert abs(slope - found[j]) < 1e-7


@pytest.mark.equation("res-norm-projection")
@pytest.mark.parametrize("d", [3, 4, 17])
def test_gradient_of_the_norm_is_a_projection(d):
    """Autograd's Jacobian times sigma projects away 1 and x: rank d − 2."""
    x = 5 * normal(d, seed=1) + 2
    norm = lambda z: torch.nn.functional.layer_norm(z, (d,), eps=0.0)
    jacobian = torch.autograd.functional.jacobian(norm, x)
    projection = jacobian * x.std(correction=0)
    assert_same(projection, projection.T)
    assert_same(projection @ projection, projection)
    assert torch.linalg.matrix_rank(projection, atol=1e-8) == d - 2
    one = torch.ones(d, dtype=torch.float64)
    assert_same(projection @ one, 0 * one)
    assert_same(projection @ x, 0 * one)
    x_hat = (x - x.mean()) / x.std(correction=0)
    subtracted = torch.eye(d) - one.outer(one) / d - x_hat.outer(x_hat) / d
    assert_same(projection, subtracted)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_no_token_sees_another_through_a_sublayer(norm_first, place):
    """btgym#79, DeepXi#18, equinox#471: a norm over the time axis sees the future."""
    sublayer = Sublayer(6, 0.0, norm_first=norm_first).double().requires_grad_(False)
    stir(sublayer, seed=1)
    x = normal(2, 5, 6)
    moved = x.clone()
    moved[0, place] = normal(6, seed=9)
    changed = sublayer(moved, torch.sin) != sublayer(x, torch.sin)
    expected = torch.zeros(2, 5, dtype=torch.bool)
    expected[0, place] = True
    assert torch.equal(changed.any(-1), expected)
    longer = torch.nn.functional.pad(x, (0, 0, 0, 3))
    assert_same(sublayer(longer, torch.sin)[:, :5], sublayer(x, torch.sin), 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (2, 4, 6), (3, 1, 33)])
@pytest.mark.parametrize("size", [1e-2, 1.0, 300.0])
def test_the_norm_of_a_sublayer_in_every_precision(dtype, shape, size):
    """BERT-pytorch#30 by kind; in half precision the square of 300 overflows."""
    width = shape[-1]
    sublayer = Sublayer(width, 0.0).to(dtype).requires_grad_(False)
    x = (size * normal(*shape)).to(dtype)
    out = sublayer(x, torch.zeros_like)
    exact = layer_norm(x.double(), 1.0, 0.0)
    assert out.dtype == dtype
    assert_same(out.double(), exact, max(4 * torch.finfo(dtype).eps, 1e-9))


def test_two_sublayers_share_nothing():
    """annotated-transformer#9, espnet#1278: clones, or one object N times."""
    first, second = Sublayer(6, 0.0), Sublayer(6, 0.0)
    assert not {map(id, first.parameters())} & {map(id, second.parameters())}
    networks = PositionwiseFeedForward(4, 7), PositionwiseFeedForward(4, 7)
    for one, other in zip(*(n.parameters() for n in networks), strict=True):
        assert one is not other
        assert not torch.equal(one, other)
    tables = TokenEmbedding(5, 6), TokenEmbedding(5, 6)
    assert not torch.equal(tables[0].weight, tables[1].weight)
    for table in tables:
        table.reset_parameters(seeded(3))
    assert torch.equal(tables[0].weight, tables[1].weight)
    assert tables[0].weight.ne(0).all()  # no row is set to zero, padding's neither


def test_no_part_keeps_a_constant_among_its_weights():
    """transformers#29807 by kind: what is saved is what is trained."""
    parts = {
        "norm.weight norm.bias": Sublayer(6, 0.1),
        "inner.weight inner.bias outer.weight outer.bias": PositionwiseFeedForward(
            4, 7
        ),
        "weight": TokenEmbedding(5, 6),
    }
    for names, part in parts.items():
        assert list(part.state_dict()) == names.split()
        assert [name for name, _ in part.named_parameters()] == names.split()


@pytest.mark.equation("eq-tied-logits")
@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)])
def test_tied_logits_are_plain_dot_products(notebook_function, shape):
    """tutorials#2849: the factor √d_model belongs to the way in, not to the way out."""
    tied_logits = notebook_function("05_sublayers", "tied_logits")
    embedding = TokenEmbedding(5, 6).double().requires_grad_(False)
    x = normal(*shape)
    columns = [(x * embedding.weight[token]).sum(-1) for token in range(5)]
    assert_same(tied_logits(x, embedding), torch.stack(columns, dim=-1))
    own = tied_logits(embedding(torch.arange(5)), embedding).diagonal()
    lengths = embedding.weight.square().sum(-1) * math.sqrt(6)
    assert_same(own, lengths)


def save_and_load(model, **how):
    """Through a file that holds every entry on its own, as safetensors would."""
    file = io.BytesIO()
    torch.save({name: w.clone() for name, w in model.state_dict().items()}, file)
    file.seek(0)
    new = type(model)(7, 4)
    new.load_state_dict(torch.load(file, weights_only=True), **how)
    return new


EVENTS = {
    "nothing": lambda model: model,
    "deepcopy": copy.deepcopy,
    "double": lambda model: model.double(),
    "half and back": lambda model: model.half().float(),
    "save and load": save_and_load,
    "assign": lambda model: save_and_load(model, assign=True),
    "meta": lambda model: model.to("meta").to_empty(device="cpu"),
}


def three_uses(model):
    """What the three uses read: source, target, and the output as a Jacobian."""
    parameter = next(model.parameters())
    dtype = parameter.dtype
    rows = [embed(torch.arange(7)) / 2 for embed in (model.source, model.target)]
    return [*rows, model.output(torch.eye(4, dtype=dtype)).T]


@pytest.mark.equation("eq-tied-logits", "eq-embedding")
@pytest.mark.parametrize("event", EVENTS)
def test_a_tie_by_one_module_survives(notebook_function, event):
    """annotated-transformer#93, nematus#117, pytorch#188346, accelerate#1204."""
    notebook_function("05_sublayers", "tied_logits")
    model = EVENTS[event](notebook_function("05_sublayers", "OneModule")(7, 4))
    if event == "meta":
        model.source.reset_parameters(seeded(0))
    assert sum(p.numel() for p in model.parameters()) == 7 * 4
    assert list(model.state_dict()) == ["source.weight", "target.weight"]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    before = three_uses(model)[0].detach()
    for _ in range(2):
        logits = model(torch.tensor([[3, 4]]), torch.tensor([[1, 5]]))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.tensor([5, 2])
        ).backward()
        optimiser.step()
    source, target, output = three_uses(model)
    assert (source - before).abs().max() > 0.01
    assert torch.equal(source, target)
    assert_same(output.detach(), source.detach(), 1e-6)


@pytest.mark.parametrize(("way", "event"), [("Copied", "nothing"), ("Copied", "assign"),
                                            ("OneParameter", "meta")])  # fmt: skip
def test_other_ties_come_apart(notebook_function, way, event):
    """The survival test above can fail: here it does."""
    model = EVENTS[event](notebook_function("05_sublayers", way)(7, 4))
    assert sum(p.numel() for p in model.parameters()) == 3 * 7 * 4


def test_a_tied_matrix_gets_the_gradients_of_its_three_uses(notebook_function):
    one = notebook_function("05_sublayers", "OneModule")(7, 4).double()
    three = notebook_function("05_sublayers", "Copied")(7, 4).double()
    for weight in three.parameters():
        weight.data.copy_(one.source.weight)
    for model in (one, three):
        model(
            torch.tensor([[3, 4, 3]]), torch.tensor([[1, 5]])
        ).square().sum().backward()
    total = sum(p.grad for p in three.parameters())
    assert_same(one.source.weight.grad, total)
    assert one.source.weight.grad[2].ne(0).any()  # not read, but scored


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_the_mean_and_adds_its_variance(p):
    sublayer = Sublayer(4, p, norm_first=True).double().train()
    torch.manual_seed(0)
    x = torch.zeros(250_000, 4, dtype=torch.float64)
    said = sublayer(x, lambda y: torch.full_like(y, 3.0)).detach()
    deviation = 3 * math.sqrt(p / (1 - p))
    assert abs(said.mean() - 3) < 4 * deviation / 1000
    assert said.std().item() == pytest.approx(deviation, rel=0.01)
    assert_same(said.unique(), [0.0, 3 / (1 - p)])
