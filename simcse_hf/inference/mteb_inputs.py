"""What `mteb` asks of a model: how it is described, and the texts and the prompt of one of its calls."""

from collections.abc import Iterable, Mapping
from typing import Any


def model_meta(name: str, revision: str | None) -> Any:
    """Describe a model for `mteb`, whose names have one slash.

    Args:
        name (`str`): The folder of the model, or its name on the hub.
        revision (`str`, *optional*): Its commit.

    Returns:
        `mteb.models.ModelMeta`: The description.
    """
    from mteb.models import ModelMeta

    if name.count("/") != 1:
        name = f"local/{name.strip('/').replace('/', '_')}"
    return ModelMeta.create_empty({"name": name, "revision": revision or "no_revision_available"})


def read_inputs(
    batches: Iterable,
    prompts: Mapping[str, str],
    task_metadata: Any,
    prompt_type: Any,
) -> tuple[list[str], str | None]:
    """Return the texts that `mteb` wants to have encoded, and the prompt before them.

    As with a model of sentence-transformers, the first of these names that is among the prompts counts: task and role
    (`NFCorpus-query`), task, kind of task and role (`Retrieval-query`), kind of task, role (`query` or `document`).

    Args:
        batches (`Iterable`): Batches with their texts as `text`.
        prompts (`Mapping[str, str]`): The model's prompts by name.
        task_metadata (`mteb.TaskMetadata`): The task.
        prompt_type (`mteb.types.PromptType`, *optional*): The role of the texts, in a task that has roles.

    Returns:
        `tuple[list[str], str | None]`: The texts and the prompt; `None` stands for the model's default prompt.
    """
    from mteb.models.abs_encoder import get_prompt_name

    texts = [text for batch in batches for text in batch["text"]]
    name = get_prompt_name(dict(prompts), task_metadata, prompt_type)
    return texts, None if name is None else prompts[name]
