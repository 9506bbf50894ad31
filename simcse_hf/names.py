"""The values that options may have: types for signatures, and tuples of the same names. Nothing here imports torch.

The command line reads the types of a function's parameters by these names, see `simcse_hf.cli.options`.
"""

from typing import Literal, TypedDict, get_args

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
SAMPLING_STRATEGIES = get_args(SamplingStrategy)
OUTPUT_FORMATS = get_args(OutputFormat)
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
