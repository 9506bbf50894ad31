"""A student in its teacher's space: its projection is part of the model, and it searches an index of its teacher."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config
from trainer_helpers import model_of, sentences, texts, vectors_of

from simcse_hf import (
    AutoModelForCL,
    SimCSE,
    SimCSETrainer,
    SimCSETrainingArguments,
    search,
)
from simcse_hf.apps.search import index, index_add
from simcse_hf.encoding.fitting import fit_transform

ROWS = texts(24)
VECTORS = {"loss": "vectors"}


@pytest.fixture
def teacher(save_checkpoint):
    """A teacher of 16 dimensions that pools and cuts in a way of its own."""
    torch.manual_seed(7)
    config = tiny_config(initializer_range=0.2)
    dense = {
        "in_features": config.hidden_size,
        "out_features": 16,
        "activation_function": "torch.nn.Tanh",
    }
    model = AutoModelForCL.from_config(config, pooler_type="avg", dense_layers=[dense], max_length=12)
    return str(save_checkpoint(model, "teacher"))


def trainer_of(tmp_path, tokenizer, teacher, output="student", model=None, rows=ROWS, **options):
    """A run of 3 steps with the vectors of a teacher."""
    settings = {
        "pooler_type": "avg_top2",
        "objective": "distill",
        "objective_options": VECTORS,
    }
    for name in (
        "pooler_type",
        "objective",
        "objective_options",
        "mlp_only_train",
        "matryoshka_dims",
    ):
        if name in options:
            settings[name] = options.pop(name)
    arguments = SimCSETrainingArguments(
        str(tmp_path / output),
        **{
            "max_steps": 3,
            "per_device_train_batch_size": 8,
            "teacher": teacher,
            "use_cpu": True,
        }
        | {"report_to": "none", "learning_rate": 1e-3, "save_strategy": "no"}
        | options,
    )
    return SimCSETrainer(model or model_of(**settings), arguments, rows, processing_class=tokenizer)


def train(*arguments, **options):
    """Train a student and return its folder."""
    trainer = trainer_of(*arguments, **options)
    trainer.train()
    trainer.save_model()
    return trainer.args.output_dir


@pytest.fixture
def index_of_teacher(tmp_path, teacher):
    """An index that the teacher built."""
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(20, 50)))
    index(
        tmp_path / "corpus.txt",
        tmp_path / "index",
        model=teacher,
        show_progress_bar=False,
    )
    return str(tmp_path / "index")


def test_the_projection_to_the_size_of_the_teacher_is_the_last_layer_of_the_saved_model(tmp_path, tokenizer, teacher):
    folder = train(tmp_path, tokenizer, teacher)
    student = SimCSE(folder)
    assert student.dim == SimCSE(teacher).dim == 16
    modules = json.loads((tmp_path / "student" / "modules.json").read_text())
    assert [row["type"].rpartition(".")[2] for row in modules[-2:]] == [
        "Dense",
        "Normalize",
    ]


def test_plain_sentence_transformers_gives_the_same_vectors(tmp_path, tokenizer, teacher):
    library = pytest.importorskip("sentence_transformers")
    folder = train(tmp_path, tokenizer, teacher)
    theirs = library.SentenceTransformer(folder, device="cpu").encode(sentences(5, 3))
    np.testing.assert_allclose(SimCSE(folder).encode(sentences(5, 3), convert_to_numpy=True), theirs, atol=1e-6)


def test_before_the_first_step_the_projection_leaves_the_cosines_as_they_are(tmp_path, tokenizer, teacher):
    model = model_of(pooler_type="avg", objective="distill", objective_options=VECTORS)
    batch = tokenizer(sentences(6), padding=True, return_tensors="pt")
    before = model.eval().embed(batch["input_ids"], batch["attention_mask"])
    teacher = vectors_of(tmp_path / "wide", ROWS, dim=64)
    trainer_of(tmp_path, tokenizer, [teacher], model=model)
    after = model.eval().embed(batch["input_ids"], batch["attention_mask"])
    assert after.shape[1] == 64
    cosines = [torch.nn.functional.normalize(x, dim=1) for x in (before, after)]
    torch.testing.assert_close(cosines[1] @ cosines[1].T, cosines[0] @ cosines[0].T)


def test_the_student_searches_the_index_of_its_teacher_and_ranks_by_the_cosine(
    tmp_path, tokenizer, teacher, index_of_teacher
):
    folder = train(tmp_path, tokenizer, teacher)
    query, corpus = sentences(1, 90)[0], sentences(20, 50)
    [found] = search([query], index_of_teacher, model=folder, top_k=20)
    cosines = SimCSE(teacher).encode(corpus) @ SimCSE(folder).encode(query)
    assert [match.row for match in found.results] == cosines.argsort(descending=True).tolist()
    assert [match.score for match in found.results] == pytest.approx(cosines.sort(descending=True)[0].tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"objective_options": {"loss": "similarities"}},
        {"objective_options": {"loss": "vectors", "keep_projection": False}},
    ],
)
def test_a_student_that_did_not_learn_the_vectors_keeps_its_size_and_is_refused(
    tmp_path, tokenizer, teacher, index_of_teacher, options
):
    folder = train(tmp_path, tokenizer, teacher, **options)
    assert SimCSE(folder).dim == tiny_config().hidden_size
    with pytest.raises(ValueError, match="was built with model .*; this is another model: "):
        search(["a"], index_of_teacher, model=folder)


def test_a_student_of_another_teacher_is_refused(tmp_path, tokenizer, teacher, index_of_teacher):
    other = SimCSE(teacher)
    with torch.no_grad():
        other.model.dense_layers[0].linear.weight.mul_(1.5)
    other.save_pretrained(tmp_path / "other")
    folder = train(tmp_path, tokenizer, str(tmp_path / "other"))
    with pytest.raises(ValueError, match="this is another model: .*other weights"):
        search(["a"], index_of_teacher, model=folder)


def changed_by_hand(folder):
    """Change a weight, as a program does that knows nothing of the record."""
    student = SimCSE(folder)
    with torch.no_grad():
        student.model.dense_layers[0].linear.weight[0].mul_(-1)
    student.save_pretrained(folder)


def trained_on(folder):
    """Train without the teacher, as a second stage does."""
    arguments = SimCSETrainingArguments(folder, max_steps=1, use_cpu=True, report_to="none", save_strategy="no")
    trainer = SimCSETrainer(AutoModelForCL.from_pretrained(folder, objective="simcse"), arguments, ROWS)
    trainer.train()
    trainer.save_model()


def whitened(folder):
    """Fit a whitening, after which vectors lie elsewhere."""
    corpus = f"{folder}/corpus.txt"
    with open(corpus, "w") as stream:
        stream.write("\n".join(sentences(60, 5)))
    student = SimCSE(folder)
    fit_transform(student, "whitening", corpus)
    student.save_pretrained(folder)


@pytest.mark.parametrize("change", [changed_by_hand, trained_on, whitened])
def test_a_student_that_has_changed_since_is_refused(tmp_path, tokenizer, teacher, index_of_teacher, change):
    folder = train(tmp_path, tokenizer, teacher)
    list(search(["a"], index_of_teacher, model=folder))
    change(folder)
    with pytest.raises(ValueError, match="this is another model: "):
        list(search(["a"], index_of_teacher, model=folder))


def test_a_student_is_refused_with_another_pooler(tmp_path, tokenizer, teacher, index_of_teacher):
    folder = train(tmp_path, tokenizer, teacher)
    with pytest.raises(ValueError, match="this is another model: "):
        search(["a"], index_of_teacher, model=folder, pooler_type="max")


def test_an_index_with_another_length_of_the_teacher_is_refused(tmp_path, tokenizer, teacher):
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(20, 50)))
    index(
        tmp_path / "corpus.txt",
        tmp_path / "short",
        model=teacher,
        max_length=6,
        show_progress_bar=False,
    )
    folder = train(tmp_path, tokenizer, teacher)
    with pytest.raises(ValueError, match="this is another model: other weights"):
        search(["a"], tmp_path / "short", model=folder)


def test_a_student_adds_no_document_to_the_index_of_its_teacher(tmp_path, tokenizer, teacher, index_of_teacher):
    folder = train(tmp_path, tokenizer, teacher)
    with pytest.raises(
        ValueError,
        match="a student only searches the index of its teacher: encode documents with",
    ):
        index_add(
            tmp_path / "corpus.txt",
            index_of_teacher,
            model=folder,
            show_progress_bar=False,
        )


def test_a_student_finds_no_neighbours_of_documents(tmp_path, tokenizer, teacher, index_of_teacher):
    folder = train(tmp_path, tokenizer, teacher)
    with pytest.raises(ValueError, match="a student only searches"):
        list(search([], index_of_teacher, model=folder, neighbors=[0]))


def test_several_teachers_have_no_single_space(tmp_path, tokenizer, teacher, index_of_teacher, caplog):
    folder = train(tmp_path, tokenizer, [f"{teacher}:0.3", vectors_of(tmp_path / "api", ROWS)])
    assert "The student searches only its own indexes" in caplog.text
    assert SimCSE(folder).dim == 16 + 8
    with pytest.raises(ValueError, match="this is another model: "):
        search(["a"], index_of_teacher, model=folder)


def test_a_head_that_inference_leaves_out_is_refused(tmp_path, tokenizer, teacher):
    with pytest.raises(
        ValueError,
        match="the head learns the teacher's vectors, but inference would leave the head out",
    ):
        trainer_of(tmp_path, tokenizer, teacher, pooler_type="cls", mlp_only_train=True)


def test_the_threshold_of_a_student_is_refused_on_the_index_of_its_teacher(
    tmp_path, tokenizer, teacher, index_of_teacher
):
    folder = train(tmp_path, tokenizer, teacher)
    with pytest.raises(ValueError, match="with the vectors of the model's teacher"):
        list(search(["a"], index_of_teacher, model=folder, threshold="saved"))


@pytest.mark.parametrize("objective", ["simcse+distill", "distill:0.5+barlow_twins"])
def test_a_sum_with_the_vectors_of_a_teacher_has_their_size(tmp_path, tokenizer, teacher, index_of_teacher, objective):
    options = {"distill.loss": "vectors"}
    folder = train(tmp_path, tokenizer, teacher, objective=objective, objective_options=options)
    assert SimCSE(folder).dim == 16
    assert len(list(search(["a"], index_of_teacher, model=folder))) == 1


def test_shorter_vectors_of_a_matryoshka_learn_those_of_the_teacher(tmp_path, tokenizer, teacher, index_of_teacher):
    folder = train(tmp_path, tokenizer, teacher, matryoshka_dims=[8])
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(20, 50)))
    index(
        tmp_path / "corpus.txt",
        tmp_path / "8",
        model=teacher,
        truncate_dim=8,
        show_progress_bar=False,
    )
    query, corpus = sentences(1, 90)[0], sentences(20, 50)
    [found] = search([query], tmp_path / "8", model=folder, top_k=20)
    cosines = SimCSE(teacher).encode(corpus, truncate_dim=8) @ SimCSE(folder).encode(query, truncate_dim=8)
    assert [match.score for match in found.results] == pytest.approx(cosines.sort(descending=True)[0].tolist())


def test_a_lora_student_searches_the_index_too(tmp_path, tokenizer, teacher, index_of_teacher):
    pytest.importorskip("peft")
    folder = train(tmp_path, tokenizer, teacher, lora_r=2)
    assert len(list(search(["a"], index_of_teacher, model=folder))) == 1


def test_a_resumed_student_has_the_same_bits_and_the_record(tmp_path, tokenizer, teacher, index_of_teacher):
    whole = trainer_of(
        tmp_path,
        tokenizer,
        teacher,
        output="whole",
        save_strategy="steps",
        save_steps=2,
    )
    whole.train()
    resumed = trainer_of(
        tmp_path,
        tokenizer,
        teacher,
        output="resumed",
        save_strategy="steps",
        save_steps=2,
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, x in whole.model.state_dict().items():
        assert torch.equal(x, resumed.model.state_dict()[name]), name
    folder = str(tmp_path / "resumed" / "checkpoint-3")
    assert len(list(search(["a"], index_of_teacher, model=folder))) == 1


def test_several_data_sets_share_the_space(tmp_path, tokenizer, teacher, index_of_teacher):
    rows = {"one": ROWS, "two": texts(16, seed=5)}
    folder = train(tmp_path, tokenizer, teacher, rows=rows)
    assert len(list(search(["a"], index_of_teacher, model=folder))) == 1


def test_vectors_of_the_teachers_size_get_no_further_layer(tmp_path, tokenizer, teacher):
    folder = train(tmp_path, tokenizer, teacher)
    model = AutoModelForCL.from_pretrained(folder)
    again = train(tmp_path, tokenizer, teacher, output="again", model=model)
    assert len(SimCSE(again).settings.dense_layers) == 1
