"""Compiles a chat template so that everything it does is bounded while it renders.

The compiled tree is changed: literals, slices, blocks that become values, `~` and what is printed
go through filters that take them into account; loops, comparisons and lookups look at the time.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes as n
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

from chunkmesh.errors import ConfigError
from scheduler import template_functions
from scheduler.template_budget import current, within

_MAX_POWER_BITS = 4096
_MAX_DATE_CHARS = 256


def compile_template(source: str, now: Callable[[], dt.datetime]) -> jinja2.Template:
    """Compile; what comes of it renders while template_budget.current is set.

    Raises:
        ConfigError: it uses a filter that is not known here.
        jinja2.TemplateError, SyntaxError: it is not valid.
    """
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    for table, known in (
        (environment.filters, template_functions.filters()),
        (environment.tests, template_functions.tests()),
        (environment.globals, template_functions.functions()),
    ):
        table.clear()
        table.update(known)

    def strftime_now(form: str) -> str:
        if len(form) > _MAX_DATE_CHARS:
            raise jinja2.TemplateRuntimeError(f"date format is longer than {_MAX_DATE_CHARS}")
        return now().strftime(form)

    environment.globals["strftime_now"] = strftime_now
    tree = environment.parse(source)
    for each in tree.find_all(n.Filter):
        _check_filter(each, environment)
    tree = _Bounds().visit(tree)
    tree.set_environment(environment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python's doubts about its expressions
        code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def _check_filter(node: n.Filter, environment: jinja2.Environment) -> None:
    """Refuse a filter that is not known, also where map is to apply it."""
    mapped = [arg.value for arg in (node.args or ())[:1] if isinstance(arg, n.Const)]
    for name in (node.name, *(mapped if node.name == "map" else ())):
        if name not in environment.filters:
            known = ", ".join(sorted(name for name in environment.filters if name.isidentifier()))
            raise ConfigError(
                f"chat template line {node.lineno}: filter {name!r} is not known; known are {known}"
            )


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of jinja2, with bounds in calls and operators."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        for kind, names in template_functions.METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ANN401, ARG002
        """Leave str.format to is_safe_attribute, which refuses it: widths may come as values."""
        return None  # noqa: RET501 -- as the method that it replaces

    def call(
        self,
        context: jinja2.runtime.Context,
        obj: Any,  # noqa: ANN401
        /,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        budget = current.get()
        budget.check(*args, *kwargs.values())
        args = template_functions.method_args(obj, args)
        return budget.made(super().call(context, obj, *args, **kwargs))

    def call_binop(
        self,
        context: jinja2.runtime.Context,
        operator: str,
        left: Any,  # noqa: ANN401
        right: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        budget = current.get()
        budget.check_time()
        weights = budget.weight(left), budget.weight(right)
        match operator:
            case "+":
                within("a sum", sum(weights))
            case "*":
                for weight, text, count in ((weights[0], left, right), (weights[1], right, left)):
                    if isinstance(text, str | list | tuple):
                        within("repetition", weight * count)
            case "%" if isinstance(left, str):
                template_functions.check_format(left, right)
            case "**" if isinstance(left, int) and left.bit_length() * right > _MAX_POWER_BITS:
                raise jinja2.TemplateRuntimeError(f"power has more than {_MAX_POWER_BITS} bits")
        return budget.made(super().call_binop(context, operator, left, right))


class _GenerationTag(jinja2.ext.Extension):
    """Accepts the tag with which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012 -- declared so by jinja2

    def parse(self, parser: jinja2.parser.Parser) -> n.Node:
        """Return the body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return n.Scope(body).set_lineno(line)


class _Bounds(jinja2.visitor.NodeTransformer):
    """Leads expressions through filters; see template_functions for what those do."""

    def visit_Output(self, node: n.Output) -> n.Output:
        self.generic_visit(node)
        node.nodes = [_through("<printed>", child) for child in node.nodes]
        return node

    def visit_For(self, node: n.For) -> n.For:
        self.generic_visit(node)
        node.iter = _through("<each>", node.iter)
        return node

    def visit_Concat(self, node: n.Concat) -> n.Filter:
        self.generic_visit(node)
        return _through("<concatenated>", n.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: n.List) -> n.Filter:
        self.generic_visit(node)
        return _through("<made>", node)

    def visit_Dict(self, node: n.Dict) -> n.Filter:
        self.generic_visit(node)
        return _through("<made>", node)

    def visit_Tuple(self, node: n.Tuple) -> n.Expr:
        self.generic_visit(node)
        return node if node.ctx == "store" else _through("<made>", node)

    def visit_Pair(self, node: n.Pair) -> n.Pair:
        self.generic_visit(node)
        node.key = _through("<seen>", node.key)
        return node

    def visit_Getitem(self, node: n.Getitem) -> n.Expr:
        self.generic_visit(node)
        if isinstance(node.arg, n.Slice):
            return _through("<made>", node)
        if not isinstance(node.arg, n.Const):
            node.arg = _through("<seen>", node.arg)
        return node

    def visit_Compare(self, node: n.Compare) -> n.Compare:
        self.generic_visit(node)
        node.expr = _through("<seen>", node.expr)
        return node

    def visit_Filter(self, node: n.Filter) -> n.Filter:
        """Bound the text of a filter block, which is the filter without an operand."""
        self.generic_visit(node)
        if node.node is None:
            node.node = _through("<made>", None, node.lineno)
        return node

    def visit_AssignBlock(self, node: n.AssignBlock) -> n.AssignBlock:
        self.generic_visit(node)
        node.filter = node.filter or _through("<made>", None, node.lineno)
        return node


def _through(name: str, node: n.Node | None, lineno: int = 0) -> n.Filter:
    line = lineno if node is None else node.lineno
    return n.Filter(node, name, [], [], None, None, lineno=line)
