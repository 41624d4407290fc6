"""A Jinja environment for chat templates, which come with model files and are not trusted.

Jinja's sandbox keeps templates away from Python's internals, but not from endless loops or huge
values. Here every loop round and macro call is charged to a budget of time and characters: the
parsed template is rewritten so that each of them begins with a call that charges it. Lists and
dicts, and what goes into a filter, are weighed (``sandbox_sizes``).
"""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .sandbox_sizes import (
    DROPPED_FILTERS,
    DROPPED_GLOBALS,
    MAX_CHARS,
    MAX_INDENT,
    SIZED_FILTERS,
    Scales,
    check_format,
    check_method,
    check_operation,
    check_size,
)

MAX_TEMPLATE_CHARS = 1 << 20
MAX_SECONDS = 2.0

# What evaluating a template can raise besides TemplateError: it runs ordinary Python operators.
RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
# What compiling one can raise: Python's own limits on nesting, too.
COMPILE_ERRORS = (TemplateError, MemoryError, RecursionError, SyntaxError, ValueError)
_BUDGET = "__budget"
_CHARGE = "__charge"
_JOIN = "__join"
_WEIGH = "__weigh"
_RESERVED = "__"


class Budget:
    """Time and characters that one rendering may spend."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._deadline = time.monotonic() + max_seconds
        self._n_chars = 0
        self.scales = Scales()

    def weigh(self, value: Any) -> Any:
        """``value``, unless it is too large."""
        check_size(self.scales.weigh(value))
        return value

    def charge(self, n_chars: int) -> None:
        self._n_chars += n_chars
        if self._n_chars > MAX_CHARS:
            raise SecurityError(f"the template writes more than {MAX_CHARS} characters")
        if time.monotonic() > self._deadline:
            raise SecurityError(f"the template runs for more than {self._max_seconds:g} seconds")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face and llama.cpp set it up, with budgets."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=_charge_output,
        )
        self.filters = {k: f for k, f in self.filters.items() if k not in DROPPED_FILTERS}
        self.filters |= SIZED_FILTERS | {"tojson": _tojson}
        self.globals = {k: g for k, g in self.globals.items() if k not in DROPPED_GLOBALS}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            _JOIN: _join,
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right, _scales(context))
        if operator == "+" and isinstance(left, str) and isinstance(right, str | Undefined):
            return _join(left, right)  # llama.cpp adds an undefined value as nothing
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        scales = _scales(__context)
        if isinstance(getattr(__obj, "__self__", None), str | bytes):
            check_method(__obj, (*args, *kwargs.values()), scales)
        result = super().call(__context, __obj, *args, **kwargs)
        check_size(scales.weigh(result))
        return result

    def wrap_str_format(self, value: Any) -> Any:
        """Jinja's stand-in for ``str.format``, behind a check."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> Any:
            check_format(value.__self__, (*args, *kwargs.values()), Scales())
            return wrapped(*args, **kwargs)

        return checked

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise SecurityError(f"the template is longer than {MAX_TEMPLATE_CHARS} characters")
        tree: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return tree


class _GenerationTag(Extension):
    """Hugging Face's ``{% generation %}``, which marks text for training and renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_within_budget(
    template: Template, variables: Mapping[str, Any], max_seconds: float = MAX_SECONDS
) -> str:
    """Render a template of a TemplateSandbox; raises one of RENDER_ERRORS."""
    budget = Budget(max_seconds)
    return template.render(
        {**variables, _BUDGET: budget, _CHARGE: budget.charge, _WEIGH: budget.weigh}
    )


class _Metering(NodeTransformer):
    """Charges loop rounds and macro calls, sends ``~`` through a size check, weighs containers and
    what goes into filters, and keeps the names of all this to itself."""

    def visit_Name(self, node: nodes.Name) -> nodes.Name:
        _refuse_reserved(node.name)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._weighed(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._weighed(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._weighed(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self.generic_visit(node)
        if node.node is not None:  # None in a filter block
            node.node = _call(_WEIGH, [node.node], node.lineno)
        return node

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _call(_WEIGH, [node], node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._charge(node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        _refuse_reserved(node.name)
        self._charge(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call(_JOIN, node.nodes, node.lineno)

    def _charge(self, node: nodes.For | nodes.Macro) -> None:
        self.generic_visit(node)
        n_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        charge = _call(_CHARGE, [nodes.Const(n_chars, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))


def _refuse_reserved(name: str) -> None:
    if name.startswith(_RESERVED):
        raise SecurityError(f"the name {name} is reserved")


def _call(function: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    name = nodes.Name(function, "load", lineno=lineno)
    return nodes.Call(name, arguments, [], None, None, lineno=lineno)


@pass_context
def _charge_output(context: Context, value: Any) -> Any:
    budget = context.get(_BUDGET)
    if budget is not None:  # None while the compiler folds constants
        value = str(budget.weigh(value))
        budget.charge(len(value))
    return value


def _scales(context: Context) -> Scales:
    """Those of the rendering; others while the compiler folds constants."""
    budget = context.get(_BUDGET)
    return Scales() if budget is None else budget.scales


def _join(*values: Any) -> str:
    scales = Scales()
    check_size(sum(map(scales.weigh, values)))
    texts = [str(value) for value in values]
    check_size(sum(map(len, texts)))
    return "".join(texts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON as Hugging Face writes it; Jinja's own filter escapes for HTML."""
    if indent is not None and indent > MAX_INDENT:
        raise SecurityError(f"an indentation of {indent}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
