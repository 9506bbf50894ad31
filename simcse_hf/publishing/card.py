"""Writes the card of a saved model: README.md and `.eval_results`, from the template and the result files."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from huggingface_hub import ModelCard, ModelCardData, eval_result_entries_to_yaml
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..models.configuration import SECTION, ContrastiveSettings, max_positions
from ..models.poolers import TEMPLATE_POOLER, needs_hidden_states
from ..models.sentence_transformers import NOT_IN_SENTENCE_TRANSFORMERS
from ..postprocessing.files import FOLDER as TRANSFORM_FOLDER
from ..postprocessing.files import Fit, find_transform
from ..postprocessing.interface import VectorTransform
from .card_results import (
    dev_table,
    eval_result_entries,
    evaluation_tables,
    model_index,
    not_outdated,
    read_evaluation,
    read_run,
)
from .card_training import (
    hub_id,
    hyperparameters,
    papers_of,
    read_emissions,
    tell_hardware,
    tell_training,
    trained_by,
)
from .papers import PAPERS, bibtex_of

CARD = "README.md"
EVAL_RESULTS = Path(".eval_results", "simcse_hf.yaml")
MARKER = "<!-- Written by `simcse-hf card`; what is changed here by hand is lost at its next run. -->"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "simcse", "simcse-hf"]
WIDGET = [
    {
        "source_sentence": "A cat sits on the mat.",
        "sentences": ["A feline rests on a rug.", "A dog runs across the field.", "The market fell sharply today."],
    }
]

FRONT_MATTER = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": TAGS,
    "widget": WIDGET,
}

_TEMPLATE = Path(__file__).with_name("template.md")
_POOLERS = {
    "cls": "`cls`: the first token through the trained dense + tanh head",
    "cls_before_pooler": "`cls_before_pooler`: the first token of the last layer",
    "avg": "`avg`: mean of the last layer over all tokens",
    "avg_no_cls": "`avg_no_cls`: mean of the last layer over all tokens but the first, [CLS]",
    TEMPLATE_POOLER: "`mask`: the mask token of a template around the text, last layer",
    "avg_top2": "`avg_top2`: mean of the last two layers over all tokens",
    "avg_first_last": "`avg_first_last`: mean of the first and the last layer over all tokens",
    "avg_embeddings_last": "`avg_embeddings_last`: mean of the embedding output and the last layer over all tokens",
}
_OTHER_LAYER = {"avg_top2": -2, "avg_first_last": 1, "avg_embeddings_last": 0}


def write_card(
    directory: str | os.PathLike,
    evaluations: Sequence[str | os.PathLike] | None = None,
    *,
    repo_id: str | None = None,
    run: dict | None = None,
    language: str | Sequence[str] | None = None,
    license: str | None = None,
    datasets: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
) -> Path:
    """Writes the card of the model saved in `directory`, and its figures as `.eval_results` where the hub knows them.

    Figures come from result files alone: `results.json` of the training run in `directory`, and evaluations.

    Args:
        directory: of the model.
        evaluations: JSON files of `simcse-hf evaluate --output`; default: those named `evaluation*.json` in
            `directory`, without what is older than the weights.
        repo_id: its name on the hub, for the usage examples; default: `your-name/` and the directory's.
        run: of [`describe_run`], where `results.json` is not written yet; one of another run is left out.
        language, license, datasets: for the front matter; default: those of the card that is there, if any.
        tags: besides those of every card.

    Returns:
        The path of the card.

    Raises:
        ValueError: the directory holds no model, or a damaged transform; its README.md was not written by this
            function; a file of results is broken, or of another model.
    """
    directory = Path(directory)
    if not (directory / "config.json").exists():
        raise ValueError(f"{directory} holds no model (config.json): name the directory that it was saved in")
    path = directory / CARD
    kept = _front_matter_to_keep(path)
    config = AutoConfig.from_pretrained(directory)
    if getattr(config, SECTION, None) is None:
        raise ValueError(f"{directory} was not saved by this package: its config.json names no pooler")
    settings = ContrastiveSettings.from_config(config)
    found = find_transform(directory, {})
    method = found and found[0].method
    pooler = settings.inference_pooler if found is None else found[1].pooler
    saved_run = read_run(directory / "results.json")
    if run is None or all(saved_run.get(name) == run[name] for name in ("steps", "train_loss")):
        run = {**saved_run, **(run or {})}
    if evaluations is None:
        evaluations = not_outdated(sorted(directory.glob("evaluation*.json")), directory)
    documents = [read_evaluation(Path(file), directory, repo_id, pooler, method) for file in evaluations]
    emissions = read_emissions(directory / "emissions.csv")
    tables = [table for document in documents for table in evaluation_tables(document)]
    figures = [figure for document in documents for figure in model_index(document)]
    name = (repo_id or directory.resolve().name).rpartition("/")[2]
    in_sentence_transformers = _is_sentence_transformers_model(directory)
    data = ModelCardData(
        language=language or kept.get("language"),
        license=license or kept.get("license"),
        datasets=list(datasets or ()) or kept.get("datasets"),
        base_model=hub_id(run.get("base_model")) or kept.get("base_model"),
        model_name=name if figures else None,
        eval_results=figures or None,
        **({"co2_eq_emissions": {"emissions": emissions["grams"], "source": "CodeCarbon"}} if emissions else {}),
        **_library(settings.objective, in_sentence_transformers, tags or ()),
    )
    repository = repo_id or _placeholder(directory)
    own_pooler = any("pooler." in key for key in _weight_names(directory))
    content = render_card(
        data,
        name=name,
        repo_id=repository,
        tables=[*filter(None, [dev_table(run, method)]), *tables],
        training=tell_training(settings, run, data.datasets),
        hyperparameters=hyperparameters(settings, config, run),
        hardware=tell_hardware(run, emissions),
        sentence_transformers=in_sentence_transformers,
        **describe_model(config, settings, own_pooler, run, repository, found),
    )
    path.write_text(content, encoding="utf-8")
    _write_eval_results(directory / EVAL_RESULTS, [x for document in documents for x in eval_result_entries(document)])
    return path


def render_card(data: ModelCardData, marker: str = MARKER, **context) -> str:
    """The card as text; `context` is what the template names."""
    return str(ModelCard.from_template(data, template_path=str(_TEMPLATE), marker=marker, **context)).rstrip() + "\n"


def describe_model(
    config: PreTrainedConfig,
    settings: ContrastiveSettings,
    own_pooler: bool,
    run: dict,
    repo_id: str,
    transform: tuple[VectorTransform, Fit] | None = None,
) -> dict:
    """The part of the template's context that follows from the model itself, and its citation."""
    dim, length, method = config.hidden_size, max_positions(config), None
    facts = []
    if transform is not None:
        (after, fit), method = transform, transform[0].method
        if fit.pooler != settings.inference_pooler:
            settings = replace(settings, pooler_type=fit.pooler, mlp_only_train=False, templates=[])
        dim = after.output_dim
        length = min((x for x in (length, fit.max_length) if x is not None), default=None)
        facts.append(("post-processing", _tell_transform(after, fit)))
    widths = sorted((x for x in settings.matryoshka_dims if x < config.hidden_size), reverse=True)
    if method is None and widths:
        facts.append(("shorter vectors", f"the leading {', '.join(map(str, widths))} dimensions (`truncate_dim`)"))
    pooler = settings.inference_pooler
    post = "" if method is None else f", and a [{method}]({PAPERS[method].url}) of its vectors"
    return {
        "summary": (
            f"Sentence vectors of {dim} dimensions from a `{config.model_type}` encoder"
            f"{trained_by(settings, run)}{post}."
        ),
        "facts": [
            ("pooler", _POOLERS[pooler]),
            ("dimensions", dim),
            *facts,
            ("longest text", f"{length} tokens" if length else "as the tokenizer allows"),
            ("similarity", "cosine"),
        ],
        "note": " ".join(filter(None, [_note(settings, own_pooler, method), _note_on_transform(settings, method)])),
        "truncate_dim": widths[0] if method is None and widths else None,
        # What a flow does is in this package alone.
        "transformers": method != "flow",
        "all_layers": needs_hidden_states(pooler),
        "text_template": json.dumps(settings.templates[0]) if settings.templates else None,
        "max_length": length,
        "pooling_code": _pooling_code(pooler, own_pooler, repo_id)
        + (_whitening_code(repo_id) if method == "whitening" else ""),
        "length_limit": run
        and f"It was trained on texts of at most {settings.max_seq_length} tokens; longer ones are less well tried.",
        "citation": bibtex_of(papers_of(settings, run, method) or ["simcse"]),
    }


def _note(settings: ContrastiveSettings, own_pooler: bool, method: str | None) -> str:
    pooler = settings.inference_pooler
    if settings.mlp_only_train:
        return (
            "The dense + tanh head was used in training only (Table 6 of the paper). The vector of this model is the "
            "first token **before** it; `pooler_output` of transformers is not."
        )
    if pooler == "cls" and own_pooler:
        which = "the sentence vector" if method is None else f"what goes into the {method}"
        return f"The encoder's own pooler is the trained head: `pooler_output` of transformers is {which}."
    if pooler == TEMPLATE_POOLER:
        return (
            f"Every text goes into a template first, `{settings.templates[0]}`, which `SimCSE` does by itself. "
            "sentence-transformers has no pooling like this."
        )
    if pooler in NOT_IN_SENTENCE_TRANSFORMERS:
        return (
            "sentence-transformers has no pooling like this: `SentenceTransformer` would take the mean of all tokens, "
            "[CLS] among them, and give other vectors than this model's."
        )
    return ""


def _note_on_transform(settings: ContrastiveSettings, method: str | None) -> str:
    if method is None:
        return ""
    told = f"The {method} follows the pooler, which `SimCSE` sees to by itself (`postprocess=False` leaves it out)."
    if method == "flow":
        told += (
            " No other library has it: `transformers` gives the vectors before it, and sentence-transformers cannot "
            "load this model."
        )
    if settings.matryoshka_dims:
        told += (
            f" It mixes all dimensions, so the leading {' or '.join(map(str, settings.matryoshka_dims))} that were "
            "trained to stand alone do so before it only."
        )
    return told


def _tell_transform(transform: VectorTransform, fit: Fit) -> str:
    columns = ", ".join(f"`{column}`" for column in fit.columns)
    return (
        f"{transform.method} of {transform.input_dim} to {transform.output_dim} dimensions, fitted without labels on "
        f"{fit.sentences:,} sentences of `{fit.file}` ({columns})"
    )


def _whitening_code(repo_id: str) -> str:
    return (
        "\n\nfrom safetensors.torch import load_file\n"
        "from transformers.utils import cached_file\n\n"
        f'whitening = load_file(cached_file("{repo_id}", "model.safetensors", subfolder="{TRANSFORM_FOLDER}"))\n'
        'vectors = vectors.double() @ whitening["linear.weight"].T + whitening["linear.bias"]'
    )


def _pooling_code(pooler: str, own_pooler: bool, repo_id: str) -> str:
    if pooler == "cls" and own_pooler:
        return "vectors = outputs.pooler_output"
    if pooler == "cls":
        return (
            "from safetensors.torch import load_file\n"
            "from transformers.utils import cached_file\n\n"
            f'head = load_file(cached_file("{repo_id}", "model.safetensors", subfolder="2_Dense"))\n'
            "first = outputs.last_hidden_state[:, 0]\n"
            'vectors = torch.tanh(first @ head["linear.weight"].T + head["linear.bias"])'
        )
    if pooler == "cls_before_pooler":
        return "vectors = outputs.last_hidden_state[:, 0]"
    if pooler == TEMPLATE_POOLER:
        return 'vectors = outputs.last_hidden_state[inputs["input_ids"] == tokenizer.mask_token_id]'
    hidden = "outputs.last_hidden_state"
    if needs_hidden_states(pooler):
        hidden = f"(outputs.hidden_states[{_OTHER_LAYER[pooler]}] + {hidden}) / 2"
    mask = 'inputs["attention_mask"].unsqueeze(-1)'
    if pooler == "avg_no_cls":
        hidden, mask = f"{hidden}[:, 1:]", f"{mask}[:, 1:]"
    return f"hidden, mask = {hidden}, {mask}\nvectors = (hidden * mask).sum(1) / mask.sum(1)"


def _library(objective: str, in_sentence_transformers: bool, tags: Sequence[str]) -> dict:
    """The front matter of every card; the hub shows how to load a model by its library."""
    own_tags = TAGS if objective == "simcse" else [*(tag for tag in TAGS if tag != "simcse"), objective]
    own = {**FRONT_MATTER, "tags": [*own_tags, *(tag for tag in tags if tag not in own_tags)]}
    if not in_sentence_transformers:
        own |= {
            "library_name": "transformers",
            "tags": [tag for tag in own["tags"] if tag != FRONT_MATTER["library_name"]],
        }
    return own


def _is_sentence_transformers_model(directory: Path) -> bool:
    """Whether all of its modules are sentence-transformers' own; one of ours (a flow) it refuses to load."""
    path = directory / "modules.json"
    if not path.exists():
        return False
    modules = json.loads(path.read_text(encoding="utf-8"))
    return all(module["type"].startswith("sentence_transformers.") for module in modules)


def _weight_names(directory: Path) -> list[str]:
    names = []
    for path in directory.glob("model*.safetensors"):
        with safe_open(path, "pt") as weights:
            names += weights.keys()
    return names


def is_written_by_hand(path: Path) -> bool:
    """Whether there is a card that `write_card` did not write."""
    return path.exists() and MARKER not in path.read_text(encoding="utf-8")


def name_repository(directory: str | os.PathLike, repo_id: str) -> None:
    """Puts the repository's name into the usage examples of a card that was written before there was one."""
    path = Path(directory, CARD)
    if not is_written_by_hand(path):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f'"{_placeholder(Path(directory))}"', f'"{repo_id}"'), encoding="utf-8")


def _placeholder(directory: Path) -> str:
    return f"your-name/{directory.resolve().name}"


def _front_matter_to_keep(path: Path) -> dict:
    if not path.exists():
        return {}
    if is_written_by_hand(path):
        raise ValueError(f"{path} was not written by `simcse-hf card`, which would replace it: move it first")
    return ModelCard.load(path).data.to_dict()


def _write_eval_results(path: Path, entries: list) -> None:
    if not entries:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False), encoding="utf-8")
