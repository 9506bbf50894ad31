"""Reads what a card is about: a model, its training, and what was measured with its weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from ..encoding.saved import SavedModel, settings_of_pooler
from ..evaluation.compare import Comparison
from ..evaluation.report import Evaluation
from ..models.settings import SECTION, THRESHOLD, ContrastiveSettings, length_limit, settings_of_config
from ..objectives import OBJECTIVES, Objective, described_objective, part_weights
from ..postprocessing.transform import Fit, VectorTransform
from ..runtime.errors import ModelError, SettingError
from ..runtime.files import StrPath, read_json
from ..runtime.identity import Identity
from ..runtime.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS, explain_damage, load_pretrained
from ..runtime.upload import PublicNames

logger = logging.get_logger(__name__)

#: The record of `simcse-hf adapt` beside a model that it made.
ADAPTATION = "adaptation.json"
#: The verdict of `simcse-hf study` beside the model of a run.
STUDY = "study.json"
#: What a model may be measured with besides its own settings.
_MAY_DIFFER = ("max_length", "long_texts")


@dataclass(frozen=True)
class Subject:
    """A model with what is known about its training.

    Args:
        repo_id (`str`): Its name on the hub.
        config (`PreTrainedConfig`): Its config.
        settings (`ContrastiveSettings`): The settings that it was trained with.
        run (`dict`): The content of `results.json` without folders; empty without a record.
        adaptation (`dict`, *optional*): The content of `adaptation.json`; empty without one.
        study (`dict`, *optional*): The content of `study.json`; empty without one.
        transform (`VectorTransform`, *optional*): The whitening or flow that is saved with it.
        fit (`Fit`, *optional*): How that was fitted.
        datasets (`Sequence[str]`, *optional*, defaults to `()`): Hub names of the training data.
        own_pooler (`bool`, *optional*, defaults to `True`): Whether its head is the pooler of the stock encoder.
        tokenizer_limit (`int`, *optional*): The `model_max_length` of its tokenizer, if that is known.
    """

    repo_id: str
    config: PreTrainedConfig
    settings: ContrastiveSettings
    run: dict
    adaptation: dict = field(default_factory=dict)
    study: dict = field(default_factory=dict)
    transform: VectorTransform | None = None
    fit: Fit | None = None
    datasets: Sequence[str] = ()
    own_pooler: bool = True
    tokenizer_limit: int | None = None

    @cached_property
    def inference(self) -> ContrastiveSettings:
        """The settings that embeddings are computed with: a transform may have been fitted on another pooler."""
        if self.fit is None or self.fit.pooler == self.settings.inference_pooler:
            return self.settings
        return replace(self.settings, **settings_of_pooler(self.fit.pooler, self.settings.inference_pooler))

    @property
    def pooler(self) -> str:
        """The pooler of the embeddings."""
        return self.inference.inference_pooler

    @property
    def dim(self) -> int:
        """The size of the embeddings."""
        if self.transform is not None:
            return self.transform.output_dim
        layers = self.settings.dense_layers
        return layers[-1]["out_features"] if layers else self.config.hidden_size

    @property
    def method(self) -> str:
        """The name of the transform, empty without one."""
        return self.transform.method if self.transform else ""

    @property
    def max_length(self) -> int | None:
        """The number of tokens to which texts are cut; `None` for no limit."""
        fitted = self.fit.max_length if self.fit else None
        return length_limit(self.config, self.settings, self.tokenizer_limit, fitted)

    @cached_property
    def objective(self) -> Objective | None:
        """The objective, of which a class of the user's own is known by what the run recorded; `None` without that."""
        found = known_objective(self.settings.objective)
        said = self.run.get("objective")
        if found is None and said:
            found = Objective(self.dim)
            vars(found).update(said)
        return found

    @cached_property
    def objectives(self) -> list[Objective]:
        """The objectives of the data sets, or the only one, as far as they are known here."""
        described = [known_objective(loss) for loss, _ in self.settings.losses().values()]
        return [objective for objective in described if objective is not None]

    @cached_property
    def encoders(self) -> int:
        """The independent encoders that took part: as many as some data set's objective needs (SimCSE, Table 2)."""
        numbers = [1, *(objective.encoders for objective in self.objectives)]
        for _, options in self.settings.losses().values():
            numbers += [value for name, value in options.items() if last_part(name) == "encoders"]
        return max(numbers)

    @property
    def widths(self) -> list[int]:
        """The leading dimensions that were trained to be used alone, and can be: a transform mixes all dimensions."""
        return [] if self.transform else [width for width in self.settings.matryoshka_dims if width < self.dim]

    @property
    def roles(self) -> dict[str, str]:
        """The prompts, if there is one for queries or for documents."""
        prompts = self.inference.prompts
        return prompts if prompts.get("query") or prompts.get("document") else {}

    @property
    def view(self) -> dict:
        """How the positives of single sentences were made: `name`, `rate` and `both`; empty if they were not."""
        return self.run.get("view") or {}

    @property
    def arguments(self) -> dict:
        """The arguments of the Trainer that differ from their defaults."""
        return self.run.get("arguments", {})

    @property
    def chosen(self) -> dict:
        """The arm that `simcse-hf adapt` chose; empty without one."""
        return self.adaptation.get("chosen", {})

    @property
    def runs(self) -> list[dict]:
        """The runs of training with several seeds; empty for a single one."""
        return self.run["seeds"]["runs"] if "seeds" in self.run else []

    @property
    def seeds(self) -> list:
        """The seeds of the runs; empty without a record."""
        if self.runs:
            return [each["seed"] for each in self.runs]
        seed = (self.run or self.chosen).get("seed")
        return [] if seed is None else [seed]

    @property
    def base_model(self) -> str | None:
        """The model that training started from."""
        return self.run.get("base_model")


def known_objective(name: str) -> Objective | None:
    """Return an objective or a sum for what it says about itself, or `None` if it is not known here."""
    is_known = all(part in OBJECTIVES for part in part_weights(name))
    return described_objective(name) if is_known else None


def last_part(option: str) -> str:
    """Return the name of an option without the part of a sum that it belongs to: `supcon.temperature` has one."""
    return option.rpartition(".")[2]


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
        advice = "A training run writes this file: restore it, or move it out of the model's folder."
        run = read_json(path, "settings", advice=advice)
    if described is None:
        return run
    if any(run.get(name) != described[name] for name in ("steps", "train_loss")):
        return described
    return run | described


class Weights(SavedModel):
    """The weights in a folder, with which results are compared."""

    def made(self, path: Path, recorded: Iterable[Identity], is_named: bool = False) -> bool:
        """Return whether a result was made with these weights, and say why not.

        Args:
            path (`Path`): The file of the result.
            recorded (`Iterable[Identity]`): The identities of the models in it. One of them has to be this one.
            is_named (`bool`, *optional*, defaults to `False`): Refuse the file, which somebody named, in place of a
                warning.

        Returns:
            `bool`: Whether a card of the model may show the result.

        Raises:
            ValueError: If a named file was made with other weights.
        """
        reasons = []
        for each in recorded:
            changed = each.changes(self.identity(each.dtype), _MAY_DIFFER)
            if not changed:
                return True
            reasons.append(f"{each.name_or_path}: {', '.join(changed)}")
        listed = "; ".join(reasons)
        _leave_out(
            f"{path} holds no results of the model in {self.folder} ({listed}): evaluate this model again", is_named
        )
        return False


def _leave_out(message: str, is_named: bool) -> None:
    """Refuse a file that somebody named, or warn that the card does not show it."""
    if is_named:
        raise SettingError(message)
    logger.warning(f"{message}. The card does not show the file.")


def read_subject(weights: Weights, repo_id: str, run: dict, datasets: Sequence[str]) -> Subject:
    """Read what the files of a model say about it.

    Args:
        weights (`Weights`): Its weights.
        repo_id (`str`): Its name on the hub.
        run (`dict`): The content of `results.json`; empty without a record.
        datasets (`Sequence[str]`): Hub names of the training data.

    Returns:
        `Subject`: The model.

    Raises:
        ModelError: If the directory holds no model of this package, or a damaged file.
    """
    # 1. Refuse a folder without weights of this package.
    directory = weights.folder
    if not any((directory / name).exists() for name in ("config.json", ADAPTER_CONFIG)):
        raise ModelError(f"{directory} holds no model (config.json). Name the folder that the model was saved in.")
    names = []
    for path in (*directory.glob("model*.safetensors"), *directory.glob(ADAPTER_WEIGHTS)):
        with explain_damage(directory), safe_open(path, "pt") as tensors:
            names += tensors.keys()
    if not names:
        raise ModelError(f"{directory} holds no weights (model.safetensors), like an export: give the model's folder.")
    config = load_pretrained(AutoConfig.from_pretrained, directory)
    if getattr(config, SECTION, None) is None:
        raise ModelError(
            f"{directory} was not saved by simcse_hf: its config.json has no section {SECTION!r}, so the pooler is "
            "unknown. Load the model with AutoModelForCL and save it first."
        )

    # 2. A threshold, an adaptation and a study count if they are of these weights.
    threshold = getattr(config, THRESHOLD, None)
    if threshold and "model" in threshold:
        before = Identity.from_dict(threshold["model"])
        changes = before.changes(weights.identity(before.dtype).for_pairs(), ("dtype", "backend"))
        if changes:
            why = "; ".join(changes)
            logger.warning(f"The card does not show a threshold: that of {directory} does not fit this model: {why}")
            delattr(config, THRESHOLD)
    adaptation = {}
    path = directory / ADAPTATION
    if path.is_file():
        found = read_json(path, advice="Remove it, or adapt the model again.")
        if weights.made(path, [Identity.from_dict(found.get("identity", {}))]):
            adaptation = PublicNames()(found)
    study = {}
    path = directory / STUDY
    if run and path.is_file():
        study = PublicNames()(read_json(path, "table", "summary", advice="Remove it, or run the study again."))
    transform, fit = weights.transform
    path = directory / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.is_file() else None
    return Subject(
        repo_id=repo_id,
        config=config,
        settings=settings_of_config(config),
        run=PublicNames()(run),
        adaptation=adaptation,
        study=study,
        transform=transform,
        fit=fit,
        datasets=datasets,
        own_pooler=any("pooler." in name for name in names),
        tokenizer_limit=limit,
    )


def read_comparisons(weights: Weights, files: Sequence[StrPath] | None) -> list[str]:
    """Return the tables of comparisons with these weights.

    Args:
        weights (`Weights`): The weights.
        files (`Sequence`, *optional*): The files; by default all `comparison*.json` of the folder.

    Returns:
        `list[str]`: The tables as preformatted text.

    Raises:
        ValueError: If a named file was made with other weights, or a model in it has changed since.
    """
    texts = []
    for path in map(Path, sorted(weights.folder.glob("comparison*.json")) if files is None else files):
        comparison = Comparison.read(path)
        if not weights.made(path, comparison.identities.values(), files is not None):
            continue
        changed = []
        for name, before in comparison.identities.items():
            other = Path(name)
            if before.weights is None or not other.exists():
                continue
            now = SavedModel(other).identity(before.dtype) if other.is_dir() else Evaluation.read(other).identity
            if before.changes(now, _MAY_DIFFER):
                changed.append(name)
        if changed:
            _leave_out(
                f"{path} compares with other weights than those of {', '.join(changed)} now: compare again",
                files is not None,
            )
            continue
        texts.append(str(Comparison(**PublicNames()(vars(comparison)))))
    return texts


class Measured(NamedTuple):
    """An evaluation of a model.

    Args:
        path (`Path`): The result file.
        evaluation (`Evaluation`): Its content.
        seeds (`list[dict]`): The results of the model of every seed, or none.
    """

    path: Path
    evaluation: Evaluation
    seeds: list[dict]

    @property
    def every(self) -> list[dict]:
        """The results of the published model, and those of the model of every seed."""
        return [self.evaluation.results, *self.seeds]


def read_evaluations(model: Subject, weights: Weights, files: Sequence[StrPath] | None) -> list[Measured]:
    """Read the evaluations of a model, each with those of its other seeds under the same name in their folders.

    Args:
        model (`Subject`): The model.
        weights (`Weights`): Its weights.
        files (`Sequence`, *optional*): The files; by default all `evaluation*.json` of the folder.

    Returns:
        `list[Measured]`: The evaluations.

    Raises:
        SettingError: If a file is no evaluation, a named one is of another model, or two seeds were measured with
            different protocols.
    """
    has_seeds = len(model.runs) > 1 and model.transform is None
    measured = []
    for path in map(Path, sorted(weights.folder.glob("evaluation*.json")) if files is None else files):
        published = Evaluation.read(path)
        if not weights.made(path, [published.identity], files is not None):
            continue
        seeds: list[dict] = []
        for seed in model.seeds if has_seeds else []:
            other = weights.folder / f"seed-{seed}" / path.name
            evaluation = Evaluation.read(other) if other.is_file() else None
            if evaluation is None or not Weights(other.parent).made(other, [evaluation.identity]):
                seeds = []  # a mean is over all seeds
                break
            theirs, ours = protocol_of(evaluation), protocol_of(published)
            if theirs != ours:
                raise SettingError(
                    f"{other} and {path} were measured with different protocols. Evaluate both alike. The first: "
                    f"{theirs} The second: {ours}"
                )
            seeds.append(evaluation.results)
        measured.append(Measured(path, published, seeds))
    return measured


def protocol_of(evaluation: Evaluation, transfer: bool = False) -> str:
    """Describe the protocol of an evaluation of STS, or of SentEval's transfer tasks, in one sentence."""
    protocol = evaluation.protocol
    limit = evaluation.identity.max_length
    length = f"texts truncated to {limit} tokens" if limit else "texts not truncated"
    if transfer:
        return (
            f"SentEval's transfer tasks, mode {protocol.mode}: accuracy x 100 of logistic regression on frozen "
            f"embeddings, seed {protocol.seed}; {length}."
        )
    return (
        f"{protocol.metric.capitalize()}'s correlation x 100 between gold score and cosine similarity, mode "
        f"{protocol.mode}, subsets of STS12 to STS16 aggregated by `{protocol.aggregation}`; {length}."
    )
