"""Encoding without padding: values and gradients of the padded pass, and no sentence that sees another."""

import threading

import pytest
import torch
import torch.nn.functional as F
from conftest import FAMILIES, PAD, random_batch, tiny_config
from transformers import AutoModel

from simcse_hf import AutoModelForCL
from simcse_hf.models.poolers import POOLER_TYPES
from simcse_hf.ops.attention import _attend_padded, attend
from simcse_hf.ops.dropout import keep_mask
from simcse_hf.ops.packing import Packing
from simcse_hf.ops.unpadded import encode_unpadded, supports_unpadded

PADDED_ONLY = {"mpnet", "deberta-v2"}
UNPADDED = sorted(FAMILIES.keys() - PADDED_ONLY)
HEADS, HEAD_SIZE = 2, 4


def encoder(family, **changes):
    model = AutoModel.from_config(tiny_config(family, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases start at 0
    return model


def gradients(model, scalar):
    model.zero_grad()
    scalar.backward(retain_graph=True)
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def assert_close(found, wanted):
    """Equal up to float32's rounding, on the scale of each tensor."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=0, atol=1e-5 * max(1.0, tensor.abs().max().item()), msg=name
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_which_encoders(family):
    assert supports_unpadded(encoder(family)) == (family in UNPADDED)
    model = AutoModelForCL.from_config(tiny_config(family))
    assert model.runs_unpadded == (family in UNPADDED)
    model.unpadded = False
    assert not model.runs_unpadded and "unpadded" not in model.config.to_dict()["simcse"]


@pytest.mark.parametrize("family", UNPADDED)
@pytest.mark.parametrize("training", [True, False])
def test_every_layer_and_gradient_is_the_padded_ones(family, training):
    model = encoder(family, dropout=0.0).train(training)
    batch = random_batch(9, length=12)
    mask = batch["attention_mask"][..., None]
    wanted = model(**batch, output_hidden_states=True)
    found = encode_unpadded(model, **batch, all_layers=True)
    assert len(found.hidden_states) == len(wanted.hidden_states) == 3
    weights = torch.randn(3, *mask.shape[:2], 32) * mask
    assert_close(
        dict(enumerate(found.hidden_states)), dict(enumerate([layer * mask for layer in wanted.hidden_states]))
    )
    assert torch.equal(found.last_hidden_state, found.hidden_states[-1])
    total_found, total_wanted = (
        sum((layer * weight).sum() for layer, weight in zip(output.hidden_states, weights, strict=True))
        for output in (found, wanted)
    )
    assert_close(gradients(model, total_found), gradients(model, total_wanted))


@pytest.mark.parametrize("family", UNPADDED)
def test_first_tokens_and_pooler_are_the_padded_ones(family):
    model = encoder(family, dropout=0.0).train()
    batch = random_batch(9, length=12)
    own_pooler = getattr(model, "pooler", None) is not None
    wanted = model(**batch)
    found = encode_unpadded(model, **batch, first_only=True, pooled=own_pooler)
    assert found.last_hidden_state.shape == (9, 1, 32)
    pairs = {"first": (found.last_hidden_state[:, 0], wanted.last_hidden_state[:, 0])}
    if own_pooler:
        pairs["pooled"] = (found.pooler_output, wanted.pooler_output)
    for x, y in pairs.values():
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)
        weight = torch.randn(9, 32)
        assert_close(gradients(model, (x * weight).sum()), gradients(model, (y * weight).sum()))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
def test_poolers(family, pooler_type):
    model = AutoModelForCL.from_config(tiny_config(family, dropout=0.0), pooler_type=pooler_type).train()
    batch = random_batch(6, 2, length=11)
    both = []
    for model.unpadded in (True, False):
        output = model(**batch)
        both.append((output.sentence_embeddings.detach(), gradients(model, output.loss)))
    torch.testing.assert_close(both[0][0], both[1][0], rtol=0, atol=1e-5)
    assert_close(both[0][1], both[1][1])


@pytest.mark.parametrize("family", ["bert", "electra", "albert"])
def test_token_types(family):
    model = encoder(family, dropout=0.0).eval()
    batch = random_batch(5)
    batch["token_type_ids"] = torch.arange(9).ge(4).long().expand(5, -1)
    wanted = model(**batch).last_hidden_state * batch["attention_mask"][..., None]
    torch.testing.assert_close(encode_unpadded(model, **batch).last_hidden_state, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_gaps_and_padding_on_the_left(family):
    """The columns of a token are its positions, hidden tokens or not, as in the padded pass."""
    model = encoder(family, dropout=0.0).eval()
    batch = random_batch(6, length=12)
    mask = batch["attention_mask"]
    mask[0, 1] = 0
    mask[1, :2] = 0
    mask[2, 0] = 0
    wanted = model(**batch).last_hidden_state * mask[..., None]
    torch.testing.assert_close(encode_unpadded(model, **batch).last_hidden_state, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "length"), [("bert", 40), ("roberta", 38), ("modernbert", 40)])
def test_as_long_as_the_positions_reach(family, length):
    model = encoder(family, dropout=0.0).eval()
    ids = torch.randint(5, 20, (3, length))
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0
    ids[1, 30:] = PAD
    wanted = model(ids, mask).last_hidden_state * mask[..., None]
    torch.testing.assert_close(encode_unpadded(model, ids, mask).last_hidden_state, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_local_attention_reaches_as_far_as_padded(rate):
    model = encoder("modernbert", dropout=0.0, local_attention=8, num_hidden_layers=3).train()
    batch = random_batch(6, length=24)
    wanted = model(**batch).last_hidden_state * batch["attention_mask"][..., None]
    torch.testing.assert_close(encode_unpadded(model, **batch).last_hidden_state, wanted, rtol=0, atol=1e-5)
    for layer in model.layers:
        layer.attn.attention_dropout = rate
    repeated = [encode_unpadded(model, **batch).last_hidden_state for _ in range(2)]
    assert torch.equal(*repeated) == (rate == 0.0)


# --- sentences do not meet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", UNPADDED)
@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_sentence_never_sees_another(family, first_only, dropout):
    model = encoder(family, dropout=dropout).train()
    batch = random_batch(8, length=10)
    changed = {name: x.clone() for name, x in batch.items()}
    middle = changed["attention_mask"][3].sum() // 2
    changed["input_ids"][3, middle] = 5 + (changed["input_ids"][3, middle] - 4) % 20
    outputs = []
    for inputs in (batch, changed):
        torch.manual_seed(1)
        outputs.append(encode_unpadded(model, **inputs, first_only=first_only).last_hidden_state)
    others = torch.arange(8) != 3
    torch.testing.assert_close(outputs[0][others], outputs[1][others], rtol=0, atol=1e-6)
    assert (outputs[0][3] - outputs[1][3]).abs().max() > 1e-4


def test_order_and_company_do_not_matter():
    model = encoder("bert", dropout=0.0).eval()
    batch = random_batch(7, length=10)
    together = encode_unpadded(model, **batch).last_hidden_state
    for row in range(7):
        alone = encode_unpadded(model, **{name: x[row : row + 1] for name, x in batch.items()}).last_hidden_state
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("first_only", [True, False])
def test_rows_without_tokens_are_zero(first_only):
    model = encoder("bert", dropout=0.0).train()
    batch = random_batch(5)
    batch["attention_mask"][[1, 4]] = 0
    found = encode_unpadded(model, **batch, first_only=first_only).last_hidden_state
    wanted = model(**batch).last_hidden_state
    assert not found[[1, 4]].any()
    torch.testing.assert_close(found[[0, 2, 3], 0], wanted[[0, 2, 3], 0], rtol=0, atol=1e-5)
    found.sum().backward()
    nothing = encode_unpadded(model, batch["input_ids"], 0 * batch["attention_mask"], first_only=first_only)
    assert nothing.last_hidden_state.shape == (5, 1 if first_only else 9, 32)
    assert not nothing.last_hidden_state.any()


# --- attention ---------------------------------------------------------------------------------------------------


def slow_attention(query, key, value, packing, scaling, masks, keep_scale, first_only):
    """Sentence by sentence, head by head; `masks` are drawn in that order, `drawn_width` columns a sentence."""
    out, used, start = [], 0, 0
    for row, length in enumerate(packing.lengths.tolist()):
        places = list(range(start, start + length))
        start += length
        queries = [row] if first_only else places
        width = drawn_width(length)
        rows = 1 if first_only else width
        heads = []
        for head in range(query.shape[1]):
            scores = query[queries, head] @ key[places, head].T * scaling
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            mask = masks[used : used + rows * width].view(rows, width)[: len(queries), :length]
            used += rows * width
            heads.append((weights * mask * keep_scale) @ value[places, head])
        out.append(torch.stack(heads, dim=1))
    assert used == len(masks)
    return torch.cat(out)


def drawn_width(length):
    """Columns that masks are drawn for: those of the block that a sentence falls into."""
    return length if length == 1 else max(16, -(-length // 8) * 8)


@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("lengths", [[5, 8, 1, 3, 8], [40, 17, 24, 16, 15, 2, 1], [1, 1], [70, 66, 9]])
def test_attention_against_a_loop(first_only, rate, lengths):
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    packing = Packing.from_mask(mask, first_only)
    tokens, queries = int(mask.sum()), len(lengths) if first_only else int(mask.sum())
    # Not contiguous, as stock encoders hand them over.
    leaves = [torch.randn(HEADS, n, HEAD_SIZE).transpose(0, 1).requires_grad_() for n in (queries, tokens, tokens)]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    torch.manual_seed(5)
    found = attend(*leaves, packing, scaling=0.5, dropout=rate)
    torch.manual_seed(5)
    size = HEADS * sum(drawn_width(length) ** (1 if first_only else 2) for length in lengths)
    keep, scale = keep_mask((size,), rate) if rate else (torch.ones(size), 1.0)
    wanted = slow_attention(*doubles, packing, 0.5, keep.double(), scale, first_only)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    torch.manual_seed(5)
    in_double = attend(*doubles, packing, scaling=0.5, dropout=rate)
    torch.testing.assert_close(in_double, wanted, rtol=0, atol=1e-12)
    weight = torch.randn(found.shape)
    (found * weight).sum().backward()
    (wanted * weight.double()).sum().backward()
    for x, y in zip(leaves, doubles, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_of_accelerators_is_the_same(first_only, window):
    mask = random_batch(7, length=9)["attention_mask"]
    mask[2] = 0
    packing = Packing.from_mask(mask, first_only)
    tokens, queries = int(mask.sum()), 6 if first_only else int(mask.sum())
    if first_only:
        window = None
    inputs = [torch.randn(n, HEADS, HEAD_SIZE, requires_grad=True) for n in (queries, tokens, tokens)]
    found = _attend_padded(*inputs, packing, 0.5, 0.0, window)
    wanted = attend(*inputs, packing, scaling=0.5, window=window)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(found)
    for x, y in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(x, y)


# --- dropout, precision, and what the stock encoder keeps ----------------------------------------------------------


@pytest.mark.parametrize("place", ["attention.self", "attention.output", "output"])
def test_each_dropout_is_kept(place):
    model = encoder("bert", dropout=0.0).train()
    for layer in model.encoder.layer:
        layer.get_submodule(place).dropout.p = 0.2
    batch = random_batch(4)
    first, second = (encode_unpadded(model, **batch, first_only=True).last_hidden_state for _ in range(2))
    assert (first - second).abs().amax(-1).min() > 1e-4
    model.eval()
    first, second = (encode_unpadded(model, **batch, first_only=True).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("family", UNPADDED)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bfloat16_autocast(family, dropout):
    model = encoder(family, dropout=dropout).train()
    batch = random_batch(6)
    torch.manual_seed(2)
    full = encode_unpadded(model, **batch, first_only=True).last_hidden_state
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = encode_unpadded(model, **batch, first_only=True).last_hidden_state
        loss = half.float().square().sum()
    assert F.cosine_similarity(full, half.float(), dim=-1).min() > 0.999
    assert all(torch.isfinite(x).all() for x in gradients(model, loss).values())


def test_the_encoder_is_left_as_it_was():
    model = encoder("bert").eval()
    batch = random_batch(4)
    before = model(**batch).last_hidden_state
    encode_unpadded(model, **batch, first_only=True)
    assert model.config._attn_implementation == "sdpa"
    assert "forward" not in vars(model.encoder.layer[-1])
    assert torch.equal(model(**batch).last_hidden_state, before)
    too_large = {**batch, "input_ids": batch["input_ids"] + 1000}
    with pytest.raises(IndexError):
        encode_unpadded(model, **too_large)
    assert model.config._attn_implementation == "sdpa"
    assert "forward" not in vars(model.encoder.layer[-1])


def test_threads_may_share_an_encoder():
    model = encoder("bert").eval()
    batch = random_batch(6)
    wanted = model(**batch).last_hidden_state * batch["attention_mask"][..., None]
    wrong = []

    def encode(padded):
        for _ in range(20):
            with torch.no_grad():
                found = model(**batch) if padded else encode_unpadded(model, **batch)
            hidden = found.last_hidden_state * batch["attention_mask"][..., None]
            if not torch.allclose(hidden, wanted, atol=1e-5):
                wrong.append(padded)

    threads = [threading.Thread(target=encode, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and model.config._attn_implementation == "sdpa"


def test_recomputed_layers_run_padded():
    model = AutoModelForCL.from_config(tiny_config("bert", dropout=0.0)).train()
    batch = random_batch(4, 2)
    wanted = gradients(model, model(**batch).loss)
    model.gradient_checkpointing_enable()
    assert not model.runs_unpadded
    assert_close(gradients(model, model(**batch).loss), wanted)
    assert model.eval().runs_unpadded
