"""sentence-transformers and ONNX Runtime give the same embeddings as this package."""

import copy

import pytest
import torch
from cli_helpers import export_main
from conftest import FAMILIES, fast_first, tiny_config
from inference_helpers import perturb
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.publishing.export import (
    ONNX_FILE,
    export_onnx,
    export_sentence_transformers,
)

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "",
    "the old man sang . " * 20,
    "a small bird slept in the big red tree",
]
IN_SENTENCE_TRANSFORMERS = [pooler for pooler in POOLER_TYPES if POOLERS[pooler].mode]
LACKING = [
    pooler for pooler in POOLER_TYPES if not POOLERS[pooler].mode
]  # `mask` needs templates


@pytest.fixture
def onnx():
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="session")
def published(tmp_path_factory, tokenizer):
    """A directory in the layout of the published SimCSE models: a stock encoder with its pooler and nothing else."""
    directory = tmp_path_factory.mktemp("published")
    torch.manual_seed(2)
    perturb(BertModel(tiny_config(num_hidden_layers=3))).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def sentence_transformer_vectors(directory):
    library = pytest.importorskip(
        "sentence_transformers", reason="sentence_transformers is not installed"
    )
    return library.SentenceTransformer(str(directory), device="cpu").encode(
        TEXTS, convert_to_tensor=True
    )


def agree(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert (
        torch.cdist(wanted, wanted)[~torch.eye(len(wanted), dtype=bool)].min() > 1e-3
    ), "texts can be told apart"


# --- the same vectors everywhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler", IN_SENTENCE_TRANSFORMERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_encoder_family_gives_equal_embeddings_in_sentence_transformers(
    family, pooler, saved
):
    directory = saved(family, pooler_type=pooler)
    agree(
        sentence_transformer_vectors(directory),
        SimCSE(directory).encode(TEXTS, normalize_embeddings=False),
    )


def test_a_head_for_training_only_is_not_used_in_sentence_transformers(saved):
    simcse = SimCSE(saved(pooler_type="cls", mlp_only_train=True))
    assert simcse.pooler_type == "cls_before_pooler"
    agree(
        sentence_transformer_vectors(simcse.name_or_path),
        simcse.encode(TEXTS, normalize_embeddings=False),
    )


@pytest.mark.parametrize("pooler", IN_SENTENCE_TRANSFORMERS)
def test_a_published_model_gives_equal_embeddings_in_sentence_transformers(
    pooler, published, tmp_path
):
    ours = SimCSE(published, pooler_type=pooler).encode(
        TEXTS, normalize_embeddings=False
    )
    exported = export_sentence_transformers(
        SimCSE(published, pooler_type=pooler), tmp_path / "out"
    )
    again = SimCSE(exported)
    assert again.pooler_type == pooler and torch.equal(
        again.encode(TEXTS, normalize_embeddings=False), ours
    )
    agree(sentence_transformer_vectors(exported), ours)


@pytest.mark.parametrize(
    "name", fast_first("cls", *(name for name in POOLER_TYPES if name != "cls"))
)
def test_a_saved_model_gives_equal_embeddings_in_onnx_runtime(
    name, onnx, saved, tmp_path
):
    simcse = SimCSE(saved(pooler_type=name))
    export_onnx(simcse, tmp_path / "out")
    exported = SimCSE(tmp_path / "out", backend="onnx")
    agree(
        exported.encode(TEXTS, normalize_embeddings=False),
        simcse.encode(TEXTS, normalize_embeddings=False),
    )
    with_files = POOLERS[name].mode is not None and POOLERS[name].second_layer is None
    assert (tmp_path / "out" / "modules.json").exists() == with_files


# --- the files of every save --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler", LACKING)
def test_a_pooler_that_sentence_transformers_lacks_is_not_exported_and_saved_without_modules(
    pooler, save_checkpoint, tmp_path, caplog
):
    save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"))
    directory = save_checkpoint(
        AutoModelForCL.from_config(tiny_config(), pooler_type=pooler)
    )
    assert (
        f"no pooling like '{pooler}'" in caplog.text
        and not (directory / "1_Pooling").exists()
    )
    assert pooler in (directory / "modules.json").read_text(), (
        "which SentenceTransformer refuses"
    )
    with pytest.raises(
        ValueError, match=f"no pooling like '{pooler}'.*Choose another pooler"
    ):
        export_sentence_transformers(SimCSE(directory), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "limit"),
    [("bert", 40), ("roberta", 40), ("bert", 12), ("mpnet", 1 << 40)],
)
def test_texts_are_truncated_to_the_same_length_everywhere(
    family, limit, tmp_path, tokenizer
):
    """The limit is the tokenizer's or the encoder's, whichever is smaller. RoBERTa's 40 positions serve 38 tokens."""
    perturb(
        AutoModelForCL.from_config(tiny_config(family), pooler_type="avg")
    ).save_pretrained(tmp_path)
    limited = copy.deepcopy(tokenizer)
    limited.model_max_length = limit
    limited.save_pretrained(tmp_path)
    simcse = SimCSE(tmp_path)
    assert simcse.max_length == min(limit, 40 if family == "bert" else 38)
    agree(
        sentence_transformer_vectors(tmp_path),
        simcse.encode(TEXTS, normalize_embeddings=False),
    )


# --- the command --------------------------------------------------------------------------------------------------


def test_the_export_command_names_the_pooler_and_does_not_change_the_source(
    published, tmp_path, capsys
):
    before = {path.name: path.read_bytes() for path in published.iterdir()}
    words = f"{published} --to sentence-transformers --output {tmp_path / 'x'} --pooler avg".split()
    assert export_main(words) == 0
    assert "'avg'" in capsys.readouterr().out
    assert SimCSE(tmp_path / "x").pooler_type == "avg"
    assert {path.name: path.read_bytes() for path in published.iterdir()} == before


@pytest.mark.slow
def test_a_graph_with_wrong_embeddings_is_deleted(
    onnx, published, tmp_path, monkeypatch
):
    monkeypatch.setattr("simcse_hf.publishing.export.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differ from torch's"):
        export_onnx(SimCSE(published, pooler_type="avg"), tmp_path / "x")
    assert not (tmp_path / "x" / ONNX_FILE).exists()
