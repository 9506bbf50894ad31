"""Checks of options and of training rows that several objectives share."""

from ..ops.checks import check_values
from .base import POSITIVE, TrainingRows

#: The default temperature of each similarity: those of SimCSE, Table D.1, where a dot product is not divided ("N/A").
DEFAULT_TEMPERATURES = {"cosine": 0.05, "dot": 1.0}
SIMILARITIES = tuple(DEFAULT_TEMPERATURES)


def check_similarity(similarity: str, temperature: float | None) -> tuple[str, float]:
    """Check a similarity and a temperature, and fill in the default temperature of the similarity.

    Args:
        similarity (`str`): `"cosine"` or `"dot"`.
        temperature (`float`, *optional*): The temperature, or `None` for `DEFAULT_TEMPERATURES[similarity]`.

    Returns:
        `tuple[str, float]`: The similarity and the temperature.

    Raises:
        ValueError: If the similarity is unknown, or the temperature is not a finite number above 0.
    """
    check_values(SIMILARITIES, similarity=similarity)
    if temperature is None:
        temperature = DEFAULT_TEMPERATURES[similarity]
    check_values("a number above 0", temperature=temperature)
    return similarity, temperature


def check_rows(
    rows: TrainingRows,
    most: int,
    advice: str,
    alone: str = "",
) -> None:
    """Refuse training rows with relations or with too many sentences, and batches of a single row.

    Args:
        rows (`TrainingRows`): The training data.
        most (`int`): The most sentences of a row that the objective reads.
        advice (`str`): The rest of the message: why it reads no more, and what to give.
        alone (`str`, *optional*): The problem of a batch of one row. By default such batches are accepted.

    Raises:
        ValueError: If a row has relations or more sentences, or a batch is too small.
    """
    has_relations = "relations" in rows.columns
    if has_relations or rows.num_sentences > most:
        found = "relations" if has_relations else f"{rows.num_sentences} sentences"
        raise ValueError(f"the training data has rows with {found}, but {advice}")
    if alone and rows.global_batch == 1:
        raise ValueError(f"{alone}: raise per_device_train_batch_size to at least 2")


def check_relations(rows: TrainingRows, name: str) -> None:
    """Refuse rows whose relations are not those of one positive and of hard negatives, some of which may be absent.

    Args:
        rows (`TrainingRows`): The training data.
        name (`str`): The objective.

    Raises:
        ValueError: If a row has other relations.
    """
    if "relations" in rows.columns:
        for relations in rows.dataset.with_format(None)["relations"][:]:
            if relations[:1] != [POSITIVE] or POSITIVE in relations[1:]:
                raise ValueError(
                    f"the training rows have relations, which objective {name!r} does not read: train it on single "
                    "texts, pairs, or rows of sent0, sent1 and hard negatives (see simcse-hf build-nli)"
                )
