"""Tests of the models: encoder passes per step, dropout views, and the losses of the paper."""

import copy

import pytest
import torch
from conftest import FAMILIES, random_batch, tiny_config, with_masked_inputs
from model_helpers import dense, freeze_like_peft, unused
from torch.nn.functional import normalize
from transformers import AutoConfig, BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.names import POOLER_TYPES
from simcse_hf.objectives import InfoNCE

#: Two views of each of four sentences.
VIEWS = {name: x.repeat_interleave(2, dim=1) for name, x in random_batch(4, 1).items()}

# --- one step -----------------------------------------------------------------------------------------------------


def test_update_settings_changes_objective_and_config_of_this_model_alone():
    config = tiny_config()
    model = BertForCL(config).eval()
    batch = random_batch(4, 2)
    before = model(**batch).loss.item()
    model.update_settings(temperature=0.5)
    assert model(**batch).loss.item() != pytest.approx(before)
    objective = model.objective
    model.update_settings(max_seq_length=20, mlm_weight=0.2)
    assert model.objective is objective
    for refused, words in (({"pooler_type": "avg"}, "pooler_type"), ({"temperature": -1.0}, "temperature")):
        with pytest.raises(ValueError, match=words):
            model.update_settings(**refused)
    other = BertForCL(config)
    temperatures = [each.config.simcse["training"]["objective_options"]["temperature"] for each in (model, other)]
    assert temperatures == [0.5, 0.05], "two models of one config share no settings"


# --- dropout is the method ----------------------------------------------------------------------------------------


def test_fixed_mask_encodes_two_views_with_the_same_dropout_mask():
    model = BertForCL(tiny_config(), fixed_mask=True)
    state = torch.get_rng_state()
    output = model(**VIEWS)
    torch.set_rng_state(state)
    alone = model.embed(VIEWS["input_ids"][:, 0], VIEWS["attention_mask"][:, 0])
    assert torch.equal(output.sentence_embeddings, alone[:, None].expand(-1, 2, -1))
    torch.testing.assert_close(output.loss, InfoNCE()(output.sentence_embeddings))


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])  # deberta-v2 drops attention weights by a module
def test_views_differ_by_the_dropout_of_states_or_of_attention_weights(family):
    for states, attention in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.1)):
        rates = {"hidden_dropout_prob": states, "attention_probs_dropout_prob": attention}
        model = AutoModelForCL.from_config(tiny_config(family, **rates))
        assert model.views_are_equal(**VIEWS) == (states == attention == 0)
        assert model.views_are_equal(**VIEWS, only_attention_dropout=True) == (attention == 0)


# --- the head -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_mlp_only_train_uses_the_head_in_training_only(family):
    config = tiny_config(family, dropout=0.0)
    model = AutoModelForCL.from_config(config, pooler_type="cls", mlp_only_train=True, unpadded=False)
    batch = random_batch(4)
    before_pooler = model.base_model(**batch).last_hidden_state[:, 0]
    with_head = torch.tanh(before_pooler @ dense(model).weight.T + dense(model).bias)
    torch.testing.assert_close(model.train()(**batch).sentence_embeddings, with_head)
    assert torch.equal(model.eval()(**batch).sentence_embeddings, before_pooler)


@pytest.mark.parametrize(
    "family, pooler_type, do_mlm",
    [
        *[(family, "cls", True) for family in FAMILIES],
        *[("bert", pooler_type, False) for pooler_type in POOLER_TYPES],
        ("distilbert", "avg", False),
    ],
)
def test_every_trainable_parameter_gets_a_gradient(family, pooler_type, do_mlm):
    """DistributedDataParallel then does not have to search for unused parameters."""
    model = AutoModelForCL.from_config(tiny_config(family), pooler_type=pooler_type, do_mlm=do_mlm)
    batch = random_batch(4, 2)
    model(**with_masked_inputs(batch) if do_mlm else batch).loss.backward()
    assert not unused(model)
    assert dense(model).weight.requires_grad == (pooler_type == "cls")


@pytest.mark.parametrize(
    "family, options",
    [
        ("longformer", {"attention_window": 4}),
        ("luke", {"entity_vocab_size": 5, "entity_emb_size": 8}),
        ("big_bird", {"attention_type": "original_full"}),
    ],
)
def test_parameters_that_text_inputs_do_not_use_are_frozen(family, options):
    """DistributedDataParallel fails on unused parameters, such as Longformer's global attention or LUKE's entities."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 32)
    sizes |= {"vocab_size": 31, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 1}
    model = AutoModelForCL.from_config(AutoConfig.for_model(family, **sizes, **options)).train()
    model(**random_batch(4, 2)).loss.backward()
    assert not unused(model)
    assert not [name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None]


def test_a_projection_to_a_larger_size_leaves_the_cosines_as_they_are():
    model = BertForCL(tiny_config(), pooler_type="avg").eval()
    batch = random_batch(6)
    cosines = []
    for size in (32, 64):
        if size != model.embedding_dim:
            model.add_projection(size)
        embeddings = normalize(model(**batch).sentence_embeddings)
        assert embeddings.shape[1] == size
        cosines.append(embeddings @ embeddings.T)
    torch.testing.assert_close(*cosines)


# --- adapters -----------------------------------------------------------------------------------------------------


def test_a_head_that_is_trained_kept_or_not_used_may_be_combined_with_adapters(save_checkpoint):
    directory = save_checkpoint(BertForMaskedLM(tiny_config()))
    freeze_like_peft(AutoModelForCL.from_pretrained(directory), "pooler")(**random_batch(4, 2)).loss.backward()
    kept = save_checkpoint(BertForCL(tiny_config()), "ours")
    freeze_like_peft(AutoModelForCL.from_pretrained(kept))(**random_batch(4, 2)).loss.backward()
    for without_head in ({"pooler_type": "avg"}, {"mlp_only_train": True}):
        freeze_like_peft(AutoModelForCL.from_pretrained(directory, **without_head))(**random_batch(4, 2))


# --- masked-LM auxiliary loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_a_copy_shares_no_weights_with_the_original(family):
    """The masked-LM head of the copy uses the copy's modules, not those of the original."""
    model = AutoModelForCL.from_config(tiny_config(family), do_mlm=True).eval()
    batch = with_masked_inputs(random_batch(4, 2))
    before = model(**batch).mlm_loss.item()
    twin = copy.deepcopy(model)
    twin(**batch).mlm_loss.backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert model(**batch).mlm_loss.item() == before and all(p.grad is None for p in model.parameters())
    assert twin(**batch).mlm_loss.item() < before


def test_tokens_can_be_added_with_do_mlm():
    model = BertForCL(tiny_config(), do_mlm=True)
    model.resize_token_embeddings(40)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    batch = with_masked_inputs(random_batch(3, 2))
    batch["mlm_targets"][batch["mlm_targets"] != -100] = 39
    model(**batch).loss.backward()


# --- inputs that are refused --------------------------------------------------------------------------------------


def test_the_empty_values_that_peft_passes_change_nothing():
    model, batch = BertForCL(tiny_config()).eval(), random_batch(4)
    empty = {"inputs_embeds": None, "output_hidden_states": False, "return_dict": True}
    assert torch.equal(model(**batch, **empty).sentence_embeddings, model(**batch).sentence_embeddings)


def test_what_the_caller_has_frozen_is_frozen_in_the_second_encoder():
    model = BertForCL(tiny_config(), pooler_type="avg", encoders=2)
    model.get_input_embeddings().requires_grad_(False)
    model.prepare_objective()
    own = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    second = {name: parameter.requires_grad for name, parameter in model.second_encoder.named_parameters()}
    assert second == {name: own[name] for name in second} and not all(second.values())


@pytest.mark.parametrize("mask", [[1, 1, 0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 0, 0]])
def test_a_window_counts_the_places_of_a_text_with_holes_in_its_mask(mask):
    config = tiny_config("modernbert", local_attention=4, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, pooler_type="avg").eval()
    ids = random_batch(1, length=8)["input_ids"]
    packed = model.embed(ids, torch.tensor([mask]))
    model.unpadded = False
    torch.testing.assert_close(packed, model.embed(ids, torch.tensor([mask])))
