"""STS scores under the three aggregations."""

import numpy as np
import pytest
import scipy.stats

from simcse_hf.evaluation.sts import score_subsets

random = np.random.RandomState(0)
GOLD = {"a": random.rand(20), "b": 5 + random.rand(60), "c": random.rand(7)}
PREDICTED = {part: gold + random.randn(len(gold)) for part, gold in GOLD.items()}
PARTS = {part: {"predicted": PREDICTED[part], "gold": GOLD[part]} for part in GOLD}


@pytest.mark.parametrize("metric, reference", [("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)])
def test_aggregations_equal_sentevals(metric, reference):
    result = score_subsets("STS12", PARTS)
    single = {part: 100 * reference(PREDICTED[part], GOLD[part]).statistic for part in GOLD}
    whole = 100 * reference(np.concatenate([*PREDICTED.values()]), np.concatenate([*GOLD.values()])).statistic
    assert {part: scores[metric] for part, scores in result["subsets"].items()} == pytest.approx(single)
    assert result["aggregate"]["all"][metric] == pytest.approx(whole)
    assert result["aggregate"]["mean"][metric] == pytest.approx(sum(single.values()) / 3)
    wmean = (20 * single["a"] + 60 * single["b"] + 7 * single["c"]) / 87
    assert result["aggregate"]["wmean"][metric] == pytest.approx(wmean)
    assert result["pairs"] == 87 and result["subsets"]["c"]["pairs"] == 7


def test_a_task_whose_subsets_are_unknown_has_no_mean():
    result = score_subsets("STS12", {"STS12": PARTS["a"]})
    assert result["aggregate"]["mean"] == {"spearman": None, "pearson": None}
    assert result["aggregate"]["all"]["spearman"] == result["subsets"]["STS12"]["spearman"]
