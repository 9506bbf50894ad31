"""A card says from how many seeds a figure comes, and whether the difference from a baseline is significant."""

import shutil

import numpy as np
import pytest
import yaml
from card_helpers import PROTOCOL, check_card, written

from simcse_hf import SimCSE, compare
from simcse_hf.evaluation import Protocol
from simcse_hf.evaluation.report import Evaluation, add_averages, write_results
from simcse_hf.evaluation.tasks.senteval import score_parts
from simcse_hf.evaluation.threshold import save_threshold
from simcse_hf.publishing.card import EVAL_RESULTS, write_card
from simcse_hf.runtime.files import write_arrays
from simcse_hf.training.checkpoints import DEV_SCORES
from simcse_hf.training.run_results import Results, dev_change

GOLD = np.random.default_rng(0).uniform(0, 5, 400)
SEEDS = (42, 43, 44)
STEPS = {"initial": 0, "best": 2, "final": 4, "saved": 2}
SECRET = "hf_" + "s" * 34
THRESHOLD = {
    "cosine": 0.5,
    "goal": "f1",
    "source": "pairs.csv",
    "chosen_on": 80,
    "measured_on": 80,
    "confidence": 0.95,
    "precision": [90.0, 80.0, 95.0],
    "recall": [90.0, 80.0, 95.0],
}


def noisy(noise, seed):
    """Scores of 400 pairs that are the gold scores with noise."""
    noises = np.random.default_rng(seed).normal(size=len(GOLD))
    return {"predicted": GOLD + noise * noises, "gold": GOLD, "group": np.arange(400)}


@pytest.fixture(scope="module")
def write_evaluation(untrained):
    """`write_evaluation(folder, name, noise, seed)` writes an evaluation of the model on STS-B."""
    identity = SimCSE(untrained, device="cpu").identity().to_dict()

    def write(path, noise=1.0, seed=1, **more):
        scores = {"test": noisy(noise, seed)}
        found = Evaluation({"STSBenchmark": {"splits": score_parts("STSBenchmark", scores)}}, {"STSBenchmark": scores})
        add_averages(found.results, Protocol())
        document = {"identity": identity, "pooler": "cls", "max_length": 40, "protocol": PROTOCOL}
        write_results(path, document | {"model": path.stem, "results": found.results, **more}, found.scores)

    return write


def evaluations_of(seed):
    """The dev scores of a run."""
    evaluations = {}
    for when, step in STEPS.items():
        scores = {"stsb_spearman": 70.0 + step + seed / 10, "stsb_alignment": 0.25}
        evaluations[when] = {"step": step, **scores}
    return evaluations


def record_of(seed, **more):
    """What results.json says of a run."""
    return {
        "settings": {},
        "seed": seed,
        "steps": 4,
        "epochs": 1.0,
        "train_loss": 1.0,
        "train_rows": 1000,
        "train_texts": "/somewhere/texts.txt",
        "hub_datasets": ["org/texts"],
        "rows": "sentences",
        "view": {"name": "identity", "rate": None, "both": False},
        "base_model": "bert-base-uncased",
        "arguments": {"load_best_model_at_end": True},
        "command": ["run_unsup.py", "--hub_token", SECRET],
        "hardware": "a CPU",
        "train_seconds": 250.0,
        "dev_metric": "stsb_spearman",
        "dev_texts": ["Eins.", "Zwei.", "Drei."],
        **evaluations_of(seed),
        **more,
    }


@pytest.fixture
def of_several_seeds(directory):
    """A model with the record of three seeds, of which 43 is published, and their folders."""
    for seed in SEEDS:
        shutil.copytree(directory, directory / f"seed-{seed}", ignore=shutil.ignore_patterns("seed-*"))
    runs = [{"seed": seed, "train_seconds": 3.0, **evaluations_of(seed)} for seed in SEEDS]
    change = {"metric": "stsb_spearman", "difference": 2.0, "low": 1.0, "high": 3.0, "confidence": 0.95, "seeds": 3}
    seeds = {"runs": runs, "published": 43, "chosen_by": "stsb_spearman"}
    written(directory / "results.json", record_of(43, seeds=seeds, change=change))
    return directory


def test_the_card_of_three_seeds_with_the_evaluations_of_all_a_comparison_and_a_threshold(
    of_several_seeds, write_evaluation, tmp_path
):
    directory = of_several_seeds
    save_threshold(SimCSE(directory, device="cpu"), THRESHOLD)
    write_evaluation(directory / "evaluation.json", seed=43)
    for seed in SEEDS:
        write_evaluation(directory / f"seed-{seed}" / "evaluation.json", seed=seed)
    paths = []
    for name, noise in (("start", 2.0), ("trained", 0.5)):
        paths.append(str(tmp_path / f"{name}.json"))
        write_evaluation(tmp_path / f"{name}.json", noise)
    printed = str(compare(paths, output=directory / "comparison.json"))
    card = write_card(directory).read_text()
    check_card("seeds.md", card)
    assert printed.splitlines()[0] in card
    assert str(tmp_path) not in card and "/somewhere" not in card and SECRET not in card


@pytest.mark.parametrize("missing", SEEDS)
def test_scores_come_from_the_published_seed_while_one_lacks_its_evaluation(
    missing, of_several_seeds, write_evaluation
):
    write_evaluation(of_several_seeds / "evaluation.json", dataset_revisions={"STSBenchmark": "6" * 40})
    for seed in set(SEEDS) - {missing}:
        write_evaluation(of_several_seeds / f"seed-{seed}" / "evaluation.json", seed=seed)
    said = "All scores come from one seed (43), the best on the dev set of 3."
    assert said in write_card(of_several_seeds).read_text()
    [entry] = yaml.safe_load((of_several_seeds / EVAL_RESULTS).read_text())
    assert said in " ".join(entry["notes"].split())


def test_a_card_of_one_seed_names_it_and_gives_no_deviation(directory, write_evaluation):
    written(directory / "results.json", record_of(42))
    write_evaluation(directory / "evaluation.json")
    card = write_card(directory).read_text()
    assert card.count("All scores come from one seed (42).") == 2, "below the dev set and below STS"
    assert "with seed 42." in card and "±" not in card


def test_a_card_says_which_weights_were_saved(directory):
    for changes, said in (
        ({}, "those of the best evaluation."),
        ({"arguments": {}}, "those of the last step."),
        ({"saved": record_of(42)["initial"] | {"step": 4}}, "those of step 4, the best evaluation after the start."),
    ):
        written(directory / "results.json", record_of(42, **changes))
        assert f"The saved weights are {said}" in write_card(directory).read_text()


# --- the change of the dev set by training ---


def results_of(chosen_among=()):
    """The results of a run from a score of 50 to one of 61, whose saved weights are those of step 5."""
    start = {"step": 0, "stsb_spearman": 50.0, "pooler": None, "metric": "stsb_spearman"}
    saved = {"step": 5, "stsb_spearman": 61.0}
    scores = {"start": start, "initial": start, "best": saved, "final": saved, "saved": saved}
    chosen = {"dev_metric": "stsb_spearman", "chosen_among": list(chosen_among)}
    return Results(dev_set="dev.csv", model="out", run={}, **scores, **chosen)


def test_the_interval_of_a_change_allows_for_the_choice_of_a_checkpoint(tmp_path):
    """Of eight evaluations of equally good weights."""
    (tmp_path / DEV_SCORES).mkdir()
    for step in range(9):
        pairs = noisy(2.0 if step == 0 else 1.0, 10 + step)
        write_arrays(tmp_path / DEV_SCORES / f"step-{step}.npz", {"stsb_spearman": {"pairs": pairs}})
    plain = dev_change([(tmp_path, results_of())])
    chosen = dev_change([(tmp_path, results_of(range(1, 9)))])
    assert chosen.difference == plain.difference == 11 and 0 < plain.low < plain.high
    assert plain.optimism == 0 < chosen.optimism
    assert [chosen.low, chosen.high] == pytest.approx([plain.low - chosen.optimism, plain.high - chosen.optimism])


def test_a_run_without_kept_scores_or_without_a_dev_set_has_no_change(tmp_path):
    assert dev_change([(tmp_path / "absent", results_of())]) is None
    assert dev_change([(tmp_path, Results(model="out", run={}))]) is None
