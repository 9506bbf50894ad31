"""Evaluation with the package `mteb`."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from tqdm.auto import tqdm

from ..encoding.simcse import SimCSE
from ..runtime.distributed import world
from ..runtime.encoders import Encoder, as_encoder
from ..runtime.errors import SettingError, require_extra
from ..runtime.identity import digest_value
from .embeddings import embed_all

#: What `all` stands for: 41 English data sets (Enevoldsen et al., 2025).
BENCHMARK = "MTEB(eng, v2)"


def read_benchmark(names: Iterable[str]) -> tuple[str, dict]:
    """Return the first benchmark of mteb among some names, otherwise the English one, and its tasks.

    Args:
        names (`Iterable[str]`): Names of benchmarks, categories and data sets.

    Returns:
        `tuple[str, dict]`: The name of the benchmark, and its tasks by category (`STS`, `Clustering`, ...) and name.
    """
    mteb = require_extra("mteb", "mteb", "an MTEB data set")
    for benchmark in (*names, BENCHMARK):
        with suppress(KeyError):
            tasks = mteb.get_benchmark(benchmark).tasks
            break
    categories: dict = {}
    for task in tasks:
        categories.setdefault(task.metadata.type, {})[task.metadata.name] = task
    return benchmark, dict(sorted(categories.items()))


def mteb_averages(scores: Mapping, tasks: Iterable[str]) -> dict:
    """Average scores over each category of a benchmark, and over all of its data sets.

    This is how table 6 of "Non-contrastive sentence representations via self-supervision" follows from its table 4,
    with the benchmark `MTEB(eng, v1)`: the average counts each data set once, not each category.

    Args:
        scores (`Mapping[str, float]`): The score of each data set. Other data sets do not count.
        tasks (`Iterable[str]`): The names that were evaluated. Their benchmark is that of [`read_benchmark`].

    Returns:
        `dict[str, dict]`: For each category with a score, and for `"average"` if there is any, the mean `value`, the
        number of data sets in it (`tasks`), how many there are (`of`), and the `benchmark`.
    """
    benchmark, categories = read_benchmark(tasks)
    groups = {name: list(members) for name, members in categories.items()}
    groups["average"] = list(chain(*groups.values()))
    averages = {}
    for name, members in groups.items():
        values = [scores[task] for task in members if task in scores]
        if values:
            averages[name] = {
                "value": sum(values) / len(values),
                "tasks": len(values),
                "of": len(members),
                "benchmark": benchmark,
            }
    return averages


def as_mteb(model: Encoder) -> Any:
    """Return a model in the form that `mteb` takes: `mteb.evaluate(as_mteb(model), tasks)`.

    A [`SimCSE`] puts its prompts before the texts. Another model encodes queries and documents as in a search, and the
    distinct texts of each call once.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.

    Returns:
        `mteb.EncoderProtocol`: The model.

    Raises:
        ImportError: If the extra `mteb` is not installed.
    """
    require_extra("mteb", "mteb", "an MTEB data set")
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder, get_prompt_name

    identity = as_encoder(model).identity()
    name = str(identity.name_or_path)
    if identity.revision is None:
        name = f"local/{name.strip('/').replace('/', '_')}"  # a name has one slash
    revision = identity.revision or digest_value(identity)

    class MTEBEncoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty({"name": name, "revision": revision})

        def encode(
            self, inputs: Iterable, *, task_metadata: Any = None, prompt_type: Any = None, **kwargs: object
        ) -> Any:
            texts = [text for batch in inputs for text in batch["text"]]
            if isinstance(model, SimCSE):
                # As in sentence-transformers, the first of these that is a prompt counts: task and role, task, kind of
                # task and role, kind of task, role. Without one, it is the model's default prompt.
                prompt = get_prompt_name(dict(model.prompts), task_metadata, prompt_type)
                return model.encode(texts, prompt_name=prompt, normalize_embeddings=False, convert_to_numpy=True)
            role = getattr(prompt_type, "value", None)
            return embed_all(model, {role: texts})(texts, role)

    encoder: Any = MTEBEncoder()
    if isinstance(model, SimCSE):
        encoder.similarity = model.similarity
        encoder.similarity_pairwise = model.similarity_pairwise
    return encoder


def evaluate_mteb(model: Encoder, tasks: Sequence[str]) -> dict:
    """Evaluate on MTEB data sets, which `mteb` downloads from the hub.

    The data sets of a benchmark are used with its splits and languages. For STS12 to STS16 and the test split of
    STSBenchmark, MTEB reports Spearman's correlation over all pairs (the aggregation `all`), which compares with
    [`evaluate_sts`]. Its SICK-R consists of all 9,927 pairs, of which SentEval's SICKRelatedness has the 4,927 of the
    test split.

    The results are also in mteb's own cache, from where `mteb.ResultCache().submit_results(name)` takes them. A model
    in a folder has a digest of its weights and settings as its revision there, so what was measured before is read
    again. One from the hub has its commit, which does not say how it was loaded, and is measured again. Several
    processes neither read nor write the cache.

    Args:
        model (`Encoder`): An object with `encode(list[str])` that returns an array of shape `(n, dim)`.
        tasks (`Sequence[str]`): Names of data sets, of a benchmark such as `MTEB(eng, v1)`, or of categories of that
            benchmark; `all` is `MTEB(eng, v2)`.

    Returns:
        `dict[str, float]`: The main score of each data set, times 100.

    Raises:
        ImportError: If the extra `mteb` is not installed.
        SettingError: If `mteb` does not know a data set.
    """
    mteb = require_extra("mteb", "mteb", "an MTEB data set")

    # 1. The data sets
    benchmark, categories = read_benchmark(tasks)
    members = dict(chain(*(each.items() for each in categories.values())))
    groups = categories | {"all": members, benchmark: members}
    chosen: dict = {}
    for task in tasks:
        try:
            chosen |= groups.get(task) or {task: members.get(task) or mteb.get_task(task)}
        except KeyError as error:
            raise SettingError(
                f"mteb does not know the data set {task!r}. Name its data sets, one of its benchmarks, categories of "
                f"that ({', '.join(categories)}), or `all`."
            ) from error

    # 2. The encoder
    encoder = as_mteb(model)
    identity = as_encoder(model).identity()

    # 3. The scores. Several processes, which encode together, neither read nor write the cache.
    options: dict = {"co2_tracker": False, "show_progress_bar": False, "cache": None}
    if world()[1] == 1:
        options["cache"] = mteb.ResultCache()
    if identity.revision or not identity.weights:  # the name in the cache does not say how the model was loaded
        options["overwrite_strategy"] = "always"
    scores = {}
    for task, data in tqdm(chosen.items(), desc="MTEB"):
        result = mteb.evaluate(encoder, data, **options)
        scores[task] = 100 * float(result.task_results[0].get_score())
    return scores
