"""Model cards: all scores were measured, the run is described, and the hub can read the metadata."""

import json
import re
import runpy
from contextlib import redirect_stdout
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import torch
import yaml
from card_helpers import card_of, evaluation, written
from cli_helpers import card_main
from conftest import tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard, parse_eval_result_entries
from publishing_fixtures import save_transformed

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.postprocessing.transform import FOLDER, MODULES
from simcse_hf.publishing.card import (
    CARD,
    EVAL_RESULTS,
    MARKER,
    name_repository,
    write_card,
)

SECRET = "hf_" + "s" * 34


def results_of(card):
    """The section on results."""
    return card[card.index("## Results") : card.index("## Limits")]


def numbers(card):
    """Every decimal number in the card's results."""
    return set(re.findall(r"-?\d+\.\d+", results_of(card)))


@cache
def front_matter(card):
    return ModelCard(card).data


def entries_of(card):
    """The entries of the front matter by the names of their data sets."""
    return {entry.dataset_name: entry for entry in front_matter(card).eval_results}


# --- without results ---


@pytest.fixture(scope="module")
def bare_directory(new_directory):
    """A model with a card, without results and without a record of its training."""
    directory = new_directory()
    write_card(directory)
    return directory


@pytest.fixture(scope="module")
def bare(bare_directory):
    return (bare_directory / CARD).read_text()


def test_a_card_without_results_has_no_scores(bare):
    assert not numbers(bare)


@pytest.mark.parametrize(
    "words",
    [
        "No results were measured.",
        "Sentence embeddings with 32 dimensions from a `bert` encoder.\n",
        "This folder holds no record of how the model was trained.\n",
    ],
)
def test_a_card_says_what_is_known_and_what_is_not(bare, words):
    assert words in bare


def test_without_results_the_front_matter_has_no_model_index(bare):
    assert "model-index" not in bare


def test_without_results_no_benchmark_results_are_written(bare_directory):
    assert not (bare_directory / EVAL_RESULTS).exists()


# --- scores ---


@pytest.fixture(scope="module")
def new_evaluation(untrained):
    """`new_evaluation(**changes)` is another evaluation of the model, which is loaded once."""
    document = evaluation(untrained)

    def copy(**changes):
        return deepcopy(document) | changes

    return copy


@pytest.fixture(scope="module")
def evaluated(new_directory, new_evaluation):
    """The card of a model with an evaluation."""
    directory = new_directory()
    return card_of(directory, evaluation=new_evaluation())


def test_every_score_comes_from_the_result_file(evaluated):
    sts = "50.12 51.12 53.12 54.12 80.25 81.25 61.07"
    transfer_and_geometry = "71.23 0.2512 -2.5000 0.3000"
    assert numbers(evaluated) == {*sts.split(), *transfer_and_geometry.split()}


@pytest.mark.parametrize(
    "row",
    [
        "| STS12 | STS13 | STS14 | STS15 | STS16 | STS-B | SICK-R | Avg. of 6 |",
        "| 50.12 | 51.12 | n/a | 53.12 | 54.12 | 80.25 | 81.25 | 61.07 |",
    ],
)
def test_the_table_of_sts_tasks_has_the_average_of_those_that_were_measured(evaluated, row):
    assert row in evaluated


@pytest.mark.parametrize(
    "words",
    [
        "Spearman's correlation x 100",
        "aggregated by `all`; texts truncated to 40 tokens",
        "logistic regression",
        "7 pairs",
    ],
)
def test_the_card_says_how_the_scores_were_measured(evaluated, words):
    assert words in evaluated


# --- the command ---

WORDS = "--repo_id org/my-model --language en de --license apache-2.0".split()


@pytest.fixture(scope="module")
def written_by_command(new_directory, tmp_path_factory, new_evaluation):
    """The directory for which the command wrote a card, and what the command printed."""
    directory = new_directory()
    document = new_evaluation(model="org/my-model")  # the copy on the hub
    file = written(tmp_path_factory.mktemp("results") / "x.json", document)
    with redirect_stdout(StringIO()) as printed:
        assert card_main([str(directory), "--results", str(file), *WORDS]) == 0
    return directory, printed.getvalue()


@pytest.fixture(scope="module")
def by_command(written_by_command):
    """The card that the command wrote."""
    directory, _ = written_by_command
    return (directory / CARD).read_text()


def test_the_command_prints_the_path_of_the_card(written_by_command):
    directory, printed = written_by_command
    assert printed.strip() == str(directory / CARD)


def test_a_card_of_the_command_is_marked(by_command):
    assert MARKER in by_command


def test_the_programs_of_a_card_name_the_repository(by_command):
    assert by_command.count('"org/my-model"') == 4


def test_a_card_has_no_traces_of_its_template(by_command):
    """The braces of BibTeX are none."""
    without_bibtex = by_command.replace("{{SimCSE}", "").replace("}}", "")
    assert not re.search(r"\{\{|\}\}|\{%|None \|", without_bibtex)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("language", ["en", "de"]),
        ("license", "apache-2.0"),
        ("pipeline_tag", "sentence-similarity"),
        ("library_name", "sentence-transformers"),
        ("metrics", ["accuracy", "spearman_cosine"]),
    ],
)
def test_the_front_matter_holds_the_words_of_the_command_and_what_the_hub_reads(by_command, name, value):
    assert getattr(front_matter(by_command), name) == value


def test_the_front_matter_has_the_tag_simcse(by_command):
    assert "simcse" in front_matter(by_command).tags


def test_without_texts_of_a_dev_set_the_front_matter_has_no_widget(by_command):
    assert "widget" not in front_matter(by_command).to_dict()


def test_the_front_matter_holds_the_scores(by_command):
    entries = entries_of(by_command)
    assert {name: entry.metric_value for name, entry in entries.items()} == {
        "STS12": 50.12,
        "STS13": 51.12,
        "STS15": 53.12,
        "STS16": 54.12,
        "STS-B": 80.25,
        "SICK-R": 81.25,
        "MR": 71.23,
    }


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("STS-B", "mteb/stsbenchmark-sts"),
        pytest.param(
            "SICK-R",
            "SentEval/SICKRelatedness",
            id="the hub's SICK-R contains other pairs",
        ),
    ],
)
def test_a_score_names_the_data_set_of_the_hub_with_the_same_pairs(by_command, name, dataset):
    assert entries_of(by_command)[name].dataset_type == dataset


@pytest.mark.parametrize(("name", "metric"), [("STS-B", "spearman_cosine"), ("MR", "accuracy")])
def test_a_score_names_its_metric(by_command, name, metric):
    assert entries_of(by_command)[name].metric_type == metric


# --- tasks from files ---

TICKETS = {
    "kind": "classification",
    "name": "tickets",
    "metrics": ["accuracy", "knn_accuracy"],
    "accuracy": 81.234,
    "knn_accuracy": 79.5,
    "source": "/home/me/tickets.csv",
    "protocol": "5-fold",
    "examples": 300,
}


@pytest.fixture(scope="module")
def with_own_tasks(new_directory, new_evaluation):
    """The card of an evaluation with a classification and a file of pairs."""
    directory = new_directory()
    document = new_evaluation()
    document["results"]["classification"] = TICKETS
    document["results"]["mine.tsv"] = {"spearman": 70.0, "pearson": 60.0, "pairs": 9}
    file = written(directory / "results_1.json", document)
    return write_card(directory, [file]).read_text()


@pytest.mark.parametrize(
    "line",
    [
        "### Tasks from files",
        "| classification (tickets) | accuracy | 81.23 | 300 |",
        "| classification (tickets) | knn_accuracy | 79.50 | 300 |",
    ],
)
def test_tasks_from_files_have_a_table(with_own_tasks, line):
    assert line in with_own_tasks


def test_a_card_does_not_show_the_paths_of_files(with_own_tasks):
    assert "/home/me" not in with_own_tasks


def test_a_task_from_a_file_has_an_entry_in_the_front_matter(with_own_tasks):
    assert entries_of(with_own_tasks)["tickets"].metric_value == 81.23


def test_the_hub_reads_the_kind_of_a_task_from_a_file(with_own_tasks):
    task_type = entries_of(with_own_tasks)["tickets"].task_type
    assert task_type == "text-classification"


def test_a_file_of_pairs_is_no_data_set_of_senteval(with_own_tasks):
    assert entries_of(with_own_tasks)["mine.tsv"].dataset_type == "mine.tsv"


def test_tasks_from_files_are_not_part_of_the_average_of_the_sts_tasks(with_own_tasks):
    assert "Avg. of 6" in with_own_tasks


# --- benchmark results for the hub ---

REVISION = "6" * 40
DATE = "2026-11-24T01:02:03+00:00"


@pytest.fixture(scope="module")
def measured(new_directory, new_evaluation):
    """A directory with an evaluation with its date and the revision of one data set of the hub."""
    directory = new_directory()
    revisions = {"SICKRelatedness": REVISION}
    document = new_evaluation(date=DATE, dataset_revisions=revisions)
    written(directory / "evaluation.json", document)
    write_card(directory)
    return directory


@pytest.fixture(scope="module")
def named(measured):
    """The directory, whose card was written and is then named for a repository."""
    name_repository(measured, "org/name")
    return measured


@pytest.fixture(scope="module")
def benchmark_results(named):
    """The benchmark results as the client of the hub reads them, by their task."""
    file = yaml.safe_load((named / EVAL_RESULTS).read_text())
    return {entry.task_id: entry for entry in parse_eval_result_entries(file)}


def test_the_front_matter_names_a_data_set_of_the_hub_with_its_revision(measured):
    entry = entries_of((measured / CARD).read_text())["SICK-R"]
    assert entry.dataset_type == "mteb/sickr-sts"
    assert entry.dataset_revision == REVISION


def test_a_card_is_named_for_a_repository(named):
    card = (named / CARD).read_text()
    assert card.count('"org/name"') == 4
    assert "your-name" not in card


def test_the_hub_client_can_read_the_benchmark_results(benchmark_results):
    found = {task: (entry.dataset_id, entry.value) for task, entry in benchmark_results.items()}
    assert found == {
        "STS12": ("mteb/sts12-sts", 50.12),
        "STS13": ("mteb/sts13-sts", 51.12),
        "STS15": ("mteb/sts15-sts", 53.12),
        "STS16": ("mteb/sts16-sts", 54.12),
        "STSBenchmark": ("mteb/stsbenchmark-sts", 80.25),
        "SICK-R": ("mteb/sickr-sts", 81.25),
    }


@pytest.mark.parametrize("words", ["aggregated by `all`", "unknown from how many seeds"])
def test_a_benchmark_result_says_how_it_was_measured(benchmark_results, words):
    for entry in benchmark_results.values():
        assert words in entry.notes


def test_a_benchmark_result_has_the_date_of_the_evaluation(benchmark_results):
    assert {entry.date for entry in benchmark_results.values()} == {DATE}


def test_a_benchmark_result_links_to_the_evaluation_in_the_repository(
    benchmark_results,
):
    url = "https://huggingface.co/org/name/blob/main/evaluation.json"
    assert benchmark_results["STS12"].source_url == url


def test_a_benchmark_result_has_a_revision_unless_it_comes_from_local_files(
    benchmark_results,
):
    revisions = []
    for entry in benchmark_results.values():
        if "local files" not in entry.notes:
            revisions.append(entry.dataset_revision)
    assert revisions == [REVISION]


def test_benchmark_results_disappear_with_their_file(directory, new_evaluation):
    card_of(directory, evaluation=new_evaluation())
    (directory / "evaluation.json").unlink()
    write_card(directory)
    assert not (directory / EVAL_RESULTS).exists()


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param({"aggregation": "mean", "metric": "pearson"}, id="mean and pearson"),
        pytest.param({"mode": "dev"}, id="dev"),
    ],
)
def test_scores_of_another_protocol_than_mtebs_are_no_benchmark_results(protocol, directory, new_evaluation):
    document = new_evaluation()
    document["protocol"] |= protocol
    card_of(directory, evaluation=document)
    assert not (directory / EVAL_RESULTS).exists()


def test_scores_of_other_pairs_than_mtebs_are_no_benchmark_results(directory, new_evaluation):
    document = new_evaluation()
    document["results"] = {"STS12": document["results"]["STS12"] | {"pairs": 9}}
    card_of(directory, evaluation=document)
    assert not (directory / EVAL_RESULTS).exists()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("| 50.12 | 51.12 | n/a |", id="1 more for mean, 1 less"),
        pytest.param("| 79.25 | 80.25 |", id="1 less for pearson"),
        "Pearson's correlation",
        "aggregated by `mean`",
    ],
)
def test_scores_that_mteb_would_not_give_are_shown(words, of_mean_and_pearson):
    assert words in of_mean_and_pearson


@pytest.fixture(scope="module")
def of_mean_and_pearson(new_directory, new_evaluation):
    directory = new_directory()
    document = new_evaluation()
    document["protocol"] |= {"aggregation": "mean", "metric": "pearson"}
    return card_of(directory, evaluation=document)


# --- the card of a trainer ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    """A trainer after two steps, whose model is saved."""
    torch.manual_seed(0)
    config = tiny_config(hidden_dropout_prob=0.2)
    model = AutoModelForCL.from_config(config, temperature=0.1)
    args = SimCSETrainingArguments(
        output_dir=str(tmp_path_factory.mktemp("trained") / "run"),
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.00125,
        hub_token=SECRET,
        report_to="none",
    )
    texts = ["a cat sat", "the dog ran", "a bird sang", "old house"]
    rows = Dataset.from_dict({"sent0": texts})
    trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.fixture(scope="module")
def run_of(trained):
    """The folder of the run."""
    return Path(trained.args.output_dir)


@pytest.fixture(scope="module")
def of_trainer(trained, run_of):
    """The card that the trainer writes with further words."""
    trained.create_model_card(
        license="mit",
        tags="cats",
        dataset="org/texts",
        model_name="x",
        finetuned_from="y",
    )
    card = (run_of / CARD).read_text()
    (run_of / CARD).unlink()
    return card


def test_the_card_of_a_trainer_has_the_license_that_was_given(of_trainer):
    assert front_matter(of_trainer).license == "mit"


def test_the_card_of_a_trainer_has_the_data_set_that_was_given(of_trainer):
    assert front_matter(of_trainer).datasets == ["org/texts"]


def test_the_card_of_a_trainer_adds_the_tags_that_were_given(of_trainer):
    assert {"cats", "simcse"} <= set(front_matter(of_trainer).tags)


@pytest.mark.parametrize(
    "words",
    [
        "4 rows of single sentences, from `org/texts`.",
        "two dropout views",
        "| `learning_rate` | 0.00125 |",
        "| `temperature` | 0.1 |",
        "| `hidden_dropout_prob` | 0.2 |",
        "CPU",
    ],
)
def test_the_card_of_a_trainer_describes_its_run(of_trainer, words):
    assert words in of_trainer


@pytest.mark.parametrize("name", ["`weight_decay`", "attention_probs"])
def test_a_card_does_not_list_what_was_left_at_its_default(of_trainer, name):
    assert name not in of_trainer


def test_the_card_of_a_trainer_holds_no_token(of_trainer):
    assert "hf_s" not in of_trainer


def test_the_card_of_a_trainer_holds_no_path(of_trainer, run_of):
    assert str(run_of.parent) not in of_trainer


# --- results.json ---

DEV = {"stsb_spearman": 10.123, "stsb_pearson": 11.0, "stsb_alignment": 0.5}


@pytest.fixture(scope="module")
def recorded(trained):
    """The record of a run as results.json holds it."""
    return trained.describe_run() | {
        "settings": {},
        "base_model": "org/encoder",
        "steps": 2,
        "epochs": 2.0,
        "train_seconds": 250.0,
        "initial": {"step": 0, **DEV},
        "best": {"step": 1, **DEV, "stsb_spearman": 12.5},
        "final": {"step": 2, **DEV},
        "train_texts": "/somewhere/texts.txt",
        "hub_datasets": ["org/texts"],
        "dev_texts": ["Eins.", "Zwei.", "Drei."],
        "command": ["run_unsup.py", "--hub_token", SECRET],
        "train_rows": 1000,
    }


@pytest.fixture(scope="module")
def of_record(recorded, new_directory):
    """The card of a model beside this record."""
    return card_of(new_directory(), results=recorded)


@pytest.mark.parametrize(
    "words",
    [
        "Training started from `org/encoder`.",
        "https://arxiv.org/abs/2104.08821",
        "| best evaluation (step 1) | 12.50 | 11.00 | 0.5000 |",
        "The saved weights are those of the last step.",
        "in 4 minutes",
    ],
)
def test_the_card_describes_the_run_in_results_json(of_record, words):
    assert words in of_record


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_model", "org/encoder"),
        ("datasets", ["org/texts"]),
        ("widget", [{"source_sentence": "Eins.", "sentences": ["Zwei.", "Drei."]}]),
    ],
)
def test_the_front_matter_holds_what_results_json_says(of_record, name, value):
    assert getattr(front_matter(of_record), name) == value


@pytest.mark.parametrize("tag", ["generated_from_trainer", "loss:simcse", "dataset_size:1000"])
def test_the_tags_say_what_results_json_says(of_record, tag):
    assert tag in front_matter(of_record).tags


@pytest.mark.parametrize("private", ["/somewhere", "hf_s"])
def test_no_path_and_no_token_of_results_json_is_shown(of_record, private):
    assert private not in of_record


def test_the_card_says_that_the_weights_of_the_best_evaluation_were_saved(recorded, directory):
    arguments = recorded["arguments"] | {"load_best_model_at_end": True}
    card = card_of(directory, results=recorded | {"arguments": arguments})
    assert "The saved weights are those of the best evaluation." in card


# --- results.json beside a run ---


@pytest.fixture
def clean_run(run_of):
    """The folder of the run without a card and without results, which are removed again."""
    yield run_of
    for name in (CARD, "results.json"):
        (run_of / name).unlink(missing_ok=True)


@pytest.fixture
def results_of_the_run(trained):
    """What results.json says after the run."""
    scores = {"step": 0, "stsb_spearman": 77.77}
    of_evaluations = {"initial": scores, "best": scores, "final": scores}
    own = {"settings": {}, "train_seconds": 1.0}
    return trained.describe_run() | of_evaluations | own


def card_beside(results, trainer, folder):
    """The card that the trainer writes beside these results."""
    written(folder / "results.json", results)
    trainer.create_model_card()
    return (folder / CARD).read_text()


def test_the_results_of_the_run_are_used(trained, clean_run, results_of_the_run):
    assert "77.77" in card_beside(results_of_the_run, trained, clean_run)


def test_the_metric_of_a_callback_of_ones_own_is_shown_if_it_chose_the_checkpoint(
    trained, clean_run, results_of_the_run
):
    final = results_of_the_run["final"] | {"own_agreement": 66.66, "own_other": 55.55}
    results = results_of_the_run | {"final": final, "dev_metric": "own_agreement"}
    card = card_beside(results, trained, clean_run)
    assert "66.66" in card
    assert "55.55" not in card


@pytest.fixture(params=["steps", "train_loss"])
def beside_earlier_results(request, trained, clean_run, results_of_the_run):
    """A card that is written after one beside results of an earlier run, which differs in one number."""
    card_beside(results_of_the_run, trained, clean_run)
    changes = {"steps": 3, "train_loss": results_of_the_run["train_loss"] + 1e-6}
    earlier = results_of_the_run | {request.param: changes[request.param]}
    return card_beside(earlier, trained, clean_run)


def test_results_of_an_earlier_run_are_not_used(beside_earlier_results):
    assert "77.77" not in beside_earlier_results


def test_beside_results_of_an_earlier_run_the_card_describes_the_last_one(
    beside_earlier_results,
):
    assert "2 steps" in beside_earlier_results


def test_a_card_that_was_written_by_hand_stays(trained, clean_run):
    (clean_run / CARD).write_text("My own words.")
    trained.create_model_card()
    assert (clean_run / CARD).read_text() == "My own words."


def test_a_failing_card_does_not_fail_the_run_but_is_reported(trained, clean_run, caplog):
    (clean_run / "results.json").write_text("{")
    trained.create_model_card()
    assert "No model card was written" in caplog.text
    assert "results.json" in caplog.text


def test_a_failing_card_leaves_no_older_one_with_outdated_scores(trained, clean_run):
    trained.create_model_card()
    (clean_run / "results.json").write_text("{")
    trained.create_model_card()
    assert not (clean_run / CARD).exists()


# --- a whitening or flow ---

RUN_BEFORE_THE_WHITENING = {
    "settings": {},
    "steps": 1,
    "train_loss": 0.5,
    "initial": {"step": 1, "stsb_spearman": 50.0},
    "best": {"step": 1, "stsb_spearman": 50.0},
    "final": {"step": 1, "stsb_spearman": 50.0},
}
FITTED = "whitening from 32 to 6 dimensions, fitted without labels on 60 sentences of `unlabelled.txt` (`text`)"


@pytest.fixture(scope="module")
def of_whitening(tmp_path_factory, tokenizer):
    """The card of a model with a whitening and shorter embeddings, beside the record of a run."""
    folder = tmp_path_factory.mktemp("whitening")
    directory = save_transformed(folder, tokenizer, "whitening", matryoshka_dims=[16, 8])
    return card_of(directory, results=RUN_BEFORE_THE_WHITENING)


@pytest.mark.parametrize(
    "words",
    [
        "Sentence embeddings with 6 dimensions",
        "[whitening](https://arxiv.org/abs/",
        f"| post-processing | {FITTED} |",
        "@article{su-etal-2021-whitening,",
        "`pooler_output` of `transformers` is the input of the whitening.",
        "All scores are without the whitening, which was fitted later.",
        "8 dimensions, which were trained to be used alone, can be used alone",
    ],
)
def test_the_card_describes_a_whitening(of_whitening, words):
    assert words in of_whitening


def test_the_card_of_a_whitening_does_not_truncate_embeddings(of_whitening):
    assert "truncate_dim" not in of_whitening


METHODS = pytest.mark.parametrize("method", ["whitening", "flow"], scope="module")


@pytest.fixture(scope="module")
def overwritten(method, tmp_path_factory, tokenizer):
    """The directory of a model with a transform, to which other weights were saved, and what was logged."""
    folder = tmp_path_factory.mktemp(method)
    directory = save_transformed(folder, tokenizer, method)
    model = AutoModelForCL.from_config(tiny_config(initializer_range=0.3))
    model.save_pretrained(directory)
    return directory


@METHODS
def test_saving_other_weights_removes_the_transform(overwritten):
    assert not (overwritten / FOLDER).exists()


@METHODS
def test_saving_other_weights_takes_the_transform_from_the_list_of_modules(overwritten):
    assert FOLDER not in (overwritten / MODULES).read_text()


@METHODS
def test_a_model_to_which_other_weights_were_saved_has_no_transform(overwritten):
    assert SimCSE(overwritten, device="cpu").postprocessing is None


def test_the_warning_says_that_the_transform_is_removed_and_how_to_fit_it_again(transformed, caplog):
    directory = transformed("whitening")
    model = AutoModelForCL.from_config(tiny_config(initializer_range=0.3))
    model.save_pretrained(directory)
    assert f"{directory / FOLDER} is removed" in caplog.text
    assert "postprocess fit" in caplog.text


# --- the paper's models ---

MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
PAPER = Path(__file__).parents[3] / "shared" / "papers" / "simcse.txt"
COMMITTED = sorted(path.name for path in MODEL_CARDS.glob("*.md"))
CARDS_OF_MODELS = pytest.mark.parametrize("name", [name for name in COMMITTED if name != "README.md"])
SCORES_OF_PAPER = json.loads((MODEL_CARDS / "paper.json").read_text())
ROWS_OF_PAPER = pytest.mark.parametrize(
    ("name", "row"),
    [
        pytest.param(name, row, id=f"{kind} {name}")
        for kind in ("sts", "transfer")
        for name, row in SCORES_OF_PAPER[kind]["figures"].items()
    ],
)
SIZES = {
    "bert-base-uncased": "BERTbase",
    "roberta-base": "RoBERTabase",
    "roberta-large": "RoBERTalarge",
}


@pytest.fixture(scope="module")
def generated():
    """What the script writes, by the names of the files."""
    return runpy.run_path(str(MODEL_CARDS / "generate.py"))["generate"]()


def sections_of_results(card):
    return results_of(card).split("### ")[1:]


def test_there_are_eight_committed_cards_and_their_overview(generated):
    assert len(generated) == 9


def test_the_committed_cards_are_up_to_date(generated):
    assert sorted(generated) == COMMITTED
    for name, card in generated.items():
        assert card == (MODEL_CARDS / name).read_text(encoding="utf-8")


@CARDS_OF_MODELS
def test_a_committed_card_has_two_tables_of_scores_unless_the_paper_has_none(generated, name):
    """The paper has no scores of BERT-large."""
    is_bert_large = "bert-large" in name and "roberta" not in name
    expected = 0 if is_bert_large else 2
    assert len(sections_of_results(generated[name])) == expected


@CARDS_OF_MODELS
def test_a_committed_card_marks_the_scores_of_the_paper(generated, name):
    marked = "**Figures from the paper**, not measured with this package (Table"
    for section in sections_of_results(generated[name]):
        assert marked in section


@CARDS_OF_MODELS
def test_a_committed_card_gives_the_hub_no_scores_of_the_paper(generated, name):
    assert "model-index" not in generated[name]


@ROWS_OF_PAPER
def test_the_scores_of_the_committed_cards_are_in_the_paper(name, row):
    if not PAPER.exists():
        pytest.skip(f"the paper's text is not at {PAPER}")
    scores = " ".join(f"{score:.2f}" for score in row)
    encoder = SIZES[name.partition("simcse-")[2]]
    for line in PAPER.read_text(encoding="utf-8").splitlines():
        if line.endswith(scores):
            assert line.startswith(f"* SimCSE-{encoder}")
            return
    pytest.fail(f"the paper has no line {scores}")


@ROWS_OF_PAPER
def test_the_last_score_of_a_row_of_the_paper_is_the_average_of_the_others(name, row):
    assert sum(row[:7]) / 7 == pytest.approx(row[7], abs=0.0051)


# --- the file ---


@pytest.fixture(scope="module")
def rewritten(new_directory):
    """The front matter of a card that was written with words and then again without."""
    directory = new_directory()
    write_card(directory, language=["en", "de"], license="mit", datasets=["org/texts"])
    return ModelCard.load(write_card(directory)).data


@pytest.mark.parametrize(
    ("name", "value"),
    [("language", ["en", "de"]), ("license", "mit"), ("datasets", ["org/texts"])],
)
def test_rewriting_a_card_keeps_language_license_and_datasets(rewritten, name, value):
    assert getattr(rewritten, name) == value


HARMFUL = "x\n\n# Hacked\n<script>alert(1)</script>"
HARMFUL_RUN = {
    "steps": 1,
    "train_loss": 1.0,
    "rows": "sentences",
    "train_rows": 5,
    "hardware": HARMFUL,
    "seed": HARMFUL,
    "base_model": "org/base",
    "arguments": {"warmup": HARMFUL},
    "epochs": 1.0,
    "processes": 1,
}


@pytest.fixture(scope="module")
def of_harmful_words(new_directory, new_evaluation):
    """The body of a card. A file name, an argument or a result may come from someone else."""
    directory = new_directory()
    document = new_evaluation()
    document["results"]["mteb"] = {HARMFUL: 1.0, "a|b": 2.0}
    document["protocol"]["classifier"]["model"] = HARMFUL
    written(directory / "evaluation.json", document)
    return write_card(directory, run=HARMFUL_RUN).read_text().split("---", 2)[2]


def test_metadata_can_put_no_html_into_the_card(of_harmful_words):
    assert "<script" not in of_harmful_words


def test_metadata_can_put_no_lines_into_the_card(of_harmful_words):
    assert "\n# Hacked" not in of_harmful_words


def test_html_in_metadata_is_shown_as_it_is(of_harmful_words):
    assert "x # Hacked &lt;script>alert(1)&lt;/script>" in of_harmful_words


def test_a_name_with_a_bar_stays_in_its_column(of_harmful_words):
    assert "| a\\|b | 2.00 |" in of_harmful_words
