"""Load the model that a command or a function is given."""

from typing import Any, Unpack

import torch
from huggingface_hub.errors import HFValidationError

from ..names import KEYWORDS, ModelOptions
from ..runtime.errors import no_model
from ..runtime.files import StrPath
from ..runtime.messages import join_processes
from .simcse import SimCSE

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_model(model: StrPath | SimCSE, *, revision: str | None = None, **loading: Unpack[ModelOptions]) -> SimCSE:
    """Load a model in each of the processes that the launcher has started, or take one that is loaded.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder or hub name; or a model, which is returned as it is.
        revision (`str`, *optional*): Branch, tag or commit on the hub.
        **loading (`ModelOptions`): How the model is loaded. `None` stands for the default.

    Returns:
        `SimCSE`: The model.

    Raises:
        ValueError: If the model or the device does not exist, options are given together with a loaded model, or as
            `SimCSE` says.
    """
    settings: dict[str, Any] = {"revision": revision, **loading}
    settings = {name: value for name, value in settings.items() if value is not None}
    if isinstance(model, SimCSE):
        if settings:
            raise ValueError(f"the model is loaded already: leave out {', '.join(settings)}")
        return model
    if model == KEYWORDS:
        raise ValueError(
            f"{KEYWORDS} is keyword search, which has no vectors: only evaluate and compare take it. For a folder of "
            f"this name, write ./{KEYWORDS}"
        )
    state = join_processes()
    if "device" in settings:
        device = settings["device"]
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, ImportError) as error:  # unknown, absent, or not in this build of torch
            raise ValueError(f"device {device}: this machine cannot use it ({error}); leave out device") from None
    elif state.num_processes > 1:
        settings["device"] = str(state.device)
    if "dtype" in settings:
        settings["dtype"] = _DTYPES[settings["dtype"]]
    if "model_backend" in settings:
        settings["backend"] = settings.pop("model_backend")
    try:
        return SimCSE(model, **settings)
    except (OSError, HFValidationError) as error:
        raise ValueError(f"model {no_model(model, error)}") from error
