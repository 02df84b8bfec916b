"""A certificate's lines, one after another, while releases are made or gone through again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray
from dphmm.certificate import canonical_forms as forms
from dphmm.certificate.capped_events import CapsWitness
from dphmm.errors import InvalidInputError
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account, Limits, day_steps, exactly
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.step import PreparedStep


@checked
class CertificateWriter:
    """Writes a certificate: what everything that is promised of releases follows from, for others to check.

    Everything in it is a function of the model, the policy, the settings and the releases, all of which are public. It
    is checked by ``scripts/dphmm-verify``, which shares no code with this package.

    Parameters
    ----------
    write
        Takes each line, with its end.

    Examples
    --------
    >>> import numpy as np
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    >>> engine = Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=1.0, spacing=1)
    >>> lines = []
    >>> certificate = CertificateWriter(lines.append)
    >>> certificate.begin("ann", {"main": engine})
    >>> record = engine.release(4)
    >>> certificate.add(engine.last[1], record.released, slot=0)
    >>> certificate.end()
    >>> lines[-1]
    '{"end":1}\\n'
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._lines = forms.Lines(write)
        self._digests: dict[tuple[str, str], str] = {}
        self._last_noise: dict[str, tuple[object, object, str]] = {}
        self._accounts: dict[str, Account] = {}
        self._person, self._count, self._total = "", 0, 0
        self._engines: Mapping[str, Releaser] = {}
        self._possible: dict[str, BoolArray] = {}
        self._witnesses: dict[tuple[str, str], CapsWitness] = {}
        self._caps: CapsWitness | None = None

    def begin(
        self,
        person: str,
        engines: Mapping[str, Releaser],
        limits: Limits | None = None,
        goes_on: bool = False,
    ) -> None:
        """Say whose releases follow, and how they are made; all that is believed of the person begins anew, or goes on.

        Parameters
        ----------
        person
            Whose.
        engines
            Query → its engine; one of each for queries about one person, which share a model and a policy.
        limits
            What all may spend.
        goes_on
            Whether the person's releases go on, from the belief and the spending so far, as was agreed on anew.

        Raises
        ------
        ConfigurationError, InvalidInputError, PolicyError
            When no certificate can be made of them.
        """
        first = next(iter(engines.values()))
        for engine in engines.values():
            forms.check_certifiable(engine)
        self._person, self._count, self._engines = person, 0, dict(engines)
        self._possible = {query: np.zeros(first.model.size, dtype=np.bool_) for query in engines}
        self._last_noise = {}
        self._caps = self._witness(first) if first.settings.caps else None
        self._accounts.setdefault(person, Account())
        queries = [
            {
                "query": query,
                "rank": 0,  # a constant of the format: every recipient is told the releases of every query
                "settings": engine.settings.canonical,
                "places": self._lines.part(forms.places_of(engine)),
            }
            for query, engine in engines.items()
        ]
        line: dict[str, Any] = {
            "begin": person,
            "model": self._part("model", first.model.content_hash, lambda: forms.model_of(first.model)),
            "policy": self._part("policy", first.policy.content_hash, lambda: forms.policy_of(first.policy)),
            "queries": queries,
        }
        if goes_on:
            line["goes_on"] = True
        if limits is not None and (limits.epsilon is not None or limits.window_epsilon is not None):
            line["limits"] = {
                "epsilon": None if limits.epsilon is None else str(exactly(limits.epsilon)),
                "window_epsilon": None if limits.window_epsilon is None else str(exactly(limits.window_epsilon)),
                "window_steps": limits.window_steps,
            }
        self._lines.add(line)

    def add(self, step: PreparedStep, released: tuple[float, ...] | None, slot: int, query: str = MAIN_QUERY) -> None:
        """Certify one more release.

        Parameters
        ----------
        step
            What it was drawn from, as `dphmm.Releaser.prepare` gave it.
        released
            What was drawn, in the unit of the measurements; None where nothing was.
        slot
            The time step that it is of.
        query
            Which query it answers.

        Raises
        ------
        InvalidInputError
            Before `begin`, and when the budget is above that of the settings.
        """
        if query not in self._engines:
            raise InvalidInputError(f"query {query!r} was not begun; call begin with its engine first")
        engine = self._engines[query]
        if exactly(step.epsilon) > exactly(engine.settings.epsilon):
            raise InvalidInputError(
                f"a release has epsilon {step.epsilon:g}, above the {engine.settings.epsilon:g} of its settings, which "
                "a certificate is about; raise that of the settings"
            )
        account, day = self._accounts[self._person], day_steps(engine.model.step_seconds)
        account.add(slot, step.epsilon, 0.0)
        line: dict[str, Any] = {
            "step": self._count,
            "slot": slot,
            "query": query,
            "epsilon": str(exactly(step.epsilon)) if step.epsilon else "0",
            "sum": str(account.epsilon),
            "day": None if day is None else str(account.window(slot, day)),
            **forms.changes(self._possible[query], step.plan.constraint),
        }
        if self._caps is not None and self._count == 0:
            line["events"] = self._caps.begin(slot)
        if step.withheld:
            line["withheld"] = step.reason
        else:
            if released is None:
                raise InvalidInputError(f"nothing was drawn at slot {slot}, of a step with epsilon; give the release")
            line["noise"] = self._noise(step, engine, query)
            line["z"] = forms.released_form(step, released, engine)
            if self._caps is not None:
                line["caps"] = self._caps.cells(engine, step, slot)
        if self._caps is not None:
            self._caps.update(engine.log_likelihood(step, released), slot)
        self._possible[query] = step.plan.constraint
        self._count, self._total = self._count + 1, self._total + 1
        self._lines.add(line)

    def end(self) -> None:
        """Say that nothing follows, so that what is missing shows."""
        self._lines.add({"end": self._total})

    def _noise(self, step: PreparedStep, engine: Releaser, query: str) -> str:
        known = self._last_noise.get(query)
        if known is None or known[0] is not step.noise or known[1] is not step.plan:
            known = self._last_noise[query] = step.noise, step.plan, self._lines.part(forms.noise_of(step, engine))
        return known[2]

    def _witness(self, engine: Releaser) -> CapsWitness:
        key = engine.settings.content_hash, engine.model.content_hash
        if key not in self._witnesses:
            self._witnesses[key] = CapsWitness(self._lines, engine)
        return self._witnesses[key]

    def _part(self, kind: str, key: str, make: Callable[[], dict[str, Any]]) -> str:
        """The short digest of a part; it is made and written where it is new."""
        if (kind, key) not in self._digests:
            self._digests[kind, key] = self._lines.part(make())
        return self._digests[kind, key]
