"""A card says from how many seeds a figure comes, and whether the difference from a baseline is significant."""

import json
import shutil

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
from simcse_hf.evaluation.tasks.senteval import score_parts
from simcse_hf.publishing.card import EVAL_RESULTS, write_card
from simcse_hf.runtime.files import write_arrays
from simcse_hf.training.checkpoints import DEV_SCORES
from simcse_hf.training.run_results import Results, dev_change

GOLD = np.random.default_rng(0).uniform(0, 5, 400)
ROWS = np.arange(400)
SEEDS = (42, 43, 44)


# --- the files of a model ---


def noisy(noise, seed):
    """Scores of 400 pairs that are the gold scores with noise."""
    noises = np.random.default_rng(seed).normal(size=len(GOLD))
    return {"predicted": GOLD + noise * noises, "gold": GOLD, "group": ROWS}


def evaluation(noise, seed):
    """An evaluation on STS-B."""
    scores = {"test": noisy(noise, seed)}
    results = {"STSBenchmark": {"splits": score_parts("STSBenchmark", scores)}}
    add_averages(results, Protocol())
    return Evaluation(results, {"STSBenchmark": scores})


@pytest.fixture(scope="module")
def identity(untrained):
    """That of the weights of all models here."""
    return SimCSE(untrained, device="cpu").identity().to_dict()


@pytest.fixture(scope="module")
def write_evaluation(identity):
    """`write_evaluation(path, model, noise, seed)` writes the evaluation of a model."""

    def write(path, model, noise=1.0, seed=1, **more):
        found = evaluation(noise, seed)
        document = {
            "model": str(model),
            "identity": identity,
            "pooler": "cls",
            "max_length": 40,
            "protocol": PROTOCOL,
            "results": found.results,
            **more,
        }
        write_results(path, document, found.scores)

    return write


STEPS = {"initial": 0, "best": 2, "final": 4, "saved": 2}


def evaluations_of(seed):
    """The dev scores of a run."""
    evaluations = {}
    for when, step in STEPS.items():
        spearman = 70.0 + step + seed / 10
        evaluations[when] = {
            "step": step,
            "stsb_spearman": spearman,
            "stsb_alignment": 0.25,
        }
    return evaluations


def record_of(seed, **more):
    """What results.json says of a run."""
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
        **evaluations_of(seed),
        **more,
    }


CHANGE = {
    "metric": "stsb_spearman",
    "difference": 2.0,
    "low": 1.0,
    "high": 3.0,
    "confidence": 0.95,
    "seeds": 3,
}


@pytest.fixture(scope="module")
def of_one_seed(new_directory):
    """`of_one_seed()` is a model with the record of a run with the seed 42."""

    def make():
        directory = new_directory()
        (directory / "results.json").write_text(json.dumps(record_of(42)))
        return directory

    return make


@pytest.fixture(scope="module")
def of_several_seeds(of_one_seed):
    """`of_several_seeds()` is a model with the record of three seeds, of which 43 is published, and their folders."""

    def make():
        directory = of_one_seed()
        runs = []
        for seed in SEEDS:
            no_seeds = shutil.ignore_patterns("seed-*")
            shutil.copytree(directory, directory / f"seed-{seed}", ignore=no_seeds)
            runs.append({"seed": seed, "train_seconds": 3.0, **evaluations_of(seed)})
        summary = {"runs": runs, "published": 43, "chosen_by": "stsb_spearman"}
        record = record_of(43, seeds=summary, change=CHANGE)
        (directory / "results.json").write_text(json.dumps(record))
        return directory

    return make


# --- one seed ---


@pytest.fixture(scope="module")
def evaluated(of_one_seed, write_evaluation):
    """The folder of a model of one seed with an evaluation."""
    directory = of_one_seed()
    write_evaluation(directory / "evaluation.json", directory)
    return directory


@pytest.fixture(scope="module")
def card_of_one_seed(evaluated):
    return write_card(evaluated).read_text()


def test_a_card_of_one_seed_says_so_below_the_dev_set_and_below_sts(card_of_one_seed):
    assert card_of_one_seed.count("All scores come from one seed (42).") == 2


def test_a_card_of_one_seed_names_it_where_it_describes_the_run(card_of_one_seed):
    assert "with seed 42." in card_of_one_seed


def test_a_card_of_one_seed_gives_no_deviation(card_of_one_seed):
    assert "Mean ± standard deviation over" not in card_of_one_seed


def test_a_card_without_a_record_says_that_the_number_of_seeds_is_unknown(new_directory, write_evaluation):
    directory = new_directory()
    write_evaluation(directory / "evaluation.json", directory)
    words = "it is unknown from how many seeds these scores come"
    assert words in write_card(directory).read_text()


# --- benchmark results ---


def benchmark_result(directory, write_evaluation):
    """The only benchmark result of a model, whose data set of the hub is known."""
    revisions = {"STSBenchmark": "6" * 40}
    path = directory / "evaluation.json"
    write_evaluation(path, directory, dataset_revisions=revisions)
    write_card(directory)
    written = yaml.safe_load((directory / EVAL_RESULTS).read_text())
    [entry] = parse_eval_result_entries(written)
    return entry


@pytest.fixture(scope="module")
def result_of_one_seed(of_one_seed, write_evaluation):
    return benchmark_result(of_one_seed(), write_evaluation)


@pytest.fixture(scope="module")
def result_of_several_seeds(of_several_seeds, write_evaluation):
    return benchmark_result(of_several_seeds(), write_evaluation)


def test_the_notes_of_a_benchmark_result_name_the_metric(result_of_one_seed):
    assert "Spearman's correlation x 100" in result_of_one_seed.notes


def test_the_notes_of_a_benchmark_result_name_the_seed(result_of_one_seed):
    assert "from one seed (42)." in result_of_one_seed.notes


def test_the_notes_of_a_benchmark_result_say_that_its_seed_was_chosen(
    result_of_several_seeds,
):
    words = "from one seed (43), the best on the dev set of 3."
    assert words in result_of_several_seeds.notes


def test_a_benchmark_result_names_the_command_that_measured_it(result_of_one_seed):
    assert result_of_one_seed.source_name == "simcse-hf evaluate"


def test_a_benchmark_result_links_to_the_evaluation(result_of_one_seed):
    assert result_of_one_seed.source_url.endswith("/evaluation.json")


# --- several seeds ---


def mean_and_deviation(values):
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


@pytest.fixture(scope="module")
def card_of_several_seeds(of_several_seeds):
    return write_card(of_several_seeds()).read_text()


@pytest.mark.parametrize(
    "words",
    [
        "Mean ± standard deviation over 3 seeds (42, 43, 44); the published seed is 43.",
        "Of 3 runs with the seeds 42, 43, 44, this is the best one on the dev set.",
    ],
)
def test_a_card_of_several_seeds_names_the_published_seed(card_of_several_seeds, words):
    assert words in card_of_several_seeds


def test_a_card_of_several_seeds_gives_means(card_of_several_seeds):
    spearman = mean_and_deviation([76.2, 76.3, 76.4])
    line = f"| saved weights | {spearman} | 0.2500 ± 0.0000 |"
    assert line in card_of_several_seeds


def test_a_card_of_several_seeds_gives_the_scores_of_the_published_seed(
    card_of_several_seeds,
):
    line = "| seed 43, saved weights | 76.30 | 0.2500 |"
    assert line in card_of_several_seeds


def test_a_card_of_several_seeds_says_whether_the_change_is_significant(
    card_of_several_seeds,
):
    words = (
        "+2.00 [+1.00, +3.00] against bert-base-uncased before training: significant at 95% (paired bootstrap over "
        "the examples and the 3 seeds). The same dev set chose the checkpoint and seed"
    )
    assert words in card_of_several_seeds


def write_evaluations(directory, seeds, write_evaluation):
    """Write the evaluation of the published model, and those of some seeds."""
    write_evaluation(directory / "evaluation.json", directory, seed=43)
    for seed in seeds:
        folder = directory / f"seed-{seed}"
        write_evaluation(folder / "evaluation.json", folder, seed=seed)


FROM_ONE_SEED = "All scores come from one seed (43), the best on the dev set of 3."


def test_scores_of_the_published_seed_say_so_while_another_one_lacks_its_evaluation(
    of_several_seeds, write_evaluation
):
    directory = of_several_seeds()
    write_evaluations(directory, [42, 44], write_evaluation)
    assert FROM_ONE_SEED in write_card(directory).read_text()


@pytest.fixture(scope="module")
def card_of_evaluated_seeds(of_several_seeds, write_evaluation):
    """The card of a model with the evaluations of all seeds."""
    directory = of_several_seeds()
    write_evaluations(directory, SEEDS, write_evaluation)
    return write_card(directory).read_text()


@pytest.fixture(scope="module")
def averages():
    """The averages of the evaluations of all seeds."""
    return [evaluation(1.0, seed).results["average"]["value"] for seed in SEEDS]


def test_evaluations_of_all_seeds_give_their_mean(card_of_evaluated_seeds, averages):
    expected = mean_and_deviation(averages)
    line = f"| mean of 3 seeds | {expected} | {expected} |"
    assert line in card_of_evaluated_seeds


def test_the_published_score_stands_beside_the_mean_of_all_seeds(card_of_evaluated_seeds, averages):
    published = averages[1]
    line = f"| published | {published:.2f} | {published:.2f} |"
    assert line in card_of_evaluated_seeds


def test_scores_of_all_seeds_are_not_said_to_come_from_one(card_of_evaluated_seeds):
    assert FROM_ONE_SEED not in card_of_evaluated_seeds


# --- comparisons ---


class Compared:
    """A card with a comparison, what `compare` printed, and the folder of the compared files."""

    def __init__(self, directory, folder, write_evaluation):
        self.folder = folder
        paths = []
        for name, noise in (("start", 2.0), ("trained", 0.5)):
            path = folder / f"{name}.json"
            write_evaluation(path, f"org/{name}", noise)
            paths.append(str(path))
        output = directory / "comparison.json"
        self.printed = str(compare(paths, output=output))
        self.card = write_card(directory).read_text()


@pytest.fixture(scope="module")
def compared(of_one_seed, write_evaluation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return Compared(of_one_seed(), folder, write_evaluation)


def test_a_comparison_has_a_section_of_the_card(compared):
    assert "### Comparison with other models" in compared.card


def test_the_card_names_the_files_that_were_compared(compared):
    assert "trained.json - start.json" in " ".join(compared.card.split())


def test_the_card_shows_the_table_that_compare_wrote(compared):
    assert compared.printed.splitlines()[0] in compared.card


def test_a_comparison_on_the_card_names_no_local_folder(compared):
    assert str(compared.folder) not in compared.card


# --- the dev set during training ---


def results_of(before, after, chosen_among=()):
    """The results of a run whose saved weights are those of step 5."""
    start = {"step": 0, "stsb_spearman": before, "pooler": None, "metric": "stsb_spearman"}
    saved = {"step": 5, "stsb_spearman": after}
    scores = {"start": start, "initial": start, "best": saved, "final": saved, "saved": saved}
    chosen = {"dev_metric": "stsb_spearman", "chosen_among": list(chosen_among)}
    return Results(dev_set="dev.csv", model="out", run={}, **scores, **chosen)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of three seeds with the scores of the start and of eight evaluations of equally good weights."""
    folders = []
    for seed in (1, 2, 3):
        folder = tmp_path_factory.mktemp(f"seed-{seed}")
        for step in range(9):
            noise = 2.0 if step == 0 else 1.0
            pairs = noisy(noise, 10 * seed + step)
            (folder / DEV_SCORES).mkdir(exist_ok=True)
            write_arrays(folder / DEV_SCORES / f"step-{step}.npz", {"stsb_spearman": {"pairs": pairs}})
        folders.append(folder)
    return folders


@pytest.fixture(scope="module")
def change_of_three_seeds(folders):
    """The change from 50 to 61, 62 and 63."""
    runs = []
    for folder, after in zip(folders, (61.0, 62.0, 63.0), strict=True):
        runs.append((folder, results_of(50.0, after)))
    return dev_change(runs)


def test_the_change_by_training_is_the_mean_over_the_seeds(change_of_three_seeds):
    assert change_of_three_seeds.difference == pytest.approx(12.0)


def test_the_change_by_training_counts_its_seeds(change_of_three_seeds):
    assert change_of_three_seeds.seeds == 3


def test_the_change_by_training_has_an_interval(change_of_three_seeds):
    assert 0 < change_of_three_seeds.low < change_of_three_seeds.high


@pytest.fixture(scope="module")
def plain(folders):
    """The change of a run whose checkpoint was not chosen."""
    return dev_change([(folders[0], results_of(50.0, 61.0))])


@pytest.fixture(scope="module")
def chosen(folders):
    """The change of a run whose checkpoint was chosen among eight."""
    return dev_change([(folders[0], results_of(50.0, 61.0, range(1, 9)))])


def test_the_choice_of_a_checkpoint_changes_no_score(plain, chosen):
    assert chosen.difference == plain.difference


def test_only_the_choice_of_a_checkpoint_makes_a_score_optimistic(plain, chosen):
    assert plain.optimism == 0 < chosen.optimism


@pytest.mark.parametrize("end", ["low", "high"])
def test_the_interval_of_a_change_allows_for_the_choice(plain, chosen, end):
    expected = getattr(plain, end) - chosen.optimism
    assert getattr(chosen, end) == pytest.approx(expected)


def test_a_run_without_kept_scores_has_no_change(tmp_path):
    runs = [(tmp_path / "absent", results_of(50.0, 61.0))]
    assert dev_change(runs) is None


def test_a_run_without_a_dev_set_has_no_change(tmp_path):
    assert dev_change([(tmp_path, Results(model="out", run={}))]) is None
