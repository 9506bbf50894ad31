"""Import the packages of an optional extra, with one message that says how to install them."""

import importlib
from types import ModuleType


def require_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module (`str`): The module, such as `"faiss"`.
        extra (`str`): The extra of this package that installs it, such as `"faiss"`.
        purpose (`str`): What needs it, for the message, such as `"an approximate index"`.

    Returns:
        `ModuleType`: The module.

    Raises:
        ImportError: If the package is not installed. The message names the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module}: run pip install 'simcse-hf[{extra}]' ({error})") from error
