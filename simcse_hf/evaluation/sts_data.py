"""Read the sentence pairs of the STS tasks from SentEval's folders, folders of tables, or the hub."""

from pathlib import Path

from transformers.utils import logging

from ..data.columns import find_parts, parse_score
from ..data.read import read_lines
from .pairs import PARTS, ScoredPairs, parse_text, read_scored_pairs
from .tasks import STS_PAIRS, STS_SPLITS, STS_SUBSETS, STS_TASKS, TaskNotFound

logger = logging.get_logger(__name__)

HUB = "hub"
HUB_DATASETS = {
    "STS12": "mteb/sts12-sts",
    "STS13": "mteb/sts13-sts",
    "STS14": "mteb/sts14-sts",
    "STS15": "mteb/sts15-sts",
    "STS16": "mteb/sts16-sts",
    "STSBenchmark": "mteb/stsbenchmark-sts",
    "SICKRelatedness": "mteb/sickr-sts",  # one split with all 9,927 pairs; SentEval's test split has 4,927
}
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


def read_sts_task(task: str, data_dir: str | Path, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    """Read the subsets of STS12 to STS16, or the splits of STSBenchmark and SICKRelatedness.

    Args:
        task (`str`): One of `STS_TASKS`.
        data_dir (`str | Path`): One of three sources: SentEval's `downstream` folder; a folder with a folder of
            tables for each task, one per subset (`STS12/MSRpar.tsv`) or split (`STSBenchmark/sts-test.csv`); or the
            word `hub`, which downloads the data sets of [`HUB_DATASETS`].
        splits (`tuple[str, ...]`): The splits to read of a task with splits. The first must exist; the rest are left
            out if they do not.

    Returns:
        `dict[str, ScoredPairs]`: The pairs of each subset or split. A hub data set has no subsets; its pairs are
        under the name of the task.

    Raises:
        TaskNotFound: If the task's folder or the file of the first split does not exist.
        FileNotFoundError: If the folder exists but a subset is missing.
        ValueError: If the data is malformed. The message names the file and the line.
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
    """Read the pairs of a file, or of a hub data set written as `name` (its test split) or `name:split`."""
    if Path(argument).exists() or Path(argument.removesuffix(".gz")).suffix in TABLE_SUFFIXES:
        return read_scored_pairs(argument)
    name, _, split = argument.partition(":")
    return load_hub_pairs(name, split or "test", name)


def load_hub_pairs(dataset: str, split: str, name: str) -> ScoredPairs:
    """Load the scored pairs of a split of a hub data set.

    Args:
        dataset (`str`): Id of the data set, or a local folder with the layout of one.
        split (`str`): Name of the split.
        name (`str`): Name of the set in tables and results.

    Returns:
        [`ScoredPairs`]: At least one pair.

    Raises:
        ValueError: If the columns or rows are not scored pairs. The message names data set, split and row.
    """
    from datasets import load_dataset

    rows = load_dataset(dataset, split=split)
    pairs = ScoredPairs(name)
    where = f"{dataset}, split {split}"
    columns = find_parts(rows.column_names, PARTS, where)
    for number, row in enumerate(rows.select_columns(columns), start=1):
        score, sentence1, sentence2 = (row[column] for column in columns)
        if score is None:
            continue
        pairs.scores.append(parse_score(score, f"{where}, row {number}"))
        pairs.sentences1.append(parse_text(sentence1, where, number))
        pairs.sentences2.append(parse_text(sentence2, where, number))
    if not pairs.scores:
        raise ValueError(f"{where}: no scored sentence pair. Choose another split as name:split.")
    return pairs


def read_sts_texts(data_dir: str | Path) -> list[str]:
    """Read the sentences of all STS tasks that a folder has, for example to leave them out of training.

    Args:
        data_dir (`str | Path`): See [`read_sts_task`].

    Returns:
        `list[str]`: The sentences of test and dev splits, in the order of the tasks; they may be repeated.

    Raises:
        ValueError: If the folder has no STS task, or the data is malformed.
    """
    texts: list[str] = []
    for task in STS_TASKS:
        try:
            parts = read_sts_task(task, data_dir, ("test", "dev"))
        except TaskNotFound:
            continue
        texts += [text for pairs in parts.values() for text in (*pairs.sentences1, *pairs.sentences2)]
    if not texts:
        raise ValueError(f"{data_dir} has no STS task. Name SentEval's `downstream` folder.")
    return texts


def _read_hub(task: str, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    dataset = HUB_DATASETS[task]
    if task == "STSBenchmark":
        names = {"train": "train", "dev": "validation", "test": "test"}
        return {split: load_hub_pairs(dataset, names[split], split) for split in splits}
    if splits[0] != "test":
        raise TaskNotFound(f"{dataset} has no {splits[0]} split")
    if task == "SICKRelatedness":
        logger.warning(
            f"SICKRelatedness: {dataset} has all 9,927 pairs, and SentEval's test split has 4,927. The figures cannot "
            "be compared."
        )
        return {"test": load_hub_pairs(dataset, "test", "test")}
    return {task: load_hub_pairs(dataset, "test", task)}


def _read_subsets(task: str, data_dir: Path) -> dict[str, ScoredPairs]:
    folder = data_dir / "STS" / f"{task}-en-test"
    if folder.is_dir():
        return {subset: _read_senteval_subset(folder, subset) for subset in STS_SUBSETS[task]}
    tables = _tables(data_dir / task)
    if not tables:
        raise TaskNotFound(f"there is neither {folder} nor a table in {data_dir / task}")
    return {stem: read_scored_pairs(path, name=stem) for stem, path in tables.items()}


def _read_splits(task: str, data_dir: Path, splits: tuple[str, ...]) -> dict[str, ScoredPairs]:
    files: dict[str, Path | None] = {split: data_dir / file for split, file in STS_SPLITS[task].items()}
    if not any((data_dir / file).parent.is_dir() for file in STS_SPLITS[task].values()):
        tables = _tables(data_dir / task)
        files = {
            split: next((path for stem, path in tables.items() if stem == split or stem.endswith(f"-{split}")), None)
            for split in splits
        }
    present = {split: path for split in splits if (path := files[split]) is not None and path.is_file()}
    if splits[0] not in present:
        expected = data_dir / STS_SPLITS[task][splits[0]]
        raise TaskNotFound(f"there is neither {expected} nor a table in {data_dir / task}")
    return {split: read_scored_pairs(path, name=split) for split, path in present.items()}


def _tables(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder by their file names without suffix."""
    tables = {}
    for path in sorted(folder.glob("*")):
        table = Path(path.name.removesuffix(".gz"))
        if table.suffix in TABLE_SUFFIXES:
            tables[table.stem] = path
    return tables


def _read_senteval_subset(folder: Path, subset: str) -> ScoredPairs:
    """Read `STS.input.X.txt`, with two tab-separated texts per line, and `STS.gs.X.txt`, with their scores."""
    texts_path, scores_path = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    texts, scores = read_lines(texts_path), read_lines(scores_path)
    if len(texts) != len(scores):
        raise ValueError(
            f"{scores_path} has {len(scores)} lines but {texts_path} has {len(texts)}, although each score belongs to "
            "a line of texts. Download both files again."
        )
    pairs = ScoredPairs(subset)
    for line, (text, score) in enumerate(zip(texts, scores, strict=True), start=1):
        columns = text.split("\t")
        if len(columns) != 2:
            raise ValueError(f"{texts_path}, line {line}: {len(columns)} tab-separated texts instead of 2.")
        if not score.strip():
            continue
        pairs.scores.append(parse_score(score, f"{scores_path}, line {line}"))
        pairs.sentences1.append(parse_text(columns[0], texts_path, line))
        pairs.sentences2.append(parse_text(columns[1], texts_path, line))
    if not pairs.scores:
        raise ValueError(f"{scores_path}: no scored sentence pair, because every score is blank.")
    return pairs


def _warn_of_other_sizes(task: str, parts: dict[str, ScoredPairs]) -> None:
    if task in STS_SUBSETS:
        sizes = {task: sum(len(pairs) for pairs in parts.values())}
    else:
        sizes = {split: len(pairs) for split, pairs in parts.items()}
    for part, size in sizes.items():
        if size != STS_PAIRS[task][part]:
            logger.warning(
                f"{task}: {part} has {size} scored pairs, but SentEval has {STS_PAIRS[task][part]}. The figures "
                "cannot be compared with published ones."
            )
