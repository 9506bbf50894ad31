"""Train TSDAE with sentence-transformers, whose loss is called DenoisingAutoEncoderLoss."""

import random
import tempfile
from pathlib import Path

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.models import Pooling, Transformer
from transformers import set_seed

DELETED = 0.6


def delete_words(text: str, generator: random.Random) -> str:
    """Delete each word with the probability of the paper, and keep at least one, as sentence-transformers does."""
    words = text.split()
    kept = [word for word in words if generator.random() > DELETED]
    return " ".join(kept or [generator.choice(words)])


def train_peer_tsdae(
    start: Path, texts: list[str], *, steps: int, batch: int, rate: float, seed: int, bf16: bool
) -> SentenceTransformer:
    """Train an encoder with mean pooling by TSDAE, with the decoder tied to the encoder.

    Args:
        start (`Path`): Folder of the encoder.
        texts (`list[str]`): Training texts.
        steps (`int`): Number of steps.
        batch (`int`): Texts in a step.
        rate (`float`): The first learning rate, with a linear decay.
        seed (`int`): The seed of the run.
        bf16 (`bool`): Whether to train in bf16 autocast.

    Returns:
        `SentenceTransformer`: The trained model.
    """
    set_seed(seed)
    generator = random.Random(seed)
    encoder = Transformer(str(start), max_seq_length=32)
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_word_embedding_dimension())], device="cpu")
    rows = Dataset.from_dict({"damaged": [delete_words(text, generator) for text in texts], "original": texts})
    with tempfile.TemporaryDirectory() as folder:
        args = SentenceTransformerTrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            seed=seed,
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        loss = losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
        SentenceTransformerTrainer(model, args, train_dataset=rows, loss=loss).train()
    return model
