"""A card says from how many seeds a figure comes, and whether the difference from a baseline is significant."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from card_helpers import PROTOCOL

from simcse_hf.cli.evaluate import compare_main
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.report import add_averages, write_results
from simcse_hf.evaluation.scoring import Evaluation
from simcse_hf.evaluation.sts import score_parts
from simcse_hf.publishing import write_card
from simcse_hf.training.dev_sets import dev_change, keep_dev_scores

GOLD = np.random.default_rng(0).uniform(0, 5, 400)
ROWS = np.arange(400)


def evaluation(noise, seed):
    """An evaluation on STS-B whose scores are the gold scores with noise."""
    predicted = GOLD + noise * np.random.default_rng(seed).normal(size=len(GOLD))
    scores = {"test": {"predicted": predicted, "gold": GOLD, "group": ROWS}}
    results = {"STSBenchmark": {"splits": score_parts("STSBenchmark", scores)}}
    add_averages(results, ("STSBenchmark",), Protocol())
    return Evaluation(results, {"STSBenchmark": scores})


def write_evaluation(path, model, noise, seed):
    found = evaluation(noise, seed)
    document = {"model": str(model), "pooler": "cls", "max_length": 40, "protocol": PROTOCOL, "results": found.results}
    write_results(path, document, found.scores)


@pytest.fixture
def directory(directory):
    """A model with the record of a run with one seed."""
    (directory / "results.json").write_text(json.dumps(run(42)))
    return directory


def run(seed, **more):
    evaluations = {
        when: {"step": step, "stsb_spearman": 70.0 + step + seed / 10, "stsb_alignment": 0.25}
        for when, step in (("initial", 0), ("best", 2), ("final", 4), ("saved", 2))
    }
    return {
        "settings": {}, "seed": seed, "steps": 4, "epochs": 1.0, "train_loss": 1.0, "base_model": "bert-base-uncased",
        "arguments": {"load_best_model_at_end": True}, "train_seconds": 3.0, "dev_metric": "stsb_spearman",
        **evaluations, **more,
    }  # fmt: skip


def several(directory, seeds=(42, 43, 44), published=43):
    """Turn the record into one of several seeds, with their folders."""
    evaluations = ("initial", "best", "final", "saved")
    runs = [{"seed": seed, "train_seconds": 3.0, **{k: run(seed)[k] for k in evaluations}} for seed in seeds]
    for seed in seeds:
        (directory / f"seed-{seed}").mkdir()
    summary = {"runs": runs, "published": published, "chosen_by": "stsb_spearman"}
    change = {"metric": "stsb_spearman", "difference": 2.0, "low": 1.0, "high": 3.0, "confidence": 0.95, "seeds": 3}
    (directory / "results.json").write_text(json.dumps(run(published, seeds=summary, change=change)))


def test_a_card_of_one_seed_says_so_at_every_figure(directory):
    write_evaluation(directory / "evaluation.json", directory, 1.0, 1)
    text = write_card(directory).read_text()
    assert text.count("All scores come from one seed (42).") == 2, "below the dev set and below STS"
    assert "with seed 42." in text and "Mean ± standard deviation over" not in text
    (directory / "results.json").unlink()
    assert "it is unknown from how many seeds these scores come" in write_card(directory).read_text()


def test_a_card_of_several_seeds_gives_means_and_names_the_published_seed(directory):
    several(directory)
    text = write_card(directory).read_text()
    assert "Mean ± standard deviation over 3 seeds (42, 43, 44); the published seed is 43." in text
    values = [76.2, 76.3, 76.4]
    assert f"| saved weights | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} | 0.2500 ± 0.0000 |" in text
    assert "| seed 43, saved weights | 76.30 | 0.2500 |" in text
    assert "Of 3 runs with the seeds 42, 43, 44, this is the best one on the dev set." in text
    assert (
        "+2.00 [+1.00, +3.00] against bert-base-uncased before training: significant at 95% (paired bootstrap over "
        "the examples and the 3 seeds). The same dev set chose the checkpoint and seed" in text
    )


def test_an_evaluation_of_the_published_seed_alone_is_not_called_a_mean(directory):
    several(directory)
    write_evaluation(directory / "evaluation.json", directory, 1.0, 1)
    write_evaluation(directory / "seed-42/evaluation.json", directory / "seed-42", 1.1, 2)
    text = write_card(directory).read_text()
    assert "All scores come from one seed (43), the best on the dev set of 3." in text


def test_evaluations_of_all_seeds_give_their_mean_beside_the_published_figure(directory):
    several(directory)
    write_evaluation(directory / "evaluation.json", directory, 1.0, 43)
    for seed in (42, 43, 44):
        write_evaluation(directory / f"seed-{seed}/evaluation.json", directory / f"seed-{seed}", 1.0, seed)
    figures = [100 * 0.01 * evaluation(1.0, seed).results["average"]["value"] for seed in (42, 43, 44)]
    text = write_card(directory).read_text()
    expected = f"{np.mean(figures):.2f} ± {np.std(figures, ddof=1):.2f}"
    assert f"| published | {figures[1]:.2f} | {figures[1]:.2f} |" in text
    assert f"| mean of 3 seeds | {expected} | {expected} |" in text


def test_the_card_shows_the_table_that_compare_wrote_without_local_folders(directory, tmp_path, capsys):
    for name, noise in (("start", 2.0), ("trained", 0.5)):
        write_evaluation(tmp_path / f"{name}.json", f"org/{name}", noise, 1)
    names = [str(tmp_path / f"{name}.json") for name in ("start", "trained")]
    assert compare_main([*names, "--output", str(directory / "comparison.json")]) == 0
    printed = capsys.readouterr().out
    text = write_card(directory).read_text()
    assert "### Comparison with other models" in text and "trained.json - start.json" in " ".join(text.split())
    assert str(tmp_path) not in text and printed.splitlines()[0] in text


# --- the dev set during training ---


def dev_set(noise, seed):
    predicted = GOLD + noise * np.random.default_rng(seed).normal(size=len(GOLD))
    return SimpleNamespace(scores={"stsb_spearman": {"pairs": {"predicted": predicted, "gold": GOLD, "group": ROWS}}})


def test_the_interval_of_a_change_allows_for_the_choice_of_the_checkpoint(tmp_path):
    for step in range(9):  # the start and eight evaluations of equally good weights
        keep_dev_scores([dev_set(1.0, step)], SimpleNamespace(global_step=step), str(tmp_path))
    predicted = [dev_set(1.0, step).scores["stsb_spearman"]["pairs"]["predicted"] for step in range(9)]
    spearman = [100 * scipy.stats.spearmanr(each, GOLD)[0] for each in predicted]
    saved = 1 + int(np.argmax(spearman[1:]))
    results = {
        when: {"step": step, "stsb_spearman": spearman[step]} for when, step in (("start", 0), ("saved", saved))
    }
    results["start"]["metric"] = results["dev_metric"] = "stsb_spearman"
    plain = dev_change([(tmp_path, results)])
    change = dev_change([(tmp_path, results | {"chosen_among": list(range(1, 9))})])
    assert change["difference"] == plain["difference"] and plain["optimism"] == 0 < change["optimism"]
    assert change["low"] == pytest.approx(plain["low"] - change["optimism"])
    assert change["high"] == pytest.approx(plain["high"] - change["optimism"])


def test_the_change_by_training_has_an_interval_over_the_pairs_and_the_seeds(tmp_path):
    runs = []
    for seed, noise in ((1, 0.8), (2, 0.9), (3, 1.0)):
        folder = tmp_path / f"seed-{seed}"
        for step, spread in ((0, 2.0), (5, noise)):
            state = SimpleNamespace(global_step=step, best_global_step=5, best_model_checkpoint=None)
            keep_dev_scores([dev_set(spread, 10 * seed + step)], state, str(folder))
        start = {"step": 0, "metric": "stsb_spearman", "stsb_spearman": 50.0}
        saved = {"step": 5, "stsb_spearman": 60.0 + seed}
        runs.append((folder, {"start": start, "saved": saved, "dev_metric": "stsb_spearman"}))
    change = dev_change(runs)
    assert change["difference"] == pytest.approx(12.0) and change["seeds"] == 3
    assert 0 < change["low"] < change["high"]
    assert dev_change([(tmp_path / "absent", runs[0][1])]) is None
    assert dev_change([(tmp_path, {"dev_metric": None})]) is None
