"""Compare the embeddings that a server gives with those of its model."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Unpack
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..encoding.probes import SERVED
from ..encoding.simcse import SimCSE, load_model
from ..models.pooling import POOLERS
from ..names import ModelOptions
from ..retrieval.description import SAME
from ..runtime.errors import SettingError
from ..runtime.files import StrPath
from ..runtime.outputs import Result


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
            served = torch.tensor([row["embedding"] for row in json.load(answer)["data"]])
    except Exception as error:  # of the connection, of HTTP, of JSON, or of its content
        said = error.read()[:300] if isinstance(error, HTTPError) else ""
        raise SettingError(
            f"{address} gives no embeddings ({error!r} {said!r}): start the server, check the address, which often "
            f"ends in /v1/embeddings, and give served_name if the model is not {name!r} there"
        ) from error
    expected = encoder.encode(texts)
    if served.shape != expected.shape:
        raise SettingError(
            f"{url} gives embeddings of shape {tuple(served.shape)}, and {encoder.name_or_path} of "
            f"{tuple(expected.shape)}: it serves another model, or leaves out a layer after the pooling"
        )
    cosines = cosine_similarity(served, expected)
    least = int(cosines.argmin())
    cause = "" if cosines[least] >= SAME else _likely_cause(encoder, served, cosines)
    length = float(served.norm() / expected.norm())
    return ServerCheck(len(texts), float(cosines[least]), texts[least][:60], length, cause)


def _likely_cause(model: SimCSE, served: Tensor, cosines: Tensor) -> str:
    """Say which other way to encode gives the embeddings of a server."""
    short = SERVED[:-2]
    own = POOLERS[model.pooler_type]
    if cosines[: len(short)].min() >= SAME:
        return f"it does not cut long texts after {model.max_length} tokens"
    for name, pooler in POOLERS.items():
        with suppress(OSError, ValueError):  # a pooler that the model cannot have
            other = SimCSE(model.name_or_path, pooler_type=name, postprocess=False, revision=model.revision)
            for prompt in {"", *model.prompts.values()}:
                if cosine_similarity(served[: len(short)], other.encode(short, prompt=prompt)).min() >= SAME:
                    return f"it takes {pooler.words} after the prompt {prompt!r}, and the model {own.words}"
    return "other weights, another tokenizer or another length; no other pooler or prompt of the model gives them"
