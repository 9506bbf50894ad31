"""Masked-LM pretraining of an encoder, for a domain or language that has none.

    python examples/pretrain_mlm.py                                     # offline, on a generated sample corpus
    accelerate launch examples/pretrain_mlm.py examples/recipes/pretrain-mlm-small.yaml --train_file sentences.txt
    accelerate launch examples/pretrain_mlm.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir outputs/my-encoder                                 # goes on with an encoder that is there
    accelerate launch examples/run_unsup.py --model_name_or_path outputs/my-encoder --train_file sentences.txt ...

Arguments: those of PretrainingArguments in simcse_hf/pretraining.py and transformers' TrainingArguments, among them
--bf16 and --torch_compile for a GPU. Padding is not computed and the head runs at masked positions only. What is saved
is the stock masked-LM model, which `AutoModelForMaskedLM` and `AutoModel` load.
"""

import sys

from simcse_hf.cli.errors import exit_status
from simcse_hf.training.pretraining import parse_pretraining_arguments, pretrain

# BERT's: AdamW, linear warm-up and decay (Devlin et al. 2019, appendix A.2), at the learning rate of small models.
DEFAULTS = {
    "output_dir": "outputs/pretrained",
    "learning_rate": 5e-4,
    "per_device_train_batch_size": 128,
    "warmup_steps": 0.06,
    "weight_decay": 0.01,
    "num_train_epochs": 1,
    "logging_steps": 50,
    "save_steps": 1000,
    "save_total_limit": 2,
    # Batches of about equal length hold about equally many tokens: a row costs what its tokens cost.
    "train_sampling_strategy": "group_by_length",
    "length_column_name": "length",
}
SAMPLE = {
    "output_dir": "outputs/sample-pretrained",
    "train_tokenizer": True,
    "vocab_size": 2000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 64,
    "max_steps": 600,
    "mlm_probability": 0.3,
    "max_seq_length": 32,
}


def main() -> None:
    pretrain(*parse_pretraining_arguments(sys.argv[1:], DEFAULTS, SAMPLE))


if __name__ == "__main__":
    sys.exit(exit_status(main, "pretrain_mlm.py"))
