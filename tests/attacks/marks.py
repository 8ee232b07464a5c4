"""Which classes of attack a named test carries, read from its source: decorators, and `pytestmark` of its class and module."""

from __future__ import annotations

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parents[2]


def marks_of(node: str) -> set[str]:
    """The classes of `tests/x/test_y.py::TestA::test_b`, or of `::TestA`. Raises LookupError where there is no such test."""
    file, *names = node.split("::")
    inner: ast.AST = _parsed(file)
    found = _assigned(inner)
    for name in names:
        inner = _within(inner, name, node)
        found |= _decorated(inner) | _assigned(inner)
    return found


@functools.cache
def _parsed(file: str) -> ast.Module:
    path = ROOT / file
    if not path.exists():
        raise LookupError(f"there is no file {file}")
    return ast.parse(path.read_text())


def _within(outer: ast.AST, name: str, node: str) -> ast.AST:
    for part in getattr(outer, "body", []):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and part.name == name:
            return part
    raise LookupError(f"there is no {node}")


def _decorated(part: ast.AST) -> set[str]:
    return {mark for decorator in getattr(part, "decorator_list", []) for mark in _named(decorator)}


def _assigned(part: ast.AST) -> set[str]:
    """Of `pytestmark = ...`: single marks, a list of them, or a comprehension over names."""
    found: set[str] = set()
    for line in getattr(part, "body", []):
        if isinstance(line, ast.Assign) and [getattr(target, "id", "") for target in line.targets] == ["pytestmark"]:
            found |= _named(line.value)
    return found


def _named(expression: ast.AST) -> set[str]:
    """Every "A1" to "A24" in an expression that speaks of `attack`."""
    if not any(isinstance(part, ast.Attribute) and part.attr == "attack" for part in ast.walk(expression)):
        return set()
    words = {part.value for part in ast.walk(expression) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return {word for word in words if word[:1] == "A" and word[1:].isdigit()}
