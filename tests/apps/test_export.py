"""sentence-transformers and ONNX Runtime give the same embeddings as this package."""

import pytest
import torch
from cli_helpers import export_main
from conftest import FAMILIES, fast_first, tiny_config, tiny_tokenizer
from encoding_helpers import perturb
from publishing_fixtures import save_transformed
from sentence_transformers import SentenceTransformer
from trainer_helpers import files_of, refuses
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSE, export
from simcse_hf.apps.export import export_sentence_transformers
from simcse_hf.encoding.graphs import GRAPHS, export_graph
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "",
    "the old man sang . " * 20,
    "a small bird slept in the big red tree",
]
IN_SENTENCE_TRANSFORMERS = [pooler for pooler in POOLER_TYPES if POOLERS[pooler].mode]
LACKING = [pooler for pooler in POOLER_TYPES if not POOLERS[pooler].mode]


@pytest.fixture
def onnx():
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package)


@pytest.fixture(scope="session")
def published(tmp_path_factory, tokenizer):
    """A directory in the layout of the published SimCSE models: a stock encoder with its pooler and nothing else."""
    directory = tmp_path_factory.mktemp("published")
    torch.manual_seed(2)
    perturb(BertModel(tiny_config(num_hidden_layers=3))).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def sentence_transformer_vectors(directory):
    return SentenceTransformer(str(directory), device="cpu").encode(TEXTS, convert_to_tensor=True)


def assert_same_embeddings(found, expected):
    """That embeddings are equal, and that those of different texts can be told apart."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    distances = torch.cdist(expected, expected)
    of_others = ~torch.eye(len(expected), dtype=bool)
    assert distances[of_others].min() > 1e-3


def embeddings_of(simcse):
    return simcse.encode(TEXTS, normalize_embeddings=False)


# --- the same vectors everywhere ---


@pytest.mark.parametrize("pooler", fast_first(*IN_SENTENCE_TRANSFORMERS))  # the next test has all of them
@pytest.mark.parametrize("family", FAMILIES)
def test_every_encoder_family_gives_equal_embeddings_in_sentence_transformers(family, pooler, saved):
    folder = saved(family, pooler_type=pooler)
    assert_same_embeddings(sentence_transformer_vectors(folder), embeddings_of(SimCSE(folder)))


@pytest.mark.parametrize("pooler", IN_SENTENCE_TRANSFORMERS)
def test_the_export_of_a_published_model_gives_equal_embeddings_in_sentence_transformers(pooler, published, tmp_path):
    model = SimCSE(published, pooler_type=pooler)
    exported = export_sentence_transformers(model, tmp_path / "out")
    expected = embeddings_of(model)
    assert_same_embeddings(sentence_transformer_vectors(exported), expected)
    assert SimCSE(exported).pooler_type == pooler
    assert torch.equal(embeddings_of(SimCSE(exported)), expected)


@pytest.mark.slow  # tests/clients/test_client_table.py runs two of them every time
@pytest.mark.parametrize("pooler", POOLER_TYPES)
def test_a_saved_model_gives_equal_embeddings_in_onnx_runtime(pooler, saved, onnx, tmp_path):
    simcse = SimCSE(saved(pooler_type=pooler))
    export_graph(simcse, tmp_path / "out", "onnx")
    assert_same_embeddings(embeddings_of(SimCSE(tmp_path / "out", backend="onnx")), embeddings_of(simcse))
    # It has the modules of a pooler that sentence-transformers has alone.
    has_modules = POOLERS[pooler].mode is not None and POOLERS[pooler].second_layer is None
    assert (tmp_path / "out/modules.json").exists() is has_modules


# --- what sentence-transformers lacks ---


@pytest.mark.parametrize("pooler", LACKING)
def test_a_pooler_that_sentence_transformers_lacks_is_saved_with_a_warning_and_not_exported(
    pooler, tmp_path, tokenizer, caplog
):
    """The folder had another pooler before. SentenceTransformer refuses the name in its modules."""
    folder = tmp_path / "model"
    for each in ("avg", pooler):
        AutoModelForCL.from_config(tiny_config(), pooler_type=each).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    assert f"no pooling like '{pooler}'" in caplog.text
    assert not (folder / "1_Pooling").exists()
    assert pooler in (folder / "modules.json").read_text()
    with refuses(f"no pooling like '{pooler}' Choose another pooler"):
        export_sentence_transformers(SimCSE(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_a_flow_is_not_exported_and_a_whitening_is(transformed, tmp_path):
    flow = transformed("flow")
    with refuses("applies a flow postprocess=False"):
        export(flow, tmp_path / "out", to="sentence-transformers")
    assert not (tmp_path / "out").exists(), "nothing is written"
    export(flow, tmp_path / "out", to="sentence-transformers", postprocess=False)
    assert_same_embeddings(
        sentence_transformer_vectors(tmp_path / "out"), embeddings_of(SimCSE(flow, postprocess=False))
    )
    (tmp_path / "white").mkdir()
    whitened = save_transformed(tmp_path / "white", SimCSE(flow).tokenizer, "whitening")
    export(whitened, tmp_path / "whitened", to="sentence-transformers")
    vectors = SimCSE(whitened).encode(TEXTS)
    theirs = torch.nn.functional.normalize(sentence_transformer_vectors(tmp_path / "whitened"), dim=-1)
    torch.testing.assert_close(theirs, vectors, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "family, limit",
    [("bert", 40), ("roberta", 40), ("bert", 12), ("mpnet", 1 << 40)],
)
def test_texts_are_truncated_to_the_same_length_everywhere(family, limit, tmp_path):
    """The limit is the tokenizer's or the encoder's, whichever is smaller. RoBERTa's 40 positions serve 38 tokens."""
    model = AutoModelForCL.from_config(tiny_config(family), pooler_type="avg")
    perturb(model).save_pretrained(tmp_path)
    tiny_tokenizer(limit).save_pretrained(tmp_path)
    simcse = SimCSE(tmp_path)
    assert simcse.max_length == min(limit, 40 if family == "bert" else 38)
    assert_same_embeddings(sentence_transformer_vectors(tmp_path), embeddings_of(simcse))


# --- the command ---


def test_the_export_command_names_and_writes_the_pooler_and_does_not_change_the_source(published, tmp_path, capsys):
    before = files_of(published)
    words = f"{published} --to sentence-transformers --output {tmp_path / 'x'} --pooler avg"
    assert export_main(words.split()) == 0
    assert "'avg'" in capsys.readouterr().out
    assert SimCSE(tmp_path / "x").pooler_type == "avg"
    with refuses("holds the model that is read"):
        export(published, published, to="sentence-transformers", pooler_type="avg", overwrite=True)
    assert files_of(published) == before


@pytest.mark.slow
def test_a_graph_with_wrong_embeddings_is_deleted(onnx, published, tmp_path, monkeypatch):
    monkeypatch.setattr("simcse_hf.encoding.graphs.TOLERANCE", -1.0)
    with refuses("differ from torch's"):
        export_graph(SimCSE(published, pooler_type="avg"), tmp_path / "x", "onnx")
    assert not (tmp_path / "x" / GRAPHS["onnx"].file).exists()
