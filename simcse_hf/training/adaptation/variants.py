"""Open a model with a pooler, with or without a whitening, and score its embeddings on tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers.utils import logging

from ...evaluation.user_tasks import TaskResult, UserTask
from ...inference.simcse import SimCSE
from ...models.auto import AutoModelForCL
from ...postprocessing import VectorTransform
from ...postprocessing.transform import Fit
from ...postprocessing.whitening import Whitening, fit_whitening
from .corpus import Corpus

logger = logging.get_logger(__name__)

#: Texts that a whitening is fitted on, for each dimension of the embeddings.
_TEXTS_PER_DIMENSION = 5
#: Poolers that are tried beside the model's own.
POOLERS = ("avg", "cls_before_pooler", "avg_first_last")
_WHITENED = ", whitening"


@dataclass(frozen=True)
class Variant:
    """How embeddings are made of a model's states.

    Args:
        pooler (`str`): One of `POOLER_TYPES`.
        whitening (`bool`, *optional*, defaults to `False`): Whether a whitening follows.
    """

    pooler: str
    whitening: bool = False

    def __str__(self) -> str:
        return f"{self.pooler}{_WHITENED}" if self.whitening else self.pooler

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Return the variant that `str` wrote."""
        return cls(text.removesuffix(_WHITENED), text.endswith(_WHITENED))


class StartModel:
    """The model that the adaptation starts from, as its user has it.

    Args:
        name (`str`): Folder or hub name.
        pooler (`str`, *optional*): Pooler in place of the model's own. An encoder that names none is used with `avg`.

    Raises:
        ValueError: If there is no model, or its pooler needs templates or n-grams, which `adapt` does not train.
    """

    def __init__(self, name: str, pooler: str | None = None):
        self.name = name
        self.requested_pooler = pooler
        self.is_raw = False
        if pooler is None:
            try:
                model = AutoModelForCL.from_pretrained(name)
            except OSError as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise ValueError(f"--model {name}: no model could be loaded: {reason}") from error
            settings = model.settings
            if settings.templates or settings.inference_pooler == "ngrams":
                raise ValueError(
                    f"--model {name} has the pooler {settings.inference_pooler!r}, which adapt cannot train. Name "
                    "another one with --pooler_type, or start from another model."
                )
            self.is_raw = settings.inference_pooler == "cls" and model.head_source != "kept"
        if self.is_raw:
            self.requested_pooler = "avg"
            logger.info(f"{name} names no pooler for sentences: its baseline is the mean of all tokens.")
        opened = self.open()
        self.variant = Variant(opened.pooler_type, getattr(opened.postprocessing, "method", "") == "whitening")
        self.max_length = opened.max_length
        self.tokenizer = opened.tokenizer
        self.dim = opened.dim

    def open(self) -> SimCSE:
        """Load the model as it is, with the whitening or flow that it may have."""
        return SimCSE(self.name, pooler_type=self.requested_pooler)


def open_variant(directory: str | Path, variant: Variant, corpus: Corpus) -> SimCSE:
    """Load a model under a pooler, and fit a whitening on texts of the corpus if the variant has one.

    Args:
        directory (`str` or `Path`): The model.
        variant (`Variant`): The pooler, and whether to whiten.
        corpus (`Corpus`): The texts, of which a whitening takes five for each dimension.

    Returns:
        `SimCSE`: The model. Its `save_pretrained` saves the whitening too.

    Raises:
        ValueError: If there are too few texts for a whitening.
    """
    model = SimCSE(directory, pooler_type=variant.pooler, postprocess=False)
    if variant.whitening:
        texts = len(_whitening_texts(model, corpus))
        model.postprocessing = fit_corpus_whitening(model, corpus)
        file = Path(corpus.path).name
        model.postprocessing_fit = Fit(model.pooler_type, model.max_length, file, [corpus.column], texts, {})
    return model


def fit_corpus_whitening(model: SimCSE, corpus: Corpus) -> Whitening:
    """Fit a whitening on a model's embeddings of a corpus, on five texts for each dimension.

    Some models' embeddings vary in fewer directions than they have dimensions. Of those, the leading three quarters
    are kept.

    Args:
        model (`SimCSE`): The model, without a transform.
        corpus (`Corpus`): The texts.

    Returns:
        `Whitening`: The whitening.

    Raises:
        ValueError: If there are too few texts.
    """
    embeddings = model.encode(_whitening_texts(model, corpus), normalize_embeddings=None)
    try:
        return fit_whitening([embeddings])
    except ValueError:
        return fit_whitening([embeddings], dim=3 * embeddings.shape[1] // 4)


def _whitening_texts(model: SimCSE, corpus: Corpus) -> Sequence[str]:
    return corpus.texts[: _TEXTS_PER_DIMENSION * model.dim]


class TaskScores:
    """The results of a model on tasks, without and with transforms of its embeddings.

    Each distinct text is encoded once.

    Args:
        model (`SimCSE`): The model.
        tasks (`Sequence[UserTask]`): The tasks.
    """

    def __init__(self, model: SimCSE, tasks: Sequence[UserTask]):
        self._tasks = tasks
        texts = list(dict.fromkeys(text for task in tasks for text in task.texts))
        self._rows = {text: row for row, text in enumerate(texts)}
        self._embeddings = model.encode(texts, normalize_embeddings=None)

    def __call__(self, transform: VectorTransform | None = None) -> list[TaskResult]:
        """Evaluate the embeddings, or what a transform makes of them.

        Args:
            transform (`VectorTransform`, *optional*): A whitening.

        Returns:
            `list[TaskResult]`: The result of each task.
        """
        embeddings = self._embeddings if transform is None else transform.transform(self._embeddings)
        array = embeddings.numpy()
        return [task.evaluate(lambda texts: array[[self._rows[text] for text in texts]]) for task in self._tasks]
