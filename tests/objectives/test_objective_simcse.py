"""Tests of objective simcse: InfoNCE of a row's columns over all processes, equal texts left out."""

import math

import pytest
import torch
from datasets import Dataset
from process_helpers import in_processes

from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.nli import build_nli_triplets
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.objectives import EncodedBatch, InfoNCE, TrainingRows, make_objective

ROWS, DIM, PROCESSES = 6, 5, 2
SETTINGS = {"temperature": 0.1, "similarity": "cosine", "hard_negative_weight": 0.6}
CASES = {  # sentences a row, options
    "pairs": (2, {}),
    "hard negatives": (4, {}),
    "symmetric": (2, {"symmetric": True}),
    "symmetric with hard negatives": (3, {"symmetric": True}),
    "duplicates": (3, {"mask_duplicates": True}),
    "symmetric duplicates": (3, {"symmetric": True, "mask_duplicates": True}),
    "false negatives": (3, {"false_negative_margin": 0.1}),
}


def case_batch(case):
    generator = torch.Generator().manual_seed(0)
    num_sentences = CASES[case][0]
    vectors = torch.randn(ROWS, num_sentences, DIM, generator=generator, dtype=torch.float64)
    return vectors, torch.randint(0, 9, (ROWS, num_sentences), generator=generator)


def step(case, vectors, text_ids):
    vectors = vectors.clone().requires_grad_()
    objective = make_objective("simcse", DIM, SETTINGS, CASES[case][1])
    loss = objective(EncodedBatch(vectors, {"text_ids": text_ids}))
    loss.backward()
    return loss.detach(), vectors.grad


def slow(case, vectors, text_ids):
    """Slow reference: one query at a time, in Python floats."""
    options = CASES[case][1]
    units = [[sentence / sentence.norm() for sentence in row] for row in vectors]
    losses = []
    for i, row in enumerate(units):
        for query, target in ((0, 1), (1, 0)) if options.get("symmetric") else ((0, 1),):
            terms = 0.0
            highest = torch.dot(row[query], row[target]).item() + options.get("false_negative_margin", math.inf)
            for j, others in enumerate(units):
                for column, other in enumerate(others):
                    is_pair = j == i and column < 2
                    seen = column >= 1 or options.get("symmetric")
                    own_texts = text_ids[i, :2].tolist() if options.get("mask_duplicates") else []
                    if is_pair or not seen or text_ids[j, column].item() in own_texts:
                        continue
                    if torch.dot(row[query], other).item() > highest:
                        continue
                    alpha = math.exp(0.6) if j == i else 1.0
                    terms += alpha * math.exp(torch.dot(row[query], other).item() / 0.1)
            positive = math.exp(torch.dot(row[query], row[target]).item() / 0.1)
            losses.append(math.log(1 + terms / positive))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("case", CASES)
def test_loss_equals_the_equations_term_by_term(case):
    vectors, text_ids = case_batch(case)
    assert step(case, vectors, text_ids)[0].item() == pytest.approx(slow(case, vectors, text_ids), rel=1e-9)


def test_settings_and_options_reach_the_loss():
    vectors, text_ids = case_batch("hard negatives")
    expected = InfoNCE(0.1, hard_negative_weight=0.6)(vectors[:, 0], vectors[:, 1], vectors[:, 2:])
    assert step("hard negatives", vectors, text_ids)[0].item() == expected.item()
    assert not make_objective("simcse", DIM, SETTINGS, {}).needs_text_ids
    assert make_objective("simcse", DIM, SETTINGS, {"mask_duplicates": True}).needs_text_ids


def share_of(rank, processes):
    mine = slice(rank * ROWS // PROCESSES, (rank + 1) * ROWS // PROCESSES)
    return {case: step(case, *(x[mine] for x in case_batch(case))) for case in CASES}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return in_processes(share_of, tmp_path_factory.mktemp("processes"), PROCESSES)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradient_of_one(case, results):
    """Return the mean loss, and the gradients of each process's embeddings divided by the number of processes."""
    loss, gradient = step(case, *case_batch(case))
    assert sum(of_rank[case][0].item() for of_rank in results) / PROCESSES == pytest.approx(loss.item(), rel=1e-12)
    together = torch.cat([of_rank[case][1] for of_rank in results]) / PROCESSES
    torch.testing.assert_close(together, gradient)


def test_evaluation_uses_the_rows_of_its_own_process():
    vectors, _ = case_batch("pairs")
    objective = make_objective("simcse", DIM, SETTINGS, {}).eval()
    assert objective(EncodedBatch(vectors)).item() == InfoNCE(0.1)(vectors[:, 0], vectors[:, 1]).item()


# --- from text ----------------------------------------------------------------------------------------------------


def vectors_of(batch):
    """A stand-in for an encoder: equal token ids give equal embeddings, and different ids give distant ones."""
    ids = batch["input_ids"].flatten(0, 1)
    drawn = [
        torch.randn(DIM, generator=torch.Generator().manual_seed(hash(tuple(row.tolist())) % 2**31)) for row in ids
    ]
    return torch.stack(drawn).double().view(*batch["input_ids"].shape[:2], DIM)


def batch_of(dataset, tokenizer):
    return ContrastiveCollator(tokenizer, add_text_ids=True)(list(tokenize_dataset(dataset, tokenizer, 16)))


def test_a_repeated_sentence_is_no_false_negative(tokenizer):
    texts = ["the cat sat", "a dog ran", "the cat sat", "a red bird sang"]
    batch = batch_of(Dataset.from_dict({"sent0": texts}), tokenizer)
    vectors = vectors_of(batch)
    plain, masked = (
        make_objective("simcse", DIM, {}, {"mask_duplicates": value})(EncodedBatch(vectors, batch)).item()
        for value in (False, True)
    )
    assert plain > math.log(2) / 2  # two of four sentences cannot tell their positive from its repetition
    candidates = ([0, 1, 3], [0, 1, 3], [1, 0, 2, 3], [3, 0, 1, 2])  # of each row, its own first
    alone = [InfoNCE()(vectors[rows[:1], 0], vectors[rows, 1]).item() for rows in candidates]
    assert masked == pytest.approx(sum(alone) / 4, rel=1e-9)


def test_a_row_may_have_a_contradiction_and_a_neutral_hypothesis_as_hard_negatives(tokenizer):
    """In Table 7 the negatives of a row come from both labels, and k negatives are k candidates."""
    pairs = []
    for premise in ("the cat sat on a mat", "a dog ran in the house"):
        for hypothesis, label in (("a {} {}", 0), ("a big {} sang", 1), ("the {} slept", 2)):
            words = premise.split()
            pairs.append({"premise": premise, "hypothesis": hypothesis.format(words[1], words[2]), "label": label})
    rows = build_nli_triplets(pairs, negatives=("contradiction", "neutral"), hard_negatives_per_pair=2)
    assert rows.column_names == ["sent0", "sent1", "hard_neg_1", "hard_neg_2"]
    assert {rows[0]["hard_neg_1"], rows[0]["hard_neg_2"]} == {"a big cat sang", "the cat slept"}
    batch = batch_of(rows, tokenizer)
    vectors = vectors_of(batch)
    loss = make_objective("simcse", DIM, SETTINGS, {})(EncodedBatch(vectors, batch)).item()
    assert vectors.shape == (2, 4, DIM)
    cosine = torch.nn.functional.cosine_similarity
    expected = 0.0
    for i in range(2):
        terms = 0.0
        for j in range(2):
            for column in (1, 2, 3):
                alpha = math.exp(0.6) if i == j and column > 1 else 1.0
                terms += alpha * math.exp(cosine(vectors[i, 0], vectors[j, column], dim=0).item() / 0.1)
        expected += math.log(terms) - cosine(vectors[i, 0], vectors[i, 1], dim=0).item() / 0.1
    assert loss == pytest.approx(expected / 2, rel=1e-9)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_sentences", "batch_size", "processes", "refused"),
    [(1, 1, 1, True), (2, 1, 1, True), (3, 1, 1, False), (1, 1, 2, False), (1, 2, 1, False)],
)
def test_a_batch_without_negatives_is_refused(num_sentences, batch_size, processes, refused):
    objective = make_objective("simcse", DIM, {}, {})
    rows = TrainingRows(num_sentences, batch_size, processes)
    if refused:
        with pytest.raises(ValueError, match="raise per_device_train_batch_size"):
            objective.check(rows)
    else:
        objective.check(rows)


def test_rows_with_relations_are_refused():
    dataset = Dataset.from_dict({"input_ids": [[[2, 3], [2, 3]]], "relations": [[0]]})
    with pytest.raises(ValueError, match="relations, which objective 'simcse' does not read"):
        make_objective("simcse", DIM, {}, {}).check(TrainingRows(2, 4, 1, dataset))


def test_masking_duplicates_without_ids_is_refused():
    with pytest.raises(ValueError, match="mask_duplicates needs text_ids"):
        make_objective("simcse", DIM, {}, {"mask_duplicates": True})(EncodedBatch(torch.ones(2, 2, DIM)))


@pytest.mark.parametrize("name", ["symmetric", "mask_duplicates"])
def test_an_option_of_the_wrong_type_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} must be true or false, got 'no'"):
        make_objective("simcse", DIM, {}, {name: "no"})


@pytest.mark.parametrize("margin", [True, "0.1", float("nan")])
def test_a_false_negative_margin_that_is_no_finite_number_is_refused(margin):
    with pytest.raises(ValueError, match="false_negative_margin must be a"):
        make_objective("simcse", DIM, {}, {"false_negative_margin": margin})
