"""Compare the embeddings that a server gives with those of its model."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Unpack
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..encoding.probes import SERVED
from ..encoding.simcse import SimCSE, load_model
from ..models.pooling import POOLERS
from ..models.settings import max_positions
from ..names import ModelOptions
from ..retrieval.description import SAME
from ..runtime.errors import SettingError
from ..runtime.files import StrPath
from ..runtime.outputs import Result

#: Tokens after which servers cut texts; one that does not cut reads all positions of the encoder.
_LENGTHS = (32, 64, 128, 256, 384, 512)


@dataclass(frozen=True)
class ServerCheck(Result):
    """What `check_server` found.

    Args:
        texts (`int`): Number of the texts that were compared.
        cosine (`float`): The smallest cosine of the server's embedding of a text with the model's.
        text (`str`): The beginning of the text that has it.
        length (`float`): How many times as long the server's embeddings are as the model's, on average.
        cause (`str`): The likely cause of a cosine below 0.999, otherwise empty.
    """

    texts: int
    cosine: float
    text: str
    length: float
    cause: str

    @property
    def exit_status(self) -> int:
        """Return the status of the command: 0 if the embeddings agree, otherwise 1."""
        return 1 if self.cause else 0

    def __str__(self) -> str:
        found = f"smallest cosine of {self.texts} texts: {self.cosine:.6f} ({self.text!r})"
        if abs(self.length - 1) > 0.01:
            found += f"\nlengths: {self.length:.3f} times the model's; a dot product sees this, a cosine does not"
        if self.cause:
            return f"{found}\nThe server gives other embeddings (below {SAME}). Likely cause: {self.cause}."
        return f"{found}\nThe server gives the embeddings of the model (at least {SAME})."


def check_server(
    url: str,
    *,
    model: StrPath | SimCSE,
    served_name: str | None = None,
    skip_long: bool = False,
    **loading: Unpack[ModelOptions],
) -> ServerCheck:
    """Compare the embeddings of a server with those of its model.

    The server has OpenAI's interface: 20 texts are sent to URL/embeddings. Its embeddings should be those of
    `SimCSE.encode`, which puts the model's default prompt before a text, if it has one.

    Args:
        url (`str`): Address of the server, such as http://localhost:8080/v1.
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        served_name (`str`, *optional*): Name of the model on the server. The default is that of `model`.
        skip_long (`bool`, *optional*, defaults to `False`): Leave out the two texts of 600 words, for a server that
            refuses what it would have to cut.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        [`ServerCheck`]: The smallest cosine and, if it is below 0.999, the likely cause.

    Raises:
        SettingError: If the model is wrong, or the server does not answer with an embedding of its size for each text.
    """
    encoder = load_model(model, **loading)
    texts = SERVED[:-2] if skip_long else SERVED
    address = f"{url.rstrip('/')}/embeddings"
    name = served_name or encoder.name_or_path
    body = json.dumps({"model": name, "input": texts}).encode()
    try:
        with urlopen(Request(address, body, {"Content-Type": "application/json"}), timeout=300) as answer:
            rows = json.load(answer)["data"]
            places = [row.get("index", place) for place, row in enumerate(rows)]
            served = torch.tensor([rows[place]["embedding"] for place in np.argsort(places)])
    except Exception as error:  # of the connection, of HTTP, of JSON, or of its content
        said = error.read()[:300] if isinstance(error, HTTPError) else ""
        raise SettingError(
            f"{address} gives no embeddings ({error!r} {said!r}): start the server, check the address, which often "
            f"ends in /v1/embeddings, and give served_name if the model is not {name!r} there"
        ) from error
    if sorted(places) != list(range(len(texts))):
        raise SettingError(
            f"{url} gives {len(rows)} embeddings for {len(texts)} texts, with {len(set(places))} values of index: "
            "each text needs one, and index is its place among the texts, from 0"
        )
    expected = encoder.encode(texts)
    if served.shape != expected.shape:
        raise SettingError(
            f"{url} gives embeddings of shape {tuple(served.shape)}, and {encoder.name_or_path} of "
            f"{tuple(expected.shape)}: it serves another model, or leaves out a layer that changes the size"
        )
    cosines = cosine_similarity(served, expected)
    least = int(cosines.argmin())
    cause = "" if cosines[least] >= SAME else _likely_cause(encoder, served, cosines)
    length = float((served.norm() / expected.norm()).nan_to_num())
    return ServerCheck(len(texts), float(cosines[least].nan_to_num(-1)), texts[least][:60], length, cause)


def _likely_cause(model: SimCSE, served: Tensor, cosines: Tensor) -> str:
    """Say which other way to encode gives the embeddings of a server, or what has been tried."""
    broken = len(served) - int(served.isfinite().all(dim=1).sum())
    if broken:
        return f"{broken} of its embeddings hold NaN or infinity, as those of a model that float16 is too small for"
    # 1. Another length.
    texts = SERVED[: len(served)]
    positions = max_positions(model.model.config)
    nearest = {0: 0.0}
    for length in {*_LENGTHS, positions or max(_LENGTHS)}:
        if positions is None or length <= positions:
            cut = model.encode(texts, max_length=length)
            nearest[length] = float(cosine_similarity(served, cut).min())
    length = max(nearest, key=nearest.__getitem__)
    if nearest[length] >= SAME:
        return f"it cuts texts after {length} tokens, and the model after {model.max_length}"
    # 2. Another pooler or prompt, or no whitening. Long texts may be cut in another way as well.
    short = SERVED[:-2]
    own = POOLERS[model.pooler_type]
    default = model.prompts.get(model.default_prompt_name or "", "")
    for name, pooler in POOLERS.items():
        with suppress(OSError, ValueError, RuntimeError):  # a pooler that the model cannot have, or of another size
            other = SimCSE(model.name_or_path, pooler_type=name, postprocess=False, revision=model.revision)
            for prompt in {"", *model.prompts.values()}:
                if cosine_similarity(served[: len(short)], other.encode(short, prompt=prompt)).min() < SAME:
                    continue
                if pooler is not own or prompt != default:
                    return f"it takes {pooler.words} after the prompt {prompt!r}, and the model {own.words}"
                if model.postprocessing is not None:
                    return f"it leaves out the {model.postprocessing.method} that is saved beside the model"
    same = int((cosines >= SAME).sum())
    return (
        "other weights, another tokenizer or another length, or a prompt that the model does not have; no other "
        f"pooler or prompt of the model gives them ({same} of {len(cosines)} texts agree, and the mean of the cosines "
        f"is {cosines.mean():.4f})"
    )
