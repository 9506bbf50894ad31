"""Every objective and view can be trained, evaluated, saved, resumed and reloaded with the Trainer."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import fast_first, tiny_config
from trainer_helpers import SETTINGS, logged, sentences, train_and_resume, trainer_of
from transformers import AutoModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.training.recipe import Recipe


@pytest.fixture(scope="module")
def start(tmp_path_factory, tokenizer):
    """A checkpoint with a masked-LM head, which DiffCSE's generator needs."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("encoder") / "start"
    config = tiny_config(initializer_range=0.2)
    AutoModelForCL.from_config(config, do_mlm=True).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# --- objectives ---


@pytest.fixture(scope="module")
def run(objective, start, tokenizer, tmp_path_factory):
    """A run of six steps, the weights before it, and a run that was resumed in the middle, to the same bits."""
    folder = tmp_path_factory.mktemp("run")
    new_trainer = partial(trainer_of, start, folder, tokenizer, objective)
    before = new_trainer().model.state_dict()
    whole, resumed = train_and_resume(new_trainer, 3)
    whole.save_model(folder / "saved")
    return SimpleNamespace(before=before, whole=whole, resumed=resumed, folder=folder / "saved")


EVERY_OBJECTIVE = pytest.mark.parametrize("objective", SETTINGS, scope="module")


@EVERY_OBJECTIVE
def test_an_objective_trains_and_is_resumed_to_the_same_losses(run):
    assert logged(run.resumed, "loss") == logged(run.whole, "loss")


@EVERY_OBJECTIVE
def test_an_objective_trains_the_word_embeddings(run):
    after = run.whole.model.state_dict()
    changed = [name for name in after if not torch.equal(run.before[name], after[name])]
    assert any("word_embeddings" in name for name in changed)


@EVERY_OBJECTIVE
def test_a_run_with_an_objective_is_evaluated(run):
    assert logged(run.whole, "eval_stsb_spearman")


@EVERY_OBJECTIVE
def test_a_model_of_an_objective_opens_in_transformers(run):
    """But for the head of a masked LM."""
    _, info = AutoModel.from_pretrained(run.folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not [key for key in info["unexpected_keys"] if "cls." not in key]


@EVERY_OBJECTIVE
def test_a_model_of_an_objective_encodes_texts(run):
    vectors = SimCSE(run.folder, device="cpu").encode(sentences(3))
    assert vectors.shape == (3, 32)
    assert torch.isfinite(vectors).all()


@pytest.mark.parametrize("objective, tokens", [("simcse", 8), ("esimcse", 8 + 2), ("promptbert", 8 + 5)])
def test_the_fixed_length_of_compiled_batches_leaves_room_for_repeated_tokens_and_templates(
    start, tmp_path, tokenizer, objective, tokens
):
    changes = {"max_seq_length": 8, "torch_compile": True}
    trainer = trainer_of(start, tmp_path, tokenizer, objective, **changes)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == (4, 2, tokens)


# --- views ---

NEED_MORE = ("synonyms", "eda")  # a dictionary
DRAWN_VIEWS = sorted(name for name, view in VIEW_CLASSES.items() if view.is_drawn and name not in NEED_MORE)


@pytest.mark.parametrize("view", DRAWN_VIEWS)
@pytest.mark.parametrize("both", fast_first(False, True))
def test_a_run_with_a_view_can_be_resumed_in_the_second_epoch(start, tmp_path, tokenizer, view, both):
    changes = {
        "view": view,
        "view_both": both,
        "max_steps": 8,
        "save_steps": 5,
        "eval_strategy": "no",
    }
    new_trainer = partial(trainer_of, start, tmp_path, tokenizer, "simcse", {}, **changes)
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


@pytest.fixture
def nli(tmp_path):
    """Three labelled pairs of two premises."""
    file = tmp_path / "nli.csv"
    file.write_text(
        "premise,hypothesis,label\n"
        "a cat sat,a cat,entailment\n"
        "a cat sat,a dog,contradiction\n"
        "a dog ran,it ran,neutral\n"
    )
    return file


def test_labelled_pairs_become_rows_of_pairs(nli, texts_of):
    rows = texts_of("sup", f"--train_file {nli} --objective supcon")
    assert [len(row) for row in rows["texts"]] == [2, 2, 2]


@pytest.fixture
def premises(nli, texts_of):
    """The rows of premises."""
    by_premise = "--objective_options nli_sampling=premises"
    return texts_of("sup", f"--train_file {nli} --objective supcon {by_premise}")


def test_labelled_pairs_become_rows_of_premises_if_they_are_asked_for(premises):
    assert premises["texts"][:] == [
        ["a cat sat", "a cat", "a dog"],
        ["a dog ran", "it ran"],
    ]


def test_rows_of_premises_have_the_relations_of_their_hypotheses(premises):
    assert premises["relations"][:] == [[0, 2], [1]]


def test_labelled_pairs_may_be_limited(nli, texts_of):
    words = f"--train_file {nli} --objective softmax --max_train_samples 2"
    assert len(texts_of("sup", words)) == 2


@pytest.fixture
def pairs(tmp_path):
    return tmp_path / "pairs.csv"


def test_scored_pairs_are_read_in_the_formats_of_a_dev_set(pairs, texts_of):
    pairs.write_text("sentence1,sentence2,score\na cat,the cat,4.5\na dog,a bird,1\na man,it ran,0\n")
    words = f"--train_file {pairs} --objective cosent --max_train_samples 2"
    assert texts_of("sup", words).to_dict() == {
        "sent0": ["a cat", "a dog"],
        "sent1": ["the cat", "a bird"],
        "score": [4.5, 1.0],
    }


def test_labelled_pairs_that_do_not_belong_together_stay(pairs, texts_of):
    pairs.write_text("sentence1,sentence2,label\na cat,the cat,1\na dog,a bird,0\n")
    rows = texts_of("sup", f"--train_file {pairs} --objective cosent")
    assert rows["score"][:] == [1.0, 0.0]


# --- texts with class labels ---


@pytest.fixture
def tickets(tmp_path):
    """Four texts of two classes."""
    file = tmp_path / "tickets.csv"
    file.write_text("text,label\na cat,animal\na dog,animal\na car,thing\na bus,thing\n")
    return file


@pytest.fixture
def decided(tickets, start, tmp_path):
    """`decided(method, words)` are the arguments of a run on the file."""

    def decide(method="sup", words=""):
        options = f"--output_dir {tmp_path / 'out'} --use_cpu --model {start}"
        line = f"--train_file {tickets} {options} {words}"
        return Recipe.read(method, line.split()).decide()

    return decide


def test_texts_with_class_labels_choose_their_objective(decided):
    assert decided().model.objective == "class_labels"


def test_texts_with_class_labels_choose_the_batch_size_of_their_objective(decided):
    assert decided().training.per_device_train_batch_size == 64


def test_names_of_classes_become_numbers(tickets, texts_of):
    rows = texts_of("sup", f"--train_file {tickets}")
    assert rows["label"][:] == [0, 0, 1, 1]


def test_an_objective_that_is_given_counts_before_that_of_class_labels(decided):
    assert decided(words="--objective cosent").model.objective == "cosent"


def test_without_labels_texts_with_classes_choose_no_objective(decided):
    assert decided("unsup").model.objective is None


def test_labelled_pairs_choose_no_objective_of_class_labels(decided, tickets):
    tickets.write_text("question,answer,label\na cat,an animal,1\n")
    assert decided().model.objective is None


# --- documents ---

DOCUMENTS = [sentences(8, seed=number) for number in range(3)]


@pytest.fixture
def documents(tmp_path):
    """A file of three documents of eight sentences."""
    file = tmp_path / "documents.txt"
    file.write_text("\n\n".join("\n".join(each) for each in DOCUMENTS) + "\n")
    return file


@pytest.fixture
def neighbours(documents, texts_of):
    return texts_of("unsup", f"--train_file {documents} --view next_sentence")


def test_documents_become_pairs_of_neighbouring_sentences(neighbours):
    first = (neighbours["sent0"][0], neighbours["sent1"][0])
    assert first == tuple(DOCUMENTS[0][:2])


def test_every_sentence_but_the_first_of_a_document_follows_another(neighbours):
    assert len(neighbours) == 3 * 7


@pytest.fixture
def spans(documents, texts_of):
    return texts_of("unsup", f"--train_file {documents} --objective declutr")


def test_documents_become_rows_of_spans(spans):
    assert len(spans) == 3


def test_a_row_of_spans_has_an_anchor_and_two_positives(spans):
    assert len(spans[0]["input_ids"]) == 3
