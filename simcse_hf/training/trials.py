"""What the model of a trial of `hyperparameter_search` is made from."""

from collections.abc import Callable, Iterator
from typing import Any


class NotedValues(dict):
    """The values of a trial, which note the names that are read.

    Args:
        values (`dict`): The values.
        read (`set[str]`): The names that were read, which grows.
    """

    def __init__(self, values: dict, read: set[str]):
        super().__init__(values)
        self.read = read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator:  # with which Python takes `**values` one by one, by the method above
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default if the trial does not have it."""
        self.read.add(name)
        return super().get(name, default)

    def items(self) -> Any:
        """Return all names with their values."""
        self.read.update(self)
        return super().items()


class NotedTrial:
    """A trial of Optuna, which notes the names of the values that are suggested or read.

    Args:
        trial (`optuna.Trial`): The trial.
        read (`set[str]`): The names, which grow.
    """

    def __init__(self, trial: Any, read: set[str]):
        self.trial = trial
        self.read = read

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self.trial, attribute)
        if attribute == "params":
            return NotedValues(found, self.read)
        return self.noted(found) if attribute.startswith("suggest_") else found

    def noted(self, suggest: Callable) -> Callable:
        """Return a method of the trial that notes the name of the value that it suggests."""

        def suggest_noted(name: str, *args: Any, **kwargs: Any) -> Any:
            self.read.add(name)
            return suggest(name, *args, **kwargs)

        return suggest_noted
