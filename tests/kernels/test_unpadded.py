"""Encoding without padding gives the values and gradients of the padded pass, and no sentence sees another."""

import pytest
import torch
import torch.nn.functional as F
from accelerate import disk_offload
from conftest import FAMILIES, random_batch, tiny_config
from encoding_helpers import attend, perturb
from objective_helpers import assert_same_outputs
from trainer_helpers import model_of
from transformers import AutoModel, ModernBertModel

from simcse_hf import BertForCL
from simcse_hf.kernels.cpu import keep_mask
from simcse_hf.kernels.packing import Packing
from simcse_hf.kernels.unpadded import install_unpadded_attention, run_encoder
from simcse_hf.names import POOLER_TYPES

PADDED_ONLY = {"mpnet", "deberta-v2"}
if not ModernBertModel._can_set_attn_implementation():  # transformers 5.2: no replaceable attention
    PADDED_ONLY |= {"modernbert"}
UNPADDED = sorted(FAMILIES.keys() - PADDED_ONLY)
#: Encoders by what an error in them would be: columns or tokens counted, a window, layers that are not BERT's.
MECHANISMS = sorted({"bert", "roberta", "distilbert", "albert", "modernbert"} - PADDED_ONLY)


def encoder(family, **changes):
    model = AutoModel.from_config(tiny_config(family, **changes))
    install_unpadded_attention(model)
    return perturb(model, 0.05)


def gradients(model, scalar):
    model.zero_grad()
    scalar.backward(retain_graph=True)
    named = model.named_parameters()
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


# --- which encoders ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_runs_without_padding_if_its_encoder_can_and_nobody_switches_it_off(family):
    model = model_of(family)
    assert model.runs_unpadded == (family in UNPADDED)
    model.unpadded = False
    assert not model.runs_unpadded
    assert "unpadded" not in model.config.to_dict()["simcse"]


@pytest.mark.parametrize(
    "device_map, unpadded",
    [({"bert.embeddings": 0, "bert.encoder": "cpu"}, True), ({"bert": 0, "pooler": 1}, False)],
    ids=["offloaded", "two accelerators"],
)
def test_an_encoder_spread_over_several_accelerators_runs_with_padding(device_map, unpadded):
    model = model_of()
    model.hf_device_map = device_map
    assert model.runs_unpadded == unpadded


def test_layers_offloaded_to_disk_are_loaded_in_every_call(tmp_path):
    model = model_of(pooler_type="cls").eval()
    batch = random_batch(4)
    expected = model(**batch).sentence_embeddings
    disk_offload(model, tmp_path, execution_device="cpu")
    for _ in range(3):
        assert torch.equal(model(**batch).sentence_embeddings, expected)


def test_another_attention_implementation_runs_with_padding_whenever_it_is_set(save_checkpoint):
    checkpoint = save_checkpoint(model_of(pooler_type="cls"))
    eager = BertForCL.from_pretrained(checkpoint, attn_implementation="eager").eval()
    model = BertForCL.from_pretrained(checkpoint).eval()
    batch = random_batch(4)
    expected = eager(**batch).sentence_embeddings
    assert model.runs_unpadded and not eager.runs_unpadded
    torch.testing.assert_close(model(**batch).sentence_embeddings, expected, rtol=0, atol=1e-5)
    model.set_attn_implementation("eager")
    assert not model.runs_unpadded
    assert torch.equal(model(**batch).sentence_embeddings, expected)
    assert len(model.base_model(**batch, output_attentions=True).attentions) == 2


# --- local attention ---


@pytest.mark.skipif("modernbert" in PADDED_ONLY, reason="ModernBERT runs with padding here")
def test_local_attention_has_the_window_of_the_padded_pass_and_dropout():
    model = encoder("modernbert", dropout=0.0, local_attention=8, num_hidden_layers=3).train()
    batch = random_batch(6, length=24)
    found = run_encoder(model, **batch).last_hidden_state
    expected = model(**batch).last_hidden_state * batch["attention_mask"][..., None]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(run_encoder(model, **batch).last_hidden_state, found)
    for layer in model.layers:
        layer.attn.attention_dropout = 0.1
    assert not torch.equal(run_encoder(model, **batch).last_hidden_state, found)


# --- attention against a slow reference ---

HEADS = 2


def drawn_width(length):
    """The width of the block that a sentence falls into: dropout masks are drawn for that many columns."""
    return length if length == 1 else max(16, -(-length // 8) * 8)


def slow_attention(query, key, value, lengths, rate, first_only):
    """Attend sentence by sentence and head by head, under the masks that the package draws block by block."""
    widths = [drawn_width(length) for length in lengths]
    drawn = [HEADS * width * (1 if first_only else width) for width in widths]
    masks, scale = torch.ones(sum(drawn)), 1.0
    if rate:
        torch.manual_seed(5)
        masks, scale = keep_mask((sum(drawn),), rate)
    outputs = []
    start = 0
    for row, (length, width, mask) in enumerate(zip(lengths, widths, masks.split(drawn), strict=True)):
        places = slice(start, start + length)
        start += length
        queries = slice(row, row + 1) if first_only else places
        kept = mask.view(HEADS, -1, width)[:, : 1 if first_only else length, :length]
        heads = []
        for head in range(HEADS):
            weights = (query[queries, head] @ key[places, head].T * 0.5).exp()
            weights = weights / weights.sum(-1, keepdim=True)
            heads.append((weights * kept[head] * scale) @ value[places, head])
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


@pytest.mark.parametrize("first_only", [True, False], ids=["first token", "all tokens"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("lengths", [[5, 8, 1, 3, 8], [40, 17, 24, 16, 15, 2, 1], [1, 1], [70, 66, 9]], ids=str)
def test_attention_and_its_gradient_equal_a_loop_over_sentences_and_heads(lengths, rate, first_only):
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    packing = Packing.from_mask(is_token.long())
    inputs = []
    for number in (len(lengths) if first_only else sum(lengths), sum(lengths), sum(lengths)):
        # Stock encoders hand over tensors that are not contiguous.
        drawn = torch.randn(HEADS, number, 4, dtype=torch.float64).transpose(0, 1)
        inputs.append(drawn.requires_grad_())
    expected = slow_attention(*inputs, packing.bounds.diff().tolist(), rate, first_only)
    torch.manual_seed(5)
    found = attend(*inputs, packing, scaling=0.5, dropout=rate)
    assert_same_outputs(found, expected, inputs, rtol=0, atol=1e-12)


# --- autocast ---


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("family", MECHANISMS)
def test_bfloat16_autocast_stays_close_to_float32_and_its_gradients_are_finite(family, dropout):
    model = encoder(family, dropout=dropout).train()
    batch = random_batch(6)
    torch.manual_seed(2)
    full = run_encoder(model, **batch, first_only=True).last_hidden_state[:, 0]
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = run_encoder(model, **batch, first_only=True).last_hidden_state[:, 0].float()
        loss = half.square().sum()
    assert F.cosine_similarity(full, half, dim=-1).min() > 0.999
    for gradient in gradients(model, loss).values():
        assert gradient.isfinite().all()


# --- every pooler ---


def left_padded(batch):
    """Return the batch with the padding of each row moved to the left."""
    length = batch["attention_mask"].shape[1]
    padding = length - batch["attention_mask"].sum(1, keepdim=True)
    column = (torch.arange(length) - padding) % length
    return {name: values.gather(1, column) for name, values in batch.items()}


def with_gaps(batch):
    """Return the batch, in which the first two tokens of every other row are masked."""
    changed = {name: values.clone() for name, values in batch.items()}
    changed["attention_mask"][::2, :2] = 0
    return changed


BATCHES = {
    "right": random_batch(6, length=11),
    "left": left_padded(random_batch(6, length=11)),
    "gaps": with_gaps(random_batch(6, length=11)),
    "longest": random_batch(3, length=38),
}
BATCHES["longest"]["attention_mask"][0] = 1


def embeddings_and_gradients(model, batch, unpadded):
    model.unpadded = unpadded
    embeddings = model(**batch).sentence_embeddings
    return embeddings.detach(), gradients(model, embeddings.tanh().mean())


def assert_close_at_scale(found, expected):
    """Assert that tensors are equal up to float32 rounding at the scale of each tensor."""
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * scale)


#: Every encoder that may run unpadded, and every pooler of one with layers like BERT's and of one without.
PAIRS = [(family, "avg") for family in UNPADDED]
PAIRS += [(family, pooler) for family in ("bert", "distilbert") for pooler in POOLER_TYPES if pooler != "avg"]
PAIRS += [("albert", "cls")]  # whose pooler has its tanh beside it


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("padding", BATCHES)
@pytest.mark.parametrize("family, pooler_type", PAIRS)
def test_every_pooler_gives_the_embeddings_and_gradients_of_the_padded_pass(family, pooler_type, padding, training):
    """Wherever the padding is: a position is a column, whether the tokens before it are masked or not."""
    model = model_of(family, dropout=0.0, pooler_type=pooler_type).train(training)
    batch = dict(BATCHES[padding])
    if family in ("bert", "albert"):
        batch["token_type_ids"] = batch["input_ids"] % 2
    found, found_gradients = embeddings_and_gradients(model, batch, unpadded=True)
    expected, expected_gradients = embeddings_and_gradients(model, batch, unpadded=False)
    assert_close_at_scale(found, expected)
    assert found_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert_close_at_scale(found_gradients[name], gradient)
