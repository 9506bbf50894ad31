"""Packed buckets: the same loss and gradient as padded batches, from one graph for each bucket."""

import os
import random
import re
import socket
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from functorch.compile import make_boxed_func
from process_helpers import start_processes
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from transformers import Trainer

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.buckets import BucketPlan, PackedCollator
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.evaluation.pairs import ScoredPairs
from simcse_hf.models.packed import PackedStep
from simcse_hf.ops import static_packing
from simcse_hf.ops.unpadded import counts_tokens
from simcse_hf.training import packed as packed_module
from simcse_hf.training.packed import plan_buckets

WORDS = VOCABULARY[5:25]
SCORES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def texts(rows, columns=1, seed=0):
    """Make rows of random sentences of 1 to 9 words."""
    generator = torch.Generator().manual_seed(seed)
    pick = lambda n: torch.randint(len(WORDS), (n,), generator=generator)  # noqa: E731
    sentence = lambda: " ".join(WORDS[i] for i in pick(1 + int(torch.randint(9, (), generator=generator))))  # noqa: E731
    return Dataset.from_dict({f"sent{c}": [sentence() for _ in range(rows)] for c in range(columns)})


def dev_pairs():
    return ScoredPairs("stsb", *(texts(6, seed=i)["sent0"][:] for i in (1, 2)), SCORES)


def arguments(tmp_path, **changes):
    values = {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "max_seq_length": 12,
        "learning_rate": 1e-2,
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "allow_zero_dropout": True,
        "packed_buckets": "128,256",
    }
    return SimCSETrainingArguments(**(values | changes))


def model_of(model_type="bert", dropout=0.0, **settings):
    torch.manual_seed(1)
    return AutoModelForCL.from_config(tiny_config(model_type, dropout=dropout, initializer_range=0.2), **settings)


def trained(tmp_path, tokenizer, data, model=None, resume=None, **changes):
    """Train a model; return the trainer."""
    args = arguments(tmp_path, **changes)
    trainer = SimCSETrainer(model or model_of(), args, data, texts(9), dev_pairs(), processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()


# --- the step ---


def packed_and_padded(model, tokenizer, data, rows=8, longest=12):
    """Return a packed batch and the padded batch of the same rows."""
    chosen = [tokenize_dataset(data, tokenizer, longest)[i] for i in range(rows)]
    collator = ContrastiveCollator(tokenizer)
    columns = max(2, len(data.column_names))
    plan = BucketPlan((384,), rows, columns, longest)
    return PackedCollator(collator, plan, counts_tokens(model.base_model))(chosen), collator(chosen)


def loss_and_gradients(model, batch):
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.loss.item(), gradients, output.sentence_embeddings.detach()


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta", "electra"])
@pytest.mark.parametrize("columns, pooler", [(1, "cls"), (3, "cls"), (2, "cls_before_pooler")])
def test_a_packed_batch_has_the_loss_and_gradients_of_the_padded_batch(tokenizer, model_type, columns, pooler):
    model = model_of(model_type, pooler_type=pooler).double().train()  # without compilation
    model.prepare_objective()
    model.packed_step = PackedStep(model, disable=True)
    packed, padded = packed_and_padded(model, tokenizer, texts(8, columns))
    assert packed["input_ids"].shape == (1, 384)
    loss, gradients, embeddings = loss_and_gradients(model, packed)
    expected_loss, expected, expected_embeddings = loss_and_gradients(model, padded)
    assert abs(loss - expected_loss) < 1e-12
    torch.testing.assert_close(embeddings, expected_embeddings, atol=1e-12, rtol=0)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_in_float32_the_loss_agrees_to_a_millionth_and_gradients_are_as_exact_as_those_of_padded_batches(
    tokenizer, seed
):
    model = model_of().train()
    model.prepare_objective()
    model.packed_step = PackedStep(model, disable=True)
    packed, padded = packed_and_padded(model, tokenizer, texts(8, 3, seed))
    (loss, *found), (expected_loss, *others) = (loss_and_gradients(model, batch) for batch in (packed, padded))
    assert abs(loss - expected_loss) < 1e-6
    _, exact, _ = loss_and_gradients(model.double(), padded)
    largest = max(gradient.abs().max() for gradient in exact.values())
    error, expected_error = (
        max((gradients[name] - gradient).abs().max() for name, gradient in exact.items()) / largest
        for gradients, _ in (found, others)
    )
    assert error < max(1e-6, 3 * expected_error)


def test_in_bfloat16_gradients_are_as_close_to_float32_as_those_of_padded_batches(tokenizer):
    """They are not bit-equal: one product adds up the gradients of queries, keys and values before it rounds."""
    model = model_of().train()
    model.prepare_objective()
    model.packed_step = PackedStep(model, disable=True)
    packed, padded = packed_and_padded(model, tokenizer, texts(8, 3))
    _, exact, _ = loss_and_gradients(model, padded)
    errors = []
    for batch in (packed, padded):
        with torch.autocast("cpu", torch.bfloat16):
            _, gradients, _ = loss_and_gradients(model, batch)
        assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
        errors.append(sum((gradients[name] - gradient).norm() for name, gradient in exact.items()))
    assert 0 < errors[0] < 1.2 * errors[1]


def test_a_packed_step_leaves_the_model_its_own_weights(tokenizer):
    model = model_of().train()
    model.prepare_objective()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    model.packed_step = PackedStep(model, disable=True)
    packed, _ = packed_and_padded(model, tokenizer, texts(8))
    model(**packed)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


@pytest.mark.slow
def test_the_graph_casts_all_weights_at_once_and_projects_queries_keys_and_values_together(tokenizer):
    model, operators = model_of(dropout=0.1).train(), Counter()
    model.prepare_objective()
    weights = {parameter.shape for parameter in model.base_model.encoder.parameters() if parameter.dim() == 2}

    def count(graph, inputs):
        for node in graph.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                operators[node.target.overloadpacket.__name__] += 1
            if node.target is torch.ops.aten._to_copy.default:
                assert node.args[0].meta["val"].shape not in weights
        return make_boxed_func(graph.forward)

    model.packed_step = PackedStep(model, backend=aot_autograd(fw_compiler=count))
    packed, _ = packed_and_padded(model, tokenizer, texts(8))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**packed).loss
    loss.backward()
    assert operators["gather_weights"] == operators["scatter_gradients"] == 1
    layers, last, head, similarities = 4 * (model.config.num_hidden_layers - 1), 5, 1, 1
    assert operators["addmm"] + operators["mm"] == 3 * (layers + last + head + similarities)


def test_a_packed_batch_without_a_packed_step_is_refused(tokenizer):
    model = model_of()
    packed, _ = packed_and_padded(model, tokenizer, texts(8))
    with pytest.raises(ValueError, match="a packed batch needs packed_step"):
        model(**packed)


# --- a run ---


@pytest.fixture
def uncompiled(monkeypatch):
    """Run the packed step without compiling it, which takes seconds."""
    monkeypatch.setattr(packed_module, "PackedStep", partial(PackedStep, disable=True))
    monkeypatch.setattr(packed_module, "COMPILE_ON_CPU", {})


@pytest.mark.slow
def test_an_epoch_compiles_one_graph_for_each_bucket_and_reaches_the_same_weights(tmp_path, tokenizer):
    """Evaluation in between and an incomplete last batch compile nothing."""
    data = texts(60)  # 7 batches of 8 and an incomplete one of 4
    epoch = {"max_steps": -1, "num_train_epochs": 1, "packed_buckets": "96,128"}
    epoch |= {"eval_strategy": "steps", "eval_steps": 3}
    plain = trained(tmp_path, tokenizer, data, **(epoch | {"packed_buckets": "off"}))
    assert counters["stats"]["unique_graphs"] == 0
    packed = trained(tmp_path, tokenizer, data, **epoch)
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]
    assert losses(packed) == pytest.approx(losses(plain), abs=1e-6)
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(packed.model.state_dict()[name], tensor, atol=1e-5, rtol=0)
    assert packed.model.packed_step is None


def test_dropout_differs_between_compiled_steps_and_repeats_with_the_seed(tokenizer):
    model = model_of(dropout=0.1).train()
    model.prepare_objective()
    model.packed_step = PackedStep(model, backend="aot_eager")
    packed, _ = packed_and_padded(model, tokenizer, texts(8))
    torch.manual_seed(3)
    first, second = (model(**packed).sentence_embeddings for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])  # the two views of a sentence
    torch.manual_seed(3)
    assert torch.equal(model(**packed).sentence_embeddings, first)


def test_a_resumed_packed_run_equals_an_uninterrupted_one(tmp_path, tokenizer, uncompiled):
    saving = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
    whole = trained(tmp_path / "whole", tokenizer, texts(60), model_of(dropout=0.1), **saving)
    checkpoint = str(tmp_path / "whole/run/checkpoint-3")
    resumed = trained(tmp_path / "resumed", tokenizer, texts(60), model_of(dropout=0.1), checkpoint, **saving)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor)


def test_gradient_accumulation_adds_up_packed_batches(tmp_path, tokenizer, uncompiled):
    accumulated = {"gradient_accumulation_steps": 3, "max_steps": 3}
    plain, packed = (
        trained(tmp_path, tokenizer, texts(60), packed_buckets=sizes, **accumulated) for sizes in ("off", "96,128")
    )
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(packed.model.state_dict()[name], tensor, atol=1e-5, rtol=0)


def train_in_process(rank, folder, tokenizer, port, compiled):
    """Train in one of two processes, with and without buckets; the first process saves both models."""
    if not compiled:
        packed_module.PackedStep, packed_module.COMPILE_ON_CPU = partial(PackedStep, disable=True), {}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    seen = []
    for sizes in ("off", "64,80"):
        changes = {"packed_buckets": sizes, "per_device_train_batch_size": 4, "ddp_backend": "gloo"}
        model = model_of()
        model.register_forward_pre_hook(lambda _, __, inputs: seen.append("packing" in inputs), with_kwargs=True)
        trainer = trained(folder / sizes, tokenizer, texts(60), model, **changes)
        if rank == 0:
            torch.save(trainer.model.state_dict(), folder / f"{sizes}.pt")
    assert sum(seen) > 0
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_gather_the_embeddings_of_packed_batches(tmp_path, tokenizer, compiled):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    start_processes(train_in_process, (tmp_path, tokenizer, port, compiled), 2)
    plain, packed = (torch.load(tmp_path / f"{sizes}.pt") for sizes in ("off", "64,80"))
    for name, tensor in plain.items():
        torch.testing.assert_close(packed[name], tensor, atol=1e-5, rtol=0)


# --- whether a run is packed ---


REASONS = [
    ({"gradcache_chunk_size": 4}, {}, "gradcache_chunk_size encodes a batch in chunks"),
    ({}, {"do_mlm": True}, "the masked-LM loss"),
    ({}, {"objective": "barlow_twins"}, "only the objective simcse without mask_duplicates .* not 'barlow_twins'"),
    ({}, {"objective_options": {"mask_duplicates": True}}, "without mask_duplicates"),
    ({}, {"encoders": 2}, "two encoders"),
    ({}, {"pooler_type": "avg"}, "only the poolers cls and cls_before_pooler support them, not 'avg'"),
    ({"pad_to_max_length": True}, {}, "pad_to_max_length asks for padded batches"),
    ({}, {"unpadded": False}, "the encoder runs with padding"),
    ({"view": "fixed_mask"}, {}, "the view fixed_mask is made from padded batches"),
    ({"auto_find_batch_size": True}, {}, "auto_find_batch_size"),
    ({"per_device_train_batch_size": 2000}, {}, "2000 rows against 2000 sentences is computed in chunks"),
]


@pytest.mark.parametrize("changes, settings, reason", REASONS)
def test_a_run_that_cannot_be_packed_says_why_in_one_line(tmp_path, tokenizer, caplog, changes, settings, reason):
    trainer = SimCSETrainer(
        model_of(**settings), arguments(tmp_path, **changes), texts(16), processing_class=tokenizer
    )
    with caplog.at_level("INFO", logger="simcse_hf"):
        assert plan_buckets(trainer) is None
    (message,) = [x.getMessage() for x in caplog.records if x.name == "simcse_hf.training.packed"]
    assert re.search(f"^packed_buckets: off, because .*{reason}", message)


def cuda_trainer(monkeypatch, tmp_path, tokenizer, capability=(9, 0), **changes):
    """Make a trainer that seems to run on a GPU of a compute capability."""
    trainer = SimCSETrainer(model_of(), arguments(tmp_path, **changes), texts(200), processing_class=tokenizer)
    monkeypatch.setattr(SimCSETrainingArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(packed_module, "_flash_works", lambda trainer: True)
    return trainer


@pytest.mark.parametrize(
    "changes, capability, reason",
    [({}, (9, 0), "the run is in float32"), ({"bf16": True}, (7, 5), "Tesla T4 is older than Ampere")],
)
def test_float32_and_old_gpus_are_not_packed(monkeypatch, tmp_path, tokenizer, caplog, changes, capability, reason):
    trainer = cuda_trainer(monkeypatch, tmp_path, tokenizer, capability, packed_buckets="auto", **changes)
    with caplog.at_level("INFO", logger="simcse_hf"):
        assert plan_buckets(trainer) is None
    assert reason in caplog.text


def test_auto_chooses_sizes_on_a_gpu_and_is_off_on_a_cpu(monkeypatch, tmp_path, tokenizer):
    data = texts(200)
    trainer = SimCSETrainer(model_of(), arguments(tmp_path, packed_buckets="auto"), data, processing_class=tokenizer)
    assert plan_buckets(trainer) is None
    plan = plan_buckets(cuda_trainer(monkeypatch, tmp_path, tokenizer, packed_buckets="auto", bf16=True))
    assert plan.sizes == (128, 256) and (plan.rows, plan.columns, plan.longest) == (8, 2, 12)


def test_planning_leaves_the_random_state_alone(monkeypatch, tmp_path, tokenizer):
    trainer = cuda_trainer(monkeypatch, tmp_path, tokenizer, packed_buckets="auto", bf16=True)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    plan_buckets(trainer)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.parametrize("value", ["on", "12,", "0", "2816;3072", "-5"])
def test_packed_buckets_of_another_form_are_refused(tmp_path, value):
    with pytest.raises(ValueError, match="packed_buckets must be auto, off, or numbers of tokens"):
        arguments(tmp_path, packed_buckets=value)


# --- torch_compile, and checkpoints without an optimizer ---


def test_the_dev_set_is_evaluated_without_a_second_graph(tmp_path, tokenizer):
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "pad_to_max_length": True, "max_steps": 2}
    changes = {"packed_buckets": "off", "eval_strategy": "steps", "eval_steps": 1}
    args = arguments(tmp_path, **compiled, **changes)
    trainer = SimCSETrainer(model_of(), args, texts(32), dev_set=dev_pairs(), processing_class=tokenizer)
    trainer.train()
    assert sum("eval_stsb_spearman" in entry for entry in trainer.state.log_history) == 2
    assert counters["stats"]["unique_graphs"] == 1


def test_resuming_from_a_model_without_its_optimizer_is_told(tmp_path, tokenizer, caplog):
    saving = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    trained(tmp_path, tokenizer, texts(32), packed_buckets="off", **saving)
    with caplog.at_level("WARNING", logger="simcse_hf"):
        checkpoint = str(tmp_path / "run/checkpoint-1")
        trained(tmp_path / "again", tokenizer, texts(32), resume=checkpoint, packed_buckets="off", **saving)
    assert "checkpoint-1 holds the model only, because the run had save_only_model set" in caplog.text


def test_the_operations_of_a_step_are_those_that_transformers_counts(tmp_path, tokenizer):
    trainer = SimCSETrainer(model_of(), arguments(tmp_path), texts(16), processing_class=tokenizer)
    inputs = {"input_ids": torch.zeros(3, 2, 7)}
    expected = Trainer.floating_point_ops(trainer, inputs)
    assert [trainer.floating_point_ops(inputs) for _ in range(2)] == [expected] * 2
    trainer.model = model_of(pooler_type="avg")
    assert trainer.floating_point_ops(inputs) == Trainer.floating_point_ops(trainer, inputs)


def test_the_compiled_encoder_with_flash_attention_waits_for_no_value(tokenizer, monkeypatch):
    """On the meta device, reading a value raises. The encoder is the one that a GPU compiles."""
    monkeypatch.setattr(static_packing, "supports_flash", lambda query: True)
    packed, _ = packed_and_padded(model_of(), tokenizer, texts(8))
    model = model_of(dropout=0.1).to("meta", torch.bfloat16).train()
    embed = torch.compile(PackedStep(model).embed, fullgraph=True, dynamic=False, backend="aot_eager")
    packing = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in packed["packing"].items()}
    embeddings = embed(packed["input_ids"].to("meta"), **packing)
    embeddings.sum().backward()
    assert embeddings.shape == (8, 2, 32)
    assert model.base_model.encoder.layer[0].attention.self.query.weight.grad.shape == (32, 32)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
