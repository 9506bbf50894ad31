"""Encoders of other libraries, which a function of the user's returns."""

import importlib
import os
import sys
from typing import Any


def call_function(name: str) -> Any:
    """Call the function that returns an encoder.

    Args:
        name (`str`): `module:function`. The module may stand in the current folder, as may what its function imports.

    Returns:
        `Any`: An object with `encode(list[str]) -> (n, dim)`.

    Raises:
        ModuleNotFoundError: If the module imports something that is not installed.
        ValueError: If there is no such module or function, or what it returns has no `encode`.
    """
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise  # the module is there, and something that it imports is not
            raise ValueError(f"{name}: there is no module {module_name}.") from error
        function = getattr(module, function_name, None)
        if not callable(function):
            raise ValueError(f"{name}: module {module_name} has no function {function_name!r}.")
        model = function()
    finally:
        sys.path.remove(os.getcwd())
    if not callable(getattr(model, "encode", None)):
        raise ValueError(f"{name} returned a {type(model).__name__}, which has no method encode(list[str]).")
    return model
