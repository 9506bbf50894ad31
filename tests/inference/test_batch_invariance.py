"""Batch-invariant encoding: a text has the same bits whatever else is encoded with it."""

import random

import numpy as np
import pytest
import torch
from conftest import FAMILIES, WORDS, tiny_config

from simcse_hf.cli.encode import encode_main
from simcse_hf.inference.shards import read_shards
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.models.auto import contrastive_class
from simcse_hf.ops.invariance import BatchInvariant, in_tiles, is_batch_invariant, padded_width
from simcse_hf.postprocessing import fit_flow, fit_whitening

LENGTHS = (1, 2, 3, 6, 9, 14, 20, 30, 36)


def make_texts(count, seed=0):
    rng = random.Random(seed)
    words = [word for word in WORDS.split() if word.isalpha()]
    return [" ".join(rng.choices(words, k=rng.choice(LENGTHS))) for _ in range(count)]


def load(save_checkpoint, family="bert", pooler="avg", **changes):
    config = tiny_config(family, hidden_size=48, **changes)
    model = contrastive_class(type(config))(config, pooler_type=pooler)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return SimCSE(save_checkpoint(model), device="cpu")


def differing_rows(model, texts, batchings, seed=0):
    """Encode random lists of the texts with random budgets, and count the rows that differ from the text alone."""
    rng = random.Random(seed)
    alone = torch.stack([model.encode(text, batch_invariant=True) for text in texts])
    count = 0
    for _ in range(batchings):
        chosen = rng.choices(range(len(texts)), k=rng.choice((2, 5, 20)))
        budget = rng.choice((100, 1000, 4096))
        embeddings = model.encode([texts[i] for i in chosen], batch_invariant=True, token_budget=budget)
        count += int((embeddings != alone[chosen]).any(1).sum())
    return count


@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_depends_on_the_batch_for_any_family(save_checkpoint, family):
    assert differing_rows(load(save_checkpoint, family), make_texts(12), 4) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_may_be_as_long_as_the_encoder_allows(save_checkpoint, family):
    """The encoder has 40 positions. Texts of 33 to 40 tokens are rounded up to 48, which is more than it has."""
    model = load(save_checkpoint, family)
    assert model.encode([" ".join(["cat"] * 60), "a cat"], batch_invariant=True).isfinite().all()


@pytest.mark.parametrize("pooler", ["cls", "avg", "max", "avg_first_last"])
def test_no_bit_depends_on_the_batch_for_any_pooler(save_checkpoint, pooler):
    assert differing_rows(load(save_checkpoint, pooler=pooler), make_texts(12), 4) == 0


def test_no_bit_depends_on_the_batch_in_bfloat16(save_checkpoint):
    model = load(save_checkpoint)
    model.model.to(torch.bfloat16)
    assert differing_rows(model, make_texts(12), 4) == 0


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_no_bit_depends_on_the_batch_after_a_transform(save_checkpoint, method):
    model = load(save_checkpoint)
    raw = torch.randn(200, model.dim)
    model.postprocessing = fit_whitening([raw], 16) if method == "whitening" else fit_flow(raw, blocks=1, epochs=1)[0]
    assert differing_rows(model, make_texts(12), 4) == 0


def test_texts_on_both_sides_of_the_change_of_kernels_keep_their_bits(save_checkpoint):
    model = load(save_checkpoint, max_position_embeddings=160)
    model.max_length = 150
    texts = [" ".join(["cat"] * length) for length in (3, 50, 61, 62, 63, 64, 90, 140)]
    assert differing_rows(model, texts, 4) == 0


def test_embeddings_equal_those_of_ordinary_encoding_up_to_rounding(save_checkpoint):
    model, texts = load(save_checkpoint), make_texts(30)
    torch.testing.assert_close(model.encode(texts, batch_invariant=True), model.encode(texts), rtol=0, atol=1e-5)
    assert not is_batch_invariant()


def test_a_file_and_single_texts_get_the_same_bits_by_the_command(save_checkpoint, tmp_path):
    model, texts = load(save_checkpoint), make_texts(20)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    options = ["--input", str(tmp_path / "texts.txt"), "--shard_size", "7", "--batch_invariant", "--quiet"]
    assert encode_main(["--model", model.name_or_path, *options, "--output", str(tmp_path / "out")]) == 0
    model.batch_invariant = True
    assert (np.concatenate(list(read_shards(tmp_path / "out"))) == np.stack([model.encode(t) for t in texts])).all()


def test_linear_layers_whose_bits_depend_on_the_rows_are_computed_in_tiles(monkeypatch):
    monkeypatch.setattr("simcse_hf.ops.invariance._ignores_other_rows", lambda *shape: False)
    layer, x = torch.nn.Linear(24, 40), torch.randn(3, 100, 24)
    with torch.no_grad(), BatchInvariant():
        whole, alone = layer(x), torch.stack([layer(row) for row in x.flatten(0, 1)]).view(3, 100, 40)
    assert torch.equal(whole, alone)
    torch.testing.assert_close(whole, layer(x).detach())


def test_a_tile_has_the_same_number_of_rows_however_many_there_are():
    sizes = []
    for count in (1, 127, 128, 129, 400):
        rows = torch.arange(count, dtype=torch.float32)[:, None]
        assert torch.equal(in_tiles(lambda tile: (sizes.append(len(tile)), 2 * tile)[1], rows), 2 * rows)
    assert set(sizes) == {128}


def test_the_padded_width_depends_on_the_length_alone_and_is_never_smaller():
    widths = [padded_width(length) for length in range(1, 2000)]
    assert all(width >= length for length, width in enumerate(widths, 1)) and widths == sorted(widths)
    assert padded_width(64) == 64, "attention changes its kernel above 64 tokens"
