"""The dev-set callback computes correct figures and encodes each text once."""

import pytest
import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimilarityEvalCallback
from simcse_hf.evaluation.sts import ScoredPairs

PAIRS = ScoredPairs(
    "stsb",
    ["the cat sat", "a dog ran in the big house", "the bird sang", "the cat sat", "a man slept on a mat"],
    ["a cat sat on the mat", "a dog ran", "the bird sang", "a woman ran", "the cat sat"],
    [4.5, 4.1, 5.0, 1.0, 0.5],
)


@pytest.fixture
def model():
    return AutoModelForCL.from_config(tiny_config(initializer_range=0.2)).train()


def _one_by_one(model, tokenizer, texts):
    model.eval()
    with torch.no_grad():
        rows = [model.embed(torch.tensor([tokenizer(text)["input_ids"]]))[0].double() for text in texts]
    model.train()
    return torch.nn.functional.normalize(torch.stack(rows), dim=1)


def test_spearman_alignment_and_uniformity_match_their_definitions(model, tokenizer):
    metrics = SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
    first, second = (_one_by_one(model, tokenizer, texts) for texts in (PAIRS.sentences1, PAIRS.sentences2))
    cosine = (first * second).sum(1)
    ranks = lambda values: torch.tensor(values).argsort().argsort().double()  # noqa: E731
    spearman = torch.corrcoef(torch.stack([ranks(cosine.tolist()), ranks(PAIRS.scores)]))[0, 1]
    assert metrics["stsb_spearman"] == pytest.approx(100 * spearman.item(), abs=1e-9)
    # The first three pairs have scores above 4.
    assert metrics["stsb_alignment"] == pytest.approx((first - second)[:3].pow(2).sum(1).mean().item(), rel=1e-4)
    distinct = list(dict.fromkeys(PAIRS.sentences1 + PAIRS.sentences2))
    vectors = _one_by_one(model, tokenizer, distinct)
    uniformity = torch.pdist(vectors).pow(2).mul(-2).exp().mean().log()
    assert metrics["stsb_uniformity"] == pytest.approx(uniformity.item(), rel=1e-4)


def test_each_distinct_text_is_encoded_once_and_the_model_stays_in_training_mode(model, tokenizer):
    rows = []
    model.register_forward_pre_hook(lambda _m, _args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
    assert sum(rows) == 7  # of 10 sentences
    assert model.training


def test_accepts_a_file_of_scored_pairs_and_a_name(model, tokenizer, tmp_path):
    file = tmp_path / "pairs.tsv"
    lines = zip(PAIRS.sentences1, PAIRS.sentences2, PAIRS.scores, strict=True)
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in lines))
    metrics = SimilarityEvalCallback(file, name="mine").evaluate(model, tokenizer)
    assert metrics["mine_spearman"] == SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)["stsb_spearman"]


def test_nan_embeddings_are_an_error(model, tokenizer):
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
