"""A card says from how many seeds a figure comes, and whether the difference from a baseline is significant."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from card_helpers import PROTOCOL
from huggingface_hub import parse_eval_result_entries

from simcse_hf import SimCSE
from simcse_hf.evaluation import compare
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.report import add_averages, write_results
from simcse_hf.evaluation.scoring import Evaluation
from simcse_hf.evaluation.sts import score_parts
from simcse_hf.publishing import write_card
from simcse_hf.publishing.card import EVAL_RESULTS
from simcse_hf.training.dev_sets import dev_change, keep_dev_scores
from simcse_hf.training.run_results import DevHistory, Results, Scored, Start

GOLD = np.random.default_rng(0).uniform(0, 5, 400)
ROWS = np.arange(400)


def evaluation(noise, seed):
    """An evaluation on STS-B whose scores are the gold scores with noise."""
    predicted = GOLD + noise * np.random.default_rng(seed).normal(size=len(GOLD))
    scores = {"test": {"predicted": predicted, "gold": GOLD, "group": ROWS}}
    results = {"STSBenchmark": {"splits": score_parts("STSBenchmark", scores)}}
    add_averages(results, ("STSBenchmark",), Protocol())
    return Evaluation(results, {"STSBenchmark": scores})


def write_evaluation(path, model, noise, seed, folder=None):
    """Write the evaluation of a model; its weights are those in `folder`, by default in the folder `model`."""
    found = evaluation(noise, seed)
    identity = SimCSE(folder or model, device="cpu").identity().to_dict()
    document = {
        "model": str(model),
        "identity": identity,
        "pooler": "cls",
        "max_length": 40,
        "protocol": PROTOCOL,
    }
    document["results"] = found.results
    write_results(path, document, found.scores)


@pytest.fixture
def directory(directory):
    """A model with the record of a run with one seed."""
    (directory / "results.json").write_text(json.dumps(run(42)))
    return directory


def run(seed, **more):
    evaluations = {
        when: {
            "step": step,
            "stsb_spearman": 70.0 + step + seed / 10,
            "stsb_alignment": 0.25,
        }
        for when, step in (("initial", 0), ("best", 2), ("final", 4), ("saved", 2))
    }
    return {
        "settings": {},
        "seed": seed,
        "steps": 4,
        "epochs": 1.0,
        "train_loss": 1.0,
        "base_model": "bert-base-uncased",
        "arguments": {"load_best_model_at_end": True},
        "train_seconds": 3.0,
        "dev_metric": "stsb_spearman",
        **evaluations,
        **more,
    }


def several(directory, seeds=(42, 43, 44), published=43):
    """Turn the record into one of several seeds, with their folders."""
    evaluations = ("initial", "best", "final", "saved")
    runs = [
        {"seed": seed, "train_seconds": 3.0, **{k: run(seed)[k] for k in evaluations}}
        for seed in seeds
    ]
    for seed in seeds:
        shutil.copytree(
            directory,
            directory / f"seed-{seed}",
            ignore=shutil.ignore_patterns("seed-*"),
        )
    summary = {"runs": runs, "published": published, "chosen_by": "stsb_spearman"}
    change = {
        "metric": "stsb_spearman",
        "difference": 2.0,
        "low": 1.0,
        "high": 3.0,
        "confidence": 0.95,
        "seeds": 3,
    }
    (directory / "results.json").write_text(
        json.dumps(run(published, seeds=summary, change=change))
    )


def test_a_card_of_one_seed_says_so_at_every_figure(directory):
    write_evaluation(directory / "evaluation.json", directory, 1.0, 1)
    text = write_card(directory).read_text()
    assert text.count("All scores come from one seed (42).") == 2, (
        "below the dev set and below STS"
    )
    assert "with seed 42." in text and "Mean ± standard deviation over" not in text
    (directory / "results.json").unlink()
    assert (
        "it is unknown from how many seeds these scores come"
        in write_card(directory).read_text()
    )


@pytest.mark.parametrize(
    "published, words",
    [
        (None, "from one seed (42)."),
        (43, "from one seed (43), the best on the dev set of 3."),
    ],
)
def test_the_notes_of_a_benchmark_result_say_protocol_and_seed(
    published, words, directory
):
    if published:
        several(directory, published=published)
    path = directory / "evaluation.json"
    write_evaluation(path, directory, 1.0, 1)
    path.write_text(
        json.dumps(
            json.loads(path.read_text())
            | {"dataset_revisions": {"STSBenchmark": "6" * 40}}
        )
    )
    write_card(directory)
    [entry] = parse_eval_result_entries(
        yaml.safe_load((directory / EVAL_RESULTS).read_text())
    )
    assert "Spearman's correlation x 100" in entry.notes and words in entry.notes
    assert entry.source_name == "simcse-hf evaluate" and entry.source_url.endswith(
        "/evaluation.json"
    )


def test_a_card_of_several_seeds_gives_means_and_names_the_published_seed(directory):
    several(directory)
    text = write_card(directory).read_text()
    assert (
        "Mean ± standard deviation over 3 seeds (42, 43, 44); the published seed is 43."
        in text
    )
    values = [76.2, 76.3, 76.4]
    assert (
        f"| saved weights | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} | 0.2500 ± 0.0000 |"
        in text
    )
    assert "| seed 43, saved weights | 76.30 | 0.2500 |" in text
    assert (
        "Of 3 runs with the seeds 42, 43, 44, this is the best one on the dev set."
        in text
    )
    assert (
        "+2.00 [+1.00, +3.00] against bert-base-uncased before training: significant at 95% (paired bootstrap over "
        "the examples and the 3 seeds). The same dev set chose the checkpoint and seed"
        in text
    )


def test_evaluations_of_all_seeds_give_their_mean_beside_the_published_figure_and_one_alone_does_not(
    directory,
):
    several(directory)
    write_evaluation(directory / "evaluation.json", directory, 1.0, 43)
    for seed in (42, 44):
        write_evaluation(
            directory / f"seed-{seed}/evaluation.json",
            directory / f"seed-{seed}",
            1.0,
            seed,
        )
    published = "All scores come from one seed (43), the best on the dev set of 3."
    assert published in write_card(directory).read_text()
    write_evaluation(
        directory / "seed-43/evaluation.json", directory / "seed-43", 1.0, 43
    )
    figures = [
        evaluation(1.0, seed).results["average"]["value"] for seed in (42, 43, 44)
    ]
    text = write_card(directory).read_text()
    expected = f"{np.mean(figures):.2f} ± {np.std(figures, ddof=1):.2f}"
    assert (
        f"| published | {figures[1]:.2f} | {figures[1]:.2f} |" in text
        and published not in text
    )
    assert f"| mean of 3 seeds | {expected} | {expected} |" in text


def test_the_card_shows_the_table_that_compare_wrote_without_local_folders(
    directory, tmp_path
):
    for name, noise in (("start", 2.0), ("trained", 0.5)):
        write_evaluation(
            tmp_path / f"{name}.json", f"org/{name}", noise, 1, folder=directory
        )
    names = [str(tmp_path / f"{name}.json") for name in ("start", "trained")]
    printed = str(compare(names, output=directory / "comparison.json"))
    text = write_card(directory).read_text()
    assert (
        "### Comparison with other models" in text
        and "trained.json - start.json" in " ".join(text.split())
    )
    assert str(tmp_path) not in text and printed.splitlines()[0] in text


# --- the dev set during training ---


def results_of(before, after, chosen_among=()):
    """The results of a run whose saved weights are those of step 5."""
    start = Start(0, {"stsb_spearman": before}, "stsb_spearman")
    saved = Scored(5, {"stsb_spearman": after})
    dev = DevHistory(
        "dev.csv",
        "stsb_spearman",
        start,
        start,
        saved,
        saved,
        saved,
        list(chosen_among),
    )
    return Results(dev, model="out", run={})


def test_the_change_by_training_has_an_interval_over_pairs_and_seeds_that_allows_for_the_choice(
    tmp_path,
):
    runs = []
    for seed in (1, 2, 3):
        folder = tmp_path / f"seed-{seed}"
        for step in range(9):  # the start and eight evaluations of equally good weights
            predicted = GOLD + (2.0 if step == 0 else 1.0) * np.random.default_rng(
                10 * seed + step
            ).normal(size=400)
            scores = {
                "stsb_spearman": {
                    "pairs": {"predicted": predicted, "gold": GOLD, "group": ROWS}
                }
            }
            keep_dev_scores(
                [SimpleNamespace(scores=scores)],
                SimpleNamespace(global_step=step),
                str(folder),
            )
        runs.append((folder, results_of(50.0, 60.0 + seed)))
    change = dev_change(runs)
    assert change.difference == pytest.approx(12.0) and change.seeds == 3
    assert 0 < change.low < change.high
    plain = dev_change(runs[:1])
    chosen = dev_change([(runs[0][0], results_of(50.0, 61.0, range(1, 9)))])
    assert (
        chosen.difference == plain.difference and plain.optimism == 0 < chosen.optimism
    )
    assert chosen.low == pytest.approx(plain.low - chosen.optimism)
    assert chosen.high == pytest.approx(plain.high - chosen.optimism)
    assert dev_change([(tmp_path / "absent", runs[0][1])]) is None
    assert dev_change([(tmp_path, Results(None, model="out", run={}))]) is None
