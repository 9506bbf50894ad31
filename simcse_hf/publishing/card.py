"""Writes the model card (README.md and `.eval_results`) of a saved model from the files in its directory."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import ModelCard, ModelCardData, eval_result_entries_to_yaml
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..data.contents import CONTENTS
from ..data.views import VIEW_CLASSES
from ..evaluation.compare import describe_difference
from ..models.pooling import POOLERS
from ..models.resolve import settings_of_config
from ..models.settings import SECTION
from ..ops.files import explain_damage, read_json, read_json_object, read_template, write_text
from ..ops.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_base, load_pretrained
from ..postprocessing.transform import FOLDER, find_transform
from .card_results import (
    comparison_text,
    evaluation_facts,
    hub_scores,
    is_outdated,
    protocol_of,
    read_measured,
)
from .card_training import PAPERS, dev_facts, dev_metric_ids, hub_id, hyperparameters, model_context, read_run

CARD = "README.md"
EVAL_RESULTS = Path(".eval_results", "simcse_hf.yaml")
#: The record of `simcse-hf adapt` beside a model that it made.
ADAPTATION = "adaptation.json"
MARKER = "<!-- Written by `simcse-hf card`. Its next run replaces this file and all changes made by hand. -->"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", "simcse-hf"]
#: Values for the template that hold several lines of our own, or that it writes as JSON into Python code.
_WRITTEN_HERE = ("training_text", "templates", "prompts", "comparisons")
FRONT_MATTER: dict = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": TAGS,
}
_HUB = "https://huggingface.co"
#: The text of cards. Its tables of views and poolers also stand in the reference (docs/site_reference.py).
TEMPLATE = read_template(Path(__file__).with_name("template.md"), undefined=jinja2.ChainableUndefined)


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
    # 1. What the files say about the model and its training.
    directory = Path(directory)
    path = directory / CARD
    repo_id = repo_id or _placeholder(directory)
    config, weights = _read_model(directory)
    settings = settings_of_config(config)
    if is_written_by_hand(path):
        raise ValueError(
            f"{path} was not written by `simcse-hf card`, which would replace it. Move or rename the file first."
        )
    previous = ModelCard.load(path).data.to_dict() if path.exists() else {}
    transform = fit = None
    if (directory / FOLDER).exists():
        transform, fit = find_transform(directory, {})
    run = read_run(directory / "results.json", run)
    adaptation = {}
    record = directory / ADAPTATION
    if record.is_file() and not is_outdated(record, directory):
        adaptation = read_json_object(record, advice="Remove it, or adapt the model again.")
    chosen = adaptation.get("chosen", {})

    # 2. What was measured.
    if evaluations is None:
        found = sorted(directory.glob("evaluation*.json"))
        evaluations = [file for file in found if not is_outdated(file, directory)]
    if comparisons is None:
        comparisons = sorted(directory.glob("comparison*.json"))
    pooler = fit.pooler if fit else settings.inference_pooler
    method = transform.method if transform else None
    facts = []
    scores = []
    benchmarks = []
    for file in map(Path, evaluations):
        document, seeds = read_measured(file, directory, repo_id, run or chosen, pooler, method)
        facts.append(evaluation_facts(document, seeds))
        # A result file in another folder is not pushed, but the card names its protocol.
        source = file.name if (directory / file.name).exists() else CARD
        listed, comparable = hub_scores(document, f"{_HUB}/{repo_id}/blob/main/{source}")
        scores += listed
        benchmarks += comparable

    # 3. The card. What an earlier one says in its front matter stays, unless it is given anew.
    name = repo_id.rpartition("/")[2]
    datasets = datasets or [*previous.get("datasets", ()), *run.get("hub_datasets", ())]
    datasets = list(dict.fromkeys(datasets)) or None
    base = adapter_base(directory) or run.get("base_model") or chosen.get("model")
    metrics = {score.metric_type for score in scores}
    front_matter = _front_matter(directory, settings.objective, run, metrics, tags or ())
    data = ModelCardData(
        language=language or previous.get("language"),
        license=license or previous.get("license"),
        datasets=datasets,
        base_model=hub_id(base) or previous.get("base_model"),
        model_name=name if scores else None,
        base_model_relation="adapter" if (directory / ADAPTER_CONFIG).exists() else None,
        eval_results=scores or None,
        **front_matter,
    )
    content = render_card(
        data,
        name=name,
        repo_id=repo_id,
        own_pooler=any("pooler." in weight for weight in weights),
        dev=dev_facts(run),
        adaptation=adaptation,
        evaluations=facts,
        comparisons=[comparison_text(Path(file)) for file in comparisons],
        hyperparameters=hyperparameters(settings, config, run),
        sentence_transformers=front_matter["library_name"] == FRONT_MATTER["library_name"],
        **model_context(config, settings, run, transform, fit, datasets),
    )
    write_text(path, content)

    # 4. The scores on the hub's benchmarks.
    results = directory / EVAL_RESULTS
    if benchmarks:
        results.parent.mkdir(exist_ok=True)
        write_text(results, yaml.safe_dump(eval_result_entries_to_yaml(benchmarks), sort_keys=False))
    else:
        results.unlink(missing_ok=True)
    return path


def _front_matter(directory: Path, objective: str, run: dict, metrics: set[str], more_tags: Sequence[str]) -> dict:
    """Return what the hub searches and shows: the library, tags, metrics, and an example from the dev set.

    The tags about a run are written as sentence-transformers does.
    """
    front_matter = dict(FRONT_MATTER)
    tags = list(TAGS)
    modules = directory / "modules.json"
    types = [module["type"] for module in read_json(modules)] if modules.exists() else [""]
    if not all(kind.startswith("sentence_transformers.") for kind in types):  # it refuses to load ours, such as a flow
        front_matter["library_name"] = "transformers"
        tags.remove("sentence-transformers")
    objectives = [part.partition(":")[0] for part in objective.split("+")]
    if "simcse" not in objectives:
        tags.remove("simcse")
    tags += objectives
    if run:
        tags.append("generated_from_trainer")
        tags += [f"loss:{name}" for name in objectives]
    if run.get("train_rows"):
        tags.append(f"dataset_size:{run['train_rows']}")
    front_matter["tags"] = list(dict.fromkeys([*tags, *more_tags]))

    metrics |= dev_metric_ids(run.get("final") or ())
    if metrics:
        front_matter["metrics"] = sorted(metrics)
    texts = run.get("dev_texts") or []
    if len(texts) > 1:
        front_matter["widget"] = [{"source_sentence": texts[0], "sentences": texts[1:]}]
    return front_matter


def render_card(data: ModelCardData, marker: str = MARKER, **context: Any) -> str:
    """Fill the template.

    Args:
        data (`ModelCardData`): The front matter.
        marker (`str`, *optional*): The comment by which a card that a program wrote is recognised.
        **context (`Any`): What the template names: see [`model_context`] and [`write_card`].

    Returns:
        `str`: The text of the card.
    """
    for name, value in context.items():
        if name not in _WRITTEN_HERE:
            context[name] = _plain(value)
    text = TEMPLATE.render(
        card_data=data.to_yaml(),
        marker=marker,
        papers=PAPERS,
        poolers=POOLERS,
        views={name: (view.words, view.paper) for name, view in VIEW_CLASSES.items()},
        contents=CONTENTS,
        describe_difference=describe_difference,
        protocol_of=protocol_of,
        **context,
    )
    return text.strip() + "\n"


def _plain(value: Any) -> Any:
    """Return metadata without line breaks and HTML, which would become headings and markup of the card."""
    if isinstance(value, str):
        return " ".join(value.split()).replace("<", "&lt;")
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def is_written_by_hand(path: Path) -> bool:
    """Return whether there is a card that [`write_card`] did not write."""
    return path.exists() and MARKER not in path.read_text(encoding="utf-8")


def name_repository(directory: str | os.PathLike, repo_id: str) -> None:
    """Put the repository's name into a card and `.eval_results` that were written before the name was known."""
    directory = Path(directory)
    if is_written_by_hand(directory / CARD):
        return
    for path in (directory / CARD, directory / EVAL_RESULTS):
        if path.exists():
            write_text(path, path.read_text(encoding="utf-8").replace(_placeholder(directory), repo_id))


def _placeholder(directory: Path) -> str:
    return f"your-name/{directory.resolve().name}"


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
