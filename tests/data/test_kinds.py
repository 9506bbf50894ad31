"""Every kind of training rows is read from a file, up to a limit, or refused with the form that it needs."""

import pytest

from simcse_hf.data.kinds import Source, read_source

#: The ending and the lines of a file of each kind, and the columns of its rows.
KINDS = {
    "texts": (".txt", ["a cat", "a dog", "a bird"], ["sent0"]),
    "documents": (".txt", ["a cat", "a dog", "", "a bird", "a man"], ["sent0", "sent1"]),
    "nli": (".csv", ["premise,hypothesis,label", "a,b,0", "a,c,2", "d,e,0", "f,g,0"], ["texts", "relations"]),
    "scored_pairs": (".csv", ["sentence1,sentence2,score", "a,b,1", "c,d,2", "e,f,3"], ["sent0", "sent1", "score"]),
    "scored_lists": (
        ".jsonl",
        3 * ['{"q": "a", "good": ["b"], "bad": ["c"], "scores": [2, 1]}'],
        ["texts", "relations", "score"],
    ),
    "classes": (".csv", ["text,label", "a,x", "b,y", "c,x", "d,y"], ["sent0", "label"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_read_from_a_file_up_to_the_limit(kind, tmp_path):
    ending, lines, columns = KINDS[kind]
    path = tmp_path / f"rows{ending}"
    path.write_text("\n".join(lines) + "\n")
    chosen = ["q", "good", "bad"] if kind == "scored_lists" else None
    limit = 4 if kind == "classes" else 2  # of two classes
    for data in (path, str(path)):
        rows = read_source(kind, Source(data, columns=chosen, limit=limit, window=int(kind == "documents")))
        assert (rows.column_names, len(rows)) == (columns, limit)


def test_documents_are_read_from_a_file_and_have_no_columns(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("a cat\na dog\n\na bird\na man\n\nalone\n")
    assert list(read_source("spans", Source(path, limit=1))) == [["a cat", "a dog"]]
    with pytest.raises(ValueError, match="documents are read from a file, and 'elsewhere' is not a file here"):
        read_source("spans", Source("elsewhere"))
    with pytest.raises(ValueError, match="--columns does not apply to rows of documents"):
        read_source("documents", Source(path, columns=["text"]))
