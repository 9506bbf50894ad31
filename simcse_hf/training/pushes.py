"""What a Trainer pushes to the hub while it trains, and at the end."""

import shutil
from pathlib import Path
from typing import Any, Unpack, cast

from huggingface_hub import HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from ..models.checkpoint import replace_model
from ..runtime.files import MANIFEST
from ..runtime.upload import CommitOptions, commit_checkpoint, commit_folder, public_files

#: What belongs to a checkpoint, and not to the model in it.
_OF_A_RUN = ("trainer_state.json", "run_settings.json", MANIFEST)


class PushingTrainer(Trainer):
    """transformers' Trainer, which pushes in one commit what `simcse-hf push` would, and nothing about the machine."""

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push a checkpoint in the background, as `hub_strategy` says. It becomes the model in the output directory.

        Nothing is pushed while an earlier push goes on. With `hub_always_push` the checkpoint has waited for its end.

        Args:
            checkpoint (`Path`): The checkpoint.
        """
        args = self.args
        if args.hub_strategy == HubStrategy.END or self._is_pushing() or not self.is_world_process_zero():
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        with replace_model(str(args.output_dir), getattr(self.model, "save_adapter", False)) as folder:
            for path in public_files(checkpoint):
                if path not in _OF_A_RUN:
                    (folder / path).parent.mkdir(exist_ok=True)
                    shutil.copy(checkpoint / path, folder / path)
        message = f"Training in progress, step {self.state.global_step}"
        jobs: list[Any] = [self._commit(commit_message=message, run_as_future=True)]
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else checkpoint.name
            message = f"{message}, checkpoint"
            jobs.append(self._commit(checkpoint, place, commit_message=message, run_as_future=True))
        self.push_in_progress = PushInProgress(cast(Any, jobs))  # type: ignore[assignment]

    def finish_push_of_old_files(self) -> None:
        """Wait for a push in the background whose files the next checkpoint would replace or delete."""
        args = self.args
        pushes_checkpoints = args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)
        if args.hub_always_push or (pushes_checkpoints and args.save_total_limit is not None):
            self._finish_current_push()

    def _is_pushing(self) -> bool:
        running = cast(PushInProgress | None, self.push_in_progress)
        return running is not None and not running.is_done()

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: object,
    ) -> Any:
        """Upload the model, the tokenizer and a card in one commit.

        Args:
            commit_message (`str`, *optional*): The first line of the commit message.
            blocking (`bool`, *optional*, defaults to `True`): Whether to wait for the end of the upload.
            token (`str`, *optional*): The access token. The default is that of the arguments.
            revision (`str`, *optional*): The branch. The default is that of the arguments.
            private (`bool`, *optional*): Whether a new repository is private.
            **card (`object`): Arguments of `create_model_card`.

        Returns:
            `CommitInfo`: The commit; a `Future` of it without `blocking`.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self._finish_current_push()  # it reads the files that are saved now
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        cast(Any, self).create_model_card(**card)
        message = commit_message or "End of training"
        return self._commit(token=token, branch=revision, commit_message=message, run_as_future=not blocking)

    def _commit(
        self,
        checkpoint: Path | None = None,
        place: str = "",
        token: str | None = None,
        branch: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Any:
        """Upload the output directory, or a checkpoint into a folder of the repository."""
        api = HfApi(token=token or self.args.hub_token, library_name="simcse_hf")
        options["revision"] = branch or self.args.hub_revision
        repo_id = cast(str, self.hub_model_id)
        if checkpoint is not None:
            return commit_checkpoint(api, checkpoint, repo_id, place, **options)
        return commit_folder(api, str(self.args.output_dir), repo_id, **options)
