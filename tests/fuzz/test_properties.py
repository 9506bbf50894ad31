"""Properties that hold for any text: what is written is what is read."""

import csv
import json
import re

import pytest
from data_helpers import content_of, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcse_hf.data.columns import RowCleaner
from simcse_hf.data.documents import read_documents
from simcse_hf.data.table import decoded_lines, open_table, stream_texts
from simcse_hf.evaluation.sts import read_scored_pairs
from simcse_hf.models.resolve import resolve_settings
from simcse_hf.models.settings import ContrastiveSettings

# The same examples in every run. They share a temporary folder, because each one writes its file anew.
examples = settings(
    derandomize=True, max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Without halves of surrogate pairs, which UTF-8 cannot hold, and without NUL, which readers refuse.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(characters, max_size=20)
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=20)
sentences = lines.filter(lambda line: bool(line.strip()))
line_ends = st.sampled_from(["\n", "\r\n", "\r"])
cells = st.lists(st.tuples(sentences, texts.filter(lambda text: bool(text.strip()))), min_size=1, max_size=6)


@examples
@given(st.lists(lines, min_size=1, max_size=8), line_ends, st.booleans())
def test_lines_are_read_as_they_were_written_whatever_ends_them(tmp_path, written, end, has_mark):
    content = ("\ufeff" if has_mark else "") + "".join(line + end for line in written)
    decoded = decoded_lines(write(tmp_path / "a.txt", content))
    read = [line.removesuffix("\n").removesuffix("\r") for _, line in decoded]
    if has_mark or not written[0].startswith("\ufeff"):  # a text may not begin with a byte-order mark of its own
        assert read == written


@examples
@given(st.lists(sentences, min_size=1, max_size=8), st.sampled_from(["a.txt", "a.txt.gz"]))
def test_every_sentence_of_a_txt_file_is_streamed_in_its_place(tmp_path, written, name):
    written = [line.lstrip("\ufeff") or "x" for line in written]
    written = [line if line.strip() else "x" for line in written]
    path = write(tmp_path / name, "\n\n".join(written))
    assert list(stream_texts(path)) == [(2 * place + 1, line) for place, line in enumerate(written)]


@examples
@given(cells, st.sampled_from(["csv", "jsonl", "json", "parquet"]))
def test_pairs_are_read_as_they_were_written_in_every_format(tmp_path, rows, suffix):
    path = tmp_path / f"a.{suffix}"
    records = [{"sent0": a, "sent1": b} for a, b in rows]
    if suffix == "csv":
        rows = [(a, re.sub(r"\r\n?", "\n", b)) for a, b in rows]
        with open(path, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([("sent0", "sent1"), *rows])
    else:
        write(path, content_of(suffix, records))
    cleaner = RowCleaner("a", ["sent0", "sent1"])
    assert [tuple(row) for row in cleaner.clean_all(open_table(path).rows(cleaner.columns))] == rows
    assert cleaner.kept == len(rows) and not cleaner.counts["dropped"]


@examples
@given(st.lists(st.tuples(st.none() | texts, st.none() | texts), min_size=1, max_size=8))
def test_a_row_is_kept_or_counted_as_dropped(tmp_path, rows):
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"sent0": a, "sent1": b}) for a, b in rows))
    cleaner = RowCleaner("a", ["sent0", "sent1"])
    kept = [(a, b) for a, b in rows if a and a.strip() and b and b.strip()]
    if not kept:
        with pytest.raises(ValueError, match=f"every one of the {len(rows)} row"):
            list(cleaner.clean_all(open_table(path).rows(cleaner.columns)))
    else:
        assert [tuple(row) for row in cleaner.clean_all(open_table(path).rows(cleaner.columns))] == kept
    assert (cleaner.kept, cleaner.counts["dropped"]) == (len(kept), len(rows) - len(kept))


@examples
@given(st.lists(st.lists(sentences.filter(lambda line: "\ufeff" not in line), min_size=1, max_size=4), min_size=2))
def test_documents_are_separated_by_their_blank_lines_only(tmp_path, documents):
    path = write(tmp_path / "a.txt", "\n\n".join("\n".join(document) for document in documents))
    assert list(read_documents(path)) == documents


@examples
@given(st.lists(st.tuples(st.floats(-5, 5), sentences, sentences), min_size=1, max_size=6))
def test_scored_pairs_are_read_with_single_spaces(tmp_path, rows):
    records = [{"score": score, "sentence1": a, "sentence2": b} for score, a, b in rows]
    pairs = read_scored_pairs(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records))))
    assert pairs.scores == [score for score, _, _ in rows]
    assert pairs.sentences1 == [" ".join(a.split()) for _, a, _ in rows]
    assert pairs.sentences2 == [" ".join(b.split()) for _, _, b in rows]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def table_of(name):
    return next(table for table, values in ContrastiveSettings().to_section().items() if name in values)


@settings(examples, max_examples=200)
@given(st.sampled_from(sorted(vars(ContrastiveSettings()))), json_values)
def test_a_setting_of_any_value_is_accepted_or_named_in_the_error(name, value):
    try:
        settings = resolve_settings({table_of(name): {name: value}})
    except ValueError as error:
        assert name.removeprefix("objective_").removesuffix("s") in str(error)
    else:
        assert resolve_settings(settings.to_section()) == settings
