"""Sums of objectives: `simcse+barlow_twins:0.1`."""

import pickle

import pytest
import torch
from conftest import tiny_config

from simcse_hf.models.auto import AutoModelForCL
from simcse_hf.objectives import EncodedBatch, build_objective, find_objective

NAME = "simcse+barlow_twins:0.1"


def batch(rows=6, dim=5):
    embeddings = torch.randn(rows, 2, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return EncodedBatch(embeddings.requires_grad_())


def test_a_sum_is_the_weighted_losses_of_its_parts_and_so_is_its_gradient():
    data, options = batch(), {"simcse.temperature": 0.2, "projector_dim": 7}
    total = build_objective(NAME, 5, options).double()
    parts = total(data)
    simcse = build_objective("simcse", 5, {"temperature": 0.2})
    expected = simcse(data), 0.1 * total.parts["barlow_twins"](data)
    for value, reference in zip(parts.values(), expected, strict=True):
        torch.testing.assert_close(value, reference)
    assert list(parts) == ["simcse_loss", "barlow_twins_loss"]
    gradients = [torch.autograd.grad(x, data.embeddings)[0] for x in (sum(parts.values()), sum(expected))]
    torch.testing.assert_close(*gradients)


def test_an_option_goes_to_every_part_that_has_it_and_a_prefix_chooses_one():
    total = build_objective("barlow_twins+vicreg", 4, {"projector_dim": 6})
    widths = {name: part.projector[0].out_features for name, part in total.parts.items()}
    assert widths == {"barlow_twins": 6, "vicreg": 6}
    total = build_objective("barlow_twins+vicreg", 4, {"projector_dim": 6, "vicreg.projector_dim": 8})
    assert total.parts["vicreg"].projector[0].out_features == 8
    assert build_objective("simcse+vicreg", 4, {"temperature": 0.3}).parts["simcse"].info_nce.temperature == 0.3


def test_what_a_sum_says_of_itself_follows_from_its_parts():
    total = build_objective("simcse+esimcse:0.5", 4)
    assert total.supports_gradcache is False and total.view == ("identity", None) and total.rows == "texts"
    assert build_objective("esimcse+simcse", 4).view == ("repeat_words", None)
    assert build_objective("is_bert:2+simcse", 4).num_views == 2
    assert build_objective("contrastive_tension+simcse", 4).encoders == 2
    total = build_objective("simcse+barlow_twins:0.1", 4, {"simcse.mask_duplicates": True, "projector_dim": 4})
    assert total.needs_text_ids and total.supports_gradcache and total.name == "simcse+barlow_twins:0.1"
    assert total.papers[:2] == ("simcse", "barlow_twins") and "(weight 0.1)" in total.summary
    assert total.defaults == {}
    assert build_objective("angle+cosent", 4).defaults == build_objective("angle", 4).defaults


def test_a_model_with_a_sum_can_be_pickled():
    model = AutoModelForCL.from_config(tiny_config(), objective="simcse+distill")
    before = model.prepare_objective()
    after = pickle.loads(pickle.dumps(model)).objective
    assert type(after) is type(before) and after.name == "simcse+distill"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simcse+nothing", "objective must be one of simcse, .*or a sum such as simcse"),
        ("simcse+", "objective must be one of simcse"),
        ("simcse:0", "the weight of simcse must be above 0, got '0'"),
        ("simcse+vicreg:much", "objective must be one of simcse, .*got 'vicreg:much'"),
        ("simcse+simcse:2", "names simcse twice"),
        ("simcse+cosent", "cosent reads other training rows or columns"),
        ("simcse+tsdae", "tsdae reads other training rows or columns"),
    ],
)
def test_sums_that_cannot_be_formed_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 4)


def test_an_unknown_option_of_a_part_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(ValueError, match=r"no option simcse.projector_dim; its options are: .*vicreg.projector_dim"):
        build_objective("simcse+vicreg", 4, {"simcse.projector_dim": 3})
    assert find_objective("mine") is None


def test_a_checkpoint_of_a_sum_continues_with_the_weights_of_its_parts(tmp_path):
    settings = {"objective": NAME, "objective_options": {"barlow_twins.projector_dim": 7}}
    model = AutoModelForCL.from_config(tiny_config(), **settings)
    before = model.prepare_objective().state_dict()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCL.from_pretrained(tmp_path)
    after = loaded.prepare_objective().state_dict()
    assert loaded.settings.objective == NAME and before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0)


def test_matryoshka_applies_to_every_part():
    settings = {"objective": NAME, "objective_options": {"projector_dim": 7}, "matryoshka_dims": [4]}
    model = AutoModelForCL.from_config(tiny_config(), **settings)
    parts = model.prepare_objective()(EncodedBatch(torch.randn(4, 2, model.embedding_dim)))
    width = model.embedding_dim
    assert set(parts) == {f"{part}_loss_{dim}" for part in ("simcse", "barlow_twins") for dim in (width, 4)}
