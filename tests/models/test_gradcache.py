"""GradCache gives the gradient of the whole batch while the encoder holds one chunk at a time."""

import os

import pytest
import torch
from conftest import random_batch, tiny_config, tiny_tokenizer, with_masked_inputs
from objective_helpers import beside, gradients_by_name
from process_helpers import launch
from trainer_helpers import assert_same_weights, make, model_of, sentences

from simcse_hf import BertForCL
from simcse_hf.models.gradcache import CachedBatch
from simcse_hf.objectives import OBJECTIVES

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

RAGGED = torch.tensor([[0, -100], [0, 2], [0, 0], [0, 2], [0, -100], [0, 1], [0, 2]])
RELATIONS = RAGGED.clamp(min=0).flip(1)


def case_model(case, dropout=0.0):
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
        batch |= beside(ROWS, columns)
        if case.startswith("ragged"):
            batch["relations"] = RAGGED
            batch["attention_mask"][RAGGED[:, 1] < 0, 2] = 0
        elif columns == 3:
            batch["relations"] = RELATIONS
    if settings.get("do_mlm"):
        batch = with_masked_inputs(batch)
        batch["mlm_targets"][:2] = -100  # nothing is masked in the first chunk
    return batch


def assert_same_gradients(actual, expected, tolerance):
    """That gradients are equal at the scale of the largest one."""
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        assert (actual[name] - gradient).abs().max() <= tolerance * largest, name


# In float64, so that only a real difference exceeds the tolerance. The masked-LM loss is computed in float32.
@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_the_gradient_equal_those_of_the_whole_batch(case):
    tolerance = 1e-6 if case == "masked-LM" else 1e-9
    model = case_model(case)
    whole = model(**case_batch(case))
    whole.loss.backward()
    cached_model = case_model(case)
    cached = CachedBatch(cached_model, case_batch(case), 3)
    assert len(cached.chunks) > 1
    cached.output.loss.backward()
    output = cached.backward()
    assert output.loss.item() == pytest.approx(whole.loss.item(), rel=tolerance)
    torch.testing.assert_close(output.contrastive_loss, whole.contrastive_loss, rtol=1e-9, atol=0)
    assert_same_gradients(gradients_by_name(cached_model), gradients_by_name(model), tolerance)


def test_each_chunk_is_encoded_with_its_own_dropout_once_without_and_once_with_a_graph_and_is_held_alone():
    model = case_model("hard negatives", dropout=0.3)
    passes = []

    def record(module, inputs, output):
        passes.append((output.last_hidden_state, torch.is_grad_enabled()))

    model.base_model.register_forward_hook(record)
    cached = CachedBatch(model, case_batch("hard negatives"), 3)
    cached.output.loss.backward()
    cached.backward()
    assert [has_graph for _, has_graph in passes] == [False] * 3 + [True] * 3
    for (first, _), (second, _) in zip(passes[:3], passes[3:], strict=True):
        assert torch.equal(first, second), "the same dropout masks"
    assert len(set(cached.seeds)) == 3
    rows, sentences_of_a_row, length, dim = 3, 4, 9, 32
    assert max(states.numel() for states, _ in passes) <= rows * sentences_of_a_row * length * dim


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
    model = model_of(dropout=0.0, **(settings or {}))
    trainer = make(folder, tiny_tokenizer(), texts, model, **values | changes)
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
        assert_same_weights(weights, second[run][0])
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
