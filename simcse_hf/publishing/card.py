"""Writes the model card (README.md and `.eval_results`) of a saved model from the files in its directory."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, eval_result_entries_to_yaml
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..evaluation.threshold import describe_threshold
from ..inference.exported import GRAPHS
from ..models.pooling import TANH
from ..models.sentence_transformers import DENSE_FOLDER, NOT_IN_SENTENCE_TRANSFORMERS
from ..models.settings import SECTION, THRESHOLD, ContrastiveSettings, max_positions
from ..ops.errors import refuse
from ..ops.files import write_text
from ..ops.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS, load_pretrained
from ..postprocessing.transform import FOLDER as TRANSFORM_FOLDER
from ..postprocessing.transform import Fit, VectorTransform, find_transform
from .card_results import (
    Measured,
    Table,
    adaptation_seeds,
    adaptation_tables,
    adaptation_text,
    comparison_text,
    dev_metric_id,
    dev_table,
    eval_result_entries,
    evaluation_tables,
    model_index,
    read_adaptation,
    read_measured,
    read_run,
    without_outdated,
)
from .card_training import PAPERS, bibtex_of, hub_id, hyperparameters, papers_of, training_context

CARD = "README.md"
EVAL_RESULTS = Path(".eval_results", "simcse_hf.yaml")
MARKER = "<!-- Written by `simcse-hf card`. Its next run replaces this file and all changes made by hand. -->"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", "simcse-hf"]
#: Values for the template that hold several lines of our own, or that it writes as JSON into Python code.
_WRITTEN_HERE = ("citation", "training_text", "template", "prompt", "comparison")
FRONT_MATTER: dict[str, Any] = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": TAGS,
}
_HUB = "https://huggingface.co"


def write_card(
    directory: str | os.PathLike,
    evaluations: Sequence[str | os.PathLike] | None = None,
    *,
    comparisons: Sequence[str | os.PathLike] | None = None,
    repo_id: str | None = None,
    run: dict[str, Any] | None = None,
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
            files `evaluation*.json` in `directory` that are not older than the weights. After training with several
            seeds, files of the same name in the folders of all seeds give means and standard deviations.
        comparisons (`Sequence`, *optional*): JSON files written by `simcse-hf compare --output`, whose tables the card
            shows. By default, all files `comparison*.json` in `directory`.
        repo_id (`str`, *optional*): The model's name on the hub, for the usage examples. Defaults to `your-name/`
            followed by the name of the directory.
        run (`dict`, *optional*): The result of `describe_run`, where `results.json` is not written yet. A
            `results.json` of another run is then ignored.
        language (`str` or `Sequence[str]`, *optional*): For the front matter, like `license` and `datasets`. Each
            defaults to the value in the present card, if there is one.
        license (`str`, *optional*): The name of the license.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data, in place of those of the run.
        tags (`Sequence[str]`, *optional*): Further tags.

    Returns:
        `Path`: The path of the card.

    Raises:
        ValueError: If the directory holds no model of this package or a damaged transform, if its README.md was not
            written by this function, or if a results file is broken or belongs to another model.
    """
    directory = Path(directory)
    config, settings = _read_config(directory)
    path = directory / CARD
    previous = _previous_front_matter(path)
    transform = find_transform(directory, {})
    run = _merge_runs(read_run(directory / "results.json"), run)
    adaptation = read_adaptation(directory)
    trained = run or adaptation_seeds(adaptation)
    measured = _read_evaluations(directory, evaluations, repo_id, settings, transform, trained)
    scores = [score for each in measured for score in model_index(each.document)]
    name = (repo_id or directory.resolve().name).rpartition("/")[2]
    in_sentence_transformers = _is_sentence_transformers_model(directory)
    languages = language if language is None or isinstance(language, str) else list(language)
    data = ModelCardData(
        language=languages or previous.get("language"),
        license=license or previous.get("license"),
        datasets=list(datasets or _hub_datasets(previous, run)) or None,
        base_model=hub_id(run.get("base_model") or adaptation.get("chosen", {}).get("model"))
        or previous.get("base_model"),
        model_name=name if scores else None,
        base_model_relation="adapter" if (directory / ADAPTER_CONFIG).exists() else None,
        eval_results=scores or None,
        **_library(settings.objective, in_sentence_transformers, [*_run_tags(settings.objective, run), *(tags or ())]),
        **_about(scores, run),
    )
    method = transform[0].method if transform else None
    context = model_context(config, settings, run, transform, data.datasets)
    content = render_card(
        data,
        name=name,
        repo_id=repo_id or _placeholder(directory),
        own_pooler=any("pooler." in key for key in _weight_names(directory)),
        tables=[
            *filter(None, [dev_table(run, method)]),
            *adaptation_tables(adaptation),
            *(table for each in measured for table in evaluation_tables(each, trained)),
        ],
        comparison=comparison_text(
            sorted(directory.glob("comparison*.json")) if comparisons is None else [Path(path) for path in comparisons]
        ),
        training_text=adaptation_text(adaptation),
        hyperparameters=hyperparameters(settings, config, run),
        sentence_transformers=in_sentence_transformers,
        **context,
    )
    write_text(path, content)
    _write_eval_results(directory, measured, repo_id or _placeholder(directory))
    return path


def render_card(data: ModelCardData, marker: str = MARKER, **context: Any) -> str:
    """Fill the template.

    Args:
        data (`ModelCardData`): The front matter.
        marker (`str`, *optional*): The comment by which a card that a program wrote is recognised.
        **context (`Any`): What the template names: see [`model_context`] and [`write_card`].

    Returns:
        `str`: The text of the card.
    """
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.ChainableUndefined)
    template = environment.from_string(Path(__file__).with_name("template.md").read_text(encoding="utf-8"))
    context = {name: value if name in _WRITTEN_HERE else _plain(value) for name, value in context.items()}
    return template.render(card_data=data.to_yaml(), marker=marker, papers=PAPERS, **context).strip() + "\n"


def _plain(value: Any) -> Any:
    """Return metadata without line breaks and HTML, which would become headings and markup of the card."""
    if isinstance(value, str):
        return " ".join(value.split()).replace("<", "&lt;")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Table):
        return replace(value, **_plain(vars(value)))
    return value


def model_context(
    config: PreTrainedConfig,
    settings: ContrastiveSettings,
    run: dict[str, Any],
    transform: tuple[VectorTransform, Fit] | None = None,
    datasets: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Collect what the template says about the model, its training and its papers.

    Args:
        config (`PreTrainedConfig`): The config of the model.
        settings (`ContrastiveSettings`): Its settings.
        run (`dict`): The result of `describe_run` with the content of `results.json`; empty without a record.
        transform (`tuple`, *optional*): The whitening or flow that is saved with the model, and how it was fitted.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `dict`: Values for the template.
    """
    context = training_context(settings, run, datasets)
    method = transform[0].method if transform else None
    citation = bibtex_of(papers_of(settings, run, method) or ["simcse"])
    limits = [max_positions(config), settings.max_length]
    if transform is not None:
        vector_transform, fit = transform
        if fit.pooler != settings.inference_pooler:
            plain: dict[str, Any] = {"mlp_only_train": False, "templates": [], "denoising": "none", "dense_layers": []}
            settings = replace(settings, pooler_type=fit.pooler, **plain)
        limits.append(fit.max_length)
        context["transform"] = {
            "method": method,
            "url": PAPERS[vector_transform.method].url,
            "folder": TRANSFORM_FOLDER,
            "input_dim": vector_transform.input_dim,
            "sentences": fit.sentences,
            "file": fit.file,
            "columns": fit.columns,
        }
    encoder_dim = settings.dense_layers[-1]["out_features"] if settings.dense_layers else config.hidden_size
    return context | {
        "model_type": config.model_type,
        "dim": encoder_dim if transform is None else transform[0].output_dim,
        "dense_layers": [
            {"folder": f"{DENSE_FOLDER}/{number}", "activation": _activation(layer), **layer}
            for number, layer in enumerate(settings.dense_layers)
        ],
        "pooler": settings.inference_pooler,
        "mlp_only_train": settings.mlp_only_train,
        "widths": [width for width in context["matryoshka_dims"] if width < encoder_dim],
        "max_length": min((x for x in limits if x is not None), default=None),
        "template": settings.templates[0] if settings.templates else None,
        "denoising": settings.denoising,
        "template_edges": settings.template_edges,
        "prompt": settings.prompts.get(settings.default_prompt_name or ""),
        "not_in_sentence_transformers": NOT_IN_SENTENCE_TRANSFORMERS,
        "citation": citation,
        "threshold": describe_threshold(threshold) if (threshold := getattr(config, THRESHOLD, None)) else None,
    }


def _activation(layer: dict[str, Any]) -> str:
    """Return the name in `torch.nn` of the activation of a dense layer."""
    return layer.get("activation_function", TANH).rpartition(".")[2]


def is_written_by_hand(path: Path) -> bool:
    """Return whether there is a card that [`write_card`] did not write."""
    return path.exists() and MARKER not in path.read_text(encoding="utf-8")


def name_repository(directory: str | os.PathLike, repo_id: str) -> None:
    """Put the repository's name into a card and `.eval_results` that were written before the name was known."""
    directory = Path(directory)
    if is_written_by_hand(directory / CARD):
        return
    for name, before, after in ((CARD, '"', '"'), (EVAL_RESULTS, f"{_HUB}/", "/blob/")):
        if (path := directory / name).exists():
            text, old = path.read_text(encoding="utf-8"), f"{before}{_placeholder(directory)}{after}"
            write_text(path, text.replace(old, f"{before}{repo_id}{after}"))


def _read_config(directory: Path) -> tuple[PreTrainedConfig, ContrastiveSettings]:
    if not any((directory / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
        raise ValueError(
            f"{directory} does not contain a model (config.json). Give the directory that the model was saved in."
        )
    graph = next((name for name in GRAPHS.values() if (directory / name).exists()), None)
    no_weights = f"{directory} holds an export ({graph}), and a card is for a model with weights: give its folder."
    refuse({no_weights: graph and not _weight_names(directory)})
    config = load_pretrained(AutoConfig.from_pretrained, directory)
    if getattr(config, SECTION, None) is None:
        raise ValueError(
            f"{directory} was not saved by simcse_hf: its config.json has no section {SECTION!r}, so the pooler is "
            "unknown. Load the model with AutoModelForCL and save it first."
        )
    return config, ContrastiveSettings.from_config(config)


def _read_evaluations(
    directory: Path,
    paths: Sequence[str | os.PathLike] | None,
    repo_id: str | None,
    settings: ContrastiveSettings,
    transform: tuple[VectorTransform, Fit] | None,
    run: dict[str, Any],
) -> list[Measured]:
    if paths is None:
        paths = without_outdated(sorted(directory.glob("evaluation*.json")), directory)
    pooler, method = (
        (settings.inference_pooler, None) if transform is None else (transform[1].pooler, transform[0].method)
    )
    return [read_measured(Path(path), directory, repo_id, run, pooler=pooler, transform=method) for path in paths]


def _merge_runs(saved_run: dict[str, Any], run: dict[str, Any] | None) -> dict[str, Any]:
    """Add `results.json` to the description of a run, unless the file belongs to another run."""
    if run is None or all(saved_run.get(name) == run[name] for name in ("steps", "train_loss")):
        return {**saved_run, **(run or {})}
    return run


def _library(objective: str, in_sentence_transformers: bool, tags: Sequence[str]) -> dict[str, Any]:
    """Return the front matter of every card. The hub shows how to load a model by its library."""
    names = [term.partition(":")[0] for term in objective.split("+")]  # those of a sum
    card_tags = [tag for tag in TAGS if tag != "simcse" or tag in names] + [name for name in names if name != "simcse"]
    front_matter = {**FRONT_MATTER, "tags": [*card_tags, *(tag for tag in tags if tag not in card_tags)]}
    if not in_sentence_transformers:
        front_matter["library_name"] = "transformers"
        front_matter["tags"] = [tag for tag in front_matter["tags"] if tag != FRONT_MATTER["library_name"]]
    return front_matter


def _run_tags(objective: str, run: dict[str, Any]) -> list[str]:
    """Return the tags about a training run by which the hub searches, as sentence-transformers writes them."""
    if not run:
        return []
    losses = [f"loss:{term.partition(':')[0]}" for term in objective.split("+")]
    rows = run.get("train_rows")
    return ["generated_from_trainer", *losses, *([f"dataset_size:{rows}"] if rows else [])]


def _about(scores: Sequence[EvalResult], run: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that the card reports, and an example from the dev set for the page of the model."""
    dev = {dev_metric_id(key) for key in run.get("final") or ()} - {None}
    metrics = sorted({score.metric_type for score in scores} | cast(set[str], dev))
    source, *others = run.get("dev_texts") or [""]
    widget = [{"source_sentence": source, "sentences": others}] if others else None
    return {name: value for name, value in {"metrics": metrics, "widget": widget}.items() if value}


def _hub_datasets(previous: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Return the data sets of the present card and of the run."""
    return list(dict.fromkeys([*previous.get("datasets", ()), *run.get("hub_datasets", ())]))


def _is_sentence_transformers_model(directory: Path) -> bool:
    """Return whether all modules are sentence-transformers' own. It refuses to load ours (a flow)."""
    path = directory / "modules.json"
    if not path.exists():
        return False
    modules = json.loads(path.read_text(encoding="utf-8"))
    return all(module["type"].startswith("sentence_transformers.") for module in modules)


def _weight_names(directory: Path) -> list[str]:
    names: list[str] = []
    for path in (*directory.glob("model*.safetensors"), *directory.glob(ADAPTER_WEIGHTS)):
        with safe_open(path, "pt") as weights:
            names += weights.keys()
    return names


def _placeholder(directory: Path) -> str:
    return f"your-name/{directory.resolve().name}"


def _previous_front_matter(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    if is_written_by_hand(path):
        raise ValueError(
            f"{path} was not written by `simcse-hf card`, which would replace it. Move or rename the file first."
        )
    return ModelCard.load(path).data.to_dict()


def _write_eval_results(directory: Path, measured: Sequence[Measured], repo_id: str) -> None:
    path, entries = directory / EVAL_RESULTS, []
    for each in measured:  # a result file in another folder is not pushed, but the card names its protocol
        source = each.path.name if (directory / each.path.name).exists() else CARD
        entries += eval_result_entries(each.document, f"{_HUB}/{repo_id}/blob/main/{source}")
    if not entries:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    write_text(path, yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False))
