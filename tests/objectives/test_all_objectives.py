"""Every objective: two processes equal one, and half precision is compared in float32."""

import re
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import random_batch
from objective_helpers import (
    batch_of_templates,
    diffcse,
    esimcse,
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


@dataclass(frozen=True)
class Case:
    """An objective, its settings and options, and what its rows are.

    Rows are a number of sentences, a name in `RELATIONS`, or `SEVERAL_LABELS`.
    """

    objective: str
    options: dict
    rows: int | str

    def __str__(self):
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.objective}({options}) of {self.rows}"


SIMCSE = {"symmetric": True, "mask_duplicates": True, "false_negative_margin": 0.3}
CASES = [
    Case("simcse", {}, 2),
    Case("simcse", {"hard_negative_weight": 0.6}, 4),
    Case("simcse", SIMCSE, 2),
    Case("simcse", SIMCSE, 3),
    Case("simcse", {"symmetric": True}, 3),  # with the guide of the batch
    Case("simcse", {"bidirectional": True, "mask_duplicates": True}, 3),
    Case("simcse", {"negatives": "own", "mask_duplicates": True}, 3),
    Case(
        "simcse",
        {"negatives": "all", "mask_duplicates": True, "false_negative_margin": 0.1},
        3,
    ),
    Case("simcse", {"matryoshka_dims": [2, 5]}, 3),
    Case("simcse", SIMCSE, OTHER_NUMBERS),
    Case("simcse", SIMCSE, "one row each"),
    Case("simcse", {"negatives": "own"}, OTHER_NUMBERS),
    Case("simcse", {"negatives": "batch+documents"}, OTHER_NUMBERS),
    Case("barlow_twins", {"projector_dim": 12, "off_diagonal_weight": 0.3}, 2),
    Case("vicreg", {"projector_dim": 12, "covariance_weight": 3.0}, 2),
    Case("contrastive_tension", {"negatives_per_positive": 3}, 2),
    Case(
        "simcse+barlow_twins:0.1",
        {"simcse.temperature": 0.2, "barlow_twins.projector_dim": 12},
        2,
    ),
    Case("is_bert", {}, 1),
    Case("declutr", {}, 3),
    Case("declutr", {"anchors": 2}, 6),
    Case("cosent", {}, 2),
    Case("angle", {"positive_score": 0.5}, 2),
    Case("distill", {}, 3),
    Case("distill", {"loss": "listnet"}, 2),
    Case("distill", {"loss": "listmle"}, 3),
    Case("distill", {"loss": "vectors", "keep_projection": False}, 1),
    Case("distill", {"loss": "similarities"}, OTHER_NUMBERS),
    Case("distill", {"loss": "vectors", "keep_projection": False}, OTHER_NUMBERS),
    Case("distill", {"loss": "listnet"}, OTHER_NUMBERS),
    Case("supcon", {"similarity": "cosine"}, OTHER_NUMBERS),
    Case("class_labels", {"similarity": "dot"}, 2),
    Case("class_labels", {}, SEVERAL_LABELS),
]
for name in RELATIONS:
    CASES += [
        Case("softmax", {}, name),
        Case("softmax", {"augment": True}, name),
        Case("supcon", {}, name),
        Case("softmax:0.7+supcon:0.3", {}, name),
        Case("class_labels", {}, name),
    ]
NUMBERS = range(len(CASES))
EVERY_CASE = pytest.mark.parametrize("number", NUMBERS, ids=map(str, CASES))


class Encoded(nn.Module):
    """The objective of a case over a linear map in place of an encoder."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(0)
        case = CASES[number]
        self.encoder = nn.Linear(WIDTH, DIM)
        self.objective = build_objective(case.objective, DIM, case.options)
        if case.objective == "distill":
            self.objective.attach(SimpleNamespace(teacher_dim=4))
        if case.objective == "is_bert":
            settings = SimpleNamespace(pooler_type="avg")
            self.objective.attach(SimpleNamespace(settings=settings))
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
        return batch_of_relations(RELATIONS[rows])
    if rows == SEVERAL_LABELS:
        batch = batch_of_sentences(2)
        batch["labels"] = torch.tensor([[0, 1], [1, ABSENT], [2, 0], [1, ABSENT], [2, ABSENT], [0, ABSENT]])
        return batch
    return batch_of_sentences(rows)


def batch_of_relations(relations):
    batch = embedded(relations, WIDTH)
    vectors = batch.embeddings.detach()
    teacher = vectors[..., :4].clamp(-3, 3)
    return {"vectors": vectors, "teacher": teacher, **batch.inputs}


def batch_of_sentences(columns):
    """Six rows; single sentences come with vectors of their tokens, which IS-BERT reads."""
    generator = torch.Generator().manual_seed(0)
    shape = (6, columns, 6, WIDTH) if columns == 1 else (6, columns, WIDTH)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    text_ids = torch.randint(0, 9, (6, columns), generator=generator)
    of_teacher = torch.Generator().manual_seed(1)
    teacher = F.normalize(torch.randn(6, columns, 4, generator=of_teacher))
    lengths = torch.tensor([5, 2, 1, 4, 4, 3])
    mask = (torch.arange(6) < lengths[:, None]).long()
    return {
        "vectors": vectors,
        "teacher": teacher,
        "guide": teacher,
        "text_ids": text_ids,
        "scores": torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 2.0]),
        "labels": torch.tensor([0, 1, 0, 1, 2, 0]),
        "attention_mask": mask[:, None],
    }


def rows_of_process(batch, rank):
    """The rows of a process."""
    count = len(next(iter(batch.values()))) // PROCESSES
    rows = slice(rank * count, (rank + 1) * count)
    return {name: values[rows] for name, values in batch.items()}


def longest(values):
    """The entries of the longest row."""
    return int((values >= 0).sum(1).max())


def share_of(number, rank):
    """The rows of a process, with as many columns as its longest row."""
    rows = CASES[number].rows
    share = rows_of_process(batch_of(rows), rank)
    if rows == SEVERAL_LABELS:
        share["labels"] = share["labels"][:, : longest(share["labels"])]
    if rows in RELATIONS:
        hypotheses = longest(share["relations"])
        for name in share:
            columns = hypotheses if name == "relations" else hypotheses + 1
            share[name] = share[name][:, :columns]
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
    if name == "promptbert":
        return promptbert(tokenizer), batch_of_templates(tokenizer)
    if name == "diffcse":
        model = masking_every_word(diffcse(folder, projector=True))
        return model, random_batch(4, 2, length=8)
    if name == "esimcse":
        return esimcse(), random_batch(4, 2)
    return tsdae(), random_batch(4, 2)


def steps_of(name):
    """The steps to compare; ESimCSE has a queue, which other steps fill."""
    return 3 if name == "esimcse" else 1


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("generator")
    return masked_lm_folder(folder, tokenizer), tokenizer


# --- two processes equal one ---


def train(model, batch, steps=1):
    """Losses and gradients of some steps of gradient descent."""
    inner = getattr(model, "module", model)
    found = []
    for _ in range(steps):
        model.zero_grad()
        output = model(**batch)
        loss = getattr(output, "loss", output)
        loss.backward()
        gradients = {}
        for name, parameter in inner.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()
                parameter.data.sub_(0.05 * parameter.grad)
        found.append((loss.item(), gradients))
    return found


class Share:
    """All steps of one process."""

    def __init__(self, source):
        self.source = source

    def __call__(self, rank, processes):
        found = {}
        for number in NUMBERS:
            model = DistributedDataParallel(Encoded(number))
            found[number] = train(model, share_of(number, rank))
            found["evaluated", number] = evaluated(number, rank)
        for name in WITH_ENCODER:
            model, batch = model_and_batch(name, self.source)
            rows = rows_of_process(batch, rank)
            found[name] = train(DistributedDataParallel(model), rows, steps_of(name))
        return found


@pytest.fixture(scope="module")
def of_processes(source, tmp_path_factory):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    return in_processes(Share(source), folder, PROCESSES)


@pytest.fixture(scope="module")
def of_one_process(source):
    """A function that trains one process on the whole batch, once for each case."""

    @cache
    def train_on_the_whole_batch(case):
        if case in WITH_ENCODER:
            return train(*model_and_batch(case, source), steps_of(case))
        return train(Encoded(case), batch_of(CASES[case].rows))

    return train_on_the_whole_batch


EVERY_CASE_AND_THOSE_WITH_ENCODER = pytest.mark.parametrize(
    "case", [*NUMBERS, *WITH_ENCODER], ids=[*map(str, CASES), *WITH_ENCODER]
)


@EVERY_CASE_AND_THOSE_WITH_ENCODER
def test_the_mean_of_the_losses_of_two_processes_is_the_loss_of_one(case, of_processes, of_one_process):
    for step, (loss, _) in enumerate(of_one_process(case)):
        losses = [found[case][step][0] for found in of_processes]
        assert sum(losses) / PROCESSES == pytest.approx(loss, rel=1e-9, abs=1e-12)


@EVERY_CASE_AND_THOSE_WITH_ENCODER
def test_each_of_two_processes_has_the_gradient_of_one(case, of_processes, of_one_process):
    """DistributedDataParallel takes the mean over the processes."""
    for step, (_, expected) in enumerate(of_one_process(case)):
        for found in of_processes:
            _, gradients = found[case][step]
            torch.testing.assert_close(gradients, expected, rtol=1e-7, atol=1e-10)


@EVERY_CASE
def test_in_evaluation_a_process_compares_its_own_rows_only(number, of_processes):
    found = [of_rank["evaluated", number] for of_rank in of_processes]
    alone = [evaluated(number, rank) for rank in range(PROCESSES)]
    assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)


# --- half precision ---

#: One of the relations is enough here.
TO_COMPARE_IN_HALF_PRECISION = [
    number for number in NUMBERS if CASES[number].rows not in RELATIONS or CASES[number].rows == OTHER_NUMBERS
]
IN_HALF_PRECISION = pytest.mark.parametrize(
    "number",
    TO_COMPARE_IN_HALF_PRECISION,
    ids=[str(CASES[number]) for number in TO_COMPARE_IN_HALF_PRECISION],
)


@pytest.fixture
def halved(number):
    """The model of a case without its encoder, and a batch of its embeddings in half precision."""
    model = Encoded(number)
    batch = batch_of(CASES[number].rows)
    with torch.no_grad():
        batch["vectors"] = model.encoder(batch["vectors"]).bfloat16()
    model.encoder = nn.Identity()
    return model.eval(), batch


def loss_under_autocast(model, batch):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model.float()(**batch)


def exact_loss(model, batch):
    with torch.no_grad():
        return model(**batch | {"vectors": batch["vectors"].double()}).item()


@IN_HALF_PRECISION
def test_the_loss_of_half_precision_embeddings_is_in_float32(number, halved):
    assert loss_under_autocast(*halved).dtype == torch.float32


@IN_HALF_PRECISION
def test_half_precision_embeddings_are_compared_in_float32(number, halved):
    """The products of the objective's own layers are those of autocast."""
    exact = exact_loss(*halved)
    model, batch = halved
    has_layers = bool(list(model.objective.parameters()))
    loss = loss_under_autocast(model, batch).item()
    assert loss == pytest.approx(exact, rel=0.1 if has_layers else 1e-4)


# --- completeness ---


def test_every_objective_has_a_line_in_the_tables_above():
    named = set(WITH_ENCODER)
    for case in CASES:
        named.update(re.findall("[a-z_]+", case.objective))
    own = {name for name, objective in OBJECTIVES.items() if objective.__module__.startswith("simcse_hf.")}
    assert own <= named
