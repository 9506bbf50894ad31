"""Writes the card of a saved model: README.md and `.eval_results`, from the template and the result files."""

import argparse
import csv
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from huggingface_hub import ModelCard, ModelCardData, eval_result_entries_to_yaml
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..configuration import SECTION, ContrastiveSettings
from ..poolers import TEMPLATE_POOLER, needs_hidden_states
from ..positions import max_positions
from ..sentence_transformers_files import NOT_IN_SENTENCE_TRANSFORMERS
from .results import (
    dev_table,
    eval_result_entries,
    evaluation_tables,
    model_index,
    not_outdated,
    read_evaluation,
    read_run,
)
from .run import changed_settings

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
_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


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
        ValueError: the directory holds no model; its README.md was not written by this function; a file of results
            is broken, or of another model.
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
    saved_run = read_run(directory / "results.json")
    if run is None or all(saved_run.get(name) == run[name] for name in ("steps", "train_loss")):
        run = {**saved_run, **(run or {})}
    if evaluations is None:
        evaluations = not_outdated(sorted(directory.glob("evaluation*.json")), directory)
    documents = [read_evaluation(Path(file), directory, repo_id, settings.inference_pooler) for file in evaluations]
    emissions = _emissions(directory / "emissions.csv")
    tables = [table for document in documents for table in evaluation_tables(document)]
    figures = [figure for document in documents for figure in model_index(document)]
    name = (repo_id or directory.resolve().name).rpartition("/")[2]
    data = ModelCardData(
        language=language or kept.get("language"),
        license=license or kept.get("license"),
        datasets=list(datasets or ()) or kept.get("datasets"),
        base_model=_hub_id(run.get("base_model")) or kept.get("base_model"),
        model_name=name if figures else None,
        eval_results=figures or None,
        **({"co2_eq_emissions": {"emissions": emissions["grams"], "source": "CodeCarbon"}} if emissions else {}),
        **_library(settings.inference_pooler, tags or ()),
    )
    repository = repo_id or _placeholder(directory)
    own_pooler = any("pooler." in key for key in _weight_names(directory))
    content = render_card(
        data,
        name=name,
        repo_id=repository,
        tables=[*filter(None, [dev_table(run)]), *tables],
        training=_training(run, data.datasets),
        hyperparameters=sorted({**run.get("arguments", {}), **changed_settings(config)}.items()),
        hardware=_hardware(run, emissions),
        sentence_transformers=(directory / "modules.json").exists(),
        **describe_model(config, settings, own_pooler, run.get("num_sentences"), repository),
    )
    path.write_text(content, encoding="utf-8")
    _write_eval_results(directory / EVAL_RESULTS, [x for document in documents for x in eval_result_entries(document)])
    return path


def render_card(data: ModelCardData, marker: str = MARKER, **context) -> str:
    """The card as text; `context` is what the template names."""
    return str(ModelCard.from_template(data, template_path=str(_TEMPLATE), marker=marker, **context)).rstrip() + "\n"


def describe_model(
    config: PreTrainedConfig, settings: ContrastiveSettings, own_pooler: bool, num_sentences: int | None, repo_id: str
) -> dict:
    """The part of the template's context that follows from the model itself."""
    pooler, length = settings.inference_pooler, max_positions(config)
    kind = {None: "", 1: " without labels, from two dropout views of each sentence"}.get(
        num_sentences, " on pairs of sentences" + (" with hard negatives" if (num_sentences or 0) > 2 else "")
    )
    note = ""
    if settings.mlp_only_train:
        note = (
            "The dense + tanh head was used in training only (Table 6 of the paper). The vector of this model is the "
            "first token **before** it; `pooler_output` of transformers is not."
        )
    elif pooler == "cls" and own_pooler:
        note = "The encoder's own pooler is the trained head: `pooler_output` of transformers is the sentence vector."
    elif pooler == TEMPLATE_POOLER:
        note = (
            f"Every text goes into a template first, `{settings.templates[0]}`, which `SimCSE` does by itself. "
            "sentence-transformers has no pooling like this."
        )
    elif pooler in NOT_IN_SENTENCE_TRANSFORMERS:
        note = (
            "sentence-transformers has no pooling like this: `SentenceTransformer` would take the mean of all tokens, "
            "[CLS] among them, and give other vectors than this model's."
        )
    return {
        "summary": (
            f"Sentence vectors of {config.hidden_size} dimensions from a `{config.model_type}` encoder, trained by "
            f"contrastive learning ([SimCSE](https://aclanthology.org/2021.emnlp-main.552)){kind}."
        ),
        "facts": [
            ("pooler", _POOLERS[pooler]),
            ("dimensions", config.hidden_size),
            ("longest text", f"{length} tokens" if length else "as the tokenizer allows"),
            ("similarity", "cosine"),
        ],
        "note": note,
        "all_layers": needs_hidden_states(pooler),
        "text_template": json.dumps(settings.templates[0]) if settings.templates else None,
        "max_length": length,
        "pooling_code": _pooling_code(pooler, own_pooler, repo_id),
        "length_limit": (
            f"It was trained on texts of at most {settings.max_seq_length} tokens; longer ones are less well tried."
        ),
    }


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


def _library(pooler: str, tags: Sequence[str]) -> dict:
    """The front matter of every card; the hub shows how to load a model by its library."""
    own = {**FRONT_MATTER, "tags": [*TAGS, *(tag for tag in tags if tag not in TAGS)]}
    if pooler in NOT_IN_SENTENCE_TRANSFORMERS:
        own |= {
            "library_name": "transformers",
            "tags": [tag for tag in own["tags"] if tag != FRONT_MATTER["library_name"]],
        }
    return own


def _training(run: dict, datasets: Sequence[str] | None) -> str:
    if not run:
        return "How this model was trained is not recorded beside it."
    named = datasets or ([Path(run["train_texts"]).name] if run.get("train_texts") else ())
    source = ", ".join(f"`{name}`" for name in named)
    rows = f"{run['train_rows']:,} rows of " if run.get("train_rows") else ""
    texts = {None: "texts", 1: "single sentences", 2: "an anchor and a positive"}.get(
        run.get("num_sentences"), "an anchor, a positive and hard negatives"
    )
    parts = [f"{rows}{texts}" + (f", from {source}." if source else ".")] if rows or source else []
    if base := run.get("base_model"):
        parts.append(f"It started from `{_hub_id(base) or Path(base).name}`.")
    if run.get("steps"):
        parts.append(f"{run['steps']:,} steps, {run.get('epochs', 0):.3g} epochs, seed {run.get('seed')}.")
    return " ".join(parts)


def _hardware(run: dict, emissions: dict | None) -> str:
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


def _emissions(path: Path) -> dict | None:
    """Grams of CO2 and kWh of the last run in CodeCarbon's file, if there is one."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return {"grams": float(rows[-1]["emissions"]) * 1000, "kwh": float(rows[-1]["energy_consumed"])}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no measurement of CodeCarbon ({error!r})") from error


def _hub_id(name: str | None) -> str | None:
    """`name` if it may be a model of the hub and is no local directory."""
    return name if name and _HUB_ID.match(name) and not Path(name).exists() else None


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


def card_main(argv: list[str]) -> int:
    """Runs `simcse-hf card`: writes the card of a saved model.

    Args:
        argv: the words after `simcse-hf card`.

    Raises:
        ValueError: as [`write_card`].
    """
    parser = argparse.ArgumentParser(prog="simcse-hf card", description="Writes the card of a saved model.")
    parser.add_argument("directory", help="the model, as saved by training")
    parser.add_argument(
        "--results",
        nargs="+",
        help="files of `simcse-hf evaluate --output`; default: evaluation*.json in the directory",
    )
    parser.add_argument("--repo_id", metavar="org/name", help="for the usage examples")
    parser.add_argument("--language", nargs="+", help="codes of the languages, such as en")
    parser.add_argument("--license", help="name of the licence, such as apache-2.0")
    parser.add_argument("--datasets", nargs="+", help="hub names of the training data")
    arguments = parser.parse_args(argv)
    path = write_card(
        arguments.directory,
        arguments.results,
        repo_id=arguments.repo_id,
        language=arguments.language,
        license=arguments.license,
        datasets=arguments.datasets,
    )
    print(path)
    return 0
