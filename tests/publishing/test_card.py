"""Model cards: the examples run, all scores were measured, and the hub can read the metadata."""

import json
import os
import re
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from conftest import tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard, parse_eval_result_entries

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.publish import card_main
from simcse_hf.evaluation.sts import STS_PAIRS
from simcse_hf.publishing import CARD, name_repository, write_card
from simcse_hf.publishing.card import EVAL_RESULTS, MARKER
from simcse_hf.training.run_record import describe_run

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
#: Of 32 dimensions; the second has neither a bias nor an activation.
DENSE_LAYERS = [
    {"in_features": 32, "out_features": 24},
    {"in_features": 24, "out_features": 16, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
]
EXAMPLES = ["A cat sits on the mat.", "A feline rests on a rug."]


@pytest.fixture
def directory(save_checkpoint):
    return save_checkpoint(AutoModelForCL.from_config(tiny_config()), "my-model")


def scores(value):
    return {"spearman": value, "pearson": value - 1}


def evaluation(directory, **changes):
    """Make a document as `simcse-hf evaluate --output` writes it, with a different value for each figure."""
    results = {}
    for i, task in enumerate(STS[:5]):
        aggregate = {name: scores(50.125 + i + j) for j, name in enumerate(("all", "mean", "wmean"))}
        results[task] = {"pairs": STS_PAIRS[task][task], "subsets": {}, "aggregate": aggregate}
    for i, task in enumerate(STS[5:]):
        test = {"pairs": STS_PAIRS[task]["test"], **scores(80.25 + i)}
        results[task] = {"splits": {"test": test, "dev": scores(90.5)}}
    results["STS14"] = {"missing": "no folder STS14-en-test"}
    results["MR"] = {"accuracy": 71.23, "dev_accuracy": 73.0, "examples": {"train": 9}}
    present = [task for task in STS if task != "STS14"]
    results["average"] = {"value": 61.07, "tasks": present, "missing": ["STS14"]}
    results["average_transfer"] = {"value": 71.23, "tasks": ["MR"], "missing": []}
    results["geometry"] = {
        "alignment": 0.25123, "uniformity": -2.5, "isotropy": 0.3, "singular_spectrum": [1.0], "positive_pairs": 7,
        "sentences": 11, "splits": ["train", "dev", "test"],
    }  # fmt: skip
    protocol = {"mode": "test", "aggregation": "all", "metric": "spearman", "seed": 1111}
    protocol["classifier"] = {"model": "logistic regression"}
    document = {"model": str(directory), "pooler": "cls", "max_length": 40, "protocol": protocol, "results": results}
    return document | changes


def written(path, document):
    path.write_text(json.dumps(document))
    return path


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


# --- the examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *[("bert", {"pooler_type": name}) for name in ("cls", "cls_before_pooler", "avg")],
        *[("bert", {"pooler_type": name}) for name in ("avg_top2", "avg_first_last", "avg_embeddings_last")],
        ("bert", {"mlp_only_train": True}),
        ("distilbert", {"pooler_type": "cls"}),
        ("bert", {"pooler_type": "cls", "dense_layers": DENSE_LAYERS}),
        ("distilbert", {"pooler_type": "avg", "dense_layers": DENSE_LAYERS[:1]}),
    ],
)
def test_the_code_examples_give_the_embeddings_of_the_model(family, settings, save_checkpoint, capsys):
    model = AutoModelForCL.from_config(tiny_config(family, num_hidden_layers=3), **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    directory = save_checkpoint(model)
    card = write_card(directory, repo_id=str(directory)).read_text()
    ours = SimCSE(directory).encode(EXAMPLES)
    for code, library in zip(blocks(card), ("simcse_hf", "sentence_transformers", "transformers"), strict=True):
        assert library in code
        if library == "sentence_transformers":
            pytest.importorskip(library, reason="sentence_transformers is not installed")
        names = {}
        exec(code, names)
        torch.testing.assert_close(F.normalize(torch.as_tensor(names["embeddings"]), dim=-1), ours, rtol=0, atol=1e-5)


def test_the_card_does_not_name_sentence_transformers_for_a_pooler_it_lacks(save_checkpoint):
    directory = save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg_no_cls"))
    card = write_card(directory, repo_id=str(directory)).read_text()
    data = ModelCard(card).data
    assert data.library_name == "transformers" and "sentence-transformers" not in data.tags and "simcse" in data.tags
    assert "sentence-transformers has no such pooling" in card and "from sentence_transformers" not in card
    names = {}
    exec(blocks(card)[-1], names)
    ours = SimCSE(directory).encode(EXAMPLES)
    torch.testing.assert_close(F.normalize(names["embeddings"], dim=-1), ours, rtol=0, atol=1e-5)


def test_the_repository_name_can_be_filled_in_later(directory):
    assert 'SimCSE("your-name/my-model")' in write_card(directory).read_text()
    name_repository(directory, "org/other")
    card = (directory / CARD).read_text()
    assert card.count('"org/other"') == 4 and "your-name" not in card


# --- scores -------------------------------------------------------------------------------------------------------


def numbers(text):
    """Return every decimal number in the card's results."""
    return set(re.findall(r"-?\d+\.\d+", text[text.index("## Results") : text.index("## Limits")]))


def test_a_card_without_results_has_no_scores(directory):
    card = write_card(directory).read_text()
    assert "No results were measured." in card and not numbers(card)
    assert "This directory holds no record of how the model was trained." in card
    assert "model-index" not in card and not (directory / EVAL_RESULTS).exists()


def test_every_figure_comes_from_the_result_file(directory):
    written(directory / "evaluation.json", evaluation(directory))
    card = write_card(directory).read_text()
    assert numbers(card) == {
        "50.12", "51.12", "53.12", "54.12", "80.25", "81.25", "61.07", "71.23", "0.2512", "-2.5000", "0.3000",
    }  # fmt: skip
    assert "| STS12 | STS13 | STS14 | STS15 | STS16 | STS-B | SICK-R | Avg. of 6 |" in card
    assert "| 50.12 | 51.12 | n/a | 53.12 | 54.12 | 80.25 | 81.25 | 61.07 |" in card
    assert "Spearman's correlation x 100" in card and "aggregated by `all`; texts truncated to 40 tokens" in card
    assert "logistic regression" in card and "7 pairs" in card


def test_the_scores_follow_the_protocol_of_the_evaluation(directory):
    document = evaluation(directory)
    document["protocol"] |= {"aggregation": "mean", "metric": "pearson"}
    written(directory / "evaluation.json", document)
    card = write_card(directory).read_text()
    assert "| 50.12 | 51.12 | n/a |" in card and "| 79.25 | 80.25 |" in card  # all + 1 for mean, - 1 for pearson
    assert "Pearson's correlation" in card and "aggregated by `mean`" in card


def test_the_front_matter_contains_the_scores(directory):
    written(directory / "evaluation.json", evaluation(directory))
    data = ModelCard.load(write_card(directory, repo_id="org/my-model", language="en", license="apache-2.0")).data
    assert (data.language, data.license, data.pipeline_tag) == ("en", "apache-2.0", "sentence-similarity")
    assert data.library_name == "sentence-transformers" and "simcse" in data.tags
    assert data.metrics == ["accuracy", "spearman_cosine"] and "widget" not in data.to_dict()
    found = {result.dataset_name: result for result in data.eval_results}
    assert {name: result.metric_value for name, result in found.items()} == {
        "STS12": 50.12, "STS13": 51.12, "STS15": 53.12, "STS16": 54.12, "STS-B": 80.25, "SICK-R": 81.25, "MR": 71.23,
    }  # fmt: skip
    assert found["STS-B"].dataset_type == "mteb/stsbenchmark-sts" and found["STS-B"].metric_type == "spearman_cosine"
    assert found["SICK-R"].dataset_type == "SentEval/SICKRelatedness", "the hub's SICK-R contains other pairs"
    assert found["MR"].metric_type == "accuracy"


def test_a_full_disk_leaves_the_earlier_card_and_scores_as_they_were(directory, monkeypatch):
    (directory / "evaluation.json").write_text(json.dumps(evaluation(directory)))
    path = write_card(directory, language="de", license="mit")
    before = path.read_bytes(), (directory / EVAL_RESULTS).read_bytes()
    write = Path.write_text

    for name in (CARD, EVAL_RESULTS.name):

        def cut(self, text, *args, name=name, **kwargs):
            full = name in self.name
            write(self, text[:40] if full else text, *args, **kwargs)
            if full:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", cut)
            with pytest.raises(OSError, match=f"No space left on device.*{name}"):
                write_card(directory)
        assert (path.read_bytes(), (directory / EVAL_RESULTS).read_bytes()) == before
    assert "license: mit" in write_card(directory).read_text()


def test_the_hub_client_can_read_eval_results(directory):
    written(directory / "evaluation.json", evaluation(directory))
    write_card(directory)
    entries = parse_eval_result_entries(yaml.safe_load((directory / EVAL_RESULTS).read_text()))
    assert {entry.dataset_id: entry.value for entry in entries} == {
        "mteb/sts12-sts": 50.12, "mteb/sts13-sts": 51.12, "mteb/sts15-sts": 53.12, "mteb/sts16-sts": 54.12,
        "mteb/stsbenchmark-sts": 80.25,
    }  # fmt: skip
    assert all("aggregated by `all`" in entry.notes for entry in entries)
    assert {entry.task_id for entry in entries} == {"STS12", "STS13", "STS15", "STS16", "STSBenchmark"}
    assert all(entry.dataset_revision is None and "local files" in entry.notes for entry in entries)
    (directory / "evaluation.json").unlink()
    write_card(directory)
    assert not (directory / EVAL_RESULTS).exists(), "scores disappear with their file"


def test_scores_on_the_hubs_data_sets_name_their_revision_date_and_source(directory):
    revisions = {task: f"{number}" * 40 for number, task in enumerate(STS)}
    document = evaluation(directory, dataset_revisions=revisions, date="2026-11-24T01:02:03+00:00")
    document["results"]["SICKRelatedness"]["splits"]["test"]["pairs"] = 9927
    written(directory / "evaluation.json", document)
    found = {x.dataset_name: x for x in ModelCard.load(write_card(directory)).data.eval_results}
    assert found["STS12"].dataset_revision == "0" * 40 and found["SICK-R"].dataset_type == "mteb/sickr-sts"
    name_repository(directory, "org/name")
    entries = parse_eval_result_entries(yaml.safe_load((directory / EVAL_RESULTS).read_text()))
    entries = {entry.task_id: entry for entry in entries}
    assert (entries["SICK-R"].dataset_id, entries["SICK-R"].dataset_revision) == ("mteb/sickr-sts", "6" * 40)
    assert entries["STS12"].date == "2026-11-24T01:02:03+00:00"
    assert entries["STS12"].source_url == "https://huggingface.co/org/name/blob/main/evaluation.json"


@pytest.mark.parametrize("what", ["pearson", "pairs"])
def test_scores_that_mteb_would_not_give_are_not_benchmark_results(what, directory):
    document = evaluation(directory)
    if what == "pearson":
        document["protocol"]["metric"] = "pearson"
    else:
        document["results"] = {"STS12": document["results"]["STS12"] | {"pairs": 9}}
    written(directory / "evaluation.json", document)
    write_card(directory)
    assert not (directory / EVAL_RESULTS).exists()


def test_the_front_matter_describes_the_run(directory):
    run = {"train_rows": 1000, "hub_datasets": ["org/texts"], "dev_texts": ["Eins.", "Zwei.", "Drei."], "steps": 3}
    write_card(directory, run=run | {"train_loss": 1.0})
    data = ModelCard.load(directory / CARD).data
    assert {"generated_from_trainer", "loss:simcse", "dataset_size:1000"} <= set(data.tags)
    assert data.datasets == ["org/texts"]
    assert data.widget == [{"source_sentence": "Eins.", "sentences": ["Zwei.", "Drei."]}]
    assert "https://arxiv.org/abs/2104.08821" in (directory / CARD).read_text()


def test_dev_scores_are_not_benchmark_results(directory):
    document = evaluation(directory)
    document["protocol"]["mode"] = "dev"
    document["results"] = {"STSBenchmark": document["results"]["STSBenchmark"]}
    written(directory / "evaluation.json", document)
    write_card(directory)
    assert not (directory / EVAL_RESULTS).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "outputs/other"}, "holds results of outputs/other, but the card is for"),
        ({"model": None}, "holds results of None"),
        ({"pooler": "avg"}, "measured with pooler 'avg', but the model's pooler is 'cls'"),
    ],
)
def test_results_of_another_model_or_pooler_are_refused(changes, message, directory):
    written(directory / "evaluation.json", evaluation(directory, **changes))
    with pytest.raises(ValueError, match=message):
        write_card(directory)
    assert not (directory / CARD).exists()


def test_results_measured_on_the_hub_copy_are_accepted(directory, tmp_path):
    file = written(tmp_path / "x.json", evaluation(directory, model="org/published"))
    assert "50.12" in write_card(directory, [file], repo_id="org/published").read_text()


def test_results_older_than_the_weights_are_ignored_unless_named(directory, caplog):
    file = written(directory / "evaluation.json", evaluation(directory))
    os.utime(file, (1, 1))
    assert "50.12" not in write_card(directory).read_text() and not (directory / EVAL_RESULTS).exists()
    assert "evaluation.json is older than the model's weights" in caplog.text
    assert "50.12" in write_card(directory, [file]).read_text()


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
@pytest.mark.parametrize("name", ["results.json", "evaluation.json"])
def test_the_error_names_a_broken_result_file(name, content, directory):
    (directory / name).write_text(content)
    with pytest.raises(ValueError, match=name):
        write_card(directory)


# --- a run --------------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(tmp_path, tokenizer):
    model = AutoModelForCL.from_config(tiny_config(hidden_dropout_prob=0.2), temperature=0.1)
    args = SimCSETrainingArguments(
        output_dir=str(tmp_path / "run"), use_cpu=True, disable_tqdm=True, save_strategy="no", max_steps=2,
        per_device_train_batch_size=4, learning_rate=0.00125, hub_token="hf_" + "s" * 34, report_to="none",
    )  # fmt: skip
    texts = Dataset.from_dict({"sent0": ["a cat sat", "the dog ran", "a bird sang", "old house"]})
    return SimCSETrainer(model, args, texts, processing_class=tokenizer)


def test_the_trainer_writes_a_card_about_its_run(trainer, tmp_path):
    trainer.train()
    trainer.save_model()
    trainer.create_model_card(license="mit", tags="cats", dataset="org/texts", model_name="x", finetuned_from="y")
    card = (tmp_path / "run" / CARD).read_text()
    data = ModelCard.load(tmp_path / "run" / CARD).data
    assert (data.license, data.datasets) == ("mit", ["org/texts"]) and {"cats", "simcse"} <= set(data.tags)
    assert "4 rows of single sentences, from `org/texts`." in card and "two dropout views" in card
    for name, value in (("learning_rate", 0.00125), ("temperature", 0.1), ("hidden_dropout_prob", 0.2)):
        assert f"| `{name}` | {value} |" in card
    assert "`weight_decay`" not in card and "attention_probs" not in card, "these are the defaults"
    assert "CPU" in card and "hf_s" not in card and str(tmp_path) not in card


def test_the_card_describes_the_run_in_results_json(trainer, directory):
    trainer.train()
    dev = {"stsb_spearman": 10.123, "stsb_pearson": 11.0, "stsb_alignment": 0.5}
    run = describe_run(trainer) | {
        "settings": {}, "base_model": "org/encoder", "steps": 2, "epochs": 2.0, "train_seconds": 250.0,
        "initial": {"step": 0, **dev}, "best": {"step": 1, **dev, "stsb_spearman": 12.5}, "final": {"step": 2, **dev},
        "train_texts": "/somewhere/texts.txt",
        "command": ["run_unsup.py", "--hub_token", "hf_" + "s" * 34],
    }  # fmt: skip
    written(directory / "results.json", run)
    path = write_card(directory)
    card = path.read_text()
    assert ModelCard.load(path).data.base_model == "org/encoder" and "Training started from `org/encoder`." in card
    assert "from `texts.txt`" in card and "/somewhere" not in card and "hf_s" not in card
    assert "| best evaluation (step 1) | 12.50 | 11.00 | 0.5000 |" in card
    assert "The saved weights are those of the last step." in card and "in 4 minutes" in card
    run["arguments"]["load_best_model_at_end"] = True
    written(directory / "results.json", run)
    assert "The saved weights are those of the best evaluation." in write_card(directory).read_text()


def test_results_of_an_earlier_run_are_not_used(trainer, tmp_path):
    trainer.train()
    trainer.save_model()
    dev = {name: {"step": 0, "stsb_spearman": 77.77} for name in ("initial", "best", "final")}
    run = describe_run(trainer) | dev | {"settings": {}, "train_seconds": 1.0}
    assert run["steps"] == 2 and run["train_loss"] > 0
    card = tmp_path / "run" / CARD
    written(tmp_path / "run" / "results.json", run)
    trainer.create_model_card()
    assert "77.77" in card.read_text()
    for change in ({"steps": 3}, {"train_loss": run["train_loss"] + 1e-6}):
        written(tmp_path / "run" / "results.json", run | change)
        trainer.create_model_card()
        assert "77.77" not in card.read_text() and "2 steps" in card.read_text()


def test_a_failing_card_does_not_fail_the_run(trainer, tmp_path, caplog):
    trainer.save_model()
    trainer.create_model_card()
    (tmp_path / "run" / "results.json").write_text("{")
    trainer.create_model_card()
    assert "No model card was written" in caplog.text and "results.json" in caplog.text
    assert not (tmp_path / "run" / CARD).exists(), "an older card would show outdated scores"


def test_without_results_json_the_card_lists_the_settings_of_config_json(save_checkpoint):
    model = AutoModelForCL.from_config(tiny_config(attention_probs_dropout_prob=0.3), hard_negative_weight=0.5)
    card = write_card(save_checkpoint(model)).read_text()
    assert "| `hard_negative_weight` | 0.5 |" in card and "| `attention_probs_dropout_prob` | 0.3 |" in card
    assert "`hidden_dropout_prob`" not in card and "`temperature`" not in card


def test_a_local_starting_model_is_named_without_its_path(directory, tmp_path):
    written(directory / "results.json", {"settings": {}, "base_model": str(tmp_path / "encoder")})
    path = write_card(directory)
    assert str(tmp_path) not in path.read_text() and ModelCard.load(path).data.base_model is None


# --- the paper's models -------------------------------------------------------------------------------------------

MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
PAPER = Path(__file__).parents[3] / "shared" / "papers" / "simcse.txt"


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(MODEL_CARDS / "generate.py"))


def test_the_committed_cards_are_up_to_date(generator):
    generated = generator["generate"]()
    assert len(generated) == 9
    assert generated == {path.name: path.read_text(encoding="utf-8") for path in MODEL_CARDS.glob("*.md")}


def test_every_figure_of_the_committed_cards_is_marked_as_the_papers(generator):
    for name, card in generator["generate"]().items():
        if name != "README.md":
            sections = card[card.index("## Results") : card.index("## Limits")].split("### ")[1:]
            assert len(sections) == (0 if "bert-large" in name and "roberta" not in name else 2)
            assert all(
                "**Figures from the paper**, not measured with this package (Table" in text for text in sections
            )
            assert "model-index" not in card


def test_the_scores_of_the_committed_cards_are_in_the_paper():
    if not PAPER.exists():
        pytest.skip(f"the paper's text is not at {PAPER}")
    text, paper = PAPER.read_text(encoding="utf-8"), json.loads((MODEL_CARDS / "paper.json").read_text())
    sizes = {"bert-base-uncased": "BERTbase", "roberta-base": "RoBERTabase", "roberta-large": "RoBERTalarge"}
    for kind in ("sts", "transfer"):
        for name, row in paper[kind]["figures"].items():
            encoder = name.partition("simcse-")[2]
            line = next(line for line in text.splitlines() if line.endswith(" ".join(f"{x:.2f}" for x in row)))
            assert line.startswith(f"* SimCSE-{sizes[encoder]}")
            assert sum(row[:7]) / 7 == pytest.approx(row[7], abs=0.0051)


# --- the file -----------------------------------------------------------------------------------------------------


def test_a_card_written_by_hand_is_never_replaced(directory, trainer, tmp_path):
    (directory / CARD).write_text("---\nlicense: mit\n---\nMy own words.")
    with pytest.raises(ValueError, match="was not written by `simcse-hf card`"):
        write_card(directory)
    assert (directory / CARD).read_text().endswith("My own words.")
    trainer.save_model()
    (tmp_path / "run" / CARD).write_text("My own words.")
    trainer.create_model_card()
    assert (tmp_path / "run" / CARD).read_text() == "My own words."


def test_rewriting_a_card_keeps_language_license_and_datasets(directory):
    write_card(directory, language=["en", "de"], license="mit", datasets=["org/texts"])
    data = ModelCard.load(write_card(directory)).data
    assert (data.language, data.license, data.datasets) == (["en", "de"], "mit", ["org/texts"])


def test_a_directory_without_a_model_is_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="does not contain a model"):
        write_card(tmp_path)
    tiny_config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the pooler is unknown"):
        write_card(tmp_path)


def test_the_card_command_writes_the_card(directory, tmp_path, capsys):
    file = written(tmp_path / "x.json", evaluation(directory))
    arguments = ["--results", str(file), "--repo_id", "org/my-model", "--language", "en", "--license", "mit"]
    assert card_main([str(directory), *arguments]) == 0
    assert capsys.readouterr().out.strip() == str(directory / CARD)
    card = (directory / CARD).read_text()
    assert "50.12" in card and 'SimCSE("org/my-model")' in card and MARKER in card
    assert not re.search(r"\{\{|\}\}|\{%|None \|", card.replace("{{SimCSE}", "").replace("}}", "")), (
        "no template syntax is left"
    )


def test_the_transformers_example_adds_the_default_prompt(save_checkpoint):
    prompts = {"query": "the big ", "passage": "a small "}
    model = AutoModelForCL.from_config(
        tiny_config(initializer_range=0.3), pooler_type="avg", prompts=prompts, default_prompt_name="query"
    )
    directory = save_checkpoint(model)
    card = write_card(directory, repo_id=str(directory)).read_text()
    assert 'texts = ["the big " + text for text in texts]' in card
    names = {}
    exec(blocks(card)[-1], names)
    ours = SimCSE(directory).encode(EXAMPLES)
    torch.testing.assert_close(F.normalize(names["embeddings"], dim=-1), ours, rtol=0, atol=1e-5)


def test_tasks_from_files_have_a_table_and_entries_in_the_front_matter(directory):
    document = evaluation(directory)
    document["results"]["classification"] = {
        "kind": "classification", "name": "tickets", "metrics": ["accuracy", "knn_accuracy"], "accuracy": 81.234,
        "knn_accuracy": 79.5, "source": "/home/me/tickets.csv", "protocol": "5-fold", "examples": 300,
    }  # fmt: skip
    document["results"]["retrieval"] = {
        "kind": "retrieval", "name": "faq", "metrics": ["ndcg@10"], "ndcg@10": 40.0, "source": "/home/me/faq",
        "protocol": "exact search", "examples": 20,
    }  # fmt: skip
    card = write_card(directory, [written(directory / "results_1.json", document)]).read_text()
    assert "### Tasks from files" in card and "| classification (tickets) | accuracy | 81.23 | 300 |" in card
    assert "| classification (tickets) | knn_accuracy | 79.50 | 300 |" in card
    assert "retrieval (faq) | ndcg@10 | 40.00 | 20" in card and "/home/me" not in card
    entries = {result.dataset_name: result for result in ModelCard(card).data.eval_results}
    assert entries["tickets"].task_type == "text-classification" and entries["tickets"].metric_value == 81.23
    assert entries["faq"].task_type == "information-retrieval" and entries["faq"].metric_type == "ndcg@10"
    # They are not part of the average of the STS tasks.
    assert "Avg. of 6" in card


def test_metadata_can_put_neither_html_nor_lines_into_the_card(directory):
    """A file name, an argument or a result may come from someone else."""
    harmful = "x\n\n# Hacked\n<script>alert(1)</script>"
    run = {"steps": 1, "train_loss": 1.0, "rows": "sentences", "train_rows": 5, "hardware": harmful, "seed": harmful}
    run |= {"base_model": "org/base", "arguments": {"warmup": harmful}, "epochs": 1.0, "processes": 1}
    document = evaluation(directory)
    document["results"]["mteb"] = {harmful: 1.0, "a|b": 2.0}
    document["protocol"]["classifier"]["model"] = harmful
    (directory / "evaluation.json").write_text(json.dumps(document))
    body = write_card(directory, run=run).read_text().split("---", 2)[2]
    assert "<script" not in body and "\n# Hacked" not in body
    assert "x # Hacked &lt;script>alert(1)&lt;/script>" in body and "| a\\|b | 2.00 |" in body


def test_a_card_cuts_texts_where_the_model_does(directory):
    model = SimCSE(directory, device="cpu", max_length=8)
    model.save_pretrained(directory)
    card = write_card(directory).read_text()
    assert "| longest text | 8 tokens |" in card and "max_length=8," in card and "| `max_length`" not in card


def test_an_export_gets_no_card_because_it_has_no_weights(directory):
    (directory / "model.safetensors").unlink()
    (directory / "model.onnx").touch()
    with pytest.raises(ValueError, match="holds an export .model.onnx., and a card is for a model with weights"):
        write_card(directory)
