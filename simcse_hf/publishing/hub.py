"""A trained model from its directory to a model hub, in one commit or not at all."""

import os
import re
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from transformers.utils import logging

from . import CARD, name_repository, write_card

logger = logging.get_logger(__name__)

_CONNECTION_ERRORS = (*HfHubHTTPError.__bases__, RuntimeError)  # the client's HTTP library differs between versions
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Pickles, and what only resuming a run needs. Hidden and underscored names are not for others by convention.
_NOT_PUSHED = re.compile(r"\.(bin|pt|pth|pkl|pickle|ckpt|npz)$|(^|/)(checkpoint-\d+|runs|__pycache__|[._][^/]*)(/|$)")
_PUSHED_ALL_THE_SAME = re.compile(r"^\.eval_results/[^/]+\.yaml$")
_TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b")
_TEXT_SUFFIXES = {".json", ".md", ".yaml", ".yml", ".txt", ".csv", ".log", ".py"}


class PushError(ValueError):
    """A push that did not come through. The local directory is as it was, and so is the repository's branch."""


def files_to_push(directory: str | os.PathLike) -> list[str]:
    """Paths below `directory`, relative and sorted, that belong in a published model.

    Left out are pickles (`training_args.bin`, optimizer states), `checkpoint-*`, and hidden names but `.eval_results`.

    Raises:
        ValueError: the directory is no whole model, or a file holds an access token.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"{directory} is no directory: name the one that the model was saved in")
    paths = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    paths = [path for path in paths if _PUSHED_ALL_THE_SAME.search(path) or not _NOT_PUSHED.search(path)]
    missing = [
        what
        for what, names in {
            "a config (config.json)": ("config.json",),
            "weights (model.safetensors)": WEIGHTS,
            "a tokenizer (tokenizer_config.json)": ("tokenizer_config.json",),
        }.items()
        if not set(names) & set(paths)
    ]
    if missing:
        raise ValueError(f"{directory} lacks {' and '.join(missing)}: save model and tokenizer there first")
    for path in paths:
        if Path(path).suffix in _TEXT_SUFFIXES and _TOKEN.search((directory / path).read_bytes()):
            raise ValueError(f"{directory / path} holds an access token; remove it from there, and revoke it")
    return paths


def push_model(
    directory: str | os.PathLike,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str = "Upload model",
    token: str | None = None,
) -> str:
    """Pushes a saved model with its tokenizer and card; the repository is made where it is not there.

    All files go in one commit, so that the branch never holds a part of them. A directory without card gets one
    ([`write_card`]) first.

    Args:
        directory: as `save_model` of the Trainer leaves it.
        repo_id: `org/name`, or `name` for the token's owner.
        private: of a new repository; default: the owner's setting.
        revision: branch, made where it is not there; default: main.
        create_pr: propose the commit in place of making it.
        commit_message: its first line.
        token: of access; default: of `HF_TOKEN` or `hf auth login`.

    Returns:
        The URL of the commit, or of the pull request.

    Raises:
        ValueError: `repo_id` is no name of a repository, or as [`files_to_push`].
        PushError: the hub refused or could not be reached; what to do about it.
    """
    directory = Path(directory)
    check_repo_id(repo_id)
    files_to_push(directory)
    if (directory / CARD).exists():
        name_repository(directory, repo_id)
    else:
        write_card(directory, repo_id=repo_id)
    operations = [CommitOperationAdd(path, directory / path) for path in files_to_push(directory)]
    api = HfApi(token=token, library_name="simcse_hf")
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repo_id, operations, commit_message=commit_message, revision=revision, create_pr=create_pr
        )
    except OfflineModeIsEnabled as error:
        raise PushError(f"{repo_id} was not pushed: unset HF_HUB_OFFLINE, which forbids all requests") from error
    except HfHubHTTPError as error:
        raise PushError(f"{repo_id} was not pushed: {_advice(error, token)}") from error
    except ValueError as error:  # the card's front matter, as the hub judges it before any upload
        raise PushError(f"{repo_id} was not pushed: {error}") from error
    except _CONNECTION_ERRORS as error:
        raise PushError(
            f"{repo_id} was not pushed: the connection to {api.endpoint} failed ({_innermost(error)}). Nothing is "
            "lost; run the same command again, and what was uploaded is not sent twice."
        ) from error
    return commit.pr_url or commit.commit_url


def check_repo_id(repo_id: str) -> None:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"{repo_id!r} is no name of a repository: {error}") from error


def _advice(error: HfHubHTTPError, token: str | None) -> str:
    status = error.response.status_code
    if status == 401 and (token or get_token()) is None:
        return "there is no access token. Log in with `hf auth login`, or set HF_TOKEN."
    if status == 401:
        return "the hub does not know the access token. Log in again with `hf auth login`, or correct HF_TOKEN."
    if status == 403:
        return "the access token may not write there. Use one with write access, or --create_pr."
    return f"the hub answered {status}: {error.server_message or 'no message'}"


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".rstrip(": ")
