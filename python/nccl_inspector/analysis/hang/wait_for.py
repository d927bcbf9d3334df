# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, over all communicators: a graph, and where its paths end.

A process has an edge to the operation that it waits in, and an operation has an edge to each
process that has not come to it. So a path ends at a process that waits for nobody (the root), at an
operation to which all have come, or in a knot, in which every node waits for another of the knot.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

Node = TypeVar("Node", bound=Hashable)
# A single node, or a knot of several nodes.
End: TypeAlias = frozenset[Node]


def successors(edges: Iterable[tuple[Node, Node]]) -> dict[Node, list[Node]]:
    """Return the nodes to which each node has an edge; the list may be empty."""
    found: dict[Node, list[Node]] = {}
    for start, end in edges:
        found.setdefault(start, []).append(end)
        found.setdefault(end, [])
    return found


def _components(graph: Mapping[Node, list[Node]]) -> Iterator[frozenset[Node]]:
    """Yield the strongly connected components, each after those that it leads to (Tarjan)."""
    number: dict[Node, int] = {}
    lowest: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    for root in graph:
        if root in number:
            continue
        # No recursion: a chain of processes may be longer than Python's stack.
        work: list[tuple[Node, Iterator[Node]]] = [(root, iter(graph[root]))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            following = next((one for one in rest if one not in number or one in on_stack), None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    yield frozenset(_pop_until(stack, on_stack, node))
            elif following in number:
                lowest[node] = min(lowest[node], number[following])
            else:
                number[following] = lowest[following] = len(number)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(graph[following])))


def _pop_until(stack: list[Node], on_stack: set[Node], node: Node) -> Iterator[Node]:
    while True:
        one = stack.pop()
        on_stack.discard(one)
        yield one
        if one == node:
            return


def find_ends(graph: Mapping[Node, list[Node]]) -> dict[Node, frozenset[End[Node]]]:
    """Return for each node the ends of all paths from it."""
    reached: dict[Node, frozenset[End[Node]]] = {}
    for component in _components(graph):
        onward = {end for node in component for end in graph[node] if end not in component}
        ends = frozenset().union(*(reached[node] for node in onward))
        for node in component:
            reached[node] = ends or frozenset({component})
    return reached
