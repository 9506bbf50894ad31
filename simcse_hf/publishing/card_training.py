"""Describe the training of a model and the papers to cite, as values for the template of the card."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedConfig

from ..models.resolve import resolve_options
from ..models.settings import ContrastiveSettings
from ..objectives import build_objective, find_objective, part_weights

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
    papers = {}
    for entry in _ENTRY.finditer(text):
        papers[entry["name"]] = Paper(entry["key"], entry["bibtex"])
    return papers


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


def training_context(settings: ContrastiveSettings, run: dict[str, Any], datasets: Sequence[str] | None) -> dict:
    """Collect what the template says about the training.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        run (`dict`): The result of `describe_run` with the content of `results.json`; empty without a record.
        datasets (`Sequence[str]`, *optional*): Hub names of the training data.

    Returns:
        `dict`: Values for the template.
    """
    view = run.get("view")
    if view is not None:
        description, _ = VIEWS.get(view["name"], ("a view of it", None))
        view = {**view, "description": description}
    sources = list(datasets or ())
    texts = public_name(run.get("train_texts"))
    if texts and not sources:
        sources = [texts]
    return {
        "run": run,
        "view": view,
        "objective": _objective_context(settings),
        "dataset_objectives": settings.dataset_objectives,
        "base_model": public_name(run.get("base_model")),
        "sources": sources,
        "num_encoders": num_encoders(settings),
        "num_templates": len(settings.templates),
        "matryoshka_dims": settings.matryoshka_dims,
        "do_mlm": settings.do_mlm,
        "mlm_weight": settings.mlm_weight,
        "duration": _duration(run.get("train_seconds") or 0),
        "max_seq_length": settings.max_seq_length if run else None,
    }


def _objective_context(settings: ContrastiveSettings) -> dict[str, Any]:
    """Collect the name, summary, link and options of the objective."""
    objective = described_objective(settings.objective)
    url = None
    if objective and objective.papers:
        url = PAPERS[objective.papers[0]].url
    defaults = _default_options(settings)
    scoring = []
    others = []
    for name, value in public_options(settings).items():
        number = f"{value:g}" if isinstance(value, float) else value
        if _last(name) in ("temperature", "similarity"):
            scoring.append(f"`{name}` {number}")
        elif value != defaults.get(name) and name != "matryoshka_dims":  # the card names those elsewhere
            others.append(f"`{name}` {number}")
    return {
        "name": settings.objective,
        "summary": objective.summary if objective else "",
        "url": url,
        "options": scoring + others,
    }


def described_objective(name: str) -> Any:
    """Return an objective or a sum for what it says about itself, or `None` if it is not known here."""
    if any(find_objective(part) is None for part in part_weights(name)):
        return None
    with torch.device("meta"):  # its weights are not needed
        return build_objective(name, dim=8)


def _default_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the options of the objective where nobody chooses any: the temperature is that of the similarity in use.

    Empty for an objective that is not known here.
    """
    if described_objective(settings.objective) is None:
        return {}
    chosen = {}
    for name, value in settings.objective_options.items():
        if _last(name) == "similarity":
            chosen[name] = value
    defaults = resolve_options(settings.objective, chosen)
    return defaults | dict.fromkeys(chosen, "cosine")


def _last(option: str) -> str:
    """Return the name of an option without the part of a sum that it belongs to: `supcon.temperature` has one."""
    return option.rpartition(".")[2]


def hyperparameters(settings: ContrastiveSettings, config: PreTrainedConfig, run: dict) -> list[tuple[str, Any]]:
    """List what differs from its default and had an effect on this training.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        config (`PreTrainedConfig`): Its config, which has the rates of dropout.
        run (`dict`): As for [`training_context`].

    Returns:
        `list[tuple[str, Any]]`: Names and values, by name: arguments of the Trainer, settings, options of the
        objective and rates of dropout.
    """
    values = dict(run.get("arguments", {}))
    if not run.get("view"):
        values = {name: value for name, value in values.items() if not name.startswith("view")}
    if not settings.do_mlm:
        values.pop("mlm_probability", None)
    unread = _NOT_LISTED if settings.do_mlm else (*_NOT_LISTED, "mlm_weight")
    changed = _changed(asdict(settings), asdict(ContrastiveSettings()))
    for name, value in changed.items():
        if name not in unread:
            values[name] = value
    values |= _changed(public_options(settings), _default_options(settings))
    rates = {}
    for name, value in config.to_dict().items():
        if "dropout" in name and "classifier" not in name:
            rates[name] = value
    values |= _changed(rates, type(config)().to_dict())
    return sorted(values.items())


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != defaults.get(name)}


def papers_of(settings: ContrastiveSettings, run: dict, transform: str | None) -> list[str]:
    """List the papers that a model should be cited with.

    Args:
        settings (`ContrastiveSettings`): The settings of the model.
        run (`dict`): As for [`training_context`].
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        `list[str]`: Names in [`PAPERS`], the objective's own paper first.
    """
    papers: list[str] = []
    names = [settings.objective]
    names += [name for name, _ in settings.losses().values()]
    for name in names:
        objective = described_objective(name)
        papers += objective.papers if objective else ()
    view = (run.get("view") or {}).get("name")
    positive_from_objective = len(settings.templates) > 1
    if view == "identity" and num_encoders(settings) == 2:
        positive_from_objective = True
    if view in VIEWS and not positive_from_objective and settings.objective != "tsdae":
        papers.append(VIEWS[view][1])
    if _encoders_option(settings) == 2 or (settings.do_mlm and settings.objective != "declutr"):
        papers.append("simcse")
    if settings.matryoshka_dims:
        papers.append("matryoshka")
    if run.get("arguments", {}).get("gradcache_chunk_size"):
        papers.append("gradcache")
    if transform is not None:
        papers.append(transform)
    return list(dict.fromkeys(papers)) or ["simcse"]


def num_encoders(settings: ContrastiveSettings) -> int:
    """Return how many independent encoders took part in training."""
    numbers = [_encoders_option(settings)]
    for name, _ in settings.losses().values():
        objective = described_objective(name)
        if objective:
            numbers.append(objective.encoders)
    return max(numbers)


def _encoders_option(settings: ContrastiveSettings) -> int:
    """Return the number of encoders that an option asks for (SimCSE, Table 2)."""
    numbers = [1]
    for _, options in settings.losses().values():
        numbers += [value for name, value in options.items() if _last(name) == "encoders"]
    return max(numbers)


def public_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the objective's options without paths of this machine."""
    options = dict(settings.objective_options)
    for name, value in options.items():
        if _last(name) == "generator":
            options[name] = public_name(value)
    return options


def _duration(seconds: float) -> str:
    if not seconds:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
