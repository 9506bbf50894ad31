"""All pairs of objectives, in a sum and for two data sets of a run, with rows of even and of uneven width.

A pair trains, with the losses that its objectives have alone, and in two processes as in one, or it is refused before
the first step.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from conftest import MASK, random_batch
from datasets import Dataset
from objective_helpers import batch_of_templates, masked_lm_folder, model_of
from process_helpers import in_processes
from torch.nn.parallel import DistributedDataParallel
from trainer_helpers import TEMPLATES

from simcse_hf.data.token_ids import template_settings
from simcse_hf.objectives import OBJECTIVES, TrainingRows
from simcse_hf.objectives.base import named_losses

ROWS, PROCESSES = 8, 2
OPTIONS = {
    "barlow_twins": {"projector_dim": 8},
    "vicreg": {"projector_dim": 8},
    "contrastive_tension": {"negatives_per_positive": 3},
    "esimcse": {"queue_size": 12},
    "angle": {"positive_score": 3.0},
}
NAMES = sorted(name for name in OBJECTIVES if ":" not in name)
PAIRS = list(itertools.combinations(NAMES, 2))
WIDTHS = ("even", "uneven")
#: Objectives that read single sentences, and those of them that also read uneven numbers of hard negatives.
OF_SENTENCES = {"simcse", "esimcse", "promptbert", "diffcse", "distill"}
OF_SENTENCES |= {"barlow_twins", "vicreg", "contrastive_tension", "is_bert"}
OF_UNEVEN = {"simcse", "esimcse", "promptbert", "diffcse", "distill"}


def settings_of(names, source, has_templates=False):
    """What a model of some objectives is made with."""
    folder, tokenizer = source
    options = {}
    for name in names:
        options |= OPTIONS.get(name, {}) | ({"generator": folder} if name == "diffcse" else {})
    if has_templates or "promptbert" in names:
        return options, {
            "pooler_type": "mask",
            "templates": TEMPLATES,
            **template_settings(TEMPLATES, tokenizer),
        }
    return options, {"pooler_type": "avg"}


def batch_of(name, width, source, has_templates):
    """A batch of the rows that an objective reads, with everything that some objective reads beside them."""
    kind, columns = OBJECTIVES[name].rows, 2
    is_uneven = width == "uneven" and (name in OF_UNEVEN or kind in ("nli", "classes"))
    if kind == "nli" or is_uneven:
        columns = 3
    batch = random_batch(ROWS, columns)
    if has_templates:
        words = [
            "cat",
            "a big dog ran",
            "bird",
            "old man",
            "red house",
            "woman sang",
            "tree",
            "a mat",
        ]
        batch = batch_of_templates(
            source[1],
            {f"sent{i}": words[i:] + words[:i] for i in range(columns)},
            TEMPLATES,
        )
    if columns == 3:
        batch["relations"] = torch.tensor([[0, 2]] * ROWS)
        if is_uneven:  # in the first process no row has a hard negative, in the second some have
            batch["relations"][: ROWS - 2, 1] = -100
            batch["attention_mask"][: ROWS - 2, 2] = 0
            batch["input_ids"][: ROWS - 2, 2] = 1
    elif kind == "texts" and not has_templates:  # two views of a sentence
        batch = {key: x[:, :1].repeat(1, 2, 1) for key, x in batch.items()}
    batch["text_ids"] = torch.arange(ROWS * columns).view(ROWS, columns)
    batch["scores"] = torch.tensor([0.0, 4.0, 2.0, 5.0] * 2)
    if kind == "classes" and columns == 2:
        batch["labels"] = torch.tensor([0, 1, 0, 1] * 2)
    generator = torch.Generator().manual_seed(1)
    batch["teacher"] = torch.randn(ROWS, columns, 4, generator=generator).double()
    return batch


def rows_of(batch, name):
    """What `check` gets for the rows of a batch."""
    sentences = batch["input_ids"].shape[1]
    is_single = OBJECTIVES[name].rows == "texts" and sentences == 2
    ids = [[text[text != 1].tolist() for text in row] for row in batch["input_ids"]]
    columns = {"input_ids": [row[: 1 if is_single else sentences] for row in ids]}
    if "relations" in batch:
        columns["relations"] = [[x for x in row if x != -100] for row in batch["relations"].tolist()]
        columns["input_ids"] = [[text for text in row if text] for row in ids]
    for column in ("score", "label"):
        if f"{column}s" in batch:
            columns[column] = batch[f"{column}s"].tolist()
    return TrainingRows(1 if is_single else sentences, ROWS, columns, Dataset.from_dict(columns))


class Source(tuple):
    """The folder of a generator, and a tokenizer; a key of the caches below."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    return Source((masked_lm_folder(tmp_path_factory.mktemp("generator"), tokenizer), tokenizer))


@functools.cache
def alone(name, width, source, has_templates):
    """The named losses of an objective alone on its batch, and its state before."""
    options, settings = settings_of((name,), source, has_templates)
    model = model_of(name, options, **settings)
    state = {key: x.clone() for key, x in model.objective.state_dict().items()}
    output = in_training(model, batch_of(name, width, source, has_templates))
    return {key: x.detach() for key, x in named_losses(output.parts or output.loss).items()}, state


def in_training(model, batch):
    """What a model returns in a step, with the masks that DiffCSE draws from a seed."""
    torch.manual_seed(0)
    return model(**batch)


def step(model, batch, optimizer):
    """Take a step; every weight that is to be trained has a part in it."""
    output = in_training(model, batch)
    assert torch.isfinite(output.loss)
    optimizer.zero_grad()
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    optimizer.step()
    return output


def optimizer_of(model):
    return torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=1e-3,
    )


# --- sums ---


def sum_of(pair, width, source, **more):
    """The model of a sum and its batch; a pair that is refused raises a `ValueError`."""
    options, settings = settings_of(pair, source)
    model = model_of("+".join(pair), options | more, **settings)
    reader = next((name for name in pair if name in OF_UNEVEN), pair[0])
    batch = batch_of(reader, width, source, "promptbert" in pair)
    model.objective.check(rows_of(batch, reader))
    return model, batch


def trains(pair, width):
    """Whether a sum of two objectives can learn from rows of this width."""
    if pair == ("softmax", "supcon"):
        return True
    if width == "even":
        return pair == ("angle", "cosent") or OF_SENTENCES.issuperset(pair)
    return OF_UNEVEN.issuperset(pair)


CASES = [(pair, width) for width in WIDTHS for pair in PAIRS if trains(pair, width)]
REFUSED = [(pair, "even") for pair in PAIRS if not trains(pair, "even")]
REFUSED += [(pair, "uneven") for pair in PAIRS if not trains(pair, "uneven") and not OF_UNEVEN.isdisjoint(pair)]


REASONS = [
    "other training rows or columns",
    "rows with relations",
    "two views",
    "single ones",
    "takes its negatives",
]


def ids_of(cases):
    return ["-".join((*pair, width)) for pair, width in cases]


@pytest.mark.parametrize("pair, width", REFUSED, ids=ids_of(REFUSED))
def test_a_sum_that_cannot_learn_from_the_rows_is_refused_with_the_reason(pair, width, source):
    with pytest.raises(ValueError, match="|".join(REASONS)):
        sum_of(pair, width, source)


def with_states_of_parts(model, pair, width, source, parts):
    """Give the objectives of a model the weights that they have alone, and return their losses alone."""
    losses = {}
    for name, part in zip(pair, parts, strict=True):
        losses[name], state = alone(name, width, source, "promptbert" in pair)
        part.load_state_dict(state)
    return losses


@pytest.mark.parametrize("pair, width", CASES, ids=ids_of(CASES))
def test_a_sum_has_the_losses_of_its_parts_and_trains(pair, width, source):
    model, batch = sum_of(pair, width, source)
    expected = with_states_of_parts(model, pair, width, source, model.objective.objectives)
    optimizer = optimizer_of(model)
    output = step(model, batch, optimizer)
    parts = {f"{name}_{what}": x for name, losses in expected.items() for what, x in losses.items()}
    torch.testing.assert_close(output.parts, parts)
    step(model, batch, optimizer)


def test_a_sum_of_an_objective_that_reads_states_uses_the_second_encoder_of_another(
    source,
):
    model, batch = sum_of(("is_bert", "simcse"), "even", source, encoders=2)
    with torch.no_grad():
        for parameter in model.second_encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    vectors = model(**batch).sentence_embeddings
    texts = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
    for column, encoder in enumerate((model, model.second_encoder)):
        torch.testing.assert_close(vectors[:, column], encoder.embed(**texts).view(ROWS, 2, -1)[:, column])
    step(model, batch, optimizer_of(model))


# --- two processes ---


def share_of(batch, rank, processes):
    """The rows of a process, with the columns that these fill."""
    rows = len(batch["input_ids"]) // processes
    mine = {name: values[rank * rows : (rank + 1) * rows] for name, values in batch.items()}
    columns = int(mine["attention_mask"].any(-1).sum(1).max())
    for name in ("input_ids", "attention_mask", "text_ids", "teacher"):
        mine[name] = mine[name][:, :columns]
    if "relations" in mine:
        mine["relations"] = mine["relations"][:, : columns - 1]
    return mine


def gradients(model):
    named = model.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def mask_words(ids, special_tokens_mask):
    return torch.where(ids > MASK, MASK, ids), ids


def mask_every_word(model):
    """Let DiffCSE mask every word, so that nothing is drawn."""
    for part in model.objective.objectives:
        if part.name == "diffcse":
            part._masker.torch_mask_tokens = mask_words


class Share:
    """The gradients of all sums for rows of a width in one of two processes, which has half of the rows."""

    def __init__(self, source, width):
        self.source = source
        self.width = width

    def __call__(self, rank, processes):
        found = {}
        for pair, width in CASES:
            if width == self.width:
                model, batch = sum_of(pair, width, self.source)
                mask_every_word(model)
                wrapped = DistributedDataParallel(model)
                in_training(wrapped, share_of(batch, rank, processes)).loss.backward()
                found[pair] = gradients(model)
        return found


@pytest.fixture(scope="module")
def shares_of(source, tmp_path_factory):
    """`shares_of(width)` gives the gradients of each of two processes, which run once for each width."""

    @functools.cache
    def shares(width):
        folder = tmp_path_factory.mktemp(width)
        return in_processes(Share(tuple(source), width), folder, PROCESSES)

    return shares


def slow_for_even_rows(cases):
    found = []
    for pair, width in cases:
        marks = [pytest.mark.slow] if width == "even" else []
        found.append(pytest.param(pair, width, marks=marks, id="-".join((*pair, width))))
    return found


@pytest.mark.parametrize("pair, width", slow_for_even_rows(CASES))
def test_two_processes_have_the_gradient_of_one_with_the_whole_batch(pair, width, source, shares_of):
    """DistributedDataParallel takes the mean over the processes."""
    model, batch = sum_of(pair, width, source)
    mask_every_word(model)
    in_training(model, batch).loss.backward()
    for share in shares_of(width):
        torch.testing.assert_close(share[pair], gradients(model), rtol=1e-6, atol=1e-9)


# --- two data sets of a run ---


def mixture_of(pair, source):
    """A model that learns from a data set with each of two objectives, and a batch of each of them."""
    tables = {}
    for name in pair:
        options, settings = settings_of((name,), source, "promptbert" in pair)
        tables[name] = {"objective": name, "objective_options": options}
    model = model_of("simcse", dataset_objectives=tables, **settings)
    batches = []
    for number, name in enumerate(pair):
        batch = batch_of(name, "uneven", source, "promptbert" in pair)
        model.objective.of_dataset(number).check(rows_of(batch, name))
        batches.append(batch | {"dataset": np.full(ROWS, number)})
    return model, batches


def needs(name):
    return OBJECTIVES[name].encoders, OBJECTIVES[name].reconstructs


UNFIT = [pair for pair in PAIRS if needs(pair[0]) != needs(pair[1])]


@pytest.mark.parametrize("pair", UNFIT, ids=map("-".join, UNFIT))
def test_objectives_that_need_other_encoders_or_columns_are_refused_for_two_data_sets(pair, source):
    message = "other numbers of encoders or other columns: train them one by one"
    with pytest.raises(ValueError, match=message):
        mixture_of(pair, source)


MIXTURES = [pair for pair in PAIRS if needs(pair[0]) == needs(pair[1])]


@pytest.mark.parametrize("pair", MIXTURES, ids=map("-".join, MIXTURES))
def test_two_data_sets_have_the_losses_of_their_objectives_alone_and_train(pair, source):
    model, batches = mixture_of(pair, source)
    parts = [model.objective.of_dataset(number) for number in range(2)]
    alone = with_states_of_parts(model, pair, "uneven", source, parts)
    optimizer = optimizer_of(model)
    for name, batch in zip(pair, batches, strict=True):
        expected = {f"{name}_{part}": loss for part, loss in alone[name].items()}
        torch.testing.assert_close(in_training(model, batch).parts, expected)
    for batch in batches:
        step(model, batch, optimizer)
