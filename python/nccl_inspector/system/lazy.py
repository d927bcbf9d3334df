# SPDX-License-Identifier: Apache-2.0
"""Sequences whose items are made when they are looked at: a large job has too many to keep."""

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

_Item = TypeVar("_Item")


class Lazy(Sequence[_Item]):
    """What is made when it is looked at, and equals a tuple of that."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Tell whether the same items are in it."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return what equal ones have in common."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return what a tuple of them would."""
        return repr(tuple(self))


class LazyItems(Lazy[_Item]):
    """What is made item by item."""

    __slots__ = ()

    def _item(self, at: int) -> _Item:
        """Return one item; `at` is from 0 to the length."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, place: int | slice) -> _Item | tuple[_Item, ...]:
        """Return one item, made now, or a tuple of items."""
        if isinstance(place, slice):
            return tuple(map(self._item, range(*place.indices(len(self)))))
        return self._item(range(len(self))[place])


class LazyWhole(Lazy[_Item]):
    """What is made as a whole at each use."""

    __slots__ = ()

    def _all(self) -> tuple[_Item, ...]:
        """Return the items, made now."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[_Item]:
        """Yield the items."""
        return iter(self._all())

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._all())

    @overload
    def __getitem__(self, place: int) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, place: int | slice) -> _Item | tuple[_Item, ...]:
        """Return one item, or a tuple of items."""
        return self._all()[place]
