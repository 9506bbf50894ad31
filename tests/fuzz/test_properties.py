"""Properties that hold for any text: what is written is what is read."""

import re

from data_helpers import content_of, write
from evaluation_helpers import write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcse_hf.data.table import RowCleaner, open_table
from simcse_hf.models.settings import ContrastiveSettings, resolve_settings

# The same examples in every run. They share a temporary folder, because each one writes its file anew.
examples = settings(
    derandomize=True,
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Without halves of surrogate pairs, which UTF-8 cannot hold, and without NUL, which readers refuse.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
cells = texts.filter(lambda text: bool(text.strip()))


@examples
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=6),
    st.sampled_from(["csv", "jsonl", "json", "parquet"]),
)
def test_pairs_are_read_as_they_were_written_in_every_format(tmp_path, rows, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        rows = [tuple(re.sub(r"\r\n?", "\n", text) for text in row) for row in rows]
        write_rows(path, ["sent0", "sent1"], rows)
    else:
        write(path, content_of(suffix, [{"sent0": a, "sent1": b} for a, b in rows]))
    cleaner = RowCleaner(open_table(path), ["sent0", "sent1"], width=2)
    assert [tuple(row) for [row] in cleaner.read()] == rows
    assert cleaner.kept == len(rows) and not cleaner.counts


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def table_of(name):
    """Return the table of the section that holds a setting; one that is unset may be left out of it."""
    tables = ContrastiveSettings().to_section().items()
    return next((table for table, values in tables if name in values), "pooling")


@settings(examples, max_examples=200)
@given(st.sampled_from(sorted(vars(ContrastiveSettings()))), json_values)
def test_a_setting_of_any_value_is_accepted_or_named_in_the_error(name, value):
    try:
        settings = resolve_settings({table_of(name): {name: value}})
    except ValueError as error:
        assert name.removeprefix("objective_").removesuffix("s") in str(error)
    else:
        assert resolve_settings(settings.to_section()) == settings
