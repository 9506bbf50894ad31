"""Mutate valid files: bytes, lines, JSON values and tables."""

import gzip
import io
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: An input of a parser: the content of each file by its name.
Files = dict[str, bytes]

MOST_CHANGES = 4
MOST_BYTES = 2**16

#: Byte sequences at which parsers of text have failed before.
FRAGMENTS = (
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\x00", b"\t", b",", b";", b" ", b"", b'"', b'""', b'"""', b"'", b"\\"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x80", b"\xe2\x80\xa8", b"\x1a"),
    *(b"[", b"]", b"{", b"}", b":", b"- ", b"? ", b"&a ", b"*a", b"!!python/object/apply:os.system ['true']", b"# "),
    *(b"null", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\\ud800"),
    *(b"text", b"sent0", b"sent1", b"hard_neg", b"score", b"label", b"sentence1", b"entailment", b"2023-13-01", b"~"),
)

#: Values that may stand in the place of any JSON value.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, -1.5, 1e308, float("nan"), float("inf")),
    *("", " ", "a", "a\nb", "\ud800", "\x00", "../../etc/passwd", "/dev/null", "text", "1", "x" * 300, "é"),
    *([], [None], [[]], ["a", "b"], [1, 2], [["a"], ["b"]], {}, {"": ""}, {"a": {"b": []}}, [{}], {"text": None}),
)

ARROW_VALUES: tuple[list[Any], ...] = (
    ["a", "b", "c"],
    ["a", None, ""],
    [1, 2, None],
    [1.5, float("nan"), None],
    [b"a", b"\xff", None],
    [["a"], [], None],
    [["a", None], ["b", ""], ["c"]],
    [{"x": "a"}, None, {"x": None}],
    [None, None, None],
    [True, False, None],
)
COLUMN_NAMES = ("text", "sent0", "sent1", "hard_neg", "sentence1", "sentence2", "score", "label", "", "a", "premise")


def mutate(files: Files, rng: random.Random) -> Files:
    """Return a copy of the files in which one of them, rarely two, are changed in a few places.

    Args:
        files (`dict[str, bytes]`): Valid files.
        rng (`random.Random`): Makes all choices.

    Returns:
        `dict[str, bytes]`: The files with the mutations. Rarely, one of them is missing or empty.
    """
    changed = dict(files)
    for name in rng.sample(sorted(files), 2 if len(files) > 1 and rng.random() < 0.1 else 1):
        draw = rng.random()
        if draw < 0.005:
            del changed[name]
        elif draw < 0.01:
            changed[name] = b""
        elif name.endswith(".gz") and rng.random() < 0.6:
            inner = _mutate_content(name.removesuffix(".gz"), gzip.decompress(files[name]), rng)
            changed[name] = gzip.compress(inner, 1, mtime=0)
        else:
            changed[name] = _mutate_content(name, files[name], rng)
    return changed


def _mutate_content(name: str, content: bytes, rng: random.Random) -> bytes:
    suffix = name.rpartition(".")[2]
    if suffix == "parquet" and rng.random() < 0.3:
        return _random_parquet(rng)
    if suffix == "json" and rng.random() < 0.7:
        return _dump(_mutate_value(json.loads(content), rng), rng)
    if suffix == "jsonl" and rng.random() < 0.6:
        lines = content.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = _dump(_mutate_value(json.loads(lines[place]), rng), rng)
        return b"\n".join(lines) + b"\n"
    data = bytearray(content)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice(_CHANGES)(data, rng)
    return bytes(data[:MOST_BYTES])


# --- bytes ----------------------------------------------------------------------------------------------------------


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _insert_fragment(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place:place] = rng.choice(FRAGMENTS)


def _replace_by_fragment(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place : place + rng.randint(1, 8)] = rng.choice(FRAGMENTS)


def _delete_span(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    del data[place : place + rng.randint(1, 40)]


def _repeat_span(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    span = data[place : place + rng.randint(1, 40)]
    data[place:place] = span * rng.randint(1, 20)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[_place(data, rng) :]


def _swap_lines(data: bytearray, rng: random.Random) -> None:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    data[:] = b"\n".join(lines)


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_flip_bit, _set_byte, _insert_fragment, _insert_fragment, _replace_by_fragment, _delete_span),
    *(_repeat_span, _truncate, _swap_lines),
)


# --- values ---------------------------------------------------------------------------------------------------------


def _dump(value: Any, rng: random.Random) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _mutate_value(value: Any, rng: random.Random) -> Any:
    """Change one node of a JSON value: replace it, or add, rename or delete a member."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        copy: Any = value.copy()
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        draw = rng.random()
        if draw < 0.75:
            copy[key] = _mutate_value(value[key], rng)
        elif draw < 0.85:
            del copy[key]
        elif isinstance(copy, dict):
            copy[rng.choice(COLUMN_NAMES)] = copy[key]
        else:
            copy.insert(key, rng.choice(VALUES))
        return copy
    return rng.choice(VALUES)


def _random_parquet(rng: random.Random) -> bytes:
    names = rng.sample(COLUMN_NAMES, rng.randint(1, 3))
    rows = rng.choice((0, 3, 3, 3))
    columns = {name: pa.array(rng.choice(ARROW_VALUES)[:rows]) for name in names}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()
