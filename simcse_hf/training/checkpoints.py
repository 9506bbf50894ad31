"""Checkpoints on disk: the manifest of their files, which of them are whole, and which of them are kept."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import safetensors
import xxhash
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: Lists the files of a checkpoint with their sizes and digests. It is written last.
MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1
#: The folder of `output_dir` in which a checkpoint is written. A checkpoint gets its name when it is complete.
#: Files whose path begins with an underscore are not pushed to the hub.
STAGING = "_saving"

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"
#: What every checkpoint holds, each in one of these forms; those of peft, FSDP and DeepSpeed have other names.
_REQUIRED = (
    (_STATE,),
    ("model*.safetensors", "adapter_model*", "pytorch_model*", "global_step*"),
    ("config.json", "adapter_config.json", "global_step*"),
)
#: What a checkpoint holds beside the weights, unless only the model was saved.
_PROGRESS = ("optimizer*", "scheduler.pt", "rng_state*.pth")
_BLOCK = 1 << 20


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """List the checkpoints of a run by step, the newest first; folders with other names are left out."""
    found = [path for path in Path(directory).glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=_step, reverse=True)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


# --- the manifest ----------------------------------------------------------------------------------------------------


def write_manifest(checkpoint: Path) -> None:
    """Write the sizes and digests of all files into the checkpoint, after their content has reached the disk.

    The digest is XXH3 with 128 bits, which finds damage by accident at several gigabytes per second. It does not
    protect from somebody who forges a checkpoint.

    Args:
        checkpoint (`Path`): A folder in which every other file is already written.
    """
    files = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path != checkpoint / MANIFEST:
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
            files[path.relative_to(checkpoint).as_posix()] = {"bytes": path.stat().st_size, "xxh3_128": _digest(path)}
    with open(checkpoint / MANIFEST, "w", encoding="utf-8") as stream:
        stream.write(json.dumps({"version": _MANIFEST_VERSION, "files": files}, indent=1) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# --- which checkpoints are whole -------------------------------------------------------------------------------------


def checkpoint_problem(checkpoint: str | os.PathLike[str]) -> str | None:
    """Find out whether a checkpoint is as it was written.

    Args:
        checkpoint (`str` or `os.PathLike`): The folder of the checkpoint.

    Returns:
        `str`, *optional*: What is wrong, with the name of the file, or `None` if the checkpoint is whole.
    """
    folder = Path(checkpoint)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if (version := manifest["version"]) != _MANIFEST_VERSION:
            return f"its {MANIFEST} has version {version}, which needs a newer simcse_hf"
        files = {str(name): (int(file["bytes"]), str(file["xxh3_128"])) for name, file in manifest["files"].items()}
    except FileNotFoundError:
        return _problem_without_manifest(folder)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    for name, (size, _) in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (actual := (folder / name).stat().st_size) != size:
            return f"{name} has {actual:,} bytes in place of {size:,}"
    return next(
        (f"the content of {name} is damaged" for name, (_, d) in files.items() if _digest(folder / name) != d), None
    )


def _problem_without_manifest(folder: Path) -> str | None:
    """Look for missing and truncated files in a checkpoint of an earlier version, whose files have no digests."""
    for required in _REQUIRED:
        if not any(any(folder.glob(pattern)) for pattern in required):
            return f"{required[0]} is missing"
    missing = [pattern for pattern in _PROGRESS if not any(folder.glob(pattern))]
    if 0 < len(missing) < len(_PROGRESS) and not any(folder.glob("global_step*")):  # DeepSpeed's own layout
        return f"{missing[0]} is missing"
    unreadable = (path.name for path in sorted(folder.iterdir()) if not _can_be_opened(path))
    return next((f"{name} is damaged" for name in unreadable), None)


def _can_be_opened(path: Path) -> bool:
    """Return whether the structure of a file is intact, as far as its format shows."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            with safetensors.safe_open(path, framework="numpy"):
                pass
        elif path.suffix in (".pt", ".pth"):  # torch.save writes a zip file with checksums
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
    except (ValueError, OSError, safetensors.SafetensorError, zipfile.BadZipFile):
        return False
    return True


def newest_whole_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Return the newest whole checkpoint of a run, and log the damaged ones that are passed over.

    Args:
        directory (`str` or `os.PathLike`): The `output_dir` of the run.

    Returns:
        `str`, *optional*: The path of the checkpoint; `None` if there is no checkpoint at all.

    Raises:
        ValueError: If there are checkpoints and all of them are damaged.
    """
    problems = []
    for checkpoint in checkpoints(directory):
        problem = checkpoint_problem(checkpoint)
        if problem is None:
            _log_missing_manifest(checkpoint)
            return str(checkpoint)
        problems.append(f"{checkpoint.name}: {problem}")
        logger.warning(f"{checkpoint} is passed over because {problem}.")
    if problems:
        raise ValueError(
            f"{directory} holds no whole checkpoint to resume from ({'; '.join(problems)}). Restore one of them "
            "from a backup, or start again with --overwrite_output_dir."
        )
    return None


def check_checkpoint(checkpoint: str | os.PathLike[str]) -> None:
    """Refuse to resume from a checkpoint that is damaged or was written by a newer version.

    Args:
        checkpoint (`str` or `os.PathLike`): The checkpoint that the caller named.

    Raises:
        ValueError: If a file is missing or not as it was written, or if the manifest has an unknown version.
    """
    if not Path(checkpoint).is_dir():
        raise ValueError(f"--resume_from_checkpoint {checkpoint}: there is no such checkpoint directory")
    problem = checkpoint_problem(checkpoint)
    if problem is not None:
        raise ValueError(
            f"the run cannot be resumed from {checkpoint}: {problem}. Name another checkpoint, or resume from the "
            "newest whole one with --resume_from_checkpoint true."
        )
    _log_missing_manifest(Path(checkpoint))


def _log_missing_manifest(checkpoint: Path) -> None:
    if not (checkpoint / MANIFEST).exists():
        logger.info(
            f"{checkpoint} has no {MANIFEST}, because an earlier version wrote it: its files can be opened, but their "
            "content cannot be compared with what was written."
        )


# --- finishing and deleting ------------------------------------------------------------------------------------------


def publish_checkpoint(staged: Path, checkpoint: Path) -> None:
    """Give a checkpoint that is completely written its manifest and its name.

    Args:
        staged (`Path`): The checkpoint's folder inside `STAGING`.
        checkpoint (`Path`): The folder's final path. A checkpoint that stands there is replaced.
    """
    write_manifest(staged)
    if checkpoint.exists():
        checkpoint.rename(staged.with_name("replaced"))
    staged.rename(checkpoint)
    shutil.rmtree(staged.parent)


def delete_old_checkpoints(directory: Path, limit: int | None, keep: set[Path]) -> None:
    """Delete the checkpoints that were written first, so that at most `limit` are left.

    Args:
        directory (`Path`): The `output_dir` of the run.
        limit (`int`, *optional*): transformers' `save_total_limit`; `None` or 0 deletes nothing.
        keep (`set[Path]`): The newest and the best checkpoint, which stay in any case.
    """
    if not limit or limit < 0:
        return
    kept = {path.resolve() for path in keep}
    found = checkpoints(directory)
    others = [path for path in found if path.resolve() not in kept]
    others.sort(key=lambda path: (path.stat().st_mtime_ns, _step(path)))
    for checkpoint in others[: max(0, len(found) - max(limit, len(kept)))]:
        shutil.rmtree(checkpoint, ignore_errors=True)
