"""The contestants of the benchmarks cpu and gpu: this package, sentence-transformers, and plain transformers."""

import tempfile
import time

import torch
import torch.nn.functional as F
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import AutoModel, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments

TEMPERATURE = 0.05


def common() -> dict:
    """Return the arguments of every Trainer."""
    return {
        "max_steps": 10_000,
        "learning_rate": 3e-5,
        "weight_decay": 0.0,
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "use_cpu": not torch.cuda.is_available(),  # without it, the Trainer refuses bf16 on a CPU
    }


class StepTimer(TrainerCallback):
    """Time from the start of a step to the start of the next, so that waiting for data counts."""

    def begin(self, steps: int) -> None:
        self.steps, self.marks = steps, []

    def on_step_begin(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())
        if len(self.marks) > self.steps + 1:
            control.should_training_stop = True

    @property
    def seconds(self) -> list[float]:
        # The first step allocates; the last mark closes the last timed step.
        marks = self.marks[1:]
        return [b - a for a, b in zip(marks, marks[1:], strict=False)]


class Contestant:
    """A trainer that is ready for timed steps. The subclasses make `trainer`."""

    trainer: Trainer

    def time_steps(self, steps: int) -> list[float]:
        """Return the seconds of each of `steps` training steps, after one step that does not count."""
        timer = StepTimer()
        timer.begin(steps)
        self.trainer.add_callback(timer)
        self.trainer.train()
        self.trainer.remove_callback(timer)
        return timer.seconds


class Ours(Contestant):
    """`SimCSETrainer` with the [CLS] embedding."""

    def __init__(
        self,
        model,
        rows: Dataset,
        bf16: bool,
        batch: int = 64,
        length: int = 32,
        unpadded: bool = True,
        trainer: type[SimCSETrainer] = SimCSETrainer,
        **arguments,
    ):
        self.model = AutoModelForCL.from_pretrained(
            model, pooler_type="cls_before_pooler", temperature=TEMPERATURE, unpadded=unpadded
        )
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        args = SimCSETrainingArguments(
            tempfile.mkdtemp(),
            per_device_train_batch_size=batch,
            max_seq_length=length,
            bf16=bf16,
            **(common() | arguments),
        )
        self.trainer = trainer(self.model, args, rows, processing_class=self.tokenizer)

    @torch.no_grad()
    def loss_without_dropout(self) -> float:
        """Compute the loss of the first rows of the data."""
        args = self.trainer.args
        rows = [self.trainer.train_dataset[i] for i in range(args.train_batch_size)]
        batch = self.trainer.data_collator(rows)
        inputs = {name: x.to(args.device) for name, x in batch.items()}
        return self.model.eval()(**inputs).loss.item()


class Peer(Contestant):
    """sentence-transformers' Trainer with MultipleNegativesRankingLoss; single sentences appear twice in a row."""

    def __init__(self, model, rows: Dataset, bf16: bool, batch: int = 64, length: int = 32, **model_arguments):
        encoder = Transformer(str(model), max_seq_length=length, model_kwargs=model_arguments)
        pooling = Pooling(encoder.get_embedding_dimension(), pooling_mode="cls")
        self.model = SentenceTransformer(
            modules=[encoder, pooling], device="cuda" if torch.cuda.is_available() else "cpu"
        )
        self.loss = losses.MultipleNegativesRankingLoss(self.model, scale=1 / TEMPERATURE)
        if rows.column_names == ["sent0"]:
            rows = rows.add_column("sent1", rows["sent0"][:])
        args = SentenceTransformerTrainingArguments(
            tempfile.mkdtemp(), per_device_train_batch_size=batch, bf16=bf16, **common()
        )
        self.rows = rows
        self.trainer = SentenceTransformerTrainer(self.model, args, train_dataset=rows, loss=self.loss)

    @torch.no_grad()
    def loss_without_dropout(self) -> float:
        self.model.eval()
        rows = self.rows.select(range(self.trainer.args.train_batch_size))
        columns = []
        for name in rows.column_names:
            inputs = self.model.preprocess(list(rows[name]))
            columns.append({k: v.to(self.model.device) if hasattr(v, "to") else v for k, v in inputs.items()})
        return self.loss(columns, None).item()


class Plain(Contestant):
    """transformers' own Trainer around a padded encoder, as in a short script that a user would write."""

    def __init__(self, model, rows: Dataset, bf16: bool, batch: int = 64, length: int = 32):
        tokenizer = AutoTokenizer.from_pretrained(model)
        columns = rows.column_names if len(rows.column_names) > 1 else ["sent0", "sent0"]

        def collate(batch_rows: list[dict]) -> dict:
            texts = [row[column] for column in columns for row in batch_rows]
            return dict(tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt"))

        args = TrainingArguments(
            tempfile.mkdtemp(), per_device_train_batch_size=batch, bf16=bf16, remove_unused_columns=False, **common()
        )
        self.module = _PlainModule(AutoModel.from_pretrained(model), len(columns))
        self.rows, self.collate = rows, collate
        self.trainer = Trainer(self.module, args, train_dataset=rows, data_collator=collate)

    @torch.no_grad()
    def loss_without_dropout(self) -> float:
        rows = [self.rows[i] for i in range(self.trainer.args.train_batch_size)]
        inputs = {name: x.to(self.trainer.args.device) for name, x in self.collate(rows).items()}
        return self.module.eval()(**inputs)["loss"].item()


class _PlainModule(nn.Module):
    def __init__(self, encoder: nn.Module, columns: int):
        super().__init__()
        self.encoder, self.columns = encoder, columns

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        vectors = self.encoder(input_ids, attention_mask).last_hidden_state[:, 0]
        anchors, *candidates = F.normalize(vectors.float(), dim=-1).chunk(self.columns)
        logits = anchors @ torch.cat(candidates).T / TEMPERATURE
        return {"loss": F.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))}


def encode_ours(model: SimCSE, texts: list[str], dtype: torch.dtype) -> torch.Tensor:
    """Encode with this package, in bf16 by autocast."""
    with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        return model.encode(texts)


def encode_peer(model, dtype: torch.dtype = torch.float32):
    """Make `encode(texts, batch_size)` of sentence-transformers, with mean pooling and normalised embeddings."""
    encoder = Transformer(str(model), model_kwargs={"dtype": dtype})
    pooling = Pooling(encoder.get_embedding_dimension(), pooling_mode="mean")
    peer = SentenceTransformer(modules=[encoder, pooling], device="cuda" if torch.cuda.is_available() else "cpu")

    def encode(texts: list[str], batch_size: int) -> torch.Tensor:
        return peer.encode(
            texts, batch_size=batch_size, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        ).cpu()

    return encode
