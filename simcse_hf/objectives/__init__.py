"""Training objectives: they turn the embeddings of a batch into a loss. Those of the files imported here are known."""

from . import (  # noqa: F401
    contrastive_tension,
    declutr,
    diffcse,
    dimension_contrastive,
    distill,
    esimcse,
    info_nce,
    is_bert,
    labelled_contrastive,
    promptbert,
    scored_pairs,
    tsdae,
)
from .base import OBJECTIVES, EncodedBatch, Objective, TrainingRows, register  # noqa: F401
from .info_nce import InfoNCE  # noqa: F401
from .registry import (  # noqa: F401
    ByDataset,
    build_objective,
    describe_options,
    described_objective,
    import_objective,
    objective_class,
    part_weights,
    split_options,
)
