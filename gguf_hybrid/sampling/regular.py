"""Which rules of a GBNF grammar are regular, and right recursion rewritten as repetition.

``a ::= "x" a | "y"`` is ``"x"* "y"``, and a set of rules that refer to each other only at their
ends is a finite automaton. A parser would keep an item for every character such a rule has
produced; as a regular expression it costs nothing.
"""

from collections.abc import Collection, Iterable, Mapping

from .gbnf import Choice, Literal, Node, Ref, Repeat, Sequence, Token, children, references

Rules = Mapping[str, Node]
Equation = dict[str | None, Node]
"""A rule as alternatives: the rule it ends in (None: no rule of its set) → what comes before."""

EMPTY = Sequence(())
MAX_NEW_RULES = 20_000


def components(rules: Rules) -> list[list[str]]:
    """The rules reachable from ``root`` in sets that refer to each other, callees first.

    Kosaraju's algorithm, without recursion.
    """
    callees = {name: set(references((node,))) for name, node in rules.items()}
    order = _postorder("root", callees, set())
    callers: dict[str, set[str]] = {name: set() for name in order}
    for name in order:
        for callee in callees[name]:
            callers[callee].add(name)
    seen: set[str] = set()
    sets = [_postorder(name, callers, seen) for name in reversed(order) if name not in seen]
    position = {name: i for i, name in enumerate(rules)}
    return [sorted(members, key=position.__getitem__) for members in reversed(sets)]


def _postorder(start: str, edges: Mapping[str, Collection[str]], seen: set[str]) -> list[str]:
    """What can be reached from ``start`` past ``seen``, each after what it leads to."""
    order: list[str] = []
    stack: list[tuple[str, bool]] = [(start, False)]
    while stack:
        name, leaving = stack.pop()
        if leaving:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(after, False) for after in sorted(edges[name])]
    return order


def is_regular(rules: Rules) -> bool:
    """Whether nothing reachable from ``root`` is recursive or speaks of tokens."""
    return not any(
        is_recursive(members, rules) or any(map(_has_tokens, (rules[name] for name in members)))
        for members in components(rules)
    )


def is_recursive(members: Collection[str], rules: Rules) -> bool:
    return any(_mentions((rules[name],), members) for name in members)


def _has_tokens(node: Node) -> bool:
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Token):
            return True
        stack.extend(children(node))
    return False


def _mentions(nodes: Iterable[Node], members: Collection[str]) -> bool:
    return any(name in members for name in references(nodes))


def without_right_recursion(rules: Rules) -> dict[str, Node]:
    """The same language, ``root`` included; rules that are not reachable are left out."""
    result: dict[str, Node] = {}
    for members in components(rules):
        solved = _Automaton(members, rules).solved()
        result |= solved or {name: rules[name] for name in members}
    return result


class _Automaton:
    """Solves X_i = Σ A_ij X_j + B_i from the last rule to the first: X = A X + B is X = A* B."""

    def __init__(self, members: list[str], rules: Rules) -> None:
        self._members = members
        self._rules = rules
        self._new: dict[str, Node] = {}

    def solved(self) -> dict[str, Node] | None:
        """Rules without recursion, or None where the set is not right-linear."""
        if not is_recursive(self._members, self._rules):
            return None
        equations: dict[str, Equation] = {}
        for name in self._members:
            equation = self._linear(self._rules[name])
            if equation is None:
                return None
            equations[name] = equation
        for at in range(len(self._members) - 1, -1, -1):
            self._eliminate(at, equations)
            if not equations[self._members[at]] or len(self._new) > MAX_NEW_RULES:
                return None
        return self._new | {name: self._rule(equations[name]) for name in self._members}

    def _eliminate(self, at: int, equations: dict[str, Equation]) -> None:
        name = self._members[at]
        equation = equations[name]
        loop = equation.pop(name, EMPTY)
        if loop != EMPTY:
            repeated = self._named(Repeat(loop, 0, None))
            for tail, before in equation.items():
                equation[tail] = self._sequence(repeated, before)
        for earlier in self._members[:at]:
            if (head := equations[earlier].pop(name, None)) is not None:
                for tail, before in equation.items():
                    self._add(equations[earlier], tail, self._sequence(head, before))

    def _linear(self, node: Node) -> Equation | None:
        """``node`` as an equation; None where it mentions the set anywhere but at an end."""
        match node:
            case Ref(name) if name in self._members:
                return {name: EMPTY}
            case Choice(options):
                return self._sum(options)
            case Sequence(items) if items:
                if _mentions(items[:-1], self._members):
                    return None
                equation = self._linear(items[-1])
                head = self._sequence(*items[:-1])
                return equation and {
                    tail: self._sequence(head, before) for tail, before in equation.items()
                }
            case Repeat(item, 0, 1):
                return self._sum((item, EMPTY))
        return None if _mentions((node,), self._members) else {None: node}

    def _sum(self, options: Iterable[Node]) -> Equation | None:
        total: Equation = {}
        for option in options:
            equation = self._linear(option)
            if equation is None:
                return None
            for tail, before in equation.items():
                self._add(total, tail, before)
        return total

    def _add(self, equation: Equation, tail: str | None, before: Node) -> None:
        known = equation.get(tail)
        equation[tail] = before if known is None else self._named(Choice((known, before)))

    def _sequence(self, *items: Node) -> Node:
        items = tuple(item for item in items if item != EMPTY)
        return items[0] if len(items) == 1 else self._named(Sequence(items))

    def _named(self, node: Node) -> Node:
        """A reference to a new rule for ``node``: what is used often is written once."""
        if node == EMPTY or isinstance(node, Literal):
            return node
        name = f"{self._members[0]}~{len(self._new)}"
        self._new[name] = node
        return Ref(name)

    def _rule(self, equation: Equation) -> Node:
        return Choice(
            tuple(
                before if tail is None else Sequence((before, Ref(tail)))
                for tail, before in equation.items()
            )
        )
