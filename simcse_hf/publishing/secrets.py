"""Find access tokens and passwords in files that are to be published, and hide them in command lines."""

import re
from collections.abc import Sequence
from pathlib import Path

HIDDEN = "..."

#: Tokens that are known by their form: of Hugging Face, GitHub, GitLab, Slack, OpenAI, AWS, Google; private keys.
_BY_FORM = re.compile(
    r"\b(?:hf_(?:oauth_)?[A-Za-z0-9]{30,}|AIza[\w-]{35}|api_org_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}"
    r"|github_pat_\w{40,}|glpat-[\w-]{20,}|xox[abprs]-[\w-]{10,}|sk-[\w-]{32,}|AKIA[0-9A-Z]{16})\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
)
#: A name of a secret with its value, in JSON, YAML, Python or an ini file. Values in angle brackets are placeholders.
_BY_NAME = re.compile(
    r"""(?i)(?:hub_token|(?:access|auth|api|bearer)_?token|password|passwd|client_secret"""
    r"""|secret_?key|api_?key|access_?key)["']?\s*[:=][ \t]*"""
    r"""(?:(["'])(?![<.*])[^"'\s]{8,}\1|(?![<.*$\d{\[]|null|None|true|false)[^"'\s,;{}]{6,}[ \t]*$)""",
    re.MULTILINE,
)
#: The password of a URL such as postgresql://user:password@host/database.
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)")
#: Detectors of the package detect-secrets. Those of random strings would report digests.
_DETECTORS = (
    "AWSKeyDetector AzureStorageKeyDetector BasicAuthDetector DiscordBotTokenDetector GitHubTokenDetector "
    "GitLabTokenDetector JwtTokenDetector KeywordDetector NpmDetector OpenAIDetector PrivateKeyDetector "
    "PypiTokenDetector SendGridDetector SlackDetector StripeDetector TelegramBotTokenDetector TwilioKeyDetector"
).split()
#: Files that a tokenizer writes are long lists of words, which detect-secrets searches for minutes.
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
#: A vocabulary or another larger text has no secrets, and would take long.
_MOST_BYTES = 50 * 2**20
_OPTION = re.compile(r"(?i)--?[\w-]*(?:token|password|passwd|secret|key)")


def holds_secret(text: str) -> bool:
    """Return whether a text holds an access token, a password or a private key.

    Args:
        text (`str`): The text of a file.

    Returns:
        `bool`: True for a token of a known form, or for a value under a name such as `api_key`.
    """
    return any(pattern.search(text) for pattern in (_BY_FORM, _BY_NAME, _IN_URL))


def file_holds_secret(path: Path) -> bool:
    """Return whether a file holds an access token, a password or a private key.

    The file is searched for the forms that [`holds_secret`] knows and, where detect-secrets is installed, by its
    detectors. Of a safetensors file only the metadata are searched.

    Args:
        path (`Path`): The file.

    Returns:
        `bool`: True if something was found. No search finds every secret.
    """
    weights = path.suffix == ".safetensors"
    with open(path, "rb") as stream:
        length = _MOST_BYTES
        if weights:  # the file begins with the length of its header, which holds the metadata
            header = int.from_bytes(stream.read(8), "little")
            length = min(header, _MOST_BYTES)
        content = stream.read(length)
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in content[:200]
    text = content.decode("utf-16" if wide else "utf-8", errors="replace")
    if holds_secret(text):
        return True
    if weights or path.name in _VOCABULARIES:
        return False
    try:
        from detect_secrets import SecretsCollection
        from detect_secrets.settings import transient_settings
    except ImportError:
        return False
    found = SecretsCollection()
    detectors = [{"name": name} for name in _DETECTORS]
    with transient_settings({"plugins_used": detectors}):
        found.scan_file(str(path))
    return bool(found)


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Replace the secrets of a command line by dots.

    Args:
        words (`Sequence[str]`): The command line.

    Returns:
        `list[str]`: The words. The value of an option such as `--hub_token` is hidden whatever it looks like.
    """
    hidden: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = _OPTION.fullmatch(name) is not None
        if is_value and not word.startswith("--"):
            word = HIDDEN
        elif is_secret and equals:
            word = f"{name}={HIDDEN}"
        word = _BY_FORM.sub(HIDDEN, word)
        hidden.append(_IN_URL.sub(rf"\1:{HIDDEN}", word))
        is_value = is_secret and not equals
    return hidden
