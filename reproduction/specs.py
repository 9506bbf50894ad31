"""The runs of a table: the recipe's settings, those of the scale, and those of the cell, resolved to files."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import simcse_hf
from simcse_hf.data.views import VIEW_CLASSES, make_view
from simcse_hf.objectives import described_objective
from simcse_hf.training.parser import DEFAULTS
from simcse_hf.training.recipe import ARGUMENTS, PARSER

from .data import draw_rows, find_data, find_model, how_to_get, model_digest
from .figures import metric
from .prepared import content_digest, make_file, source_files
from .table import Column, Row, Table

RECIPES = Path(simcse_hf.__file__).parent / "training" / "recipes"
SMALL_SCALE = Path(__file__).with_name("small.yaml")
FIRST_SEED = 42
#: Raise this number when a change of the package gives other figures for the same settings: runs are trained again.
SEMANTICS = 1
#: Settings that change how a run is stored or how fast it is, but not what it learns.
_NOT_LEARNT = (
    "output_dir",
    "overwrite_output_dir",
    "save_only_model",
    "save_steps",
    "save_total_limit",
    "use_cpu",
)
_FILES = ("train_file", "dev_file")
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
class Sources:
    """Where runs find their files, models and samples.

    Args:
        data_dir (`Path`): The folder of data.
        output (`Path`): The folder of results, which also holds the samples of training rows.
        model (`str`, *optional*): Start model of all runs, in place of the recipes' or the scale's.
    """

    data_dir: Path
    output: Path
    model: str | None = None


@dataclass(frozen=True)
class Run:
    """A training run: the settings and the seed.

    Args:
        recipe (`str`): Name of the recipe.
        settings (`dict`): Arguments of `simcse-hf train` by name, with the files as the recipe or scale names them.
        seed (`int`): Seed of the run.
        sample (`int`, *optional*): Number of training rows to draw; by default all.
        transfer_examples (`int`, *optional*): Examples to draw from each split of a transfer task; by default all.
    """

    recipe: str
    settings: dict[str, Any]
    seed: int
    sample: int | None
    transfer_examples: int | None = None
    _keys: dict[Sources, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def trained(self) -> bool:
        """Whether there is something to train: the recipe `evaluation` measures the start model."""
        return self.recipe != EVALUATION

    @property
    def supervised(self) -> bool:
        """Whether the run has the defaults of `simcse-hf train sup`."""
        rows = described_objective(self.settings.get("objective", "simcse")).rows
        return self.recipe.startswith("sup-") or rows in ("nli", "scored_pairs")

    def missing(self, sources: Sources) -> list[str]:
        """Return what to download for the run, in words: files and models that this machine does not have."""
        files = [name for kind in _FILES if (name := self.settings.get(kind)) is not None]
        absent = [
            f"{name}: {how_to_get(name, sources.data_dir)}"
            for file in files
            for name in source_files(file)
            if find_data(name, sources.data_dir) is None
        ]
        if (view := self.settings.get("view")) in _NEED_WORDNET:
            try:
                make_view(view)
            except ValueError:  # whose message lists the folders of this machine
                absent.append(f"WordNet, for the view {view}: `pip install nltk; python -m nltk.downloader wordnet`")
        for kind in ("model_name_or_path", "view_model"):
            model = self.settings.get(kind)
            if model is not None and find_model(model, sources.data_dir) is None:
                absent.append(f"{model}: download this model of the Hugging Face hub, or name another start model")
        return absent

    def key(self, sources: Sources) -> str:
        """Return the name under which the run is kept: equal for equal settings, seed, files and start model."""
        if sources not in self._keys:  # a plan asks often, and the files of a run are looked up every time
            self._keys[sources] = self._compute_key(sources)
        return self._keys[sources]

    def _compute_key(self, sources: Sources) -> str:
        defaults = _defaults(self.supervised)
        settings = {k: v for k, v in self.settings.items() if k not in _NOT_LEARNT and v != defaults.get(k, MISSING)}
        for name in _FILES:
            content = content_digest(settings[name], sources.data_dir) if settings.get(name) is not None else None
            settings[name] = content if content is not None else settings.get(name)
        for name in ("model_name_or_path", "view_model"):
            model = find_model(settings[name], sources.data_dir) if name in settings else None
            settings[name] = model_digest(model) if model is not None else settings.get(name)
        seed = self.seed if self.trained else None
        identity = [SEMANTICS, self.supervised, settings, seed, self.sample]
        if not self.trained:  # Trained runs of two scales differ in their sample, and others in their evaluation only.
            identity.append(self.transfer_examples)
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def arguments(self, sources: Sources, output_dir: Path) -> dict[str, Any]:
        """Return the arguments of `simcse-hf train` with the paths of this machine, and draw the sample.

        Args:
            sources (`Sources`): Where the files and models are.
            output_dir (`Path`): Output directory of the run.

        Returns:
            `dict[str, Any]`: The arguments by name.

        Raises:
            ValueError: If a file or a model is missing.
        """
        if missing := self.missing(sources):
            raise ValueError(f"missing: {'; '.join(missing)}")
        settings = dict(self.settings)
        for name in _FILES:
            if settings.get(name) is not None:
                settings[name] = make_file(settings[name], sources.data_dir, sources.output / "prepared")
        if self.sample is not None and settings.get("train_file") is not None:
            settings["train_file"] = draw_rows(
                settings["train_file"], self.sample, self._unit(), sources.output / "samples"
            )
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        for name in ("model_name_or_path", "view_model"):
            if name in settings:
                settings[name] = find_model(settings[name], sources.data_dir)
        return settings | {"seed": self.seed, "output_dir": str(output_dir)}

    def _unit(self) -> str:
        if VIEW_CLASSES[self.settings.get("view", "identity")].window:
            return "document"
        rows = described_objective(self.settings.get("objective", "simcse")).rows
        return {"spans": "document", "nli": "premise"}.get(rows, "row")


@cache
def _defaults(supervised: bool) -> dict[str, Any]:
    """Return the default of each argument of `simcse-hf train unsup` or `sup`."""
    defaults = {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for cls in ARGUMENTS
        for f in fields(cls)
    }
    return defaults | (DEFAULTS["sup"] if supervised else DEFAULTS["unsup"])


@cache
def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def runs_of(table: Table, scale: str, seeds: int, sources: Sources) -> Iterator[tuple[Row, int, Run]]:
    """Yield the runs of a table, one seed of all cells before the next.

    Args:
        table (`Table`): The table.
        scale (`str`): `"small"` or `"paper"`.
        seeds (`int`): Number of seeds; the first is 42.
        sources (`Sources`): Names the start model, if it is not the recipes'.

    Yields:
        `tuple[Row, int, Run]`: The row, the number of the column, and a run of this cell.

    Raises:
        ValueError: If a recipe is unknown or has no such scale, or a setting is unknown or of another type.
    """
    cells = [
        (row, number, run)
        for number, row, column in table.cells(scale)
        for run in _runs(table, row, column, scale, sources)
    ]
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for row, number, run in cells:
            yield row, number, replace(run, seed=seed)


def _runs(table: Table, row: Row, column: Column, scale: str, sources: Sources) -> Iterator[Run]:
    """Yield the run of a cell, or one for each point of the row's scan, with the first seed."""
    where = f"{table.name}: row {row.name}, column {column.name}"
    recipe = row.recipe or column.recipe or table.recipe
    whole = _read(SMALL_SCALE) if scale == "small" else {"recipes": {}}
    layers = _layers(where, recipe, whole, scale == "small", table)
    layers += [column.settings, row.settings]
    if scale == "small":
        layers += [column.small, row.small]
    base = {name: value for layer in layers for name, value in layer.items()}
    merged = whole | whole["recipes"].get(recipe, {})
    sample = column.sample if scale == "paper" and column.sample is not None else merged.get("sample")
    for point in scan_points(row.scan.get(scale, {})):
        settings = PARSER.read_table(where, with_values(base, point))
        if sources.model is not None:
            settings["model_name_or_path"] = sources.model
        if "eval_steps" in settings:
            settings["save_steps"] = settings["eval_steps"]  # The step that is best on the dev set is measured.
        rows = None if recipe == EVALUATION else sample
        yield Run(recipe, settings, FIRST_SEED, rows, whole.get("transfer", {}).get("examples"))


def _layers(where: str, recipe: str, whole: dict[str, Any], small: bool, table: Table) -> list[dict[str, Any]]:
    """Return the settings of the recipe, the table and the scale, each of which wins over the one before."""
    if recipe == EVALUATION:
        model = {"model_name_or_path": whole["settings"]["model_name_or_path"]} if small else {}
        return [_UNTRAINED, {k: v for k, v in table.settings.items() if k == "model_name_or_path"}, model]
    path = RECIPES / f"{recipe}.yaml"
    if not path.is_file():
        raise ValueError(f"{where}: there is no recipe {recipe}; use one of {', '.join(recipe_names())}")
    part = whole["recipes"].get(recipe)
    base = {name: value for name, value in _read(path).items() if name != "dataset_name"}
    base |= _papers_files(_read(path))
    if not small:
        return [base, table.settings]
    if part is None:
        raise ValueError(f"{where}: small.yaml says nothing about the recipe {recipe}; add it")
    return [base, table.settings, whole["settings"], part.get("settings", {}), table.small]


def _papers_files(recipe: dict[str, Any]) -> dict[str, str]:
    """Return the files of the papers in place of the hub's data sets that a recipe names."""
    names = {"train_file": recipe.get("dataset_name"), "dev_file": recipe.get("dev_file")}
    return {option: _FILES_OF[name] for option, name in names.items() if name in _FILES_OF}


def scan_points(scan: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the combinations of the values of a scan; one empty combination without a scan."""
    return [dict(zip(scan, values, strict=True)) for values in itertools.product(*scan.values())]


def with_values(settings: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the values of a point of a scan, in which `a.b` is the entry `b` of the table `a`."""
    settings = dict(settings)
    for name, value in point.items():
        outer, _, inner = name.partition(".")
        settings[outer] = {**settings.get(outer, {}), inner: value} if inner else value
    return settings


def recipe_names() -> list[str]:
    """List the recipes of the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def differences(table: Table, scale: str, model: str | None = None) -> list[str]:
    """Return what the runs of a table change with respect to the paper, in sentences.

    Args:
        table (`Table`): The table.
        scale (`str`): `"small"` or `"paper"`.
        model (`str`, *optional*): Start model of all runs, if it is not the recipes' or the scale's.

    Returns:
        `list[str]`: The sentences.
    """
    start = [f"The start model of all runs is {Path(model).name}, which is not the paper's."] if model else []
    if scale == "paper":
        return start
    whole = _read(SMALL_SCALE)
    recipes = dict.fromkeys(row.recipe or column.recipe or table.recipe for _, row, column in table.cells(scale))
    texts = [text for recipe in recipes for text in whole["recipes"].get(recipe, {}).get("differs", [])]
    if any(metric(column.metric).group.startswith("transfer") for _, _, column in table.cells(scale)):
        texts += whole["transfer"]["differs"]
    return [*(start or [whole["start"]]), *whole["differs"], *dict.fromkeys(texts), *table.differs]
