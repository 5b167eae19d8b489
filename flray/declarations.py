"""Read the declarations of flray's components from their source files, without importing torch.

Names, first lines, options and a method's declarations are literals in the sources. A command that
only shows or checks them would wait seconds for torch, which the components import to compute. A
component that cannot be read this way is imported; `tests/test_start.py` compares both ways.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
_LIGHT = (
    "collections",
    "flray.config",
    "flray.errors",
    "flray.registry",
    "math",
    "pydantic",
    "typing",
)
"""Modules that may be imported on the way."""


class UnreadableError(LookupError):
    """The value of a name cannot be read without importing its module."""


@cache
def registered(package: str, kind: str) -> dict[str, Module]:
    """Return the modules that register components, by the components' names.

    Parameters
    ----------
    package : str
        The package in whose files ``@register_KIND("NAME")`` is looked for.
    kind : str
        For example ``"algorithm"``.

    Raises
    ------
    UnreadableError
        If the sources are not there.
    """
    found = re.compile(rf"^@register_{kind}\(([^)]*)\)", re.MULTILINE)
    names: dict[str, Module] = {}
    folder = ROOT.parent / Path(*package.split("."))
    paths = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    for path in paths:
        module = _module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
        for match in found.finditer(module.text):
            names |= dict.fromkeys(ast.literal_eval(f"({match[1]},)"), module)
    if not names:
        raise UnreadableError(package)
    return names


class Module:
    """A module of flray whose declarations are evaluated without importing it.

    Parameters
    ----------
    name : str
        Its full name.

    Attributes
    ----------
    text : str
        Its source.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        base = ROOT.parent / Path(*name.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        try:
            self.text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UnreadableError(name) from error
        self._statements: dict[str, ast.stmt] | None = None
        self._doc = ""
        self._values: dict[str, Any] = {}

    def component(self, kind: str, name: str) -> Any:
        """Return the class or function of a registered name, with its declarations but without its code.

        A class has its docstring, its ``Params``, its readable attributes, and the names of its
        methods as ``defines``. A function has its docstring and a signature of keyword-only
        parameters. Both have the module's docstring as ``module_doc``.
        """
        for statement in self._parsed().values():
            for decorator in getattr(statement, "decorator_list", ()):
                if (
                    isinstance(decorator, ast.Call)
                    and ast.unparse(decorator.func) == f"register_{kind}"
                    and name in [ast.literal_eval(argument) for argument in decorator.args]
                ):
                    item = self.value(statement.name)  # type: ignore[attr-defined]
                    item.module_doc = self._doc
                    return item
        raise UnreadableError(name)

    def value(self, name: str) -> Any:
        """Evaluate a module-level name.

        Raises
        ------
        UnreadableError
            If its value cannot be read without importing the module.
        """
        if name not in self._values:
            statement = self._parsed().get(name)
            if statement is None:
                if not hasattr(builtins, name):
                    raise UnreadableError(f"{self.name}.{name}")
                return getattr(builtins, name)
            self._values[name] = self._evaluate(statement, name)
        return self._values[name]

    def _parsed(self) -> dict[str, ast.stmt]:
        if self._statements is None:
            tree = ast.parse(self.text)
            self._doc = ast.get_docstring(tree) or ""
            self._statements = dict(_bound(tree.body))
        return self._statements

    def _evaluate(self, statement: ast.stmt, name: str) -> Any:
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            original = next(a.name for a in statement.names if (a.asname or a.name) == name)
            return _imported(statement.module, original)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            code = compile(ast.Expression(statement.value), self.name, "eval", dont_inherit=True)
            return eval(code, self._names(statement.value))
        if isinstance(statement, ast.ClassDef):
            return self._class(statement)
        if isinstance(statement, ast.FunctionDef):
            return self._function(statement)
        raise UnreadableError(f"{self.name}.{name}")

    def _names(self, *nodes: ast.AST, strict: bool = True) -> dict[str, Any]:
        """Return the globals that some nodes need, as far as they can be read."""
        found: dict[str, Any] = {"__name__": self.name}
        for node in nodes:
            for used in ast.walk(node):
                if (
                    isinstance(used, ast.Name)
                    and isinstance(used.ctx, ast.Load)
                    and used.id not in found
                ):
                    try:
                        found[used.id] = self.value(used.id)
                    except UnreadableError:
                        if strict:
                            raise
        return found

    def _class(self, node: ast.ClassDef) -> type:
        namespace = self._names(*node.bases)
        made = self._declared(node, namespace)
        tree = ast.fix_missing_locations(ast.Module([made], []))
        try:
            exec(compile(tree, self.name, "exec", dont_inherit=True), namespace)
        except NameError as error:
            raise UnreadableError(f"{self.name}.{node.name}: {error}") from error
        declared: type = namespace[node.name]
        methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
        declared.defines = frozenset(methods)  # type: ignore[attr-defined]
        made_by = [one for one in node.body if getattr(one, "name", "") == "__init__"]
        if made_by and isinstance(made_by[0], ast.FunctionDef) and made_by[0].args.kwonlyargs:
            declared.__signature__ = self._function(made_by[0]).__signature__  # type: ignore[attr-defined]
        return declared

    def _declared(self, node: ast.ClassDef, namespace: dict[str, Any]) -> ast.ClassDef:
        """Return a class without its code; fill in the names that the rest needs."""
        body: list[ast.stmt] = []
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                body.extend(_declared_property(statement))
            elif isinstance(statement, ast.ClassDef):
                namespace |= self._names(*statement.bases, strict=False)
                body.append(self._declared(statement, namespace))
            elif isinstance(statement, ast.Assign):
                with contextlib.suppress(UnreadableError):
                    namespace |= self._names(statement.value)
                    body.append(statement)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                with contextlib.suppress(UnreadableError):
                    namespace |= self._names(statement.value, statement.annotation)
                    body.append(statement)
            elif _is_docstring(statement):
                body.append(statement)
        return ast.ClassDef(
            node.name, node.bases, [], body or [ast.Pass()], [], **_type_params(node)
        )

    def _function(self, node: ast.FunctionDef) -> Any:
        parameters = []
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            given = [n for n in (argument.annotation, default) if n is not None]
            names = self._names(*given)
            annotation, value = (
                inspect.Parameter.empty if part is None else eval(_code(part, self.name), names)
                for part in (argument.annotation, default)
            )
            parameters.append(
                inspect.Parameter(
                    argument.arg,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=annotation,
                    default=value,
                )
            )

        def declared(*args: Any, **options: Any) -> Any:
            raise UnreadableError(f"{self.name}.{node.name} is only declared")

        declared.__doc__, declared.__module__ = ast.get_docstring(node), self.name
        declared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return declared


@cache
def _module(name: str) -> Module:
    return Module(name)


def _imported(module: str, name: str) -> Any:
    """Return the object that ``from module import name`` would bind."""
    for place in (f"{module}.{name}", module):
        if place.startswith(_LIGHT) and (place in sys.modules or place == module):
            found = importlib.import_module(place)
            return found if place != module else getattr(found, name)
    if not module.startswith("flray"):
        raise UnreadableError(f"{module}.{name}")
    return _module(module).value(name)


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that statements bind, later ones last."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield from ((alias.asname or alias.name, statement) for alias in statement.names)
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign):
            yield from ((t.id, statement) for t in statement.targets if isinstance(t, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement


def _code(node: ast.expr, name: str) -> types.CodeType:
    return compile(ast.Expression(node), name, "eval", dont_inherit=True)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _declared_property(node: ast.FunctionDef) -> list[ast.stmt]:
    """Return ``NAME = property()`` for a property, whose value depends on the settings; nothing for other code."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any("validator" in decorator or "serializer" in decorator for decorator in decorators):
        raise UnreadableError(f"{node.name} is code that checks options")
    if "property" not in decorators:
        return []
    call = ast.Call(ast.Name("property", ast.Load()), [], [])
    return [ast.Assign([ast.Name(node.name, ast.Store())], call)]


def _type_params(node: ast.ClassDef) -> Mapping[str, Any]:
    return {"type_params": []} if hasattr(node, "type_params") else {}  # Python 3.12
