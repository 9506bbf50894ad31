"""The layer that `decided_by` names is the one that decided, by a slow rule of its own in many random runs.

What a command line says counts before its recipe, a table of a data set for that data set before both, and then the
checkpoint, the paper of the objective, the command and the package.
"""

import json
import random

import pytest
from conftest import tiny_config
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, SimCSETrainingArguments
from simcse_hf.objectives import OBJECTIVES, part_weights
from simcse_hf.training.decide import Start, decide_run, with_values
from simcse_hf.training.recipe import OF_FILES, Recipe

#: What a source may say of each option, where the objective has it.
CHOICES = {
    "temperature": [0.1, 0.2, 0.3],
    "similarity": ["cosine", "dot"],
    "hard_negative_weight": [0.5, 0.7],
    "mask_duplicates": [True],
    "cosine_weight": [0.5],
    "layers": [1],
}
LOSSES = [
    "simcse",
    "supcon",
    "class_labels",
    "cosent",
    "cosent+angle:0.5",
    "softmax:0.7+supcon:0.3",
]
USUAL_TEMPERATURE = {"cosine": 0.05, "dot": 1.0}


# --- the slow rule ---


def says(table, part, option):
    """Whether a table has an option of a part, under one of its two names, and its value."""
    for name in (f"{part}.{option}", option):
        if name in table:
            return True, table[name]
    return False, None


def first(sources, part, option):
    """The place, the layer and the value of the first source that has an option."""
    for place, (layer, table) in enumerate(sources):
        has, value = says(table, part, option)
        if has:
            return place, layer, value
    return None


def decide_loss(loss, sources):
    """The value and the layer of each option of a loss, from sources such as ("given", {"temperature": 0.1})."""
    found = {}
    parts = list(part_weights(loss))
    for part in parts:
        own = [*sources, ("default", dict(OBJECTIVES[part].options))]
        for option in OBJECTIVES[part].options:
            _, layer, value = first(own, part, option)
            found[part, option] = (value, layer)
        if (part, "similarity") in found and (part, "temperature") in found:
            used, _ = found[part, "similarity"]
            # The temperature of a source is for the similarity that this source and those below it name.
            place, layer, value = first(own, part, "temperature")
            _, _, named = first(own[place:], part, "similarity")
            if value is None or (layer != "given" and named != used):
                found[part, "temperature"] = (USUAL_TEMPERATURE[used], "default")
    return {
        f"{part}.{option}" if len(parts) > 1 else option: decided
        for (part, option), decided in found.items()
    }


def compares(loss, options, layer):
    """What the first comparing part of a loss compares by, and who decided it: an option, or who chose the loss."""
    for part in part_weights(loss):
        for name in ("similarity", f"{part}.similarity"):
            if name in options:
                return options[name]
        if OBJECTIVES[part].similarity:
            return OBJECTIVES[part].similarity, layer
    return None


def expected(case):
    """The value and the layer of everything that a case is about."""
    saved, tables = case["saved"], case["tables"]
    given = {**case["recipe"], **case["words"]}
    names = {
        "temp": "temperature",
        "similarity": "similarity",
        "hard_negative_weight": "hard_negative_weight",
    }
    shared = {names[name]: value for name, value in given.items() if name in names}
    table = given.get("objective_options", {})

    # 1. The objective of the model, and its options.
    objective = given.get("objective", saved.get("objective", "simcse"))
    found = {"objective": (objective, "default")}
    if "objective" in saved:
        found["objective"] = (objective, "checkpoint")
    if "objective" in given:
        found["objective"] = (objective, "given")
    kept = saved if saved.get("objective") == objective else {}
    model = decide_loss(
        objective,
        [("given", shared | table), ("checkpoint", kept.get("objective_options", {}))],
    )

    # 2. Those of data sets: what a table says, what the caller says for every loss, and then what the model has.
    own = {}
    for name, said in tables.items():
        if "objective" not in said:
            continue
        readable = {
            option
            for part in part_weights(said["objective"])
            for option in OBJECTIVES[part].options
        }
        usual = {
            option: value for option, value in shared.items() if option in readable
        }
        sources = [("given", {**usual, **said.get("objective_options", {})})]
        by_layer = {}
        if said["objective"] == objective:
            for option, (value, layer) in model.items():
                by_layer[option] = (value, layer)
        own[name] = decide_loss_with_model(said["objective"], sources, by_layer)
    options = model
    if tables and len(own) == len(tables):
        first = next(iter(own))
        options = own[first]
        found["objective"] = (tables[first]["objective"], "given")
    found |= options
    for name, decided in own.items():
        found |= {f"{name}: {option}": each for option, each in decided.items()}
        found[f"{name}: objective"] = (tables[name]["objective"], "given")

    # 3. The similarity of inference is that of the first loss whose first comparing part has one.
    losses = [
        ("given", tables[name]["objective"], own[name]) if name in own else None
        for name in tables
    ] or [None]
    found["similarity_fn_name"] = ("cosine", found["objective"][1])
    model_layer = (
        "given"
        if "objective" in given
        else "checkpoint"
        if "objective" in saved
        else "default"
    )
    for loss in losses:
        layer, name, decided = loss or (model_layer, objective, model)
        compared = compares(name, decided, layer)
        if compared is not None:
            found["similarity_fn_name"] = compared
            break

    # 4. The pooler, the head and the length. In Python there is no command, and no paper for the length.
    paper = dict(OBJECTIVES[next(iter(part_weights(objective)))].defaults)
    if "max_seq_length" in paper:
        paper["max_seq_length"] = min(
            paper["max_seq_length"], tiny_config().max_position_embeddings
        )
    command = {"unsup": True, "sup": False}
    is_python = case["way"] == "python"
    if is_python:
        paper.pop("max_seq_length", None)
    for layer, source in (
        (
            "default",
            {"pooler_type": "cls", "max_seq_length": 32, "mlp_only_train": False},
        ),
        (
            "paper",
            {
                name: paper[name]
                for name in ("pooler_type", "max_seq_length")
                if name in paper
            },
        ),
        ("checkpoint", {"pooler_type": saved["pooler_type"]} if saved else {}),
        ("checkpoint", {"max_seq_length": kept["max_seq_length"]} if kept else {}),
        (
            "given",
            {
                name: given[name]
                for name in ("pooler_type", "max_seq_length")
                if name in given
            },
        ),
    ):
        for name, value in source.items():
            found[name] = (value, layer)
    if found["pooler_type"][0] == "cls" and not is_python:
        found["mlp_only_train"] = (command[case["way"]], "command")
    if found["pooler_type"][0] == "cls" and "mlp_only_train" in paper:
        found["mlp_only_train"] = (paper["mlp_only_train"], "paper")
    if found["pooler_type"][0] == "cls" and saved.get("pooler_type") == "cls":
        found["mlp_only_train"] = (saved["mlp_only_train"], "checkpoint")
    return found


def decide_loss_with_model(loss, sources, of_model):
    """Options of a data set whose loss is that of the model: what nobody says for the data set is the model's."""
    values = {option: value for option, (value, _) in of_model.items()}
    decided = decide_loss(loss, [*sources, ("model", values)])
    for option, (value, layer) in decided.items():
        if layer == "model":
            decided[option] = (value, of_model[option][1])
    return decided


# --- the cases ---


def random_options(draw, loss, share):
    """Some options of a loss, those of one part under its name or not."""
    chosen = {}
    for part in part_weights(loss):
        for option, values in CHOICES.items():
            if option in OBJECTIVES[part].options and draw.random() < share:
                chosen[draw.choice([option, f"{part}.{option}"])] = draw.choice(values)
    return chosen


def random_source(draw, loss):
    """What a command line or a recipe says, of a run with a loss."""
    source = {}
    known = {
        option for part in part_weights(loss) for option in OBJECTIVES[part].options
    }
    for name, option in (
        ("temp", "temperature"),
        ("similarity", "similarity"),
        ("hard_negative_weight",) * 2,
    ):
        if option in known and draw.random() < 0.2:
            source[name] = draw.choice(CHOICES[option])
    if draw.random() < 0.2:
        source["pooler_type"] = draw.choice(["avg", "cls", "cls_before_pooler"])
    if draw.random() < 0.2:
        source["max_seq_length"] = draw.choice([12, 16])
    if draw.random() < 0.4:
        source["objective_options"] = random_options(draw, loss, 0.4)
    return source


def random_case(seed, saved):
    draw = random.Random(seed)
    loss = draw.choice([saved.get("objective", "simcse"), *LOSSES])
    case = {
        "saved": saved,
        "recipe": random_source(draw, loss),
        "words": random_source(draw, loss),
        "tables": {},
    }
    case["way"] = draw.choice(["unsup", "sup", "python"])
    if loss != saved.get("objective", "simcse") or draw.random() < 0.3:
        case[draw.choice(["recipe", "words"])]["objective"] = loss
    table = {**case["recipe"], **case["words"]}.get("objective_options", {})
    for source in (case["recipe"], case["words"]):
        for name, option in (
            ("temp", "temperature"),
            ("similarity", "similarity"),
            ("hard_negative_weight",) * 2,
        ):
            if option in table:  # two values of one option are refused
                source.pop(name, None)
    if draw.random() < 0.5:
        for name in ("one", "two"):
            own = {}
            if draw.random() < 0.8:
                own["objective"] = draw.choice(LOSSES)
                own["objective_options"] = random_options(draw, own["objective"], 0.3)
            case["tables"][name] = own
    return case


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of checkpoints, and what each has saved."""
    folder = tmp_path_factory.mktemp("checkpoints")
    BertForMaskedLM(tiny_config()).save_pretrained(folder / "plain")
    found = [(folder / "plain", {})]
    for number, settings in enumerate(
        [
            {},
            {
                "objective": "simcse",
                "pooler_type": "avg",
                "temperature": 0.3,
                "max_seq_length": 20,
            },
            {"objective": "supcon", "pooler_type": "avg_no_cls"},
            {
                "objective": "class_labels",
                "pooler_type": "avg",
                "similarity": "dot",
                "similarity_fn_name": "dot",
            },
            {
                "objective": "cosent+angle:0.5",
                "objective_options": {"cosent.temperature": 0.2},
            },
        ]
    ):
        model = BertForCL(tiny_config(), **settings)
        model.save_pretrained(folder / str(number))
        section = json.loads((folder / str(number) / "config.json").read_text())[
            "simcse"
        ]
        found.append(
            (folder / str(number), {**section["pooling"], **section["training"]})
        )
    return found


def decided(case, folder, tmp_path):
    """The value and the layer of everything that a run has decided."""
    if case["way"] == "python":
        given = {**case["recipe"], **case["words"]}
        given["temperature"] = given.pop("temp", None)
        args = {
            "max_seq_length": given.pop("max_seq_length", None),
            "datasets": case["tables"] or None,
        }
        start = Start.of_model(AutoModelForCL.from_pretrained(folder, **given))
        args = SimCSETrainingArguments(
            str(tmp_path), use_cpu=True, report_to="none", **args
        )
        return with_layers(start, decide_run(args, start, list(case["tables"])))
    tables = {
        name: own | {"train_file": "texts.txt"} for name, own in case["tables"].items()
    }
    command = {
        "model_name_or_path": str(folder),
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "report_to": "none",
    }
    sources = [
        {**case["recipe"], "datasets": tables} if tables else case["recipe"],
        case["words"] | command,
    ]
    recipe = Recipe(
        case["way"],
        {name: value for source in sources for name, value in source.items()},
    ).decide()
    args = recipe.training
    own = {
        name: {k: v for k, v in own.items() if k not in OF_FILES}
        for name, own in args.tables.items()
    }
    start = Start.of_checkpoint(recipe.checkpoint, recipe.model.settings())
    args = with_values(args, datasets=own or None)
    return with_layers(
        start, decide_run(args, start, list(own), decided_by=recipe.decided_by)
    )


def with_layers(start, run):
    """The value and the layer of each setting and option of a run."""
    values = {**vars(start.settings), **run.settings}
    values |= values["objective_options"]
    for name, loss in values["dataset_objectives"].items():
        values |= {
            f"{name}: {option}": value
            for option, value in loss.get("objective_options", {}).items()
        }
        values[f"{name}: objective"] = loss.get("objective")
    return {
        name: (values[name], layer)
        for name, layer in run.decided_by.items()
        if name in values
    }


@pytest.mark.parametrize("seed", range(100))
def test_the_layer_that_is_named_is_the_one_that_decided(seed, checkpoints, tmp_path):
    folder, saved = checkpoints[seed % len(checkpoints)]
    case = random_case(seed, saved)
    found = decided(case, folder, tmp_path)
    wanted = expected(case)
    assert {name: found.get(name) for name in wanted} == wanted, case
    options = {name for name in found if name in CHOICES or "." in name or ": " in name}
    assert options <= wanted.keys(), case


def layers(model, tmp_path, **values):
    args = SimCSETrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", **values
    )
    return decide_run(args, Start.of_model(model)).decided_by


def test_settings_that_are_updated_are_given_and_the_others_stay_as_they_were(
    checkpoints, tmp_path
):
    model = AutoModelForCL.from_pretrained(checkpoints[2][0], hard_negative_weight=0.5)
    model.update_settings(similarity="dot")
    found = layers(model, tmp_path)
    assert (found["similarity"], found["similarity_fn_name"], found["temperature"]) == (
        "given",
        "given",
        "default",
    )
    assert (found["hard_negative_weight"], found["pooler_type"], found["do_mlm"]) == (
        "given",
        "checkpoint",
        "checkpoint",
    )
    model.update_settings(objective="supcon")
    found = layers(model, tmp_path)
    assert (found["objective"], found["similarity"], found["pooler_type"]) == (
        "given",
        "default",
        "checkpoint",
    )
    assert "hard_negative_weight" not in found


def test_what_the_arguments_of_a_trainer_decide_is_given(checkpoints, tmp_path):
    model = AutoModelForCL.from_pretrained(checkpoints[2][0])
    found = layers(
        model,
        tmp_path,
        view="fixed_mask",
        prompts={"anchor": "the ", "positive": "the "},
    )
    assert {
        found[name] for name in ("fixed_mask", "view", "prompts", "default_prompt_name")
    } == {"given"}
    found = layers(model, tmp_path)
    assert (found["fixed_mask"], found["prompts"], found["max_seq_length"]) == (
        "default",
        "checkpoint",
        "checkpoint",
    )


def test_a_mask_that_the_model_was_given_is_the_view_of_the_run(checkpoints, tmp_path):
    model = AutoModelForCL.from_pretrained(checkpoints[2][0], fixed_mask=True)
    args = SimCSETrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    run = decide_run(args, Start.of_model(model))
    assert (run.arguments.view, run.settings["fixed_mask"], run.decided_by["view"]) == (
        "fixed_mask",
        True,
        "given",
    )


def test_a_length_of_a_data_set_is_given(checkpoints, tmp_path):
    start = Start.of_model(AutoModelForCL.from_pretrained(checkpoints[2][0]))
    for length, layer in ((30, "given"), (12, "checkpoint")):
        args = SimCSETrainingArguments(
            str(tmp_path),
            use_cpu=True,
            report_to="none",
            datasets={"one": {"max_seq_length": length}, "two": {}},
        )
        run = decide_run(args, start, ["one", "two"])
        assert (run.settings["max_seq_length"], run.decided_by["max_seq_length"]) == (
            max(length, 20),
            layer,
        )
