"""The sentence pairs of the STS tasks: SentEval's folders, folders of plain tables, and hub data sets."""

from pathlib import Path

from transformers.utils import logging

from .pairs import ScoredPairs, find_columns, parse_score, parse_text, read_lines, read_scored_pairs
from .tasks import STS_PAIRS, STS_SPLITS, STS_SUBSETS, TaskNotFound

logger = logging.get_logger(__name__)

HUB = "hub"
HUB_DATASETS = {
    "STS12": "mteb/sts12-sts",
    "STS13": "mteb/sts13-sts",
    "STS14": "mteb/sts14-sts",
    "STS15": "mteb/sts15-sts",
    "STS16": "mteb/sts16-sts",
    "STSBenchmark": "mteb/stsbenchmark-sts",
    "SICKRelatedness": "mteb/sickr-sts",  # one split of all 9,927 pairs; SentEval's test split has 4,927
}
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


def read_sts_task(task: str, data_dir: str | Path, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    """Reads the parts of an STS task: its subsets (STS12 to STS16) or its splits (STSBenchmark, SICKRelatedness).

    Args:
        task (`str`): One of the names of `STS_TASKS`.
        data_dir (`str` or `Path`): SentEval's `downstream` folder; or a folder with a folder per task that holds plain
            tables, one per subset (`STS12/MSRpar.tsv`) or split (`STSBenchmark/sts-test.csv`); or the word `hub` for
            the data sets of [`HUB_DATASETS`], which are fetched.
        splits (`tuple[str]`): The splits wanted of a task that has splits, the needed one first: the others are left
            out where they do not exist.

    Returns:
        `dict[str, ScoredPairs]`: By name of the subset or split. A data set of the hub comes without subsets, as one
        part of the task's name.

    Raises:
        TaskNotFound: If the task's folder (or the file of the first split) is not there.
        FileNotFoundError: If the folder is there and a subset of it is not.
        ValueError: Naming file and line, for malformed data.
    """
    if data_dir == HUB:
        parts = _read_hub(task, splits)
    elif task in STS_SUBSETS:
        parts = _read_subsets(task, Path(data_dir))
    else:
        parts = _read_splits(task, Path(data_dir), splits)
    _warn_of_other_sizes(task, parts)
    return parts


def read_pairs_argument(argument: str) -> ScoredPairs:
    """Reads the pairs of a file, or of a hub data set written `name` or `name:split` (default split: `test`)."""
    if Path(argument).exists() or Path(argument.removesuffix(".gz")).suffix in TABLE_SUFFIXES:
        return read_scored_pairs(argument)
    name, _, split = argument.partition(":")
    return load_hub_pairs(name, split or "test", name)


def load_hub_pairs(dataset: str, split: str, name: str) -> ScoredPairs:
    """Loads a split of a hub data set (or a local folder in a hub data set's layout) with text and score columns.

    Raises:
        ValueError: Naming data set, split and row (1-based), for columns or rows that are no scored pairs.
    """
    from datasets import load_dataset

    rows = load_dataset(dataset, split=split)
    columns = find_columns(rows.column_names)
    if columns is None:
        raise ValueError(
            f"{dataset}, split {split}: expected the columns sentence1, sentence2 and score, got {rows.column_names}."
        )
    pairs = ScoredPairs(name)
    where = f"{dataset}, split {split}"
    for number, row in enumerate(rows, start=1):
        if row[columns["score"]] is None:
            continue
        pairs.scores.append(parse_score(row[columns["score"]], where, number))
        pairs.sentences1.append(parse_text(row[columns["sentence1"]], where, number))
        pairs.sentences2.append(parse_text(row[columns["sentence2"]], where, number))
    if not pairs.scores:
        raise ValueError(f"{where}: no scored sentence pair.")
    return pairs


def _read_hub(task: str, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    dataset = HUB_DATASETS[task]
    if task == "STSBenchmark":
        names = {"train": "train", "dev": "validation", "test": "test"}
        return {split: load_hub_pairs(dataset, names[split], split) for split in splits}
    if splits[0] != "test":
        raise TaskNotFound(f"{dataset} has no {splits[0]} split")
    if task == "SICKRelatedness":
        logger.warning(
            f"SICKRelatedness: {dataset} is all 9,927 pairs, SentEval's test split 4,927; they do not compare."
        )
        return {"test": load_hub_pairs(dataset, "test", "test")}
    return {task: load_hub_pairs(dataset, "test", task)}


def _read_subsets(task: str, data_dir: Path) -> dict[str, ScoredPairs]:
    folder = data_dir / "STS" / f"{task}-en-test"
    if folder.is_dir():
        return {subset: _read_senteval_subset(folder, subset) for subset in STS_SUBSETS[task]}
    tables = _tables(data_dir / task)
    if not tables:
        raise TaskNotFound(f"neither {folder} nor tables in {data_dir / task}")
    return {stem: read_scored_pairs(path, name=stem) for stem, path in tables.items()}


def _read_splits(task: str, data_dir: Path, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    files = {split: data_dir / file for split, file in STS_SPLITS[task].items()}
    if not any(file.parent.is_dir() for file in files.values()):
        tables = _tables(data_dir / task)
        files = {
            split: next((path for stem, path in tables.items() if stem == split or stem.endswith(f"-{split}")), None)
            for split in splits
        }
    if files[splits[0]] is None or not files[splits[0]].is_file():
        raise TaskNotFound(f"neither {data_dir / STS_SPLITS[task][splits[0]]} nor a table in {data_dir / task}")
    present = [split for split in splits if files[split] is not None and files[split].is_file()]
    return {split: read_scored_pairs(files[split], name=split) for split in present}


def _tables(folder: Path) -> dict[str, Path]:
    """The tables of a folder by file name without its ending."""
    tables = {}
    for path in sorted(folder.glob("*")):
        table = Path(path.name.removesuffix(".gz"))
        if table.suffix in TABLE_SUFFIXES:
            tables[table.stem] = path
    return tables


def _read_senteval_subset(folder: Path, subset: str) -> ScoredPairs:
    """Reads `STS.input.X.txt` (two tab-separated texts a line) and `STS.gs.X.txt` (a score or nothing a line)."""
    texts_path, scores_path = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    texts, scores = read_lines(texts_path), read_lines(scores_path)
    if len(texts) != len(scores):
        raise ValueError(
            f"{scores_path} has {len(scores)} lines and {texts_path} {len(texts)}: line i of the one scores line i of "
            "the other."
        )
    pairs = ScoredPairs(subset)
    for line, (text, score) in enumerate(zip(texts, scores, strict=True), start=1):
        columns = text.split("\t")
        if len(columns) != 2:
            raise ValueError(f"{texts_path}, line {line}: {len(columns)} tab-separated texts where 2 are expected.")
        if not score.strip():
            continue
        pairs.scores.append(parse_score(score, scores_path, line))
        pairs.sentences1.append(parse_text(columns[0], texts_path, line))
        pairs.sentences2.append(parse_text(columns[1], texts_path, line))
    if not pairs.scores:
        raise ValueError(f"{scores_path}: every score is blank.")
    return pairs


def _warn_of_other_sizes(task: str, parts: dict[str, ScoredPairs]) -> None:
    if task in STS_SUBSETS:
        sizes, expected = {task: sum(len(pairs) for pairs in parts.values())}, {task: STS_PAIRS[task]}
    else:
        sizes, expected = {split: len(pairs) for split, pairs in parts.items()}, STS_PAIRS[task]
    for part, size in sizes.items():
        if size != expected[part]:
            logger.warning(
                f"{task}: {size} scored pairs in {part} where SentEval has {expected[part]}: "
                "the figures do not compare with published ones."
            )
