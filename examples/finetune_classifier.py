"""Fine-tune all weights of an encoder as a classifier of labelled texts, with transformers alone.

    python examples/finetune_classifier.py MODEL train.csv test.csv --seed 42

MODEL is any checkpoint, such as the output of `simcse-hf train`: what that saves is a stock encoder, to which
`AutoModelForSequenceClassification` adds a new classifier. The csv files have the columns text and label.
"""

import argparse
from tempfile import TemporaryDirectory

import numpy as np
import torch
from datasets import Dataset, load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train", help="table of texts and labels to learn from")
    parser.add_argument("test", help="table of texts and labels to score")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=42)
    print(f"accuracy {finetune(**vars(parser.parse_args())):.2f}")


def finetune(
    model: str, train: str, test: str, epochs: float = 10.0, learning_rate: float = 3e-4, seed: int = 42
) -> float:
    """Fine-tune on one table, and return the accuracy x 100 on the other."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = {path: read(path) for path in (train, test)}
    labels = sorted({label for _, label in rows[train] + rows[test]})
    data = {}
    for path, pairs in rows.items():
        tokens = tokenizer([text for text, _ in pairs], truncation=True, max_length=64)
        data[path] = Dataset.from_dict({**tokens, "labels": [labels.index(label) for _, label in pairs]})
    options = {"per_device_train_batch_size": 32, "save_strategy": "no", "report_to": "none", "seed": seed}
    # In float32, whatever the precision of the file: steps of fine-tuning are lost in half precision.
    load = AutoModelForSequenceClassification.from_pretrained
    classifier = load(model, num_labels=len(labels), dtype=torch.float32)
    with TemporaryDirectory() as folder:
        args = TrainingArguments(folder, num_train_epochs=epochs, learning_rate=learning_rate, **options)
        trainer = Trainer(classifier, args, train_dataset=data[train], processing_class=tokenizer)
        trainer.train()
        predicted = trainer.predict(data[test])
    return 100 * float(np.mean(predicted.predictions.argmax(1) == predicted.label_ids))


def read(path: str) -> list[tuple[str, str]]:
    """Return the texts and labels of a csv file, without rows that lack one of them."""
    table = load_dataset("csv", data_files=str(path), split="train", keep_default_na=False)
    if not {"text", "label"}.issubset(table.column_names):
        raise SystemExit(f"{path}: name the columns text and label; they are {', '.join(table.column_names)}")
    rows = zip(table["text"], map(str, table["label"]), strict=True)
    return [(text, label) for text, label in rows if text.strip() and label.strip()]


if __name__ == "__main__":
    main()
