"""The objective of a contrastive model: create it, and save and load its state."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from ..objectives import Objective, make_objective
from ..objectives.base import Encoder
from ..objectives.masked_lm import StockMaskedLMHead
from ..objectives.matryoshka import make_matryoshka
from .settings import ContrastiveSettings

if TYPE_CHECKING:
    _Base = PreTrainedModel
else:
    _Base = object

logger = logging.get_logger(__name__)

# The state of what is trained beside the encoder and is not part of the embedding: the objective and a second encoder.
# Only a run that continues needs it. In the main weights it would be unexpected keys for AutoModel. Files whose name
# begins with an underscore are not pushed to the hub.
OBJECTIVE_FILE = "_objective.safetensors"
AUXILIARY_MODULES = ("objective", "second_encoder")

#: Settings under which the saved state of an objective fits.
_OBJECTIVE_SETTINGS = ("objective", "objective_options", "matryoshka_dims")


class ModelWithObjective(_Base):
    """What a [`~modeling.ContrastiveModel`] trains beside its encoder: the objective, and perhaps a second encoder."""

    settings: ContrastiveSettings
    objective: Objective | None
    second_encoder: Any
    unpadded: bool
    fast_dropout: bool
    has_own_pooler: bool
    #: `"kept"` if the dense + tanh head came from the checkpoint, `"fresh"` if it was drawn at random.
    head_source: str
    _saved: dict[str, Any]  # the settings of the checkpoint
    has_section: bool
    _objective_file: str | None
    _stock_mlm_head: StockMaskedLMHead

    if TYPE_CHECKING:  # transformers and ContrastiveModel define these

        @property
        def base_model(self) -> PreTrainedModel:
            """The encoder."""
            ...

        @property
        def embedding_dim(self) -> int:
            """The size of an embedding."""
            ...

        @property
        def contrastive_head(self) -> nn.Module:
            """The dense + tanh head."""
            ...

    def prepare_objective(self) -> None:
        """Create what training needs beside the encoder: the objective, and the second encoder if there are two.

        The Trainer calls this before it creates the optimizer. Without a Trainer, the first loss does. If the model
        was loaded from a checkpoint with the same objective, the objective continues from its saved state.

        Raises:
            ValueError: If the objective is unknown, or has no such options, or their values are not valid.
        """
        settings = self.settings.to_dict()
        name, options, dim = self.settings.objective, self.settings.objective_options, self.embedding_dim
        if self.settings.matryoshka_dims:
            self.objective = make_matryoshka(name, dim, self.settings.matryoshka_dims, settings, options)
        else:
            self.objective = make_objective(name, dim, settings, options)
        self._check_head_can_learn()
        self.objective.attach(cast(Encoder, self))
        if max(self.settings.encoders, self.objective.encoders) == 2:
            if self.objective.num_views == 1:
                raise ValueError(
                    f"The objective {name!r} reads one text per row, but encoders is 2. Set encoders to 1."
                )
            self.second_encoder = self.copy_encoder()
        self.objective.to(self.device).train(self.training)
        if self._objective_file and all(self._saved.get(name) == settings[name] for name in _OBJECTIVE_SETTINGS):
            load_auxiliary_state(self, self._objective_file)

    def copy_encoder(self) -> Self:
        """Return an independent copy of the encoder, its head and its pooler, without objective and masked-LM head."""
        speed = {"unpadded": self.unpadded, "fast_dropout": self.fast_dropout}
        twin = type(self)(self.config, do_mlm=False, encoders=1, **speed)
        names = twin.state_dict().keys()
        twin.load_state_dict({name: tensor for name, tensor in self.state_dict().items() if name in names})
        cast(nn.Module, twin).to(self.device, self.dtype)
        return twin.train(self.training)

    def _check_head_can_learn(self) -> None:
        """Refuse to train an encoder under a random head that is frozen, as peft leaves it.

        An adapter file does not hold the head. After reloading, another random head would follow the encoder.

        Raises:
            ValueError: If the embeddings of inference go through that head.
        """
        head = [parameter.requires_grad for parameter in self.contrastive_head.parameters()]
        encoder = [parameter.requires_grad for parameter in self.base_model.parameters()]
        if self.settings.pooler_type != "cls" or self.head_source == "kept" or any(head) or not any(encoder):
            return
        name = next(name for name, module in self.named_modules() if module is self.contrastive_head)
        problem = (
            "The dense + tanh head was drawn at random and is frozen, so training cannot change it, and the adapter "
            f"files of peft do not hold it. Add modules_to_save=[{name.rpartition('.')[2]!r}] to the peft config, or "
            "unfreeze the head, or load the model with another pooler_type, such as 'avg'."
        )
        if self.settings.inference_pooler == "cls":
            raise ValueError(problem)
        logger.warning(f"{problem} (The embeddings of inference do not use this head: mlp_only_train is set.)")


def save_auxiliary_state(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Save the tensors of `AUXILIARY_MODULES`. If there are none, remove the file of an earlier save.

    Args:
        directory (`str` or `os.PathLike`): The checkpoint.
        state_dict (`dict[str, torch.Tensor]`): The state of the whole model.
    """
    tensors = {name: x.contiguous() for name, x in state_dict.items() if name.split(".")[0] in AUXILIARY_MODULES}
    path = Path(directory, OBJECTIVE_FILE)
    if tensors:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        path.unlink(missing_ok=True)


def load_auxiliary_state(model: nn.Module, path: str | os.PathLike) -> bool:
    """Load the auxiliary modules of a model, if the file exists.

    Args:
        model (`nn.Module`): A contrastive model whose objective is prepared. It is changed in place.
        path (`str` or `os.PathLike`): A checkpoint's directory, or its `OBJECTIVE_FILE`.

    Returns:
        `bool`: Whether there is such a file.

    Raises:
        ValueError: If the file does not fit the model's objective.
    """
    path = Path(path, OBJECTIVE_FILE) if Path(path).is_dir() else Path(path)
    if not path.exists():
        return False
    tensors = load_file(path)
    expected = {name: x for name, x in model.state_dict().items() if name.split(".")[0] in AUXILIARY_MODULES}
    if {n: x.shape for n, x in expected.items()} != {n: x.shape for n, x in tensors.items()}:
        raise ValueError(
            f"{path} holds the state of another objective or of other options than this model's. Use the objective "
            "and options it was saved with, or remove the file to start the objective anew."
        )
    model.load_state_dict(tensors, strict=False)
    logger.info(f"The objective continues from {path}.")
    return True
