"""What training refuses, before the first step and with the name of what is wrong."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import VOCABULARY, tiny_config
from datasets import Dataset, DatasetDict
from datasets.distributed import split_dataset_by_node
from trainer_helpers import (
    EVALUATES,
    make,
    model_of,
    pairs,
    refuses,
    rows_for,
    sentences,
    texts,
    train_command,
    vectors_of,
)
from transformers import BertModel, EarlyStoppingCallback, TrainingArguments

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments

PROMPTS = {"anchor": "the old ", "positive": "a red "}
TRIPLETS = [{"query": "cat sat", "positive": "dog ran on the mat", "negative": "big man"}] * 16
GROUPED = {"train_sampling_strategy": "group_by_length"}
TOKEN_IDS = Dataset.from_dict({"input_ids": [[[2, 6, 7, 3]]] * 32})
STREAM = texts(24, 2).to_iterable_dataset()
#: Single sentences, of which nobody knows the next one.
NO_DOCUMENTS = {"a list": sentences(32), "token ids": TOKEN_IDS, "a stream": texts(24).to_iterable_dataset()}
APART = {"batch_sampler": "no_duplicates"}
LABELLED = Dataset.from_dict({"text": sentences(32), "label": [i % 4 for i in range(32)]})
#: Rows and arguments that choose the order of the rows themselves, and what the message names.
NOT_APART = {
    "a stream": ({"data": STREAM}, "stream"),
    "drawn views": ({"view": "delete_words"}, "train_dataset"),
    "rows by length": (GROUPED, "train_sampling_strategy"),
    "classes": (
        {
            "data": LABELLED,
            "model": model_of(objective="class_labels", pooler_type="avg"),
        },
        "class",
    ),
    "classes of a mixture": (
        {
            "data": {"plain": texts(16), "own": LABELLED},
            "datasets": {"own": {"objective": "class_labels"}},
        },
        "own class",
    ),
    "few texts": (
        {"data": ["a cat", "a dog"] * 16},
        "32 8 per_device_train_batch_size",
    ),
}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield {"text": "a cat"}


def started(*given, **options):
    return lambda make: make(*given, **options).train()


def made(*given, **options):
    return lambda make: make(*given, **options)


def without_relations(objective):
    ids = Dataset.from_dict({"input_ids": [[[2, 5, 3], [2, 6, 3]]] * 8})
    return lambda make: make(ids, model_of(objective=objective, pooler_type="avg_no_cls")).train()


#: name: (what is done with `make`, a function that makes a trainer; what the message names, all of it)
REFUSALS = {
    # rows
    "a DatasetDict": (
        made(DatasetDict(train=texts(8))),
        "train_dataset DatasetDict 'train'",
    ),
    "a stream of torch": (
        made(Stream()),
        "train_dataset IterableDataset datasets.IterableDataset",
    ),
    "an empty list": (made([]), "train_dataset no rows"),
    "no rows": (started(Dataset.from_dict({"input_ids": []})), "train_dataset empty"),
    "texts that are all the same": (
        started(["a cat sat"] * 16),
        "train_dataset 16 alike",
    ),
    "a dev set with one score": (
        made(dev_set=[{"sentence1": "cat", "sentence2": "dog", "score": 3}] * 4),
        "dev_set 4 score 3",
    ),
    "words that the model does not know": (
        started(["猫 坐 在 垫子 上"] * 16),
        "train_dataset 100% unknown",
    ),
    "no dropout": (started(model=model_of(dropout=0.0)), "dropout fixed_mask"),
    "fewer rows than a batch": (
        started(per_device_train_batch_size=64, dataloader_drop_last=True),
        "32 64 unset",
    ),
    "a view of pairs": (started(texts(32, 2), view="fixed_mask"), "fixed_mask"),
    **{
        f"neighbours in {name}": (
            started(data, view="next_sentence"),
            "train_dataset documents.txt next_sentence_pairs",
        )
        for name, data in NO_DOCUMENTS.items()
    },
    **{f"no relations for {x}": (without_relations(x), "relations") for x in ("softmax", "softmax+supcon")},
    "lengths of token ids": (
        started(TOKEN_IDS, **GROUPED),
        "'length' train_dataset input_ids",
    ),
    "a stream without a number of steps": (made(STREAM, max_steps=-1), "max_steps"),
    "a stream with workers": (
        made(STREAM, dataloader_num_workers=1),
        "dataloader_num_workers stream",
    ),
    "a part of a stream": (made(split_dataset_by_node(STREAM, 0, 2)), "train_dataset whole stream"),
    "a stream shorter than a batch": (made(STREAM, per_device_train_batch_size=30), "train_dataset 24 30"),
    **{
        f"no duplicates in {name}": (
            lambda make, own=own: make(**APART | own).train(),
            f"no_duplicates {words}",
        )
        for name, (own, words) in NOT_APART.items()
    },
    # model and arguments
    "a model of another class": (
        made(model=BertModel(tiny_config())),
        "BertModel AutoModelForCL.from_pretrained",
    ),
    "no model": (
        lambda make: SimCSETrainer(None, make(max_steps=1).args, texts(8), processing_class=make.args[1]),
        "NoneType",
    ),
    "arguments of another class": (
        lambda make: SimCSETrainer(model_of(), TrainingArguments("out", use_cpu=True), texts(8)),
        "args TrainingArguments SimCSETrainingArguments",
    ),
    "a tokenizer with further ids": (
        made(model=AutoModelForCL.from_config(tiny_config(vocab_size=len(VOCABULARY) - 1))),
        "tokenizer resize_token_embeddings",
    ),
    "a negative seed": (made(seed=-1), "seed -1"),
    "a rate without a view": (made(view_rate=0.5), "view_rate identity"),
    "an unknown view": (made(view="mirror"), "view identity fixed_mask"),
    "compiled chunks": (started(gradcache_chunk_size=4, torch_compile=True), "torch_compile"),
    # evaluation
    "early stopping without evaluations": (started(callbacks=[EarlyStoppingCallback()]), "eval_strategy"),
    "a metric that no dev set has": (
        started(dev_set=pairs(), metric_for_best_model="stbs_spearman", **EVALUATES),
        "metric_for_best_model 'stbs_spearman' 'stsb_spearman'",
    ),
    # prompts and lengths of columns
    "a prompt that fills the length": (
        made(TRIPLETS, prompts=PROMPTS, max_seq_length={"anchor": 16, "positive": 4}),
        "positive 'a red '",
    ),
    "a prompt of no column": (
        made(TRIPLETS, prompts={"query": "the "}),
        "anchor positive negative query",
    ),
    "a length of the positive of single sentences": (
        made(sentences(16), max_seq_length={"anchor": 16, "positive": 20}),
        "train_dataset single max_seq_length",
    ),
    "a prompt of the positive of single sentences": (
        made(sentences(16), prompts={"anchor": "a ", "positive": "the "}),
        "train_dataset single prompts",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_trained_is_refused_by_its_name(name, tmp_path, tokenizer):
    do, words = REFUSALS[name]
    with refuses(words, (ValueError, TypeError)):
        do(partial(make, tmp_path, tokenizer))


def test_fewer_rows_than_one_batch_over_all_processes_are_refused(tmp_path, tokenizer, monkeypatch):
    trainer = make(tmp_path, tokenizer, texts(15))
    monkeypatch.setattr(SimCSETrainingArguments, "world_size", 2)
    with pytest.raises(ValueError, match="15 rows.*16, .*fewer processes"):
        trainer.train()


#: (what a run with a teacher has in place of its own settings, what the message names)
TEACHERS = [
    ({"settings": {}}, "'simcse' teacher"),
    (
        {"guide": None, "settings": {}, "teacher": None},
        "guide positive",
    ),  # the guide has the folder
    ({"data": STREAM}, "stream"),
    ({"view": "crop"}, "view crop"),
    ({"data": TOKEN_IDS}, "train_dataset input_ids"),
]


@pytest.mark.parametrize("changes, words", TEACHERS, ids=[words for _, words in TEACHERS])
def test_what_a_teacher_or_a_guide_cannot_serve_is_refused(changes, words, tmp_path, tokenizer):
    folder = vectors_of(tmp_path / "sentences", texts(24))
    options = {
        "data": texts(24),
        "settings": {"objective": "distill"},
        "teacher": folder,
    } | changes
    if "guide" in options:
        options["guide"] = folder
    model = model_of(pooler_type="avg", **options.pop("settings"))
    with refuses(words):
        make(tmp_path, tokenizer, model=model, **options)


def test_masked_lm_with_sharded_weights_is_refused(tmp_path, tokenizer, monkeypatch):
    trainer = make(tmp_path, tokenizer, model=model_of(do_mlm=True))
    trainer.is_fsdp_enabled = True
    for version in (1, 2):
        plugin = SimpleNamespace(fsdp_version=version)
        monkeypatch.setattr(trainer.accelerator.state, "fsdp_plugin", plugin, raising=False)
        if version == 1:
            trainer.check_run()
    with pytest.raises(ValueError, match="do_mlm.*FSDP2"):
        trainer.check_run()


# --- the commands ---

FILES = {
    "texts.txt": "a cat\na dog\n" * 9,
    "pairs.csv": "sentence1,sentence2,score\na cat,the cat,4.5\na dog,a bird,1\n",
    "wrong.csv": "sentence1,sentence2,score\na cat,the cat,much\n",
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
    (
        "sup",
        "--train_file pairs.csv --objective angle --columns a b",
        "",
        "--columns score",
    ),
    ("sup", "--train_file wrong.csv --objective angle", "", "wrong.csv 2 'much'"),
    (
        "sup",
        "--train_file nli.csv --objective supcon --max_train_samples 0",
        "",
        "max_train_samples 0",
    ),
    (
        "sup",
        "--train_file texts.txt",
        "datasets: {a: {train_file: texts.txt}}",
        "datasets --train_file",
    ),
    ("sup", "", "datasets: {a: {share: 1}}", "'a'"),
    ("sup", "", "datasets: {a: {train_file: missing.csv}}", "datasets a missing.csv"),
    (
        "unsup",
        "--dataset_name org/texts --view next_sentence",
        "",
        "documents org/texts --train_file",
    ),
    ("unsup", "--train_file texts.txt --streaming", "", "--streaming --max_steps"),
]


@pytest.mark.parametrize("method, words, recipe, named", COMMANDS)
def test_options_that_do_not_fit_the_texts_are_refused(start, method, words, recipe, named):
    Path("run.yaml").write_text(f"model_name_or_path: {start}\noutput_dir: out\nuse_cpu: true\n{recipe}\n")
    with refuses(named):
        train_command(method, ["run.yaml", *words.split()])


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("simcse", {"gradcache_chunk_size": 4, "dev_set": pairs(), **EVALUATES}),
        ("softmax", {}),  # whose classifier could learn
    ],
)
def test_a_model_whose_weights_are_all_frozen_is_refused(objective, changes, tmp_path, tokenizer):
    model = model_of(objective=objective, pooler_type="avg").requires_grad_(False)
    trainer = make(tmp_path, tokenizer, rows_for(objective, tokenizer), model, **changes)
    with refuses("all weights frozen requires_grad"):
        trainer.train()
    assert not trainer.state.log_history  # not even the start was evaluated
