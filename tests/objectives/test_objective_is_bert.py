"""What a user is promised of IS-BERT: every token against every sentence of the whole batch, and padding nowhere."""

import math

import pytest
import torch
from datasets import Dataset
from process_helpers import Encoded, assert_same, in_processes, train_share

from simcse_hf.objectives import EncodedBatch, TrainingRows, make_objective

LENGTHS = [[2, 2], [3, 1, 5], [7, 4, 1, 6]]


def softplus(x):
    return (1 + x.exp()).log()


def reference(objective, vectors, states, lengths):
    """Token by token: windows cut out by hand, zeros beyond the ends of the sentence."""
    tokens = []  # (sentence, features)
    for s, length in enumerate(lengths):
        for t in range(length):
            features = []
            for convolution in objective.ngrams:
                window = convolution.kernel_size[0]
                total = convolution.bias
                for offset in range(window):
                    position = t + offset - window // 2
                    if 0 <= position < length:
                        total = total + convolution.weight[:, :, offset] @ states[s, position]
                features.append(total.clamp(min=0))
            tokens.append((s, torch.cat(features)))
    sentences = [objective.to_global.weight @ vector + objective.to_global.bias for vector in vectors]
    positive, negative = [], []
    for s, features in tokens:
        for other, sentence in enumerate(sentences):
            score = features @ sentence
            (positive if s == other else negative).append(softplus(-score) if s == other else softplus(score))
    return sum(positive) / len(positive) + sum(negative) / len(negative)


def mask_of(lengths, width):
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def embedded(vectors, states, lengths):
    mask = mask_of(lengths, states.shape[1])
    return EncodedBatch(vectors[:, None], {"attention_mask": mask[:, None]}, None, states[:, None])


def drawn(lengths, dim, padding=2):
    states = torch.randn(len(lengths), max(lengths) + padding, dim, dtype=torch.float64)
    return torch.randn(len(lengths), dim, dtype=torch.float64), states


def objective_of(dim):
    return make_objective("is_bert", dim, {}, {}).double()


def parts():
    torch.manual_seed(0)
    mask = mask_of([5, 2, 1, 4, 4, 3], 6)  # 8 tokens for the first of two processes, 11 for the second
    return Encoded(objective_of(8)), (torch.randn(6, 1, 6, 6, dtype=torch.float64), mask[:, None])


def one_process(rank, processes):
    return train_share(*parts(), rank, processes)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dim", [3, 8])
def test_value_and_gradient(lengths, dim):
    objective = objective_of(dim)
    vectors, states = (x.requires_grad_() for x in drawn(lengths, dim))
    loss = objective(embedded(vectors, states, lengths))
    wanted = reference(objective, vectors, states, lengths)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-10)
    leaves = [vectors, states, *objective.parameters()]
    for found, exact in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-10)


def test_windows_are_the_papers_and_all_is_for_training_only():
    objective = make_objective("is_bert", 16, {}, {})
    assert [tuple(c.weight.shape) for c in objective.ngrams] == [(256, 16, 1), (256, 16, 3), (256, 16, 5)]
    assert objective.needs_hidden_states and objective.num_views == 1 and objective.encoders == 1


def test_padding_never_contributes():
    objective, lengths = objective_of(4), [3, 1, 5]
    vectors, states = drawn(lengths, 4, padding=0)
    loss = objective(embedded(vectors, states, lengths)).item()
    longer = torch.full((3, 9, 4), float("nan"), dtype=torch.float64)
    for s, length in enumerate(lengths):
        longer[s, :length] = states[s, :length]
    longer.requires_grad_()
    padded = objective(embedded(vectors, longer, lengths))
    assert padded.item() == pytest.approx(loss, abs=1e-12)
    padded.backward()
    assert longer.grad.isfinite().all()
    assert (longer.grad.abs().sum(2) > 0).equal(mask_of(lengths, 9).bool())


def test_only_the_first_column_is_read():
    objective, lengths = objective_of(4), [3, 2]
    vectors, states = drawn(lengths, 4)
    one = embedded(vectors, states, lengths)
    mask = one.inputs["attention_mask"]
    noise = torch.full_like(states, float("nan"))
    two = EncodedBatch(
        torch.stack([vectors, noise[:, 0]], 1),
        {"attention_mask": torch.cat([mask, torch.ones_like(mask)], 1)},
        None,
        torch.stack([states, noise], 1),
    )
    assert objective(two).item() == objective(one).item()


def test_two_processes_are_one(tmp_path):
    assert_same(in_processes(one_process, tmp_path), *parts())


def test_an_uninformed_estimate_is_two_log_two():
    objective, lengths = objective_of(4), [3, 2]
    vectors, states = drawn(lengths, 4)
    torch.nn.init.zeros_(objective.to_global.weight)
    torch.nn.init.zeros_(objective.to_global.bias)
    assert objective(embedded(vectors, states, lengths)).item() == pytest.approx(2 * math.log(2))


def test_extremes_stay_finite():
    objective, lengths = objective_of(4), [3, 2]
    vectors, states = (1e6 * x for x in drawn(lengths, 4))
    loss = objective(embedded(vectors, states.requires_grad_(), lengths))
    loss.backward()
    assert loss.isfinite() and states.grad.isfinite().all()


def test_the_last_row_of_an_evaluation_may_stand_alone():
    objective = objective_of(4).eval()
    assert objective(embedded(*drawn([3], 4), [3])).isfinite()


def test_half_precision_is_scored_in_float32():
    objective, lengths = make_objective("is_bert", 8, {}, {}), [4, 2, 3]
    vectors, states = drawn(lengths, 8)
    wanted = reference(objective.double(), vectors, states, lengths).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.float()(embedded(vectors.bfloat16(), states.bfloat16(), lengths))
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(wanted, rel=0.02)


def test_rows_that_do_not_fit():
    objective = make_objective("is_bert", 4, {}, {})
    objective.check(TrainingRows(1, 2))
    objective.check(TrainingRows(1, 1, processes=2))
    with pytest.raises(ValueError, match="rows of 2 sentences.*give one text column"):
        objective.check(TrainingRows(2, 8))
    with pytest.raises(ValueError, match="give one text column"):
        objective.check(TrainingRows(1, 8, dataset=Dataset.from_dict({"input_ids": [[1]], "relations": [[]]})))
    with pytest.raises(ValueError, match="per_device_train_batch_size to at least 2"):
        objective.check(TrainingRows(1, 1))
