"""A student in its teacher's space: its projection is part of the model, and it searches an index of its teacher."""

import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from card_helpers import log_of_package
from conftest import NEEDS_PEFT, read_json, save_with_tokenizer, tiny_config, tiny_tokenizer
from evaluation_helpers import write
from trainer_helpers import SAVES, make, model_of, refuses, sentences, texts, train_and_resume, vectors_of

from simcse_hf import AutoModelForCL, SimCSE, search
from simcse_hf.apps.search import index, index_add
from simcse_hf.encoding.fitting import fit_transform

TOKENIZER = tiny_tokenizer()
ROWS = texts(24)
VECTORS = {"loss": "vectors"}
CORPUS = sentences(20, 50)
[QUERY] = sentences(1, 90)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A teacher of 16 dimensions that pools and cuts in a way of its own."""
    torch.manual_seed(7)
    config = tiny_config(initializer_range=0.2)
    tanh = "torch.nn.Tanh"
    dense = {"in_features": config.hidden_size, "out_features": 16, "activation_function": tanh}
    model = AutoModelForCL.from_config(config, pooler_type="avg", dense_layers=[dense], max_length=12)
    return str(save_with_tokenizer(model, tmp_path_factory.mktemp("teacher")))


def trainer_of(folder, teacher, model=None, rows=ROWS, settings=None, **options):
    """A run of 3 steps with the vectors of a teacher."""
    own = {"pooler_type": "avg_top2", "objective": "distill", "objective_options": VECTORS} | (settings or {})
    options = {"output_dir": str(folder), "teacher": teacher, "max_steps": 3} | options
    return make(folder, TOKENIZER, rows, model or model_of(**own), **options)


def train(*arguments, **options):
    """Train a student and return its folder."""
    trainer = trainer_of(*arguments, **options)
    trainer.train()
    trainer.save_model()
    return trainer.args.output_dir


def index_by(teacher, folder, **options):
    """The folder of an index of `CORPUS` that a model built."""
    index(write(folder / "corpus.txt", CORPUS), folder / "index", model=teacher, show_progress_bar=False, **options)
    return str(folder / "index")


@pytest.fixture(scope="module")
def index_of_teacher(teacher, tmp_path_factory):
    return index_by(teacher, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def student(teacher, tmp_path_factory):
    """The folder of a student, which no test may change."""
    return train(tmp_path_factory.mktemp("student"), teacher)


def searches(index_of_teacher, model, **options):
    """The results of a search with a student."""
    return list(search([QUERY], index_of_teacher, model=model, **options))


def assert_ranked_by_cosine(found, teacher, student, **options):
    """The student's query is compared with the teacher's documents."""
    cosines = SimCSE(teacher).encode(CORPUS, **options) @ SimCSE(student).encode(QUERY, **options)
    assert [match.row for match in found.results] == cosines.argsort(descending=True).tolist()
    assert [match.score for match in found.results] == pytest.approx(cosines.sort(descending=True)[0].tolist())


def test_a_student_has_the_size_of_its_teacher_here_and_in_sentence_transformers(student, teacher, tmp_path):
    """The projection is the last layer of the saved model. Vectors of that size get no further one."""
    modules = read_json(Path(student, "modules.json"))
    assert [row["type"].rpartition(".")[2] for row in modules[-2:]] == ["Dense", "Normalize"]
    assert SimCSE(student).dim == SimCSE(teacher).dim == 16
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(student, device="cpu").encode(CORPUS)
    np.testing.assert_allclose(SimCSE(student).encode(CORPUS, convert_to_numpy=True), theirs, atol=1e-6)
    again = train(tmp_path, teacher, model=AutoModelForCL.from_pretrained(student))
    assert len(SimCSE(again).settings.dense_layers) == 1


def test_the_student_searches_the_index_of_its_teacher_and_ranks_by_the_cosine(student, teacher, index_of_teacher):
    [found] = searches(index_of_teacher, student, top_k=20)
    assert_ranked_by_cosine(found, teacher, student)


@pytest.mark.parametrize(
    "options",
    [
        {"settings": {"objective": "simcse+distill", "objective_options": {"distill.loss": "vectors"}}},
        {"rows": {"one": ROWS, "two": texts(16, seed=5)}},
        pytest.param({"lora_r": 2}, marks=NEEDS_PEFT),
    ],
    ids=["a sum", "data sets", "LoRA"],
)
def test_other_ways_to_learn_the_vectors_reach_the_same_space(tmp_path, teacher, index_of_teacher, options):
    folder = train(tmp_path, teacher, **options)
    assert SimCSE(folder).dim == 16
    assert len(searches(index_of_teacher, folder)) == 1


def test_shorter_vectors_of_a_matryoshka_learn_those_of_the_teacher(tmp_path, teacher):
    folder = train(tmp_path / "student", teacher, settings={"matryoshka_dims": [8]})
    [found] = searches(index_by(teacher, tmp_path, truncate_dim=8), folder, top_k=20)
    assert_ranked_by_cosine(found, teacher, folder, truncate_dim=8)


# --- what is another model ---


def assert_another_model(index_of_teacher, folder, words="", **options):
    with refuses(f"this is another model: {words}"):
        searches(index_of_teacher, folder, **options)


@pytest.mark.parametrize("options", [{"loss": "similarities"}, {"loss": "vectors", "keep_projection": False}])
def test_a_student_that_did_not_learn_the_vectors_keeps_its_size(tmp_path, teacher, index_of_teacher, options):
    folder = train(tmp_path, teacher, settings={"objective_options": options})
    assert SimCSE(folder).dim == tiny_config().hidden_size
    assert_another_model(index_of_teacher, folder)


def test_an_index_of_another_teacher_length_or_pooler_is_refused(student, teacher, index_of_teacher, tmp_path):
    other = SimCSE(teacher)
    with torch.no_grad():
        other.model.dense_layers[0].linear.weight.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    assert_another_model(index_by(str(tmp_path / "other"), tmp_path / "1"), student, "other weights")
    assert_another_model(index_by(teacher, tmp_path / "2", max_length=6), student, "other weights")
    assert_another_model(index_of_teacher, student, pooler_type="max")


def changed_by_hand(folder):
    """Change a weight, as a program does that knows nothing of the record."""
    student = SimCSE(folder)
    with torch.no_grad():
        student.model.dense_layers[0].linear.weight[0].mul_(-1)
    student.save_pretrained(folder)


def trained_on(folder):
    """Train without the teacher, as a second stage does."""
    model = AutoModelForCL.from_pretrained(folder, objective="simcse")
    trainer = make(Path(folder), None, ROWS, model, output_dir=folder, max_steps=1)
    trainer.train()
    trainer.save_model()


def whitened(folder):
    """Fit a whitening, after which vectors lie elsewhere."""
    corpus = write(Path(folder, "corpus.txt"), sentences(60, 5))
    student = SimCSE(folder)
    fit_transform(student, "whitening", str(corpus))
    student.save_pretrained(folder)


@pytest.mark.parametrize("change", [changed_by_hand, trained_on, whitened])
def test_a_student_that_has_changed_since_is_refused(student, index_of_teacher, tmp_path, change):
    folder = str(shutil.copytree(student, tmp_path / "student"))
    searches(index_of_teacher, folder)
    change(folder)
    assert_another_model(index_of_teacher, folder)


def test_a_run_says_how_much_of_its_teacher_a_student_keeps(tmp_path, teacher):
    def share(model, **options):
        with log_of_package(logging.INFO) as log:
            trainer_of(tmp_path / "run", teacher, model, **options).train()
        return int(re.search(r"keeps (\d+)% of its teacher", log.getvalue())[1])

    own = {"objective": "distill", "objective_options": {"loss": "similarities"}, "max_length": None}
    assert share(AutoModelForCL.from_pretrained(teacher, **own), learning_rate=1e-9) == 100
    assert share(None) < 70


def test_several_teachers_have_no_single_space(tmp_path, teacher, index_of_teacher, caplog):
    folder = train(tmp_path / "student", [f"{teacher}:0.3", vectors_of(tmp_path / "api", ROWS)])
    assert "The student searches only its own indexes" in caplog.text
    assert SimCSE(folder).dim == 16 + 8
    assert_another_model(index_of_teacher, folder)


def test_a_student_only_searches_the_index_of_its_teacher(student, index_of_teacher, tmp_path):
    corpus = write(tmp_path / "corpus.txt", CORPUS)
    only = "a student only searches"
    with refuses(only):
        index_add(corpus, index_of_teacher, model=student, show_progress_bar=False)
    with refuses(only):
        list(search([], index_of_teacher, model=student, neighbors=[0]))
    with refuses("with the vectors of the model's teacher"):
        searches(index_of_teacher, student, threshold="saved")


def test_a_head_that_inference_leaves_out_is_refused(tmp_path, teacher):
    with refuses("mlp_only_train"):
        trainer_of(tmp_path, teacher, settings={"pooler_type": "cls", "mlp_only_train": True})


def test_a_resumed_student_has_the_same_bits_and_the_record(tmp_path, teacher, index_of_teacher):
    train_and_resume(lambda: trainer_of(tmp_path, teacher, **SAVES), 2)
    assert len(searches(index_of_teacher, str(tmp_path / "checkpoint-3"))) == 1
