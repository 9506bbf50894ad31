"""Describe the training of a model and the papers to cite, as values for the template of the card."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig

from ..models.settings import ContrastiveSettings
from ..objectives import find_objective

_ENTRY = re.compile(r"^% (?P<name>\S+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n.*?\n\})$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Paper:
    """A BibTeX entry."""

    key: str
    bibtex: str

    def field(self, name: str) -> str:
        """Return a field of the entry, such as `url` or `year`."""
        match = re.search(rf"^  {name} = \{{(.*)\}},?$", self.bibtex, re.MULTILINE)
        if match is None:
            raise KeyError(f"papers.bib: the entry {self.key} has no field {name}")
        return match[1]

    @property
    def url(self) -> str:
        """Where to read the paper."""
        return self.field("url")


def _read_papers() -> dict[str, Paper]:
    text = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")
    return {entry["name"]: Paper(entry["key"], entry["bibtex"]) for entry in _ENTRY.finditer(text)}


PAPERS = _read_papers()


def bibtex_of(names: Iterable[str]) -> str:
    """Return the BibTeX entries of the named papers, each once, in the order of the names."""
    return "\n\n".join(PAPERS[name].bibtex for name in dict.fromkeys(names))


#: How each view makes the positive of a sentence, and the paper that introduced it for sentence embeddings.
VIEWS = {
    "identity": ("the same sentence under another dropout mask", "simcse"),
    "fixed_mask": ("the same sentence under the same dropout mask", "simcse"),
    "crop": ("a contiguous part of it", "simcse"),
    "delete_words": ("the sentence without some of its words", "simcse"),
    "delete_one_word": ("the sentence without one of its words", "simcse"),
    "synonyms": ("the sentence with a word replaced by a synonym", "simcse"),
    "mlm": ("the sentence with some tokens replaced by a masked language model", "simcse"),
    "crop+mlm": ("a contiguous part of it with some tokens replaced by a masked language model", "simcse"),
    "shuffle": ("the sentence with some of its tokens permuted", "non_contrastive"),
    "eda": ("the sentence after synonym replacement, insertion, swap or deletion of words", "eda"),
    "repeat_words": ("the sentence with some of its tokens repeated", "esimcse"),
    "next_sentence": ("the next sentence of its document", "simcse"),
    "next_three_sentences": ("one of the next three sentences of its document", "simcse"),
}

#: Settings that only some objectives read. The card lists them only for those.
_OBJECTIVE_SETTINGS = ("temperature", "similarity", "hard_negative_weight")


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
    return (hub_id(name) or Path(name).name) if name else None


def training_context(settings: ContrastiveSettings, run: dict[str, Any], datasets: Sequence[str] | None) -> dict:
    """Collect what the template says about the training.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        run (`dict`): The result of `describe_run` with the content of `results.json`; empty without a record.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `dict`: Values for the template.
    """
    view, texts = run.get("view"), public_name(run.get("train_texts"))
    if view is not None:
        view = {**view, "description": VIEWS.get(view["name"], ("a view of it",))[0]}
    return {
        "run": run,
        "view": view,
        "objective": _objective_context(settings),
        "dataset_objectives": settings.dataset_objectives,
        "base_model": public_name(run.get("base_model")),
        "sources": list(datasets or ()) or ([texts] if texts else []),
        "num_encoders": num_encoders(settings),
        "num_templates": len(settings.templates),
        "matryoshka_dims": sorted(settings.matryoshka_dims, reverse=True),
        "do_mlm": settings.do_mlm,
        "mlm_weight": settings.mlm_weight,
        "gradcache_chunk_size": run.get("arguments", {}).get("gradcache_chunk_size"),
        "duration": _duration(run.get("train_seconds")),
        "max_seq_length": settings.max_seq_length if run else None,
    }


def _objective_context(settings: ContrastiveSettings) -> dict[str, Any]:
    """Collect the name, summary, link and options of the objective."""
    objective = find_objective(settings.objective)
    papers = objective.papers if objective else ()
    defaults, options = option_defaults(settings.objective), public_options(settings)
    scoring: dict[str, Any] = {}
    if defaults is not None:
        values = settings.to_dict()
        scoring = {name: options.pop(name, values[name]) for name in ("temperature", "similarity") if name in defaults}
        options = {name: value for name, value in options.items() if defaults.get(name) != value}
    return {
        "name": settings.objective,
        "summary": objective.summary if objective else "",
        "url": PAPERS[papers[0]].url if papers else None,
        "options": [f"`{name}` {_format(value)}" for name, value in {**scoring, **options}.items()],
    }


def hyperparameters(settings: ContrastiveSettings, config: PreTrainedConfig, run: dict) -> list[tuple[str, Any]]:
    """List the names and values that differ from their defaults and had an effect on this training, by name."""
    arguments = dict(run.get("arguments", {}))
    if not run.get("view"):
        arguments = {name: value for name, value in arguments.items() if not name.startswith("view")}
    if not settings.do_mlm:
        arguments.pop("mlm_probability", None)
    if "view_model" in arguments:
        arguments["view_model"] = public_name(arguments["view_model"])
    values = {**arguments, **changed_settings(config)}
    public = {name: value for name, value in public_options(settings).items() if name in values}
    return sorted((values | public).items())


def papers_of(settings: ContrastiveSettings, run: dict, transform: str | None) -> list[str]:
    """List the papers that a model should be cited with.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        run (`dict`): As for [`training_context`].
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        `list[str]`: Names in [`PAPERS`], the objective's own paper first.
    """
    objective = find_objective(settings.objective)
    papers = list(objective.papers) if objective else []
    for own in settings.dataset_objectives.values():
        other = find_objective(own.get("objective", settings.objective))
        papers += other.papers if other else ()
    view = (run.get("view") or {}).get("name")
    positive_from_objective = len(settings.templates) > 1 or (view == "identity" and num_encoders(settings) == 2)
    if view in VIEWS and not positive_from_objective and settings.objective != "tsdae":
        papers.append(VIEWS[view][1])
    if settings.encoders == 2 or (settings.do_mlm and settings.objective != "declutr"):
        papers.append("simcse")
    if settings.matryoshka_dims:
        papers.append("matryoshka")
    if run.get("arguments", {}).get("gradcache_chunk_size"):
        papers.append("gradcache")
    if transform is not None:
        papers.append(transform)
    return list(dict.fromkeys(papers))


def num_encoders(settings: ContrastiveSettings) -> int:
    """Return how many independent encoders took part in training."""
    objective = find_objective(settings.objective)
    return max(settings.encoders, objective.encoders if objective else 1)


def option_defaults(objective: str) -> dict[str, Any] | None:
    """Return the options of an objective with their defaults, or None if the objective is not registered.

    The model's settings that the objective reads, such as the temperature, are among the options.
    """
    found = find_objective(objective)
    return None if found is None else found.options()


def public_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the objective's options without paths of this machine."""
    return {
        name: public_name(value) if name.rpartition(".")[2] == "generator" else value
        for name, value in settings.objective_options.items()
    }


def changed_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the settings, options and dropout rates that differ from their defaults and that the objective reads."""
    settings = ContrastiveSettings.from_config(config).to_dict()
    defaults = ContrastiveSettings.resolve(similarity=settings["similarity"]).to_dict() | {"similarity": "cosine"}
    options = settings.pop("objective_options")
    known_options = option_defaults(settings["objective"])
    # The first two follow from the templates, and training does not read the next three. The card names the objectives
    # of data sets elsewhere.
    unread = ["mask_token_id", "template_edges", "max_length", "normalize", "prompts", "dataset_objectives"]
    if known_options is not None:
        unread += [name for name in _OBJECTIVE_SETTINGS if name not in known_options]
    if not settings["do_mlm"]:
        unread.append("mlm_weight")
    settings = {name: value for name, value in settings.items() if name not in unread} | options
    rates = {name: rate for name, rate in config.to_dict().items() if "dropout" in name and "classifier" not in name}
    # An option whose default is None takes the setting of the same name.
    defaults |= {name: value for name, value in (known_options or {}).items() if value is not None}
    return {**_changed(settings, defaults), **_changed(rates, type(config)().to_dict())}


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def _format(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _duration(seconds: float | None) -> str:
    if not seconds:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
