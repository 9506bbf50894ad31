"""What a card says of how a model was trained: rows, objective, views, what was added, and on what hardware."""

import csv
import inspect
import re
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedConfig

from ..models.configuration import ContrastiveSettings
from ..objectives import OBJECTIVES
from .methods import METHODS, ROWS, VIEW_WORDS
from .papers import PAPERS

# Settings that only some objectives read.
_OBJECTIVES_OWN = ("temperature", "similarity", "hard_negative_weight")
_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


def hub_id(name: str | None) -> str | None:
    """`name` if it may be a model of the hub and is no local directory."""
    return name if name and _HUB_ID.match(name) and not Path(name).exists() else None


def trained_by(settings: ContrastiveSettings, run: dict) -> str:
    """ ", trained by ..." for a card's first sentence; without record of a run, no more than config.json tells."""
    objective = settings.objective
    if not run:
        return "" if objective == "simcse" else f", set up for the objective `{objective}`"
    how = f"the objective `{objective}`"
    if objective in METHODS:
        method = METHODS[objective]
        how = f"{method.trained_by} ([{method.name}]({PAPERS[method.papers[0]].url}))"
    return f", trained by {how}{_on_what(settings, run)}"


def _on_what(settings: ContrastiveSettings, run: dict) -> str:
    rows, view = run.get("rows"), run.get("view")
    if rows is None:
        return ""
    what = ROWS[rows][1]
    if rows != "sentences":
        return what
    if view is None:
        return f"{what}, from single sentences"
    if len(settings.templates) > 1:
        return f"{what}, from each sentence in {len(settings.templates)} templates"
    if view["name"] != "identity":
        return f"{what}, from {'two views' if view['both'] else 'a view'} of each sentence (`{view['name']}`)"
    return f"{what}, from " + (
        "each sentence in two encoders" if _encoders(settings) == 2 else "two dropout views of each sentence"
    )


def tell_training(settings: ContrastiveSettings, run: dict, datasets: Sequence[str] | None) -> str:
    """The section on training, in sentences.

    Args:
        settings: of the model.
        run: as of `describe_run`, with what `results.json` adds; empty where nothing is recorded.
        datasets: hub names of the training data, where they were given.
    """
    if not run:
        told = "How this model was trained is not recorded beside it."
        if settings.objective == "simcse" and not settings.matryoshka_dims and settings.encoders == 1:
            return told
        return " ".join([f"{told} By its config.json:", *_tell_method(settings, run)])
    named = datasets or ([Path(run["train_texts"]).name] if run.get("train_texts") else ())
    source = ", ".join(f"`{name}`" for name in named)
    rows = f"{run['train_rows']:,} rows of " if run.get("train_rows") else ""
    texts = ROWS[run["rows"]][0] if run.get("rows") else "texts"
    parts = [f"{rows}{texts}" + (f", from {source}." if source else ".")] if rows or source else []
    if base := run.get("base_model"):
        parts.append(f"It started from `{hub_id(base) or Path(base).name}`.")
    parts += _tell_method(settings, run)
    if run.get("steps"):
        parts.append(f"{run['steps']:,} steps, {run.get('epochs', 0):.3g} epochs, seed {run.get('seed')}.")
    return " ".join(parts)


def _tell_method(settings: ContrastiveSettings, run: dict) -> list[str]:
    name = settings.objective
    parts = [f"The objective is `{name}`{_what(name)}{_with_options(settings)}."]
    if view := run.get("view"):
        parts.append(_tell_view(settings, view))
    if _encoders(settings) == 2:
        parts.append(
            "An independent second encoder, which is not part of this model, encoded all but the first text of a row."
        )
    if dims := settings.matryoshka_dims:
        parts.append(
            f"The leading {_listed(sorted(dims, reverse=True))} dimensions carried the objective too "
            f"([Matryoshka]({PAPERS['matryoshka'].url}))."
        )
    if settings.do_mlm:
        parts.append(f"A masked-LM loss was added, times {settings.mlm_weight:g}.")
    if chunk := run.get("arguments", {}).get("gradcache_chunk_size"):
        parts.append(
            f"The encoder took a batch in chunks of {chunk} rows ([GradCache]({PAPERS['gradcache'].url})), which "
            "leaves its gradient as it is."
        )
    return parts


def _what(objective: str) -> str:
    return f", {METHODS[objective].what}" if objective in METHODS else ", which is none of this package's own"


def _with_options(settings: ContrastiveSettings) -> str:
    known = option_defaults(settings.objective)
    options = shown_options(settings)
    if known is not None:
        used = {name: value for name, value in settings.to_dict().items() if name in known}
        score = [
            f"`{name}` {_value(options.pop(name, used[name]))}"
            for name in ("temperature", "similarity")
            if name in used
        ]
    else:
        score = []
    changed = [
        f"`{name}` {_value(value)}" for name, value in options.items() if known is None or known.get(name) != value
    ]
    return f" (with {_listed([*score, *changed])})" if score or changed else ""


def shown_options(settings: ContrastiveSettings) -> dict:
    """The options that were given to the objective, without paths of this machine."""
    return {
        name: (hub_id(value) or Path(value).name) if name == "generator" and value else value
        for name, value in settings.objective_options.items()
    }


def _tell_view(settings: ContrastiveSettings, view: dict) -> str:
    if len(settings.templates) > 1:
        return "A sentence's positive is itself in another template."
    if view["name"] == "identity" and _encoders(settings) == 2:
        return "A sentence's positive is itself in the second encoder."
    words = VIEW_WORDS[view["name"]][0] if view["name"] in VIEW_WORDS else "another view of it"
    rate = "" if view["rate"] is None else f", rate {view['rate']:g}"
    both = ", and so is its anchor" if view["both"] else ""
    return f"A sentence's positive is {words} (view `{view['name']}`{rate}){both}."


def hyperparameters(settings: ContrastiveSettings, config: PreTrainedConfig, run: dict) -> list[tuple[str, object]]:
    """Name and value of what differs from its default and had a part in this training, by name."""
    arguments = dict(run.get("arguments", {}))
    if not run.get("view"):
        arguments = {name: value for name, value in arguments.items() if not name.startswith("view")}
    if not settings.do_mlm:
        arguments.pop("mlm_probability", None)
    if view_model := arguments.get("view_model"):
        arguments["view_model"] = hub_id(view_model) or Path(view_model).name
    found = {**arguments, **changed_settings(config)}
    return sorted((found | {name: x for name, x in shown_options(settings).items() if name in found}).items())


def papers_of(settings: ContrastiveSettings, run: dict, transform: str | None) -> list[str]:
    """Names in [`PAPERS`] of what a model is to be cited with.

    Args:
        settings: of the model.
        run: as for [`tell_training`].
        transform: method of the transform beside the model, if there is one.
    """
    found = list(METHODS[settings.objective].papers) if settings.objective in METHODS else []
    view = (run.get("view") or {}).get("name")
    by_objective = len(settings.templates) > 1 or (view == "identity" and _encoders(settings) == 2)
    if view in VIEW_WORDS and not by_objective:
        found.append(VIEW_WORDS[view][1])
    if settings.encoders == 2 or (settings.do_mlm and settings.objective != "declutr"):
        found.append("simcse")
    if settings.matryoshka_dims:
        found.append("matryoshka")
    if run.get("arguments", {}).get("gradcache_chunk_size"):
        found.append("gradcache")
    if transform is not None:
        found.append(transform)
    return list(dict.fromkeys(found))


def _encoders(settings: ContrastiveSettings) -> int:
    kind = OBJECTIVES.get(settings.objective)
    return max(settings.encoders, kind.encoders if kind else 1)


def _listed(items: Sequence) -> str:
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def tell_hardware(run: dict, emissions: dict | None) -> str:
    """What a run ran on, for how long, and what CodeCarbon measured of it."""
    parts = []
    if run.get("hardware"):
        parts.append(f"Trained on {run.get('processes', 1)} x {run['hardware']}")
        if run.get("train_seconds"):
            parts[-1] += f" in {_duration(run['train_seconds'])}, evaluations during training included"
        parts[-1] += "."
    elif run.get("train_seconds"):
        parts.append(f"Training took {_duration(run['train_seconds'])}, evaluations included.")
    if emissions:
        parts.append(
            f"CodeCarbon measured {emissions['kwh']:.4g} kWh, which it estimates at {emissions['grams']:.4g} g of CO2."
        )
    return " ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def read_emissions(path: Path) -> dict | None:
    """Grams of CO2 and kWh of the last run in CodeCarbon's file, if there is one.

    Raises:
        ValueError: the file holds no measurement.
    """
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return {"grams": float(rows[-1]["emissions"]) * 1000, "kwh": float(rows[-1]["energy_consumed"])}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no measurement of CodeCarbon ({error!r})") from error


def option_defaults(objective: str) -> dict | None:
    """Options of an objective with their defaults, settings of the model among them; None if it is not registered."""
    if objective not in OBJECTIVES:
        return None
    parameters = inspect.signature(OBJECTIVES[objective]).parameters.values()
    return {x.name: x.default for x in parameters if x.name != "dim"}


def changed_settings(config: PreTrainedConfig) -> dict:
    """Settings and options of the objective that it reads, and dropout rates of the encoder, unless the default."""
    settings, defaults = ContrastiveSettings.from_config(config).to_dict(), ContrastiveSettings().to_dict()
    options = settings.pop("objective_options")
    known = option_defaults(settings["objective"])
    unread = ["mask_token_id", "template_edges"]  # these follow from the templates
    if known is not None:
        unread += [name for name in _OBJECTIVES_OWN if name not in known]
    if not settings["do_mlm"]:
        unread.append("mlm_weight")
    settings = {name: value for name, value in settings.items() if name not in unread} | options
    rates = {name: rate for name, rate in config.to_dict().items() if "dropout" in name and "classifier" not in name}
    return {**_changed(settings, defaults | (known or {})), **_changed(rates, type(config)().to_dict())}


def _changed(values: dict, defaults: dict) -> dict:
    return {name: value for name, value in values.items() if value != defaults.get(name)}
