"""DeCLUTR: the paper's NT-Xent, and the masked-LM loss of the anchors."""

import pytest
import torch
from conftest import MASK, flat, random_batch
from objective_helpers import assert_same, model_of, slow_info_nce
from torch.nn.functional import cross_entropy

from simcse_hf import EncodedBatch
from simcse_hf.objectives.declutr import DeCLUTR
from simcse_hf.objectives.masked_lm import mask_batch

# --- the contrastive loss ---


def slow_nt_xent(vectors, anchors, temperature):
    """NT-Xent of each anchor and the mean of its positives."""
    groups = vectors.reshape(len(vectors) * anchors, -1, vectors.shape[-1])
    views = []
    for anchor, *positives in groups:
        mean_of_positives = sum(positives) / len(positives)
        views.append((anchor, mean_of_positives))
    return slow_info_nce(views, temperature, symmetric=True)


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("anchors, columns", [(1, 2), (1, 3), (2, 6), (3, 6)])
@pytest.mark.parametrize("temperature", [0.05, 2.0])
def test_loss_and_gradient_match_a_slow_reference(rows, anchors, columns, temperature):
    vectors = torch.randn(rows, columns, 5, dtype=torch.float64, requires_grad=True)
    loss = DeCLUTR(5, temperature, anchors)(EncodedBatch(vectors))
    assert_same(loss, slow_nt_xent(vectors, anchors, temperature), vectors)


def test_rows_of_an_anchor_and_a_list_of_positives_may_have_relations():
    vectors = torch.randn(3, 3, 5)
    all_positive = torch.zeros(3, 2, dtype=torch.long)
    objective = DeCLUTR(5)
    with_relations = objective(EncodedBatch(vectors, {"relations": all_positive}))
    assert with_relations == objective(EncodedBatch(vectors))


# --- the masked-LM loss of the anchors ---


def mask_every_third_word(ids):
    place = torch.arange(ids.shape[-1])
    chosen = (place % 3 == 1) & (ids > MASK)
    return torch.where(chosen, MASK, ids), torch.where(chosen, ids, -100)


def stock_states(model, batch):
    """The hidden states of the stock encoder, of shape `(4, columns, 9, 32)`."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return model.bert(**flat(inputs)).last_hidden_state.view(*batch["input_ids"].shape, 32)


def slow_contrastive_loss(model, batch, anchors, widths):
    """The sum over the widths of NT-Xent of the mean-pooled states."""
    mask = batch["attention_mask"][..., None]
    vectors = (stock_states(model, batch) * mask).sum(2) / mask.sum(2)
    return sum(slow_nt_xent(vectors[..., :width], anchors, 0.05) for width in widths)


@pytest.mark.parametrize("widths", [[32], [32, 16]])
@pytest.mark.parametrize("anchors, columns", [(1, 3), (2, 4)])
def test_anchors_are_masked_and_give_both_losses_in_one_pass(anchors, columns, widths):
    settings = {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0, "matryoshka_dims": widths[1:]}
    model = model_of("declutr", {"anchors": anchors}, **settings)
    masked_columns = model.objective.mlm_columns(columns)
    batch = mask_batch(random_batch(4, columns), mask_every_third_word, masked_columns)
    is_anchor = torch.arange(columns) % (columns // anchors) == 0
    assert torch.equal((batch["input_ids"] == MASK).any(2).any(0), is_anchor)
    assert torch.equal((batch["mlm_targets"] != -100).any(2).any(0), is_anchor)
    passes = []
    model.bert.encoder.register_forward_hook(lambda *_: passes.append(1))
    output = model(**batch)
    assert len(passes) == 1
    contrastive = slow_contrastive_loss(model, batch, anchors, widths)
    torch.testing.assert_close(output.contrastive_loss, contrastive)
    # The logits of its head are in float32.
    is_target = batch["mlm_targets"] != -100
    logits = model._stock_mlm_head.logits(stock_states(model, batch)[is_target])
    masked_lm = cross_entropy(logits, batch["mlm_targets"][is_target]).item()
    assert output.mlm_loss.item() == pytest.approx(masked_lm, rel=1e-5)
    assert output.loss.item() == pytest.approx(contrastive.item() + masked_lm, rel=1e-5)
