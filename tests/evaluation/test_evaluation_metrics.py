"""Correlations, cosines, and the metric module."""

import subprocess
import sys

import evaluate
import numpy as np
import pytest
import scipy.stats

from simcse_hf.evaluation import METRIC_MODULE, SimilarityCorrelation, cosine_similarity_pairs, pearson, spearman

random = np.random.RandomState(0)
A, B = random.randn(50), random.randint(0, 5, 50).astype(float)


def slow_ranks(values):
    return np.array([np.mean([int(v < w) + int(v <= w) for v in values]) for w in values])


def test_spearman_is_pearson_of_ranks_and_ties_share_their_mean_rank():
    a, b = slow_ranks(A), slow_ranks(B)
    expected = np.corrcoef(a, b)[0, 1]
    assert spearman(A, B) == pytest.approx(expected, abs=1e-12)
    assert pearson(A, B) == pytest.approx(np.corrcoef(A, B)[0, 1], abs=1e-12)


def test_a_zero_embedding_has_cosine_zero():
    x = np.eye(3, dtype=np.float32)
    x[1] = 0
    assert cosine_similarity_pairs(x, np.eye(3, dtype=np.float32)) == pytest.approx([1, 0, 1])


def test_the_metric_is_loaded_by_its_file_and_works_in_batches_and_combined(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path)
    metric = evaluate.load(METRIC_MODULE)
    result = metric.compute(predictions=A, references=B)
    assert result["spearman"] == pytest.approx(scipy.stats.spearmanr(A, B).statistic, abs=1e-12)
    assert result["pearson"] == pytest.approx(scipy.stats.pearsonr(A, B).statistic, abs=1e-12)
    for start in range(0, 50, 10):
        metric.add_batch(predictions=A[start : start + 10], references=B[start : start + 10])
    assert metric.compute() == pytest.approx(result)
    combined = evaluate.combine([SimilarityCorrelation(), SimilarityCorrelation()])
    assert sorted(combined.compute(predictions=A, references=B).values()) == pytest.approx(
        sorted([*result.values(), *result.values()])
    )


@pytest.mark.slow
def test_the_packages_evaluate_and_mteb_are_imported_only_when_they_are_used():
    program = (
        "import sys, simcse_hf.evaluation, simcse_hf.evaluation.mteb; "
        "assert not {'evaluate', 'mteb'} & sys.modules.keys(); "
        "simcse_hf.evaluation.SimilarityCorrelation; assert 'evaluate' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
