"""Mutants made by rule: in every function of the releases' own folders, each comparison, sum, product, factor, condition and refusal once.

What changes is one token or one statement. Left alone: strings, annotations, imports, decorators, indices, axes, and what an error says.
Of a product with a number the number changes, which is the milder sabotage; of a sum the sign. A mutant is known by its function, its text
and how many of the same stand before it there, so it keeps its name when lines move.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.mutant import ROOT, Sabotage

FOLDERS = ("queries", "mechanisms", "accounting")
_COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_COMPUTED = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*", ast.Mod: "+",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_CALLED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "minimum": "maximum", "maximum": "minimum",
    "log1p": "log", "expm1": "exp", "abs": "float", "sum": "max",
}  # fmt: skip

_LEFT_ALONE = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)
_PARTS_LEFT_ALONE = {
    (ast.FunctionDef, "returns"), (ast.FunctionDef, "decorator_list"), (ast.ClassDef, "decorator_list"), (ast.AnnAssign, "annotation"),
    (ast.arg, "annotation"), (ast.Subscript, "slice"),
}  # fmt: skip
_AXES = {"axis", "dim", "dims", "ndim"}


@dataclass(frozen=True)
class Generic(Sabotage):
    """The text between two offsets of dpbo/`file` becomes `new`."""

    name: str
    file: str
    start: int
    stop: int
    new: str

    def span(self, text: str) -> tuple[int, int]:
        """As it was found."""
        return self.start, self.stop

    def within(self) -> str:
        """Of its name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]


@functools.cache
def generic() -> tuple[Generic, ...]:
    """Every mutant of the three folders."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / "dpbo" / folder).rglob("*.py") if path.name != "__init__.py")
    return tuple(mutant for path in files for mutant in _of_file(str(path.relative_to(ROOT / "dpbo")), path.read_text()))


def _of_file(file: str, text: str) -> Iterator[Generic]:
    offsets = _Offsets(text)
    seen = Counter[str]()
    for function, node in _nodes(ast.parse(text)):
        for start, stop, new in _changes(node, offsets):
            what = f"{file} {function}: {_short(text[start:stop])} becomes {_short(new)}, in {_short(ast.unparse(_line_of(node)))}"
            seen[what] += 1
            mutant = Generic(f"{what} ({seen[what]})", file, start, stop, new)
            if _compiles(mutant):
                yield mutant


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node that may change, with the name of its function; numbers that stand in a sum are not offered, its sign is."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        for field, child in _children(node):
            if isinstance(child, _LEFT_ALONE) or (type(node), field) in _PARTS_LEFT_ALONE or getattr(child, "arg", None) in _AXES:
                continue
            name = f"{function}.{child.name}".lstrip(".") if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else function
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(child, ast.Constant)):
                yield name, child
            if not isinstance(child, ast.Raise):
                yield from walk(child, name)

    yield from walk(tree, "")


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _changes(node: ast.AST, at: _Offsets) -> Iterator[tuple[int, int, str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield (*at.between(left, right), f" {_COMPARED[type(operator)]} ")
        case ast.BinOp(left=left, op=operator, right=right) if _swaps(operator, left, right):
            start, stop = at.between(left, right)
            yield start, stop, at.text[start:stop].replace(_symbol(operator), _COMPUTED[type(operator)], 1)
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in _COMPUTED:
            yield (*at.between(target, value), f" {_COMPUTED[type(operator)]}= ")
        case ast.BoolOp(op=operator, values=[left, right, *_]):
            yield (*at.between(left, right), " or " if isinstance(operator, ast.And) else " and ")
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield (*at.span(node), f"({at.of(operand)})")
        case ast.IfExp(test=test) | ast.If(test=test) if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yield (*at.span(test), f"not ({at.of(test)})")
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int(value)):
            yield (*at.span(node), str(value + 1))
        case ast.Constant(value=float(value)):
            yield (*at.span(node), repr(value * 2 + (value == 0)))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _CALLED:
            stop = at.span(node.func)[1]
            yield stop - len(name), stop, _CALLED[name]
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break():
            yield (*at.span(node), "pass")


def _swaps(operator: ast.operator, left: ast.AST, right: ast.AST) -> bool:
    """Whether the operator changes, and not a number beside it; text is no sum."""
    constants = [side.value for side in (left, right) if isinstance(side, ast.Constant)]
    text = any(isinstance(value, str) for value in constants) or isinstance(left, ast.JoinedStr)
    return type(operator) in _COMPUTED and not text and (not constants or isinstance(operator, (ast.Add, ast.Sub)))


def _symbol(operator: ast.operator) -> str:
    return ast.unparse(ast.BinOp(ast.Name("a"), operator, ast.Name("b")))[2:-2]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _line_of(node: ast.AST) -> ast.AST:
    """What names a mutant's surroundings: a statement by its first line."""
    return node.test if isinstance(node, ast.If) else node


def _compiles(mutant: Generic) -> bool:
    try:
        ast.parse(mutant.source())
    except SyntaxError:
        return False
    return True


class _Offsets:
    """From the syntax tree's lines and bytes to places in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where it begins and ends."""
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def between(self, left: ast.AST, right: ast.AST) -> tuple[int, int]:
        """The operator's place, without brackets that belong to its sides."""
        start, stop = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:stop]
        lead = len(gap) - len(gap.lstrip(") \n"))
        trail = len(gap) - len(gap.rstrip("( \n"))
        spaces_before = len(gap[:lead]) - len(gap[:lead].rstrip(" \n"))
        spaces_after = len(gap[len(gap) - trail :]) - len(gap[len(gap) - trail :].lstrip(" \n"))
        return start + lead - spaces_before, stop - trail + spaces_after

    def of(self, node: ast.AST) -> str:
        """Its text."""
        start, stop = self.span(node)
        return self.text[start:stop]

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())
