"""A chat template of a hostile file gets neither at Python's insides nor much memory or time."""

import resource
import sys
import time

import pytest

from gguf_hybrid.errors import ConfigError, RequestError
from gguf_hybrid.text.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}
MAX_MORE_MIB = 300


def rendered(source: str) -> str:
    return ChatTemplate(source).render([USER], kwargs={"kw": {"a": 1}})


def peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@pytest.mark.parametrize(
    "expression",
    [
        "''['__class__']",
        "''|attr('__class__')",
        "''|attr('\\x5f\\x5fclass\\x5f\\x5f')",
        "['']|map(attribute='__class__')|first",
        "messages|selectattr('__class__')|first",
        "'{0.__class__}'.format('x')",
        "self.__init__",
        "self._TemplateReference__context",
        "raise_exception.__globals__",
        "strftime_now.__code__",
        "messages.__class__",
        "(1).__class__",
    ],
)
def test_python_is_out_of_sight(expression: str) -> None:
    assert rendered("{{ " + expression + " }}") == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ messages.pop() }}",
        "{{ messages[0].update({'x': 1}) }}",
        "{{ kw.clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
        "{{ ().__getattribute__('__class__') }}",
    ],
)
def test_what_reaches_out_is_refused(source: str) -> None:
    with pytest.raises((RequestError, ConfigError)):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ __budget }}",
        "{{ __charge(-10**9) }}",
        "{% set __charge = raise_exception %}",
        "{% for __budget in [0] %}{% endfor %}",
        "{% macro __charge(n) %}{% endmacro %}",
        "{% macro m(__weigh) %}{% endmacro %}",
    ],
)
def test_the_budget_is_out_of_reach(source: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        rendered(source)


DOUBLING = (
    "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = NEXT %}{% endfor %}"
)
LARGE = [
    "{{ ''.join(['a' * 9000000] * 1000) }}",
    "{{ (['a' * 1000000] * 1000) | join }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(width=10**9) }}",
    "{{ 'a\\tb'.expandtabs(10**9) }}",
    "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ 'aaaa'.replace('a', 'b' * 1000000).replace('b', 'c' * 1000000) }}",
    "{{ ('a' * 10000) | replace('a', 'b' * 1000000) }}",
    "{{ 'x'.translate({120: 'y' * 1000000}) }}",
    "{{ 'a'.encode().ljust(10**9) }}",
    "{{ [1] * 10**9 }}",
    "{{ (1, 2) * 10**9 }}",
    "{{ ['x'] | batch(10**9, 'y') | list }}",
    "{{ {'a': [1, 2]} | tojson(indent=100000000) }}",
    "{{ 5 | round(-10**9, 'floor') }}",
    "{{ ['a' * 1000000] * 9000000 }}",
    "{{ range(99999) | map('default', 'a' * 9000000, true) | list }}",
    "{{ ((((2**64)**64)**64)**64)**64 }}",
]
LARGE += [
    DOUBLING.replace("START", start).replace("NEXT", following) + shown
    for start, following, shown in [
        ("[]", "[n.x, n.x]", "{{ n.x }}"),
        ("[]", "{'a': n.x, 'b': n.x}", "{{ n.x | tojson }}"),
        ("[]", "(n.x, n.x)", "{{ n.x == n.x }}"),
        ("[]", "dict(a=n.x, b=n.x)", "{{ n.x }}"),
        ("[1]", "n.x + n.x", "{{ n.x }}"),
        ("[1]", "[n.x, n.x] | sum(start=[])", "{{ n.x }}"),
        ("'a'", "n.x ~ n.x", "{{ n.x }}"),
        ("'a'", "[n.x, n.x] | join", "{{ n.x }}"),
        ("'a'", "'%s%s' % (n.x, n.x)", "{{ n.x }}"),
        ("'a'", "'%s%s' | format(n.x, n.x)", "{{ n.x }}"),
        ("'a'", "'{0}{0}'.format(n.x)", "{{ n.x }}"),
        ("'a'", "n.x | replace('a', 'aa')", "{{ n.x }}"),
        ("'%'", "n.x | urlencode", "{{ n.x }}"),
        ("2", "n.x * n.x", "{{ n.x % 7 }}"),
    ]
]


@pytest.mark.parametrize("source", LARGE)
def test_large_values_are_refused_before_they_are_made(source: str) -> None:
    peak, began = peak_mib(), time.process_time()
    with pytest.raises((RequestError, ConfigError)):
        rendered(source)
    assert peak_mib() - peak < MAX_MORE_MIB
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% for x in y %}" * 99]
)
def test_too_deep_nesting_is_a_configuration_error(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^chat template: [^\n]+$"):
        ChatTemplate(source + "{% endfor %}" * source.count("{% for"))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ ['a', 'b'] | join(', ') }}", "a, b"),
        ("{{ [{'k': 1}, {'k': 2}] | map(attribute='k') | join('-') }}", "1-2"),
        ("{{ [{'k': 1}, {'k': 2}] | join('+', attribute='k') }}", "1+2"),
        ("{{ [1, 2, 3] | sum }}{{ [{'k': 1.5}] | sum(attribute='k') }}", "61.5"),
        ("{{ 'a.b' | replace('.', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}", "a-bbba"),
        ("{{ '%s=%03d' | format('x', 7) }}{{ '%.2f' % 1.234 }}", "x=0071.23"),
        ("{{ '{}-{k}'.format(1, k='v') }}", "1-v"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 2.567 | round(1) }}", "2.6"),
        ("{{ ', '.join(['a', 'b']) }}{{ 'a b'.split()[1] }}", "a, bb"),
        ("{{ [1] * 3 }}{{ 'ab' * 2 }}{{ 2 ** 10 }}", "[1, 1, 1]abab1024"),
        ("{% filter upper %}a{% endfilter %}{% set x | trim %} b {% endset %}{{ x }}", "Ab"),
        (
            "{% set (a, b) = (1, 2) %}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
            "x1",
        ),
        (
            "{% macro m(a, b=[2]) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1, [3], 4) }}",
            "1[3](4,)",
        ),
    ],
)
def test_ordinary_expressions_keep_their_meaning(source: str, text: str) -> None:
    assert rendered(source) == text
