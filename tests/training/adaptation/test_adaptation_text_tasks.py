"""Tasks that are drawn from the text itself."""

import random

import pytest
from evaluation_helpers import write

from simcse_hf.evaluation.user_tasks import read_task
from simcse_hf.training.adaptation.corpus import read_corpus
from simcse_hf.training.adaptation.tasks import draw_tasks, prepare_tasks

WORDS = [f"word{number}" for number in range(40)]


def sentences(count, seed=0, length=9):
    rng = random.Random(seed)
    return [" ".join(rng.sample(WORDS, length)) + f" s{number}" for number in range(count)]


def test_any_text_gives_a_task_of_finding_shortened_texts(tmp_path):
    corpus = read_corpus(write(tmp_path / "texts.txt", sentences(400)))
    (task,) = draw_tasks(corpus)
    assert task.name == "shortened" and len(task.queries) == 80 and len(task.documents) == 400
    for i, query in enumerate(task.queries):
        original = task.originals[i].split()
        assert task.relevant[i] == [i]
        assert len(query.split()) == len(task.documents[i].split()) == 5  # of 10 words
        assert set(query.split()) <= set(original) and set(task.documents[i].split()) <= set(original)
    assert draw_tasks(corpus) == [task]


def test_documents_give_a_task_of_finding_sentences_of_the_same_document(tmp_path):
    texts = sentences(600)
    documents = [texts[i : i + 3] for i in range(0, 600, 3)]
    path = tmp_path / "documents.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    task, shortened = draw_tasks(read_corpus(path))
    assert (task.name, shortened.name) == ("documents", "shortened")
    for query, relevant in zip(task.queries, task.relevant, strict=True):
        (document,) = [document for document in documents if query in document]
        assert {task.documents[position] for position in relevant} == set(document) - {query}
    assert set(task.originals) >= set(task.queries) | {task.documents[i] for row in task.relevant for i in row}


def test_titles_give_a_task_of_finding_their_bodies(tmp_path):
    bodies = sentences(300)
    path = tmp_path / "news.csv"
    path.write_text("title,text\n" + "".join(f"title {i},{body}\n" for i, body in enumerate(bodies)))
    task = draw_tasks(read_corpus(path, column="text"))[0]
    assert task.name == "titles"
    for i, query in enumerate(task.queries):
        assert task.documents[task.relevant[i][0]] == bodies[int(query.split()[1])]


def test_a_drawn_task_is_written_in_beirs_layout_and_read_as_a_retrieval_task(tmp_path):
    (task,) = draw_tasks(read_corpus(write(tmp_path / "texts.txt", sentences(400))))
    task.write(tmp_path / "task")
    read = read_task("retrieval", tmp_path / "task")
    assert len(read) == len(task.queries) and set(task.queries) <= set(read.texts)


def test_texts_of_drawn_tasks_are_not_trained_on_and_the_two_parts_share_no_query(tmp_path):
    corpus = read_corpus(write(tmp_path / "texts.txt", sentences(400)))
    (drawn,) = draw_tasks(corpus)
    tasks, rest = prepare_tasks((), corpus, tmp_path / "tasks")
    assert tasks.are_weak and tasks.names == ["shortened"]
    assert set(rest.texts) == set(corpus.texts) - set(drawn.originals) and len(rest.texts) == 320
    assert len(tasks.dev[0]) == len(tasks.held_out[0]) == 40
    queries = [set(part.texts) & set(drawn.queries) for part in (tasks.dev[0], tasks.held_out[0])]
    assert not queries[0] & queries[1]


def test_a_corpus_that_is_too_small_for_a_task_asks_for_one(tmp_path):
    corpus = read_corpus(write(tmp_path / "texts.txt", sentences(80)))
    with pytest.raises(ValueError, match=r"too few or too short to draw a task.*Name a task of yours"):
        draw_tasks(corpus)
