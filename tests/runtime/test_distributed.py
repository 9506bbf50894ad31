"""Several processes have the loss and the gradient that one process has with the whole batch."""

from types import SimpleNamespace

import pytest
import torch
from conftest import random_batch, tiny_config, with_masked_inputs
from process_helpers import in_processes
from torch.nn.parallel import DistributedDataParallel

from simcse_hf import BertForCL
from simcse_hf.encoding.batching import BatchEncoder
from simcse_hf.runtime.distributed import on_first_process

WORLDS = (1, 2, 4)
ROWS = 8
CASES = {  # sentences a row, settings
    "pairs": (2, {}),
    "masked-LM": (3, {"do_mlm": True, "mlm_weight": 0.5, "hard_negative_weight": 0.7}),
}
TOKEN_BUDGETS = {"one batch": 10_000, "three batches": 40, "a batch a text": 1}


def case_model(case):
    """Make the model in float64 and without dropout, so that only the arithmetic of the processes can differ."""
    torch.manual_seed(0)
    return BertForCL(tiny_config(dropout=0.0), **CASES[case][1]).double()


def case_batch(case):
    num_sentences, settings = CASES[case]
    batch = random_batch(ROWS, num_sentences)
    if settings.get("do_mlm"):
        batch = with_masked_inputs(batch)
        batch["mlm_targets"][: ROWS // 4] = -100  # the first of four processes masked nothing
    return batch


def share(batch, rank, processes):
    """The rows of one of several processes."""
    rows = len(batch["input_ids"]) // processes
    return {name: x[rank * rows : (rank + 1) * rows] for name, x in batch.items()}


def step(model, batch):
    output = model(**batch)
    output.loss.backward()
    module = getattr(model, "module", model)
    return {
        "loss": output.loss.detach(),
        "gradients": {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
    }


def texts():
    batch = random_batch(13)
    return [ids[mask == 1].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def encode(model, token_ids, budget):
    calls = []
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    vectors = BatchEncoder(model, SimpleNamespace(pad_token_id=1), 8).embed(token_ids, token_budget=budget)
    hook.remove()
    return vectors, len(calls)


def checks(rank, processes):
    """Return everything that one process of a group computes."""
    results = {"steps": {}}
    for case in CASES:
        mine = share(case_batch(case), rank, processes)
        results["steps"][case] = step(DistributedDataParallel(case_model(case)), mine)

    model = case_model("pairs").eval()
    results["encoded"] = {name: encode(model, texts(), budget) for name, budget in TOKEN_BUDGETS.items()}
    results["nothing encoded"] = encode(model, [], 10)

    try:
        on_first_process(lambda: open("/missing/dev.csv"))
    except (OSError, ValueError) as error:
        results["error"] = type(error).__name__, str(error)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """`results[processes][rank]`."""
    return {count: in_processes(checks, tmp_path_factory.mktemp(f"of-{count}"), count) for count in WORLDS}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("processes", WORLDS)
def test_loss_and_gradient_equal_those_of_the_whole_batch(processes, case, results):
    """The gradient is DistributedDataParallel's, and every process ends with it."""
    whole = step(case_model(case), case_batch(case))
    assert whole["loss"] > 0 and whole["gradients"]
    steps = [of_rank["steps"][case] for of_rank in results[processes]]
    assert torch.stack([s["loss"] for s in steps]).mean().item() == pytest.approx(whole["loss"].item(), abs=1e-6)
    largest = max(gradient.abs().max() for gradient in whole["gradients"].values())
    for rank_step in steps:
        torch.testing.assert_close(rank_step["gradients"], whole["gradients"], rtol=1e-6, atol=1e-7 * largest)


@pytest.mark.parametrize("name", TOKEN_BUDGETS)
@pytest.mark.parametrize("processes", WORLDS)
def test_several_processes_encode_the_same_embeddings_as_one(processes, name, results):
    """Every process has all embeddings in order and runs as many forward passes as the rest, as sharding requires."""
    expected, batches = encode(case_model("pairs"), texts(), TOKEN_BUDGETS[name])
    assert expected.shape == (13, 32) and expected.abs().sum(1).min() > 0
    for of_rank in results[processes]:
        nothing, calls = of_rank["nothing encoded"]
        assert len(nothing) == calls == 0
        vectors, calls = of_rank["encoded"][name]
        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)
        assert calls == -(-batches // processes)


def test_an_error_of_the_first_process_reaches_all_processes(results):
    message = "[Errno 2] No such file or directory: '/missing/dev.csv'"
    for processes in WORLDS:
        first, *others = (of_rank["error"] for of_rank in results[processes])
        assert first == ("FileNotFoundError", message)
        assert others == [("SettingError", f"FileNotFoundError: {message}")] * (processes - 1)
