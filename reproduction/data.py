"""Find the files and models that runs name, say how to get missing ones, and draw samples of training rows."""

import hashlib
import importlib.util
import itertools
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import try_to_load_from_cache

from simcse_hf.data.documents import read_documents
from simcse_hf.data.table import read_lines
from simcse_hf.runtime.files import write_text

#: Where a file that a recipe names as `data/NAME` stands in the folder of data, and how to get it.
PLACES = {
    "wiki1m_for_simcse.txt": (
        "wiki/wiki1m_for_simcse.txt",
        "the file wiki1m_for_simcse.txt of the data set princeton-nlp/datasets-for-simcse on the Hugging Face hub",
    ),
    "nli_for_simcse.csv": (
        "nli/nli_for_simcse.csv",
        "the file nli_for_simcse.csv of the data set princeton-nlp/datasets-for-simcse on the Hugging Face hub",
    ),
    "snli_1.0_train.jsonl": ("nli/snli_1.0_train.jsonl", "SNLI 1.0, https://nlp.stanford.edu/projects/snli,"),
    "multinli_1.0_train.jsonl": (
        "nli/multinli_1.0_train.jsonl",
        "MultiNLI 1.0, https://cims.nyu.edu/~sbowman/multinli,",
    ),
    "quora_duplicate_questions.tsv": (
        "qqp/quora_duplicate_questions.tsv",
        "Quora's question pairs, https://www.quora.com/q/quoradata,",
    ),
    "para-nmt-5m-processed.txt": (
        "paranmt/para-nmt-5m-processed.txt",
        "ParaNMT-5M, https://www.cs.cmu.edu/~jwieting,",
    ),
    "nli.csv": ("nli/nli.csv", "the pairs of SNLI and MultiNLI as a table of premise, hypothesis and label"),
    "nli_sentences.txt": ("nli/nli_sentences.txt", "the sentences of SNLI and MultiNLI, one on each line,"),
    "glove.840B.300d.txt": ("glove.840B.300d.txt", "GloVe, https://nlp.stanford.edu/projects/glove,"),
    "sts-dev.csv": (
        "senteval/downstream/STS/STSBenchmark/sts-dev.csv",
        "the STS Benchmark, https://ixa2.si.ehu.eus/stswiki/index.php/STSbenchmark",
    ),
}


def find_senteval(data_dir: Path) -> Path:
    """Return SentEval's `downstream` folder in the folder of data, or the folder itself."""
    folder = data_dir / "senteval/downstream"
    return folder if folder.is_dir() else data_dir


def find_data(name: str, data_dir: Path) -> Path | None:
    """Find a file that a run names.

    Args:
        name (`str`): A path in the folder of data, `data/NAME` as in a recipe, or any path of a file. Whether it ends
            in `.gz` does not matter.
        data_dir (`Path`): The folder of data.

    Returns:
        `Path`, *optional*: The file, plain or gzipped; `None` if there is none.
    """
    name = name.removesuffix(".gz")
    short = name.removeprefix("data/")
    places = [data_dir / short, data_dir / PLACES.get(short, (short,))[0], Path(name)]
    return next((path for place in places for path in (place, Path(f"{place}.gz")) if path.is_file()), None)


def how_to_get(name: str, data_dir: Path) -> str:
    """Say in words where to get a missing file and where to put it."""
    short = name.removeprefix("data/")
    place, source = PLACES.get(short) or PLACES.get(Path(short).name) or (short, "this file")
    return f"put {source} at {data_dir / place}"


def find_model(name: str, data_dir: Path) -> str | None:
    """Find a start model: a folder, a folder of `models` beside the folder of data, or a model of the hub's cache.

    Args:
        name (`str`): Path, or name of the model.
        data_dir (`Path`): The folder of data.

    Returns:
        `str`, *optional*: What to load; `None` if the model is not on this machine.
    """
    for place in (Path(name), data_dir.resolve().parent / "models" / name):
        if (place / "config.json").is_file():
            return str(place)
    if name.endswith(".txt"):  # word vectors
        path = find_data(name, data_dir)
        return None if path is None else str(path)
    module, colon, _ = name.partition(":")
    if colon:  # a function of a module, which may stand in the current folder
        return name if importlib.util.find_spec(module) is not None else None
    return name if isinstance(try_to_load_from_cache(name, "config.json"), str) else None


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, modified: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def digest(path: Path) -> str:
    """Return a digest of a file's content, computed once."""
    stat = path.stat()
    return _digest(path.resolve(), stat.st_size, stat.st_mtime_ns)


def draw_rows(source: Path, rows: int, unit: str, folder: Path) -> Path:
    """Write a random sample of training rows, drawn with seed 0 and in their order, unless it is there.

    Args:
        source (`Path`): A file of lines, or a CSV or TSV table.
        rows (`int`): Number of rows.
        unit (`str`): What is drawn as a whole: `"row"`; `"document"`, sentences between empty lines; or `"premise"`,
            the rows with the same value in the first column.
        folder (`Path`): Where to write the sample.

    Returns:
        `Path`: The sample; `source` itself if it has no more rows than that.
    """
    suffix = next((name for name in (".csv", ".tsv") if name in source.suffixes), ".txt")
    target = folder / f"{digest(source)}-{rows}-{unit}{suffix}"
    if target.exists():
        return target
    if suffix == ".txt":
        units = list(read_documents(str(source))) if unit == "document" else [[line] for line in read_lines(source)]
        chosen = _draw(units, rows)
        ends = "\n\n" if unit == "document" else "\n"
        content = "".join("\n".join(lines) + ends for lines in chosen)
    else:
        separator = "\t" if suffix == ".tsv" else ","
        frame = pd.read_csv(source, sep=separator, dtype=str, keep_default_na=False)
        keys = frame.iloc[:, 0] if unit == "premise" else frame.index
        numbers = pd.Series(range(len(frame))).groupby(keys.to_numpy(), sort=False).apply(list)
        units = list(numbers)
        chosen = _draw(units, rows)
        content = frame.iloc[sorted(itertools.chain(*chosen))].to_csv(sep=separator, index=False)
    if len(chosen) == len(units):
        return source
    folder.mkdir(parents=True, exist_ok=True)
    write_text(target, content)
    return target


def _draw(units: list[list[Any]], rows: int) -> list[list[Any]]:
    """Draw units at random until they hold `rows` rows, and return them in their original order."""
    order = random.Random(0).sample(range(len(units)), len(units))
    held = list(itertools.accumulate(len(units[number]) for number in order))
    count = next((position + 1 for position, total in enumerate(held) if total >= rows), len(units))
    return [units[number] for number in sorted(order[:count])]
