"""Describe a model and its training, as values for the template of the card."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig

from ..evaluation.metrics import METRICS
from ..evaluation.report import spread
from ..evaluation.threshold import describe_threshold
from ..models.resolve import resolve_options
from ..models.sentence_transformers import DENSE_FOLDER, NOT_IN_SENTENCE_TRANSFORMERS
from ..models.settings import THRESHOLD, ContrastiveSettings, dropout_rates, max_positions
from ..objectives import OBJECTIVES, build_objective, part_weights
from ..ops.files import read_json_object
from ..postprocessing.transform import FOLDER, Fit, VectorTransform


class Paper(NamedTuple):
    """A BibTeX entry with its key, and where to read the paper."""

    key: str
    bibtex: str
    url: str


_ENTRY = re.compile(
    r"^% (?P<name>\S+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n.*?^  url = \{(?P<url>[^}]+)\}.*?^\})$",
    re.MULTILINE | re.DOTALL,
)
PAPERS = {}
for _entry in _ENTRY.finditer(Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")):
    PAPERS[_entry["name"]] = Paper(*_entry.group("key", "bibtex", "url"))

GEOMETRY = ("alignment", "uniformity", "isotropy")
#: Endings of the dev scores that a card shows.
DEV_METRICS = (
    "_spearman",
    "_pearson",
    "_alignment",
    "_uniformity",
    "_accuracy",
    "_v_measure",
    "_average_precision",
    "_map",
    "_ndcg@10",
    "_mrr@10",
    "_recall@100",
)
#: Settings that the card does not list as hyper-parameters. The first two follow from the templates, and training does
#: not read the next four. The last two are described elsewhere in the card.
_NOT_LISTED = (
    "mask_token_id",
    "template_edges",
    "max_length",
    "normalize",
    "prompts",
    "similarity_fn_name",
    "dataset_objectives",
    "objective_options",
)


def read_run(path: Path, described: dict | None = None) -> dict:
    """Read the `results.json` of a training run.

    Args:
        path (`Path`): The file, which need not exist.
        described (`dict`, *optional*): The result of `describe_run`, which is completed by the file, or returned as it
            is if the file belongs to another run.

    Returns:
        `dict`: What is known about the run; empty without a record.

    Raises:
        ValueError: If the file was not written by a training run.
    """
    run = {}
    if path.exists():
        advice = "A training run writes this file: restore it, or move it out of the model's directory."
        run = read_json_object(path, "settings", advice=advice)
        runs = run["seeds"]["runs"] if "seeds" in run else []
        if len(runs) > 1 and run.get("final"):
            for each in (run, *runs):
                missing = sorted({"initial", "final", "saved"} - each.keys())
                if missing:
                    raise ValueError(f"{path}: a seed has no scores under {', '.join(missing)}. {advice}")
    if described is None:
        return run
    for name in ("steps", "train_loss"):
        if run.get(name) != described[name]:
            return described
    return run | described


def hub_id(name: str | None) -> str | None:
    """Return `name` if it can be the id of a hub model and is not a local directory."""
    if not name or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def public_name(name: str | None) -> str | None:
    """Return a hub id as it is, and only the last part of a local path."""
    if not name:
        return None
    return hub_id(name) or Path(name).name


def model_context(
    config: PreTrainedConfig,
    settings: ContrastiveSettings,
    run: dict,
    transform: VectorTransform | None = None,
    fit: Fit | None = None,
    datasets: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Collect what the template says about the model, its training and its papers.

    Args:
        config (`PreTrainedConfig`): The config of the model.
        settings (`ContrastiveSettings`): Its settings.
        run (`dict`): The result of `describe_run` with the content of `results.json`; empty without a record.
        transform (`VectorTransform`, *optional*): The whitening or flow that is saved with the model.
        fit (`Fit`, *optional*): How the transform was fitted.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `dict[str, Any]`: Values for the template.
    """
    # 1. The embedding. A transform may have been fitted on another pooler than that of the training.
    dim = config.hidden_size
    if settings.dense_layers:
        dim = settings.dense_layers[-1]["out_features"]
    lengths = [max_positions(config), settings.max_length]
    used = settings
    fitted = None
    if transform is not None and fit is not None:
        if fit.pooler != settings.inference_pooler:
            used = replace(
                settings,
                pooler_type=fit.pooler,
                mlp_only_train=False,
                templates=[],
                denoising="none",
                dense_layers=[],
            )
        lengths.append(fit.max_length)
        dim = transform.output_dim
        fitted = {"method": transform.method, "input_dim": transform.input_dim, "fit": vars(fit)}
    threshold = getattr(config, THRESHOLD, None)

    # 2. The objective, with the options that somebody chose. The similarity and its temperature are always named.
    objective = described_objective(settings.objective)
    defaults = _default_options(settings)
    scoring = {}
    others = {}
    for name, value in public_options(settings).items():
        if _last(name) in ("temperature", "similarity"):
            scoring[name] = value
        elif value != defaults.get(name) and name != "matryoshka_dims":  # the card names those elsewhere
            others[name] = value

    # 3. The independent encoders that took part: as many as some data set's objective needs (SimCSE, Table 2).
    papers = getattr(objective, "papers", ())
    cited = [*papers]
    encoders = [1]
    for loss, options in settings.losses().values():
        encoders += [value for name, value in options.items() if _last(name) == "encoders"]
        own = described_objective(loss)
        if own:
            cited += own.papers
            encoders.append(own.encoders)

    texts = public_name(run.get("train_texts"))
    return {
        "settings": asdict(used),
        "model_type": config.model_type,
        "dim": dim,
        "pooler": used.inference_pooler,
        "max_length": min((length for length in lengths if length is not None), default=None),
        "templates": used.templates,
        "prompts": used.prompts,
        "not_in_sentence_transformers": NOT_IN_SENTENCE_TRANSFORMERS,
        "dense_folder": DENSE_FOLDER,
        "transform": fitted,
        "transform_folder": FOLDER,
        "threshold": describe_threshold(threshold) if threshold else None,
        "run": run,
        "base_model": public_name(run.get("base_model")),
        "sources": datasets or ([texts] if texts else []),
        "objective": {
            "name": settings.objective,
            "summary": getattr(objective, "summary", ""),
            "papers": papers,
            "options": scoring | others,
        },
        "num_encoders": max(encoders),
        "num_templates": len(settings.templates),
        "matryoshka_dims": settings.matryoshka_dims,
        "cited": cited,
    }


def described_objective(name: str) -> Any:
    """Return an objective or a sum for what it says about itself, or `None` if it is not known here."""
    if any(part not in OBJECTIVES for part in part_weights(name)):
        return None
    with torch.device("meta"):  # its weights are not needed
        return build_objective(name, dim=8)


def public_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the objective's options without paths of this machine."""
    options = {}
    for name, value in settings.objective_options.items():
        options[name] = public_name(value) if _last(name) == "generator" else value
    return options


def _default_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the options of the objective if nobody chooses any; the temperature is that of the similarity in use."""
    chosen = {name: value for name, value in settings.objective_options.items() if _last(name) == "similarity"}
    return resolve_options(settings.objective, chosen) | dict.fromkeys(chosen, "cosine")


def _last(option: str) -> str:
    """Return the name of an option without the part of a sum that it belongs to: `supcon.temperature` has one."""
    return option.rpartition(".")[2]


def dev_facts(run: dict) -> dict[str, Any]:
    """Collect the scores of a training run on its dev set, or their means over its seeds.

    Args:
        run (`dict`): The content of `results.json`; empty without a record.

    Returns:
        `dict[str, Any]`: The names of the `metrics`, if there was a dev set, and in `rows` the cells of each
        evaluation that there was.
    """
    metrics = [key for key in run.get("final") or () if key.endswith(DEV_METRICS)]
    runs = run["seeds"]["runs"] if "seeds" in run else []
    if len(runs) < 2:
        runs = [run]
    evaluations = {}
    for when in ("initial", "best", "final", "saved"):
        evaluations[when] = [each.get(when) for each in runs]
    evaluations["start"] = [run.get("start")]
    evaluations["published"] = [run.get("saved")]
    rows = {}
    for when, scores in evaluations.items():
        if all(scores):
            rows[when] = [format_scores(name, [each.get(name) for each in scores]) for name in metrics]
    return {"metrics": metrics, "rows": rows}


def format_scores(name: str, values: list) -> str:
    """Write a score, or the mean and the standard deviation of several; `n/a` unless all of them are known."""
    if None in values:
        return "n/a"
    return spread(values, 4 if name.endswith(GEOMETRY) else 2)


def dev_metric_ids(scores: Collection[str]) -> set[str]:
    """Return the ids of the metrics behind dev scores such as `stsb_spearman`, without those of geometry."""
    ids = set()
    for ending in DEV_METRICS:
        name = ending[1:]
        if name not in GEOMETRY and any(key.endswith(ending) for key in scores):
            ids.add(f"{name}_cosine" if name in METRICS else name)
    return ids


def hyperparameters(settings: ContrastiveSettings, config: PreTrainedConfig, run: dict) -> list[tuple[str, Any]]:
    """List what differs from its default and had an effect on this training.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        config (`PreTrainedConfig`): Its config, which has the rates of dropout.
        run (`dict`): As for [`model_context`].

    Returns:
        `list[tuple[str, Any]]`: Names and values, by name: arguments of the Trainer, settings, options of the
        objective and rates of dropout.
    """
    unread = []
    if not settings.do_mlm:
        unread += ["mlm_weight", "mlm_probability"]
    if not run.get("view"):
        unread += ["view", "view_rate", "view_both"]
    used = asdict(settings) | public_options(settings) | dropout_rates(config)
    defaults = asdict(ContrastiveSettings()) | _default_options(settings) | dropout_rates(type(config)())
    listed = dict(run.get("arguments", {}))
    for name, value in used.items():
        if name not in _NOT_LISTED and value != defaults.get(name):
            listed[name] = value
    return sorted((name, value) for name, value in listed.items() if name not in unread)
