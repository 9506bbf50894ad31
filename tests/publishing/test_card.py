"""Model cards, whole: `cards` holds what they say of a bare, a measured and a transformed model.

`card_helpers.check_card` says how these files are written anew.
"""

import json
import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import yaml
from card_helpers import card_of, check_card, evaluation, written
from cli_helpers import card_main
from conftest import tiny_config
from huggingface_hub import ModelCard, parse_eval_result_entries
from publishing_fixtures import save_transformed
from trainer_helpers import make, refuses

from simcse_hf import BertForCL, SettingError, SimCSE
from simcse_hf.postprocessing.transform import FOLDER, MODULES
from simcse_hf.publishing.card import CARD, EVAL_RESULTS, name_repository, write_card

SECRET = "hf_" + "s" * 34
HARMFUL = "x\n\n# Hacked\n<script>alert(1)"


@pytest.fixture(scope="module")
def new_evaluation(untrained):
    """`new_evaluation(**changes)` is another evaluation of the model, which is loaded once."""
    document = evaluation(untrained)

    def copy(**changes):
        return deepcopy(document) | changes

    return copy


def test_the_card_of_a_model_without_results_and_record(directory):
    check_card("bare.md", write_card(directory).read_text())
    assert not (directory / EVAL_RESULTS).exists()


# --- what was measured ---

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


def test_the_card_that_the_command_writes_of_a_measured_model(directory, new_evaluation, capsys):
    """With the benchmark results beside it; both are then named for another repository."""
    document = new_evaluation(
        model="org/my-model",  # the copy on the hub
        date="2026-11-24T01:02:03+00:00",
        dataset_revisions={"SICKRelatedness": "6" * 40},
    )
    document["results"]["classification"] = TICKETS
    document["results"]["mine.tsv"] = {"spearman": 70.0, "pearson": 60.0, "pairs": 9}
    document["results"]["mteb"] = {HARMFUL: 1.0, "a|b": 2.0}
    file = written(directory / "evaluation.json", document)
    words = "--repo_id org/my-model --language en de --license apache-2.0".split()
    assert card_main([str(directory), "--results", str(file), *words]) == 0
    assert capsys.readouterr().out.strip() == str(directory / CARD)
    card = (directory / CARD).read_text()
    scores = (directory / EVAL_RESULTS).read_text()
    check_card("measured.md", card)
    check_card("measured.yaml", scores)
    parse_eval_result_entries(yaml.safe_load(scores))

    name_repository(directory, "acme/other")
    named = card.replace("org/my-model", "acme/other").replace("# my-model\n", "# other\n")
    assert (directory / CARD).read_text() == named.replace("- name: my-model\n", "- name: other\n")
    assert (directory / EVAL_RESULTS).read_text() == scores.replace("org/my-model", "acme/other")


@pytest.mark.parametrize(
    "protocol, scores, left",
    [
        ({"aggregation": "mean"}, "| 51.12 | 52.12 | n/a |", ["STSBenchmark"]),  # which has no subsets
        ({"metric": "pearson"}, "| 49.12 | 50.12 | n/a |", []),
        ({"mode": "dev"}, "| 90.50 |", []),
    ],
)
def test_scores_of_another_protocol_than_mtebs_are_shown_and_no_benchmark_results(
    protocol, scores, left, directory, new_evaluation
):
    card_of(directory, evaluation=new_evaluation())
    document = new_evaluation()
    document["protocol"] |= protocol
    card = card_of(directory, evaluation=document)
    assert scores in card and f"{protocol.get('metric', 'spearman').capitalize()}'s correlation" in card
    assert (directory / EVAL_RESULTS).exists() is bool(left)
    if left:
        results = yaml.safe_load((directory / EVAL_RESULTS).read_text())
        assert [entry["dataset"]["task_id"] for entry in results] == left


def test_scores_of_other_pairs_than_mtebs_are_no_benchmark_results(directory, new_evaluation):
    document = new_evaluation()
    document["results"] = {"STS12": document["results"]["STS12"] | {"pairs": 9}}
    card_of(directory, evaluation=document)
    assert not (directory / EVAL_RESULTS).exists()


# --- the card of a trainer ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    """A trainer after two steps, whose model is saved."""
    torch.manual_seed(0)
    model = BertForCL(tiny_config(hidden_dropout_prob=0.2), temperature=0.1)
    rows = {"sent0": ["a cat sat", "the dog ran", "a bird sang", "old house"]}
    folder, options = tmp_path_factory.mktemp("trained"), {"learning_rate": 0.00125, "hub_token": SECRET}
    trainer = make(folder, tokenizer, rows, model, max_steps=2, per_device_train_batch_size=4, **options)
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.fixture
def run(trained):
    """The folder of the run without a card and without results, which are removed again."""
    folder = Path(trained.args.output_dir)
    yield folder
    for name in (CARD, "results.json"):
        (folder / name).unlink(missing_ok=True)


def test_the_card_of_a_trainer_describes_its_run_with_the_words_that_were_given(trained, run):
    trained.create_model_card(license="mit", tags="cats", dataset="org/texts", model_name="x", finetuned_from="y")
    card = (run / CARD).read_text()
    data = ModelCard(card).data
    assert data.license == "mit" and data.datasets == ["org/texts"]
    assert {"cats", "simcse"} <= set(data.tags)
    for row in ("| `learning_rate` | 0.00125 |", "| `temperature` | 0.1 |", "| `hidden_dropout_prob` | 0.2 |"):
        assert row in card
    assert "4 rows of single sentences, from `org/texts`." in card and "CPU" in card
    assert "weight_decay" not in card and "attention_probs" not in card, "what was left at its default is not listed"
    assert SECRET not in card and str(run.parent) not in card


def test_the_card_of_a_trainer_shows_the_results_of_this_run_alone(trained, run):
    scores = {"step": 0, "stsb_spearman": 77.77}
    of_evaluations = {"initial": scores, "best": scores, "final": scores}
    results = trained.describe_run() | of_evaluations | {"settings": {}, "train_seconds": 1.0}

    def card_beside(**changes):
        written(run / "results.json", results | changes)
        trained.create_model_card()
        return (run / CARD).read_text()

    assert "77.77" in card_beside()
    for earlier in ({"steps": 3}, {"train_loss": results["train_loss"] + 1e-6}):
        card = card_beside(**earlier)
        assert "77.77" not in card and "2 steps" in card
    # A metric of a callback of one's own is shown if it chose the checkpoint.
    final = scores | {"own_agreement": 66.66, "own_other": 55.55}
    card = card_beside(final=final, dev_metric="own_agreement")
    assert "66.66" in card and "55.55" not in card


def test_a_trainer_keeps_a_card_that_was_written_by_hand(trained, run):
    (run / CARD).write_text("My own words.")
    trained.create_model_card()
    assert (run / CARD).read_text() == "My own words."


def test_a_card_that_fails_is_reported_and_leaves_none_with_outdated_scores(trained, run, caplog):
    trained.create_model_card()
    (run / "results.json").write_text("{")
    trained.create_model_card()
    assert "No model card was written" in caplog.text and "results.json" in caplog.text
    assert not (run / CARD).exists()


# --- a whitening or flow ---


def test_the_card_of_a_whitening_that_was_fitted_after_the_run(tmp_path, tokenizer):
    scores = {"step": 1, "stsb_spearman": 50.0}
    record = {"settings": {}, "steps": 1, "train_loss": 0.5, "initial": scores, "best": scores, "final": scores}
    directory = save_transformed(tmp_path, tokenizer, "whitening", matryoshka_dims=[16, 8])
    check_card("whitening.md", card_of(directory, results=record))


def test_saving_other_weights_removes_the_transform_and_says_how_to_fit_it_again(transformed, caplog):
    directory = transformed("flow")
    BertForCL(tiny_config(initializer_range=0.3)).save_pretrained(directory)
    assert not (directory / FOLDER).exists()
    assert FOLDER not in (directory / MODULES).read_text()
    assert SimCSE(directory, device="cpu").postprocessing is None
    assert f"{directory / FOLDER} is removed" in caplog.text and "postprocess fit" in caplog.text


# --- the file ---


def test_a_license_and_a_language_are_written_as_the_hub_takes_them(directory):
    for given in ("Apache 2.0", "Apache License, Version 2.0", "APACHE-2.0"):
        data = ModelCard.load(write_card(directory, license=given, language="EN")).data
        assert data.license == "apache-2.0" and data.language == ["en"]


def test_what_the_hub_does_not_take_is_refused_before_a_card_is_written(directory):
    for name, value in (
        ("license", "GPL v3"),
        ("language", ["en", "english"]),
        ("datasets", ["/home/jane/data.csv"]),
    ):
        with refuses(name, SettingError):
            write_card(directory, **{name: value})
    assert not (directory / CARD).exists()


def test_writing_a_card_again_keeps_language_license_and_datasets(directory):
    given = {"language": ["en", "de"], "license": "mit", "datasets": ["org/texts"]}
    write_card(directory, **given)
    data = ModelCard.load(write_card(directory)).data.to_dict()
    assert {name: data[name] for name in given} == given


def test_words_of_others_put_no_html_and_no_lines_into_a_card(directory):
    run = dict.fromkeys(("hardware", "seed", "train_texts"), HARMFUL)
    run |= {"steps": 1, "epochs": 1.0, "train_loss": 1.0, "rows": "sentences", "arguments": {"warmup": HARMFUL}}
    card = write_card(directory, run=run).read_text()
    assert "<script" not in card and "\n# Hacked" not in card
    assert "x # Hacked &lt;script>alert(1)" in card


# --- the paper's models ---

MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
PAPER = Path(__file__).parents[3] / "shared/papers/simcse.txt"
SIZES = {"bert-base-uncased": "BERTbase", "roberta-base": "RoBERTabase", "roberta-large": "RoBERTalarge"}


def test_the_committed_cards_are_up_to_date_and_mark_the_scores_of_the_paper():
    generated = runpy.run_path(str(MODEL_CARDS / "generate.py"))["generate"]()
    assert len(generated) == 9
    assert {path.name: path.read_text(encoding="utf-8") for path in MODEL_CARDS.glob("*.md")} == generated
    for name, card in generated.items():
        if name != "README.md":
            tables = 0 if "simcse-bert-large" in name else 2  # of which the paper has none
            marked = "**Figures from the paper**, not measured with this package (Table"
            assert card.count("\n### ") == card.count(marked) == tables
            assert "model-index" not in card, "which the hub would show as measured"


def test_the_scores_of_the_committed_cards_are_those_of_the_paper():
    scores = json.loads((MODEL_CARDS / "paper.json").read_text())
    rows = [row for kind in ("sts", "transfer") for row in scores[kind]["figures"].items()]
    for _, row in rows:
        assert sum(row[:7]) / 7 == pytest.approx(row[7], abs=0.0051)
    if not PAPER.exists():
        pytest.skip(f"the paper's text is not at {PAPER}")
    lines = PAPER.read_text(encoding="utf-8").splitlines()
    for name, row in rows:
        [line] = [line for line in lines if line.endswith(" ".join(f"{score:.2f}" for score in row))]
        assert line.startswith(f"* SimCSE-{SIZES[name.partition('simcse-')[2]]}")
