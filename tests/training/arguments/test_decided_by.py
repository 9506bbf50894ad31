"""What nobody wrote is decided by a slow rule, which is written here a second time, in many random runs.

What a command line says counts before its recipe, and a table of a data set before both, for that data set. Then come
the checkpoint, the paper of the objective, the command and the package.
"""

import random

import pytest
from conftest import read_json, tiny_config
from trainer_helpers import arguments, model_of
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import OBJECTIVES, part_weights
from simcse_hf.training.decide import decide_run, with_values
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
#: Options that an argument of the same or of this name gives to every objective that has them.
SHARED = {"temp": "temperature", "similarity": "similarity", "hard_negative_weight": "hard_negative_weight"}
LOSSES = ["simcse", "supcon", "class_labels", "cosent", "cosent+angle:0.5", "softmax:0.7+supcon:0.3"]
USUAL_TEMPERATURE = {"cosine": 0.05, "dot": 1.0}
SAVED = [
    None,  # a masked language model
    {},
    {"objective": "simcse", "pooler_type": "avg", "temperature": 0.3, "max_seq_length": 20},
    {"objective": "supcon", "pooler_type": "avg_no_cls"},
    {"objective": "class_labels", "pooler_type": "avg", "similarity": "dot", "similarity_fn_name": "dot"},
    {"objective": "cosent+angle:0.5", "objective_options": {"cosent.temperature": 0.2}},
]


# --- the slow rule ---


def first(tables, part, option):
    """The place and the value of the first table that has an option of a part, under one of its two names."""
    for place, table in enumerate(tables):
        for name in (f"{part}.{option}", option):
            if name in table:
                return place, table[name]
    raise AssertionError(option)


def decide_loss(loss, given, saved):
    """The value of each option of a loss, from what is given and what is saved."""
    found = {}
    parts = list(part_weights(loss))
    for part in parts:
        prefix = f"{part}." if len(parts) > 1 else ""
        tables = [given, saved, dict(OBJECTIVES[part].options)]
        own = {option: first(tables, part, option)[1] for option in OBJECTIVES[part].options}
        if {"similarity", "temperature"} <= own.keys():
            # The temperature of a table is for the similarity that this table and those below it name.
            place, value = first(tables, part, "temperature")
            _, named = first(tables[place:], part, "similarity")
            if value is None or (place > 0 and named != own["similarity"]):
                own["temperature"] = USUAL_TEMPERATURE[own["similarity"]]
        found |= {prefix + option: value for option, value in own.items()}
    return found


def compares(loss, options):
    """What the first comparing part of a loss compares by."""
    for part in part_weights(loss):
        for name in ("similarity", f"{part}.similarity"):
            if name in options:
                return options[name]
        if OBJECTIVES[part].similarity:
            return OBJECTIVES[part].similarity
    return None


def expected(case):
    """The value of everything that a case is about."""
    saved, tables = case["saved"], case["tables"]
    given = {**case["recipe"], **case["words"]}
    shared = {SHARED[name]: value for name, value in given.items() if name in SHARED}

    # 1. The objective of the model, and its options.
    objective = given.get("objective", saved.get("objective", "simcse"))
    kept = saved if saved.get("objective") == objective else {}
    own = shared | given.get("objective_options", {})
    options = model = decide_loss(objective, own, kept.get("objective_options", {}))

    # 2. Those of data sets: what a table says, what the caller says for every loss, and then what the model has.
    losses = {}
    for name, said in tables.items():
        if "objective" in said:
            readable = {option for part in part_weights(said["objective"]) for option in OBJECTIVES[part].options}
            usual = {option: value for option, value in shared.items() if option in readable}
            before = model if said["objective"] == objective else {}
            decided = decide_loss(said["objective"], usual | said.get("objective_options", {}), before)
            losses[name] = (said["objective"], decided)
    found = {f"{name}: {option}": value for name, (_, own) in losses.items() for option, value in own.items()}
    model_loss = (objective, model)
    if tables and len(losses) == len(tables):
        objective, options = next(iter(losses.values()))
    found |= {"objective": objective} | options

    # 3. The similarity of inference is that of the first loss whose first comparing part has one.
    used = [losses.get(name, model_loss) for name in tables] or [model_loss]
    found["similarity_fn_name"] = next(filter(None, (compares(*loss) for loss in used)), "cosine")

    # 4. The pooler, the head and the length. In Python there is no command, and no paper for the length.
    is_python = case["way"] == "python"
    paper = dict(OBJECTIVES[next(iter(part_weights(model_loss[0])))].defaults)
    if is_python:
        paper.pop("max_seq_length", None)
    elif "max_seq_length" in paper:
        paper["max_seq_length"] = min(paper["max_seq_length"], tiny_config().max_position_embeddings)
    for name, value in {"pooler_type": "cls", "max_seq_length": 32}.items():
        before = saved if name == "pooler_type" else kept
        found[name] = ({name: value} | paper | before | given)[name]
    if found["pooler_type"] == "cls":
        head = {"unsup": True, "sup": False, "python": False}[case["way"]]
        head = paper.get("mlp_only_train", head)
        found["mlp_only_train"] = saved["mlp_only_train"] if saved.get("pooler_type") == "cls" else head
    return found


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
    known = {option for part in part_weights(loss) for option in OBJECTIVES[part].options}
    for name, option in SHARED.items():
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
    case = {"saved": saved, "tables": {}, "way": draw.choice(["unsup", "sup", "python"])}
    case |= {source: random_source(draw, loss) for source in ("recipe", "words")}
    if loss != saved.get("objective", "simcse") or draw.random() < 0.3:
        case[draw.choice(["recipe", "words"])]["objective"] = loss
    table = {**case["recipe"], **case["words"]}.get("objective_options", {})
    for source in (case["recipe"], case["words"]):
        for name, option in SHARED.items():
            if option in table:  # two values of one option are refused
                source.pop(name, None)
    for name in ("one", "two") if draw.random() < 0.5 else ():
        case["tables"][name] = {}
        if draw.random() < 0.8:
            objective = draw.choice(LOSSES)
            case["tables"][name] = {"objective": objective, "objective_options": random_options(draw, objective, 0.3)}
    return case


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of checkpoints, and what each has saved."""
    found = []
    for settings in SAVED:
        folder = tmp_path_factory.mktemp("checkpoint")
        if settings is None:
            BertForMaskedLM(tiny_config()).save_pretrained(folder)
            found.append((folder, {}))
            continue
        model_of(**settings).save_pretrained(folder)
        section = read_json(folder / "config.json")["simcse"]
        found.append((folder, {**section["pooling"], **section["training"]}))
    return found


def decided(case, folder, tmp_path):
    """The value of everything that a run has decided."""
    given = {**case["recipe"], **case["words"]}
    if case["way"] == "python":
        given["temperature"] = given.pop("temp", None)
        args = arguments(tmp_path, max_seq_length=given.pop("max_seq_length", None), datasets=case["tables"] or None)
    else:
        tables = {name: own | {"train_file": "texts.txt"} for name, own in case["tables"].items()}
        given |= {"model_name_or_path": str(folder), "datasets": tables or None}
        given |= {"output_dir": str(tmp_path), "use_cpu": True}
        recipe = Recipe(case["way"], given).decide()
        tables = {}
        for name, own in (recipe.training.datasets or {}).items():
            tables[name] = {key: own[key] for key in own.keys() - set(OF_FILES)}
        args = with_values(recipe.training, datasets=tables or None)
        given = recipe.model.settings(recipe.checkpoint.config)
    model = AutoModelForCL.from_pretrained(folder, **given)
    run = decide_run(args, model, None, list(case["tables"]))
    values = vars(model.settings) | run.settings
    values |= values["objective_options"]
    for name, loss in values["dataset_objectives"].items():
        values |= {f"{name}: {option}": value for option, value in loss.get("objective_options", {}).items()}
    return values


@pytest.mark.parametrize("seed", range(100))
def test_every_value_is_that_of_the_first_who_has_one(seed, checkpoints, tmp_path):
    folder, saved = checkpoints[seed % len(checkpoints)]
    case = random_case(seed, saved)
    found = decided(case, folder, tmp_path)
    wanted = expected(case)
    assert {name: found.get(name) for name in wanted} == wanted, case
    options = {name for name in found if name in CHOICES or ": " in name}
    assert options <= wanted.keys(), case


def test_a_mask_that_the_model_was_given_is_the_view_of_the_run(checkpoints, tmp_path):
    model = AutoModelForCL.from_pretrained(checkpoints[2][0], fixed_mask=True)
    run = decide_run(arguments(tmp_path), model, None)
    assert (run.arguments.view, run.settings["fixed_mask"]) == ("fixed_mask", True)


@pytest.mark.parametrize("length", [30, 12])
def test_a_model_is_saved_with_the_longest_length_of_its_data_sets(length, checkpoints, tmp_path):
    model = AutoModelForCL.from_pretrained(checkpoints[2][0])  # of 20 tokens
    tables = {"one": {"max_seq_length": length}, "two": {}}
    run = decide_run(arguments(tmp_path, datasets=tables), model, None, ["one", "two"])
    assert run.settings["max_seq_length"] == max(length, 20)
