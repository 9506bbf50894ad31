r"""Supervised SimCSE: entailed hypotheses are positives, contradictions hard negatives (paper, section 4).

    accelerate launch examples/run_sup.py                                      # offline, on a generated sample corpus
    accelerate launch examples/run_sup.py examples/recipes/sup-simcse-bert-base-uncased.yaml
    accelerate launch --num_processes 4 examples/run_sup.py --model_name_or_path bert-base-uncased \
        --train_file data/nli_for_simcse.csv --dev_file data/sts-dev.csv --per_device_train_batch_size 128

`--help` lists the arguments. `simcse-hf train sup` runs the same steps without a copy of this file.
"""

import sys

from transformers import AutoTokenizer, set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import exit_status
from simcse_hf.training.loading import load_training_texts
from simcse_hf.training.results import write_results
from simcse_hf.training.run import prepare_runs
from simcse_hf.training.script_arguments import DataArguments, ModelArguments


def main() -> None:
    # Arguments: command line over YAML file over the defaults of the objective's paper. With --seeds there are several
    # runs, and after the last one the best model is saved in output_dir.
    for model_args, data_args, training_args in prepare_runs(sys.argv[1:], supervised=True):
        train(model_args, data_args, training_args)


def train(model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments) -> None:
    # A model: any encoder, with the head and the objective of the settings. The seed decides a fresh head.
    set_seed(training_args.seed)
    model = AutoModelForCL.from_pretrained(model_args.model_name_or_path, **model_args.load_options())
    tokenizer_name = model_args.tokenizer_name or model_args.model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, revision=model_args.model_revision)

    # Texts: a Dataset with the columns sent0 (anchor), sent1 (positive), sent2, ... (hard negatives).
    # For a table with such columns, load_text_dataset(path) gives the same.
    texts = load_training_texts(model_args, data_args, training_args, supervised=True)

    # Training, with the dev set's Spearman correlation at every evaluation.
    trainer = SimCSETrainer(
        model, training_args, train_dataset=texts, dev_set=data_args.dev_file, processing_class=tokenizer
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)

    # The model in output_dir loads with SimCSE(output_dir), AutoModel and SentenceTransformer.
    trainer.save_model()
    trainer.save_state()
    write_results(trainer, data_args.train_file or data_args.dataset_name)
    if training_args.push_to_hub:
        trainer.push_to_hub()


if __name__ == "__main__":
    sys.exit(exit_status(main, "run_sup.py"))
