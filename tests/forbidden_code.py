"""Finds code that would run data as code: pickles, eval, shells, loaders that unpickle."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "jsonpickle", "joblib"}
    | {"marshal", "shelve", "yaml", "ruamel", "code", "codeop"}
)
CALLS = frozenset(
    {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "builtins.eval"}
    | {"builtins.exec", "torch.load", "torch.jit.load", "torch.hub.load", "torch.package"}
    | {"numpy.load", "pandas.read_pickle", "runpy.run_path", "runpy.run_module"}
)
KEYWORDS = frozenset({"shell", "allow_pickle", "trust_remote_code", "weights_only"})
"""Of calls: none of them is needed, whatever its value."""


def forbidden(source: str, name: str) -> list[str]:
    """Return what a file must not hold, each with its line."""
    tree = ast.parse(source, name)
    nodes = list(ast.walk(tree))
    found = [each for node in nodes for each in (*_imported(node), *_called(node))]
    return [f"line {line}: {what}" for line, what in found]


def dotted(node: ast.expr) -> str:
    """Return a.b.c of such an expression, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for item in node.names:
            if _top(item.name) in MODULES:
                yield node.lineno, f"import {item.name}"
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        for item in node.names:
            if _top(module) in MODULES or f"{module}.{item.name}" in CALLS:
                yield node.lineno, f"from {module} import {item.name}"


def _called(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Call):
        call = dotted(node.func).replace("np.", "numpy.")
        if call in CALLS:
            yield node.lineno, call
        for word in node.keywords:
            if word.arg in KEYWORDS:
                yield node.lineno, f"{word.arg}="


def _top(module: str) -> str:
    return module.partition(".")[0]
