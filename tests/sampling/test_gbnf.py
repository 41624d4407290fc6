"""GBNF: the notation, and that the converted grammar accepts exactly the same texts."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_hybrid.errors import RequestError
from gguf_hybrid.sampling.gbnf import Choice, Literal, Node, Ref, Repeat, Sequence, parse_gbnf
from gguf_hybrid.sampling.grammar import Grammar
from gguf_hybrid.sampling.regular import is_regular, without_right_recursion

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= "-"? [0-9]+ ("." [0-9]+)? ws
# one blank or line
ws ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        ("root ::= [0-9]{4}", ["4200"], ["420", "42000", "42a0"]),
        ('root ::= "yes"', ["yes"], ["no", "yess", "ye"]),
        ('root ::= "é你好"', ["é你好"], ["é你"]),
        ('root ::= "42" "!"', ["42!"], ["42"]),
        # Greedy lexemes would swallow the end.
        ('root ::= [a-z]* "x"', ["x", "abxcx"], ["ab"]),
        ('root ::= [a-z] root | "x"', ["x", "abxx"], ["ab"]),
        ('root ::= "a" | "ab" "c" | root "d"', ["a", "abc", "add"], ["ab", "abd"]),
        ('root ::= ("a" root "b")?', ["", "aabb"], ["aab", "ba"]),
        ('root ::= (("a" | "") "b"?)*', ["", "aab", "bb"], ["c"]),
        ("root ::= .{2,3}", ["你好", "a\nb"], ["a", "abcd"]),
        ("root ::= [^a-c]+", ["xyz\n"], ["xa"]),
        ('root ::= [\\]\\-^] "\\x41\\u00e9\\U0001F600"', ["]Aé😀", "^Aé😀"], ["-"]),
        ('root ::= x{2,}\nx-1 ::= "b"\nx ::= "a" x-1?', ["aa", "abab"], ["ab"]),
        ('root ::= x {0,5000} "."\nx ::= [0-9] | "(" x ")"', ["12(3).", "."], ["(1"]),
        ('root\t::=\n "a" | # or\n "b"\n\n', ["a", "b"], ["ab"]),
        (JSON, ['{"a": [1, -2.5, true], "b":{}}', "{}\n  "], ['{"a":: 1}', "[]", '{"a": 1']),
        (ARITHMETIC, ["a+1*(3)=4\n", "x=y\n\n"], ["a+=1\n", "a=1"]),
    ],
)
def test_language(words, grammar, accepted, refused):
    grammar = Grammar.from_gbnf(grammar)
    assert [text for text in accepted if not words.accepts(grammar, text)] == []
    assert [text for text in accepted if not words.accepts(grammar, text, spelled=True)] == []
    assert [text for text in refused if words.accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "yes', "line 1: the grammar ends within a string"),
        ('x ::= "a"', "no rule named 'root'"),
        ("root ::= undefined_rule", "undefined rule 'undefined_rule'"),
        ('root ::= "a"\nx = "b"', "line 2: expected '::='"),
        ("root ::= [a-", "line 1: the grammar ends within a character class"),
        ("root ::= [b-a]", "line 1: empty range 'b'-'a'"),
        ("root ::= []", "line 1: empty character class"),
        ('root ::= ("a"', "line 1: expected ')'"),
        ('root ::= "a")', "line 1: expected the end of the line"),
        ("root ::= *", "line 1: nothing to repeat before '*'"),
        ('root ::= "a"{2', "line 1: expected {m}, {m,} or {m,n}"),
        ('root ::= "a"{3,2}', "line 1: impossible repetition {3,2}"),
        ('root ::= "\\q"', "line 1: unknown escape \\q"),
        ('root ::= "\\xZZ"', "line 1: bad character number 'ZZ'"),
        ("root ::= <nope>", "line 1: <nope> is not a token of this model"),
        ("", "no rule named 'root'"),
        ("root ::= " + "(" * 300, "line 1: more than 100 nested parentheses"),
        ("# " + "x" * (1 << 20), "longer than 1048576 characters"),
    ],
)
def test_what_is_not_a_grammar(grammar, reason):
    with pytest.raises(RequestError) as caught:
        Grammar.from_gbnf(grammar)
    expected = "Failed to initialize samplers: failed to parse grammar: " + reason
    assert (str(caught.value), caught.value.status) == (expected, 400)


def test_tokens_by_id_and_by_name(words):
    lookup = {"<|im_start|>": words.control}.get
    grammar = Grammar.from_gbnf(
        f"root ::= <[{words.control}]> !<|im_start|> <|im_start|>?", token_id=lookup
    )
    constraint = grammar.start(words.grammar)
    assert constraint.mask().nonzero()[0].tolist() == [words.control]
    constraint.accept(words.control)
    assert not constraint.mask()[words.control]
    constraint.accept(ord("a"))
    assert constraint.mask().nonzero()[0].tolist() == [words.eog, words.control]


def test_control_tokens_match_no_text(words):
    mask = Grammar.from_gbnf("root ::= .*").start(words.grammar).mask()
    assert mask[ord("<")] and not mask[words.control]


def test_recursion_decides_the_form():
    def regular(text):
        return is_regular(without_right_recursion(parse_gbnf(text, lambda _: None)))

    assert regular('root ::= a a\na ::= b b\nb ::= "x"*')
    assert regular('root ::= a\na ::= "x" b?\nb ::= a | "y" root')
    assert regular("root ::= [a]\nunused ::= unused")
    assert not regular('root ::= a "y"\na ::= "x" root | "z"')
    assert not regular('root ::= root "x" | "y"')
    assert not regular("root ::= <[3]>")


def test_text_up_to_a_tag_as_an_automaton(words):
    """How llama.cpp writes "anything but </x>": one rule for each character of the tag."""
    grammar = Grammar.from_gbnf(
        'root ::= u "</x>"\nu ::= | [<] u1 | [^<] u\nu1 ::= | [<] u1 | [/] u2 | [^</] u\n'
        "u2 ::= | [<] u1 | [x] u3 | [^<x] u\nu3 ::= | [<] u1 | [^<>] u"
    )
    assert grammar.lark.count("\nstart: R") == 1
    assert words.accepts(grammar, "ab < / </ </</y></x>")
    assert not words.accepts(grammar, "ab</x>c</x>")
    text, ended = words.walk(grammar, seed=3, limit=2500)
    assert ended or len(text) > 2000


CHAINS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ab", ""]), st.sampled_from(["root", "x", "y", ""])),
    min_size=1,
    max_size=4,
).map(lambda options: " | ".join(f'"{text}" {rule}' for text, rule in options))


@settings(max_examples=150, deadline=None)
@given(CHAINS, CHAINS, CHAINS, st.lists(st.text("ab", max_size=6), max_size=6))
def test_random_automata_keep_their_language(words, root, x, y, texts):
    source = f'root ::= {root}\nx ::= {x} | "b"\ny ::= "a" | {y}'
    rules = parse_gbnf(source, lambda _: None)
    if any(expansions(rules, text) for text in texts):
        grammar = Grammar.from_gbnf(source)
        for text in texts:
            assert words.accepts(grammar, text) == expansions(rules, text), text


GENERATED = json.loads((Path(__file__).parents[1] / "data/llama_cpp_grammars.json").read_text())


@pytest.mark.parametrize("case", GENERATED, ids=[case["name"] for case in GENERATED])
def test_grammars_llama_cpp_writes(words, case):
    """Recorded from llama-server b11434: what it makes of schemas and of tools."""
    grammar = Grammar.from_gbnf(case["gbnf"])
    assert [text for text in case["accepted"] if not words.accepts(grammar, text)] == []
    assert [text for text in case["refused"] if words.accepts(grammar, text)] == []


def expansions(rules: dict[str, Node], text: str) -> bool:
    """Whether ``root`` derives ``text``: ends of each rule at each position, to a fixed point."""
    table: dict[tuple[str, int], set[int]] = {}

    def ends(node: Node, at: int) -> set[int]:
        match node:
            case Literal(literal):
                return {at + len(literal)} if text.startswith(literal, at) else set()
            case Ref(name):
                return table.setdefault((name, at), set())
            case Choice(options):
                return set().union(*(ends(option, at) for option in options))
            case Sequence(items):
                reached = {at}
                for item in items:
                    reached = set().union(*(ends(item, i) for i in reached))
                return reached
            case Repeat(item, least, most):
                return repeated(item, least, most, at)
        raise AssertionError(node)

    def repeated(item: Node, least: int, most: int | None, at: int) -> set[int]:
        total, reached = set(), {at}
        for count in range(len(text) + least + 2 if most is None else most + 1):
            if count >= least:
                total |= reached
            reached = set().union(*(ends(item, i) for i in reached))
        return total

    while True:
        before = sum(map(len, table.values()))
        for name, node in rules.items():
            for at in range(len(text) + 1):
                table.setdefault((name, at), set()).update(ends(node, at))
        if sum(map(len, table.values())) == before:
            return len(text) in table["root", 0]


ATOMS = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', "x", "y", '"aab"'])
REPEATS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,1}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " ".join(parts) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " | ".join(parts) + ")"),
        st.tuples(inner, REPEATS).map("".join),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, st.lists(st.text("ab", max_size=6), max_size=6))
def test_random_grammars_keep_their_language(words, root, x, y, texts):
    # Each rule has an end of its own, so that every recursion can stop.
    source = f'root ::= {root}\nx ::= {x} | "b"\ny ::= {y} | "a" x?'
    rules = parse_gbnf(source, lambda _: None)
    grammar = Grammar.from_gbnf(source)
    for text in texts:
        assert words.accepts(grammar, text) == expansions(rules, text), text
