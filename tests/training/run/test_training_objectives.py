"""Every objective and view can be trained, evaluated, saved, resumed and reloaded with the Trainer."""

from functools import partial

import pytest
import torch
from conftest import fast_first, save_with_tokenizer
from trainer_helpers import (
    EVALUATES,
    SAVES,
    assert_same_weights,
    logged,
    model_of,
    pairs,
    rows_for,
    sentences,
    train_and_resume,
    vectors_of,
    weights,
)
from transformers import AutoModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.objectives import OBJECTIVES
from simcse_hf.training.recipe import Recipe

#: Model settings for each objective, none for one that is not named here. `rows_for` makes the training rows.
SETTINGS = dict.fromkeys(OBJECTIVES, {}) | {
    "simcse": {"objective_options": {"symmetric": True, "mask_duplicates": True}},
    "softmax": {"pooler_type": "avg_no_cls"},
    "supcon": {"pooler_type": "avg_no_cls"},
    "softmax:0.7+supcon:0.3": {"pooler_type": "avg_no_cls"},
    "barlow_twins": {"objective_options": {"projector_dim": 16}},
    "vicreg": {"objective_options": {"projector_dim": 16}},
    "contrastive_tension": {"objective_options": {"negatives_per_positive": 3}},
    "is_bert": {"pooler_type": "avg"},
    "declutr": {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0},
    "esimcse": {"objective_options": {"queue_size": 8}},
    "promptbert": {"pooler_type": "mask", "templates": ["the {text} [MASK] .", "a {text} [MASK] ."]},
    "tsdae": {"pooler_type": "cls_before_pooler"},
    "cosent": {"pooler_type": "cls_before_pooler"},
    "class_labels": {"pooler_type": "avg"},
    "angle": {"pooler_type": "avg", "objective_options": {"positive_score": 3.0}},
    "distill": {"pooler_type": "avg", "objective_options": {"loss": "listnet"}},
}


@pytest.fixture(scope="module")
def start(module_path):
    """A checkpoint with a masked-LM head, which DiffCSE's generator needs."""
    return save_with_tokenizer(model_of(do_mlm=True), module_path / "start")


@pytest.fixture
def trainer_of(make, start, tmp_path):
    """`trainer_of(objective, settings)` makes a trainer with rows of the kind that the objective learns from."""

    def trainer_of(objective, settings, **changes):
        torch.manual_seed(1)
        options = dict(settings.get("objective_options", {}))
        if objective == "diffcse":
            options["generator"] = str(start)
        model = AutoModelForCL.from_pretrained(
            start,
            head="fresh",
            **{"do_mlm": False, "objective": objective} | settings | {"objective_options": options},
        )
        rows = rows_for(objective)
        values = SAVES | EVALUATES | {"per_device_train_batch_size": 4, "max_steps": 6, "max_seq_length": 16}
        values |= {"logging_steps": 1, "save_steps": 3, "eval_steps": 6}
        if objective == "distill":
            values["teacher"] = vectors_of(tmp_path / "teacher", rows)
        return make(rows, model, dev_set=pairs(6), **values | changes)

    return trainer_of


# --- objectives ---


@pytest.mark.parametrize("objective", SETTINGS)
def test_an_objective_trains_is_resumed_to_the_same_bits_evaluated_saved_and_opened(objective, trainer_of, tmp_path):
    """An evaluation changes neither the weights nor the noise."""
    new_trainer = partial(trainer_of, objective, SETTINGS[objective])
    before = weights(new_trainer().model)
    whole, resumed = train_and_resume(new_trainer, 3)
    assert logged(resumed, "loss") == logged(whole, "loss")
    after = weights(whole.model)
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert any("word_embeddings" in name for name in changed)
    assert logged(whole, "eval_stsb_spearman")
    rows, noise = rows_for(objective), torch.get_rng_state()
    whole.evaluate(rows)
    whole.predict(rows)
    assert torch.equal(noise, torch.get_rng_state())
    assert_same_weights(after, whole.model.state_dict())
    whole.save_model(tmp_path / "saved")
    _, info = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    others = [key for key in info["unexpected_keys"] if "cls." not in key]  # but for the head of a masked LM
    assert (set(info["missing_keys"]), others) == (set(), [])
    vectors = SimCSE(tmp_path / "saved", device="cpu").encode(sentences(3))
    assert vectors.shape == (3, 32) and torch.isfinite(vectors).all()


@pytest.mark.parametrize("objective, tokens", [("simcse", 8), ("esimcse", 8 + 2), ("promptbert", 8 + 5)])
def test_the_fixed_length_of_compiled_batches_leaves_room_for_repeated_tokens_and_templates(
    trainer_of, objective, tokens
):
    trainer = trainer_of(objective, SETTINGS[objective], max_seq_length=8, torch_compile=True)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == (4, 2, tokens)


# --- views ---

NEED_MORE = ("synonyms", "eda")  # a dictionary
DRAWN_VIEWS = sorted(name for name, view in VIEW_CLASSES.items() if view.is_drawn and name not in NEED_MORE)


@pytest.mark.parametrize("view", DRAWN_VIEWS)
@pytest.mark.parametrize("both", fast_first(False, True))
def test_a_run_with_a_view_can_be_resumed_in_the_second_epoch(trainer_of, view, both):
    changes = {"view": view, "view_both": both, "max_steps": 8, "save_steps": 5, "eval_strategy": "no"}
    new_trainer = partial(trainer_of, "simcse", {}, **changes)
    train_and_resume(new_trainer, 5)


# --- the scripts' texts ---


@pytest.fixture
def texts_of(tmp_path, start):
    """`texts_of(method, words)` are the texts that a command trains on, or the rows that it draws of them."""

    def texts_of(method, words):
        options = f"--output_dir {tmp_path / 'out'} --use_cpu --model {start} --max_seq_length 12"
        trainer = Recipe.read(method, f"{options} {words}".split()).trainer()
        return next(iter(trainer.rows.texts), trainer.train_dataset)

    return texts_of


def test_labelled_pairs_become_rows_of_pairs_or_of_premises_with_their_relations(tmp_path, texts_of):
    (tmp_path / "nli.csv").write_text(
        "premise,hypothesis,label\n"
        "a cat sat,a cat,entailment\n"
        "a cat sat,a dog,contradiction\n"
        "a dog ran,it ran,neutral\n"
    )
    words = f"--train_file {tmp_path}/nli.csv --objective supcon"
    assert [len(row) for row in texts_of("sup", words)["texts"]] == [2, 2, 2]
    assert len(texts_of("sup", f"{words} --max_train_samples 2")) == 2
    premises = texts_of("sup", f"{words} --objective_options nli_sampling=premises")
    assert premises["texts"][:] == [["a cat sat", "a cat", "a dog"], ["a dog ran", "it ran"]]
    assert premises["relations"][:] == [[0, 2], [1]]


def test_the_label_of_a_pair_may_be_its_score(tmp_path, texts_of):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2,label\na cat,the cat,1\na dog,a bird,0\n")
    assert texts_of("sup", f"--train_file {pairs} --objective cosent")["score"][:] == [1.0, 0.0]


# --- texts with class labels ---


def test_texts_with_class_labels_choose_their_objective(tmp_path, start, texts_of):
    """Unless one is given, the run is without labels, or the labels are those of pairs."""
    file = tmp_path / "tickets.csv"
    file.write_text("text,label\na cat,animal\na dog,animal\na car,thing\na bus,thing\n")

    def decided(method="sup", words=""):
        line = f"--train_file {file} --output_dir {tmp_path / 'out'} --use_cpu --model {start} {words}"
        return Recipe.read(method, line.split()).decide()

    assert decided().model.objective == "class_labels"
    assert decided().training.per_device_train_batch_size == 64  # that of its paper
    assert decided(words="--objective cosent").model.objective == "cosent"
    assert decided("unsup").model.objective is None
    assert texts_of("sup", f"--train_file {file}")["label"][:] == [0, 0, 1, 1]
    file.write_text("question,answer,label\na cat,an animal,1\n")
    assert decided().model.objective is None
