"""BERT-flow: an invertible network from embeddings to a standard Gaussian, trained by maximum likelihood."""

import math

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..runtime.errors import DataError, SettingError, check_values
from .transform import NOISE, VectorTransform, check_embeddings

_LOG_SCALE_LIMIT = 2.0  # a coupling scales by at most e^2, so that the map stays invertible in float32
#: z, and log |det dz/dx|.
_Mapped = tuple[Tensor, Tensor]
_MOST_BLOCKS = 1000  # papers use up to 48; a damaged file may name billions


class ActNorm(nn.Module):
    """Activation normalization: z = (x + shift) exp(log_scale) per dimension (Glow, arXiv:1807.03039, section 3.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> _Mapped:
        """Return z and log |det dz/dx|."""
        z = (x + self.shift) * self.log_scale.exp()
        return z, self.log_scale.sum()


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
        self.permutation = nn.Buffer(permutation.argmax(dim=1))  # row i of P L is row permutation[i] of L
        diagonal = upper.diagonal()
        self.sign = nn.Buffer(diagonal.sign().to(dtype))
        self.lower = nn.Parameter(lower.tril(-1).to(dtype))
        self.upper = nn.Parameter(upper.triu(1).to(dtype))
        self.log_diagonal = nn.Parameter(diagonal.abs().log().to(dtype))

    def forward(self, x: Tensor) -> _Mapped:
        """Return z and log |det dz/dx|."""
        diagonal = torch.diag(self.sign * self.log_diagonal.exp())
        lower = self.lower.tril(-1).fill_diagonal_(1)
        upper = self.upper.triu(1) + diagonal
        weight = lower[self.permutation] @ upper
        return x @ weight.T, self.log_diagonal.sum()


class AffineCoupling(nn.Module):
    """Affine coupling: one half of the dimensions scales and shifts the other half (Glow, section 3.3).

    It starts as the identity.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.changed = dim // 2
        self.kept = dim - self.changed
        self.network = nn.Sequential(
            nn.Linear(self.kept, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2 * self.changed),
        )
        for parameter in self.network[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> _Mapped:
        """Return z and log |det dz/dx|."""
        kept, changed = x.split([self.kept, self.changed], dim=-1)
        raw, shift = self.network(kept).chunk(2, dim=-1)
        log_scale = _LOG_SCALE_LIMIT * torch.tanh(raw / _LOG_SCALE_LIMIT)
        z = torch.cat([kept, changed * log_scale.exp() + shift], dim=-1)
        return z, log_scale.sum(dim=-1)


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
        if dim < 2:
            raise SettingError(f"dim of a flow must be at least 2, got {dim}")
        check_values(range(1, _MOST_BLOCKS + 1), blocks=blocks)
        check_values("an integer above 0", width=width)
        self.input_dim = dim
        self.output_dim = dim
        self.options = {"dim": dim, "blocks": blocks, "width": width}
        linears = [InvertibleLinear(dim) for _ in range(blocks)]
        couplings = [AffineCoupling(dim, width) for _ in range(blocks)]
        self.layers = nn.ModuleList()
        for linear, coupling in zip(linears, couplings, strict=True):
            self.layers.extend([ActNorm(dim), linear, coupling])
        self.layers.append(ActNorm(dim))

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        return self(embeddings)[0]

    def forward(self, x: Tensor) -> _Mapped:
        """Return z, of shape `(n, dim)`, and log |det dz/dx|, of shape `(n,)`."""
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return x, total

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return the log densities of embeddings in nats: log N(z; 0, I) + log |det dz/dx| (Li et al. 2020, eq. 4)."""
        z, log_det = self(x)
        distance = 0.5 * z.square().sum(dim=1)
        constant = 0.5 * self.input_dim * math.log(2 * math.pi)
        return log_det - distance - constant

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Let every activation normalization give mean 0 and variance 1 for what reaches it of `x`, `(n, dim)`."""
        for layer in self.layers:
            if isinstance(layer, ActNorm):
                layer.shift.copy_(-x.mean(dim=0))
                layer.log_scale.copy_(-x.std(dim=0, correction=0).log())
            x, _ = layer(x)


def fit_flow(
    vectors: Tensor,
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
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar over the epochs.

    Returns:
        `tuple[Flow, list[float]]`: The flow, and the mean log-likelihood of the embeddings in nats per dimension,
        before training and after each epoch.

    Raises:
        DataError: If there are fewer embeddings than dimensions, a dimension is constant, or values are not finite.
        SettingError: If an argument is too small, or training diverges.
    """
    check_embeddings(vectors)
    count, dim = vectors.shape
    check_values("an integer above 0", epochs=epochs, batch_size=batch_size)
    check_values("a number above 0", learning_rate=learning_rate)
    if count <= dim:
        raise DataError(f"a flow over {dim} dimensions needs more than {dim} embeddings, got {count}: give thousands")
    vectors = vectors.to(torch.get_default_dtype())
    largest = vectors.abs().amax(dim=0)
    constant = vectors.double().std(dim=0) <= NOISE * largest
    if constant.any():
        dimension = int(constant.int().argmax()) + 1
        raise DataError(f"dimension {dimension} is the same in all {count} embeddings: give sentences that differ")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = Flow(dim, blocks, width).to(vectors.device)
        flow.initialise(vectors)
        optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)
        steps = epochs * math.ceil(count / batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        history = [_mean_log_likelihood(flow, vectors)]
        numbers = range(1, epochs + 1)
        for epoch in tqdm(numbers, "Fitting the flow", unit="epoch", disable=not show_progress_bar):
            for rows in torch.randperm(count).split(batch_size):
                loss = -flow.log_likelihood(vectors[rows]).mean() / dim
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            history.append(_mean_log_likelihood(flow, vectors))
            if not math.isfinite(history[-1]):
                raise SettingError(f"the flow diverged in epoch {epoch}: lower the learning rate of {learning_rate}")
    return flow.requires_grad_(False).eval(), history


@torch.no_grad()
def _mean_log_likelihood(flow: Flow, vectors: Tensor) -> float:
    total = 0.0
    for part in vectors.split(8192):
        total += flow.log_likelihood(part).sum().item()
    return total / vectors.numel()
