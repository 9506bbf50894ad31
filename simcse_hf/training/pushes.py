"""What a Trainer pushes to the hub while it trains, and at the end."""

import shutil
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from ..models.checkpoint import replace_model
from ..runtime.files import MANIFEST
from ..runtime.upload import CommitOptions, commit_checkpoint, commit_folder, public_files

#: What belongs to a checkpoint, and not to the model in it.
_OF_A_RUN = ("trainer_state.json", "run_settings.json", MANIFEST)
#: Where a strategy pushes a checkpoint; `None` is a folder of its own.
_PLACES: dict[Any, str | None] = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: None}


class PushingTrainer(Trainer):
    """transformers' Trainer, which pushes in one commit what `simcse-hf push` would, and nothing about the machine."""

    #: Whether a checkpoint is being written.
    is_saving = False

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a whole checkpoint in the background, as `hub_strategy` says; the output directory becomes its model.

        Nothing is pushed while an earlier push goes on. With `hub_always_push` the checkpoint has waited for its end.
        """
        args = self.args
        if self.is_saving:  # An earlier push may read a checkpoint that this one replaces or deletes.
            if args.hub_always_push or args.hub_strategy in _PLACES:
                self._finish_current_push()
            return
        running = cast(PushInProgress | None, self.push_in_progress)
        is_busy = running is not None and not running.is_done()
        if is_busy or args.hub_strategy == HubStrategy.END or not self.is_world_process_zero():
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        checkpoint = Path(checkpoint_folder)
        with replace_model(str(args.output_dir), getattr(self.model, "save_adapter", False)) as folder:
            for path in public_files(checkpoint):
                if path not in _OF_A_RUN:
                    (folder / path).parent.mkdir(exist_ok=True)
                    shutil.copy(checkpoint / path, folder / path)
        api = HfApi(token=args.hub_token, library_name="simcse_hf")
        repo_id = str(self.hub_model_id)
        options: CommitOptions = {
            "commit_message": f"Training in progress, step {self.state.global_step}",
            "revision": args.hub_revision,
            "run_as_future": True,
        }
        jobs = [commit_folder(api, str(args.output_dir), repo_id, **options)]
        if args.hub_strategy in _PLACES:
            options["commit_message"] += ", checkpoint"
            place = _PLACES[args.hub_strategy] or checkpoint.name
            jobs.append(commit_checkpoint(api, checkpoint, repo_id, place, **options))
        self.push_in_progress = PushInProgress(cast(Any, jobs))  # type: ignore[assignment]

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
        return commit_folder(
            HfApi(token=token or self.args.hub_token, library_name="simcse_hf"),
            str(self.args.output_dir),
            str(self.hub_model_id),
            commit_message=commit_message or "End of training",
            revision=revision or self.args.hub_revision,
            run_as_future=not blocking,
        )
