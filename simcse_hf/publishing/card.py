"""Writes the model card (README.md and `.eval_results`) of a saved model from the files in its directory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from huggingface_hub import ModelCard, ModelCardData, eval_result_entries_to_yaml
from transformers.utils import logging

from ..evaluation.metrics import CORRELATIONS, find_metric
from ..evaluation.report import Evaluation
from ..objectives import part_weights
from ..postprocessing.transform import FOLDER
from ..runtime.errors import SettingError, as_list, did_you_mean
from ..runtime.files import StrPath, digest, read_json, read_template, write_text
from ..runtime.identity import digest_value
from ..runtime.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_base
from ..runtime.outputs import Result
from ..runtime.upload import HUB_URL, hub_id, name_in_card
from . import card_text
from .card_results import ScoreTable, hub_scores, tables
from .card_subject import Subject, Weights, read_comparisons, read_evaluations, read_run, read_subject

logger = logging.get_logger(__name__)

CARD = "README.md"
EVAL_RESULTS = Path(".eval_results", "simcse_hf.yaml")
MARKER = "<!-- Written by `simcse-hf card`. Its next run replaces this file and all changes made by hand. -->"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", "simcse-hf"]
FRONT_MATTER: dict = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": TAGS,
}


@dataclass(frozen=True)
class Card:
    """What a card says; `str(card)` is its text.

    Args:
        model (`Subject`): The model.
        data (`ModelCardData`): The front matter.
        name (`str`): The heading.
        training (`str`): How the model was trained.
        hyperparameters (`list`): Their names and values.
        tables (`list[ScoreTable]`): What was measured.
        comparisons (`list[str]`, *optional*, defaults to `()`): Tables of `simcse-hf compare`.
        marker (`str`, *optional*): The comment by which a card that a program wrote is recognised.
        all_hyperparameters (`bool`, *optional*, defaults to `False`): Whether they are all listed.
    """

    model: Subject
    data: ModelCardData
    name: str
    training: str
    hyperparameters: list[tuple[str, object]]
    tables: list[ScoreTable]
    comparisons: Sequence[str] = ()
    marker: str = MARKER
    all_hyperparameters: bool = False

    def __str__(self) -> str:
        template = read_template(Path(__file__).with_name("template.md"))
        text = template.render(card=self, model=self.model, say=card_text, plain=_one_line, row=_row)
        return text.strip() + "\n"


def _one_line(text: object) -> str:
    """Return a sentence without line breaks and HTML, by which metadata could become headings and markup."""
    return " ".join(str(text).split()).replace("<", "&lt;")


def _row(cells: Sequence[object]) -> str:
    """Return a row of a table."""
    texts = []
    for cell in cells:
        if cell is None:
            cell = "n/a"
        elif isinstance(cell, float):
            cell = f"{cell:.2f}"
        texts.append(_one_line(cell).replace("|", "\\|"))
    return f"| {' | '.join(texts)} |"


@dataclass(frozen=True)
class WrittenCard(Result):
    """A card that was written.

    Args:
        card (`Path`): The file.
    """

    card: Path

    def __str__(self) -> str:
        return str(self.card)


def card(
    directory: StrPath,
    *,
    results: Sequence[StrPath] | None = None,
    comparison: Sequence[StrPath] | None = None,
    repo_id: str | None = None,
    language: Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] | None = None,
) -> WrittenCard:
    """Write the card of a saved model from its result files.

    A card that this command or the training wrote is replaced; a README.md written by hand is not.

    Args:
        directory (`str` or `os.PathLike`): Folder in which training saved the model.
        results (`Sequence`, *optional*): Result files of `simcse-hf evaluate`. The default is evaluation*.json in the
            folder.
        comparison (`Sequence`, *optional*): JSON files of `simcse-hf compare`, whose tables the card shows. The
            default is comparison*.json in the folder.
        repo_id (`str`, *optional*): Name on the hub, for the usage examples: OWNER/NAME.
        language (`Sequence[str]`, *optional*): Codes of the languages, such as en.
        license (`str`, *optional*): Name of the licence, such as apache-2.0.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `WrittenCard`: Where the card is.

    Examples:
        >>> from pathlib import Path
        >>> from simcse_hf import card
        >>> written = card("outputs/my-model", license="apache-2.0", language=["en"])
        >>> Path("outputs/my-model/README.md").read_text().splitlines()[1:4]
        ['language:', '- en', 'library_name: sentence-transformers']
    """
    path = write_card(
        directory,
        results and as_list(results),
        comparisons=comparison and as_list(comparison),
        repo_id=repo_id,
        language=language,
        license=license,
        datasets=datasets and as_list(datasets),
    )
    return WrittenCard(path)


def write_card(
    directory: StrPath,
    evaluations: Sequence[StrPath] | None = None,
    *,
    comparisons: Sequence[StrPath] | None = None,
    repo_id: str | None = None,
    run: dict | None = None,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
) -> Path:
    """Write the card of a saved model, and `.eval_results` for the benchmarks that the hub knows.

    All scores come from files: `results.json` of the training run in `directory`, and the evaluations.

    Args:
        directory (`str` or `os.PathLike`): The directory of the model.
        evaluations (`Sequence`, *optional*): JSON files written by `simcse-hf evaluate --output`. By default, all
            files `evaluation*.json` in `directory` that were made with its weights. After training with several
            seeds, files of the same name in the folders of all seeds give means and standard deviations.
        comparisons (`Sequence`, *optional*): JSON files written by `simcse-hf compare --output`, whose tables the card
            shows. By default, all files `comparison*.json` in `directory` that were made with its weights.
        repo_id (`str`, *optional*): The model's name on the hub, for the usage examples. Defaults to `your-name/`
            followed by the name of the directory.
        run (`dict`, *optional*): The result of `describe_run`, where `results.json` is not written yet. A
            `results.json` of another run is then ignored.
        language (`str` or `list[str]`, *optional*): For the front matter, like `license` and `datasets`. Each
            defaults to the value in the present card, if there is one.
        license (`str`, *optional*): The name of the license.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data, in place of those of the run.
        tags (`Sequence[str]`, *optional*): Further tags.

    Returns:
        `Path`: The path of the card.

    Raises:
        SettingError: If the directory holds no model of this package or a damaged transform, if its README.md was not
            written by this function, or if a results file is broken or belongs to another model.
    """
    # 1. Refuse to replace what somebody wrote.
    directory = Path(directory)
    path = directory / CARD
    if is_written_by_hand(path):
        raise SettingError(
            f"{path} was not written by `simcse-hf card`, which would replace it. Move or rename the file first."
        )

    language = check_languages(language)
    if license is not None:
        license = check_license(license)
    for name in datasets or ():
        if hub_id(name) is None:
            raise SettingError(f"datasets {name!r} is no name on the hub: give OWNER/NAME, or leave out datasets")

    # 2. What the files say about the model and its training.
    repo_id = repo_id or f"your-name/{directory.resolve().name}"
    previous = ModelCard.load(path).data.to_dict() if path.exists() else {}
    weights = Weights(directory)
    run = read_run(directory / "results.json", run)
    if run.get("weights") and run["weights"] != weights.digests().encoder:
        logger.warning(
            f"{directory}/results.json is about the training of other weights than those in {directory}. The card "
            "does not show it."
        )
        run = {}
    datasets = datasets or [*filter(hub_id, [*previous.get("datasets", ()), *run.get("hub_datasets", ())])]
    model = read_subject(weights, _one_line(repo_id), run, list(dict.fromkeys(datasets)))

    # 3. What was measured.
    measured = read_evaluations(model, weights, evaluations)
    scores = []
    benchmarks = []
    for each in measured:
        # A result file in another folder is not pushed, but the card names its protocol.
        source = each.path.name if (directory / each.path.name).exists() else CARD
        listed, comparable = hub_scores(each.evaluation, f"{HUB_URL}/{repo_id}/blob/main/{source}", model)
        scores += listed
        benchmarks += comparable

    # 4. The card. What an earlier one says in its front matter stays, unless it is given anew.
    name = repo_id.rpartition("/")[2]
    base = adapter_base(directory) or run.get("base_model") or model.chosen.get("model")
    data = ModelCardData(
        language=language or previous.get("language"),
        license=license or previous.get("license"),
        datasets=[*model.datasets] or None,
        base_model=hub_id(base) or previous.get("base_model"),
        model_name=name if scores else None,
        base_model_relation="adapter" if (directory / ADAPTER_CONFIG).exists() else None,
        eval_results=scores or None,
        **_front_matter(directory, model, {score.metric_type for score in scores}, tags or ()),
    )
    written = Card(
        model,
        data,
        name=name,
        training=_one_line(card_text.training(model)),
        hyperparameters=card_text.hyperparameters(model),
        tables=tables(model, measured),
        comparisons=read_comparisons(weights, comparisons),
        marker=f"{MARKER}\n{_of_files(directory)}",
    )
    write_text(path, str(written))
    if benchmarks:
        (directory / EVAL_RESULTS).parent.mkdir(exist_ok=True)
        write_text(directory / EVAL_RESULTS, yaml.safe_dump(eval_result_entries_to_yaml(benchmarks), sort_keys=False))
    else:
        (directory / EVAL_RESULTS).unlink(missing_ok=True)
    return path


def check_languages(language: str | Sequence[str] | None) -> list[str] | None:
    """Return languages as the hub takes them, or refuse what is no code."""
    if not language:
        return None
    codes = []
    for name in [language] if isinstance(language, str) else language:
        codes.append(name.lower())
        if not re.fullmatch("[a-z]{2,3}|code|multilingual", codes[-1]):
            raise SettingError(f"language must be a code of two or three letters, such as en, got {name!r}")
    return codes


def check_license(license: str) -> str:
    """Return the hub's name of a licence, of `Apache License 2.0` too, or refuse what it does not know."""
    known = Path(__file__).with_name("licenses.txt").read_text(encoding="utf-8").split()
    given = license.lower()
    for words in (given, re.sub(r"\b(the|licen[cs]e|version)\b", " ", given)):
        name = "-".join(re.split(r"[\s,_-]+", words.strip(" ,")))
        if name in known:
            return name
    meant = did_you_mean([name], known)
    raise SettingError(f"license {license!r} is no licence of the hub{meant}: give its name there, or other")


def _front_matter(directory: Path, model: Subject, metrics: set[str], more_tags: Sequence[str]) -> dict:
    """Return what the hub searches and shows: the library, tags, metrics, and an example from the dev set.

    The tags about a run are written as sentence-transformers does.
    """
    front_matter = dict(FRONT_MATTER)
    objectives = list(part_weights(model.settings.objective))
    tags = [*TAGS, *objectives]
    modules = directory / "modules.json"
    types = [module["type"] for module in read_json(modules, kind=list)] if modules.exists() else [""]
    if not all(kind.startswith("sentence_transformers.") for kind in types):  # it refuses to load ours, such as a flow
        front_matter["library_name"] = "transformers"
        tags.remove("sentence-transformers")
    if "simcse" not in objectives:
        tags.remove("simcse")
    if model.run:
        tags += ["generated_from_trainer", *(f"loss:{name}" for name in objectives)]
    if model.run.get("train_rows"):
        tags.append(f"dataset_size:{model.run['train_rows']}")
    front_matter["tags"] = list(dict.fromkeys([*tags, *(model.run.get("tags") or ()), *more_tags]))

    for key in model.run.get("final") or ():
        metric = find_metric(key)
        if metric.on_card and metric.is_quality:
            metrics.add(f"{metric.name}_cosine" if metric.name in CORRELATIONS else metric.name)
    if metrics:
        front_matter["metrics"] = sorted(metrics)
    texts = model.run.get("dev_texts") or []
    if len(texts) > 1:
        front_matter["widget"] = [{"source_sentence": texts[0], "sentences": texts[1:]}]
    return front_matter


def refresh_card(evaluation: Evaluation) -> None:
    """Write the card of a model again after `evaluate` has saved a threshold, if this package wrote the card.

    Args:
        evaluation (`Evaluation`): The evaluation, which says where the threshold was saved.
    """
    if evaluation.threshold_file is None:
        return
    card = Path(evaluation.threshold_file).with_name(CARD)
    if not card.exists():
        return
    if is_written_by_hand(card):
        logger.warning(f"the threshold is not written into {card}, which this package did not write")
    else:
        write_card(card.parent)


def is_written_by_hand(path: Path) -> bool:
    """Return whether there is a card that [`write_card`] did not write."""
    return path.exists() and MARKER not in path.read_text(encoding="utf-8")


def name_repository(directory: StrPath, repo_id: str) -> None:
    """Write the card and `.eval_results` for a repository, in place of a card for another one or of other weights.

    Args:
        directory (`str` or `os.PathLike`): The directory of the model.
        repo_id (`str`): The repository.
    """
    directory = Path(directory)
    card = directory / CARD
    files = [directory / EVAL_RESULTS]
    if not is_written_by_hand(card):
        if not card.exists() or _of_files(directory) not in card.read_text(encoding="utf-8"):
            write_card(directory, repo_id=repo_id)
        files.append(card)
    for path in files:
        if not path.exists():
            continue
        write_text(path, name_in_card(path.read_text(encoding="utf-8"), repo_id))


def _of_files(directory: Path) -> str:
    """Return a line of the card that says of which weights, settings and transform it is."""
    names = ("config.json", "model*.safetensors", ADAPTER_CONFIG, ADAPTER_WEIGHTS, f"{FOLDER}/*")
    files = sorted(path for name in names for path in directory.glob(name))
    return f"<!-- Of the files {digest_value([digest(path) for path in files])} -->"
