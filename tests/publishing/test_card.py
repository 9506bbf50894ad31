"""Model cards: all scores were measured, the run is described, and the hub can read the metadata."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml
from card_helpers import card_of, evaluation, written
from cli_helpers import card_main
from conftest import tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard, parse_eval_result_entries

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.postprocessing.transform import FOLDER, MODULES
from simcse_hf.publishing import CARD, name_repository, write_card
from simcse_hf.publishing.card import EVAL_RESULTS, MARKER


def numbers(text):
    """Return every decimal number in the card's results."""
    return set(
        re.findall(
            r"-?\d+\.\d+", text[text.index("## Results") : text.index("## Limits")]
        )
    )


# --- scores -------------------------------------------------------------------------------------------------------


def test_a_card_without_results_has_no_scores(directory):
    card = write_card(directory).read_text()
    assert "No results were measured." in card and not numbers(card)
    assert "Sentence embeddings with 32 dimensions from a `bert` encoder.\n" in card
    assert "This folder holds no record of how the model was trained.\n" in card
    assert "model-index" not in card and not (directory / EVAL_RESULTS).exists()


def test_every_score_comes_from_the_result_file(directory):
    card = card_of(directory, evaluation=evaluation(directory))
    sts = "50.12 51.12 53.12 54.12 80.25 81.25 61.07"
    assert numbers(card) == {*sts.split(), "71.23", "0.2512", "-2.5000", "0.3000"}
    assert (
        "| STS12 | STS13 | STS14 | STS15 | STS16 | STS-B | SICK-R | Avg. of 6 |" in card
    )
    assert "| 50.12 | 51.12 | n/a | 53.12 | 54.12 | 80.25 | 81.25 | 61.07 |" in card
    assert (
        "Spearman's correlation x 100" in card
        and "aggregated by `all`; texts truncated to 40 tokens" in card
    )
    assert "logistic regression" in card and "7 pairs" in card


def test_the_front_matter_holds_the_scores_and_the_words_of_the_command(
    directory, tmp_path, capsys
):
    file = written(
        tmp_path / "x.json", evaluation(directory, model="org/my-model")
    )  # the copy on the hub
    words = [
        "--results",
        str(file),
        "--repo_id",
        "org/my-model",
        "--language",
        "en",
        "de",
        "--license",
        "apache-2.0",
    ]
    assert card_main([str(directory), *words]) == 0
    assert capsys.readouterr().out.strip() == str(directory / CARD)
    card = (directory / CARD).read_text()
    assert MARKER in card and card.count('"org/my-model"') == 4
    assert not re.search(
        r"\{\{|\}\}|\{%|None \|", card.replace("{{SimCSE}", "").replace("}}", "")
    ), "template syntax"
    data = ModelCard(card).data
    assert (data.language, data.license, data.pipeline_tag) == (
        ["en", "de"],
        "apache-2.0",
        "sentence-similarity",
    )
    assert data.library_name == "sentence-transformers" and "simcse" in data.tags
    assert (
        data.metrics == ["accuracy", "spearman_cosine"]
        and "widget" not in data.to_dict()
    )
    found = {result.dataset_name: result for result in data.eval_results}
    assert {name: result.metric_value for name, result in found.items()} == {
        "STS12": 50.12,
        "STS13": 51.12,
        "STS15": 53.12,
        "STS16": 54.12,
        "STS-B": 80.25,
        "SICK-R": 81.25,
        "MR": 71.23,
    }
    assert (
        found["STS-B"].dataset_type == "mteb/stsbenchmark-sts"
        and found["STS-B"].metric_type == "spearman_cosine"
    )
    assert found["SICK-R"].dataset_type == "SentEval/SICKRelatedness", (
        "the hub's SICK-R contains other pairs"
    )
    assert found["MR"].metric_type == "accuracy"


def test_tasks_from_files_have_a_table_and_entries_in_the_front_matter(directory):
    document = evaluation(directory)
    document["results"]["classification"] = {
        "kind": "classification",
        "name": "tickets",
        "metrics": ["accuracy", "knn_accuracy"],
        "accuracy": 81.234,
        "knn_accuracy": 79.5,
        "source": "/home/me/tickets.csv",
        "protocol": "5-fold",
        "examples": 300,
    }
    document["results"]["mine.tsv"] = {"spearman": 70.0, "pearson": 60.0, "pairs": 9}
    card = write_card(
        directory, [written(directory / "results_1.json", document)]
    ).read_text()
    assert (
        "### Tasks from files" in card
        and "| classification (tickets) | accuracy | 81.23 | 300 |" in card
    )
    assert (
        "| classification (tickets) | knn_accuracy | 79.50 | 300 |" in card
        and "/home/me" not in card
    )
    entries = {
        result.dataset_name: result for result in ModelCard(card).data.eval_results
    }
    assert (
        entries["tickets"].task_type == "text-classification"
        and entries["tickets"].metric_value == 81.23
    )
    assert entries["mine.tsv"].dataset_type == "mine.tsv", "SentEval has no such set"
    assert "Avg. of 6" in card, "they are not part of the average of the STS tasks"


# --- .eval_results ------------------------------------------------------------------------------------------------


def test_the_hub_client_can_read_eval_results_with_their_revision_date_and_source(
    directory,
):
    document = evaluation(
        directory,
        date="2026-11-24T01:02:03+00:00",
        dataset_revisions={"SICKRelatedness": "6" * 40},
    )
    found = {
        each.dataset_name: each
        for each in ModelCard(card_of(directory, evaluation=document)).data.eval_results
    }
    assert (found["SICK-R"].dataset_type, found["SICK-R"].dataset_revision) == (
        "mteb/sickr-sts",
        "6" * 40,
    )
    name_repository(directory, "org/name")
    card = (directory / CARD).read_text()
    assert card.count('"org/name"') == 4 and "your-name" not in card
    entries = parse_eval_result_entries(
        yaml.safe_load((directory / EVAL_RESULTS).read_text())
    )
    assert {entry.task_id: (entry.dataset_id, entry.value) for entry in entries} == {
        "STS12": ("mteb/sts12-sts", 50.12),
        "STS13": ("mteb/sts13-sts", 51.12),
        "STS15": ("mteb/sts15-sts", 53.12),
        "STS16": ("mteb/sts16-sts", 54.12),
        "STSBenchmark": ("mteb/stsbenchmark-sts", 80.25),
        "SICK-R": ("mteb/sickr-sts", 81.25),
    }
    assert all(
        "aggregated by `all`" in entry.notes and entry.date == document["date"]
        for entry in entries
    )
    assert all("unknown from how many seeds" in entry.notes for entry in entries)
    assert (
        entries[0].source_url
        == "https://huggingface.co/org/name/blob/main/evaluation.json"
    )
    assert [
        entry.dataset_revision for entry in entries if "local files" not in entry.notes
    ] == ["6" * 40]
    (directory / "evaluation.json").unlink()
    write_card(directory)
    assert not (directory / EVAL_RESULTS).exists(), "scores disappear with their file"


@pytest.mark.parametrize(
    "change", [{"aggregation": "mean", "metric": "pearson"}, {"mode": "dev"}, "pairs"]
)
def test_scores_that_mteb_would_not_give_are_shown_but_no_benchmark_results(
    change, directory
):
    document = evaluation(directory)
    if change == "pairs":
        document["results"] = {"STS12": document["results"]["STS12"] | {"pairs": 9}}
    else:
        document["protocol"] |= change
    card = card_of(directory, evaluation=document)
    assert not (directory / EVAL_RESULTS).exists()
    if "metric" in change:  # all + 1 for mean, - 1 for pearson
        assert "| 50.12 | 51.12 | n/a |" in card and "| 79.25 | 80.25 |" in card
        assert "Pearson's correlation" in card and "aggregated by `mean`" in card


# --- a run --------------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(tmp_path, tokenizer):
    model = AutoModelForCL.from_config(
        tiny_config(hidden_dropout_prob=0.2), temperature=0.1
    )
    args = SimCSETrainingArguments(
        output_dir=str(tmp_path / "run"),
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.00125,
        hub_token="hf_" + "s" * 34,
        report_to="none",
    )
    texts = Dataset.from_dict(
        {"sent0": ["a cat sat", "the dog ran", "a bird sang", "old house"]}
    )
    return SimCSETrainer(model, args, texts, processing_class=tokenizer)


def test_the_trainer_writes_a_card_about_its_run(trainer, tmp_path):
    trainer.train()
    trainer.save_model()
    trainer.create_model_card(
        license="mit",
        tags="cats",
        dataset="org/texts",
        model_name="x",
        finetuned_from="y",
    )
    card = (tmp_path / "run" / CARD).read_text()
    data = ModelCard(card).data
    assert (data.license, data.datasets) == ("mit", ["org/texts"]) and {
        "cats",
        "simcse",
    } <= set(data.tags)
    assert (
        "4 rows of single sentences, from `org/texts`." in card
        and "two dropout views" in card
    )
    for name, value in (
        ("learning_rate", 0.00125),
        ("temperature", 0.1),
        ("hidden_dropout_prob", 0.2),
    ):
        assert f"| `{name}` | {value} |" in card
    assert "`weight_decay`" not in card and "attention_probs" not in card, (
        "these are the defaults"
    )
    assert "CPU" in card and "hf_s" not in card and str(tmp_path) not in card


def test_the_card_describes_the_run_in_results_json(trainer, directory):
    trainer.train()
    dev = {"stsb_spearman": 10.123, "stsb_pearson": 11.0, "stsb_alignment": 0.5}
    run = trainer.describe_run() | {
        "settings": {},
        "base_model": "org/encoder",
        "steps": 2,
        "epochs": 2.0,
        "train_seconds": 250.0,
        "initial": {"step": 0, **dev},
        "best": {"step": 1, **dev, "stsb_spearman": 12.5},
        "final": {"step": 2, **dev},
        "train_texts": "/somewhere/texts.txt",
        "hub_datasets": ["org/texts"],
        "dev_texts": ["Eins.", "Zwei.", "Drei."],
        "command": ["run_unsup.py", "--hub_token", "hf_" + "s" * 34],
        "train_rows": 1000,
    }
    card = card_of(directory, results=run)
    data = ModelCard(card).data
    assert (
        data.base_model == "org/encoder"
        and "Training started from `org/encoder`." in card
    )
    assert {"generated_from_trainer", "loss:simcse", "dataset_size:1000"} <= set(
        data.tags
    )
    assert data.datasets == ["org/texts"] and "https://arxiv.org/abs/2104.08821" in card
    assert data.widget == [
        {"source_sentence": "Eins.", "sentences": ["Zwei.", "Drei."]}
    ]
    assert "/somewhere" not in card and "hf_s" not in card
    assert "| best evaluation (step 1) | 12.50 | 11.00 | 0.5000 |" in card
    assert (
        "The saved weights are those of the last step." in card
        and "in 4 minutes" in card
    )
    run["arguments"]["load_best_model_at_end"] = True
    assert "The saved weights are those of the best evaluation." in card_of(
        directory, results=run
    )


def test_results_of_an_earlier_run_are_not_used(trainer, tmp_path):
    trainer.train()
    trainer.save_model()
    dev = {
        name: {"step": 0, "stsb_spearman": 77.77}
        for name in ("initial", "best", "final")
    }
    run = trainer.describe_run() | dev | {"settings": {}, "train_seconds": 1.0}
    card = tmp_path / "run" / CARD
    written(tmp_path / "run" / "results.json", run)
    trainer.create_model_card()
    assert "77.77" in card.read_text()
    for change in ({"steps": 3}, {"train_loss": run["train_loss"] + 1e-6}):
        written(tmp_path / "run" / "results.json", run | change)
        trainer.create_model_card()
        assert "77.77" not in card.read_text() and "2 steps" in card.read_text()


def test_a_failing_card_does_not_fail_the_run_and_one_written_by_hand_stays(
    trainer, tmp_path, caplog
):
    trainer.save_model()
    card = tmp_path / "run" / CARD
    card.write_text("My own words.")
    trainer.create_model_card()
    assert card.read_text() == "My own words."
    card.unlink()
    trainer.create_model_card()
    (tmp_path / "run" / "results.json").write_text("{")
    trainer.create_model_card()
    assert "No model card was written" in caplog.text and "results.json" in caplog.text
    assert not card.exists(), "an older card would show outdated scores"


# --- a whitening or flow ------------------------------------------------------------------------------------------


def test_the_card_describes_a_whitening(transformed):
    directory = transformed("whitening", matryoshka_dims=[16, 8])
    dev = {"step": 1, "stsb_spearman": 50.0}
    run = {
        "settings": {},
        "steps": 1,
        "train_loss": 0.5,
        "initial": dev,
        "best": dev,
        "final": dev,
    }
    card = card_of(directory, results=run)
    assert (
        "Sentence embeddings with 6 dimensions" in card
        and "[whitening](https://arxiv.org/abs/" in card
    )
    fitted = "whitening from 32 to 6 dimensions, fitted without labels on 60 sentences of `unlabelled.txt` (`text`)"
    assert (
        f"| post-processing | {fitted} |" in card
        and "@article{su-etal-2021-whitening," in card
    )
    assert "`pooler_output` of `transformers` is the input of the whitening." in card
    assert "All scores are without the whitening, which was fitted later." in card
    assert (
        "truncate_dim" not in card
        and "8 dimensions, which were trained to be used alone, can be used alone"
        in card
    )


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_saving_other_weights_removes_the_transform(method, transformed, caplog):
    directory = transformed(method)
    AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).save_pretrained(
        directory
    )
    assert (
        not (directory / FOLDER).exists()
        and FOLDER not in (directory / MODULES).read_text()
    )
    assert (
        f"{directory / FOLDER} is removed" in caplog.text
        and "postprocess fit" in caplog.text
    )
    assert SimCSE(directory, device="cpu").postprocessing is None


# --- the paper's models -------------------------------------------------------------------------------------------

MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
PAPER = Path(__file__).parents[3] / "shared" / "papers" / "simcse.txt"


def test_the_committed_cards_are_up_to_date_and_mark_the_scores_of_the_paper():
    generated = runpy.run_path(str(MODEL_CARDS / "generate.py"))["generate"]()
    assert generated == {
        path.name: path.read_text(encoding="utf-8") for path in MODEL_CARDS.glob("*.md")
    }
    assert len(generated) == 9
    for name, card in generated.items():
        if name != "README.md":
            sections = card[card.index("## Results") : card.index("## Limits")].split(
                "### "
            )[1:]
            assert len(sections) == (
                0 if "bert-large" in name and "roberta" not in name else 2
            )
            marked = "**Figures from the paper**, not measured with this package (Table"
            assert (
                all(marked in text for text in sections) and "model-index" not in card
            )


def test_the_scores_of_the_committed_cards_are_in_the_paper():
    if not PAPER.exists():
        pytest.skip(f"the paper's text is not at {PAPER}")
    lines = PAPER.read_text(encoding="utf-8").splitlines()
    paper = json.loads((MODEL_CARDS / "paper.json").read_text())
    sizes = {
        "bert-base-uncased": "BERTbase",
        "roberta-base": "RoBERTabase",
        "roberta-large": "RoBERTalarge",
    }
    for kind in ("sts", "transfer"):
        for name, row in paper[kind]["figures"].items():
            line = next(
                line
                for line in lines
                if line.endswith(" ".join(f"{x:.2f}" for x in row))
            )
            assert line.startswith(f"* SimCSE-{sizes[name.partition('simcse-')[2]]}")
            assert sum(row[:7]) / 7 == pytest.approx(row[7], abs=0.0051)


# --- the file -----------------------------------------------------------------------------------------------------


def test_rewriting_a_card_keeps_language_license_and_datasets(directory):
    write_card(directory, language=["en", "de"], license="mit", datasets=["org/texts"])
    data = ModelCard.load(write_card(directory)).data
    assert (data.language, data.license, data.datasets) == (
        ["en", "de"],
        "mit",
        ["org/texts"],
    )


def test_metadata_can_put_neither_html_nor_lines_into_the_card(directory):
    """A file name, an argument or a result may come from someone else."""
    harmful = "x\n\n# Hacked\n<script>alert(1)</script>"
    run = {
        "steps": 1,
        "train_loss": 1.0,
        "rows": "sentences",
        "train_rows": 5,
        "hardware": harmful,
        "seed": harmful,
    }
    run |= {
        "base_model": "org/base",
        "arguments": {"warmup": harmful},
        "epochs": 1.0,
        "processes": 1,
    }
    document = evaluation(directory)
    document["results"]["mteb"] = {harmful: 1.0, "a|b": 2.0}
    document["protocol"]["classifier"]["model"] = harmful
    written(directory / "evaluation.json", document)
    body = write_card(directory, run=run).read_text().split("---", 2)[2]
    assert "<script" not in body and "\n# Hacked" not in body
    assert (
        "x # Hacked &lt;script>alert(1)&lt;/script>" in body
        and "| a\\|b | 2.00 |" in body
    )
