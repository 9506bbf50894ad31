"""The arguments of the commands `train unsup` and `train sup`, beside those of the Trainer."""

from dataclasses import dataclass
from typing import Any

import yaml
from transformers import PreTrainedConfig

from ..models.checkpoint import HEAD_CHOICES
from ..models.pooling import TEMPLATE_POOLER
from ..models.settings import LOSS_OPTIONS, SETTING_NAMES, Values, dropout_rates
from ..names import POOLER_TYPES
from ..objectives.info_nce import SIMILARITIES
from ..objectives.is_bert import NGRAM_POOLER
from ..objectives.promptbert import DENOISINGS
from .parser import option, read_number


@dataclass
class ModelArguments:
    """The model to start from, its pooler and its objective, under the names of the reference implementation."""

    _argument_group_name = "model and objective"

    model_name_or_path: str | None = option(
        None,
        "Encoder to start from: folder of a model, or its name on the Hugging Face hub; also --model.",
        aliases=["--model"],
    )
    model_revision: str = option("main", "Branch, tag or commit of the model on the hub.")
    head: str = option(
        "auto",
        "What happens to a dense + tanh head in the starting checkpoint: keep it, draw a fresh one, or "
        "decide by whether it was trained on sentences (auto).",
        choices=HEAD_CHOICES,
    )
    pooler_type: str | None = option(
        None,
        "How token states become an embedding: mask needs --templates, and ngrams belongs to IS-BERT; "
        "default: the checkpoint's, else the objective's, else cls.",
        aliases=["--pooler"],
        choices=(*POOLER_TYPES, TEMPLATE_POOLER, NGRAM_POOLER),
    )
    templates: list[str] | None = option(
        None, "Templates with {text} and [MASK] for the pooler mask: one for anchors, one for other texts."
    )
    denoising: str | None = option(
        None,
        "Subtract the embedding of the template alone, in training and at inference (pooler mask, one template): "
        "transform first passes both through the layer before BERT's vocabulary, and tanh passes the difference "
        "through a new layer.",
        choices=DENOISINGS,
    )
    mlp_only_train: bool | None = option(None, "Use the dense + tanh head during training only (pooler cls).")
    temp: float | None = option(
        None, "Temperature of the contrastive softmax; default: 0.05, or 1 with --similarity dot."
    )
    similarity: str | None = option(
        None,
        "Similarity of two embeddings: cosine or dot; default: the objective's, else cosine.",
        choices=SIMILARITIES,
    )
    hard_negative_weight: float | None = option(
        None, "Logarithm of alpha, the weight of an anchor's own hard negatives (SimCSE, Eq. 8)."
    )
    do_mlm: bool | None = option(None, "Add the auxiliary masked-LM loss.")
    mlm_weight: float | None = option(
        None, "Weight of the auxiliary masked-LM loss; default: the objective's, else 0.1."
    )
    objective: str | None = option(
        None,
        "Training objective, such as simcse or diffcse, a sum of them, or a class of yours as "
        "my_package.losses:MyLoss; its paper's settings replace the defaults; default: the checkpoint's, else simcse.",
    )
    objective_options: list[str] = option(
        list,
        "Options of the objective as name=value pairs (a table in YAML); --objective NAME --help lists those of NAME "
        "with their defaults.",
    )  # a table after __post_init__
    matryoshka_dims: list[str] | None = option(
        None, "Also apply the objective to these leading dimensions, for example 256,128,64."
    )
    unpadded: bool = option(True, "Skip padding in the computation where the encoder supports it.")
    dropout: float | None = option(
        None, "Set every dropout rate of the encoder (Table 3); default: its config's rates."
    )

    def __post_init__(self) -> None:
        """Turn the words of the command line into a table of options and a list of dimensions.

        Raises:
            ValueError: If the words have another form.
        """
        given: Any = self.objective_options
        if not isinstance(given, dict):
            options = {}
            for word in [given] if isinstance(given, str) else given:
                name, equals, text = str(word).partition("=")
                if not (name and equals):
                    raise ValueError(f"--objective_options takes name=value, got {word!r}")
                options[name] = read_number(yaml.safe_load(text))
            self.objective_options = options  # type: ignore[assignment]

        words: Any = self.matryoshka_dims
        if words is not None:
            listed = words if isinstance(words, list) else [words]
            try:
                numbers = [int(number) for word in listed for number in str(word).split(",")]
            except ValueError:
                raise ValueError(
                    f"--matryoshka_dims takes numbers with commas or spaces, such as 256,128,64, got {words!r}"
                ) from None
            self.matryoshka_dims = numbers  # type: ignore[assignment]

    def settings(self) -> Values:
        """Return the settings for `AutoModelForCL.from_pretrained`; `None` where nothing was chosen."""
        names = (SETTING_NAMES | set(LOSS_OPTIONS)) & vars(self).keys()
        values = {name: getattr(self, name) for name in names}
        values["temperature"] = self.temp
        values["objective_options"] = self.objective_options or None
        return values


@dataclass
class DataArguments:
    """The training texts and the dev set, and what to do with the output directory."""

    _argument_group_name = "texts and output"

    train_file: str | None = option(None, "File of training texts: txt, csv, tsv, json, jsonl or parquet, also .gz.")
    dataset_name: str | None = option(
        None, "Training texts on the hub: the name of a data set, name:split or name:config:split; default: train."
    )
    columns: list[str] | None = option(None, "Text columns in the order anchor, positive, hard negatives.")
    label_separator: str | None = option(
        None, 'What stands between several labels of a text in a cell, such as ";"; also in --dev_task.'
    )
    streaming: bool = option(
        False,
        "Read the training texts while training, without caching them; needs --max_steps. For texts that "
        "are larger than the memory or the disk cache.",
    )
    max_train_samples: int | None = option(
        None, "Train on the first rows only; `simcse-hf build-nli --max_rows` draws a random sample."
    )
    dev_file: str | None = option(
        None,
        "Dev set of scored pairs: SentEval's sts-dev.csv, a table with the columns sentence1, sentence2, score, or a "
        "data set on the hub as name:split.",
    )
    dev_task: list[str] = option(
        list,
        "Dev task from a file of yours as KIND=FILE, repeatable; KIND is classification, nearest, "
        "clustering, pairs, reranking or retrieval.",
        action="extend",
    )
    general: list[str] = option(
        list,
        "General tasks, on which the run says what it forgot: files of scored pairs, or KIND=FILE as in --dev_task.",
        action="extend",
    )
    overwrite_output_dir: bool = option(
        False, "Delete the earlier run in --output_dir and start again; also --overwrite.", aliases=["--overwrite"]
    )
    seeds: list[int] | None = option(
        None,
        "Train several times, in --output_dir/seed-N: a number of runs (3: seeds 42, 43, 44) or a list of "
        "seeds. The model that is best on the dev set is saved in --output_dir.",
    )

    def __post_init__(self) -> None:
        """Refuse a number of rows below 1."""
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise ValueError(f"--max_train_samples must be at least 1, got {self.max_train_samples}")


def dropout_settings(config: PreTrainedConfig, rate: float | None) -> dict[str, float]:
    """Return the config values that set every dropout rate of an encoder.

    Args:
        config (`PreTrainedConfig`): The encoder's config.
        rate (`float`, *optional*): Dropout rate; `None` keeps the config's rates.

    Returns:
        `dict[str, float]`: Config names with the new rate. Rates of classification heads are left out.

    Raises:
        ValueError: If `rate` is not a probability below 1, or the config has no rate.
    """
    if rate is None:
        return {}
    if not 0 <= rate < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {rate}")
    names = dropout_rates(config)
    if not names:
        raise ValueError(f"--dropout {rate}: a {config.model_type} encoder has no dropout rate in its config")
    return dict.fromkeys(names, rate)
