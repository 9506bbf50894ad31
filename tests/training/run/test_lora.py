"""Runs that train an adapter of peft: what is saved loads everywhere, and a resumed run is an uninterrupted one."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from conftest import (
    LEAVES_OUT_MODULES,
    NEEDS_PEFT,
    OLD_TRANSFORMERS,
    VOCABULARY,
    tiny_config,
)
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from trainer_helpers import make, pairs, refuses, sentences, texts
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertTokenizer,
    LlamaConfig,
)

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.cli.main import main

pytestmark = NEEDS_PEFT
TEXTS = ["the cat sat on the mat .", "a dog ran", "the big red house"]
TOKENIZER = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)})
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


OF_LLAMA = {
    "vocab_size": 32,
    "max_position_embeddings": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """`start(family, pooler)` is the folder of an encoder with its tokenizer, which is only read."""

    @cache
    def save(family="bert", pooler="cls"):
        folder = tmp_path_factory.mktemp(family) / "start"
        config = LlamaConfig(**OF_LLAMA) if family == "llama" else tiny_config(family)
        AutoModelForCL.from_config(config, pooler_type=pooler).save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
        return folder

    return save


def trainer_of(model, folder, settings=None, **changes):
    torch.manual_seed(1)
    if not isinstance(model, torch.nn.Module):
        model = AutoModelForCL.from_pretrained(model, head="fresh", **(settings or {}))
    options = {
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": 3,
        "learning_rate": 1e-2,
        "lora_r": 4,
    } | changes
    return make(
        folder,
        TOKENIZER,
        texts(48, 2),
        model,
        dev_set=pairs(),
        output_dir=str(folder),
        **options,
    )


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


class Trained:
    """A run with an adapter, its weights before, and the embeddings of its model."""

    def __init__(self, start, folder, save_adapter):
        self.folder = folder
        self.trainer = trainer_of(start, folder, save_adapter=save_adapter)
        parameters = self.trainer.model.named_parameters()
        self.before = {name: weight.clone() for name, weight in parameters}
        self.trainer.train()
        self.trainer.save_model()
        self.embeddings = embeddings_of(self.trainer)

    def changed(self):
        """The names of the weights that were trained."""
        names = set()
        for name, weight in self.trainer.model.named_parameters():
            if not torch.equal(weight, self.before[name]):
                names.add(name)
        return names


@pytest.fixture(scope="module")
def trained(family, pooler, save_adapter, start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return Trained(start(family, pooler), folder, save_adapter)


EVERY_MODEL = pytest.mark.parametrize(
    ("family", "pooler", "save_adapter"),
    [
        ("bert", "cls", False),
        ("bert", "cls", True),
        ("albert", "cls", True),
        ("distilbert", "cls", True),
        ("distilbert", "cls", False),
        ("roberta", "avg", True),
        ("llama", "lasttoken", True),
    ],
    scope="module",
)
MODEL_AND_CHECKPOINT = pytest.mark.parametrize("name", ["", "checkpoint-6"])


@EVERY_MODEL
def test_only_the_adapter_and_the_head_are_trained(trained, family, pooler):
    heads = ("sentence_head", f"{family}.pooler") if pooler == "cls" else ()
    wanted = set()
    for name in trained.before:
        if "lora_" in name or name.startswith(heads):
            wanted.add(name)
    assert trained.changed() == wanted


@EVERY_MODEL
@pytest.mark.parametrize(("name", "of_adapter"), zip(WEIGHTS, (True, False), strict=True))
def test_the_weights_are_those_of_the_adapter_or_of_the_merged_model(trained, save_adapter, name, of_adapter):
    assert (trained.folder / name).exists() is (of_adapter == save_adapter)


@EVERY_MODEL
@MODEL_AND_CHECKPOINT
def test_the_saved_model_has_the_same_vectors(trained, name):
    found = SimCSE(trained.folder / name, device="cpu")
    assert_same_vectors(vectors(found), trained.embeddings)


@pytest.fixture(scope="module")
def loads_elsewhere(save_adapter):
    """Skip what old versions of transformers cannot load."""
    if save_adapter and OLD_TRANSFORMERS:
        pytest.skip("this transformers leaves out the weights of adapters")


@EVERY_MODEL
@MODEL_AND_CHECKPOINT
def test_the_saved_model_has_the_same_vectors_in_sentence_transformers(trained, loads_elsewhere, name):
    theirs = SentenceTransformer(str(trained.folder / name), device="cpu")
    assert_same_vectors(theirs.encode(TEXTS), trained.embeddings)


@EVERY_MODEL
@MODEL_AND_CHECKPOINT
def test_the_saved_model_opens_in_transformers(trained, loads_elsewhere, name, pooler, save_adapter):
    if save_adapter and pooler == "cls" and LEAVES_OUT_MODULES:
        pytest.skip("this transformers leaves out the modules that an adapter holds")
    _, info = AutoModel.from_pretrained(trained.folder / name, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


# --- commands ---

LORA = '{"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.1}'


@pytest.fixture(scope="module")
def by_command(start, tmp_path_factory):
    """The folder of texts and of a run of the command `train`, which saves its adapter."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "texts.txt").write_text("\n".join(sentences(64)))
    files = f"--model {start()} --train_file {folder}/texts.txt --output_dir {folder}/run"
    steps = "--max_steps 2 --use_cpu --per_device_train_batch_size 16 --save_adapter"
    words = [*files.split(), *steps.split(), "--lora", LORA]
    assert main(["train", "unsup", *words]) == 0
    return folder


def test_the_command_records_the_adapter(by_command):
    results = json.loads((by_command / "run" / "results.json").read_text())
    assert results["arguments"]["lora"]["r"] == 2


def test_the_command_trains_the_layers_that_are_named(by_command):
    config = json.loads((by_command / "run" / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == {"query", "value"}


def test_a_command_reads_the_folder_of_an_adapter(by_command, tmp_path):
    files = f"--model {by_command}/run --input {by_command}/texts.txt"
    words = f"encode {files} --output {tmp_path}/vectors"
    assert main(words.split()) == 0


# --- resuming ---


@pytest.fixture(scope="module")
def with_checkpoint(start, tmp_path_factory):
    """The folder of a run with an adapter of rank 4."""
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
    trainer_of(start(), folder).train()
    return folder


def resume(start, folder, **changes):
    trainer_of(start(), folder, **changes).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("rank", [8, None])
def test_a_checkpoint_of_another_adapter_is_refused(start, with_checkpoint, rank):
    with pytest.raises(ValueError, match="lora_r: 4 there"):
        resume(start, with_checkpoint, lora_r=rank)


def test_a_checkpoint_of_another_adapter_is_refused_even_if_changes_are_allowed(start, with_checkpoint):
    with pytest.raises(ValueError, match="another adapter than this run"):
        resume(start, with_checkpoint, lora_r=None, allow_changes=True)


# --- models of peft's users ---


@pytest.fixture(scope="module")
def prepared_by_peft(start, tmp_path_factory):
    """The folder and the trainer of a run with a model that peft prepared."""
    folder = tmp_path_factory.mktemp("peft") / "run"
    targets = ["query", "dense"]
    config = LoraConfig(r=4, target_modules=targets, modules_to_save=["pooler"])
    given = get_peft_model(AutoModelForCL.from_pretrained(start()), config)
    trainer = trainer_of(given, folder, lora_r=None, max_steps=3)
    trainer.train()
    trainer.save_model()
    return folder, trainer


def test_a_model_that_peft_prepared_is_saved_with_the_weights_of_its_encoder(prepared_by_peft, start):
    folder, _ = prepared_by_peft
    names = load_file(folder / "model.safetensors").keys()
    assert names == load_file(start() / "model.safetensors").keys()


def test_a_trainer_takes_a_model_that_peft_prepared(prepared_by_peft):
    folder, trainer = prepared_by_peft
    found = vectors(SimCSE(folder, device="cpu"))
    assert_same_vectors(found, embeddings_of(trainer))


@pytest.mark.parametrize(
    ("auto_class", "family", "pooler", "layer"),
    [
        (AutoModel, "bert", "avg", "query"),
        (AutoModelForMaskedLM, "bert", "avg", "query"),
        (AutoModelForCausalLM, "llama", "lasttoken", "q_proj"),
    ],
)
def test_an_adapter_of_another_program_is_loaded_with_its_model(auto_class, family, pooler, layer, start, tmp_path):
    config = AutoConfig.from_pretrained(start(family, "avg"))
    del config.simcse
    stock = auto_class.from_config(config)
    stock.name_or_path = str(tmp_path / "stock")
    stock.save_pretrained(tmp_path / "stock")
    TOKENIZER.save_pretrained(tmp_path / "stock")
    adapter = LoraConfig(r=4, target_modules=[layer], init_lora_weights=False)
    adapted = get_peft_model(stock, adapter)
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
        ({"lora_r": 0}, "lora_r"),
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
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = str(tmp_path / "other")
    path.write_text(json.dumps(config))
    words = "the adapter does not fit the model in base_model_name_or_path"
    with pytest.raises(ValueError, match=words):
        AutoModelForCL.from_pretrained(adapter)


def test_training_starts_from_an_adapter_folder(adapter, tmp_path):
    again = trainer_of(adapter, tmp_path / "again")
    again.train()
    again.save_model()
    found = vectors(SimCSE(tmp_path / "again", device="cpu"))
    assert_same_vectors(found, embeddings_of(again))


def test_training_from_an_adapter_folder_saves_no_adapter_of_it(adapter, tmp_path):
    words = "is not a whole model that the adapter could be added to again"
    with pytest.raises(ValueError, match=words):
        trainer_of(adapter, tmp_path / "more", save_adapter=True)
