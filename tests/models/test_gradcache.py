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

ROWS = 7
EXACT = {True: 1e-9, False: 1e-6}  # the masked-LM loss is computed in float32, whatever the model's precision
BARLOW_TWINS = {"objective": "barlow_twins", "objective_options": {"projector_dim": 12}}
CASES = {  # name: (sentences per row, settings)
    "views of a sentence": (1, {}),
    "pairs": (2, {}),
    "hard negatives": (4, {"hard_negative_weight": 0.7}),
    "masked-LM": (3, {"do_mlm": True, "mlm_weight": 0.5}),
    "symmetric, with duplicates masked": (2, {"objective_options": {"symmetric": True, "mask_duplicates": True}}),
    "Matryoshka": (2, {"matryoshka_dims": [16, 8]}),
    "two encoders": (2, {"encoders": 2}),
    "barlow_twins": (2, BARLOW_TWINS),
    "vicreg": (2, BARLOW_TWINS | {"objective": "vicreg"}),
    **{
        name: (3 if cls.rows == "nli" else 2, {"objective": name})
        for name, cls in OBJECTIVES.items()
        if cls.supports_gradcache and name not in ("barlow_twins", "vicreg")
    },
    **{f"ragged {name}": (3, {"objective": name}) for name in ("simcse", "supcon", "softmax", "class_labels")},
}
FROZEN = ("teacher", "guide")
RELATIONS = torch.tensor([[0, 2], [1, 0], [0, 0], [2, 1], [0, 1], [2, 0], [0, 2]])
RAGGED = torch.tensor([[0, -100], [0, 2], [0, 0], [0, 2], [0, -100], [0, 1], [0, 2]])


def case_model(case, dropout=0.3, dtype=torch.float64, unpadded=False):
    torch.manual_seed(0)
    settings = CASES[case][1]
    config = tiny_config(dropout=dropout, initializer_range=0.2)
    model = BertForCL(config, unpadded=unpadded, **settings).to(dtype)
    model.prepare_objective()
    return model.train()


def case_batch(case, rows=ROWS):
    batch = random_batch(rows, CASES[case][0])
    if CASES[case][0] == 1:
        batch = {name: x.repeat_interleave(2, dim=1) for name, x in batch.items()}
    if "objective" in CASES[case][1] or "objective_options" in CASES[case][1]:
        frozen = torch.nn.functional.normalize(torch.randn(rows, CASES[case][0], 8), dim=-1)
        batch |= {"text_ids": torch.randint(0, 11, frozen.shape[:2]), "teacher": frozen, "guide": frozen}
        batch["scores"] = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 2.0, 1.0])
        if case.startswith("ragged"):
            batch["relations"] = RAGGED
            batch["attention_mask"][RAGGED[:, 1] < 0, 2] = 0
        elif CASES[case][0] == 3:
            batch["relations"] = RELATIONS
        else:
            batch["labels"] = torch.tensor([0, 1, 0, 1, 2, 0, 2])
    if CASES[case][1].get("do_mlm"):
        batch = with_masked_inputs(batch)
        batch["mlm_targets"][:2] = -100  # nothing is masked in the first chunk
    return batch


def cached_step(model, batch, chunk_size):
    """Return the output of a step, with the seed of each chunk by its rows."""
    torch.manual_seed(1)
    cached = CachedBatch(model, batch, chunk_size)
    cached.output.loss.backward()
    rows = cached.order.split([len(chunk["input_ids"]) for chunk in cached.chunks])
    return cached.backward(), list(zip(rows, cached.seeds, strict=True))


def whole_batch_step(model, batch, chunks):
    """Slow reference: encode all chunks with a graph, each with its seed, then compute one loss and its gradient."""
    objective, seen = model.objective, []

    class Keep(Objective):
        def forward(self, kept):
            seen.append(kept)
            return kept.embeddings.sum()

    model.objective = Keep(objective.dim)
    mlm_total, mlm_count = 0.0, 0
    for rows, seed in chunks:
        torch.manual_seed(seed)
        chunk = {name: x[rows] for name, x in batch.items()}
        longest = chunk["attention_mask"].sum(-1).max()
        chunk = {name: x[:, :, :longest] if x.ndim == 3 and name not in FROZEN else x for name, x in chunk.items()}
        output = model(**chunk)
        if "mlm_targets" in batch:
            count = (chunk["mlm_targets"] != -100).sum()
            mlm_total, mlm_count = mlm_total + output.mlm_loss * count, mlm_count + count
    model.objective = objective
    whole = seen[0]
    order = torch.cat([rows for rows, _ in chunks])
    whole.embeddings = torch.cat([kept.embeddings for kept in seen])[order.argsort()]
    whole.inputs = {name: x for name, x in batch.items() if not name.startswith("mlm")}
    loss = objective(whole)
    contrastive = loss = sum(loss.values()) if isinstance(loss, dict) else loss
    if mlm_count:
        loss = loss + model.settings.mlm_weight * mlm_total / mlm_count
    loss.backward()
    return loss.detach(), contrastive.detach()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(actual, expected, tolerance=1e-6):
    assert actual.keys() == expected.keys() and expected
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        assert (actual[name] - gradient).abs().max() <= tolerance * largest, name


@pytest.mark.parametrize("chunk_size", [3, 100])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_those_of_the_whole_batch_under_the_same_dropout(case, chunk_size):
    """In float64, so that only a real difference exceeds the tolerance."""
    batch, one, other = case_batch(case), case_model(case), case_model(case)
    output, chunks = cached_step(one, batch, chunk_size)
    assert len({seed for _, seed in chunks}) == len(chunks) > 3 / chunk_size
    loss, contrastive = whole_batch_step(other, batch, chunks)
    exact = EXACT[output.mlm_loss is None]
    assert output.loss.item() == pytest.approx(loss.item(), rel=exact)
    assert output.contrastive_loss.item() == pytest.approx(contrastive.item(), rel=1e-9)
    assert_same(gradients(one), gradients(other), exact)
    if output.mlm_loss is None:
        assert output.loss.item() == output.contrastive_loss.item()
    else:
        total = output.contrastive_loss + one.settings.mlm_weight * output.mlm_loss
        assert output.loss.item() == pytest.approx(total.item())


def test_each_chunk_is_encoded_once_without_and_once_with_a_graph():
    model, seen = case_model("hard negatives"), []
    model.base_model.embeddings.register_forward_hook(
        lambda _, inputs, out: seen.append((out.numel(), torch.is_grad_enabled()))
    )
    cached_step(model, case_batch("hard negatives"), 3)
    assert [graph for _, graph in seen] == [False] * 3 + [True] * 3
    assert [size for size, _ in seen[:3]] == [size for size, _ in seen[3:]]
    assert max(size for size, _ in seen) <= 3 * 4 * 9 * 32


@pytest.mark.parametrize("case", ["pairs", "hard negatives"])
def test_chunks_are_filled_by_tokens_and_keep_the_gradient(case):
    """One text of 40 tokens and 15 of at most 5: two chunks of 2 rows of the longest, where 16 rows made 8 chunks."""
    lengths = [3, 40, *[5, 2] * 7]
    batch = random_batch(16, CASES[case][0], length=40)
    batch["attention_mask"] = (
        (torch.arange(40) < torch.tensor(lengths)[:, None])[:, None].expand(batch["input_ids"].shape).long()
    )
    one, other = case_model(case, dropout=0.0), case_model(case, dropout=0.0)
    cached = CachedBatch(one, batch, 2)
    assert [tuple(chunk["input_ids"].shape[::2]) for chunk in cached.chunks] == [(2, 40), (14, 5)]
    cached.output.loss.backward()
    loss = cached.backward().loss
    expected = other(**batch).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_same(gradients(one), gradients(other), 1e-10)


# --- with the Trainer ---


def train(folder, columns=2, settings=None, **changes):
    """Train a model and return its weights and log."""
    values = {"max_steps": 3, "learning_rate": 0.1, "optim": "sgd", "logging_steps": 1}
    texts = {f"sent{c}": [x[: 3 + 5 * i % 23] for i, x in enumerate(sentences(32, c))] for c in range(columns)}
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=40)
    model = model_of(dropout=0.0, **(settings or {}))
    trainer = make(folder, tokenizer, Dataset.from_dict(texts), model, **values | changes)
    trainer.train()
    return model.state_dict(), [entry for entry in trainer.state.log_history if "loss" in entry]


RUNS = {
    "hard negatives": {"columns": 4},
    "accumulated": {"gradient_accumulation_steps": 2},
    "an objective with a projector": {"settings": BARLOW_TWINS},
}


MASKED = {"columns": 3, "settings": {"do_mlm": True}}


def _train_in_process(folder):
    values = {"per_device_train_batch_size": 4, "gradcache_chunk_size": 3, "ddp_backend": "gloo"}
    results = {run: train(folder / "two", **(values | RUNS[run])) for run in RUNS}
    results["masked-LM"] = train(folder / "two", **(values | MASKED))
    torch.save(results, folder / f"{os.environ['RANK']}.pt")


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    launch(_train_in_process, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("run", RUNS)
def test_two_processes_with_gradcache_equal_one_with_the_whole_batch(run, tmp_path, of_two_processes):
    """Each process has 4 rows in chunks of 3 and 1, and exchanges gradients in the last chunk."""
    one, (first, second) = train(tmp_path, **RUNS[run]), (results[run] for results in of_two_processes)
    torch.testing.assert_close(first[0], one[0], rtol=0, atol=2e-5)
    assert len(one[1]) == len(first[1]) > 0
    for mine, theirs in zip(one[1], first[1], strict=True):
        assert mine.keys() == theirs.keys()
        for part in ("loss", "contrastive_loss", "grad_norm"):
            assert theirs[part] == pytest.approx(mine[part], rel=1e-3)
    assert all(torch.equal(first[0][name], tensor) for name, tensor in second[0].items())


def test_two_processes_whose_texts_fill_different_numbers_of_chunks_count_masked_tokens_together(of_two_processes):
    first, second = (results["masked-LM"] for results in of_two_processes)
    assert all(torch.equal(first[0][name], tensor) for name, tensor in second[0].items())
    assert all(entry["mlm_loss"] > 0 for entry in first[1])
