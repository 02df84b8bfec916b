"""A chain lifted to pairs of a state and a progress of an event: masses forward, what is still to happen backward."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.events.automaton import Automaton, Layer
from dphmm.events.chain import Chain
from dphmm.events.event import Verdict
from dphmm.events.wide import Moves, Wide

_HELD = 1 << 23
"""What is still to happen is kept for all times up to so many numbers, and beyond that made anew block by block."""

_MANY = 32
"""From so many steps on, whether a step still changes anything is worth asking."""


class Lifted:
    """A chain lifted to the progress of an event.

    Parameters
    ----------
    chain
        The chain.
    automaton
        The event over its states.
    """

    def __init__(self, chain: Chain, automaton: Automaton) -> None:
        self.chain, self.automaton, self.size = chain, automaton, chain.size
        event = automaton.event
        most = max(len(layer.after) for layer in automaton.layers)
        every = 2 * max(1, most) * self.size * max(1, event.last)
        self._block = event.last + 1 if every <= _HELD else max(1, isqrt(event.last))
        self._marks: dict[int, Wide] = {}
        self._within: dict[int, Wide] = {}
        self._pulls: dict[int, _Pull] = {}
        self._look_back()

    def begin(self, initial: Wide) -> Wide:
        """The masses at time 0, ``(k, N)``, by the progress after it, of a first distribution ``(1, N)``."""
        return self._joined(initial, 0)

    def ahead(self, masses: Wide, time: int, until: int) -> Wide:
        """Masses of a time, by progress, moved to a later one."""
        alike = self.chain.is_homogeneous
        while time < until:
            before, masses = masses, self.chain.ahead(masses, time)
            if until - time > _MANY and alike and time >= self.automaton.event.last and masses.is_near(before):
                return masses
            time += 1
            masses = self._joined(masses, time)
        return masses

    def behind(self, values: Wide, time: int, until: int) -> Wide:
        """Expectations at a time of values ``(1, N)`` of states at a later one."""
        while time < until:
            until -= 1
            before, values = values, self.chain.behind(values, until)
            if until - time > _MANY and self.chain.is_homogeneous and values.is_near(before):
                return values
        return values

    def odds(self, masses: Wide, time: int) -> tuple[float, float]:
        """The logarithms of the mass with which the event happens, and with which it does not."""
        cut = self.automaton.cut(time)
        to_come = self._to_come(time) if cut.open.start < cut.open.stop else None
        sums = masses.plain_sums((cut.yes, cut.no), cut.open, to_come)
        if sums is not None:
            return sums
        yes, no = masses.rows(cut.yes).log_sum(), masses.rows(cut.no).log_sum()
        if to_come is not None:
            going = masses.rows(cut.open)
            half = len(to_come) // 2
            yes = float(np.logaddexp(yes, going.log_dot(to_come.rows(slice(half)))))
            no = float(np.logaddexp(no, going.log_dot(to_come.rows(slice(half, None)))))
        return yes, no

    def outcomes(self, masses: Wide, time: int) -> tuple[FloatArray, FloatArray]:
        """The logarithms ``(N,)`` of the mass of each state with which the event happens, and does not."""
        cut = self.automaton.cut(time)
        to_come = self._to_come(time) if cut.open.start < cut.open.stop else None
        if masses.is_plain_with(to_come):
            both = masses.layers[0]
            sums = [both[way].sum(axis=0) for way in (cut.yes, cut.no)]
            if to_come is not None:
                ahead = to_come.layers[0].reshape(2, -1, self.size)
                sums = [way + (both[cut.open] * part).sum(axis=0) for way, part in zip(sums, ahead, strict=True)]
            found = Wide(np.stack(sums)[np.newaxis], masses.exponent).log()
            return found[0], found[1]
        logs = masses.log()
        ways = [logs[cut.yes], logs[cut.no]]
        if to_come is not None:
            halves = to_come.log().reshape(2, -1, self.size)
            ways = [np.concatenate([way, logs[cut.open] + half]) for way, half in zip(ways, halves, strict=True)]
        found_ = [np.logaddexp.reduce(way, axis=0, initial=-np.inf) for way in ways]
        return found_[0], found_[1]

    def _joined(self, masses: Wide, time: int) -> Wide:
        layer = self.automaton.layer(time)
        return masses if layer is None else masses.joined(len(layer.after), layer.moves)

    # ---- what is still to happen ---------------------------------------------------------------------------------

    def _look_back(self) -> None:
        """From the event's last time back to 0: keep all of it, or a mark at every so many times."""
        to_come = None
        for time in range(self.automaton.event.last - 1, -1, -1):
            to_come = self._earlier(to_come, time)
            if self._block > self.automaton.event.last:
                self._within[time] = to_come
            elif time % self._block == 0:
                self._marks[time] = to_come

    def _to_come(self, time: int) -> Wide:
        """The probabilities that the event will happen, then that it will not, ``(2k, N)`` by undecided progress."""
        if time not in self._within:
            mark = -(-(time + 1) // self._block) * self._block
            to_come = self._marks.get(mark)
            self._within = {}
            for earlier in range(min(mark, self.automaton.event.last) - 1, mark - self._block - 1, -1):
                to_come = self._earlier(to_come, earlier)
                self._within[earlier] = to_come
        return self._within[time]

    def _earlier(self, later: Wide | None, time: int) -> Wide:
        """What is to come after a time, from what is to come after the next: see `_to_come`."""
        layer = self.automaton.layer(time + 1)
        if layer is None:
            assert later is not None, "the event's last time has a layer"
            return self.chain.behind(later, time)
        if id(layer) not in self._pulls:
            self._pulls[id(layer)] = _Pull.of(layer, self.size)
        pull, width = self._pulls[id(layer)], self.chain.width
        return self.chain.behind(Wide.of(pull.certain, width) if later is None else pull.before(later), time)


@dataclass(frozen=True, eq=False)
class _Pull:
    """How what is to come after a layer gives what is to come for a path that arrives in a state at it.

    Parameters
    ----------
    certain
        ``(2k, N)`` by undecided progress before: one where the layer itself comes to a verdict, yes and then no.
    moves
        From which row after to which before.
    """

    certain: FloatArray
    moves: Moves

    @classmethod
    def of(cls, layer: Layer, size: int) -> _Pull:
        before, after = layer.cut_before, layer.cut_after
        many, many_after = before.open.stop - before.open.start, after.open.stop - after.open.start
        certain = np.zeros((2, many, size))
        moves: list[tuple[int, int, FloatArray | None]] = []
        for source, target, where in layer.moves:
            to, from_ = source - before.open.start, target - after.open.start
            if to >= 0 and from_ >= 0:
                moves += [(from_ + half * many_after, to + half * many, where) for half in range(2)]
            elif to >= 0:
                certain[0 if layer.after[target] is Verdict.YES else 1, to] += 1.0 if where is None else where
        return cls(certain.reshape(2 * many, size), tuple(moves))

    def before(self, later: Wide) -> Wide:
        """What is to come before the layer, of what is to come after it."""
        return later.joined(len(self.certain), self.moves, self.certain)
