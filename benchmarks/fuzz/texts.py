"""Fuzzing targets: files of texts that users bring."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reproduction.word_vectors import WordVectors
from simcse_hf.data.documents import read_documents
from simcse_hf.data.nli import build_nli_groups
from simcse_hf.data.read import open_table, stream_texts, table_cleaners
from simcse_hf.evaluation.sts import read_scored_pairs, read_sts_task
from simcse_hf.evaluation.transfer import read_transfer_task
from simcse_hf.training.parser import read_yaml
from simcse_hf.training.script_arguments import DataArguments, ModelArguments
from simcse_hf.training.training_args import SimCSETrainingArguments

from .campaign import Target
from .mutation import Files

_BOM = b"\xef\xbb\xbf"


def _only(folder: Path) -> Path:
    return next(folder.iterdir(), folder / "missing.txt")


def _read_training_rows(folder: Path) -> int:
    """Read a file as training data, and return how many of its rows became rows of training or were reported."""
    table = open_table(_only(folder))
    [cleaner] = table_cleaners([table], None, None)
    for _ in cleaner.clean_all(table.rows(cleaner.columns)):
        pass
    records = sum(1 for _ in table.rows(cleaner.columns))
    counts = cleaner.counts
    return min(records, counts["kept"] + counts["dropped"])  # a list of positives gives several rows


def _stream(folder: Path) -> int:
    return sum(1 for _ in stream_texts(_only(folder)))


def _document_sentences(folder: Path) -> int:
    return sum(map(len, read_documents(_only(folder))))


def _no_count(parse: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        parse(folder)

    return run


def _read_recipe(folder: Path) -> object:
    return read_yaml(str(_only(folder)), (ModelArguments, DataArguments, SimCSETrainingArguments))


# --- rows counted by simpler means ----------------------------------------------------------------------------------


def _text(files: Files) -> str:
    ((name, content),) = files.items()
    data = gzip.decompress(content) if name.endswith(".gz") else content
    return data.removeprefix(_BOM).decode()


def _count_lines(files: Files) -> int:
    return sum(bool(line.strip()) for line in re.split(r"\r\n|\r|\n", _text(files)))


def _count_records(delimiter: str) -> Callable[[Files], int]:
    def count(files: Files) -> int:
        lines = io.StringIO(re.sub(r"\r\n|\r", "\n", _text(files)), newline="")
        return sum(bool(cells) for cells in csv.reader(lines, delimiter=delimiter, strict=True)) - 1

    return count


def _count_objects(files: Files) -> int:
    try:
        value = json.loads(_text(files))
    except json.JSONDecodeError:
        return _count_lines(files)
    return len(value) if isinstance(value, list) else _count_lines(files)


def _count_table_rows(files: Files) -> int:
    (content,) = files.values()
    return pq.read_metadata(io.BytesIO(content)).num_rows


def _count_scored_lines(files: Files) -> int:
    lines = [line.removesuffix("\r") for line in _text(files).split("\n")]
    return sum(bool(line.strip() and line.split("\t")[0].strip()) for line in lines)


# --- valid files ----------------------------------------------------------------------------------------------------

_SENTENCES = ["A man is playing a guitar.", "Zwei Hunde spielen.", 'She said "no".', "日本語 \U0001f600", "a, b; c"]
_LINES = "\n".join(_SENTENCES).encode() + b"\n"
_TRIPLETS = [("a cat", "a pet", "a dog"), ("one, two", 'a "quoted" cell', "x"), ("line\nbreak", "y", "é")]
_PREMISES = [
    {"premise": "A man eats.", "hypothesis": "Someone eats.", "label": "entailment"},
    {"premise": "A man eats.", "hypothesis": "Nobody eats.", "label": "contradiction"},
    {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0},
    {"premise": "It rains.", "hypothesis": "The sun shines.", "label": 2},
    {"premise": "It rains.", "hypothesis": "It is cold.", "label": "neutral"},
]
_LISTS = [{"query": "q", "pos": ["p", "r"], "neg": ["n", "m"]}, {"query": "s", "pos": ["t"], "neg": ["u", "v"]}]
_OBJECTS = [dict(zip(("sent0", "sent1", "hard_neg"), row, strict=True)) for row in _TRIPLETS]
_RECIPE = b"""# a recipe
model_name_or_path: bert-base-uncased
train_file: texts.txt
learning_rate: 3e-5
num_train_epochs: 1
pooler_type: cls
objective_options: {temperature: 0.05}
metric_for_best_model: stsb_spearman
bf16: false
"""


def _table_file(delimiter: str, header: tuple[str, ...] = ("sent0", "sent1", "hard_neg")) -> bytes:
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter).writerows([header, *_TRIPLETS])
    return stream.getvalue().encode()


def _parquet(rows: list[dict]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def _json_lines(rows: list) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _array(rows: list) -> bytes:
    return json.dumps(rows, indent=1).encode()


def _zip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _one(name: str, *contents: bytes) -> list[Files]:
    return [{name: content} for content in contents]


_SCORED = b"5.0\tA plane takes off.\tAn air plane takes off.\n\tno score\tno score\n3.2\ta\tb\n"
_STSB = b"main-news\tMSRpar\t2012\t0001\t5.000\tA plane.\tAn air plane.\nmain\tx\t2012\t2\t0.5\ta\tb\n"
_NAMED = b'sentence1,sentence2,score\na,b,1.0\n"c, d",e,0.25\n'
_STS_TEXTS, _STS_SCORES = "STS/STS12-en-test/STS.input.{}.txt", "STS/STS12-en-test/STS.gs.{}.txt"
_STS12 = ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews")
_SENTEVAL_STS = {
    name.format(subset): content
    for subset in _STS12
    for name, content in ((_STS_TEXTS, b"a b\tc d\ne\tf\n"), (_STS_SCORES, b"4.5\n\n"))
}
_TRANSFER = {
    "MR": {"MR/rt-polarity.pos": b"good film .\nnice\n", "MR/rt-polarity.neg": b"bad \xe9 film\n"},
    "SST2": {f"SST/binary/sentiment-{split}": b"good\t1\nbad\t0\n" for split in ("train", "dev", "test")},
    "SST5": {f"SST/fine/sentiment-{split}": b"4 very good\n0 bad\n" for split in ("train", "dev", "test")},
    "TREC": {f"TREC/{name}.label": b"HUM:ind Who is it ?\nNUM:date When ?\n" for name in ("train_5500", "TREC_10")},
    "MRPC": {
        f"MRPC/msr_paraphrase_{split}.txt": b"Quality\t#1\t#2\ta\tb\n1\t10\t11\tx y\tz\n0\t1\t2\tq\tr\n"
        for split in ("train", "test")
    },
}
_GLOVE = b"the 0.1 0.2 0.3\ncat 1 2 3\nnew york 0.5 0.5 0.5\n"
_WORD2VEC = b"2 3\nthe 0.1 0.2 0.3\ncat 1e-3 2 -3\n"


def _average_words(folder: Path) -> object:
    return WordVectors(_only(folder)).encode(["the cat", "new york", "unknown"])


def _transfer_target(task: str) -> Target:
    return Target(
        f"senteval_{task}", [_TRANSFER[task]], _no_count(lambda folder: read_transfer_task(task, folder)), share=0.4
    )


def text_targets() -> list[Target]:
    """Return the targets whose inputs are texts in files of users."""
    nli = _no_count(lambda folder: build_nli_groups(_only(folder)))
    return [
        Target("txt", _one("texts.txt", _LINES, _BOM + _LINES.replace(b"\n", b"\r\n")), _stream, _count_lines),
        Target("txt.gz", _one("texts.txt.gz", _zip(_LINES)), _stream, _count_lines),
        Target("training_txt", _one("texts.txt", _LINES), _read_training_rows, _count_lines),
        Target("csv", _one("a.csv", _table_file(","), b"text\na\nb\n"), _read_training_rows, _count_records(",")),
        Target("csv.gz", _one("a.csv.gz", _zip(_table_file(","))), _read_training_rows, _count_records(",")),
        Target("tsv", _one("a.tsv", b"sent0\tsent1\na\tb\nc\td\n"), _read_training_rows, _count_records("\t")),
        Target(
            "json",
            _one("a.json", _array(_OBJECTS), _array(_LISTS), _array(list(_TRIPLETS))),
            _read_training_rows,
            _count_objects,
        ),
        Target(
            "jsonl",
            _one("a.jsonl", _json_lines(_OBJECTS), _json_lines(_LISTS), _json_lines(list(_TRIPLETS))),
            _read_training_rows,
            _count_objects,
        ),
        Target("jsonl.gz", _one("a.jsonl.gz", _zip(_json_lines(_OBJECTS))), _read_training_rows, _count_objects),
        Target(
            "parquet", _one("a.parquet", _parquet(_OBJECTS), _parquet(_LISTS)), _read_training_rows, _count_table_rows
        ),
        Target(
            "parquet_texts", _one("a.parquet", _parquet([{"text": "a"}, {"text": "b"}])), _stream, _count_table_rows
        ),
        Target("parquet.gz", _one("a.parquet.gz", _zip(_parquet(_OBJECTS))), _no_count(_read_training_rows)),
        Target("documents", _one("a.txt", b"a\nb\n\nc\nd\n\n\ne\n"), _document_sentences, _count_lines),
        Target("nli_jsonl", _one("a.jsonl", _json_lines(_PREMISES)), nli),
        Target("nli_csv", _one("a.csv", b"premise,hypothesis,label\na,b,0\na,c,2\nd,e,neutral\n"), nli),
        Target("scored_tsv", _one("a.tsv", _SCORED), lambda f: len(read_scored_pairs(_only(f))), _count_scored_lines),
        Target("scored_stsb", _one("sts-dev.csv", _STSB), _no_count(lambda folder: read_scored_pairs(_only(folder)))),
        Target("scored_csv", _one("a.csv", _NAMED), _no_count(lambda folder: read_scored_pairs(_only(folder)))),
        Target(
            "scored_jsonl",
            _one("a.jsonl", _json_lines([{"sentence1": "a", "sentence2": "b", "score": 1.0}] * 3)),
            _no_count(lambda folder: read_scored_pairs(_only(folder))),
        ),
        Target(
            "scored_parquet",
            _one("a.parquet", _parquet([{"sentence1": "a", "sentence2": "b", "score": 1.0}] * 3)),
            _no_count(lambda folder: read_scored_pairs(_only(folder))),
        ),
        Target(
            "scored_tsv.gz",
            _one("a.tsv.gz", _zip(_SCORED)),
            lambda folder: len(read_scored_pairs(_only(folder))),
            _count_scored_lines,
        ),
        Target(
            "senteval_STS12", [_SENTEVAL_STS], _no_count(lambda f: read_sts_task("STS12", f, ("test",))), share=0.4
        ),
        *map(_transfer_target, _TRANSFER),
        Target("word_vectors", _one("glove.txt", _GLOVE, _WORD2VEC), _no_count(_average_words)),
        Target("word_vectors.gz", _one("glove.txt.gz", _zip(_GLOVE)), _no_count(_average_words)),
        Target("recipe", _one("recipe.yaml", _RECIPE), _no_count(_read_recipe)),
    ]
