"""How many tokens the positions of an encoder hold."""

from transformers import PreTrainedConfig

MIN_LENGTH = 3


def max_positions(config: PreTrainedConfig) -> int | None:
    """Tokens a text may have at most, special tokens included; None where the encoder sets no bound.

    RoBERTa and its relatives count positions from `pad_token_id + 1`: the table serves fewer tokens than it has rows.
    """
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    offset = (
        config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS and config.pad_token_id is not None else 0
    )
    return rows - offset


_OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def check_max_length(max_seq_length: int, config: PreTrainedConfig) -> None:
    """Raises ValueError for a length without room for a token, or beyond the encoder's positions."""
    if max_seq_length < MIN_LENGTH:
        raise ValueError(f"a max_seq_length of {max_seq_length} leaves no room for [CLS], a token and [SEP]")
    positions = max_positions(config)
    if positions is not None and max_seq_length > positions:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but this encoder ({config.model_type}) has {positions} positions. "
            f"Use max_seq_length {positions} or less."
        )
