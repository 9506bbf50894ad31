"""The values that options may have: types for signatures, and tuples of the same names. Nothing here imports torch.

The command line reads the types of a function's parameters by these names, see `simcse_hf.cli.options`.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

if TYPE_CHECKING:
    from .evaluation.tasks import Task

PoolerType = Literal[
    "cls",
    "cls_before_pooler",
    "avg",
    "avg_no_cls",
    "avg_top2",
    "avg_first_last",
    "avg_embeddings_last",
    "max",
    "lasttoken",
]
DType = Literal["fp32", "bf16", "fp16"]
LongTexts = Literal["cut", "mean"]
Backend = Literal["torch", "onnx", "openvino"]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
ShardFormat = Literal["npy", "parquet"]
Transform = Literal["whitening", "flow"]

TaskSet = Literal["sts", "transfer", "full"]
Mode = Literal["test", "dev", "fasttest"]
Aggregation = Literal["all", "mean", "wmean"]
Correlation = Literal["spearman", "pearson"]

NLILabel = Literal["entailment", "neutral", "contradiction"]
SamplingStrategy = Literal["top", "random"]
OutputFormat = Literal["n-tuple", "triplet"]

#: The name of keyword search in place of a model. A folder of this name is `./bm25`.
KEYWORDS = "bm25"

Export = Literal["sentence-transformers", "onnx", "openvino", "int8", "onnx-int8", "openvino-int8"]
Int8Method = Literal["dynamic", "mixed", "static"]
Instructions = Literal["avx2", "vnni", "amx", "arm"]

POOLER_TYPES = get_args(PoolerType)
LONG_TEXTS = get_args(LongTexts)
BACKENDS = get_args(Backend)
PRECISIONS = get_args(Precision)
FORMATS = get_args(ShardFormat)
MODES = get_args(Mode)
AGGREGATIONS = get_args(Aggregation)
#: In the order of the numbers 0, 1, 2 in SNLI and MultiNLI.
NLI_LABELS = get_args(NLILabel)
INSTRUCTIONS = get_args(Instructions)


class WeightOptions(TypedDict, total=False):
    """How the weights of a model are loaded.

    Args:
        pooler_type (`str`, *optional*): How token states become one embedding. The default is what the model names.
        max_length (`int`, *optional*): Number of tokens to which a text is cut. The default is the model's.
        dtype (`str`, *optional*): Number format of the weights. The default is fp32.
        device (`str`, *optional*): Where to compute, such as cpu or cuda:0. The default is a GPU if there is one.
    """

    pooler_type: PoolerType | None
    max_length: int | None
    dtype: DType
    device: str | None


class ModelOptions(WeightOptions, total=False):
    """How a model is loaded to compute embeddings.

    Args:
        long_texts (`str`, *optional*): What happens to a text of more tokens: it is cut, or split into windows whose
            embeddings are averaged (mean). The default is cut.
        model_backend (`str`, *optional*): What computes the embeddings; onnx and openvino read what `simcse-hf export`
            wrote. The default is torch.
        postprocess (`bool`, *optional*, defaults to `True`): Apply the whitening or flow saved beside the model.
    """

    long_texts: LongTexts
    model_backend: Backend
    postprocess: bool


class EvaluationOptions(ModelOptions, total=False):
    """What models are scored on, and how; and how they are loaded.

    Args:
        task_set (`str`, *optional*): Tasks that are read from `data_dir`. The default is sts.
        tasks (`Sequence[str]` or `str`, *optional*): In place of `task_set`, names out of STS12, STS13, STS14, STS15,
            STS16, STSBenchmark, SICKRelatedness, MR, CR, SUBJ, MPQA, SST2, TREC, MRPC, SST5.
        data_dir (`str` or `os.PathLike`, *optional*): The folder "downstream" of SentEval; for STS also a folder of
            plain tables, or "hub" to download data sets.
        pairs (`Sequence[str]`, *optional*): Files of scored pairs, or hub data sets as name:split.
        task (`Sequence[str | Task]`, *optional*): Tasks from files of yours, as KIND=FILE; KIND is one of
            classification, knn, clustering, pairs, reranking, retrieval; in Python also ("KIND", frame), a data frame
            with the columns of the file.
        label_separator (`str`, *optional*): What stands between several labels of a text in a cell, such as ";".
        mode (`str`, *optional*): Which splits are scored: those for testing, or for development (dev); fasttest is
            test with SentEval's faster settings of the classifiers. The default is test.
        aggregation (`str`, *optional*): The score of STS12 to STS16: over their pairs together (all), or the mean of
            their subsets, plain or weighted by size (wmean). The default is all.
        metric (`str`, *optional*): Correlation by which pairs are scored. The default is spearman.
        seed (`int`, *optional*): Seed of the classifiers. The default is 1111.
    """

    task_set: TaskSet | None
    tasks: Sequence[str] | str | None
    data_dir: str | os.PathLike | None
    pairs: Sequence[str | os.PathLike]
    task: "Sequence[str | Task | tuple[str, Any]]"
    label_separator: str | None
    mode: Mode
    aggregation: Aggregation
    metric: Correlation
    seed: int
