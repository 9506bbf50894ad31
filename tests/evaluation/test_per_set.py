"""Per-set fitting: each set is scored with a transform that saw its own texts and no others."""

import numpy as np
import pytest
import torch

from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.pairs import ScoredPairs
from simcse_hf.evaluation.per_set import score_per_set
from simcse_hf.evaluation.run import TaskData
from simcse_hf.postprocessing import fit_flow, fit_whitening
from simcse_hf.postprocessing.per_set import fit_per_set

DIM = 5


def embed(texts):
    """Make correlated embeddings that depend only on the text; texts that begin with "b" have another mean."""
    mixing = np.random.default_rng(0).standard_normal((DIM, DIM))
    rows = []
    for text in texts:
        noise = np.random.default_rng(list(text.encode())).standard_normal(DIM)
        rows.append(noise @ mixing * (3.0 if text[0] == "b" else 1.0) + (4.0 if text[0] == "b" else -1.0))
    return np.array(rows, dtype=np.float32)


def pairs(name, count=40):
    first, second = ([f"{name} {side} {i}" for i in range(count)] for side in "xy")
    scores = np.random.default_rng(1).uniform(0, 5, count).tolist()
    return ScoredPairs(name, first, second, scores)


def texts(of):
    return [*of.sentences1, *of.sentences2]


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_each_set_gets_a_transform_fitted_on_its_own_texts(method):
    sets = {name: texts(pairs(name)) for name in ("a", "b")}
    functions = fit_per_set(embed, sets, method)
    for name, set_texts in sets.items():
        x = torch.from_numpy(embed(set_texts))
        transform = fit_whitening([x]) if method == "whitening" else fit_flow(x)[0]
        np.testing.assert_array_equal(functions[name](set_texts), transform.transform(x).numpy())
    whitened = functions["b"](sets["b"])
    if method == "whitening":
        np.testing.assert_allclose(np.cov(whitened.T, bias=True), np.eye(DIM), atol=1e-4)
        assert np.abs(np.cov(functions["a"](sets["b"]).T, bias=True) - np.eye(DIM)).max() > 0.5


def test_scores_are_those_of_the_transformed_embeddings_of_each_set():
    sts_b, extra = pairs("b"), pairs("c")
    data = TaskData(sts={"STSBenchmark": {"test": sts_b}}, pairs={"c": extra}, missing={"STS12": "no folder"})
    evaluation = score_per_set(data, embed, ("STS12", "STSBenchmark"))
    for score, of in (
        (evaluation.results["STSBenchmark"]["splits"]["test"]["spearman"], sts_b),
        (evaluation.results["c"]["spearman"], extra),
    ):
        x = torch.from_numpy(embed(texts(of)))
        first, second = fit_whitening([x]).transform(x).chunk(2)
        assert score == pytest.approx(100 * spearman(cosine_similarity_pairs(first, second), of.scores), abs=1e-6)
    assert evaluation.results["STS12"] == {"missing": "no folder"}
    assert set(evaluation.scores) == {"STSBenchmark", "c"} and "average" in evaluation.results


def test_errors_name_a_set_with_too_few_texts_and_transfer_tasks():
    with pytest.raises(ValueError, match="c: no whitening can be fitted on its 4 texts: .*give more sentences"):
        score_per_set(TaskData(pairs={"c": pairs("c", 2)}), embed, ())
    with pytest.raises(ValueError, match="for STS tasks and pairs only: leave out MR"):
        score_per_set(TaskData(transfer={"MR": {}}), embed, ("MR",))
    with pytest.raises(ValueError, match="method must be one of whitening, flow, got 'pca'"):
        fit_per_set(embed, {}, "pca")
