"""A run is decided once, in a copy of the arguments, and a default gives way to what is given."""

import pytest
from conftest import tiny_config
from safetensors.torch import load_file
from trainer_helpers import arguments, assert_same_weights, model_of
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSETrainer
from simcse_hf.objectives import OBJECTIVES, Objective
from simcse_hf.training.decide import decide_run
from simcse_hf.training.recipe import Recipe


def test_the_rate_of_a_run_is_not_for_the_view_of_another_objective(tmp_path):
    model = model_of(objective="tsdae")
    args = arguments(tmp_path, view_rate=0.3, datasets={"own": {"objective": "esimcse"}, "runs": {}})
    plans = decide_run(args, model, None, ["own", "runs"]).datasets
    assert (plans["own"].view, plans["own"].view_rate) == ("repeat_words", None)
    assert (plans["runs"].view, plans["runs"].view_rate) == ("delete_words", 0.3)


def test_a_similarity_that_is_given_is_not_decided(tmp_path):
    model = model_of(objective="supcon", similarity_fn_name="cosine")
    assert "similarity_fn_name" not in decide_run(arguments(tmp_path), model, None).settings


class OfDot(Objective):
    """An objective of a user, which compares by the dot product without an option for it."""

    similarity = "dot"


def test_a_checkpoint_of_the_dot_product_is_compared_as_the_objective_does_that_trains_it_on(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "of_dot", OfDot)
    before = model_of(objective="supcon", similarity_fn_name="dot")
    before.save_pretrained(tmp_path / "start")
    for objective, similarity in {"cosent": "cosine", "barlow_twins": "cosine", "of_dot": "dot"}.items():
        model = AutoModelForCL.from_pretrained(tmp_path / "start", objective=objective, pooler_type="avg")
        assert decide_run(arguments(tmp_path), model, None).settings["similarity_fn_name"] == similarity


# --- projectors of data sets ---

ROWS = [{"sent0": f"a {word}", "sent1": f"the {word}"} for word in ("cat", "dog", "bird", "fish")]
PROJECTED = {"objective": "vicreg", "objective_options": {"projector_dim": 8}}


def test_projectors_are_saved_and_go_with_the_names_of_their_data_sets(make, tmp_path):
    def trainer(model, names):
        data = dict.fromkeys(names, ROWS * 2)
        return make(data, model, datasets=dict.fromkeys(names, PROJECTED))

    first = trainer(model_of(), ["c", "b", "a"])
    first.model.save_pretrained(tmp_path / "saved")
    for name in load_file(tmp_path / "saved/_objective.safetensors"):
        assert name.startswith("objective.own.")
    again = trainer(AutoModelForCL.from_pretrained(tmp_path / "saved"), ["a", "c", "b"])
    for before, after in ((0, 1), (1, 2), (2, 0)):
        expected = first.model.objective.of_dataset(before).state_dict()
        found = again.model.objective.of_dataset(after).state_dict()
        assert_same_weights(found, expected)


# --- the arguments of the caller ---


def test_a_trainer_decides_what_its_caller_leaves_open_in_a_copy_of_the_arguments(tmp_path, tokenizer):
    steps = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5}
    args = arguments(tmp_path, load_best_model_at_end=True, **steps)
    given = dict(vars(args))
    rows = ["a cat", "a dog"]
    trainer = SimCSETrainer(model_of(), args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    assert trainer.args is not args and vars(args) == given
    for name in ("max_seq_length", "view", "metric_for_best_model", "dataloader_num_workers"):
        assert getattr(args, name) is None
        assert getattr(trainer.args, name) is not None


# --- defaults of a command, and of a recipe ---


@pytest.mark.parametrize(
    "words, saves, best",
    [
        ("--eval_strategy no --save_strategy steps", ("steps", 125), False),
        ("--eval_strategy epoch", ("epoch", 125), True),
        ("--eval_steps 30", ("steps", 30), True),
        ("--save_steps 50", ("steps", 50), True),
        ("--eval_steps 30 --save_steps 50", ("steps", 50), False),
        ("--eval_steps 0.1 --save_steps 0.3", ("steps", 0.3), True),
        ("--eval_steps 0.1 --save_steps 0.25", ("steps", 0.25), False),
        ("cosent-bert-base-uncased --bf16 false --eval_steps 30", ("steps", 30), True),
        ("cosent-bert-base-uncased --bf16 false --save_steps 360", ("steps", 360), True),
    ],
)
def test_a_default_of_the_command_or_of_a_recipe_gives_way_to_what_is_given(
    words, saves, best, tmp_path, save_checkpoint, caplog
):
    start = save_checkpoint(BertForMaskedLM(tiny_config()))
    line = f"{words} --model {start} --train_file x.txt --dev_file dev.csv --use_cpu --output_dir {tmp_path}"
    args = Recipe.read("unsup", line.split()).decide().training
    assert ((args.save_strategy, args.save_steps), args.load_best_model_at_end) == (saves, best)
    if "cosent" not in words:  # whose recipe has evaluation steps of its own
        steps = words.partition("--eval_steps ")[2].split()[:1] or [saves[1]]
        assert args.eval_steps == float(steps[0])
    assert ("The last model is saved in place of the best" in caplog.text) != best
