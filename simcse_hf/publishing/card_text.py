"""What a card says about a model and its training: sentences, facts, code and papers."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from transformers.utils import logging

from ..data.contents import CONTENTS, Content
from ..data.views import VIEW_CLASSES
from ..evaluation.threshold import describe_threshold
from ..models.pooling import POOLERS
from ..models.settings import THRESHOLD, ContrastiveSettings, Values, dropout_rates, resolve_options
from ..runtime.upload import PublicNames
from .card_subject import Subject, last_part

logger = logging.get_logger(__name__)


class Paper(NamedTuple):
    """A BibTeX entry with its key, and where to read the paper."""

    key: str
    bibtex: str
    url: str


_ENTRY = re.compile(
    r"^% (?P<name>\S+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n.*?^  url = \{(?P<url>[^}]+)\}.*?^\})$",
    re.MULTILINE | re.DOTALL,
)
_OWN_ENTRY = re.compile(r"@\w+\{(?P<key>[^,]+),.*\burl\s*=\s*[{\"](?P<url>[^}\"]+)[}\"].*\}", re.DOTALL)
#: The papers that cards cite.
PAPERS = {}
for _entry in _ENTRY.finditer(Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")):
    PAPERS[_entry["name"]] = Paper(*_entry.group("key", "bibtex", "url"))

_HEAD = """\
from safetensors.torch import load_file
from transformers.utils import cached_file

head = load_file(cached_file("MODEL", "model.safetensors", subfolder="2_Dense"))
first = outputs.last_hidden_state[:, 0]
embeddings = torch.tanh(first @ head["linear.weight"].T + head["linear.bias"])"""
_DENOISED = """\
from safetensors.torch import load_file
from transformers.activations import ACT2FN
from transformers.utils import cached_file

is_mask = inputs["input_ids"] == tokenizer.mask_token_id
states = outputs.last_hidden_state[is_mask]
for row, length in zip(inputs["attention_mask"], inputs["attention_mask"].sum(1)):
    row[{start} : length - {end}] = 0  # hides the text from the template
with torch.no_grad():
    template_states = model(**inputs).last_hidden_state[is_mask]
head = load_file(cached_file("MODEL", "model.safetensors", subfolder="template_head"))
weight, bias = head["layer.dense.weight"], head["layer.dense.bias"]
"""
_TANH = "embeddings = torch.tanh((states - template_states) @ weight.T + bias)"
_TRANSFORM = """\
both = ACT2FN[model.config.hidden_act](torch.stack([states, template_states]) @ weight.T + bias)
norm = (head["layer.LayerNorm.weight"], head["layer.LayerNorm.bias"], model.config.layer_norm_eps)
both = torch.nn.functional.layer_norm(both, both.shape[-1:], *norm)
embeddings = both[0] - both[1]"""
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
_NO_RECORD = "This folder holds no record of how the model was trained."


# The model ----------------------------------------------------------------------------------------------------------


def origin(model: Subject) -> str:
    """Name the objective and the rows, as the end of a sentence."""
    name = model.settings.objective
    if not model.run:
        return "" if name == "simcse" else f", configured for the objective `{name}`"
    papers = _known(model.objective.papers) if model.objective else []
    objective = f"[`{name}`]({papers[0].url})" if papers else f"the objective `{name}`"
    rows = CONTENTS.get(model.run.get("rows", ""))
    trained = f" {rows.trained}" if rows else ""
    positives = _positives(model)[0] if model.run.get("rows") == "sentences" else ""
    return f", trained with {objective}{trained}{positives}"


def _positives(model: Subject) -> tuple[str, str]:
    """Say of what the pairs of single sentences were made: as the end of a sentence, and in a sentence of its own."""
    if not model.view:
        return ", from single sentences", ""
    templates = len(model.settings.templates)
    if templates > 1:
        return (
            f", from each sentence in {templates} templates",
            "The positive of a sentence is the same sentence in another template.",
        )
    name = model.view["name"]
    if name == "identity" and model.encoders == 2:
        return (
            ", from each sentence in two encoders",
            "The positive of a sentence is the same sentence in the second encoder.",
        )
    views = f"{'two views' if model.view['both'] else 'a view'} of each sentence (`{name}`)"
    subject = "The encoder reads" if model.settings.objective == "tsdae" else "The positive of a sentence is"
    words = VIEW_CLASSES[name].words.rstrip(".") if name in VIEW_CLASSES else "a view of it"
    rate = "" if model.view["rate"] is None else f", rate {model.view['rate']:g}"
    both = "; the anchor is changed in the same way" if model.view["both"] else ""
    return (
        f", from {'two dropout views of each sentence' if name == 'identity' else views}",
        f"{subject} {words} (view `{name}`{rate}){both}.",
    )


def threshold(model: Subject) -> str:
    """Say from which cosine two texts are similar."""
    saved = getattr(model.config, THRESHOLD, None)
    if saved:
        found = describe_threshold(saved)
        return f"`SimCSE.is_similar` calls two texts similar from {found}. Other data needs another threshold."
    return (
        'Cosine similarities are meant for ranking. A threshold for "the same meaning" has to be chosen on your own '
        "data."
    )


def papers(model: Subject) -> list[Paper]:
    """List the papers to cite, those of the objective first."""
    settings = model.settings
    names: list[str | None] = [*model.objective.papers] if model.objective else []
    for objective in model.objectives:
        names += objective.papers
    view = model.view.get("name")
    is_of_encoder = view == "identity" and model.encoders == 2
    is_of_method = settings.objective == "tsdae" or len(settings.templates) > 1 or is_of_encoder
    if view in VIEW_CLASSES and not is_of_method:
        names.append(VIEW_CLASSES[view].paper)
    if settings.do_mlm and settings.objective != "declutr":
        names.append("simcse")
    if settings.matryoshka_dims:
        names.append("matryoshka")
    if model.arguments.get("gradcache_chunk_size"):
        names.append("gradcache")
    names.append(model.method)
    return _known([*filter(None, names)] or ["simcse"])


def _known(names: list[str] | tuple[str, ...]) -> list[Paper]:
    """Return the papers of these names, which an objective of a user gives as BibTeX, and warn of any other name."""
    known = []
    for name in dict.fromkeys(names):
        entry = _OWN_ENTRY.fullmatch(name.strip())
        if name in PAPERS:
            known.append(PAPERS[name])
        elif entry:
            known.append(Paper(entry["key"].strip(), entry[0], entry["url"]))
        else:
            logger.warning_once(f"The card does not cite {name!r}: give papers a BibTeX entry with a url.")
    return known


def hardware(run: dict) -> str:
    """Say on what and how long the model was trained."""
    seconds = run.get("train_seconds") or 0
    time = f"{seconds:.0f} seconds"
    if seconds >= 7200:
        time = f"{seconds / 3600:.1f} hours"
    elif seconds >= 120:
        time = f"{seconds / 60:.0f} minutes"
    if not run.get("hardware"):
        return f"Training took {time}, including evaluations." if seconds else ""
    number = run.get("processes") or 1
    trained = f"Trained on {f'{number} x' if number > 1 else 'one'} {run['hardware']}"
    if seconds:
        trained += f" in {time}, including evaluations{' and all seeds' if run.get('seeds') else ''}"
    return f"{trained}."


def pooling_code(model: Subject) -> str:
    """Return Python that computes `embeddings` from the `outputs` of transformers."""
    denoising = model.inference.denoising
    code = POOLERS[model.pooler].code
    if model.pooler == "cls" and not model.own_pooler:
        code = _HEAD
    elif denoising != "none":
        start, end = model.inference.template_edges[0]
        code = _DENOISED.format(start=start, end=end) + (_TANH if denoising == "tanh" else _TRANSFORM)
    return code.replace("MODEL", model.repo_id)


# Its training -------------------------------------------------------------------------------------------------------


def training(model: Subject) -> str:
    """Describe the training in a paragraph."""
    run = model.run
    settings = model.settings
    if model.adaptation:
        return _adapted(model.adaptation)
    is_plain = settings.objective == "simcse" and not settings.matryoshka_dims and model.encoders == 1
    if not run and is_plain:
        return _NO_RECORD

    # 1. How many rows of what there were, where they come from, and what a batch and the training start from.
    sentences = []
    number = run.get("train_rows")
    sources = model.datasets or filter(None, [run.get("train_texts")])
    origin = ", ".join(f"`{source}`" for source in sources)
    if number or origin:
        count = f"{number:,} rows of " if number else ""
        words = CONTENTS.get(run.get("rows", ""), Content()).words
        sentences.append(f"Training data: {count}{words}{origin and ', from '}{origin}.")
    listed = []
    for name, rows in (run.get("datasets") or {}).items():
        own = settings.dataset_objectives.get(name)
        objective = f", objective `{own['objective']}`" if own else ""
        listed.append(f"`{name}` ({rows:,} rows{objective})")
    if listed:
        sentences.append(f"Each batch comes from one of the data sets {', '.join(listed)}.")
    if model.base_model:
        sentences.append(f"Training started from `{model.base_model}`.")
    if not run:
        sentences = [f"{_NO_RECORD} According to its config.json:"]

    # 2. The objective with the options that somebody chose; the similarity and its temperature always.
    defaults = _default_options(settings)
    scoring = []
    others = []
    for name, value in PublicNames()(settings.objective_options).items():
        described = f"`{name}` {value:g}" if isinstance(value, float) else f"`{name}` {value}"
        if last_part(name) in ("temperature", "similarity"):
            scoring.append(described)
        elif value != defaults.get(name) and name != "matryoshka_dims":  # the card names those elsewhere
            others.append(described)
    options = ", ".join(scoring + others)
    summary = model.objective.summary.rstrip(".") if model.objective else ""
    what = f": {summary}" if summary else ", which is not part of simcse_hf"
    sentences.append(f"The objective is `{settings.objective}`{what}{f' (with {options})' if options else ''}.")
    sentences.append(_positives(model)[1])

    # 3. What was added to it.
    if model.encoders == 2:
        sentences.append(
            "A second, independent encoder, which is not part of this model, encoded every text of a row except the "
            "first."
        )
    dims = ", ".join(map(str, settings.matryoshka_dims))
    if dims:
        sentences.append(
            f"The objective was also applied to the leading {dims} dimensions "
            f"([Matryoshka]({PAPERS['matryoshka'].url}))."
        )
    if settings.do_mlm:
        sentences.append(f"A masked-LM loss was added with weight {settings.mlm_weight:g}.")
    chunk = model.arguments.get("gradcache_chunk_size")
    if chunk:
        sentences.append(
            f"Each batch was encoded in chunks of {chunk} rows ([GradCache]({PAPERS['gradcache'].url})), which does "
            "not change the gradient."
        )

    # 4. The length and the seeds.
    if run.get("steps"):
        epochs = run.get("epochs")
        passes = f", or {epochs:.3g} epochs," if epochs else ""
        seed = run.get("seed", "")
        sentences.append(f"Training took {run['steps']:,} steps{passes} with seed {seed}.")
        if run.get("earlier_steps"):
            whole = run["earlier_steps"] + run["steps"]
            sentences.append(
                f"An earlier training, which is not described here, took {run['earlier_steps']:,} steps before, "
                f"{whole:,} in all."
            )
    if len(model.runs) > 1:
        seeds = ", ".join(map(str, model.seeds))
        which = "the best one on the dev set" if run["seeds"]["chosen_by"] else "the first one"
        sentences.append(f"Of {len(model.runs)} runs with the seeds {seeds}, this is {which}.")
    return " ".join(filter(None, sentences))


def _adapted(adaptation: dict) -> str:
    """Describe what `simcse-hf adapt` compared and chose."""
    corpus = adaptation["corpus"]
    chosen = adaptation["chosen"]
    start = f"starting from `{chosen['model']}`, " if chosen["model"] else ""  # of a local folder nothing is said
    compared = (
        f"`simcse-hf adapt` compared {len(adaptation['arms'])} arms for the domain of `{corpus['path']}` "
        f"({corpus['texts']:,} texts), {start}and chose `{chosen['name']}`."
    )
    if not chosen["stages"]:
        return f"{compared} The encoder was not trained: what changed is the pooler or post-processing."
    stages = []
    for stage in chosen["stages"]:
        stages.append(
            f"{stage['steps']} steps of `{stage['objective']}` on `{stage['file']}` at learning rate "
            f"{stage['learning_rate']:g}"
        )
    return (
        f"{compared} Its training is {', then '.join(stages)}; this model is run 1 of "
        f"{len(adaptation['seeds'])} of the verdict, with seed {chosen['seed']}."
    )


def _default_options(settings: ContrastiveSettings) -> Values:
    """Return the options of the objective if nobody chooses any; the temperature is that of the similarity in use."""
    chosen = {name: value for name, value in settings.objective_options.items() if last_part(name) == "similarity"}
    options = resolve_options(settings.objective, chosen)
    return options | dict.fromkeys(chosen, "cosine")


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
    used = asdict(settings) | PublicNames()(settings.objective_options) | dropout_rates(model.config)
    defaults = asdict(ContrastiveSettings()) | _default_options(settings) | dropout_rates(type(model.config)())
    listed = dict(model.arguments)
    for name, value in used.items():
        if name not in _NOT_LISTED and value != defaults.get(name):
            listed[name] = value
    return sorted((name, value) for name, value in listed.items() if name not in unread)
