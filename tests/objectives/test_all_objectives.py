"""Every objective: two processes equal one, and half precision is compared in float32."""

import re
from types import SimpleNamespace

import pytest
import torch
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

WIDTH, DIM, PROCESSES = 5, 6, 2
#: Relations of the hypotheses of each row; the first half of the rows is the first process's.
RELATIONS = {
    "other numbers of hypotheses": [[0], [0], [0, 1, 2, 0], [1, 0]],
    "no positive in a process": [[1], [2, 1], [0, 2], [0, 0, 1]],
    "no positive at all": [[1], [2], [1, 2], [2]],
    "one row each": [[0, 2], [0]],
}
#: Labels of the texts, of which the second process has one each.
SEVERAL_LABELS = "several labels"
SIMCSE = {"symmetric": True, "mask_duplicates": True, "false_negative_margin": 0.3}
LABELLED = [
    ("softmax", {}),
    ("softmax", {"augment": True}),
    ("supcon", {}),
    ("softmax:0.7+supcon:0.3", {}),
]
#: Name of the objective, its settings and options, and sentences in a row (or the relations).
CASES = [
    ("simcse", {}, 2),
    ("simcse", {"hard_negative_weight": 0.6}, 4),
    ("simcse", SIMCSE, 2),
    ("simcse", SIMCSE, 3),
    ("simcse", {"bidirectional": True, "mask_duplicates": True}, 3),
    ("simcse", {"negatives": "own", "mask_duplicates": True}, 3),
    (
        "simcse",
        {"negatives": "all", "mask_duplicates": True, "false_negative_margin": 0.1},
        3,
    ),
    ("matryoshka", {}, 3),
    ("barlow_twins", {"projector_dim": 12, "off_diagonal_weight": 0.3}, 2),
    ("vicreg", {"projector_dim": 12, "covariance_weight": 3.0}, 2),
    ("contrastive_tension", {"negatives_per_positive": 3}, 2),
    (
        "simcse+barlow_twins:0.1",
        {"simcse.temperature": 0.2, "barlow_twins.projector_dim": 12},
        2,
    ),
    ("is_bert", {}, 1),
    ("declutr", {}, 3),
    ("declutr", {"anchors": 2}, 6),
    ("cosent", {}, 2),
    ("angle", {"positive_score": 0.5}, 2),
    ("simcse", {"symmetric": True}, 3),  # with the guide of the batch
    ("distill", {}, 3),
    ("distill", {"loss": "listnet"}, 2),
    ("distill", {"loss": "listmle"}, 3),
    ("distill", {"loss": "vectors", "keep_projection": False}, 1),
    *[
        (name, options, rows)
        for name, options in LABELLED
        for rows in RELATIONS.values()
    ],
    ("supcon", {"similarity": "cosine"}, RELATIONS["other numbers of hypotheses"]),
    *[
        ("distill", {"loss": loss} | more, RELATIONS["other numbers of hypotheses"])
        for loss, more in {
            "similarities": {},
            "vectors": {"keep_projection": False},
            "listnet": {},
        }.items()
    ],
    *[("class_labels", {}, rows) for rows in RELATIONS.values()],
    ("class_labels", {"similarity": "dot"}, 2),
    ("class_labels", {}, SEVERAL_LABELS),
    *[
        ("simcse", SIMCSE, RELATIONS[name])
        for name in ("other numbers of hypotheses", "one row each")
    ],
    *[
        ("simcse", {"negatives": n}, RELATIONS["other numbers of hypotheses"])
        for n in ("own", "batch+documents")
    ],
]
WITH_ENCODER = ("esimcse", "promptbert", "diffcse", "tsdae")
NAMES = [f"{name}-{number}" for number, (name, *_) in enumerate(CASES)]


def test_every_objective_has_a_line_in_the_tables_above():
    named = {part for name, *_ in CASES for part in re.findall("[a-z_]+", name)}
    own = {
        name
        for name, cls in OBJECTIVES.items()
        if cls.__module__.startswith("simcse_hf.")
    }
    assert own <= named | {*WITH_ENCODER}


def batch_of(columns, dtype=torch.float64):
    """Vectors of the sentences and everything that some objective reads beside them."""
    if columns == SEVERAL_LABELS:
        labels = torch.tensor(
            [[0, 1], [1, ABSENT], [2, 0], [1, ABSENT], [2, ABSENT], [0, ABSENT]]
        )
        return batch_of(2, dtype) | {"labels": labels}
    if isinstance(columns, list):
        batch = embedded(columns, WIDTH)
        vectors = batch.embeddings.detach().to(dtype)
        return {
            "vectors": vectors,
            "teacher": vectors[..., :4].clamp(-3, 3),
            **batch.inputs,
        }
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 2, 1, 4, 4, 3])  # of tokens, whose states IS-BERT reads
    shape = (6, columns, 6, WIDTH) if columns == 1 else (6, columns, WIDTH)
    of_teacher = torch.nn.functional.normalize(
        torch.randn(6, columns, 4, generator=torch.Generator().manual_seed(1))
    )
    return {
        "vectors": torch.randn(shape, generator=generator, dtype=torch.float64).to(
            dtype
        ),
        "teacher": of_teacher,
        "guide": of_teacher,
        "text_ids": torch.randint(0, 9, (6, columns), generator=generator),
        "scores": torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 2.0]),
        "labels": torch.tensor([0, 1, 0, 1, 2, 0]),
        "attention_mask": (torch.arange(6) < lengths[:, None]).long()[:, None],
    }


def share(batch, rank):
    """The rows of a process, with as many columns as its longest row."""
    rows = len(batch["vectors"]) // PROCESSES
    mine = {name: x[rank * rows : (rank + 1) * rows] for name, x in batch.items()}
    if mine.get("labels", torch.empty(0)).dim() == 2:
        mine["labels"] = mine["labels"][:, : int((mine["labels"] >= 0).sum(1).max())]
    if "relations" in mine:
        width = int((mine["relations"] >= 0).sum(1).max())
        mine = {name: x[:, : width + (name != "relations")] for name, x in mine.items()}
    return mine


class Encoded(nn.Module):
    """An objective over a linear map in place of an encoder."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(0)
        name, options, _ = CASES[case]
        self.encoder = nn.Linear(WIDTH, DIM)
        if name == "matryoshka":
            self.objective = build_objective(
                "simcse", DIM, {"matryoshka_dims": [2, 5]} | options
            )
        else:
            self.objective = build_objective(name, DIM, options)
        if name == "distill":
            self.objective.attach(SimpleNamespace(teacher_dim=4))
        if name == "is_bert":
            self.objective.attach(
                SimpleNamespace(settings=SimpleNamespace(pooler_type="avg"))
            )
        self.double()

    def forward(self, vectors, **inputs):
        states, embeddings = None, self.encoder(vectors)
        if vectors.dim() == 4:
            states, embeddings = embeddings, embeddings[:, :, 0]
        loss = self.objective(EncodedBatch(embeddings, inputs, hidden_states=states))
        return sum(named_losses(loss).values())


def of_model(name, source):
    """A model with an objective that runs the encoder itself, and its batch; `source` is a checkpoint for DiffCSE."""
    if name == "promptbert":
        return promptbert(source[1]), batch_of_templates(source[1])
    if name == "diffcse":
        return masking_every_word(diffcse(source[0], projector=True)), random_batch(
            4, 2, length=8
        )
    return (esimcse() if name == "esimcse" else tsdae()), random_batch(4, 2)


def gradients(model, batch, steps=1):
    """Losses and gradients of some steps of gradient descent."""
    found, inner = [], getattr(model, "module", model)
    for _ in range(steps):
        model.zero_grad()
        loss = model(**batch)
        loss = getattr(loss, "loss", loss)
        loss.backward()
        trained = {
            name: p for name, p in inner.named_parameters() if p.grad is not None
        }
        found.append(
            (loss.item(), {name: p.grad.clone() for name, p in trained.items()})
        )
        with torch.no_grad():
            for parameter in trained.values():
                parameter.sub_(0.05 * parameter.grad)
    return found


class Share:
    """All steps of one process."""

    def __init__(self, source):
        self.source = source

    def __call__(self, rank, processes):
        found = {}
        for number, name in enumerate(NAMES):
            model, mine = Encoded(number), share(batch_of(CASES[number][2]), rank)
            with torch.no_grad():
                evaluated = model.eval()(**mine).item()
            found[name] = (
                gradients(DistributedDataParallel(model.train()), mine),
                evaluated,
            )
        for name in WITH_ENCODER:
            model, batch = of_model(name, self.source)
            rows = len(batch["input_ids"]) // PROCESSES
            mine = {key: x[rank * rows : (rank + 1) * rows] for key, x in batch.items()}
            found[name] = gradients(
                DistributedDataParallel(model),
                mine,
                steps=3 if name == "esimcse" else 1,
            )
        return found


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    return masked_lm_folder(tmp_path_factory.mktemp("generator"), tokenizer), tokenizer


@pytest.fixture(scope="module")
def shares(source, tmp_path_factory):
    return in_processes(Share(source), tmp_path_factory.mktemp("processes"), PROCESSES)


def assert_mean(found, whole):
    for step, (loss, expected) in enumerate(whole):
        assert sum(steps[step][0] for steps in found) / PROCESSES == pytest.approx(
            loss, rel=1e-9, abs=1e-12
        )
        for steps in found:  # DistributedDataParallel takes the mean over the processes
            torch.testing.assert_close(steps[step][1], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_two_processes_have_the_loss_and_gradient_of_one(case, shares):
    model, batch = Encoded(case), batch_of(CASES[case][2])
    assert_mean(
        [of_rank[NAMES[case]][0] for of_rank in shares], gradients(model, batch)
    )
    for rank, of_rank in enumerate(
        shares
    ):  # in evaluation a process has its own rows only
        alone = Encoded(case).eval()(**share(batch, rank)).item()
        assert of_rank[NAMES[case]][1] == pytest.approx(alone, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", WITH_ENCODER)
def test_two_processes_equal_one_where_the_objective_runs_the_encoder(
    name, source, shares
):
    model, batch = of_model(name, source)
    assert_mean(
        [of_rank[name] for of_rank in shares],
        gradients(model, batch, steps=3 if name == "esimcse" else 1),
    )


@pytest.mark.parametrize(
    "case",
    [
        n
        for n, (*_, rows) in enumerate(CASES)
        if rows not in list(RELATIONS.values())[1:]
    ],
)
def test_half_precision_embeddings_are_compared_in_float32(case):
    model, batch = Encoded(case), batch_of(CASES[case][2])
    with torch.no_grad():
        batch["vectors"] = model.encoder(batch["vectors"]).bfloat16()
        model.encoder = nn.Identity()
        exact = model.eval()(**batch | {"vectors": batch["vectors"].double()})
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.float()(**batch)
    has_layers = any(
        True for _ in model.objective.parameters()
    )  # whose products are those of autocast
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.1 if has_layers else 1e-4)
