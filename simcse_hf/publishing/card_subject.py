"""What a card is about: a model, its training, and what follows from both."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedConfig

from ..models.settings import ContrastiveSettings, max_positions
from ..objectives import OBJECTIVES, Objective, described_objective, part_weights
from ..postprocessing.transform import Fit, VectorTransform
from ..runtime.files import read_json_object


@dataclass(frozen=True)
class Subject:
    """A model with what is known about its training.

    Args:
        repo_id (`str`): Its name on the hub.
        config (`PreTrainedConfig`): Its config.
        settings (`ContrastiveSettings`): The settings that it was trained with.
        run (`dict`): The content of `results.json` without folders; empty without a record.
        adaptation (`dict`, *optional*): The content of `adaptation.json`; empty without one.
        transform (`VectorTransform`, *optional*): The whitening or flow that is saved with it.
        fit (`Fit`, *optional*): How that was fitted.
        datasets (`Sequence[str]`, *optional*, defaults to `()`): Hub names of the training data.
        own_pooler (`bool`, *optional*, defaults to `True`): Whether its head is the pooler of the stock encoder.
    """

    repo_id: str
    config: PreTrainedConfig
    settings: ContrastiveSettings
    run: dict
    adaptation: dict = field(default_factory=dict)
    transform: VectorTransform | None = None
    fit: Fit | None = None
    datasets: Sequence[str] = ()
    own_pooler: bool = True

    @cached_property
    def inference(self) -> ContrastiveSettings:
        """The settings that embeddings are computed with: a transform may have been fitted on another pooler."""
        if self.fit is None or self.fit.pooler == self.settings.inference_pooler:
            return self.settings
        return replace(
            self.settings,
            pooler_type=self.fit.pooler,
            mlp_only_train=False,
            templates=[],
            denoising="none",
            dense_layers=[],
        )

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
        lengths = [max_positions(self.config), self.settings.max_length]
        if self.fit is not None:
            lengths.append(self.fit.max_length)
        return min((length for length in lengths if length is not None), default=None)

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
        run = read_json_object(path, "settings", advice=advice)
        runs = run["seeds"]["runs"] if "seeds" in run else []
        if len(runs) > 1 and run.get("final"):
            for each in (run, *runs):
                missing = sorted({"initial", "final", "saved"} - each.keys())
                if missing:
                    raise ValueError(f"{path}: a seed has no scores under {', '.join(missing)}. {advice}")
    if described is None:
        return run
    if any(run.get(name) != described[name] for name in ("steps", "train_loss")):
        return described
    return run | described


def known_objective(name: str) -> Objective | None:
    """Return an objective or a sum for what it says about itself, or `None` if it is not known here."""
    is_known = all(part in OBJECTIVES for part in part_weights(name))
    return described_objective(name) if is_known else None


def last_part(option: str) -> str:
    """Return the name of an option without the part of a sum that it belongs to: `supcon.temperature` has one."""
    return option.rpartition(".")[2]
