"""Runs that train an adapter of peft: what is saved loads everywhere, and a resumed run is an uninterrupted one."""

from functools import cache

import numpy as np
import pytest
import torch
from conftest import (
    LEAVES_OUT_MODULES,
    NEEDS_PEFT,
    OLD_TRANSFORMERS,
    read_json,
    save_with_tokenizer,
    tiny_config,
    tiny_tokenizer,
)
from evaluation_helpers import write
from model_helpers import edit_json
from objective_helpers import assert_opens_in_transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from trainer_helpers import SAVES, make, model_of, pairs, refuses, sentences, texts
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.cli.main import main

pytestmark = NEEDS_PEFT
TEXTS = ["the cat sat on the mat .", "a dog ran", "the big red house"]
TOKENIZER = tiny_tokenizer()
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """`start(family, pooler)` is the folder of an encoder with its tokenizer, which is only read."""

    @cache
    def save(family="bert", pooler="cls"):
        return save_with_tokenizer(model_of(family, pooler_type=pooler), tmp_path_factory.mktemp(family) / "start")

    return save


def trainer_of(model, folder, settings=None, **changes):
    torch.manual_seed(1)
    if not isinstance(model, torch.nn.Module):
        model = AutoModelForCL.from_pretrained(model, head="fresh", **(settings or {}))
    options = SAVES | {"max_steps": 6, "save_steps": 3, "learning_rate": 1e-2, "lora_r": 4} | changes
    return make(folder, TOKENIZER, texts(48, 2), model, dev_set=pairs(), output_dir=str(folder), **options)


def vectors(model):
    return model.encode(TEXTS, normalize_embeddings=False).numpy()


def embeddings_of(trainer):
    """The embeddings of the model in memory, with its adapter unmerged."""
    batch = trainer.processing_class(TEXTS, return_tensors="pt", padding=True)
    model = trainer.model.eval()
    with torch.no_grad():
        return model.embed(batch["input_ids"], batch["attention_mask"]).numpy()


def assert_same_vectors(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-6)


# --- what is saved ---


@pytest.mark.parametrize(
    "family, pooler, save_adapter",
    [
        ("bert", "cls", False),
        ("bert", "cls", True),
        ("distilbert", "cls", True),
        ("distilbert", "cls", False),
        ("roberta", "avg", True),
        ("llama", "lasttoken", True),
    ],
)
def test_an_adapter_and_the_head_are_trained_and_what_is_saved_loads_everywhere(
    family, pooler, save_adapter, start, tmp_path
):
    folder = tmp_path / "run"
    trainer = trainer_of(start(family, pooler), folder, save_adapter=save_adapter)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    trainer.save_model()
    # 1. The adapter and the head have changed, and no other weight.
    heads = ("sentence_head", f"{family}.pooler") if pooler == "cls" else ()
    trained = {name for name in before if "lora_" in name or name.startswith(heads)}
    assert {name for name, x in trainer.model.named_parameters() if not torch.equal(x, before[name])} == trained
    # 2. The files are those of the adapter, or of the merged model.
    assert [(folder / name).exists() for name in WEIGHTS] == [save_adapter, not save_adapter]
    # 3. The model and a checkpoint have the vectors of the model in memory, here and elsewhere.
    expected = embeddings_of(trainer)
    for path in (folder, folder / "checkpoint-6"):
        assert_same_vectors(vectors(SimCSE(path, device="cpu")), expected)
        if save_adapter and OLD_TRANSFORMERS:
            continue  # which leaves out the weights of adapters
        assert_same_vectors(SentenceTransformer(str(path), device="cpu").encode(TEXTS), expected)
        if save_adapter and pooler == "cls" and LEAVES_OUT_MODULES:
            continue
        assert_opens_in_transformers(path)


# --- commands ---

LORA = '{"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.1}'


def test_a_command_trains_the_layers_that_are_named_and_another_one_reads_the_adapter(start, tmp_path):
    write(tmp_path / "texts.txt", sentences(64))
    files = f"--model {start()} --train_file {tmp_path}/texts.txt --output_dir {tmp_path}/run"
    steps = "--max_steps 2 --use_cpu --per_device_train_batch_size 16 --save_adapter"
    assert main(["train", "unsup", *files.split(), *steps.split(), "--lora", LORA]) == 0
    results = read_json(tmp_path / "run" / "results.json")
    assert results["arguments"]["lora"]["r"] == 2
    config = read_json(tmp_path / "run" / "adapter_config.json")
    assert set(config["target_modules"]) == {"query", "value"}
    words = f"encode --model {tmp_path}/run --input {tmp_path}/texts.txt --output {tmp_path}/vectors"
    assert main(words.split()) == 0


# --- models of peft's users ---


def test_a_model_that_peft_prepared_is_trained_and_saved_with_the_weights_of_its_encoder(start, tmp_path):
    config = LoraConfig(r=4, target_modules=["query", "dense"], modules_to_save=["pooler"])
    given = get_peft_model(AutoModelForCL.from_pretrained(start()), config)
    trainer = trainer_of(given, tmp_path, lora_r=None, max_steps=3)
    trainer.train()
    trainer.save_model()
    names = load_file(tmp_path / "model.safetensors").keys()
    assert names == load_file(start() / "model.safetensors").keys()
    assert_same_vectors(vectors(SimCSE(tmp_path, device="cpu")), embeddings_of(trainer))


@pytest.mark.parametrize(
    "auto_class, family, pooler, layer",
    [(AutoModelForMaskedLM, "bert", "avg", "query"), (AutoModelForCausalLM, "llama", "lasttoken", "q_proj")],
)
def test_an_adapter_of_another_program_is_loaded_with_its_model(auto_class, family, pooler, layer, start, tmp_path):
    config = AutoConfig.from_pretrained(start(family, "avg"))
    del config.simcse
    stock = auto_class.from_config(config)
    stock.name_or_path = str(save_with_tokenizer(stock, tmp_path / "stock"))
    adapted = get_peft_model(stock, LoraConfig(r=4, target_modules=[layer], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    model = SimCSE(tmp_path / "adapter", pooler_type=pooler, device="cpu")
    encoder = adapted.get_base_model().base_model.eval()
    ids = torch.tensor(model.tokenize(TEXTS[:1]))
    states = encoder(ids).last_hidden_state[0]
    expected = states.mean(0) if pooler == "avg" else states[-1]
    found = model.encode(TEXTS[0], normalize_embeddings=False)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


# --- refusals ---


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"lora_r": None, "lora": {"lora_alpha": 8}}, "lora_r"),
        ({"lora_r": None, "save_adapter": True}, "adapter lora_r"),
        ({"settings": {"encoders": 2}}, "second encoder"),
    ],
)
def test_what_cannot_work_is_refused(start, tmp_path, changes, words):
    with refuses(words):
        trainer_of(start(), tmp_path / "run", **changes)


@pytest.fixture
def adapter(start, tmp_path):
    """The folder of an adapter."""
    folder = tmp_path / "run"
    trainer_of(start(), folder, save_adapter=True).save_model()
    return folder


def test_an_adapter_of_another_encoder_is_refused(adapter, tmp_path):
    shorter = AutoModelForCL.from_config(tiny_config(num_hidden_layers=1))
    shorter.save_pretrained(tmp_path / "other")
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=str(tmp_path / "other"))
    with refuses("the adapter does not fit the model in base_model_name_or_path"):
        AutoModelForCL.from_pretrained(adapter)


def test_training_starts_from_an_adapter_folder_and_saves_no_adapter_of_it(adapter, tmp_path):
    again = trainer_of(adapter, tmp_path / "again")
    again.train()
    again.save_model()
    assert_same_vectors(vectors(SimCSE(tmp_path / "again", device="cpu")), embeddings_of(again))
    with refuses("is not a whole model that the adapter could be added to again"):
        trainer_of(adapter, tmp_path / "more", save_adapter=True)
