"""Every objective: two processes equal one, and half precision is compared in float32."""

import re
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from conftest import PAD, random_batch
from objective_helpers import (
    TEXTS,
    batch_of_templates,
    beside,
    diffcse,
    esimcse,
    gradients_by_name,
    masked_lm_folder,
    masking_every_word,
    promptbert,
    tsdae,
)
from process_helpers import in_processes
from relation_helpers import embedded
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcse_hf.objectives import OBJECTIVES, EncodedBatch, build_objective
from simcse_hf.objectives.base import ABSENT, named_losses

PROCESSES = 2

# --- the objectives that read embeddings ---

WIDTH = 5  # of the vectors of a batch
DIM = 6  # of the embeddings

#: Relations of the hypotheses of each row; the first half of the rows is the first process's.
RELATIONS = {
    "other numbers of hypotheses": [[0], [0], [0, 1, 2, 0], [1, 0]],
    "no positive in a process": [[1], [2, 1], [0, 2], [0, 0, 1]],
    "no positive at all": [[1], [2], [1, 2], [2]],
    "one row each": [[0, 2], [0]],
}
OTHER_NUMBERS = "other numbers of hypotheses"
#: Of texts, of which the second process has one label each.
SEVERAL_LABELS = "several labels"


SIMCSE = {"symmetric": True, "mask_duplicates": True, "false_negative_margin": 0.3}
#: An objective, its options, and its rows: a number of sentences, a name in `RELATIONS`, or `SEVERAL_LABELS`.
CASES = [
    ("simcse", {}, 2),
    ("simcse", {"hard_negative_weight": 0.6}, 4),
    ("simcse", SIMCSE, 3),
    ("simcse", {"symmetric": True}, 3),  # with the guide of the batch
    ("simcse", {"bidirectional": True, "mask_duplicates": True}, 3),
    ("simcse", {"negatives": "all", "mask_duplicates": True, "false_negative_margin": 0.1}, 3),
    ("simcse", {"matryoshka_dims": [2, 5]}, 3),
    ("simcse", SIMCSE, OTHER_NUMBERS),
    ("simcse", {"negatives": "own"}, OTHER_NUMBERS),
    ("simcse", {"negatives": "batch+documents"}, OTHER_NUMBERS),
    ("barlow_twins", {"projector_dim": 12, "off_diagonal_weight": 0.3}, 2),
    ("vicreg", {"projector_dim": 12, "covariance_weight": 3.0}, 2),
    ("contrastive_tension", {"negatives_per_positive": 3}, 2),
    ("simcse+barlow_twins:0.1", {"simcse.temperature": 0.2, "barlow_twins.projector_dim": 12}, 2),
    ("is_bert", {}, 1),
    ("declutr", {"anchors": 2}, 6),
    ("cosent", {}, 2),
    ("angle", {"positive_score": 0.5}, 2),
    ("distill", {"loss": "listmle"}, 3),
    ("distill", {"loss": "vectors", "keep_projection": False}, OTHER_NUMBERS),
    ("distill", {"loss": "listnet"}, OTHER_NUMBERS),
    ("supcon", {"similarity": "cosine"}, OTHER_NUMBERS),
    ("class_labels", {}, SEVERAL_LABELS),
]
for name in RELATIONS:
    CASES += [
        ("softmax", {"augment": True}, name),
        ("softmax:0.7+supcon:0.3", {}, name),
        ("class_labels", {}, name),
    ]
NUMBERS = range(len(CASES))


class Encoded(nn.Module):
    """The objective of a case over a linear map in place of an encoder."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(0)
        name, options, _ = CASES[number]
        self.encoder = nn.Linear(WIDTH, DIM)
        self.objective = build_objective(name, DIM, options)
        if name in ("distill", "is_bert"):
            self.objective.attach(SimpleNamespace(teacher_dim=4, settings=SimpleNamespace(pooler_type="avg")))
        self.double()

    def forward(self, vectors, **inputs):
        embeddings = self.encoder(vectors)
        states = None
        if vectors.dim() == 4:  # those of the tokens
            states = embeddings
            embeddings = states[:, :, 0]
        loss = self.objective(EncodedBatch(embeddings, inputs, hidden_states=states))
        return sum(named_losses(loss).values())


def batch_of(rows):
    """Vectors of the sentences and everything that some objective reads beside them."""
    if rows in RELATIONS:
        batch = embedded(RELATIONS[rows], WIDTH)
        vectors = batch.embeddings.detach()
        return {"vectors": vectors, "teacher": vectors[..., :4].clamp(-3, 3), **batch.inputs}
    if rows == SEVERAL_LABELS:
        batch = batch_of_sentences(2)
        batch["labels"] = torch.tensor([[0, 1], [1, ABSENT], [2, 0], [1, ABSENT], [2, ABSENT], [0, ABSENT]])
        return batch
    return batch_of_sentences(rows)


def batch_of_sentences(columns):
    """Six rows; single sentences come with vectors of their tokens, which IS-BERT reads."""
    generator = torch.Generator().manual_seed(0)
    shape = (6, columns, 6, WIDTH) if columns == 1 else (6, columns, WIDTH)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([5, 2, 1, 4, 4, 3])
    mask = (torch.arange(6) < lengths[:, None]).long()
    return {"vectors": vectors, "attention_mask": mask[:, None], **beside(6, columns)}


def rows_of_process(batch, rank):
    """The rows of a process, with as many columns of texts as its longest row."""
    count = len(next(iter(batch.values()))) // PROCESSES
    rows = slice(rank * count, (rank + 1) * count)
    share = {name: values[rows] for name, values in batch.items()}
    if "relations" in batch:
        hypotheses = longest(share["relations"])
        for name in share:
            columns = hypotheses if name == "relations" else hypotheses + 1
            share[name] = share[name][:, :columns]
    return share


def longest(values):
    """The entries of the longest row."""
    return int((values >= 0).sum(1).max())


def share_of(number, rank):
    """The rows of a process."""
    rows = CASES[number][2]
    share = rows_of_process(batch_of(rows), rank)
    if rows == SEVERAL_LABELS:
        share["labels"] = share["labels"][:, : longest(share["labels"])]
    return share


def evaluated(number, rank):
    """The loss of the rows of a process in evaluation."""
    with torch.no_grad():
        return Encoded(number).eval()(**share_of(number, rank)).item()


# --- the objectives that run the encoder ---

WITH_ENCODER = ("esimcse", "promptbert", "diffcse", "tsdae")


def model_and_batch(name, source):
    """A model with one of these objectives and its batch, from a masked LM and its tokenizer."""
    folder, tokenizer = source
    if name == "tsdae":
        return tsdae(), random_batch(4, 2)
    if name == "promptbert":
        model = promptbert(tokenizer)
        batch = batch_of_templates(tokenizer, {f"sent{column}": TEXTS[column : column + 4] for column in range(3)})
    else:
        model = esimcse() if name == "esimcse" else masking_every_word(diffcse(folder, projector=True))
        batch = random_batch(4, 3, length=8)
    # In the first process no row has a hard negative, in the second one has.
    batch["relations"] = torch.tensor([[0, ABSENT]] * 3 + [[0, 2]])
    batch["input_ids"][:3, 2] = PAD
    batch["attention_mask"][:3, 2] = 0
    return model, batch


#: The steps to compare, 1 of all others; ESimCSE has a queue, which other steps fill.
STEPS = {"esimcse": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("generator")
    return masked_lm_folder(folder, tokenizer), tokenizer


# --- two processes equal one ---


def train(model, batch, steps=1):
    """Losses and gradients of some steps of gradient descent."""
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(**batch)
        loss = getattr(output, "loss", output)
        loss.backward()
        found.append((loss.item(), gradients_by_name(inner)))
        optimizer.step()
    return found


def train_share(source, rank, processes):
    """All steps of one process."""
    found = {}
    for number in NUMBERS:
        model = DistributedDataParallel(Encoded(number))
        found[number] = train(model, share_of(number, rank))
        found["evaluated", number] = evaluated(number, rank)
    for name in WITH_ENCODER:
        model, batch = model_and_batch(name, source)
        rows = rows_of_process(batch, rank)
        found[name] = train(DistributedDataParallel(model), rows, STEPS.get(name, 1))
    return found


@pytest.fixture(scope="module")
def of_processes(source, tmp_path_factory):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    return in_processes(partial(train_share, source), folder, PROCESSES)


@pytest.fixture(scope="module")
def of_one_process(source):
    """A function that trains one process on the whole batch, once for each case."""

    @cache
    def train_on_the_whole_batch(case):
        if case in WITH_ENCODER:
            return train(*model_and_batch(case, source), STEPS.get(case, 1))
        return train(Encoded(case), batch_of(CASES[case][2]))

    return train_on_the_whole_batch


@pytest.mark.parametrize("case", [*NUMBERS, *WITH_ENCODER], ids=[*map(str, CASES), *WITH_ENCODER])
def test_two_processes_have_the_mean_loss_and_each_the_gradient_of_one(case, of_processes, of_one_process):
    """DistributedDataParallel takes the mean of gradients over the processes."""
    for step, (loss, expected) in enumerate(of_one_process(case)):
        losses = [found[case][step][0] for found in of_processes]
        assert sum(losses) / PROCESSES == pytest.approx(loss, rel=1e-9, abs=1e-12)
        for found in of_processes:
            torch.testing.assert_close(found[case][step][1], expected, rtol=1e-7, atol=1e-10)
    if case in NUMBERS:
        found = [of_rank["evaluated", case] for of_rank in of_processes]
        alone = [evaluated(case, rank) for rank in range(PROCESSES)]
        assert found == pytest.approx(alone, rel=1e-9, abs=1e-12), "of its own rows only"


# --- half precision ---


@pytest.mark.parametrize("number", NUMBERS, ids=map(str, CASES))
def test_half_precision_embeddings_are_compared_in_float32(number):
    """The products of the objective's own layers are those of autocast."""
    model = Encoded(number)
    batch = batch_of(CASES[number][2])
    with torch.no_grad():
        batch["vectors"] = model.encoder(batch["vectors"]).bfloat16()
        model.encoder = nn.Identity()
        exact = model.eval()(**batch | {"vectors": batch["vectors"].double()}).item()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.float()(**batch)
    assert loss.dtype == torch.float32
    has_layers = bool(list(model.objective.parameters()))
    assert loss.item() == pytest.approx(exact, rel=0.1 if has_layers else 1e-4)


# --- completeness ---


def test_every_objective_has_a_line_in_the_tables_above():
    named = set(WITH_ENCODER)
    for name, _, _ in CASES:
        named.update(re.findall("[a-z_]+", name))
    own = {name for name, objective in OBJECTIVES.items() if objective.__module__.startswith("simcse_hf.")}
    assert own <= named
