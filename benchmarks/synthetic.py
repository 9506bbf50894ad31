"""Encoders with random weights and texts of known lengths, so that a benchmark needs neither downloads nor data.

`lengths.json` holds how many tokens real texts have: the first sentences of SimCSE's training file ("paper", 21.9
tokens on average when cut to 32), Wikipedia sentences (every tenth of a million, 25.0 when cut to 32), NLI triplets,
counted with the tokenizer of bert-base-uncased, [CLS] and [SEP] included, truncated to 512.
"""

import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, PreTrainedConfig, PreTrainedTokenizerFast, RobertaConfig

LENGTHS = json.loads(Path(__file__).with_name("lengths.json").read_text())
SPECIAL = {
    "cls_token": "[CLS]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}  # RoBERTa's ids; BERT works with any
TINY = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,  # with a smaller value, all texts would have nearly the same embedding
}


def encoder_config(name: str, tiny: bool) -> PreTrainedConfig:
    """Make the config of bert-base-uncased, MiniLM-L6 or roberta-large, or of a tiny model of the same family."""
    if name == "bert-base":
        return BertConfig(**(IDS | (TINY if tiny else {})))
    if name == "minilm":
        shape = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
        return BertConfig(**(IDS | (TINY if tiny else shape)))
    large = {
        "vocab_size": 50_265,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    positions = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return RobertaConfig(**(IDS | positions | (TINY if tiny else large)))


def write_encoder(directory: Path, name: str, tiny: bool) -> Path:
    """Save an encoder with random weights and a tokenizer for which every word `w0`, `w1`, ... is one token."""
    config = encoder_config(name, tiny)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(directory)
    words = [*SPECIAL.values(), *(f"w{i}" for i in range(config.vocab_size - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, model_input_names=["input_ids", "attention_mask"], **SPECIAL
    ).save_pretrained(directory)
    return directory


def texts(histogram: dict[str, int], count: int, words: int, seed: int) -> list[str]:
    """Make texts of random words whose lengths follow a histogram of tokens, [CLS] and [SEP] included."""
    generator = random.Random(seed)
    lengths = generator.choices([int(length) for length in histogram], histogram.values(), k=count)
    return [" ".join(f"w{generator.randrange(words)}" for _ in range(length - 2)) for length in lengths]


def training_rows(corpus: str, count: int, words: int) -> Dataset:
    """Make single sentences (`"paper"`, `"wikipedia"`) or premise, entailed and contradictory hypothesis (`"nli"`)."""
    columns = enumerate(LENGTHS[corpus].values())
    return Dataset.from_dict({f"sent{i}": texts(histogram, count, words, seed=i) for i, histogram in columns})
