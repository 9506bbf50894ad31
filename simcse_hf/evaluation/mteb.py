"""Evaluation through the `mteb` package."""

from tqdm.auto import tqdm
from transformers.utils import logging

from .vectors import SentenceVectors

logger = logging.get_logger(__name__)

BENCHMARK = "MTEB(eng, v1)"

# The 56 English data sets of Muennighoff et al. (2023), as table 4 of "Non-contrastive sentence representations via
# self-supervision" (appendix C) lists them.
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
    """Resolves `all` and the names of categories (`STS`, `Clustering`, ...) to names of data sets."""
    resolved = []
    for name in names:
        if name == "all":
            resolved += [task for tasks in MTEB_TASKS.values() for task in tasks]
        else:
            resolved += MTEB_TASKS.get(name, (name,))
    return list(dict.fromkeys(resolved))


def mteb_encoder(model, name: str, revision: str | None = None):
    """Wraps an encoder for `mteb`; each call's distinct texts are encoded once.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)`.
        name (`str`): Name to report.
        revision (`str`, *optional*): Revision to report.

    Returns:
        `mteb.models.abs_encoder.AbsEncoder`: To hand to `mteb.evaluate`; compares vectors by cosine.

    Raises:
        ImportError: If the `mteb` extra is not installed.
    """
    _import_mteb()
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder

    class Encoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name if name.count("/") == 1 else f"local/{name.strip('/').replace('/', '_')}",
                "revision": revision or "no_revision_available",
            }
        )

        def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs):
            texts = [text for batch in inputs for text in batch["text"]]
            return SentenceVectors(model, texts)(texts)

    return Encoder()


def evaluate_mteb(model, tasks: list[str], name: str = "model", revision: str | None = None) -> dict[str, float]:
    """Evaluates on MTEB data sets, which `mteb` fetches from the hub.

    The data sets of the English benchmark are taken with its splits and languages. MTEB's figures are Spearman's
    correlations over all pairs (the `all` aggregation) for STS12 to STS16 and STSBenchmark's test split, hence
    comparable to [`evaluate_sts`]; but its SICK-R is all 9,927 pairs, of which SentEval's SICKRelatedness has the
    4,927 of the test split. Nothing is read from or written to mteb's cache of results, which knows a local checkpoint
    by its name only.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)`.
        tasks (`list[str]`): Names of data sets, of categories of [`MTEB_TASKS`], or `all`.
        name (`str`, *optional*): Name of the model.
        revision (`str`, *optional*): Its revision.

    Returns:
        `dict[str, float]`: The main score of each data set, times 100.

    Raises:
        ImportError: If the `mteb` extra is not installed.
        ValueError: For a data set that `mteb` does not know.
    """
    mteb = _import_mteb()
    encoder = mteb_encoder(model, name, revision)
    english = {task.metadata.name: task for task in mteb.get_benchmark(BENCHMARK).tasks}
    chosen = []
    for task in mteb_task_names(tasks):
        try:
            chosen.append(english.get(task) or mteb.get_task(task))
        except KeyError as error:
            raise ValueError(
                f"mteb knows no data set {task!r}; categories are {', '.join(MTEB_TASKS)}, or name `all`."
            ) from error
    if any(task.metadata.name == "SICK-R" for task in chosen):
        logger.warning("MTEB's SICK-R is all 9,927 pairs; SentEval's SICKRelatedness is the 4,927 test pairs.")
    return {task.metadata.name: evaluate_mteb_task(encoder, task) for task in tqdm(chosen, desc="MTEB")}


def evaluate_mteb_task(encoder, task) -> float:
    """The main score, times 100, of one task object of `mteb`."""
    mteb = _import_mteb()
    result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False)
    return 100 * float(result.task_results[0].get_score())


def _import_mteb():
    try:
        import mteb
    except ImportError as error:
        raise ImportError("MTEB tasks need the package mteb: pip install 'simcse-hf[mteb]'.") from error
    return mteb
