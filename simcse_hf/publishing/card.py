"""Writes the model card (README.md and `.eval_results`) of a saved model from the files in its directory."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, eval_result_entries_to_yaml
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..evaluation.threshold import describe_threshold
from ..models.pooling import TANH
from ..models.resolve import settings_of_config
from ..models.sentence_transformers import DENSE_FOLDER, NOT_IN_SENTENCE_TRANSFORMERS
from ..models.settings import SECTION, THRESHOLD, ContrastiveSettings, max_positions
from ..ops.files import explain_damage, read_json, write_text
from ..ops.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_base, load_pretrained
from ..postprocessing.transform import FOLDER as TRANSFORM_FOLDER
from ..postprocessing.transform import Fit, VectorTransform, find_transform
from .card_adaptation import ADAPTATION, adaptation_table, adaptation_text, read_adaptation
from .card_sources import Measured, comparison_text, read_measured, read_run, without_outdated
from .card_tables import Table, dev_table, evaluation_tables
from .card_training import PAPERS, bibtex_of, hub_id, hyperparameters, papers_of, training_context
from .hub_results import dev_metric_id, eval_result_entries, model_index

CARD = "README.md"
EVAL_RESULTS = Path(".eval_results", "simcse_hf.yaml")
MARKER = "<!-- Written by `simcse-hf card`. Its next run replaces this file and all changes made by hand. -->"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", "simcse-hf"]
#: Values for the template that hold several lines of our own, or that it writes as JSON into Python code.
_WRITTEN_HERE = ("citation", "training_text", "template", "prompt", "roles", "comparison")
FRONT_MATTER: dict = {
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
    run: dict | None = None,
    language: str | list[str] | None = None,
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
        language (`str` or `list[str]`, *optional*): For the front matter, like `license` and `datasets`. Each
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
    config, weights = _read_model(directory)
    settings = settings_of_config(config)
    previous = _previous_front_matter(directory / CARD)
    transform, fit = find_transform(directory, {})
    method = transform.method if transform else None
    pooler = fit.pooler if fit else settings.inference_pooler
    run = read_run(directory / "results.json", run)
    adaptation = {}
    if (directory / ADAPTATION).is_file():
        adaptation = read_adaptation(directory)
    chosen = adaptation.get("chosen", {})
    trained = run or chosen

    if evaluations is None:
        evaluations = without_outdated(sorted(directory.glob("evaluation*.json")), directory)
    if comparisons is None:
        comparisons = sorted(directory.glob("comparison*.json"))
    measured = []
    for path in evaluations:
        measured.append(read_measured(Path(path), directory, repo_id, trained, pooler, method))
    tables = []
    if run.get("final"):
        tables.append(dev_table(run, method))
    if adaptation:
        tables.append(adaptation_table(adaptation))
    scores = []
    for each in measured:
        tables += evaluation_tables(each, trained)
        scores += model_index(each.document)

    name = (repo_id or directory.resolve().name).rpartition("/")[2]
    repo_id = repo_id or _placeholder(directory)
    base = adapter_base(directory) or run.get("base_model") or chosen.get("model")
    if not datasets:
        datasets = [*previous.get("datasets", ()), *run.get("hub_datasets", ())]
    datasets = list(dict.fromkeys(datasets)) or None
    in_sentence_transformers = _is_sentence_transformers_model(directory)
    library = FRONT_MATTER["library_name"] if in_sentence_transformers else "transformers"
    front_matter = FRONT_MATTER | {
        "library_name": library,
        "tags": _tags(settings.objective, library, run, tags or ()),
    }
    data = ModelCardData(
        language=language or previous.get("language"),
        license=license or previous.get("license"),
        datasets=datasets,
        base_model=hub_id(base) or previous.get("base_model"),
        model_name=name if scores else None,
        base_model_relation="adapter" if (directory / ADAPTER_CONFIG).exists() else None,
        eval_results=scores or None,
        **front_matter,
        **_about(scores, run),
    )
    content = render_card(
        data,
        name=name,
        repo_id=repo_id,
        own_pooler=any("pooler." in weight for weight in weights),
        tables=tables,
        comparison=comparison_text([Path(path) for path in comparisons]),
        training_text=adaptation_text(adaptation) if adaptation else "",
        hyperparameters=hyperparameters(settings, config, run),
        sentence_transformers=in_sentence_transformers,
        **model_context(config, settings, run, transform, fit, datasets),
    )
    write_text(directory / CARD, content)
    _write_eval_results(directory, measured, repo_id)
    return directory / CARD


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
    source = Path(__file__).with_name("template.md")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    for name, value in context.items():
        if name not in _WRITTEN_HERE:
            context[name] = _plain(value)
    text = template.render(card_data=data.to_yaml(), marker=marker, papers=PAPERS, **context)
    return text.strip() + "\n"


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
    run: dict,
    transform: VectorTransform | None = None,
    fit: Fit | None = None,
    datasets: Sequence[str] | None = None,
) -> dict:
    """Collect what the template says about the model, its training and its papers.

    Args:
        config (`PreTrainedConfig`): The config of the model.
        settings (`ContrastiveSettings`): Its settings.
        run (`dict`): The result of `describe_run` with the content of `results.json`; empty without a record.
        transform (`VectorTransform`, *optional*): The whitening or flow that is saved with the model.
        fit (`Fit`, *optional*): How the transform was fitted.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `dict`: Values for the template.
    """
    context = training_context(settings, run, datasets)
    papers = papers_of(settings, run, transform.method if transform else None)
    context["citation"] = bibtex_of(papers)
    encoder_dim = config.hidden_size
    if settings.dense_layers:
        encoder_dim = settings.dense_layers[-1]["out_features"]
    context["widths"] = [width for width in context["matryoshka_dims"] if width < encoder_dim]
    context["dim"] = encoder_dim
    lengths = [max_positions(config), settings.max_length]
    if transform is not None and fit is not None:
        if fit.pooler != settings.inference_pooler:
            settings = replace(
                settings,
                pooler_type=fit.pooler,
                mlp_only_train=False,
                templates=[],
                denoising="none",
                dense_layers=[],
            )
        lengths.append(fit.max_length)
        context["dim"] = transform.output_dim
        context["transform"] = {
            "method": transform.method,
            "url": PAPERS[transform.method].url,
            "folder": TRANSFORM_FOLDER,
            "input_dim": transform.input_dim,
            "sentences": fit.sentences,
            "file": fit.file,
            "columns": fit.columns,
        }
    dense_layers = []
    for number, layer in enumerate(settings.dense_layers):
        activation = layer.get("activation_function", TANH).rpartition(".")[2]  # its name in torch.nn
        dense_layers.append({"folder": f"{DENSE_FOLDER}/{number}", "activation": activation, **layer})
    limits = [length for length in lengths if length is not None]
    threshold = getattr(config, THRESHOLD, None)
    roles = {role: settings.prompts.get(role, "") for role in ("query", "document")}
    return context | {
        "model_type": config.model_type,
        "dense_layers": dense_layers,
        "pooler": settings.inference_pooler,
        "mlp_only_train": settings.mlp_only_train,
        "max_length": min(limits, default=None),
        "template": settings.templates[0] if settings.templates else None,
        "denoising": settings.denoising,
        "template_edges": settings.template_edges,
        "prompt": settings.prompts.get(settings.default_prompt_name or ""),
        "roles": roles if any(roles.values()) else None,
        "similarity": settings.similarity_fn_name,
        "not_in_sentence_transformers": NOT_IN_SENTENCE_TRANSFORMERS,
        "threshold": describe_threshold(threshold) if threshold else None,
    }


def is_written_by_hand(path: Path) -> bool:
    """Return whether there is a card that [`write_card`] did not write."""
    return path.exists() and MARKER not in path.read_text(encoding="utf-8")


def name_repository(directory: str | os.PathLike, repo_id: str) -> None:
    """Put the repository's name into a card and `.eval_results` that were written before the name was known."""
    directory = Path(directory)
    if is_written_by_hand(directory / CARD):
        return
    placeholder = _placeholder(directory)
    _replace_text(directory / CARD, f'"{placeholder}"', f'"{repo_id}"')
    _replace_text(directory / EVAL_RESULTS, f"{_HUB}/{placeholder}/blob/", f"{_HUB}/{repo_id}/blob/")


def _replace_text(path: Path, old: str, new: str) -> None:
    if path.exists():
        text = path.read_text(encoding="utf-8")
        write_text(path, text.replace(old, new))


def _read_model(directory: Path) -> tuple[PreTrainedConfig, list[str]]:
    """Return the config of a model and the names of its weights."""
    if not any((directory / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
        raise ValueError(
            f"{directory} does not contain a model (config.json). Give the directory that the model was saved in."
        )
    weights: list[str] = []
    for path in (*directory.glob("model*.safetensors"), *directory.glob(ADAPTER_WEIGHTS)):
        with explain_damage(directory), safe_open(path, "pt") as tensors:
            weights += tensors.keys()
    if not weights:
        for graph in (*directory.glob("onnx/*.onnx"), *directory.glob("openvino/*.xml")):
            raise ValueError(
                f"{directory} holds an export ({graph.relative_to(directory)}), and a card is for a model with "
                "weights: give its folder."
            )
    config = load_pretrained(AutoConfig.from_pretrained, directory)
    if getattr(config, SECTION, None) is None:
        raise ValueError(
            f"{directory} was not saved by simcse_hf: its config.json has no section {SECTION!r}, so the pooler is "
            "unknown. Load the model with AutoModelForCL and save it first."
        )
    return config, weights


def _tags(objective: str, library: str, run: dict, more: Sequence[str]) -> list[str]:
    """Return the tags by which the hub searches; those about a run are written as sentence-transformers does."""
    objectives = [part.partition(":")[0] for part in objective.split("+")]
    tags = list(TAGS)
    if library != FRONT_MATTER["library_name"]:
        tags.remove("sentence-transformers")
    if "simcse" not in objectives:
        tags.remove("simcse")
    tags += objectives
    if run:
        tags.append("generated_from_trainer")
        tags += [f"loss:{name}" for name in objectives]
    if run.get("train_rows"):
        tags.append(f"dataset_size:{run['train_rows']}")
    return list(dict.fromkeys([*tags, *more]))


def _about(scores: Sequence[EvalResult], run: dict) -> dict:
    """Return the metrics that the card reports, and an example from the dev set for the page of the model."""
    about: dict = {}
    metrics = {score.metric_type for score in scores}
    for key in run.get("final") or {}:
        metric = dev_metric_id(key)
        if metric is not None:
            metrics.add(metric)
    if metrics:
        about["metrics"] = sorted(metrics)
    texts = run.get("dev_texts") or []
    if len(texts) > 1:
        about["widget"] = [{"source_sentence": texts[0], "sentences": texts[1:]}]
    return about


def _is_sentence_transformers_model(directory: Path) -> bool:
    """Return whether all modules are sentence-transformers' own. It refuses to load ours (a flow)."""
    path = directory / "modules.json"
    if not path.exists():
        return False
    for module in read_json(path):
        if not module["type"].startswith("sentence_transformers."):
            return False
    return True


def _placeholder(directory: Path) -> str:
    return f"your-name/{directory.resolve().name}"


def _previous_front_matter(path: Path) -> dict:
    if not path.exists():
        return {}
    if is_written_by_hand(path):
        raise ValueError(
            f"{path} was not written by `simcse-hf card`, which would replace it. Move or rename the file first."
        )
    return ModelCard.load(path).data.to_dict()


def _write_eval_results(directory: Path, measured: Sequence[Measured], repo_id: str) -> None:
    path = directory / EVAL_RESULTS
    entries = []
    for each in measured:
        # A result file in another folder is not pushed, but the card names its protocol.
        source = each.path.name
        if not (directory / source).exists():
            source = CARD
        entries += eval_result_entries(each.document, f"{_HUB}/{repo_id}/blob/main/{source}")
    if not entries:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    content = eval_result_entries_to_yaml(entries)
    write_text(path, yaml.safe_dump(content, sort_keys=False))
