"""Pushes a saved model to the hub, in one commit or not at all."""

from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Unpack

import yaml
from huggingface_hub import HfApi, errors, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from ..encoding.graphs import GRAPHS, ForeignGraph
from ..encoding.simcse import SimCSE
from ..runtime.errors import ModelError, SettingError, SimCSEError
from ..runtime.files import StrPath
from ..runtime.loading import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ..runtime.outputs import Result
from ..runtime.upload import CommitOptions, commit_folder, public_files
from .card import CARD, EVAL_RESULTS, name_repository
from .secrets import holds_secret

# Raised where HF_OIDC_RESOURCE is set and there is no identity token. huggingface_hub has it from 1.19 on.
_OIDC_ERRORS = (errors.OIDCError,) if hasattr(errors, "OIDCError") else ()
# The class of errors of the HTTP library differs between versions of huggingface_hub, so it is taken from the hub's
# own error. The hub checks the front matter of the card before any upload, which is a ValueError.
_PUSH_ERRORS: tuple[type[BaseException], ...] = (*HfHubHTTPError.__bases__, RuntimeError, ValueError, *_OIDC_ERRORS)
_WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", ADAPTER_WEIGHTS)


class PushError(SimCSEError):
    """A push that failed. The local directory and the branch of the repository are unchanged."""

    exit_status = 1  # of the command line: the input was right, and the run failed


def files_to_push(directory: StrPath) -> list[str]:
    """List the files of a saved model that belong into a published one, see [`public_files`].

    Args:
        directory (`str` or `os.PathLike`): The directory of the model.

    Returns:
        `list[str]`: Sorted paths relative to `directory`.

    Raises:
        ModelError: If the directory does not contain a complete model, a symbolic link leads out of it, or a file
            contains an access token or a password.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a folder. Name the folder of the model.")
    paths = public_files(directory)
    required = {
        "a config (config.json)": ("config.json", ADAPTER_CONFIG),
        "weights (model.safetensors)": _WEIGHT_FILES,
        "a tokenizer (tokenizer_config.json)": ("tokenizer_config.json",),
    }
    missing = [part for part, names in required.items() if set(names).isdisjoint(paths)]
    if missing:
        raise ModelError(f"{directory} lacks {' and '.join(missing)}. Save the model and its tokenizer there first.")
    for path in paths:
        file = directory / path
        if not file.resolve().is_relative_to(directory.resolve()):
            raise ModelError(
                f"{file} is a symbolic link to {file.resolve()}, outside of the model's folder, so nothing was "
                "pushed. Copy the file into the folder, or remove the link."
            )
        if file.suffix != ".onnx" and holds_secret(file):
            raise ModelError(
                f"{file} contains an access token or a password, so nothing was pushed. Remove it from the file and "
                "revoke it."
            )
    return paths


@dataclass(frozen=True)
class Push(Result):
    """A push of a model to the hub, or what one would upload.

    Args:
        repo_id (`str`): The repository.
        revision (`str`): The branch.
        pushed (`bool`): Whether the files were uploaded.
        url (`str`, *optional*): The URL of the commit or of the pull request.
        files (`dict[str, int]`): The sizes in bytes of the files that would be uploaded.
    """

    repo_id: str
    revision: str
    pushed: bool
    url: str | None = None
    files: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.url is not None:
            return self.url
        lines = [f"{size:>13,}  {path}" for path, size in self.files.items()]
        if CARD not in self.files:
            lines.append(f"{'to be written':>13}  {CARD}")
        return "\n".join([*lines, f"to {self.repo_id}, {self.revision}; nothing was pushed"])


def push(
    directory: StrPath,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str = "Upload model",
    dry_run: bool = False,
) -> Push:
    """Upload a saved model with its tokenizer and card to the Hugging Face hub, in one commit.

    The access token is read from HF_TOKEN, or from what `hf auth login` saved.

    Args:
        directory (`str` or `os.PathLike`): Folder in which training saved the model.
        repo_id (`str`): User or organisation, and name of the repository: OWNER/NAME.
        private (`bool`, *optional*): Make a new repository private.
        revision (`str`, *optional*): Branch, made if it does not exist, or an open pull request such as
            refs/pr/1. The default is main.
        create_pr (`bool`, *optional*, defaults to `False`): Propose the commit as a pull request.
        commit_message (`str`, *optional*, defaults to `"Upload model"`): First line of the commit message.
        dry_run (`bool`, *optional*, defaults to `False`): List what would be uploaded, and upload nothing.

    Returns:
        `Push`: The URL, or the files.

    Raises:
        SettingError: If the name has no owner, or for the reasons given in [`push_model`].
        PushError: If the hub refuses the push or cannot be reached. The message says what to do.

    Examples:
        >>> from simcse_hf import push
        >>> pushed = push("outputs/my-model", "org/my-model", dry_run=True)
        >>> "model.safetensors" in pushed.files
        True
    """
    # Without an owner the name would end up in the card's usage examples, where it means another repository.
    if "/" not in repo_id:
        raise SettingError(f"{repo_id!r} names no owner: give OWNER/NAME, as in your-name/{repo_id}")
    return push_model(
        directory,
        repo_id,
        private=private,
        dry_run=dry_run,
        revision=revision,
        create_pr=create_pr,
        commit_message=commit_message,
    )


def push_model(
    directory: StrPath,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    dry_run: bool = False,
    **commit: Unpack[CommitOptions],
) -> Push:
    """Push a saved model with its tokenizer and card, and create the repository if it does not exist.

    All files go into one commit, so the branch never holds only some of them; files of an earlier model go with it. A
    card that this package wrote is written for the repository. Records name no folders of this machine. Of
    `.eval_results`, only the scores on data sets that the hub has registered as benchmarks are pushed.

    Args:
        directory (`str` or `os.PathLike`): A directory as the Trainer's `save_model` leaves it.
        repo_id (`str`): `org/name`, or `name` for the owner of the token.
        private (`bool`, *optional*): Whether a new repository is private. Defaults to the owner's setting.
        token (`str`, *optional*): The access token. Defaults to `HF_TOKEN` or the token of `hf auth login`.
        dry_run (`bool`, *optional*, defaults to `False`): List what would be uploaded, and upload nothing.
        **commit (`CommitOptions`): Where and how to commit.

    Returns:
        `Push`: The URL of the commit or of the pull request, or the files.

    Raises:
        SettingError: If the hub accepts no such name, for the reasons given in [`files_to_push`], or if weights are
            missing or not finite, or not those of a graph beside them.
        PushError: If the hub refuses the push or cannot be reached. The message says what to do.
    """
    # 1. The checks that need no hub. The model is loaded as its users will load it.
    directory = Path(directory)
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise SettingError(f"{repo_id!r} is not a valid repository name: {error}") from error
    files = {path: (directory / path).stat().st_size for path in files_to_push(directory)}
    SimCSE(directory, device="cpu")
    for backend, graph in GRAPHS.items():
        if find_spec(graph.package) and any(path.startswith(f"{backend}/") for path in files):
            with suppress(ForeignGraph):
                SimCSE(directory, backend=backend)
    branch = commit.get("revision") or "main"
    if dry_run:
        return Push(repo_id, branch, pushed=False, files=files)

    # 2. The card, for the repository with its owner.
    name_repository(directory, repo_id)
    api = HfApi(token=token, library_name="simcse_hf")
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        name_repository(directory, repo_id)

        # 3. Of the results, the scores on data sets that are registered as benchmarks; and the commit.
        contents = {}
        if (directory / EVAL_RESULTS).exists():
            registered = {dataset.id for dataset in api.list_datasets(filter="benchmark:official")}
            scores = yaml.safe_load((directory / EVAL_RESULTS).read_text(encoding="utf-8"))
            kept = [score for score in scores if score["dataset"]["id"] in registered]
            contents[EVAL_RESULTS.as_posix()] = yaml.safe_dump(kept, sort_keys=False).encode() if kept else b""
        info = commit_folder(api, directory, repo_id, contents=contents, **commit)
    except _PUSH_ERRORS as error:
        raise PushError(f"{repo_id} was not pushed: {_advice(error, api)}") from error
    return Push(repo_id, branch, pushed=True, url=info.pr_url or info.commit_url)


def _advice(error: BaseException, api: HfApi) -> str:
    """Say why a push failed, and what to do."""
    if isinstance(error, _OIDC_ERRORS):
        return f"HF_OIDC_RESOURCE asks for a trusted publisher, but {error}"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids all requests. Unset it and try again."
    if not isinstance(error, HfHubHTTPError):
        if isinstance(error, ValueError):
            return str(error)
        while error.__cause__ is not None:
            error = error.__cause__
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        return (
            f"the connection to {api.endpoint} failed ({cause}). Nothing is lost. Run the same command again; files "
            "that were already uploaded are not sent twice."
        )
    status = error.response.status_code
    if status == 401 and (api.token or get_token()) is None:
        return "no access token was found. Log in with `hf auth login` or set HF_TOKEN."
    if status == 401:
        return "the hub does not accept the access token. Log in again with `hf auth login` or correct HF_TOKEN."
    if status == 403:
        return "the access token may not write to this repository. Use another token, or --create_pr."
    return f"the hub answered {status}: {error.server_message or 'no message'}"
