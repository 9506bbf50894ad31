"""Upload the folder of a model to the hub in one commit: what belongs there, and nothing about this machine."""

import json
import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path, PureWindowsPath
from typing import Any, TypedDict, Unpack, cast

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id

from ..names import BACKENDS
from .errors import ModelError
from .files import MANIFEST, StrPath, read_json
from .loading import ADAPTER_CONFIG, adapter_base

HUB_URL = "https://huggingface.co"
# Pickles, files that only resuming a run needs, and hidden or underscored names, which are private by convention.
_PRIVATE = re.compile(
    r"\.(bin|pt|pth|pkl|pickle|ckpt|npz)$|"
    r"(^|/)(checkpoint-\d+|seed-\d+|[^/]+\.evaluations|runs|__pycache__|[._][^/]*)(/|$)"
)
_GRAPHS = "|".join(BACKENDS[1:])  # the folders of exported graphs
_PUBLIC = re.compile(rf"\.eval_results/[^/]+\.yaml|({_GRAPHS})/[^/]+\.bin")
#: Records of this package and of the Trainer, whose texts may name folders.
_RECORD = (
    r"(results|evaluation[^/]*|comparison[^/]*|adaptation|trainer_state|run_settings|(all|train|eval)_results)\.json"
)
_RECORDS = re.compile(rf"{_RECORD}|(index|config|simcse)\.json")
#: What this package, transformers and sentence-transformers write into the folder of a model.
_OF_A_MODEL = re.compile(
    rf"{_RECORD}|(config|simcse|modules|weights|adapter_config|config_sentence_transformers|sentence_[\w-]+_config)\.json|"
    r"(model|adapter_model|pytorch_model)[^/]*\.(safetensors|bin)(\.index\.json)?|tf_model\.h5|flax_model\.msgpack|"
    rf"(\d+_[A-Z]\w*|dense_layers|ngrams|template_head|postprocessing|{_GRAPHS})/.*|model\.onnx.*|"
    r"openvino_model\..*|\.eval_results/simcse_hf\.yaml"
)
_OF_A_TOKENIZER = re.compile(
    r"(tokenizer|tokenizer_config|vocab|special_tokens_map|added_tokens)\.json|(vocab|merges)\.txt|[^/]+\.model"
)
#: What may hold a path: a run of characters without spaces that has a slash.
_WITH_SLASH = re.compile(r"""[^\s'"`=,;()\[\]{}<>|]*[/\\][^\s'"`=,;()\[\]{}<>|]*""")
_ABSOLUTE = re.compile(r"[/~\\]|\.{1,2}[/\\]|[A-Za-z]:[/\\]")


class CommitOptions(TypedDict, total=False):
    """Where and how to commit.

    Args:
        commit_message (`str`): The first line of the commit message; `Upload model` by default.
        commit_description (`str`, *optional*): The lines after it.
        revision (`str`, *optional*): The branch, which is created if it does not exist; or an open pull request,
            such as refs/pr/1. The default is main.
        create_pr (`bool`): Whether to open a pull request instead.
        run_as_future (`bool`): Whether to upload in the background.
    """

    commit_message: str
    commit_description: str | None
    revision: str | None
    create_pr: bool
    run_as_future: bool


def hub_id(name: str | None) -> str | None:
    """Return `name` if it can be the id of a hub model and is not a local directory."""
    if not name or os.path.exists(name):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def public_name(name: str | None) -> str | None:
    """Return a hub id as it is, and only the last part of a local path."""
    return (hub_id(name) or Path(name).name) if name else None


def name_in_card(text: str, repo_id: str) -> str:
    """Write the name of a repository into a card, or into `.eval_results`, in place of that of another one."""
    text = re.sub(rf"{HUB_URL}/[^/\s]+(/[^/\s]+)?/blob/", f"{HUB_URL}/{repo_id}/blob/", text)
    named = re.search(r'SimCSE\("(.+?)"\)', text)
    if named is not None:
        text = text.replace(f'"{named[1]}"', f'"{repo_id}"')
        title, now = (name.rpartition("/")[2] for name in (named[1], repo_id))
        for line in ("# {}", "- name: {}"):
            text = text.replace(f"\n{line.format(title)}\n", f"\n{line.format(now)}\n")
    return text


class PublicNames:
    """What a document says, without folders of this machine: each path becomes its last name.

    Two paths with the same last name stay apart: the second becomes `name (2)`.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def __call__(self, value: object) -> Any:
        """Return a value of JSON of any depth; the texts of a dev set stay as they are."""
        if isinstance(value, Mapping):
            return {self(key): each if key == "dev_texts" else self(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(each) for each in value]
        if not isinstance(value, str) or "://" in value:
            return value
        if _ABSOLUTE.match(value) or ("/" in value and os.path.exists(value)):
            return self._name(value)
        return _WITH_SLASH.sub(self._shorten, value)

    def _shorten(self, found: re.Match[str]) -> str:
        word = found[0]
        is_path = _ABSOLUTE.match(word) or "\\" in word or hub_id(word.partition(":")[0]) is None
        return self._name(word) if is_path else word

    def _name(self, path: str) -> str:
        last = PureWindowsPath(path).name or path  # which knows both kinds of slashes
        name = last
        number = 1
        while self._paths.setdefault(name, path) != path:
            number += 1
            name = f"{last} ({number})"
        return name


def public_files(folder: Path) -> list[str]:
    """List the files of a folder that belong on the hub, sorted, relative to the folder.

    Pickles (`training_args.bin`, optimizer states), `checkpoint-*` and hidden names other than `.eval_results` do not.

    Args:
        folder (`Path`): The folder.

    Returns:
        `list[str]`: The paths.

    Raises:
        ModelError: If the folder holds an adapter of a model that is not on the hub.
    """
    base = adapter_base(folder)
    if base is not None and hub_id(base) is None:
        raise ModelError(
            f"{folder} is an adapter of {base}, a folder that nobody else has. Push that model first and name it "
            f"as base_model_name_or_path in {ADAPTER_CONFIG}, or push the merged model: train without save_adapter."
        )
    paths = []
    for file in folder.rglob("*"):
        path = file.relative_to(folder).as_posix()
        is_private = _PRIVATE.search(path) and not _PUBLIC.fullmatch(path)
        if file.is_file() and not is_private:
            paths.append(path)
    return sorted(paths)


def _content(file: Path) -> Path | bytes:
    """Return a file, or its content without folders of this machine."""
    if not _RECORDS.fullmatch(file.name):
        return file
    document = read_json(file, kind=object)
    public = PublicNames()(document)
    if file.name in ("config.json", "simcse.json"):  # where prompts and much else are no paths
        section = document.get("simcse", {})
        chosen = {"training": public["simcse"]["training"]} if "training" in section else {}
        public = document | ({"simcse": section | chosen} if section else {})
    return file if public == document else json.dumps(public, indent=2, ensure_ascii=False).encode()


def commit_folder(
    api: HfApi,
    folder: StrPath,
    repo_id: str,
    *,
    contents: Mapping[str, bytes] | None = None,
    **options: Unpack[CommitOptions],
) -> Any:
    """Upload the folder of a model in one commit, which removes what an earlier model has left in the repository.

    Files that neither this package nor the libraries of models write stay there. Without a tokenizer in the folder,
    that of the repository stays.

    Args:
        api (`HfApi`): The client.
        folder (`str` or `os.PathLike`): The folder.
        repo_id (`str`): The repository, which exists.
        contents (`Mapping[str, bytes]`, *optional*): What to upload in place of a file; nothing if it is empty.
        **options (`CommitOptions`): Where and how to commit.

    Returns:
        `CommitInfo`: The commit; a `Future` of it with `run_as_future`.

    Raises:
        ValueError: As [`public_files`].
    """
    folder = Path(folder)
    added = {path: _content(folder / path) for path in public_files(folder)} | {**(contents or {})}
    revision = options.get("revision")
    is_open = (revision or "").startswith("refs/")  # a pull request
    if revision is not None and not is_open and not options.get("create_pr"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    operations: list[Any] = [CommitOperationAdd(path, content) for path, content in added.items() if content]
    for path in api.list_repo_files(repo_id, revision=revision):
        is_of_tokenizer = "tokenizer_config.json" in added and _OF_A_TOKENIZER.fullmatch(path)
        if (_OF_A_MODEL.fullmatch(path) or is_of_tokenizer) and not added.get(path):
            operations.append(CommitOperationDelete(path))
    return cast(Any, api).create_commit(repo_id, operations, **({"commit_message": "Upload model"} | options))


def commit_checkpoint(api: HfApi, folder: Path, repo_id: str, place: str, **options: Unpack[CommitOptions]) -> Any:
    """Upload a checkpoint of the Trainer, from which a run can be resumed, into a folder of the repository.

    Args:
        api (`HfApi`): The client.
        folder (`Path`): The checkpoint.
        repo_id (`str`): The repository, which exists.
        place (`str`): The folder.
        **options (`CommitOptions`): Where and how to commit.

    Returns:
        `CommitInfo`: The commit; a `Future` of it with `run_as_future`.
    """
    files = read_json(folder / MANIFEST)["files"]
    files.pop("training_args.bin", None)  # a pickle, of which a resumed run has no need, with folders of this machine
    added = {path: _content(folder / path) for path in files}
    for path, content in added.items():
        if isinstance(content, bytes):
            files[path] = {"bytes": len(content), "blake2b": blake2b(content).hexdigest()}
    added[MANIFEST] = json.dumps({"files": files}).encode()
    operations: list[Any] = [CommitOperationAdd(f"{place}/{path}", content) for path, content in added.items()]
    for path in api.list_repo_files(repo_id, revision=options.get("revision")):
        if path.startswith(f"{place}/") and path.removeprefix(f"{place}/") not in added:
            operations.append(CommitOperationDelete(path))
    return cast(Any, api).create_commit(repo_id, operations, **options)
