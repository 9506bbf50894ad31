"""What a card says about a model: a summary, facts, notes for its users, code and papers."""

from ..data.contents import CONTENTS
from ..data.views import VIEW_CLASSES
from ..evaluation.threshold import describe_threshold
from ..models.pooling import POOLERS
from ..models.settings import THRESHOLD, ContrastiveSettings
from .card_subject import Subject, described_objective
from .papers import PAPERS, Paper

_HEAD = """\
from safetensors.torch import load_file
from transformers.utils import cached_file

head = load_file(cached_file("MODEL", "model.safetensors", subfolder="2_Dense"))
first = outputs.last_hidden_state[:, 0]
embeddings = torch.tanh(first @ head["linear.weight"].T + head["linear.bias"])"""
_DENOISED = """\
from safetensors.torch import load_file
from transformers.activations import ACT2FN
from transformers.utils import cached_file

is_mask = inputs["input_ids"] == tokenizer.mask_token_id
states = outputs.last_hidden_state[is_mask]
for row, length in zip(inputs["attention_mask"], inputs["attention_mask"].sum(1)):
    row[{start} : length - {end}] = 0  # hides the text from the template
with torch.no_grad():
    template_states = model(**inputs).last_hidden_state[is_mask]
head = load_file(cached_file("MODEL", "model.safetensors", subfolder="template_head"))
weight, bias = head["layer.dense.weight"], head["layer.dense.bias"]
"""
_TANH = "embeddings = torch.tanh((states - template_states) @ weight.T + bias)"
_TRANSFORM = """\
both = ACT2FN[model.config.hidden_act](torch.stack([states, template_states]) @ weight.T + bias)
norm = (head["layer.LayerNorm.weight"], head["layer.LayerNorm.bias"], model.config.layer_norm_eps)
both = torch.nn.functional.layer_norm(both, both.shape[-1:], *norm)
embeddings = both[0] - both[1]"""


def summary(model: Subject) -> str:
    """Say what the model is."""
    followed = f", followed by a [{model.method}]({PAPERS[model.method].url})" if model.transform else ""
    encoder = f"a `{model.config.model_type}` encoder"
    return f"Sentence embeddings with {model.dim} dimensions from {encoder}{_origin(model)}{followed}."


def _origin(model: Subject) -> str:
    """Name the objective and the rows, as the end of a sentence."""
    name = model.settings.objective
    if not model.run:
        return "" if name == "simcse" else f", configured for the objective `{name}`"
    papers = _known(model.objective.papers) if model.objective else []
    objective = f"[`{name}`]({papers[0].url})" if papers else f"the objective `{name}`"
    rows = CONTENTS.get(model.run.get("rows", ""))
    trained = f" {rows.trained}" if rows else ""
    return f", trained with {objective}{trained}{_sources_of_positives(model)}"


def _sources_of_positives(model: Subject) -> str:
    """Say of what the pairs of single sentences were made, as the end of a sentence."""
    if model.run.get("rows") != "sentences":
        return ""
    if not model.view:
        return ", from single sentences"
    templates = len(model.settings.templates)
    if templates > 1:
        return f", from each sentence in {templates} templates"
    name = model.view["name"]
    if name != "identity":
        views = "two views" if model.view["both"] else "a view"
        return f", from {views} of each sentence (`{name}`)"
    if model.encoders == 2:
        return ", from each sentence in two encoders"
    return ", from two dropout views of each sentence"


def pooler(model: Subject) -> str:
    """Name the pooler, and say what it does."""
    return f"`{model.pooler}`: {POOLERS[model.pooler].words}"


def dense_layers(settings: ContrastiveSettings) -> str:
    """List the dense layers after the pooler."""
    layers = []
    for layer in settings.dense_layers:
        layers.append(f"{layer['in_features']} to {layer['out_features']} ({activation(layer)})")
    return f"{', '.join(layers)}, after the pooler"


def fit(model: Subject) -> str:
    """Say how the transform was fitted."""
    assert model.fit is not None and model.transform is not None
    columns = ", ".join(f"`{column}`" for column in model.fit.columns)
    return (
        f"{model.method} from {model.transform.input_dim} to {model.dim} dimensions, fitted without labels on "
        f"{model.fit.sentences:,} sentences of `{model.fit.file}` ({columns})"
    )


def longest_text(model: Subject) -> str:
    """Say how long a text can be."""
    return f"{model.max_length} tokens" if model.max_length else "as the tokenizer allows"


def activation(layer: dict) -> str:
    """Return the name of the class in `torch.nn` that a dense layer applies."""
    return layer.get("activation_function", "Tanh").rpartition(".")[2]


def note(model: Subject) -> str:
    """Say where other libraries need care."""
    return " ".join(filter(None, [_pooler_note(model), _transform_note(model)]))


def _pooler_note(model: Subject) -> str:
    settings = model.inference
    if settings.mlp_only_train:
        return (
            "The dense + tanh head was used only during training (Table 6 of the SimCSE paper). The embedding is the "
            "first token **before** the head, so `pooler_output` of `transformers` is not the embedding of this model."
        )
    if model.pooler == "cls" and model.own_pooler:
        output = f"the input of the {model.method}" if model.transform else "the embedding"
        if settings.dense_layers:
            output = "the input of the dense layers"
        return f"The encoder's own pooler is the trained head: `pooler_output` of `transformers` is {output}."
    if model.pooler == "mask":
        subtracted = ", and the embedding of the template without the text is subtracted"
        return (
            f"Each text is first put into the template `{settings.templates[0]}`"
            f"{'' if settings.denoising == 'none' else subtracted}. `SimCSE` does this itself; sentence-transformers "
            "has no such pooling."
        )
    if POOLERS[model.pooler].mode is None:
        return (
            "sentence-transformers has no such pooling: `SentenceTransformer` would average all tokens, including "
            "[CLS], and give other embeddings."
        )
    return ""


def _transform_note(model: Subject) -> str:
    if model.transform is None:
        return ""
    text = (
        f"The {model.method} is applied after the pooler. `SimCSE` does this itself; `postprocess=False` turns it off."
    )
    if model.method == "flow":
        text += (
            " No other library supports it: `transformers` gives the embeddings before the flow, and "
            "sentence-transformers cannot load this model."
        )
    dims = model.settings.matryoshka_dims
    if dims:
        text += (
            f" It mixes all dimensions, so the leading {' or '.join(map(str, dims))} dimensions, which were trained "
            f"to be used alone, can be used alone only before the {model.method}."
        )
    return text


def length_limit(model: Subject) -> str:
    """Say what an embedding stands for, and up to which length."""
    text = "An embedding stands for a sentence or a short paragraph."
    length = model.settings.max_seq_length
    if model.run and length:
        text += f" The model was trained on texts of at most {length} tokens and is less tested on longer ones."
    return text


def threshold(model: Subject) -> str:
    """Say from which cosine two texts are similar."""
    saved = getattr(model.config, THRESHOLD, None)
    if saved:
        found = describe_threshold(saved)
        return f"`SimCSE.is_similar` calls two texts similar from {found}. Other data needs another threshold."
    return (
        'Cosine similarities are meant for ranking. A threshold for "the same meaning" has to be chosen on your own '
        "data."
    )


def papers(model: Subject) -> list[Paper]:
    """List the papers to cite, those of the objective first."""
    settings = model.settings
    names = [*model.objective.papers] if model.objective else []
    for loss, _ in settings.losses().values():
        objective = described_objective(loss)
        if objective:
            names += objective.papers
    view = VIEW_CLASSES.get(model.view.get("name", ""))
    is_of_encoder = model.view.get("name") == "identity" and model.encoders == 2
    is_of_method = settings.objective == "tsdae" or len(settings.templates) > 1 or is_of_encoder
    if view and view.paper and not is_of_method:
        names.append(view.paper)
    if settings.do_mlm and settings.objective != "declutr":
        names.append("simcse")
    if settings.matryoshka_dims:
        names.append("matryoshka")
    if model.arguments.get("gradcache_chunk_size"):
        names.append("gradcache")
    if model.transform:
        names.append(model.method)
    return _known(names or ["simcse"])


def _known(names: list[str] | tuple[str, ...]) -> list[Paper]:
    """Return the papers of these names, without those that `papers.bib` lacks."""
    return [PAPERS[name] for name in dict.fromkeys(names) if name in PAPERS]


def hardware(run: dict) -> str:
    """Say on what and how long the model was trained."""
    seconds = run.get("train_seconds")
    if not run.get("hardware"):
        return f"Training took {_duration(seconds)}, including evaluations." if seconds else ""
    time = f" in {_duration(seconds)}, including evaluations" if seconds else ""
    seeds = " and all seeds" if seconds and run.get("seeds") else ""
    return f"Trained on {run.get('processes') or 1} x {run['hardware']}{time}{seeds}."


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 120:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.0f} seconds"


def pooling_code(model: Subject) -> str:
    """Return Python that computes `embeddings` from the `outputs` of transformers."""
    denoising = model.inference.denoising
    code = POOLERS[model.pooler].code
    if model.pooler == "cls" and not model.own_pooler:
        code = _HEAD
    elif denoising != "none":
        start, end = model.inference.template_edges[0]
        code = _DENOISED.format(start=start, end=end) + (_TANH if denoising == "tanh" else _TRANSFORM)
    return code.replace("MODEL", model.repo_id)
