"""A run is decided once: each objective has the loss that it has alone, and a default gives way to what is given."""

import copy
import dataclasses
import pickle

import pytest
import torch
from conftest import tiny_config
from safetensors.torch import load_file
from trainer_helpers import make
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.objectives import OBJECTIVES, Objective, register
from simcse_hf.training.decide import Start, decide_run
from simcse_hf.training.recipe import Recipe

COSINE = {"similarity": "cosine", "temperature": 0.05}
DOT = {"similarity": "dot", "temperature": 1.0}


def arguments(tmp_path, **values):
    return SimCSETrainingArguments(
        str(tmp_path / "run"), use_cpu=True, report_to="none", **values
    )


def decide(args, model, names=()):
    """The run of a loaded model with these arguments."""
    return decide_run(args, Start.of_model(model), names)


def losses(model, tables, tmp_path):
    """The similarity and the temperature of each data set's objective in a run."""
    run = decide(arguments(tmp_path, datasets=tables), model, list(tables))
    model.use_settings(dataclasses.replace(model.settings, **run.settings))
    model.objective = None
    objective = model.prepare_objective()
    found = {}
    for number, name in enumerate(tables):
        used = objective.of_dataset(number)
        used = getattr(used, "info_nce", used)
        found[name] = {key: getattr(used, key) for key in COSINE}
        assert found[name].items() <= run.datasets[name].options.items()
    return found


SIMCSE, SUPCON = {"objective": "simcse"}, {"objective": "supcon"}


@pytest.mark.parametrize(
    "tables",
    [
        {"pairs": SIMCSE, "nli": SUPCON},
        {"nli": SUPCON, "pairs": SIMCSE},
        {"nli": SUPCON, "pairs": {}},
        {"pairs": {}, "more": SIMCSE, "nli": SUPCON},
    ],
    ids=str,
)
def test_each_data_set_has_the_loss_that_it_has_alone(tables, tmp_path):
    found = losses(BertForCL(tiny_config()), tables, tmp_path)
    assert found == {
        name: DOT if own == SUPCON else COSINE for name, own in tables.items()
    }


def test_an_option_of_a_data_set_brings_the_temperature_of_its_similarity(tmp_path):
    tables = {
        "one": {**SIMCSE, "objective_options": {"similarity": "dot"}},
        "two": SIMCSE,
    }
    assert losses(BertForCL(tiny_config()), tables, tmp_path) == {
        "one": DOT,
        "two": COSINE,
    }
    tables = {
        "one": {**SUPCON, "objective_options": {"similarity": "cosine"}},
        "two": SUPCON,
    }
    assert losses(BertForCL(tiny_config(), temperature=0.3), tables, tmp_path) == {
        "one": {"similarity": "cosine", "temperature": 0.3},
        "two": {"similarity": "dot", "temperature": 0.3},
    }


def test_a_model_trained_with_the_dot_product_is_saved_as_such(tmp_path):
    model = BertForCL(tiny_config(), objective="supcon")
    assert decide(arguments(tmp_path), model).settings["similarity_fn_name"] == "dot"
    given = BertForCL(tiny_config(), objective="supcon", similarity_fn_name="cosine")
    assert "similarity_fn_name" not in decide(arguments(tmp_path), given).settings


class OfDot(Objective):
    """An objective of a user, which compares by the dot product without an option for it."""

    similarity = "dot"


@pytest.fixture
def of_dot():
    register("of_dot", OfDot)
    yield "of_dot"
    del OBJECTIVES["of_dot"]


@pytest.mark.parametrize(
    "objective, similarity",
    [
        *[
            (name, "cosine")
            for name in (
                "cosent",
                "angle",
                "distill",
                "barlow_twins",
                "vicreg",
                "tsdae",
                "declutr",
            )
        ],
        ("class_labels", "cosine"),
        ("supcon", "dot"),
        ("softmax+supcon", "dot"),  # a classifier compares nothing
        ("barlow_twins+simcse", "cosine"),
        ("of_dot", "dot"),
    ],
)
def test_a_checkpoint_of_the_dot_product_is_compared_as_the_objective_does_that_trains_it_on(
    objective, similarity, tmp_path, of_dot
):
    before = BertForCL(tiny_config(), objective="supcon", similarity_fn_name="dot")
    before.save_pretrained(tmp_path / "start")
    model = AutoModelForCL.from_pretrained(
        tmp_path / "start", objective=objective, pooler_type="avg"
    )
    assert (
        decide(arguments(tmp_path), model).settings["similarity_fn_name"] == similarity
    )


def test_a_mixture_is_compared_as_its_first_objective_does(tmp_path):
    model = BertForCL(tiny_config(), pooler_type="avg")
    for names, similarity in (
        (("cosent", "supcon"), "cosine"),
        (("supcon", "cosent"), "dot"),
    ):
        tables = {name: {"objective": name} for name in names}
        run = decide(arguments(tmp_path, datasets=tables), model, list(tables))
        assert run.settings["similarity_fn_name"] == similarity


def test_projectors_go_with_the_names_of_their_data_sets(tmp_path, tokenizer):
    rows = [
        {"sent0": f"a {word}", "sent1": f"the {word}"}
        for word in ("cat", "dog", "bird", "fish")
    ] * 2
    own = {"objective": "vicreg", "objective_options": {"projector_dim": 8}}

    def trainer(model, names):
        return make(
            tmp_path,
            tokenizer,
            dict.fromkeys(names, rows),
            model,
            datasets=dict.fromkeys(names, own),
        )

    first = trainer(BertForCL(tiny_config(vocab_size=len(tokenizer))), ["c", "b", "a"])
    first.model.save_pretrained(tmp_path / "saved")
    again = trainer(AutoModelForCL.from_pretrained(tmp_path / "saved"), ["a", "c", "b"])
    names = {"c": 0, "b": 1, "a": 2}
    for number, name in enumerate(["a", "c", "b"]):
        before = first.model.objective.of_dataset(names[name]).state_dict()
        after = again.model.objective.of_dataset(number).state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(
        name.startswith("objective.own.")
        for name in load_file(tmp_path / "saved" / "_objective.safetensors")
    )


def test_a_trainer_never_changes_the_arguments_of_its_caller(tmp_path, tokenizer):
    args = arguments(
        tmp_path,
        load_best_model_at_end=True,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
    )
    before = dict(vars(args))
    model = BertForCL(tiny_config(vocab_size=len(tokenizer)))
    trainer = SimCSETrainer(
        model,
        args,
        train_dataset=["a cat", "a dog"],
        eval_dataset=["a cat", "a dog"],
        processing_class=tokenizer,
    )
    assert vars(args) == before and trainer.args is not args
    open_fields = (
        "max_seq_length",
        "view",
        "metric_for_best_model",
        "dataloader_num_workers",
    )
    assert all(getattr(args, name) is None for name in open_fields)
    assert all(getattr(trainer.args, name) is not None for name in open_fields)
    for twin in (
        copy.copy(args),
        copy.deepcopy(args),
        pickle.loads(pickle.dumps(args)),
        dataclasses.replace(args),
    ):
        assert all(getattr(twin, name) == getattr(args, name) for name in open_fields)
    assert trainer.run.decided_by["max_seq_length"] == "default"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--eval_strategy no --save_strategy steps", {"load_best_model_at_end": False}),
        (
            "--eval_strategy epoch",
            {"load_best_model_at_end": True, "save_strategy": "epoch"},
        ),
        ("--save_steps 50", {"load_best_model_at_end": True, "eval_steps": 50}),
        ("--eval_steps 30", {"load_best_model_at_end": True, "save_steps": 30}),
        ("--eval_steps 30 --save_steps 50", {"load_best_model_at_end": False}),
    ],
)
def test_a_default_of_the_command_gives_way_to_what_is_given(
    words, expected, tmp_path, save_checkpoint
):
    start = save_checkpoint(BertForMaskedLM(tiny_config()))
    line = f"--model {start} --train_file x.txt --dev_file dev.csv --use_cpu --output_dir {tmp_path} {words}"
    args = Recipe.read("unsup", line.split()).decide().training
    assert {name: getattr(args, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "saves"), [(["--eval_steps", "30"], 30), (["--save_steps", "360"], 360)]
)
def test_other_evaluation_steps_than_those_of_a_recipe_need_no_saving_steps(
    words, saves, save_checkpoint
):
    start = str(save_checkpoint(BertForMaskedLM(tiny_config())))
    files = [
        "--model",
        start,
        "--train_file",
        "x.txt",
        "--dev_file",
        "dev.csv",
        "--use_cpu",
        "--bf16",
        "false",
    ]
    args = (
        Recipe.read("sup", ["cosent-bert-base-uncased", *files, *words])
        .decide()
        .training
    )
    assert (args.save_steps, args.load_best_model_at_end) == (saves, True)


def test_a_run_knows_who_decided_each_setting(tmp_path, save_checkpoint):
    start = save_checkpoint(
        BertForCL(tiny_config(), pooler_type="avg", temperature=0.2)
    )
    model = AutoModelForCL.from_pretrained(start, hard_negative_weight=0.5)
    decided = decide(arguments(tmp_path, view="crop"), model).decided_by
    assert (
        decided["pooler_type"]
        == decided["temperature"]
        == decided["max_seq_length"]
        == "checkpoint"
    )
    assert (
        decided["hard_negative_weight"] == decided["view"] == "given"
        and decided["symmetric"] == "checkpoint"
    )
    fresh = AutoModelForCL.from_config(tiny_config(), objective="cosent")
    decided = decide(arguments(tmp_path), fresh).decided_by
    assert (decided["objective"], decided["pooler_type"], decided["mlm_weight"]) == (
        "given",
        "paper",
        "default",
    )
