"""DeCLUTR: the paper's NT-Xent, with one process and with several."""

import pytest
import torch
from conftest import MASK, flat, random_batch
from objective_helpers import assert_same, model_of, slow_info_nce

from simcse_hf.objectives import EncodedBatch
from simcse_hf.objectives.declutr import DeCLUTR
from simcse_hf.objectives.masked_lm import mask_batch

CASES = [(1, 1, 2), (1, 2, 3), (2, 2, 6), (3, 1, 6)]  # anchors, positives, columns


def vectors_of(rows, columns, dim=5, seed=0):
    return torch.randn(rows, columns, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(vectors, anchors, temperature):
    """NT-Xent of each anchor and the mean of its positives."""
    groups = vectors.reshape(len(vectors) * anchors, -1, vectors.shape[-1])
    views = [(group[0], sum(group[1:]) / (len(group) - 1)) for group in groups]
    return slow_info_nce(views, temperature, symmetric=True)


@pytest.mark.parametrize("rows", [2, 3, 7])
@pytest.mark.parametrize("anchors, positives, columns", CASES)
@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_loss_and_gradient_match_a_slow_reference(rows, anchors, positives, columns, temperature):
    vectors = vectors_of(rows, columns).requires_grad_()
    loss = DeCLUTR(5, temperature, anchors)(EncodedBatch(vectors))
    assert_same(loss, reference(vectors, anchors, temperature), vectors)


def test_rows_of_an_anchor_and_a_list_of_positives_may_have_relations():
    vectors = vectors_of(3, 3)
    relations = torch.zeros(3, 2, dtype=torch.long)
    objective = DeCLUTR(5)
    assert objective(EncodedBatch(vectors, {"relations": relations})) == objective(EncodedBatch(vectors))


# --- the masked-LM loss of the anchors ---


def masking_every_third_token(ids):
    chosen = (torch.arange(ids.shape[-1]) % 3 == 1) & (ids > MASK)
    return torch.where(chosen, MASK, ids), torch.where(chosen, ids, -100)


@pytest.mark.parametrize("matryoshka_dims", [[], [16]])
@pytest.mark.parametrize("anchors, columns", [(1, 3), (2, 4)])
def test_anchors_are_masked_and_give_both_losses_from_one_pass(anchors, columns, matryoshka_dims):
    settings = {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0, "matryoshka_dims": matryoshka_dims}
    model, batch = model_of("declutr", {"anchors": anchors}, **settings), random_batch(4, columns)
    masked = mask_batch(batch, masking_every_third_token, model.objective.mlm_columns(columns))
    for column in range(columns):
        is_anchor = column % (columns // anchors) == 0
        assert bool((masked["input_ids"][:, column] == MASK).any()) == is_anchor
        assert bool((masked["mlm_targets"][:, column] != -100).any()) == is_anchor
    passes = []
    model.bert.encoder.register_forward_hook(lambda *_: passes.append(1))
    output = model(**masked)
    assert len(passes) == 1
    # The reference encodes the masked anchors and the positives with the stock encoder.
    inputs = {"input_ids": masked["input_ids"], "attention_mask": batch["attention_mask"]}
    hidden = model.bert(**flat(inputs)).last_hidden_state.view(4, columns, 9, 32)
    mask = batch["attention_mask"][..., None]
    vectors = (hidden * mask).sum(2) / mask.sum(2)
    widths = [32, *matryoshka_dims]
    expected = sum(reference(vectors[..., :width], anchors, 0.05) for width in widths)
    torch.testing.assert_close(output.contrastive_loss, expected)
    targets = masked["mlm_targets"]
    logits = model._stock_mlm_head.logits(hidden[targets != -100])
    masked_lm = torch.nn.functional.cross_entropy(logits, targets[targets != -100])
    assert output.mlm_loss.item() == pytest.approx(masked_lm.item(), rel=1e-5)  # its logits are in float32
    assert output.loss.item() == pytest.approx((expected + masked_lm).item(), rel=1e-5)
