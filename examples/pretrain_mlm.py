r"""Masked-LM pretraining of an encoder, for a domain or language that has none.

    python examples/pretrain_mlm.py                                     # offline, on a generated sample corpus
    accelerate launch examples/pretrain_mlm.py examples/recipes/pretrain-mlm-small.yaml --train_file sentences.txt
    accelerate launch examples/pretrain_mlm.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir outputs/my-encoder                                 # continues an existing encoder
    accelerate launch examples/run_unsup.py --model_name_or_path outputs/my-encoder --train_file sentences.txt ...

`--help` lists the arguments; `--bf16` and `--torch_compile` are for a GPU. Padding is not computed, and the head runs
at masked positions only. The result is a stock masked-LM model, which `AutoModelForMaskedLM` and `AutoModel` load.
`simcse-hf train mlm` is the same command.
"""

import sys

from simcse_hf.cli.errors import exit_status
from simcse_hf.training.pretraining import train_mlm

if __name__ == "__main__":
    sys.exit(exit_status(train_mlm, "pretrain_mlm.py"))
