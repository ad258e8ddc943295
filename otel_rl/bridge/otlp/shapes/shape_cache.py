"""Known shapes of bodies, within a bound on memory. Any thread may use it."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from otel_rl.bridge.otlp.shapes.body_shape import BodyShape
from otel_rl.bridge.otlp.shapes.layout import layout_of

__all__ = ["ShapeCache"]

_MAX_BYTES: Final = 16 << 20
"""Memory of all shapes: some hundred of 40 series, which workers share."""

_MAX_OF_A_LENGTH: Final = 4
"""Shapes of one length: each costs the others a comparison."""

_LEARNING: Final = 8.0
_MISS: Final = 0.125
_MAX_CREDIT: Final = 1024.0
"""Learning takes as long as parsing, or twice. It costs credit, which a recognised body earns, and
a little an unknown one: so a sender whose bodies always have a new shape costs few tries."""


class ShapeCache:
    """Shapes by the length of their bodies. Those that were not used for longest make room.

    Args:
        max_bytes: Memory of all of them together.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        # _lock guards everything below but the reading of _shapes.
        self._lock = threading.Lock()
        self._shapes: dict[int, tuple[BodyShape, ...]] = {}
        self._lengths: dict[BodyShape, int] = {}  # least recently used first
        self._bytes = 0
        # Approximate, so it is read and written without the lock.
        self._credit = _MAX_CREDIT

    @property
    def memory_bytes(self) -> int:
        """Return the memory of all shapes, in bytes."""
        return self._bytes

    def find(self, body: bytes, cuts: Sequence[int] = ()) -> BodyShape | None:
        """Return the shape of a body with these cuts; None if it is not known."""
        for place, shape in enumerate(self._shapes.get(len(body), ())):
            if shape.matches(body, cuts):
                if self._credit < _MAX_CREDIT:
                    self._credit += 1
                if place or self._is_crowded:
                    self._use(shape)
                return shape
        return None

    def learn(self, body: bytes, is_sound: Callable[[BodyShape], bool]) -> BodyShape | None:
        """Keep the shape of a body, if it has one and not too many were learned in vain.

        Args:
            body: Of a request that was read in the usual way.
            is_sound: Decides whether the shape is kept.
        """
        self._credit += _MISS
        if self._credit < _LEARNING:
            return None
        self._credit -= _LEARNING
        layout = layout_of(body)
        if layout is None or not layout.has_points:
            return None
        shape = BodyShape(body, layout)
        if not is_sound(shape):
            return None
        with self._lock:
            known = self._shapes.get(len(body), ())
            if any(one.matches(body) for one in known):
                return None
            for old in known[_MAX_OF_A_LENGTH - 1 :]:
                self._forget(old)
            self._shapes[len(body)] = shape, *known[: _MAX_OF_A_LENGTH - 1]
            self._lengths[shape] = len(body)
            self._bytes += shape.memory_bytes
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._lengths)))
        return shape

    @property
    def _is_crowded(self) -> bool:
        return 2 * self._bytes > self._max_bytes

    def _use(self, shape: BodyShape) -> None:
        """Make a shape the first of its length and the last to be forgotten."""
        with self._lock:
            length = self._lengths.pop(shape, None)
            if length is None:
                return  # forgotten meanwhile
            self._lengths[shape] = length
            others = [other for other in self._shapes[length] if other is not shape]
            self._shapes[length] = shape, *others

    def _forget(self, shape: BodyShape) -> None:
        length = self._lengths.pop(shape)
        self._bytes -= shape.memory_bytes
        kept = tuple([other for other in self._shapes[length] if other is not shape])
        if kept:
            self._shapes[length] = kept
        else:
            del self._shapes[length]
