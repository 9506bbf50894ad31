"""Code of a card that loads the model and compares two texts, with each library that can."""

from jinja2.utils import htmlsafe_json_dumps

from ..models.pooling import HEAD_FOLDER, POOLER_FOLDERS, POOLERS
from ..models.sentence_transformers import DENSE_FOLDER
from ..postprocessing.transform import FOLDER
from .card_model import activation
from .card_subject import Subject

_TEXTS = '["A cat sits on the mat.", "A feline rests on a rug."]'
_IMPORTS = "from safetensors.torch import load_file\nfrom transformers.utils import cached_file\n"
_HEAD = """\
first = outputs.last_hidden_state[:, 0]
embeddings = torch.tanh(first @ head["linear.weight"].T + head["linear.bias"])"""
_DENOISED = """\
is_mask = inputs["input_ids"] == tokenizer.mask_token_id
states = outputs.last_hidden_state[is_mask]
for row, length in zip(inputs["attention_mask"], inputs["attention_mask"].sum(1)):
    row[{start} : length - {end}] = 0  # hides the text from the template
with torch.no_grad():
    template_states = model(**inputs).last_hidden_state[is_mask]
{load}
weight, bias = head["layer.dense.weight"], head["layer.dense.bias"]"""
_TANH = "embeddings = torch.tanh((states - template_states) @ weight.T + bias)"
_TRANSFORM = """\
both = ACT2FN[model.config.hidden_act](torch.stack([states, template_states]) @ weight.T + bias)
norm = (head["layer.LayerNorm.weight"], head["layer.LayerNorm.bias"], model.config.layer_norm_eps)
both = torch.nn.functional.layer_norm(both, both.shape[-1:], *norm)
embeddings = both[0] - both[1]"""


def code_by_library(model: Subject, in_sentence_transformers: bool) -> dict[str, str]:
    """Return the code for each library.

    Args:
        model (`Subject`): The model.
        in_sentence_transformers (`bool`): Whether sentence-transformers loads it.

    Returns:
        `dict[str, str]`: Code by the name of the library.
    """
    code = {"`simcse-hf`": _with_simcse(model)}
    if in_sentence_transformers:
        code["`sentence-transformers`"] = _with_sentence_transformers(model)
    if model.method != "flow":
        code["`transformers` alone"] = _with_transformers(model)
    return code


def _roles(model: Subject) -> dict[str, str]:
    """Return the prompts, if there is one for queries or for documents."""
    prompts = model.inference.prompts
    return prompts if prompts.get("query") or prompts.get("document") else {}


def _encoding(model: Subject, options: str = "") -> str:
    if not _roles(model):
        return f"embeddings = model.encode({_TEXTS}{options})"
    return (
        f'queries = model.encode_query(["What sits on the mat?"]{options})\n'
        f"documents = model.encode_document({_TEXTS}{options})\n"
        "print(model.similarity(queries, documents))"
    )


def _with_simcse(model: Subject) -> str:
    lines = ["from simcse_hf import SimCSE", "", f'model = SimCSE("{model.repo_id}")', _encoding(model)]
    if not _roles(model):
        lines.append(f"print(model.similarity({_TEXTS[1:-1]}))")
    if model.widths and not model.transform:
        lines.append(f"shorter = model.encode({_TEXTS}, truncate_dim={model.widths[0]})")
    return "\n".join(lines)


def _with_sentence_transformers(model: Subject) -> str:
    is_cosine = model.settings.similarity_fn_name == "cosine"
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("{model.repo_id}")',
        _encoding(model, ", normalize_embeddings=True" if is_cosine else ""),
    ]
    if not _roles(model):
        similarity = "embeddings @ embeddings.T" if is_cosine else "model.similarity(embeddings, embeddings)"
        lines.append(f"print({similarity})")
    return "\n".join(lines)


def _with_transformers(model: Subject) -> str:
    settings = model.inference
    roles = _roles(model)
    lines = [
        "import torch",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{model.repo_id}")',
        f'model = AutoModel.from_pretrained("{model.repo_id}")',
        f"texts = {_TEXTS}",
    ]
    if settings.templates:
        template = htmlsafe_json_dumps(settings.templates[0])
        lines.append(f'template = {template}.replace("[MASK]", tokenizer.mask_token)')
        lines.append('texts = [template.replace("{text}", text) for text in texts]')
    prompt = settings.prompts.get(settings.default_prompt_name or "")
    added = "the prompt that the model puts before each text"
    if roles and not prompt:
        prompt = roles.get("document", "")
        added = f"documents; before queries: {htmlsafe_json_dumps(roles.get('query', ''))}"
    if prompt or roles:
        lines.append(f"texts = [{htmlsafe_json_dumps(prompt)} + text for text in texts]  # {added}")
    pooling = _pooling(model)
    hidden = ", output_hidden_states=True" if "outputs.hidden_states" in pooling else ""
    lines += [
        "inputs = tokenizer(texts, padding=True, truncation=True, "
        f'max_length={model.max_length}, return_tensors="pt")',
        "with torch.no_grad():",
        f"    outputs = model(**inputs{hidden})",
        pooling,
    ]
    if settings.dense_layers:
        lines += ["", _IMPORTS]
    for number, layer in enumerate(settings.dense_layers):
        bias = "" if layer.get("bias") is False else ' + dense["linear.bias"]'
        lines.append(_load(model, "dense", f"{DENSE_FOLDER}/{number}"))
        lines.append(f'embeddings = torch.nn.{activation(layer)}()(embeddings @ dense["linear.weight"].T{bias})')
    if model.method == "whitening":
        lines += ["", _IMPORTS, _load(model, "whitening", FOLDER)]
        lines.append('embeddings = embeddings.double() @ whitening["linear.weight"].T + whitening["linear.bias"]')
    if settings.similarity_fn_name == "cosine":
        lines.append("embeddings = torch.nn.functional.normalize(embeddings, dim=-1)")
    return "\n".join([*lines, "print(embeddings @ embeddings.T)"])


def _load(model: Subject, variable: str, folder: str) -> str:
    """Return the line that loads the weights of a layer."""
    return f'{variable} = load_file(cached_file("{model.repo_id}", "model.safetensors", subfolder="{folder}"))'


def _pooling(model: Subject) -> str:
    """Return the code that computes `embeddings`."""
    denoising = model.inference.denoising
    if model.pooler == "cls" and not model.own_pooler:
        return "\n".join([_IMPORTS, _load(model, "head", HEAD_FOLDER), _HEAD])
    if model.pooler != "mask" or denoising == "none":
        return POOLERS[model.pooler].code.replace("MODEL", model.repo_id)
    start, end = model.inference.template_edges[0]
    load = _load(model, "head", POOLER_FOLDERS["template_head"])
    imports = _IMPORTS.replace("load_file\n", "load_file\nfrom transformers.activations import ACT2FN\n")
    states = _DENOISED.format(start=start, end=end, load=load)
    return "\n".join([imports, states, _TANH if denoising == "tanh" else _TRANSFORM])
