"""The transfer tasks from SentEval's folders."""

import pytest
from evaluation_helpers import SHARED, write, write_transfer

from simcse_hf.evaluation.sts import TaskNotFound
from simcse_hf.evaluation.transfer import TRANSFER_EXAMPLES, LabelledTexts, read_transfer_task


def test_tasks_are_read_with_their_splits_and_labels(tmp_path):
    write_transfer(tmp_path)
    mr = read_transfer_task("MR", tmp_path)
    assert list(mr) == ["train"] and mr["train"].labels == [1] * 60 + [0] * 60
    starts = {(text.split()[0], label) for text, label in zip(mr["train"].texts, mr["train"].labels, strict=True)}
    assert starts == {("good", 1), ("bad", 0)}
    sst = read_transfer_task("SST2", tmp_path)
    assert list(sst) == ["train", "dev", "test"] and sst["dev"].labels[:4] == [0, 1, 0, 1]
    trec = read_transfer_task("TREC", tmp_path)
    assert trec["test"].labels[:6] == [0, 1, 2, 3, 4, 5] and trec["test"].texts[1].startswith("DES ")
    mrpc = read_transfer_task("MRPC", tmp_path)["test"]
    assert len(mrpc.texts) == len(mrpc.texts2) == len(mrpc.labels) == 60 and set(mrpc.labels) == {0, 1}


def test_sst5_lines_begin_with_the_label(tmp_path):
    for split in ("train", "dev", "test"):
        write(tmp_path / "SST/fine" / f"sentiment-{split}", ["3 fine  enough ", "0 not good"])
    sst5 = read_transfer_task("SST5", tmp_path)["test"]
    assert sst5.texts == ["fine enough", "not good"] and sst5.labels == [3, 0]


def test_examples_are_sorted_stably_by_tokens_and_label():
    examples = LabelledTexts(["a b", "ccc", "d e", "f"], [1, 1, 0, 1], ["x", "y z", "x", "y"])
    ordered = examples.sorted_by_length()
    assert ordered.texts == ["f", "ccc", "d e", "a b"]
    assert ordered.texts2 == ["y", "y z", "x", "x"] and ordered.labels == [1, 1, 0, 1]


def test_a_missing_task_is_not_found_and_an_incomplete_one_is_an_error(tmp_path):
    for task in TRANSFER_EXAMPLES:
        with pytest.raises(TaskNotFound, match="no folder"):
            read_transfer_task(task, tmp_path)
    write_transfer(tmp_path)
    (tmp_path / "MR/rt-polarity.neg").unlink()
    with pytest.raises(FileNotFoundError, match="rt-polarity.neg"):
        read_transfer_task("MR", tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")
@pytest.mark.parametrize("task", ["MR", "SUBJ", "SST2", "SST5", "TREC", "MRPC"])
def test_the_real_sets_have_their_published_sizes(task):
    splits = read_transfer_task(task, SHARED / "data/senteval/downstream")
    assert {split: len(examples) for split, examples in splits.items()} == TRANSFER_EXAMPLES[task]
    assert all(text for examples in splits.values() for text in examples.texts)
