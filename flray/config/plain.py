"""The type of a YAML file's content before it is checked."""

from typing import Any, TypeAlias

Plain: TypeAlias = Any
# None, a truth value, a number, a text, or a list or mapping of these: a recursive type that pydantic
# and mypy would have to narrow at every step of code that only passes such values on.
