"""GradCache gives the gradient of the whole batch while the encoder holds one chunk at a time."""

import os

import pytest
import torch
from conftest import VOCABULARY, random_batch, tiny_config, with_masked_inputs
from datasets import Dataset
from process_helpers import launch
from trainer_helpers import make, model_of, sentences
from transformers import BertTokenizer

from simcse_hf import BertForCL
from simcse_hf.models.gradcache import CachedBatch
from simcse_hf.objectives import OBJECTIVES, Objective
from simcse_hf.objectives.base import named_losses

ROWS = 7
BARLOW_TWINS = {"objective": "barlow_twins", "objective_options": {"projector_dim": 12}}
VICREG = {"objective": "vicreg", "objective_options": {"projector_dim": 12}}
#: For each case, the sentences of a row, and the settings of the model.
CASES = {
    "views of a sentence": (1, {}),
    "hard negatives": (4, {"hard_negative_weight": 0.7}),
    "masked-LM": (3, {"do_mlm": True, "mlm_weight": 0.5}),
    "symmetric, with duplicates masked": (2, {"objective_options": {"symmetric": True, "mask_duplicates": True}}),
    "Matryoshka": (2, {"matryoshka_dims": [16, 8]}),
    "two encoders": (2, {"encoders": 2}),
    "barlow_twins": (2, BARLOW_TWINS),
    "vicreg": (2, VICREG),
    "ragged simcse": (3, {"objective": "simcse"}),
    "ragged supcon": (3, {"objective": "supcon"}),
}
for _name, _class in OBJECTIVES.items():
    if _class.supports_gradcache and _name not in CASES:
        CASES[_name] = (3 if _class.rows == "nli" else 2, {"objective": _name})

#: What a frozen model made of each text.
FROZEN = ("teacher", "guide")
RELATIONS = torch.tensor([[0, 2], [1, 0], [0, 0], [2, 1], [0, 1], [2, 0], [0, 2]])
RAGGED = torch.tensor([[0, -100], [0, 2], [0, 0], [0, 2], [0, -100], [0, 1], [0, 2]])


def case_model(case, dropout=0.3):
    torch.manual_seed(0)
    _, settings = CASES[case]
    config = tiny_config(dropout=dropout, initializer_range=0.2)
    model = BertForCL(config, unpadded=False, **settings).double()
    model.prepare_objective()
    return model.train()


def case_batch(case):
    """A batch with everything that the objective of a case reads."""
    torch.manual_seed(0)
    columns, settings = CASES[case]
    batch = random_batch(ROWS, columns)
    if columns == 1:
        batch = {name: values.repeat_interleave(2, dim=1) for name, values in batch.items()}
    if "objective" in settings or "objective_options" in settings:
        frozen = torch.nn.functional.normalize(torch.randn(ROWS, columns, 8), dim=-1)
        batch["teacher"] = frozen
        batch["guide"] = frozen
        batch["text_ids"] = torch.randint(0, 11, (ROWS, columns))
        batch["scores"] = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 2.0, 1.0])
        if case.startswith("ragged"):
            batch["relations"] = RAGGED
            batch["attention_mask"][RAGGED[:, 1] < 0, 2] = 0
        elif columns == 3:
            batch["relations"] = RELATIONS
        else:
            batch["labels"] = torch.tensor([0, 1, 0, 1, 2, 0, 2])
    if settings.get("do_mlm"):
        batch = with_masked_inputs(batch)
        batch["mlm_targets"][:2] = -100  # nothing is masked in the first chunk
    return batch


def gradients(model):
    named = model.named_parameters()
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def assert_same_gradients(actual, expected, tolerance):
    """That gradients are equal at the scale of the largest one."""
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        assert (actual[name] - gradient).abs().max() <= tolerance * largest, name


class CachedStep:
    """A step with GradCache: its output, the rows and the seed of each chunk, and the gradients."""

    def __init__(self, model, batch, chunk_size):
        torch.manual_seed(1)
        cached = CachedBatch(model, batch, chunk_size)
        cached.output.loss.backward()
        sizes = [len(chunk["input_ids"]) for chunk in cached.chunks]
        self.chunk_rows = cached.order.split(sizes)
        self.output = cached.backward()
        self.seeds = cached.seeds
        self.gradients = gradients(model)


class Keep(Objective):
    """Keeps the embeddings of each chunk in place of a loss."""

    def __init__(self, dim):
        super().__init__(dim)
        self.chunks = []

    def forward(self, batch):
        self.chunks.append(batch)
        return batch.embeddings.sum()


def chunk_of(batch, rows):
    """Some rows of a batch, as long as their longest text."""
    chunk = {name: values[rows] for name, values in batch.items()}
    longest = chunk["attention_mask"].sum(-1).max()
    for name, values in chunk.items():
        if values.ndim == 3 and name not in FROZEN:
            chunk[name] = values[:, :, :longest]
    return chunk


class WholeBatchStep:
    """Slow reference: encode all chunks with a graph, each with its seed, then compute one loss and its gradient."""

    def __init__(self, model, batch, chunk_rows, seeds):
        objective = model.objective
        model.objective = keep = Keep(objective.dim)
        mlm_total = 0.0
        mlm_count = 0
        for rows, seed in zip(chunk_rows, seeds, strict=True):
            torch.manual_seed(seed)
            chunk = chunk_of(batch, rows)
            output = model(**chunk)
            if "mlm_targets" in batch:
                count = (chunk["mlm_targets"] != -100).sum()
                mlm_total = mlm_total + output.mlm_loss * count
                mlm_count = mlm_count + count
        model.objective = objective
        whole = keep.chunks[0]
        order = torch.cat(chunk_rows).argsort()
        whole.embeddings = torch.cat([chunk.embeddings for chunk in keep.chunks])[order]
        whole.inputs = {name: values for name, values in batch.items() if not name.startswith("mlm")}
        self.contrastive_loss = sum(named_losses(objective(whole)).values())
        self.loss = self.contrastive_loss
        if mlm_count:
            self.loss = self.loss + model.settings.mlm_weight * mlm_total / mlm_count
        self.loss.backward()
        self.gradients = gradients(model)


# --- a step under the same dropout, in float64, so that only a real difference exceeds the tolerance ---


@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_the_gradient_equal_those_of_the_whole_batch(case):
    cached = CachedStep(case_model(case), case_batch(case), 3)
    whole = WholeBatchStep(case_model(case), case_batch(case), cached.chunk_rows, cached.seeds)
    assert len(set(cached.seeds)) == len(cached.chunk_rows) > 1, "each chunk has its own"
    output = cached.output
    # The masked-LM loss is computed in float32.
    tolerance = 1e-6 if case == "masked-LM" else 1e-9
    assert output.loss.item() == pytest.approx(whole.loss.item(), rel=tolerance)
    contrastive = output.contrastive_loss.item()
    assert contrastive == pytest.approx(whole.contrastive_loss.item(), rel=1e-9)
    assert_same_gradients(cached.gradients, whole.gradients, tolerance)
    if output.mlm_loss is not None:
        assert output.loss.item() == pytest.approx(contrastive + 0.5 * output.mlm_loss.item())


# --- chunks ---


def test_each_chunk_is_encoded_once_without_and_once_with_a_graph_and_is_held_alone():
    model = case_model("hard negatives")
    passes = []

    def record(module, inputs, states):
        passes.append((states.numel(), torch.is_grad_enabled()))

    model.base_model.embeddings.register_forward_hook(record)
    CachedStep(model, case_batch("hard negatives"), 3)
    assert [has_graph for _, has_graph in passes] == [False] * 3 + [True] * 3
    sizes = [size for size, _ in passes]
    assert sizes[:3] == sizes[3:]
    rows, sentences_of_a_row, length, dim = 3, 4, 9, 32
    assert max(sizes) <= rows * sentences_of_a_row * length * dim


def test_chunks_are_filled_by_tokens():
    """One row of 40 tokens and 15 of at most 5: two chunks of 2 rows of the longest, where 16 rows made 8 chunks."""
    batch = random_batch(16, 4, length=40)
    is_token = torch.arange(40) < torch.tensor([3, 40, *[5, 2] * 7])[:, None]
    batch["attention_mask"] = is_token[:, None].expand(batch["input_ids"].shape).long()
    chunks = CachedBatch(case_model("hard negatives"), batch, 2).chunks
    assert [(len(chunk["input_ids"]), chunk["input_ids"].shape[-1]) for chunk in chunks] == [(2, 40), (14, 5)]


# --- with the Trainer ---


def train(folder, columns=2, settings=None, **changes):
    """Train a model; return its weights and what it logged with each step."""
    values = {"max_steps": 3, "learning_rate": 0.1, "optim": "sgd", "logging_steps": 1}
    texts = {}
    for column in range(columns):
        whole = sentences(32, column)
        texts[f"sent{column}"] = [text[: 3 + 5 * row % 23] for row, text in enumerate(whole)]
    vocabulary = {word: i for i, word in enumerate(VOCABULARY)}
    tokenizer = BertTokenizer(vocab=vocabulary, model_max_length=40)
    model = model_of(dropout=0.0, **(settings or {}))
    trainer = make(folder, tokenizer, Dataset.from_dict(texts), model, **values | changes)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return model.state_dict(), steps


RUNS = {
    "accumulated, with a projector": {"gradient_accumulation_steps": 2, "settings": BARLOW_TWINS},
    "masked-LM": {"columns": 3, "settings": {"do_mlm": True}},
}


def _train_in_process(folder):
    """Train with 4 rows in chunks of 3 and 1; gradients are exchanged in the last chunk."""
    values = {"per_device_train_batch_size": 4, "gradcache_chunk_size": 3, "ddp_backend": "gloo"}
    results = {name: train(folder / "two", **values, **options) for name, options in RUNS.items()}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")


def test_two_processes_with_gradcache_train_and_log_as_one_with_the_whole_batch(tmp_path):
    launch(_train_in_process, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for run, (weights, _) in first.items():
        for name, tensor in weights.items():
            assert torch.equal(tensor, second[run][0][name]), (run, name)
    name = "accumulated, with a projector"
    expected, expected_steps = train(tmp_path / "one", **RUNS[name])
    found, steps = first[name]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    for step, expected_step in zip(steps, expected_steps, strict=True):
        assert step.keys() == expected_step.keys()
        for part in ("loss", "contrastive_loss", "grad_norm"):
            assert step[part] == pytest.approx(expected_step[part], rel=1e-3), part
    # The texts of the two processes fill different numbers of chunks, and masked tokens are counted together.
    assert all(step["mlm_loss"] > 0 for step in first["masked-LM"][1])
