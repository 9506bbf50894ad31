"""Evaluation with the package `mteb`."""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from tqdm.auto import tqdm
from transformers.utils import logging

from .embeddings import Encoder, SentenceEmbeddings

logger = logging.get_logger(__name__)

BENCHMARK = "MTEB(eng, v1)"

#: The 56 English data sets of Muennighoff et al. (2023), as listed in table 4 of "Non-contrastive sentence
#: representations via self-supervision" (appendix C).
MTEB_TASKS = {
    "Classification": (
        "AmazonCounterfactualClassification",
        "AmazonPolarityClassification",
        "AmazonReviewsClassification",
        "Banking77Classification",
        "EmotionClassification",
        "ImdbClassification",
        "MassiveIntentClassification",
        "MassiveScenarioClassification",
        "MTOPDomainClassification",
        "MTOPIntentClassification",
        "ToxicConversationsClassification",
        "TweetSentimentExtractionClassification",
    ),
    "Clustering": (
        "ArxivClusteringP2P",
        "ArxivClusteringS2S",
        "BiorxivClusteringP2P",
        "BiorxivClusteringS2S",
        "MedrxivClusteringP2P",
        "MedrxivClusteringS2S",
        "RedditClustering",
        "RedditClusteringP2P",
        "StackExchangeClustering",
        "StackExchangeClusteringP2P",
        "TwentyNewsgroupsClustering",
    ),
    "PairClassification": ("SprintDuplicateQuestions", "TwitterSemEval2015", "TwitterURLCorpus"),
    "Reranking": ("AskUbuntuDupQuestions", "MindSmallReranking", "SciDocsRR", "StackOverflowDupQuestions"),
    "Retrieval": (
        "ArguAna",
        "ClimateFEVER",
        "CQADupstackRetrieval",
        "DBPedia",
        "FEVER",
        "FiQA2018",
        "HotpotQA",
        "MSMARCO",
        "NFCorpus",
        "NQ",
        "QuoraRetrieval",
        "SCIDOCS",
        "SciFact",
        "Touche2020",
        "TRECCOVID",
    ),
    "STS": (
        "BIOSSES",
        "SICK-R",
        "STS12",
        "STS13",
        "STS14",
        "STS15",
        "STS16",
        "STS17",
        "STS22",
        "STSBenchmark",
    ),
    "Summarization": ("SummEval",),
}


def mteb_task_names(names: list[str]) -> list[str]:
    """Replace `all` and the names of categories (`STS`, `Clustering`, ...) by the names of their data sets."""
    resolved: list[str] = []
    for name in names:
        if name == "all":
            resolved += [task for tasks in MTEB_TASKS.values() for task in tasks]
        else:
            resolved += MTEB_TASKS.get(name, (name,))
    return list(dict.fromkeys(resolved))


def mteb_averages(scores: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Average scores over each category of [`MTEB_TASKS`], and over its 56 data sets.

    This is how table 6 of "Non-contrastive sentence representations via self-supervision" follows from its table 4:
    the average counts each data set once, not each category.

    Args:
        scores (`Mapping[str, float]`): The score of each data set. Other data sets than those 56 do not count.

    Returns:
        `dict[str, dict]`: For each category with a score, and for `"average"` if there is any, the mean `value`, the
        number of data sets in it (`tasks`), and how many there are (`of`).
    """
    groups = {**MTEB_TASKS, "average": tuple(mteb_task_names(["all"]))}
    averages = {}
    for name, members in groups.items():
        present = [scores[task] for task in members if task in scores]
        if present:
            averages[name] = {"value": sum(present) / len(present), "tasks": len(present), "of": len(members)}
    return averages


def mteb_encoder(model: Encoder, name: str, revision: str | None = None) -> Any:
    """Wrap an encoder for `mteb`; the distinct texts of each call are encoded once.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.
        name (`str`): Name to report.
        revision (`str`, *optional*): Revision to report.

    Returns:
        `mteb.models.abs_encoder.AbsEncoder`: An encoder for `mteb.evaluate` that compares embeddings by cosine.

    Raises:
        ImportError: If the extra `mteb` is not installed.
    """
    _import_mteb()
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder

    class MTEBEncoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name if name.count("/") == 1 else f"local/{name.strip('/').replace('/', '_')}",
                "revision": revision or "no_revision_available",
            }
        )

        def encode(self, inputs: Iterable[dict[str, list[str]]], **kwargs: Any) -> Any:
            texts = [text for batch in inputs for text in batch["text"]]
            return SentenceEmbeddings(model, texts)(texts)

    return MTEBEncoder()


def evaluate_mteb(
    model: Encoder, tasks: list[str], name: str = "model", revision: str | None = None
) -> dict[str, float]:
    """Evaluate on MTEB data sets, which `mteb` downloads from the hub.

    The data sets of the English benchmark are used with its splits and languages. For STS12 to STS16 and the test
    split of STSBenchmark, MTEB reports Spearman's correlation over all pairs (the aggregation `all`), which compares
    with [`evaluate_sts`]. Its SICK-R consists of all 9,927 pairs, of which SentEval's SICKRelatedness has the 4,927 of
    the test split. The result cache of mteb is not used, because it knows a local checkpoint only by its name.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.
        tasks (`list[str]`): Names of data sets, of categories of [`MTEB_TASKS`], or `all`.
        name (`str`, *optional*, defaults to `"model"`): Name of the model.
        revision (`str`, *optional*): Its revision.

    Returns:
        `dict[str, float]`: The main score of each data set, times 100.

    Raises:
        ImportError: If the extra `mteb` is not installed.
        ValueError: If `mteb` does not know a data set.
    """
    mteb = _import_mteb()
    encoder = mteb_encoder(model, name, revision)
    english = {task.metadata.name: task for task in mteb.get_benchmark(BENCHMARK).tasks}
    resolved_tasks = []
    for task in mteb_task_names(tasks):
        try:
            resolved_tasks.append(english.get(task) or mteb.get_task(task))
        except KeyError as error:
            raise ValueError(
                f"mteb does not know the data set {task!r}. Name one of its data sets, a category "
                f"({', '.join(MTEB_TASKS)}), or `all`."
            ) from error
    if any(task.metadata.name == "SICK-R" for task in resolved_tasks):
        logger.warning(
            "MTEB's SICK-R has all 9,927 pairs; SentEval's SICKRelatedness has the 4,927 pairs of the test split."
        )
    return {task.metadata.name: evaluate_mteb_task(encoder, task) for task in tqdm(resolved_tasks, desc="MTEB")}


def evaluate_mteb_task(encoder: Any, task: Any) -> float:
    """Return the main score, times 100, of one task object of `mteb`."""
    mteb = _import_mteb()
    result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return 100 * float(result.task_results[0].get_score())


def _import_mteb() -> ModuleType:
    try:
        import mteb
    except ImportError as error:
        raise ImportError(
            "MTEB data sets need the package mteb. Install it with: pip install 'simcse-hf[mteb]'"
        ) from error
    return mteb
