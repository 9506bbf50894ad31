"""Find access tokens and passwords in files that are to be published, and hide them in command lines."""

import re
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers.utils import logging

logger = logging.get_logger(__name__)

HIDDEN = "..."

#: A token of Hugging Face, which detect-secrets does not know.
_TOKEN = r"\bhf_(?:oauth_)?[A-Za-z0-9]{30,}"
#: The password of a URL such as postgresql://user:password@host/database.
_IN_URL = r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)"
#: Detectors of the package detect-secrets. Those of random strings would report digests.
_DETECTORS = (
    "AWSKeyDetector AzureStorageKeyDetector BasicAuthDetector DiscordBotTokenDetector GitHubTokenDetector "
    "GitLabTokenDetector JwtTokenDetector KeywordDetector NpmDetector OpenAIDetector PrivateKeyDetector "
    "PypiTokenDetector SendGridDetector SlackDetector StripeDetector TelegramBotTokenDetector TwilioKeyDetector"
).split()
#: Files that a tokenizer writes are long lists of words, which detect-secrets searches for minutes.
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
#: Of larger files only the beginning is searched; that of weights holds their metadata.
_MOST_BYTES = 50 * 2**20
_OPTION = re.compile(r"(?i)--?[\w-]*(?:token|password|passwd|secret|key)")


def holds_secret(path: Path) -> bool:
    """Return whether a file holds a token of Hugging Face or, where detect-secrets is installed, another secret.

    Args:
        path (`Path`): The file.

    Returns:
        `bool`: True if something was found. No search finds every secret.
    """
    with open(path, "rb") as stream:
        content = stream.read(_MOST_BYTES)
    if re.search(_TOKEN.encode(), content.replace(b"\0", b"")):  # which UTF-16 puts between letters
        return True
    if path.suffix == ".safetensors" or path.name in _VOCABULARIES:
        return False
    try:
        from detect_secrets import SecretsCollection
        from detect_secrets.settings import transient_settings
    except ImportError:
        logger.warning_once(
            "Files are searched for tokens of Hugging Face only. To search for other secrets: pip install "
            '"simcse-hf[push]"'
        )
        return False
    found = SecretsCollection()
    with TemporaryDirectory() as folder, transient_settings({"plugins_used": [{"name": name} for name in _DETECTORS]}):
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in content[:2]:  # which it does not read
            path = Path(folder, path.name)
            path.write_text(content.decode("utf-16-be" if content[:1] == b"\0" else "utf-16", "ignore"), "utf-8")
        found.scan_file(str(path))
    return bool(found)


def command_line() -> list[str]:
    """Return the command line of this process, with the program by its name and without secrets."""
    program = [Path(word).name for word in sys.argv[:1]]  # none where another program holds Python
    return hide_secrets([*program, *sys.argv[1:]])


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Replace the secrets of a command line by dots.

    Args:
        words (`Sequence[str]`): The command line.

    Returns:
        `list[str]`: The words. The value of an option such as `--hub_token` is hidden whatever it looks like.
    """
    hidden = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = _OPTION.fullmatch(name) is not None
        if is_value and not word.startswith("--"):
            word = HIDDEN
        elif is_secret and equals:
            word = f"{name}={HIDDEN}"
        word = re.sub(_TOKEN, HIDDEN, word)
        hidden.append(re.sub(_IN_URL, rf"\1:{HIDDEN}", word))
        is_value = is_secret and not equals
    return hidden
