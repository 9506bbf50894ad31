"""What a user is promised of DiffCSE: a discriminator that tells replaced tokens by the sentence vector."""

import copy

import pytest
import torch
from conftest import CLS, MASK, PAD, SEP, random_batch, tiny_config
from process_helpers import in_processes
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import EncodedBatch, make_objective

SPECIAL = {0, PAD, CLS, SEP, MASK}


@pytest.fixture
def generator(tmp_path, tokenizer):
    """`generator(model_type)`: a directory with a masked-LM, clearly decided weights, and the tokenizer."""

    def save(model_type="bert", name="generator", **changes):
        torch.manual_seed(7)
        config = tiny_config(model_type, initializer_range=0.5, **changes)
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return save


def model_of(generator, model_type="bert", weight=0.5, dropout=0.0, **settings):
    torch.manual_seed(3)
    options = {"generator": generator, "replaced_weight": weight}
    config = tiny_config(model_type, dropout=dropout, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, objective="diffcse", objective_options=options, **settings)
    model.prepare_objective()
    return model.double().train()


def random_like_the_objective(shape, seed):
    torch.manual_seed(seed)
    return torch.rand(shape)


def slow_parts(model, batch, draws):
    """The edited sentences and the sum of the cross-entropies, a row and a token at a time."""
    objective = model.objective
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    masked_lm = objective._generator[0]
    total, count, replaced = 0.0, 0, 0
    for row in range(len(ids)):
        length = int(mask[row].sum())
        if not length:
            continue
        text = ids[row, :length].tolist()
        words = [t for t in range(length) if text[t] not in SPECIAL]
        chosen = [t for t in words if draws[row, t] < 0.3]
        blanked = torch.tensor([[MASK if t in chosen else token for t, token in enumerate(text)]])
        best = masked_lm(blanked).logits[0].argmax(-1)
        edited = [int(best[t]) if t in chosen else token for t, token in enumerate(text)]
        vector = model.embed(torch.tensor([text]))
        table = objective.discriminator.get_input_embeddings()
        embeddings = torch.stack([vector[0]] + [table.weight[token] for token in edited[1:]])
        hidden = objective.discriminator(inputs_embeds=embeddings[None]).last_hidden_state[0]
        for t in words:
            chance = torch.sigmoid((objective.classifier.weight[0] * hidden[t]).sum() + objective.classifier.bias[0])
            other = edited[t] != text[t]
            total = total - (chance if other else 1 - chance).log()
            count, replaced = count + 1, replaced + other
    return total / count, replaced


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("rows, sentences, length", [(3, 2, 6), (4, 3, 11)])
def test_equals_a_slow_discriminator(generator, model_type, rows, sentences, length):
    model, batch = model_of(generator(), model_type), random_batch(rows, sentences, length=length)
    draws = random_like_the_objective((rows * sentences, length), seed=5)
    torch.manual_seed(5)
    output = model(**batch)
    wanted, replaced = slow_parts(model, batch, draws)
    assert replaced > 0
    assert output.parts["replaced_tokens"].item() == pytest.approx(0.5 * wanted.item(), rel=1e-7)
    assert output.loss.item() == pytest.approx(sum(output.parts.values()).item())
    weights = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(output.parts["replaced_tokens"], weights, allow_unused=True)
    exact = torch.autograd.grad(0.5 * wanted, weights, allow_unused=True)
    reached = 0
    for one, other in zip(found, exact, strict=True):
        one, other = (torch.zeros(()) if x is None else x for x in (one, other))
        torch.testing.assert_close(one.expand_as(other) if one.dim() == 0 else one, other, rtol=1e-6, atol=1e-10)
        reached += bool(other.abs().sum() > 0)
    assert reached > len(weights) / 2


def test_the_contrastive_part_is_simcse(generator):
    model, batch = model_of(generator()), random_batch(4, 3)
    plain = copy.deepcopy(model)
    plain.update_settings(objective="simcse", objective_options={})
    assert model(**batch).parts["info_nce"].item() == pytest.approx(plain(**batch).loss.item(), rel=1e-12)


def test_every_trained_parameter_is_used_and_the_generator_is_left_alone(generator):
    """DistributedDataParallel stops at a parameter without gradient."""
    model = model_of(generator())
    model(**random_batch(4, 2)).loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert any(name.startswith("objective.discriminator") for name, p in model.named_parameters() if p.requires_grad)
    assert all(p.grad is None and not p.requires_grad for p in model.objective._generator[0].parameters())
    assert not model.objective._generator[0].training
    assert not any("generator" in name for name in model.state_dict())


def test_the_encoder_learns_through_the_vector(generator):
    model = model_of(generator())
    output = model(**random_batch(4, 2))
    output.parts["replaced_tokens"].backward()
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_the_default_generator_is_the_start(generator, tmp_path):
    start = generator()
    model = AutoModelForCL.from_pretrained(start, objective="diffcse")
    model.prepare_objective()
    wanted = AutoModelForMaskedLM.from_pretrained(start).state_dict()
    found = model.objective._generator[0].state_dict()
    assert all(torch.equal(found[name], x) for name, x in wanted.items())
    copied = model.objective.discriminator.state_dict()
    assert all(torch.equal(copied[name], x) for name, x in model.bert.state_dict().items())


def test_evaluation_is_simcse_and_draws_nothing(generator):
    model, batch = model_of(generator()).eval(), random_batch(4, 2)
    state = torch.get_rng_state()
    output = model(**batch)
    assert output.parts is None and torch.equal(torch.get_rng_state(), state)


def test_a_row_with_fewer_sentences_counts_with_what_it_has(generator):
    """Its further rows are padding: no tokens, and no vector that could be told apart."""
    model, batch = model_of(generator()), random_batch(3, 3)
    batch["input_ids"][1, 2], batch["attention_mask"][1, 2] = PAD, 0
    vectors = model.embed(*(x.flatten(0, 1) for x in batch.values())).view(3, 3, -1)
    torch.manual_seed(5)
    inputs = model.objective.prepare(EncodedBatch(vectors, batch, model))
    draws = random_like_the_objective((8, 9), seed=5)
    rows = torch.cat([draws[:5], torch.ones(1, 9), draws[5:]])
    wanted, _ = slow_parts(model, batch, rows)
    assert inputs.other_losses["replaced_tokens"].item() == pytest.approx(0.5 * wanted.item(), rel=1e-7)


def test_a_saved_run_goes_on_as_if_never_interrupted(generator, tmp_path):
    def train(model, seeds):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        losses = []
        for seed in seeds:
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss = model(**random_batch(4, 2, seed=seed)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    source = generator()
    whole = train(model_of(source), range(4))
    model = model_of(source)
    train(model, range(2))
    model.save_pretrained(tmp_path / "run")
    again = AutoModelForCL.from_pretrained(tmp_path / "run", dtype=torch.float64)
    again.prepare_objective()
    assert train(again.double().train(), range(2, 4)) == pytest.approx(whole[2:], rel=1e-6)
    stock, info = AutoModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]


def steps(model, data, draws):
    found = []
    for batch, seed in zip(data, draws, strict=True):
        torch.manual_seed(seed)
        model.zero_grad()
        output = model(**batch)
        output.loss.backward()
        inner = getattr(model, "module", model)
        gradients = {name: p.grad.clone() for name, p in inner.named_parameters() if p.grad is not None}
        found.append((output.loss.item(), gradients))
    return found


class Share:
    """What one of several processes finds; masks are drawn per process, so every word is masked."""

    def __init__(self, generator):
        self.generator = generator

    def __call__(self, rank, processes):
        model = model_of(self.generator)
        model.objective.mask_ratio = 1.0
        mine = {name: x[2 * rank : 2 * rank + 2] for name, x in random_batch(4, 2, length=8).items()}
        return steps(DistributedDataParallel(model), [mine], [rank])


def test_two_processes_are_one(generator, tmp_path):
    source = generator()
    model = model_of(source)
    model.objective.mask_ratio = 1.0
    whole = steps(model, [random_batch(4, 2, length=8)], [0])
    folder = tmp_path / "processes"
    folder.mkdir()
    shares = in_processes(Share(source), folder)
    for step, (loss, gradients) in enumerate(whole):
        assert sum(share[step][0] for share in shares) / 2 == pytest.approx(loss, rel=1e-9)
        for share in shares:
            assert share[step][1].keys() == gradients.keys()
            for name, gradient in gradients.items():
                torch.testing.assert_close(share[step][1][name], gradient, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "options, named", [({"mask_ratio": 0.0}, "mask_ratio"), ({"replaced_weight": 0.0}, "replaced_weight")]
)
def test_values_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        make_objective("diffcse", 8, {}, options)


def test_a_generator_that_does_not_fit_is_refused(generator, tmp_path, tokenizer):
    with pytest.raises(ValueError, match="vocabulary of 31 tokens and the model one of 30"):
        model_of(generator(vocab_size=31))
    with pytest.raises(ValueError, match="generator.*cannot be loaded"):
        model_of(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        model_of(None)
    AutoModel.from_config(tiny_config()).save_pretrained(tmp_path / "headless")
    tokenizer.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match="headless has no trained masked-LM head"):
        model_of(str(tmp_path / "headless"))


def test_embeddings_narrower_than_the_vector_are_refused(generator):
    with pytest.raises(ValueError, match="electra.*16 numbers, the vector 32"):
        model_of(generator(), "electra")
