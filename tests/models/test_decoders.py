"""Decoders such as Llama, Qwen and Mistral are encoders of sentences with the poolers `lasttoken` and `avg`."""

import pytest
import torch
from conftest import VOCABULARY
from objective_helpers import assert_opens_in_transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from trainer_helpers import make, sentences
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.training.arguments import ModelArguments

TEXTS = [
    "the cat sat on the mat .",
    "a dog ran",
    "the big red house , the small tree and the old man .",
]
EOS = len(VOCABULARY)


def tiny_decoder(family="llama", **changes):
    ids = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": None, "vocab_size": EOS + 9}
    if family == "gpt2":
        return CONFIG_MAPPING[family](n_embd=32, n_layer=2, n_head=4, n_positions=40, **ids, **changes)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"max_position_embeddings": 40, "head_dim": 8, "num_key_value_heads": 2}
    if family == "mistral":
        changes = {"sliding_window": 4} | changes
    return CONFIG_MAPPING[family](**sizes, **ids, **changes)


@pytest.fixture
def decoder_tokenizer():
    """A tokenizer without padding token that ends each text with the end of text, as Qwen's embedding models do."""
    words = {word: i for i, word in enumerate(VOCABULARY)} | {"<|end|>": EOS}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", EOS)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="<|end|>")


@pytest.fixture
def save_decoder(tmp_path, decoder_tokenizer):
    """Save a model for text generation, as decoders are published, with its tokenizer."""

    def save(family="llama", **changes):
        folder = tmp_path / family
        AutoModelForCausalLM.from_config(tiny_decoder(family, **changes)).save_pretrained(folder)
        decoder_tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize("pooler", ["lasttoken", "avg"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_embeddings_do_not_depend_on_padding_or_its_side(family, pooler):
    model = AutoModelForCL.from_config(tiny_decoder(family), pooler_type=pooler).double().eval()
    rows = [torch.randint(EOS, (length,)) for length in (9, 3, 6)]
    alone = torch.cat([model.embed(row[None]) for row in rows])
    for side in ("left", "right"):
        ids, mask = torch.full((3, 9), EOS), torch.zeros(3, 9, dtype=torch.long)
        for i, row in enumerate(rows):
            part = slice(9 - len(row), 9) if side == "left" else slice(0, len(row))
            ids[i, part], mask[i, part] = row, 1
        torch.testing.assert_close(model.embed(ids, mask), alone, rtol=1e-9, atol=1e-10)
    expected = AutoModel.from_config(tiny_decoder(family)).double().eval()
    expected.load_state_dict(model.base_model.state_dict())
    states = [expected(row[None]).last_hidden_state[0] for row in rows]
    reference = torch.stack([x[-1] if pooler == "lasttoken" else x.mean(0) for x in states])
    torch.testing.assert_close(alone, reference, rtol=1e-9, atol=1e-10)
    assert not model.runs_unpadded


def test_other_libraries_load_a_saved_decoder_with_the_same_vectors(save_decoder, tmp_path):
    model = SimCSE(save_decoder("mistral"), pooler_type="lasttoken")
    model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved/2_Dense").exists()
    vectors = model.encode(TEXTS, normalize_embeddings=False)
    for saved in (SimCSE(tmp_path / "saved"), SentenceTransformer(str(tmp_path / "saved"), device="cpu")):
        found = saved.encode(TEXTS, normalize_embeddings=False)
        torch.testing.assert_close(torch.as_tensor(found), vectors, rtol=0, atol=1e-5)
    assert_opens_in_transformers(tmp_path / "saved")


def test_the_end_of_text_counts_although_it_also_pads(save_decoder):
    model = SimCSE(save_decoder(), pooler_type="lasttoken")
    assert model.tokenizer.pad_token_id == model.tokenizer.eos_token_id == EOS
    alone = torch.stack([model.encode(text) for text in TEXTS])
    torch.testing.assert_close(model.encode(TEXTS), alone)
    ids = torch.tensor([model.tokenize(TEXTS[:1])[0][:-1]], device=model.device)
    without_end = model.model.embed(ids).cpu()
    assert torch.cosine_similarity(without_end, alone[:1]).item() < 0.99


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_dropout_of_a_decoder_makes_two_views_and_without_it_is_refused(family, save_decoder, tmp_path):
    """LLM2Vec (arXiv:2404.05961) trains decoders with unsupervised SimCSE at an attention dropout of 0.3."""
    start = save_decoder(family)
    config = AutoModel.from_pretrained(start).config
    for rate in (0.3, 0.0):
        settings = ModelArguments(pooler_type="avg", dropout=rate).settings(config)
        model = AutoModelForCL.from_pretrained(start, **settings)
        trainer = make(tmp_path / str(rate), None, sentences(24), model)
        before = [x.clone() for x in model.parameters()]
        if rate:
            trainer.train()
            assert any(not torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))
        else:
            with pytest.raises(ValueError, match="attention_dropout=0.3 for Llama"):
                trainer.train()


def test_a_decoder_whose_texts_all_begin_alike_is_evaluated_before_training(save_decoder, decoder_tokenizer, tmp_path):
    """Llama puts the same token before each text, which sees nothing of it."""
    decoder_tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", EOS)]
    )
    model = AutoModelForCL.from_pretrained(save_decoder(initializer_range=0.2), pooler_type="lasttoken")
    pairs = {"sentence1": sentences(24), "sentence2": sentences(24, seed=1), "score": list(range(24))}
    rows = {"anchor": sentences(24), "positive": sentences(24, seed=1)}
    trainer = make(tmp_path, None, rows, model, dev_set=pairs, eval_strategy="steps", eval_steps=4)
    trainer.train()
    assert trainer.results.initial["step"] == 0
