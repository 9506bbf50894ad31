"""Runs that train an adapter of peft: what is saved loads everywhere, and a resumed run is an uninterrupted one."""

import json

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


@pytest.fixture
def start(tmp_path):
    """A saved encoder with its tokenizer."""

    def save(family="bert", pooler="cls"):
        folder = tmp_path / f"start-{family}"
        if folder.exists():
            return folder
        if family == "llama":
            sizes = {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            }
            config = LlamaConfig(vocab_size=32, max_position_embeddings=40, **sizes)
        else:
            config = tiny_config(family)
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
    with torch.no_grad():
        return (
            trainer.model.eval()
            .embed(batch["input_ids"], batch["attention_mask"])
            .numpy()
        )


# --- what is saved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "pooler", "save_adapter"),
    [
        *(
            ("bert", "cls", False),
            ("bert", "cls", True),
            ("albert", "cls", True),
            ("distilbert", "cls", True),
        ),
        *(
            ("distilbert", "cls", False),
            ("roberta", "avg", True),
            ("llama", "lasttoken", True),
        ),
    ],
)
def test_the_saved_model_has_the_same_vectors_in_every_library(
    family, pooler, save_adapter, start, tmp_path
):
    trainer = trainer_of(
        start(family, pooler), tmp_path / "run", save_adapter=save_adapter
    )
    before = {name: x.clone() for name, x in trainer.model.named_parameters()}
    trainer.train()
    trainer.save_model()
    changed = {
        name
        for name, x in trainer.model.named_parameters()
        if not torch.equal(x, before[name])
    }
    head = ("sentence_head", f"{family}.pooler") if pooler == "cls" else ()
    assert changed == {
        name for name in before if "lora_" in name or name.startswith(head)
    }
    expected = embeddings_of(trainer)
    assert [(tmp_path / "run" / name).exists() for name in WEIGHTS] == [
        save_adapter,
        not save_adapter,
    ]
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-6"):
        np.testing.assert_allclose(
            vectors(SimCSE(folder, device="cpu")), expected, atol=2e-6
        )
        if not (save_adapter and OLD_TRANSFORMERS):
            theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
            np.testing.assert_allclose(theirs, expected, atol=2e-6)
            _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
            if save_adapter and pooler == "cls" and LEAVES_OUT_MODULES:
                continue
            assert not info["missing_keys"] and not info["unexpected_keys"]


def test_the_commands_train_an_adapter_and_read_its_folder(start, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(64)))
    words = [
        "--model",
        start(),
        "--train_file",
        tmp_path / "texts.txt",
        "--output_dir",
        tmp_path / "run",
    ]
    words += ["--max_steps", 2, "--use_cpu"]
    words += [
        "--lora",
        '{"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.1}',
        "--save_adapter",
    ]
    assert (
        main(
            ["train", "unsup", *map(str, words), "--per_device_train_batch_size", "16"]
        )
        == 0
    )
    assert (
        json.loads((tmp_path / "run" / "results.json").read_text())["arguments"][
            "lora"
        ]["r"]
        == 2
    )
    config = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == {"query", "value"}
    words = ["--model", str(tmp_path / "run"), "--input", str(tmp_path / "texts.txt")]
    assert main(["encode", *words, "--output", str(tmp_path / "vectors")]) == 0


# --- resuming -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_adapter_is_refused(start, tmp_path):
    trainer_of(start(), tmp_path / "run").train()
    for changes in ({"lora_r": 8}, {"lora_r": None}):
        with pytest.raises(ValueError, match="lora_r: 4 there"):
            trainer_of(start(), tmp_path / "run", **changes).train(
                resume_from_checkpoint=True
            )
    with pytest.raises(ValueError, match="another adapter than this run"):
        trainer_of(start(), tmp_path / "run", lora_r=None, allow_changes=True).train(
            resume_from_checkpoint=True
        )


# --- models of peft's users ------------------------------------------------------------------------------------------


def test_a_trainer_takes_a_model_that_peft_prepared(start, tmp_path):
    config = LoraConfig(
        r=4, target_modules=["query", "dense"], modules_to_save=["pooler"]
    )
    given = get_peft_model(AutoModelForCL.from_pretrained(start()), config)
    trainer = trainer_of(given, tmp_path / "run", lora_r=None, max_steps=3)
    trainer.train()
    trainer.save_model()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert (
        weights.keys()
        == load_file(tmp_path / "start-bert" / "model.safetensors").keys()
    )
    np.testing.assert_allclose(
        vectors(SimCSE(tmp_path / "run", device="cpu")),
        embeddings_of(trainer),
        atol=2e-6,
    )


@pytest.mark.parametrize(
    ("auto_class", "family", "pooler", "layer"),
    [
        (AutoModel, "bert", "avg", "query"),
        (AutoModelForMaskedLM, "bert", "avg", "query"),
        (AutoModelForCausalLM, "llama", "lasttoken", "q_proj"),
    ],
)
def test_an_adapter_of_another_program_is_loaded_with_its_model(
    auto_class, family, pooler, layer, start, tmp_path
):
    config = AutoConfig.from_pretrained(start(family, "avg"))
    del config.simcse
    stock = auto_class.from_config(config)
    stock.name_or_path = str(tmp_path / "stock")
    stock.save_pretrained(tmp_path / "stock")
    TOKENIZER.save_pretrained(tmp_path / "stock")
    adapted = get_peft_model(
        stock, LoraConfig(r=4, target_modules=[layer], init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "adapter")
    model = SimCSE(tmp_path / "adapter", pooler_type=pooler, device="cpu")
    states = (
        adapted.get_base_model()
        .base_model.eval()(torch.tensor(model.tokenize(TEXTS[:1])))
        .last_hidden_state[0]
    )
    expected = states.mean(0) if pooler == "avg" else states[-1]
    torch.testing.assert_close(
        model.encode(TEXTS[0], normalize_embeddings=False), expected, atol=2e-6, rtol=0
    )


# --- refusals --------------------------------------------------------------------------------------------------------


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


def test_an_adapter_of_another_encoder_is_refused(start, tmp_path):
    trainer_of(start(), tmp_path / "run", save_adapter=True).save_model()
    config = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    AutoModelForCL.from_config(tiny_config(num_hidden_layers=1)).save_pretrained(
        tmp_path / "other"
    )
    config["base_model_name_or_path"] = str(tmp_path / "other")
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError,
        match="the adapter does not fit the model in base_model_name_or_path",
    ):
        AutoModelForCL.from_pretrained(tmp_path / "run")


def test_training_starts_from_an_adapter_folder_but_saves_no_adapter_of_it(
    start, tmp_path
):
    trainer_of(start(), tmp_path / "run", save_adapter=True).save_model()
    again = trainer_of(tmp_path / "run", tmp_path / "again")
    again.train()
    again.save_model()
    np.testing.assert_allclose(
        vectors(SimCSE(tmp_path / "again", device="cpu")),
        embeddings_of(again),
        atol=2e-6,
    )
    with pytest.raises(
        ValueError,
        match="is not a whole model that the adapter could be added to again",
    ):
        trainer_of(tmp_path / "run", tmp_path / "more", save_adapter=True)
