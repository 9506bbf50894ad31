"""What a card says about training: rows, objective, views, duration and hyper-parameters."""

from dataclasses import asdict
from typing import Any

from ..data.contents import CONTENTS, Content
from ..data.views import VIEW_CLASSES
from ..models.resolve import resolve_options
from ..models.settings import ContrastiveSettings, dropout_rates
from .card_subject import Subject, last_part, public_name
from .papers import PAPERS

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
_NO_RECORD = "This directory holds no record of how the model was trained."


def training(model: Subject) -> str:
    """Describe the training in a paragraph."""
    settings = model.settings
    if model.adaptation:
        return _adapted(model.adaptation)
    is_plain = settings.objective == "simcse" and not settings.matryoshka_dims and model.encoders == 1
    if not model.run and is_plain:
        return _NO_RECORD
    sentences = [_rows(model), _datasets(model), _start(model)]
    if not model.run:
        sentences = [f"{_NO_RECORD} According to its config.json:"]
    sentences += [_objective(model), _view(model), _additions(model)]
    if model.run:
        sentences += [_length(model.run), _seeds(model)]
    return " ".join(filter(None, sentences))


def _rows(model: Subject) -> str:
    """Say how many rows of what there were, and where they come from."""
    number = model.run.get("train_rows")
    texts = public_name(model.run.get("train_texts"))
    sources = model.datasets or ([texts] if texts else [])
    if not number and not sources:
        return ""
    count = f"{number:,} rows of " if number else ""
    origin = ", from " + ", ".join(f"`{source}`" for source in sources) if sources else ""
    return f"Training data: {count}{CONTENTS.get(model.run.get('rows', ''), Content()).words}{origin}."


def _datasets(model: Subject) -> str:
    """Name the data sets that batches come from."""
    described = []
    for name, rows in (model.run.get("datasets") or {}).items():
        own = model.settings.dataset_objectives.get(name)
        objective = f", objective `{own['objective']}`" if own else ""
        described.append(f"`{name}` ({rows:,} rows{objective})")
    return f"Each batch comes from one of the data sets {', '.join(described)}." if described else ""


def _start(model: Subject) -> str:
    return f"Training started from `{model.base_model}`." if model.base_model else ""


def _objective(model: Subject) -> str:
    """Name the objective, and the options that somebody chose; the similarity and its temperature always."""
    defaults = _default_options(model.settings)
    scoring = {}
    others = {}
    for name, value in public_options(model.settings).items():
        if last_part(name) in ("temperature", "similarity"):
            scoring[name] = value
        elif value != defaults.get(name) and name != "matryoshka_dims":  # the card names those elsewhere
            others[name] = value
    options = []
    for name, value in (scoring | others).items():
        options.append(f"`{name}` {value:g}" if isinstance(value, float) else f"`{name}` {value}")
    listed = f" (with {', '.join(options)})" if options else ""
    summary = model.objective.summary if model.objective else ""
    what = f": {summary}" if summary else ", which is not part of simcse_hf"
    return f"The objective is `{model.settings.objective}`{what}{listed}."


def _view(model: Subject) -> str:
    """Say how the positive of a single sentence was made."""
    if not model.view:
        return ""
    if len(model.settings.templates) > 1:
        return "The positive of a sentence is the same sentence in another template."
    name = model.view["name"]
    if name == "identity" and model.encoders == 2:
        return "The positive of a sentence is the same sentence in the second encoder."
    is_damaged = model.settings.objective == "tsdae"
    subject = "The encoder reads" if is_damaged else "The positive of a sentence is"
    words = VIEW_CLASSES[name].words if name in VIEW_CLASSES else "a view of it"
    rate = "" if model.view["rate"] is None else f", rate {model.view['rate']:g}"
    both = "; the anchor is changed in the same way" if model.view["both"] else ""
    return f"{subject} {words} (view `{name}`{rate}){both}."


def _additions(model: Subject) -> str:
    """Name what was added to the objective."""
    settings = model.settings
    sentences = []
    if model.encoders == 2:
        sentences.append(
            "A second, independent encoder, which is not part of this model, encoded every text of a row except the "
            "first."
        )
    dims = ", ".join(map(str, settings.matryoshka_dims))
    if dims:
        matryoshka = f"[Matryoshka]({PAPERS['matryoshka'].url})"
        sentences.append(f"The objective was also applied to the leading {dims} dimensions ({matryoshka}).")
    if settings.do_mlm:
        sentences.append(f"A masked-LM loss was added with weight {settings.mlm_weight:g}.")
    rows = model.arguments.get("gradcache_chunk_size")
    if rows:
        gradcache = f"[GradCache]({PAPERS['gradcache'].url})"
        sentences.append(
            f"Each batch was encoded in chunks of {rows} rows ({gradcache}), which does not change the gradient."
        )
    return " ".join(sentences)


def _length(run: dict) -> str:
    if not run.get("steps"):
        return ""
    epochs = run.get("epochs") or 0
    return f"Training took {run['steps']:,} steps, or {epochs:.3g} epochs, with seed {run.get('seed', '')}."


def _seeds(model: Subject) -> str:
    if len(model.runs) < 2:
        return ""
    seeds = ", ".join(map(str, model.seeds))
    which = "the best one on the dev set" if model.run["seeds"]["chosen_by"] else "the first one"
    return f"Of {len(model.runs)} runs with the seeds {seeds}, this is {which}."


def _adapted(adaptation: dict) -> str:
    """Describe what `simcse-hf adapt` compared and chose."""
    corpus = adaptation["corpus"]
    chosen = adaptation["chosen"]
    compared = (
        f"`simcse-hf adapt` compared {len(adaptation['arms'])} arms for the domain of `{corpus['path']}` "
        f"({corpus['texts']:,} texts), starting from `{chosen['model']}`, and chose `{chosen['name']}`."
    )
    if not chosen["stages"]:
        return f"{compared} The encoder was not trained: what changed is the pooler or post-processing."
    stages = []
    for stage in chosen["stages"]:
        work = f"{stage['steps']} steps of `{stage['objective']}` on `{stage['file']}`"
        stages.append(f"{work} at learning rate {stage['learning_rate']:g}")
    return (
        f"{compared} Its training is {', then '.join(stages)}; this model is the first of the "
        f"{len(adaptation['seeds'])} run(s) of the verdict, seed {chosen['seed']}."
    )


def public_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the objective's options without paths of this machine."""
    options = {}
    for name, value in settings.objective_options.items():
        options[name] = public_name(value) if last_part(name) == "generator" else value
    return options


def _default_options(settings: ContrastiveSettings) -> dict[str, Any]:
    """Return the options of the objective if nobody chooses any; the temperature is that of the similarity in use."""
    chosen = {name: value for name, value in settings.objective_options.items() if last_part(name) == "similarity"}
    return resolve_options(settings.objective, chosen) | dict.fromkeys(chosen, "cosine")


def hyperparameters(model: Subject) -> list[tuple[str, object]]:
    """List what differs from its default and had an effect on this training.

    Args:
        model (`Subject`): The model.

    Returns:
        `list[tuple[str, object]]`: Names and values, by name: arguments of the Trainer, settings, options of the
        objective and rates of dropout.
    """
    settings = model.settings
    unread = [] if settings.do_mlm else ["mlm_weight", "mlm_probability"]
    if not model.view:
        unread += ["view", "view_rate", "view_both"]
    used = asdict(settings) | public_options(settings) | dropout_rates(model.config)
    defaults = asdict(ContrastiveSettings()) | _default_options(settings) | dropout_rates(type(model.config)())
    listed = dict(model.arguments)
    for name, value in used.items():
        if name not in _NOT_LISTED and value != defaults.get(name):
            listed[name] = value
    return sorted((name, value) for name, value in listed.items() if name not in unread)
