"""An adaptation from beginning to end: what it writes, how it continues, and that it ships only what helps."""

import json
import random
import shutil
from dataclasses import replace

import pytest
from conftest import WORDS, tiny_config
from evaluation_helpers import write
from transformers import BertForMaskedLM

from simcse_hf import SimCSE
from simcse_hf.cli.main import main
from simcse_hf.models.auto import contrastive_class
from simcse_hf.training.adaptation import adaptation as adapt_module
from simcse_hf.training.adaptation import candidate_search as search_module
from simcse_hf.training.adaptation import verdict as verdict_module
from simcse_hf.training.adaptation.adaptation import AdaptationSettings, adapt
from simcse_hf.training.adaptation.plan import Costs, Division, Stage
from simcse_hf.training.adaptation.trial import START

NOUNS = ("cat", "dog", "bird", "man", "woman", "house", "tree", "mat")
FILLERS = [word for word in WORDS.split() if word.isalpha() and word not in NOUNS]


def sentence(noun, rng):
    return " ".join(["the", noun, *rng.sample(FILLERS, 6)])


@pytest.fixture
def start(save_checkpoint):
    """A folder with a tiny contrastive model with random weights."""
    config = tiny_config()
    model = contrastive_class(type(config))(config, pooler_type="avg")
    return save_checkpoint(model, "start")


@pytest.fixture
def settings(tmp_path, start):
    """Settings of an adaptation of the tiny model to 120 sentences, judged on pairs with a common noun."""
    rng = random.Random(0)
    corpus = write(tmp_path / "corpus.txt", [sentence(rng.choice(NOUNS), rng) for _ in range(120)])
    rows = []
    for i in range(120):
        first, second = rng.choice(NOUNS), rng.choice(NOUNS)
        second = first if i % 2 else second
        rows.append(f"{sentence(first, rng)},{sentence(second, rng)},{int(first == second)}")
    pairs = write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *rows])
    return AdaptationSettings(
        corpus=str(corpus),
        model=str(start),
        output=str(tmp_path / "out"),
        budget=30.0,
        seeds=2,
        tasks=(("pairs", str(pairs)),),
    )


@pytest.fixture
def fixed_plan(monkeypatch):
    """Two candidates in short runs, one in a long run and two seeds, whatever the machine's speed."""
    plan = [(Stage("simcse", 1e-3),), (Stage("mlm", 1e-3), Stage("simcse", 1e-3))]
    measured = Costs({"simcse": 1.0, "mlm": 1.0}, 0.0, 0.0, 0.0)
    monkeypatch.setattr(search_module.Search, "_measure_costs", lambda self, seeds: (measured, plan))
    monkeypatch.setattr(search_module.Search, "_long_seconds", lambda self, runs, costs: 6.0)
    monkeypatch.setattr(search_module, "divide", lambda *arguments: Division(2, 1, 4.0, 2))
    monkeypatch.setattr("simcse_hf.training.adaptation.plan.MIN_STEPS", 1)
    monkeypatch.setattr(search_module, "POOLERS", ("cls_before_pooler",))


@pytest.fixture
def untrained(monkeypatch):
    """A search without training runs, as with a small budget."""
    monkeypatch.setattr(search_module, "divide", lambda *arguments: None)
    monkeypatch.setattr(search_module.Search, "_measure_costs", lambda self, seeds: (None, [(Stage("simcse", 1e-3),)]))
    monkeypatch.setattr(search_module, "POOLERS", ("cls_before_pooler",))


def judged(monkeypatch, low):
    """Make the held-out interval of every task begin at `low`."""
    monkeypatch.setattr(verdict_module, "paired_interval", lambda *args, **options: (low + 1, low, low + 2))


def choose_training(monkeypatch):
    """Let every trained model look better on dev than those that are not trained."""
    measured = search_module.Search._measured

    def better(self, trial, pooler, make):
        result = measured(self, trial, pooler, make)
        if trial.stages:
            raised = {"dev": {name: value + 200 for name, value in result.dev.items()}}
            raised["variants"] = {name: value + 200 for name, value in result.variants.items()}
            result = replace(result, **raised)
        return result

    monkeypatch.setattr(search_module.Search, "_measured", better)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def figures(result):
    """What must not depend on interruptions: everything but times."""
    plan = [{k: v for k, v in trial.items() if k != "seconds"} for trial in result["plan"]]
    return plan, result["chosen"], result["tasks"], result["interval"]


def test_a_gain_gives_the_adapted_model_with_its_card_and_a_picture(settings, fixed_plan, monkeypatch, tmp_path):
    judged(monkeypatch, 0.5)
    choose_training(monkeypatch)
    result = adapt(settings)
    assert result == json.loads((tmp_path / "out" / "adaptation.json").read_text())
    assert (result["verdict"], result["task"], result["metric"]) == ("gain", "pairs", "average_precision")
    assert result["interval"] == [0.5, 2.5] and result["after"] == pytest.approx(result["before"] + 1.5, abs=1e-3)
    assert result["seeds"] == [42, 43] and not result["weak_evidence"]
    rounds = [trial["round"] for trial in result["plan"]]
    assert rounds == ["start", "untrained", "untrained", "short", "short", "long", "seed"]
    assert result["plan"][3]["steps"] == [4] and result["plan"][4]["steps"] == [2, 2]
    assert result["chosen"]["seed"] in (42, 43) and result["chosen"]["stages"]

    model = SimCSE(tmp_path / "out" / "model", device="cpu")
    variant = result["chosen"]["variant"]
    assert model.pooler_type == variant.partition(",")[0]
    assert (model.postprocessing is not None) == variant.endswith("whitening")
    card = (tmp_path / "out" / "model" / "README.md").read_text()
    assert "### Adaptation" in card and "+1.50 [+0.50, +2.50]" in card and "Weak evidence" not in card
    assert "adapted `start` to 120 unlabelled texts of `corpus.txt`" in card
    assert str(tmp_path) not in card + (tmp_path / "out" / "model" / "adaptation.json").read_text()
    assert (tmp_path / "out" / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "out" / "search").iterdir()) == ["record.json"]


def test_without_a_gain_the_start_model_is_kept_bit_for_bit(settings, fixed_plan, monkeypatch, start, tmp_path):
    judged(monkeypatch, -0.5)
    choose_training(monkeypatch)
    result = adapt(settings)
    assert result["verdict"] == "no gain" and result["interval"] == [-0.5, 1.5]
    assert result["chosen"]["stages"] and not result["chosen"]["is_start"]
    assert files_of(tmp_path / "out" / "model") == files_of(start)


def test_if_nothing_beats_the_start_model_on_dev_nothing_is_judged(settings, fixed_plan, monkeypatch, start, tmp_path):
    def worse(self, trial, pooler, make):
        make()
        return replace(trial, variant=pooler, dev={"pairs": -1.0}, variants={pooler: -1.0})

    monkeypatch.setattr(search_module.Search, "_measured", worse)
    result = adapt(settings)
    assert result["verdict"] == "no gain" and result["chosen"]["is_start"] and result["seeds"] == []
    assert result["before"] == result["after"] and result["interval"] == [0.0, 0.0]
    assert files_of(tmp_path / "out" / "model") == files_of(start)


@pytest.mark.slow
def test_an_adaptation_killed_in_every_run_ends_with_the_figures_and_the_model_of_one_that_was_not(
    settings, fixed_plan, monkeypatch, tmp_path
):
    judged(monkeypatch, 0.5)
    choose_training(monkeypatch)
    whole = adapt(settings)
    model = files_of(tmp_path / "out" / "model")
    shutil.rmtree(tmp_path / "out")

    attempts, finished = [], []
    train = search_module.train_candidate

    def killed_once(start, candidate, steps, seed, output, options):
        attempts.append(output.name)
        if attempts.count(output.name) == 1:
            output.mkdir(parents=True)
            (output / "model.safetensors").write_bytes(b"incomplete")
            raise KeyboardInterrupt
        finished.append(output.name)
        return train(start, candidate, steps, seed, output, options)

    monkeypatch.setattr(search_module, "train_candidate", killed_once)
    spent = [0.0]
    for _ in range(4):  # two short runs, a long one and a seed
        with pytest.raises(KeyboardInterrupt):
            adapt(settings)
        spent.append(json.loads((tmp_path / "out" / "search" / "record.json").read_text())["seconds"])
    continued = adapt(settings)
    assert len(finished) == len(set(finished)) == 4
    assert figures(continued) == figures(whole)
    assert spent == sorted(spent) and continued["seconds"] > spent[-1]
    files = files_of(tmp_path / "out" / "model")
    different = {name.name for name, content in files.items() if content != model[name]}
    assert files.keys() == model.keys() and different <= {"adaptation.json"}  # which holds times


def test_a_finished_adaptation_is_not_repeated(settings, untrained, monkeypatch):
    result = adapt(settings)
    monkeypatch.setattr(adapt_module, "StartModel", None)  # nothing is loaded
    assert adapt(settings) == result


def test_the_search_never_sees_the_held_out_part(settings, fixed_plan, monkeypatch):
    seen, judged_texts = set(), set()
    scores = search_module.TaskScores

    def spy(into):
        return lambda model, tasks: into.update(*(task.texts for task in tasks)) or scores(model, tasks)

    monkeypatch.setattr(search_module, "TaskScores", spy(seen))
    monkeypatch.setattr(adapt_module, "TaskScores", spy(judged_texts))
    adapt(settings)
    assert seen and judged_texts and not seen & judged_texts


def test_a_run_that_fails_does_not_end_the_search(settings, fixed_plan, monkeypatch):
    train = search_module.train_candidate

    def diverges(start, candidate, *arguments):
        if len(candidate) == 1:
            raise FloatingPointError("loss is nan at or before step 3")
        return train(start, candidate, *arguments)

    monkeypatch.setattr(search_module, "train_candidate", diverges)
    plan = adapt(settings)["plan"]
    assert "loss is nan" in plan[3]["failure"] and plan[3]["dev"] == {}
    assert plan[4]["failure"] == "" and plan[5]["stages"] == plan[4]["stages"]


def test_a_budget_too_small_for_training_gives_a_verdict_on_poolers_and_says_so(settings, untrained):
    result = adapt(settings)
    assert {trial["round"] for trial in result["plan"]} == {START, "untrained"}
    assert any("too small for a training run" in note for note in result["notes"])


def test_training_stops_when_the_budget_is_spent(settings, monkeypatch):
    monkeypatch.setattr(search_module.Record, "seconds_left", -1.0)
    result = adapt(settings)
    assert all(not trial["stages"] for trial in result["plan"])
    assert any("the budget was spent" in note or "budget is small" in note for note in result["notes"])


def test_an_encoder_without_a_pooler_starts_from_the_mean_of_all_tokens(settings, untrained, save_checkpoint):
    raw = save_checkpoint(BertForMaskedLM(tiny_config()), "raw")
    result = adapt(AdaptationSettings(**{**vars(settings), "model": str(raw)}))
    assert result["start_pooler"] == "avg"


def test_a_task_that_is_too_small_to_split_is_refused(settings, tmp_path):
    pairs = write(tmp_path / "few.csv", ["sentence1,sentence2,label", "a cat,a dog,1", "a cat,a bird,0"])
    with pytest.raises(ValueError, match=r"few.csv.*cannot be split into a dev part and a held-out part"):
        adapt(AdaptationSettings(**{**vars(settings), "tasks": (("pairs", str(pairs)),)}))


def test_several_processes_are_refused(settings, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="adapt runs in one process"):
        adapt(settings)


def test_a_missing_model_is_named(settings):
    with pytest.raises(ValueError, match="--model nowhere/at-all: no model could be loaded"):
        adapt(AdaptationSettings(**{**vars(settings), "model": "nowhere/at-all"}))


def test_the_command_refuses_other_arguments_and_starts_again_on_request(settings, untrained, capsys):
    words = ["adapt", settings.corpus, "--model", settings.model, "--output", settings.output, "--json", "--quiet"]
    words += ["--seeds", "2", "--task", "=".join(settings.tasks[0])]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["plan"] and result["arguments"]["budget"] == 20.0
    assert main([*words, "--max_texts", "100"]) == 2
    assert "--max_texts 100000, not 100" in capsys.readouterr().err
    assert main([*words, "--max_texts", "100", "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["corpus"]["texts"] == 100
