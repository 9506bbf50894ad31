"""What training refuses, before the first step and with the name of what is wrong."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import VOCABULARY, tiny_config
from datasets import Dataset, DatasetDict
from datasets.distributed import split_dataset_by_node
from trainer_helpers import EVALUATES, model_of, pairs, refuses, rows_for, sentences, texts, train_command, vectors_of
from transformers import BertModel, EarlyStoppingCallback, TrainingArguments

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments

PROMPTS = {"anchor": "the old ", "positive": "a red "}
TRIPLETS = [{"query": "cat sat", "positive": "dog ran on the mat", "negative": "big man"}] * 16
GROUPED = {"train_sampling_strategy": "group_by_length"}
TOKEN_IDS = Dataset.from_dict({"input_ids": [[[2, 6, 7, 3]]] * 32})
STREAM = texts(24, 2).to_iterable_dataset()
APART = {"batch_sampler": "no_duplicates"}
LABELLED = {"text": sentences(32), "label": [i % 4 for i in range(32)]}
OWN_CLASSES = {"datasets": {"own": {"objective": "class_labels"}}}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield {"text": "a cat"}


def started(*given, **options):
    return lambda make: make(*given, **options).train()


def made(*given, **options):
    return lambda make: make(*given, **options)


def model_for(objective):
    return model_of(objective=objective, pooler_type="avg_no_cls")


#: What the message names, all of it: what is done with `make`, a function that makes a trainer.
REFUSALS = {
    # rows
    "train_dataset DatasetDict 'train'": made(DatasetDict(train=texts(8))),  # a DatasetDict
    "train_dataset datasets.IterableDataset": made(Stream()),  # a stream of torch
    "train_dataset empty": started(Dataset.from_dict({"input_ids": []})),  # no rows
    "train_dataset 16 alike": started(["a cat sat"] * 16),  # texts that are all the same
    "train_dataset 100% unknown": started(["猫 坐 在 垫子 上"] * 16),  # words that the model does not know
    "dropout fixed_mask": started(model=model_of(dropout=0.0)),  # no dropout
    "32 64 unset": started(per_device_train_batch_size=64, dataloader_drop_last=True),  # fewer rows than a batch
    "fixed_mask": started(texts(32, 2), view="fixed_mask"),  # a view of pairs
    # neighbours in a list
    "train_dataset documents.txt next_sentence_pairs": started(sentences(32), view="next_sentence"),
    "relations": started({"input_ids": [[[2, 5, 3], [2, 6, 3]]] * 8}, model_for("softmax+supcon")),  # no relations
    "'length' train_dataset input_ids": started(TOKEN_IDS, **GROUPED),  # lengths of token ids
    "max_steps": made(STREAM, max_steps=-1),  # a stream without a number of steps
    "dataloader_num_workers stream": made(STREAM, dataloader_num_workers=1),  # a stream with workers
    "train_dataset whole stream": made(split_dataset_by_node(STREAM, 0, 2)),  # a part of a stream
    "train_dataset 24 30": made(STREAM, per_device_train_batch_size=30),  # a stream shorter than a batch
    # batches of different texts in an order that the rows or the arguments choose
    "no_duplicates stream": started(STREAM, **APART),  # a stream without duplicates
    "no_duplicates train_dataset": started(view="delete_words", **APART),  # views without duplicates
    "no_duplicates train_sampling_strategy": started(**GROUPED, **APART),  # lengths without duplicates
    "no_duplicates class": started(LABELLED, model_for("class_labels"), **APART),  # classes without duplicates
    # a mixture without duplicates
    "no_duplicates own class": started({"plain": texts(16), "own": LABELLED}, **OWN_CLASSES, **APART),
    # model and arguments
    "BertModel AutoModelForCL.from_pretrained": made(model=BertModel(tiny_config())),  # a model of another class
    # arguments of another class
    "args TrainingArguments SimCSETrainingArguments": lambda make: SimCSETrainer(
        model_of(), TrainingArguments("out", use_cpu=True), texts(8)
    ),
    # a tokenizer with further ids
    "tokenizer resize_token_embeddings": made(
        model=AutoModelForCL.from_config(tiny_config(vocab_size=len(VOCABULARY) - 1))
    ),
    "seed -1": made(seed=-1),  # a negative seed
    # what transformers and torch would refuse without the name of an argument, when the run begins
    "refuses the arguments beta": started(adam_beta1=2.0),
    "refuses the arguments min_lr": started(lr_scheduler_type="cosine_with_min_lr"),
    "refuses the arguments slope": started(lr_scheduler_kwargs={"slope": 1}),
    "refuses the arguments persistent_workers": started(dataloader_persistent_workers=True),
    "lora: No modules were targeted": made(lora={"r": 2, "target_modules": ["nothing"]}),  # layers that are not there
    "view identity fixed_mask": made(view="mirror"),  # an unknown view
    # evaluation
    "eval_strategy": started(callbacks=[EarlyStoppingCallback()]),  # early stopping without evaluations
    # prompts and lengths of columns
    # a prompt that fills the length
    "positive 'a red '": made(TRIPLETS, prompts=PROMPTS, max_seq_length={"anchor": 16, "positive": 4}),
    "anchor positive negative query": made(TRIPLETS, prompts={"query": "the "}),  # a prompt of no column
    # a length of the positive of single sentences
    "train_dataset single max_seq_length": made(sentences(16), max_seq_length={"anchor": 16, "positive": 20}),
    # a prompt of the positive of single sentences
    "train_dataset single prompts": made(sentences(16), prompts={"anchor": "a ", "positive": "the "}),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_cannot_be_trained_is_refused_by_its_name(words, make):
    with refuses(words, (ValueError, TypeError)):
        REFUSALS[words](make)


def test_fewer_rows_than_one_batch_over_all_processes_are_refused(make, monkeypatch):
    trainer = make(texts(15))
    monkeypatch.setattr(SimCSETrainingArguments, "world_size", 2)
    with refuses("15 rows 16, fewer processes"):
        trainer.train()


#: (what a run with a teacher has in place of its own settings, what the message names)
TEACHERS = [
    ({"settings": {}, "teacher": "a-model-that-nobody-encodes-with"}, "'simcse' reads no teacher"),
    ({"guide": None, "settings": {}, "teacher": None}, "guide positive"),  # the guide has the folder
    ({"data": STREAM}, "stream"),
    ({"view": "crop"}, "view crop"),
]


@pytest.mark.parametrize("changes, words", TEACHERS, ids=[words for _, words in TEACHERS])
def test_what_a_teacher_or_a_guide_cannot_serve_is_refused(make, changes, words, tmp_path):
    folder = vectors_of(tmp_path / "sentences", texts(24))
    options = {"data": texts(24), "settings": {"objective": "distill"}, "teacher": folder} | changes
    if "guide" in options:
        options["guide"] = folder
    model = model_of(pooler_type="avg", **options.pop("settings"))
    with refuses(words):
        make(model=model, **options)


def test_masked_lm_with_sharded_weights_is_refused(make, monkeypatch):
    trainer = make(model=model_of(do_mlm=True))
    trainer.is_fsdp_enabled = trainer.is_sharded = True
    for version in (1, 2):
        plugin = SimpleNamespace(fsdp_version=version)
        monkeypatch.setattr(trainer.accelerator.state, "fsdp_plugin", plugin, raising=False)
        if version == 1:
            trainer.check_run()
    with refuses("do_mlm FSDP2"):
        trainer.check_run()


# --- the commands ---

FILES = {
    "texts.txt": "a cat\na dog\n" * 9,
    "pairs.csv": "sentence1,sentence2,score\na cat,the cat,4.5\na dog,a bird,1\n",
    "nli.csv": "premise,hypothesis,label\na cat,the cat,0\n",
}


@pytest.fixture
def start(tmp_path, monkeypatch, save_checkpoint):
    """A saved model; the working directory has `FILES`."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return save_checkpoint(model_of())


#: (the command, its words and its recipe, what the message names)
COMMANDS = [
    ("sup", "--train_file pairs.csv --objective angle --columns a b", "", "--columns score"),
    ("sup", "--train_file nli.csv --objective supcon --max_train_samples 0", "", "max_train_samples 0"),
    ("sup", "--train_file texts.txt", "datasets: {a: {train_file: texts.txt}}", "datasets --train_file"),
    ("sup", "", "datasets: {a: {share: 1}}", "'a'"),
    ("sup", "", "datasets: {a: {train_file: missing.csv}}", "datasets a missing.csv"),
    ("unsup", "--dataset_name org/texts --view next_sentence", "", "documents org/texts --train_file"),
    ("unsup", "--train_file texts.txt", "accelerator_config: {nothing: 1}", "AcceleratorConfig nothing"),
    ("unsup", "--train_file texts.txt --eval_strategy steps", "", "eval_strategy --dev_file"),
]


@pytest.mark.parametrize("method, words, recipe, named", COMMANDS)
def test_options_that_do_not_fit_the_texts_are_refused(start, method, words, recipe, named):
    Path("run.yaml").write_text(f"model_name_or_path: {start}\noutput_dir: out\nuse_cpu: true\n{recipe}\n")
    with refuses(named):
        train_command(method, ["run.yaml", *words.split()])


@pytest.mark.parametrize("objective", ["simcse", "softmax"])  # of which the classifier could learn
def test_a_model_whose_weights_are_all_frozen_is_refused(make, objective):
    model = model_for(objective).requires_grad_(False)
    rows = rows_for(objective)
    trainer = make(rows, model, dev_set=pairs(), gradcache_chunk_size=4, **EVALUATES)
    with refuses("all weights frozen requires_grad"):
        trainer.train()
    assert not trainer.state.log_history  # not even the start was evaluated
