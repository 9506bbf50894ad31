r"""Pretrain an encoder by masked-LM, for a domain or language without a suitable checkpoint.

    python examples/pretrain_mlm.py                                     # offline, on the package's sample
    accelerate launch examples/pretrain_mlm.py pretrain-mlm-small --train_file sentences.txt
    accelerate launch examples/pretrain_mlm.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output_dir outputs/my-encoder                                 # continues an existing encoder
    accelerate launch examples/run_unsup.py --model_name_or_path outputs/my-encoder --train_file sentences.txt ...

This is the command `simcse-hf train mlm`, and `--help` lists its arguments. Use `--bf16` and `--torch_compile` on a
GPU. The result is a stock masked-LM checkpoint, which `AutoModelForMaskedLM` and `AutoModel` load.
"""

import sys

from simcse_hf.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", "mlm", *sys.argv[1:]]))
