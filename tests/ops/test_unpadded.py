"""Encoding without padding gives the values and gradients of the padded pass, and no sentence sees another."""

import pytest
import torch
import torch.nn.functional as F
from accelerate import disk_offload
from conftest import FAMILIES, random_batch, tiny_config
from inference_helpers import attend, perturb
from transformers import AutoModel, ModernBertModel

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.names import POOLER_TYPES
from simcse_hf.ops.cpu import keep_mask
from simcse_hf.ops.packing import Packing
from simcse_hf.ops.unpadded import (
    install_unpadded_attention,
    run_encoder,
    supports_unpadded,
)

PADDED_ONLY = {"mpnet", "deberta-v2"}
if not ModernBertModel._can_set_attn_implementation():  # transformers 5.2: no replaceable attention
    PADDED_ONLY |= {"modernbert"}
UNPADDED = sorted(FAMILIES.keys() - PADDED_ONLY)
HEADS, HEAD_SIZE = 2, 4


def encoder(family, **changes):
    model = AutoModel.from_config(tiny_config(family, **changes))
    install_unpadded_attention(model)
    return perturb(model, 0.05)


def gradients(model, scalar):
    model.zero_grad()
    scalar.backward(retain_graph=True)
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def assert_close(actual, expected):
    """Assert that tensors are equal up to float32 rounding at the scale of each tensor."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            actual[name], tensor, rtol=0, atol=1e-5 * max(1.0, tensor.abs().max().item()), msg=name
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_which_encoders_run_without_padding(family):
    assert supports_unpadded(encoder(family)) == (family in UNPADDED)
    model = AutoModelForCL.from_config(tiny_config(family))
    assert model.runs_unpadded == (family in UNPADDED)
    model.unpadded = False
    assert not model.runs_unpadded and "unpadded" not in model.config.to_dict()["simcse"]


@pytest.mark.skipif("modernbert" in PADDED_ONLY, reason="ModernBERT runs with padding here")
def test_local_attention_has_the_window_of_the_padded_pass():
    model = encoder("modernbert", dropout=0.0, local_attention=8, num_hidden_layers=3).train()
    batch = random_batch(6, length=24)
    expected = model(**batch).last_hidden_state * batch["attention_mask"][..., None]
    torch.testing.assert_close(run_encoder(model, **batch).last_hidden_state, expected, rtol=0, atol=1e-5)
    for rate in (0.0, 0.1):
        for layer in model.layers:
            layer.attn.attention_dropout = rate
        repeated = [run_encoder(model, **batch).last_hidden_state for _ in range(2)]
        assert torch.equal(*repeated) == (rate == 0.0)


def slow_attention(query, key, value, packing, scaling, masks, keep_scale, first_only):
    """Attend sentence by sentence and head by head; `masks` were drawn in that order, `drawn_width` columns each."""
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
    """The width of the block that a sentence falls into: dropout masks are drawn for that many columns."""
    return length if length == 1 else max(16, -(-length // 8) * 8)


@pytest.mark.parametrize("first_only", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("lengths", [[5, 8, 1, 3, 8], [40, 17, 24, 16, 15, 2, 1], [1, 1], [70, 66, 9]])
def test_attention_equals_a_loop_over_sentences_and_heads(first_only, rate, lengths):
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    packing = Packing.from_mask(mask)
    tokens, queries = int(mask.sum()), len(lengths) if first_only else int(mask.sum())
    # Stock encoders hand over tensors that are not contiguous.
    leaves = [torch.randn(HEADS, n, HEAD_SIZE).transpose(0, 1).requires_grad_() for n in (queries, tokens, tokens)]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    torch.manual_seed(5)
    output = attend(*leaves, packing, scaling=0.5, dropout=rate)
    torch.manual_seed(5)
    size = HEADS * sum(drawn_width(length) ** (1 if first_only else 2) for length in lengths)
    keep, scale = keep_mask((size,), rate) if rate else (torch.ones(size), 1.0)
    expected = slow_attention(*doubles, packing, 0.5, keep.double(), scale, first_only)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)
    torch.manual_seed(5)
    in_double = attend(*doubles, packing, scaling=0.5, dropout=rate)
    torch.testing.assert_close(in_double, expected, rtol=0, atol=1e-12)
    weight = torch.randn(output.shape)
    (output * weight).sum().backward()
    (expected * weight.double()).sum().backward()
    gradients = [x.grad.double() for x in leaves]
    torch.testing.assert_close(gradients, [y.grad for y in doubles], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", UNPADDED)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_bfloat16_autocast_stays_close_to_float32(family, dropout):
    model = encoder(family, dropout=dropout).train()
    batch = random_batch(6)
    torch.manual_seed(2)
    full = run_encoder(model, **batch, first_only=True).last_hidden_state
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = run_encoder(model, **batch, first_only=True).last_hidden_state
        loss = half.float().square().sum()
    assert F.cosine_similarity(full, half.float(), dim=-1).min() > 0.999
    assert all(torch.isfinite(x).all() for x in gradients(model, loss).values())


def test_layers_offloaded_to_disk_are_loaded_in_every_call(tmp_path):
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type="cls").eval()
    batch = random_batch(4)
    expected = model(**batch).sentence_embeddings
    assert model.runs_unpadded
    disk_offload(model, tmp_path, execution_device="cpu")
    for _ in range(3):
        assert torch.equal(model(**batch).sentence_embeddings, expected)


@pytest.mark.parametrize(
    ("device_map", "unpadded"),
    [({"": 0}, True), ({"bert.embeddings": 0, "bert.encoder": "cpu"}, True), ({"bert": 0, "pooler": 1}, False)],
)
def test_an_encoder_spread_over_several_accelerators_runs_with_padding(device_map, unpadded):
    model = AutoModelForCL.from_config(tiny_config("bert"))
    model.hf_device_map = device_map
    assert model.runs_unpadded == unpadded


def test_another_attention_implementation_is_respected(save_checkpoint):
    path = save_checkpoint(BertForCL(tiny_config("bert"), pooler_type="cls"))
    default = BertForCL.from_pretrained(path).eval()
    eager = BertForCL.from_pretrained(path, attn_implementation="eager").eval()
    assert default.runs_unpadded and not eager.runs_unpadded
    batch = random_batch(4)
    expected = eager(**batch).sentence_embeddings
    torch.testing.assert_close(default(**batch).sentence_embeddings, expected, rtol=0, atol=1e-5)
    default.set_attn_implementation("eager")
    assert not default.runs_unpadded
    assert torch.equal(default(**batch).sentence_embeddings, expected)
    assert len(default.base_model(**batch, output_attentions=True).attentions) == 2


def left_padded(batch):
    """Return the batch with the padding of each row moved to the left."""
    shift = batch["attention_mask"].shape[1] - batch["attention_mask"].sum(1, keepdim=True)
    column = (torch.arange(batch["attention_mask"].shape[1]) - shift) % batch["attention_mask"].shape[1]
    return {name: x.gather(1, column) for name, x in batch.items()}


@pytest.mark.parametrize("family", UNPADDED)
@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
@pytest.mark.parametrize("training", [True, False])
def test_every_pooler_gives_the_embeddings_and_gradients_of_the_padded_pass(family, pooler_type, training):
    """Wherever the padding is: a position is a column, whether the tokens before it are masked or not."""
    config = tiny_config(family, dropout=0.0, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, pooler_type=pooler_type).train(training)
    right = random_batch(6, length=11)
    gaps = {name: x.clone() for name, x in right.items()}
    gaps["attention_mask"][::2, :2] = 0
    longest = random_batch(3, length=38)
    longest["attention_mask"][0] = 1
    for batch in (right, left_padded(right), gaps, longest):
        if family != "distilbert":
            batch["token_type_ids"] = batch["input_ids"] % 2 if family in ("bert", "albert") else None
        both = []
        for model.unpadded in (True, False):
            embeddings = model(**batch).sentence_embeddings
            both.append({"embeddings": embeddings.detach(), **gradients(model, embeddings.tanh().mean())})
        assert_close(*both)
