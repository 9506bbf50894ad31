"""Every kind of training rows is read from a file, up to a limit, or refused with the form that it needs."""

import pytest
from data_helpers import write
from trainer_helpers import refuses

from simcse_hf.data.kinds import Source, read_source

#: The ending and the content of a file of each kind, and the columns of its rows.
KINDS = {
    "texts": (".txt", "a cat\na dog\na bird\n", "sent0"),
    "documents": (".txt", "a cat\na dog\n\na bird\na man\n", "sent0 sent1"),
    "nli": (".csv", "premise,hypothesis,label\na,b,0\na,c,2\nd,e,0\nf,g,0\n", "texts relations"),
    "scored_pairs": (".csv", "sentence1,sentence2,score\na,b,1\nc,d,2\ne,f,3\n", "sent0 sent1 score"),
    "scored_lists": (
        ".jsonl",
        3 * '{"q": "a", "good": ["b"], "bad": ["c"], "scores": [2, 1]}\n',
        "texts relations score",
    ),
    "classes": (".csv", "text,label\na,x\nb,y\nc,x\nd,y\n", "sent0 label"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_read_from_a_file_up_to_the_limit(kind, tmp_path):
    ending, content, columns = KINDS[kind]
    path = write(tmp_path / f"rows{ending}", content)
    chosen = ["q", "good", "bad"] if kind == "scored_lists" else None
    limit = 4 if kind == "classes" else 2  # of two classes
    for data in (path, str(path)):
        rows = read_source(kind, Source(data, columns=chosen, limit=limit, window=int(kind == "documents")))
        assert rows.column_names == columns.split() and len(rows) == limit


def test_documents_are_read_from_a_file_and_have_no_columns(tmp_path):
    path = write(tmp_path / "documents.txt", "a cat\na dog\n\na bird\na man\n\nalone\n")
    assert list(read_source("spans", Source(path, limit=1))) == [["a cat", "a dog"]]
    with refuses("documents are read from a file, and 'elsewhere' is not a file here"):
        read_source("spans", Source("elsewhere"))
    with refuses("--columns does not apply to rows of documents"):
        read_source("documents", Source(path, columns=["text"]))
