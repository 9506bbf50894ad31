"""Tests of checkpoints: plain transformers loads them, and a trained head is distinguished from a random one."""

import json
import logging
from functools import partial

import pytest
import torch
from conftest import flat, random_batch, tiny_config, with_masked_inputs
from encoding_helpers import perturb
from model_helpers import dense, unused
from safetensors.torch import load_file, save_file
from trainer_helpers import assert_close_weights, assert_same_weights, weights
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    DistilBertModel,
    MobileBertConfig,
    PreTrainedModel,
    RobertaModel,
)

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.kernels.packing import Packing
from simcse_hf.models.checkpoint import reload_model
from simcse_hf.publishing.card import CARD, write_card

# --- checkpoints for plain transformers ---------------------------------------------------------------------------


@pytest.mark.parametrize("family, name", [("bert", "BertForCL"), ("mpnet", "MPNetForCL"), ("albert", "AlbertForCL")])
def test_the_pooler_of_automodel_gives_the_same_embeddings(family, name, save_checkpoint):
    """Converters and servers read the architecture; this package recognises its models by the section `simcse`."""
    model = perturb(AutoModelForCL.from_config(tiny_config(family), unpadded=False).eval(), 0.01)
    directory = save_checkpoint(model)
    stock, info = AutoModel.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = random_batch(4)
    assert torch.equal(stock.eval()(**batch).pooler_output, model(**batch).sentence_embeddings)
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == [type(stock).__name__] and "auto_map" not in config
    assert type(model).__name__ == name
    assert type(AutoModelForCL.from_pretrained(directory)) is type(model), "one class an encoder"


@pytest.mark.parametrize("family", "bert roberta mpnet distilbert electra modernbert".split())
def test_the_masked_lm_head_of_the_stock_class_is_trained_and_saved_for_it(family, save_checkpoint):
    """The loss is that of the stock class, from its checkpoint and, after a step, from ours."""
    stock = AutoModelForMaskedLM.from_config(tiny_config(family, dropout=0.0))
    perturb(stock, 0.05)
    arguments = {"do_mlm": True, "mlm_weight": 0.3, "output_loading_info": True}
    model, info = AutoModelForCL.from_pretrained(save_checkpoint(stock, "stock"), **arguments)
    assert all("pooler" in key or "sentence_head" in key for key in info["missing_keys"]), info["missing_keys"]
    batch = with_masked_inputs(random_batch(8, 2))
    inputs = {"input_ids": batch["mlm_input_ids"], "attention_mask": batch["attention_mask"]}
    for _ in range(2):
        output = model(**batch)
        wanted = stock.eval()(**flat(inputs), labels=batch["mlm_targets"].flatten(0, 1)).loss.item()
        assert output.mlm_loss.item() == pytest.approx(wanted, rel=1e-6)
        assert output.loss.item() == pytest.approx(output.contrastive_loss.item() + 0.3 * wanted, rel=1e-6)
        packing = Packing.from_mask(batch["attention_mask"].flatten(0, 1))
        assert model(**batch, packing=packing).mlm_loss.item() == pytest.approx(wanted, rel=1e-6)
        output.loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        stock, info = AutoModelForMaskedLM.from_pretrained(save_checkpoint(model), output_loading_info=True)
        assert not info["missing_keys"] and all("pooler" in key for key in info["unexpected_keys"])
    again = AutoModelForCL.from_pretrained(save_checkpoint(model))
    assert again.settings.do_mlm and again(**batch).loss.item() == model(**batch).loss.item()


def test_a_float16_checkpoint_is_trained_in_float32(save_checkpoint):
    """Gradient scaling needs float32 weights, but transformers would keep the dtype of the checkpoint."""
    model = BertForCL(tiny_config(), do_mlm=True).half()
    loaded = BertForCL.from_pretrained(save_checkpoint(model))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(loaded.bert.pooler.dense.weight, model.bert.pooler.dense.weight.float())
    for name in ("dtype", "torch_dtype"):
        narrow = BertForCL.from_pretrained(save_checkpoint(model), **{name: torch.bfloat16})
        assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}


def test_saves_the_state_dict_that_is_passed(tmp_path):
    """The Trainer passes a gathered state dict, whose tensors need not be those of the model."""
    model = AutoModelForCL.from_config(tiny_config("distilbert"))
    given = {name: torch.full_like(tensor, 0.25) for name, tensor in model.state_dict().items()}
    names = set(given)
    model.save_pretrained(tmp_path, state_dict=given)
    loaded = AutoModelForCL.from_pretrained(tmp_path)
    assert all((tensor == 0.25).all() for tensor in loaded.state_dict().values())
    assert set(given) == names, "the caller's dict is its own"


@pytest.mark.skipif(
    not hasattr(PreTrainedModel, "should_save_on_this_rank"),
    reason="transformers writes in every process here",
)
def test_only_the_main_process_writes(tmp_path):
    AutoModelForCL.from_config(tiny_config("distilbert")).save_pretrained(tmp_path / "x", is_main_process=False)
    assert not list(tmp_path.rglob("*.safetensors"))


# --- which head ---------------------------------------------------------------------------------------------------


def write(directory, config, state_dict):
    """Write a checkpoint with exactly these keys."""
    config.save_pretrained(directory)
    torch.save(state_dict, directory / "pytorch_model.bin")


def reference_output(directory, cls=BertModel, family="bert"):
    """Write a checkpoint as the reference's training does: a prefixed encoder without pooler, and `mlp.dense.*`."""
    stock = cls(tiny_config(family))
    state = {f"{family}.{k}".replace(f"{family}.pooler.", "mlp."): v for k, v in stock.state_dict().items()}
    write(directory, stock.config, state)
    return stock.pooler.dense


def published(directory):
    """Write the layout of princeton-nlp/*-simcse-*: the encoder with its pooler, and the old key `position_ids`."""
    stock = BertModel(tiny_config())
    write(directory, stock.config, stock.state_dict() | {"embeddings.position_ids": torch.arange(40)[None]})
    return stock.pooler.dense


def stock(cls, family="bert"):
    def save(directory):
        model = cls(tiny_config(family))
        model.save_pretrained(directory)
        pooler = getattr(model.base_model, "pooler", None)
        return pooler and pooler.dense

    return save


def ours(family="bert", **settings):
    def save(directory):
        model = AutoModelForCL.from_config(tiny_config(family), **settings)
        model.save_pretrained(directory)
        return dense(model)

    return save


def with_other_layer(directory):
    """Write an encoder whose folder has a dense layer of some sentence-transformers model."""
    DistilBertModel(tiny_config("distilbert")).save_pretrained(directory)
    (directory / "2_Dense").mkdir()
    tensors = {"linear.weight": torch.zeros(32, 32), "linear.bias": torch.zeros(32)}
    save_file(tensors, directory / "2_Dense/model.safetensors")


STARTS = [  # what saves the start and returns its pooler, and the head that `auto` takes
    (stock(BertForMaskedLM), "fresh"),
    (stock(BertForPreTraining), "fresh"),  # its pooler is that of next sentence prediction
    (stock(BertForSequenceClassification), "fresh"),
    (stock(BertModel), "kept"),
    (published, "kept"),
    (ours(mlp_only_train=True), "kept"),
    (ours(pooler_type="cls_before_pooler"), "fresh"),
    (ours("distilbert"), "kept"),
    (with_other_layer, "fresh"),
    (reference_output, "kept"),
    (lambda folder: reference_output(folder, RobertaModel, "roberta"), "kept"),
]


@pytest.mark.parametrize("do_mlm", [False, True])
@pytest.mark.parametrize("save, expected", STARTS)
def test_auto_keeps_a_trained_head_and_keep_and_fresh_do_as_they_are_told(save, expected, do_mlm, tmp_path, caplog):
    pooler = save(tmp_path)
    load = partial(AutoModelForCL.from_pretrained, tmp_path, pooler_type="cls", do_mlm=do_mlm)
    with caplog.at_level(logging.INFO, "simcse_hf.models.checkpoint"):
        auto = load()
    assert f"{tmp_path}: the dense + tanh head is {expected}." in caplog.messages
    models = [(expected, auto), ("fresh", load(head="fresh"))]
    if pooler is not None:
        models.append(("kept", load(head="keep")))
    else:
        with pytest.raises(ValueError, match="head='keep'"):
            load(head="keep")
    for source, model in models:
        assert model.head_source == source
        if source == "fresh":
            assert dense(model).weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert (dense(model).bias == 0).all()
        else:
            assert torch.equal(dense(model).weight, pooler.weight) and torch.equal(dense(model).bias, pooler.bias)
    assert_close_weights(auto.base_model.state_dict(), load().base_model.state_dict(), but="pooler")


def sharded_bin(model, directory):
    """Write the weights as one shard of an old checkpoint."""
    shard, state = "pytorch_model-00001-of-00001.bin", model.state_dict()
    model.config.save_pretrained(directory)
    torch.save(state, directory / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(state, shard)}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def test_the_head_of_a_variant_or_of_shards_is_kept(tmp_path):
    ours, stock = BertForCL(tiny_config()), BertModel(tiny_config())
    ours.save_pretrained(tmp_path / "ours", variant="fp16")
    sharded_bin(stock, tmp_path / "stock")
    for start, found in (
        (ours, AutoModelForCL.from_pretrained(tmp_path / "ours", variant="fp16")),
        (stock, AutoModelForCL.from_pretrained(tmp_path / "stock")),
    ):
        assert found.head_source == "kept"
        assert torch.equal(dense(found).weight, start.base_model.pooler.dense.weight)


def test_the_unused_head_stays_frozen_when_loaded(save_checkpoint):
    directory = save_checkpoint(AutoModelForCL.from_config(tiny_config("distilbert")))
    model = AutoModelForCL.from_pretrained(directory, pooler_type="avg")
    model(**random_batch(4, 2)).loss.backward()
    assert not unused(model)


def test_old_names_of_weights_are_not_saved_again_so_that_a_checkpoint_can_be_resumed(tmp_path):
    """The weights of the reference's head are called mlp."""
    reference_output(tmp_path)
    model = AutoModelForCL.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "saved")
    assert load_file(tmp_path / "saved/model.safetensors").keys() <= model.state_dict().keys()
    wanted = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    reload_model(model, tmp_path / "saved")
    assert_same_weights(model.state_dict(), wanted)


def test_settings_take_precedence_over_keys_of_the_encoders_config(save_checkpoint):
    """The config.json of bert-base-chinese has a `pooler_type`, which is not ours."""
    config = tiny_config()
    config.pooler_type = "first_token_transform"
    model = AutoModelForCL.from_pretrained(save_checkpoint(BertModel(config)), pooler_type="avg")
    again = AutoModelForCL.from_pretrained(save_checkpoint(model, "again"))
    assert model.settings.pooler_type == again.settings.pooler_type == "avg"
    assert again.config.pooler_type == "first_token_transform"


def test_the_objective_starts_anew_with_another_number_of_encoders(save_checkpoint):
    model = BertForCL(tiny_config(), encoders=2)
    model.prepare_objective()
    again = AutoModelForCL.from_pretrained(save_checkpoint(model), encoders=1)
    again.prepare_objective()
    assert again.second_encoder is None


def test_a_mobilebert_pooler_without_layers_is_not_the_head():
    sizes = dict.fromkeys(("hidden_size", "embedding_size", "intra_bottleneck_size", "true_hidden_size"), 32)
    config = MobileBertConfig(classifier_activation=False, num_hidden_layers=1, vocab_size=31, **sizes)
    assert not AutoModelForCL.from_config(config).has_own_pooler


def test_the_card_beside_a_model_goes_with_it_unless_its_weights_have_changed(hub, saved, tmp_path):
    folder = saved()
    card = write_card(folder, repo_id="org/other", license="mit").read_text()
    model = AutoModelForCL.from_pretrained(folder)
    model.push_to_hub("org/name")
    pushed = hub.repositories["org/name"].files()[CARD].decode()
    assert pushed == card.replace("org/other", "org/name").replace("# other", "# name")
    for weight in model.parameters():
        weight.data += 1
    model.push_to_hub("org/changed")
    assert "license: mit" not in hub.repositories["org/changed"].files()[CARD].decode()
    model.save_pretrained(tmp_path / "changed")
    write_card(tmp_path / "changed", license="mit")
    model.push_to_hub("org/saved")
    assert 'SimCSE("org/saved")' in hub.repositories["org/saved"].files()[CARD].decode()
