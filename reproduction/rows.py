"""The ways to train that stand in a table: the recipe's settings, those of the scale, and those of the cell."""

import importlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import yaml

from simcse_hf import Recipe, SettingError, SimCSE
from simcse_hf.apps.study.ways import Way, code_of
from simcse_hf.data.views import VIEW_CLASSES, make_view
from simcse_hf.evaluation.tasks import Task
from simcse_hf.objectives import described_objective, import_objective
from simcse_hf.runtime.identity import digest_value
from simcse_hf.training.recipe import PARSER

from .data import digest, draw_rows, find_data, find_model, how_to_get
from .measures import Metric, MTEBTask, metric, read_group
from .prepared import content_digest, make_file, source_files
from .table import Column, Row, Table
from .word_vectors import WordVectors

SMALL_SCALE = Path(__file__).with_name("small.yaml")
_FILES = ("train_file", "dev_file")
_MODELS = ("model_name_or_path", "view_model")
#: The papers' files of the data sets on the hub that the recipes name.
_FILES_OF = {
    "sentence-transformers/wiki1m-for-simcse": "data/wiki1m_for_simcse.txt",
    "sentence-transformers/nli-for-simcse:triplet": "data/nli_for_simcse.csv",
    "sentence-transformers/stsb:validation": "data/sts-dev.csv",
}
_NEED_WORDNET = ("synonyms", "eda")
#: The recipe of rows that are measured without training.
EVALUATION = "evaluation"
_UNTRAINED = {"model_name_or_path": "bert-base-uncased", "dev_file": "data/sts-dev.csv"}


@dataclass(frozen=True)
class Options:
    """What the user of `python -m reproduction` asks for.

    Args:
        data_dir (`Path`): The folder of data.
        output (`Path`): The folder of results, which also holds the samples of training rows.
        model (`str`, *optional*): Start model of all runs, in place of the recipes' or the scale's.
        scale (`str`, *optional*, defaults to `"small"`): `"small"` or `"paper"`.
        seeds (`int`, *optional*, defaults to `3`): Runs of each cell.
        only (`tuple[str, ...]`, *optional*): Names of the rows to run; by default all.
        keep_models (`bool`, *optional*, defaults to `False`): Keep the trained models.
    """

    data_dir: Path
    output: Path
    model: str | None = None
    scale: str = "small"
    seeds: int = 3
    only: tuple[str, ...] = ()
    keep_models: bool = False


@dataclass(frozen=True, kw_only=True)
class RowWay(Way):
    """One way to train that a table compares, whose recipe names files and models as the table does.

    Args:
        row (`Row`): The row of its cell.
        column (`Column`): The column of its cell.
        options (`Options`): Where the files and models are.
        is_trained (`bool`): Whether there is something to train; otherwise the start model is measured.
        sample (`int`, *optional*): Number of training rows to draw; by default all.
    """

    row: Row
    column: Column
    options: Options
    is_trained: bool
    sample: int | None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the recipe that have a value."""
        return {name: value for name, value in self.recipe.given.items() if value is not None}

    def missing(self) -> list[str]:
        """Return what to download for the way, in words: files and models that this machine does not have."""
        given = self.given
        data_dir = self.options.data_dir
        absent = []
        for file in _FILES:
            for name in source_files(given[file]) if file in given else []:
                if find_data(name, data_dir) is None:
                    absent.append(f"{name}: {how_to_get(name, data_dir)}")
        view = given.get("view")
        if view in _NEED_WORDNET:
            try:
                make_view(view)
            except ValueError:  # whose message lists the folders of this machine
                absent.append(f"WordNet, for the view {view}: `pip install nltk; python -m nltk.downloader wordnet`")
        for kind in _MODELS:
            if kind in given and find_model(given[kind], data_dir) is None:
                absent.append(
                    f"{given[kind]}: download this model of the Hugging Face hub, or name another start model"
                )
        return absent

    def learns_from(self) -> dict[str, Any]:
        """Return what tells a run of the way from others: the content of its files and models, wherever they are."""
        given = self.given
        for name in _FILES:
            if name in given:
                given[name] = content_digest(given[name], self.options.data_dir) or given[name]
        for name in _MODELS:
            if name in given:
                given[name] = _digest_model(find_model(given[name], self.options.data_dir) or given[name])
        return {
            "command": self.recipe.command,
            "settings": sorted(given.items()),
            "sample": self.sample,
            "code": code_of(given.get("objective", "simcse")),
        }

    @property
    def metric(self) -> Metric:
        """What its cell shows."""
        return metric(self.column.metric)

    def here(self) -> Recipe:
        """Return the recipe with the files and models of this machine, and draw the sample.

        Raises:
            SettingError: If a file or a model is missing.
        """
        missing = self.missing()
        if missing:
            raise SettingError(f"missing: {'; '.join(missing)}")
        given = self.given
        changed: dict[str, Any] = {}
        for name in _FILES:
            if name in given:
                changed[name] = make_file(given[name], self.options.data_dir, self.options.output / "prepared")
        if self.sample is not None and "train_file" in changed:
            folder = self.options.output / "samples"
            changed["train_file"] = draw_rows(changed["train_file"], self.sample, self._unit(), folder)
        for name in _MODELS:
            if name in given:
                changed[name] = find_model(given[name], self.options.data_dir)
        return self.recipe.but(**changed)

    def _unit(self) -> str:
        """Return what is drawn as a whole; see [`draw_rows`]."""
        view = self.recipe.given.get("view") or "identity"
        if VIEW_CLASSES[view].window:
            return "document"
        return {"spans": "document", "nli": "premise"}.get(_rows_of(self.recipe), "row")

    @property
    def in_bf16(self) -> bool:
        """Whether the way is trained in bfloat16 on a CPU, and measured so."""
        return bool(self.given.get("bf16")) and not torch.cuda.is_available()

    def tasks(self, folder: Path) -> dict[str, Task]:
        """Read the tasks that the cell needs of a run in a folder."""
        if self.metric.group == "mteb":
            return {"mteb": MTEBTask.of(partial(self.open, folder, self.row.pooler))}
        return read_group(
            self.metric.group,
            self.row.transform,
            self.options.data_dir,
            self.given.get("dev_file"),
            _read(SMALL_SCALE)["transfer"]["examples"] if self.options.scale == "small" else None,
        )

    def train(self, seed: int, folder: Path) -> dict[str, Any]:
        """Train with a seed into a folder, or go on at its last checkpoint; see [`Way.train`]."""
        recipe = self.here().but(
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",  # standard output belongs to the command's result
            save_only_model=False,
            use_cpu=not torch.cuda.is_available(),
        )
        return Way(self.name, recipe).train(seed, folder)

    def open(self, folder: Path, pooler: str | None = None) -> Any:
        """Load the trained model, or the start model of a row without training, with a pooler or its own.

        The start may also be a file of word vectors, or what a function `module:function` returns.
        """
        name = str(folder)
        if not self.is_trained:
            name = self.here().given["model_name_or_path"]
        if name.removesuffix(".gz").endswith(".txt"):
            return WordVectors(Path(name))
        module, colon, function = name.partition(":")
        if colon and not Path(name).exists():
            try:
                return getattr(importlib.import_module(module), function)()
            except (ImportError, AttributeError) as error:
                raise SettingError(f"{name}: {error}") from error
        return SimCSE(name, pooler_type=pooler, postprocess=False)


def _digest_model(name: str) -> str:
    """Return a digest of a model's files, or its name if it is not a folder."""
    files = [path for path in sorted(Path(name).glob("*")) if path.suffix in (".json", ".safetensors", ".bin", ".txt")]
    return digest_value([(path.name, digest(path)) for path in files]) if files else name


def _rows_of(recipe: Recipe) -> str:
    """Return which training rows the objective of a run reads."""
    return _rows_of_objective(recipe.given.get("objective", "simcse"))


@cache
def _rows_of_objective(objective: str) -> str:
    """Return which training rows an objective reads; one of somebody's own is imported first."""
    import_objective(objective)
    return described_objective(objective).rows


@cache
def _recipe(name: str) -> dict[str, Any]:
    return PARSER.read_recipe(name)


@cache
def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def ways_of(table: Table, row: Row, column: Column, options: Options) -> Iterator[RowWay]:
    """Yield the way of a cell, or one for each point of the row's scan.

    Args:
        table (`Table`): The table.
        row (`Row`): The row.
        column (`Column`): The column.
        options (`Options`): The scale, the start model and the folders.

    Yields:
        [`RowWay`]: The ways.

    Raises:
        SettingError: If a recipe is unknown or has no such scale, or a setting is unknown or of another type.
    """
    where = f"{table.name}: row {row.name}, column {column.name}"
    name = row.recipe or column.recipe or table.recipe
    is_small = options.scale == "small"
    small = _read(SMALL_SCALE)
    of_recipe = small["recipes"].get(name, {})
    is_trained = name != EVALUATION

    # 1. The recipe, with the files of the papers in place of the hub's data sets, and how many rows are drawn.
    sample = None
    if is_trained:
        if is_small and not of_recipe:
            raise SettingError(f"{where}: small.yaml says nothing about the recipe {name}; add it")
        try:
            base = _recipe(name)
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None
        names = {"train_file": base.get("dataset_name"), "dev_file": base.get("dev_file")}
        files = {option: _FILES_OF[each] for option, each in names.items() if each in _FILES_OF}
        layers = [base, files, table.settings]
        sample = column.sample
        if is_small:
            layers += [small["settings"], of_recipe.get("settings", {}), table.small]
            sample = of_recipe.get("sample", small["sample"])
    else:
        start = small["settings"] if is_small else _UNTRAINED | table.settings
        layers = [_UNTRAINED, {"model_name_or_path": start["model_name_or_path"]}]

    # 2. Each layer wins over the one before.
    layers += [column.settings, row.settings]
    if is_small:
        layers += [column.small, row.small]
    if options.model is not None:
        layers.append({"model_name_or_path": options.model})

    # 3. A way for each combination of the values of a scan, in which `a.b` is the entry `b` of the table `a`.
    scan = row.scan.get(options.scale, {})
    for values in itertools.product(*scan.values()):
        words = [f"{row.name} @ {column.name}"]
        try:
            recipe = Recipe.read("unsup", *layers)
            for place, value in zip(scan, values, strict=True):
                outer, _, inner = place.partition(".")
                recipe = recipe.but(**{outer: {**recipe.given.get(outer, {}), inner: value} if inner else value})
                words.append(f"{place}={value}")
            if name.startswith("sup-") or _rows_of(recipe) in ("nli", "scored_pairs"):
                recipe = Recipe.read("sup", recipe.given)
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None
        yield RowWay(
            ", ".join(words),
            recipe,
            row=row,
            column=column,
            options=options,
            is_trained=is_trained,
            sample=sample,
        )


def differences(table: Table, options: Options) -> list[str]:
    """Return what the runs of a table change with respect to the paper, in sentences.

    Args:
        table (`Table`): The table.
        options (`Options`): The scale and the start model.

    Returns:
        `list[str]`: The sentences.
    """
    start = []
    if options.model is not None:
        start = [f"The start model of all runs is {Path(options.model).name}, which is not the paper's."]
    if options.scale == "paper":
        return start
    small = _read(SMALL_SCALE)
    cells = [(row, column) for _, row, column in table.cells(options.scale)]
    texts = []
    for recipe in dict.fromkeys(row.recipe or column.recipe or table.recipe for row, column in cells):
        texts += small["recipes"].get(recipe, {}).get("differs", [])
    if any(metric(column.metric).group.startswith("transfer") for _, column in cells):
        texts += small["transfer"]["differs"]
    return [*(start or [small["start"]]), *small["differs"], *dict.fromkeys(texts), *table.differs]
