r"""Pretrain an encoder by masked-LM, for a domain or language without a suitable checkpoint.

    python examples/pretrain_mlm.py                                     # offline, on a generated sample corpus
    accelerate launch examples/pretrain_mlm.py examples/recipes/pretrain-mlm-small.yaml --train_file sentences.txt
    accelerate launch examples/pretrain_mlm.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir outputs/my-encoder                                 # continues an existing encoder
    accelerate launch examples/run_unsup.py --model_name_or_path outputs/my-encoder --train_file sentences.txt ...

`--help` lists the arguments. Use `--bf16` and `--torch_compile` on a GPU. Padding is removed before the encoder runs,
and the masked-LM head runs at masked positions only. The result is a stock masked-LM checkpoint, which
`AutoModelForMaskedLM` and `AutoModel` load. `simcse-hf train mlm` is the same command.
"""

import sys

from simcse_hf.cli.main import exit_status
from simcse_hf.training.pretraining import train_mlm

if __name__ == "__main__":
    sys.exit(exit_status(train_mlm, "pretrain_mlm.py"))
