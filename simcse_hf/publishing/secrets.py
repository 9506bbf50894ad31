"""Find access tokens and passwords, so that no file that may be published holds one."""

import re
from collections.abc import Sequence

HIDDEN = "..."

#: Tokens that are known by their form: of Hugging Face, GitHub, GitLab, Slack, OpenAI and others, AWS; private keys.
_BY_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|glpat-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|sk-[\w-]{32,}|AKIA[0-9A-Z]{16})\b|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
#: A name of a secret with its value, in JSON, YAML or Python. Values in angle brackets are placeholders.
_BY_NAME = re.compile(
    r"""(?i)(?:hub_token|(?:access|auth|api|bearer)_?token|password|passwd|client_secret"""
    r"""|secret_?key|api_?key|access_?key)["']?\s*[:=]\s*(["'])(?![<.*])[^"'\s]{8,}\1"""
)
#: The password of a URL such as postgresql://user:password@host/database.
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)")
_OPTION = re.compile(r"(?i)--?[\w-]*(?:token|password|passwd|secret|key)")


def holds_secret(text: str) -> bool:
    """Return whether a text holds an access token, a password or a private key.

    Args:
        text (`str`): The text of a file.

    Returns:
        `bool`: True for a token of a known form, or for a value under a name such as `api_key`.
    """
    return _BY_FORM.search(text) is not None or _BY_NAME.search(text) is not None


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
            hidden.append(HIDDEN)
        elif is_secret and equals:
            hidden.append(f"{name}={HIDDEN}")
        else:
            hidden.append(_IN_URL.sub(rf"\1:{HIDDEN}", _BY_FORM.sub(HIDDEN, word)))
        is_value = is_secret and not equals
    return hidden
