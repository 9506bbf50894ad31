"""Evaluation with the package `mteb`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from tqdm.auto import tqdm

from ..inference.simcse import SimCSE, model_meta
from ..ops.errors import require_extra
from .embeddings import Encoder, SentenceEmbeddings

#: The 56 English data sets of Muennighoff et al. (2023), on which "Non-contrastive sentence representations via
#: self-supervision" measures (appendix C).
BENCHMARK = "MTEB(eng, v1)"


def english_tasks() -> dict:
    """Return the tasks of the English benchmark by category (`STS`, `Clustering`, ...) and name."""
    mteb = require_extra("mteb", "mteb", "an MTEB data set")
    categories: dict = {}
    for task in mteb.get_benchmark(BENCHMARK).tasks:
        category = categories.setdefault(task.metadata.type, {})
        category[task.metadata.name] = task
    return dict(sorted(categories.items()))


def mteb_averages(scores: Mapping) -> dict:
    """Average scores over each category of the English benchmark, and over all of its data sets.

    This is how table 6 of "Non-contrastive sentence representations via self-supervision" follows from its table 4:
    the average counts each data set once, not each category.

    Args:
        scores (`Mapping[str, float]`): The score of each data set. Other data sets do not count.

    Returns:
        `dict[str, dict]`: For each category with a score, and for `"average"` if there is any, the mean `value`, the
        number of data sets in it (`tasks`), and how many there are (`of`).
    """
    groups = {name: list(members) for name, members in english_tasks().items()}
    groups["average"] = list(chain(*groups.values()))
    averages = {}
    for name, members in groups.items():
        values = [scores[task] for task in members if task in scores]
        if values:
            averages[name] = {
                "value": sum(values) / len(values),
                "tasks": len(values),
                "of": len(members),
            }
    return averages


def evaluate_mteb(model: Encoder, tasks: Sequence[str], name: str = "model") -> dict:
    """Evaluate on MTEB data sets, which `mteb` downloads from the hub.

    A [`SimCSE`] puts its prompts before the texts. Of another model, the distinct texts of each call are encoded once.
    The data sets of the English benchmark are used with its splits and languages. For STS12 to STS16 and the test
    split of STSBenchmark, MTEB reports Spearman's correlation over all pairs (the aggregation `all`), which compares
    with [`evaluate_sts`]. Its SICK-R consists of all 9,927 pairs, of which SentEval's SICKRelatedness has the 4,927 of
    the test split. The result cache of mteb is not used, because it knows a local checkpoint only by its name.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.
        tasks (`Sequence[str]`): Names of data sets or of categories, or `all` for the 56 English ones.
        name (`str`, *optional*, defaults to `"model"`): Name of the model.

    Returns:
        `dict[str, float]`: The main score of each data set, times 100.

    Raises:
        ImportError: If the extra `mteb` is not installed.
        ValueError: If `mteb` does not know a data set.
    """
    mteb = require_extra("mteb", "mteb", "an MTEB data set")
    from mteb.models.abs_encoder import AbsEncoder

    # 1. The data sets
    categories = english_tasks()
    english = dict(chain(*(members.items() for members in categories.values())))
    groups = categories | {"all": english}
    chosen: dict = {}
    for task in tasks:
        try:
            chosen |= groups.get(task) or {task: english.get(task) or mteb.get_task(task)}
        except KeyError as error:
            raise ValueError(
                f"mteb does not know the data set {task!r}. Name one of its data sets, a category "
                f"({', '.join(categories)}), or `all`."
            ) from error

    # 2. The encoder
    encoder: Any = model
    if not isinstance(model, SimCSE):

        class MTEBEncoder(AbsEncoder):
            mteb_model_meta = model_meta(name, None)

            def encode(self, inputs: Iterable, **kwargs: Any) -> Any:
                texts = [text for batch in inputs for text in batch["text"]]
                return SentenceEmbeddings(model, texts)(texts)

        encoder = MTEBEncoder()

    # 3. The scores
    scores = {}
    for task, data in tqdm(chosen.items(), desc="MTEB"):
        result = mteb.evaluate(encoder, data, cache=None, co2_tracker=False, show_progress_bar=False)
        scores[task] = 100 * float(result.task_results[0].get_score())
    return scores
