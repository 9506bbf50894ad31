"""Every objective and view can be trained, evaluated, saved, resumed and reloaded with the Trainer."""

import pytest
import torch
from conftest import fast_first, tiny_config
from trainer_helpers import SETTINGS, logged, sentences, train_and_resume, trainer_of
from transformers import AutoModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.training.recipe import Recipe


@pytest.fixture
def start(save_checkpoint):
    """A checkpoint with a masked-LM head, which DiffCSE's generator needs."""
    torch.manual_seed(1)
    model = AutoModelForCL.from_config(tiny_config(initializer_range=0.2), do_mlm=True)
    return save_checkpoint(model, "start")


@pytest.mark.parametrize("objective", SETTINGS)
def test_an_objective_trains_evaluates_resumes_and_reloads(
    start, tmp_path, tokenizer, objective
):
    before = trainer_of(start, tmp_path, tokenizer, objective).model.state_dict()
    whole, resumed = train_and_resume(
        lambda: trainer_of(start, tmp_path, tokenizer, objective), 3
    )
    after = whole.model.state_dict()
    assert any(
        not torch.equal(before[n], after[n]) for n in before if "word_embeddings" in n
    )
    assert logged(whole, "eval_stsb_spearman") and logged(resumed, "loss") == logged(
        whole, "loss"
    )

    whole.save_model(tmp_path / "saved")
    _, info = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and all(
        "cls." in key for key in info["unexpected_keys"]
    )
    vectors = SimCSE(tmp_path / "saved", device="cpu").encode(sentences(3))
    assert torch.isfinite(vectors).all() and vectors.shape == (3, 32)


@pytest.mark.parametrize(
    "objective, tokens", [("simcse", 8), ("esimcse", 8 + 2), ("promptbert", 8 + 5)]
)
def test_the_fixed_length_of_compiled_batches_leaves_room_for_repeated_tokens_and_templates(
    start, tmp_path, tokenizer, objective, tokens
):
    trainer = trainer_of(
        start, tmp_path, tokenizer, objective, max_seq_length=8, torch_compile=True
    )
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape == (
        4,
        2,
        tokens,
    )


@pytest.mark.parametrize(
    "view",
    sorted(
        name
        for name in VIEW_CLASSES
        if VIEW_CLASSES[name].is_drawn and name not in ("synonyms", "eda")
    ),
)
@pytest.mark.parametrize("both", fast_first(False, True))
def test_a_run_with_a_view_can_be_resumed_in_the_second_epoch(
    start, tmp_path, tokenizer, view, both
):
    changes = {
        "view": view,
        "view_both": both,
        "max_steps": 8,
        "save_steps": 5,
        "eval_strategy": "no",
    }
    train_and_resume(
        lambda: trainer_of(
            start, tmp_path, tokenizer, "simcse", settings={}, **changes
        ),
        5,
    )


# --- the scripts' texts ---


@pytest.fixture
def texts_of(tmp_path, start):
    """`texts_of(words, supervised)` returns the texts that a command trains on, or the rows that it draws of them."""

    def texts_of(words, supervised):
        line = f"--output_dir {tmp_path / 'out'} --use_cpu --model {start} --max_seq_length 12 {words}"
        trainer = Recipe.read("sup" if supervised else "unsup", line.split()).trainer()
        return next(iter(trainer.rows.texts), trainer.train_dataset)

    return texts_of


def test_labelled_pairs_become_rows_of_pairs_or_of_premises(tmp_path, texts_of):
    file = tmp_path / "nli.csv"
    file.write_text(
        "premise,hypothesis,label\n"
        "a cat sat,a cat,entailment\na cat sat,a dog,contradiction\na dog ran,it ran,neutral\n"
    )
    by_pair = texts_of(f"--train_file {file} --objective supcon", True)
    assert [len(row) for row in by_pair["texts"]] == [2, 2, 2]
    grouped = texts_of(
        f"--train_file {file} --objective supcon --objective_options nli_sampling=premises",
        True,
    )
    assert grouped["texts"][:] == [
        ["a cat sat", "a cat", "a dog"],
        ["a dog ran", "it ran"],
    ]
    assert grouped["relations"][:] == [[0, 2], [1]]
    assert (
        len(
            texts_of(
                f"--train_file {file} --objective softmax --max_train_samples 2", True
            )
        )
        == 2
    )


def test_scored_pairs_are_read_in_the_formats_of_a_dev_set(tmp_path, texts_of):
    file = tmp_path / "pairs.csv"
    file.write_text(
        "sentence1,sentence2,score\na cat,the cat,4.5\na dog,a bird,1\na man,it ran,0\n"
    )
    pairs = texts_of(
        f"--train_file {file} --objective cosent --max_train_samples 2", True
    )
    assert pairs.to_dict() == {
        "sent0": ["a cat", "a dog"],
        "sent1": ["the cat", "a bird"],
        "score": [4.5, 1.0],
    }
    file.write_text("sentence1,sentence2,label\na cat,the cat,1\na dog,a bird,0\n")
    labelled = texts_of(f"--train_file {file} --objective cosent", True)
    assert labelled["score"][:] == [1.0, 0.0], (
        "the pairs that do not belong together stay"
    )


def test_texts_with_class_labels_choose_their_objective(tmp_path, texts_of, start):
    file = tmp_path / "tickets.csv"
    file.write_text(
        "text,label\na cat,animal\na dog,animal\na car,thing\na bus,thing\n"
    )
    line = (
        f"--output_dir {tmp_path / 'out'} --use_cpu --train_file {file} --model {start}"
    )

    def chosen(words="", supervised=True):
        read = Recipe.read("sup" if supervised else "unsup", f"{line} {words}".split())
        return read.completed().decide()

    assert (
        chosen().model.objective == "class_labels"
        and chosen().training.per_device_train_batch_size == 64
    )
    assert texts_of(f"--train_file {file}", True)["label"][:] == [0, 0, 1, 1]
    assert (
        chosen("--objective cosent").model.objective == "cosent"
        and chosen("", False).model.objective is None
    )
    file.write_text("question,answer,label\na cat,an animal,1\n")
    assert chosen().model.objective is None


def test_documents_become_pairs_of_neighbouring_sentences_or_spans(tmp_path, texts_of):
    file = tmp_path / "documents.txt"
    documents = [sentences(8, seed=i) for i in range(3)]
    file.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    rows = texts_of(f"--train_file {file} --view next_sentence", False)
    assert (rows["sent0"][0], rows["sent1"][0]) == tuple(documents[0][:2]) and len(
        rows
    ) == 21
    spans = texts_of(f"--train_file {file} --objective declutr", False)
    assert len(spans) == 3 and len(spans[0]["input_ids"]) == 3
