"""The code keeps its size budgets and its promises of trust, everywhere but in generated stubs.

Budgets let a reader hold a file, a class or a function in his head; code that outgrows one usually
holds two nouns.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forbidden_code import dotted, forbidden

ROOT = Path(__file__).parents[2]
PACKAGES = ("chunkmesh", "scheduler", "stage_worker", "hicache", "tests")

MAX_FILE_LINES = 400
MAX_CLASS_LINES = 250
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6

REFUSED_WORDS = ("Manager", "Handler", "Helper", "Util", "Mixin")
MAY_BE_OFF = {"S101", "S104", "S603", "S607"}
"""asserts, binding, and in tests the start of our own programs."""
BROAD = ("Exception", "BaseException")
MAY_CATCH_BROADLY = {
    "chunkmesh/rpc_errors.py",  # every RPC ends with a status
    "chunkmesh/gateway/observed.py",  # and every request of HTTP with an answer
    "scheduler/tokenizer_bounds.py",  # a library's panics are of a class that it hides
    "chunkmesh/service.py",  # the last place of a process that can log
    "stage_worker/completions.py",  # the thread that waits for a device hands its error on
    "stage_worker/compute.py",  # and so does the compute thread
    "stage_worker/start_thread.py",  # and the one that loads
    "stage_worker/page_io.py",  # and so do the I/O threads
}

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.is_relative_to(ROOT / "chunkmesh" / "v1")
)
SOURCES = [name for name in FILES if not name.startswith("tests/")]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), name)


def _lines(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _functions(name: str) -> Iterator[Function]:
    for node in ast.walk(_tree(name)):
        if isinstance(node, Function):
            yield node


def test_there_is_something_to_check() -> None:
    """A moved folder must not turn every check below into a check of nothing."""
    assert {name.split("/")[0] for name in FILES} == set(PACKAGES)


@pytest.mark.parametrize("name", FILES)
def test_sizes(name: str) -> None:
    """Files, classes and functions stay within their budgets."""
    tree = _tree(name)
    over = [
        f"{node.name}: {_lines(node)} lines, at most {limit}"
        for node in ast.walk(tree)
        for kind, limit in ((ast.ClassDef, MAX_CLASS_LINES), (Function, MAX_FUNCTION_LINES))
        if isinstance(node, kind) and _lines(node) > limit
    ]
    num_lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
    if num_lines > MAX_FILE_LINES:
        over.append(f"the file: {num_lines} lines, at most {MAX_FILE_LINES}")
    assert over == []


@pytest.mark.parametrize("name", SOURCES)
def test_parameters(name: str) -> None:
    """More values need a class of values, but for a command's flags and what a kernel is given."""
    over = [
        f"{function.name}: {len(arguments)} parameters, at most {MAX_PARAMETERS}"
        for function in _functions(name)
        if not _is_command(function) and len(arguments := _parameters(function)) > MAX_PARAMETERS
    ]
    assert over == []


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument for argument in listed if argument.arg not in {"self", "cls"}]


def _is_command(function: Function) -> bool:
    """Say whether typer or a GPU calls it: @app.command, @app.callback or @triton.jit."""
    names = [
        dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in function.decorator_list
    ]
    return any(name.endswith((".command", ".callback", "triton.jit")) for name in names)


@pytest.mark.parametrize("name", FILES)
def test_no_data_is_run_as_code(name: str) -> None:
    """Pickles, eval and shells turn a message, a model file or a flag into a program."""
    assert forbidden((ROOT / name).read_text(encoding="utf-8"), name) == []


def test_the_lint_rules_of_trust_are_on() -> None:
    """Ruff's S rules know more ways; who turns one off must say so here as well."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    off = {
        *config["ignore"],
        *(code for codes in config["per-file-ignores"].values() for code in codes),
    }
    assert config["select"] == ["ALL"]
    assert {code for code in off if re.fullmatch(r"S\d+", code)} == MAY_BE_OFF


def test_no_rule_of_trust_is_silenced_on_a_line() -> None:
    """S301 to S307 and S506 are of pickles, eval and YAML; S602, S604 and S605 of shells."""
    rule = re.compile(r"noqa:[^#\n]*\b(S30[1-7]|S506|S60[245])\b")
    assert [name for name in FILES if rule.search((ROOT / name).read_text("utf-8"))] == []


@pytest.mark.parametrize("name", FILES)
def test_ascii_only(name: str) -> None:
    """Look-alike and invisible characters cannot hide in the code; texts use escapes."""
    found = [
        f"line {number}"
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if not line.isascii()
    ]
    assert found == []


@pytest.mark.parametrize("name", SOURCES)
def test_names_say_what_a_class_is(name: str) -> None:
    """These words are given to classes that have no one job."""
    found = [
        node.name
        for node in ast.walk(_tree(name))
        if isinstance(node, ast.ClassDef) and any(word in node.name for word in REFUSED_WORDS)
    ]
    assert found == []


@pytest.mark.parametrize("name", SOURCES)
def test_every_module_says_what_it_is(name: str) -> None:
    """A reader who opens any file knows where he is."""
    assert ast.get_docstring(_tree(name))


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in MAY_CATCH_BROADLY])
def test_no_error_is_swallowed(name: str) -> None:
    """Errors are caught by name; who catches all of them to clean up raises them again."""
    found = [
        f"line {node.lineno}"
        for node in ast.walk(_tree(name))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises_again(node)
    ]
    assert found == []


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return caught is None or dotted(caught) in BROAD


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None
