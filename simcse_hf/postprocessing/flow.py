"""BERT-flow: an invertible network from embeddings to a standard Gaussian, trained by maximum likelihood."""

import math
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ..ops.errors import refuse
from .transform import NOISE, VectorTransform, check_embeddings

_LOG_SCALE_LIMIT = 2.0  # a coupling scales by at most e^2, so that the map stays invertible in float32
_MOST_BLOCKS = 1000  # papers use up to 48; a damaged file may name billions


class ActNorm(nn.Module):
    """Activation normalization: z = (x + shift) exp(log_scale) per dimension (Glow, arXiv:1807.03039, section 3.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))

    @torch.no_grad()
    def initialise(self, x: torch.Tensor) -> None:
        """Set shift and scale so that the output for `x`, of shape `(n, dim)`, has mean 0 and variance 1."""
        self.shift.copy_(-x.mean(dim=0))
        self.log_scale.copy_(-x.std(dim=0, correction=0).log())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return z and log |det dz/dx|."""
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum().expand(len(x))


class InvertibleLinear(nn.Module):
    """Invertible linear layer: z = x W^T with W = P L U (Glow, section 3.2, "LU decomposition").

    P is a fixed permutation, L is unit lower triangular, and U is upper triangular with the diagonal
    sign * exp(log_diagonal). W starts as a random rotation.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q
        permutation, lower, upper = torch.linalg.lu(rotation)
        dtype = torch.get_default_dtype()
        self.permutation: torch.Tensor
        self.sign: torch.Tensor
        self.register_buffer("permutation", permutation.argmax(dim=1))  # row i of P L is row permutation[i] of L
        self.register_buffer("sign", upper.diagonal().sign().to(dtype))
        self.lower = nn.Parameter(lower.tril(-1).to(dtype))
        self.upper = nn.Parameter(upper.triu(1).to(dtype))
        self.log_diagonal = nn.Parameter(upper.diagonal().abs().log().to(dtype))

    def _factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        identity = torch.eye(len(self.sign), dtype=self.lower.dtype, device=self.lower.device)
        return self.lower.tril(-1) + identity, self.upper.triu(1) + torch.diag(self.sign * self.log_diagonal.exp())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return z and log |det dz/dx|."""
        lower, upper = self._factors()
        return x @ (lower[self.permutation] @ upper).T, self.log_diagonal.sum().expand(len(x))


class AffineCoupling(nn.Module):
    """Affine coupling: one half of the dimensions scales and shifts the other half (Glow, section 3.3).

    It starts as the identity.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.kept, self.changed = dim - dim // 2, dim // 2
        self.network = nn.Sequential(
            nn.Linear(self.kept, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2 * (dim // 2)),
        )
        for parameter in self.network[-1].parameters():
            nn.init.zeros_(parameter)

    def _log_scale_and_shift(self, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raw, shift = self.network(kept).chunk(2, dim=-1)
        return _LOG_SCALE_LIMIT * torch.tanh(raw / _LOG_SCALE_LIMIT), shift

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return z and log |det dz/dx|."""
        kept, changed = x.split([self.kept, self.changed], dim=-1)
        log_scale, shift = self._log_scale_and_shift(kept)
        return torch.cat([kept, changed * log_scale.exp() + shift], dim=-1), log_scale.sum(dim=-1)


class Flow(VectorTransform):
    """An invertible map of embeddings to points of a standard Gaussian (Li et al. 2020).

    Each block is an activation normalization, an invertible linear layer and an affine coupling, as in Glow without
    its multiple scales, because an embedding has no pixels to split off. An activation normalization comes last.

    Args:
        dim (`int`): Embedding size, at least 2.
        blocks (`int`, *optional*, defaults to `3`): Number of blocks.
        width (`int`, *optional*, defaults to `256`): Hidden units of a coupling's network.

    Raises:
        ValueError: If an argument is too small, or there are too many blocks.
    """

    method = "flow"

    def __init__(self, dim: int, blocks: int = 3, width: int = 256) -> None:
        super().__init__()
        limits = {"dim": (dim, 2, math.inf), "blocks": (blocks, 1, _MOST_BLOCKS), "width": (width, 1, math.inf)}
        for name, (value, least, most) in limits.items():
            problem = f"{name} of a flow must be at least {least} and at most {most}, got {value}"
            refuse({problem: not least <= value <= most})
        self.input_dim = self.output_dim = dim
        self.blocks, self.width = blocks, width
        layers: list[Any] = [layer for _ in range(blocks) for layer in (ActNorm(dim), InvertibleLinear(dim))]
        for block in range(blocks):
            layers.insert(3 * block + 2, AffineCoupling(dim, width))
        self.layers = nn.ModuleList([*layers, ActNorm(dim)])

    def options(self) -> dict[str, Any]:
        """Return the size and the shape of the network."""
        return {"dim": self.input_dim, "blocks": self.blocks, "width": self.width}

    def _apply_to(self, embeddings: torch.Tensor) -> torch.Tensor:
        return self(embeddings)[0]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return z, of shape `(n, dim)`, and log |det dz/dx|, of shape `(n,)`."""
        log_det = x.new_zeros(len(x))
        for layer in self.layers:
            x, layer_log_det = layer(x)
            log_det = log_det + layer_log_det
        return x, log_det

    def log_likelihood(self, x: torch.Tensor) -> torch.Tensor:
        """Return the log densities of embeddings in nats: log N(z; 0, I) + log |det dz/dx| (Li et al. 2020, eq. 4)."""
        z, log_det = self(x)
        return log_det - 0.5 * z.square().sum(dim=1) - 0.5 * self.input_dim * math.log(2 * math.pi)

    @torch.no_grad()
    def initialise(self, x: torch.Tensor) -> None:
        """Initialise every activation normalization from what reaches it of `x`, of shape `(n, dim)`."""
        for layer in self.layers:
            if isinstance(layer, ActNorm):
                layer.initialise(x)
            x, _ = layer(x)


def fit_flow(
    vectors: torch.Tensor,
    *,
    blocks: int = 3,
    width: int = 256,
    epochs: int = 5,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 42,
    show_progress_bar: bool = False,
) -> tuple[Flow, list[float]]:
    """Train a flow by maximum likelihood (BERT-flow, Li et al. 2020, arXiv:2011.05864, eq. 4).

    It uses Adam with a learning rate that decays linearly to 0, and clips gradients to norm 1. The same seed gives the
    same flow on one machine, and the global random state is restored afterwards.

    Args:
        vectors (`torch.Tensor`): Embeddings of shape `(n, dim)`, not normalized.
        blocks (`int`, *optional*, defaults to `3`): See [`Flow`].
        width (`int`, *optional*, defaults to `256`): See [`Flow`].
        epochs (`int`, *optional*, defaults to `5`): Passes over the embeddings.
        batch_size (`int`, *optional*, defaults to `256`): Embeddings per step.
        learning_rate (`float`, *optional*, defaults to `1e-3`): Learning rate of the first step.
        seed (`int`, *optional*, defaults to `42`): Seed of the initial weights and the order.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar over the steps.

    Returns:
        `tuple[Flow, list[float]]`: The flow, and the mean log-likelihood of the embeddings in nats per dimension,
        before training and after each epoch.

    Raises:
        ValueError: If there are fewer embeddings than dimensions, a dimension is constant, values are not finite, an
            argument is too small, or training diverges.
    """
    check_embeddings(vectors)
    count, dim = vectors.shape
    too_few = (
        f"a flow over {dim} dimensions needs more than {dim} embeddings, better thousands, got {count}: the "
        "likelihood of so few has no bound. Give more sentences."
    )
    refuse(
        {
            f"epochs must be at least 1, got {epochs}": epochs < 1,
            f"batch_size must be at least 1, got {batch_size}": batch_size < 1,
            f"learning_rate must be a number above 0, got {learning_rate}": not 0 < learning_rate < math.inf,
            too_few: count <= dim,
        }
    )
    vectors = vectors.to(torch.get_default_dtype())
    deviations = vectors.double().std(dim=0)
    constant = (deviations <= NOISE * vectors.abs().amax(dim=0)).nonzero()
    if len(constant):
        raise ValueError(
            f"dimension {int(constant[0, 0]) + 1} is the same in all {count} embeddings, so their likelihood has no "
            "bound: give sentences that differ"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = Flow(dim, blocks, width).to(vectors.device)
        flow.initialise(vectors)
        optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)
        steps = epochs * math.ceil(count / batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        history = [_mean_log_likelihood(flow, vectors)]
        with tqdm(total=steps, desc="Fitting the flow", unit="step", disable=not show_progress_bar) as bar:
            for epoch in range(epochs):
                for rows in torch.randperm(count).split(batch_size):
                    loss = -flow.log_likelihood(vectors[rows]).mean() / dim
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    bar.update()
                history.append(_mean_log_likelihood(flow, vectors))
                bar.set_postfix(nats_per_dim=f"{history[-1]:.3f}")
                if not math.isfinite(history[-1]):
                    raise ValueError(
                        f"the flow diverged in epoch {epoch + 1} (log-likelihood {history[-1]}): lower the learning "
                        f"rate of {learning_rate}"
                    )
    return flow.requires_grad_(False).eval(), history


@torch.no_grad()
def _mean_log_likelihood(flow: Flow, vectors: torch.Tensor) -> float:
    return sum(flow.log_likelihood(part).sum().item() for part in vectors.split(8192)) / vectors.numel()
