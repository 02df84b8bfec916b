"""Writer of certificates, line by line, while releases are made or replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray
from dphmm.certificate import canonical_forms as forms
from dphmm.certificate.cap_witness import CapsWitness
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account, steps_per_day, to_fraction
from dphmm.release.session_limits import Limits
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.step_plan import StepPlan
from dphmm.validation import check_arguments


@check_arguments
class CertificateWriter:
    """A writer of a certificate: data from which anyone can verify the guarantee of releases.

    The certificate is a function of the model, the policy, the settings and the releases, all of which are public. It
    is verified by ``scripts/dphmm-verify``, which shares no code with this package.

    Parameters
    ----------
    write
        Function that receives each line with its line end.

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
        self._terms: dict[str, tuple[float | None, Limits | None]] = {}
        self._user = ""
        self._count = 0
        self._total = 0
        self._continues = False
        self._limits: Limits | None = None
        self._engines: Mapping[str, Releaser] = {}
        self._possible: dict[str, BoolArray] = {}
        self._witnesses: dict[tuple[str, str], CapsWitness] = {}
        self._caps: CapsWitness | None = None

    def begin(
        self,
        user: str,
        engines: Mapping[str, Releaser],
        limits: Limits | None = None,
        continues: bool = False,
    ) -> None:
        """Begin the releases of a user, or continue them under amended terms.

        Parameters
        ----------
        user
            The user.
        engines
            Mapping from query to engine. Queries about one user share a model and a policy.
        limits
            Limits on the privacy cost.
        continues
            Whether the user's releases continue from the present belief and spending, as was agreed in an amendment.
            Otherwise the belief restarts.

        Raises
        ------
        ConfigurationError, InvalidInputError, PolicyError
            If the releases cannot be certified, or differ from the user's earlier ones in limits or in the step.
        """
        first = next(iter(engines.values()))
        for engine in engines.values():
            forms.check_certifiable(engine)
        # A verifier adds up all releases of a user: clock and limits must be the same in all sessions.
        terms = first.model.step_seconds, limits
        if self._terms.setdefault(user, terms) != terms:
            raise ConfigurationError(
                f"step_seconds of the model and limits must be the same in all sessions of user {user!r}"
            )
        self._user = user
        self._count = 0
        self._engines = dict(engines)
        self._continues = continues
        self._possible = {query: np.zeros(first.model.size, dtype=np.bool_) for query in engines}
        self._last_noise = {}
        self._caps = self._get_witness(first) if first.settings.caps else None
        self._accounts.setdefault(user, Account())
        self._limits = limits

    def _write_begin(self) -> None:
        """Write the line of `begin` before the first release: without releases there is none."""
        engines, limits = self._engines, self._limits
        first = next(iter(engines.values()))
        queries = [
            {
                "query": query,
                "settings": engine.settings.canonical,
                "places": self._lines.write_part(forms.encode_places(engine)),
            }
            for query, engine in engines.items()
        ]
        line: dict[str, Any] = {
            "begin": self._user,
            "model": self._write_part("model", first.model.content_hash, lambda: forms.encode_model(first.model)),
            "policy": self._write_part("policy", first.policy.content_hash, lambda: forms.encode_policy(first.policy)),
            "queries": queries,
        }
        if self._continues:
            line["continues"] = True
        if limits is not None and (limits.epsilon is not None or limits.window_epsilon is not None):
            line["limits"] = {
                "epsilon": None if limits.epsilon is None else str(to_fraction(limits.epsilon)),
                "window_epsilon": None if limits.window_epsilon is None else str(to_fraction(limits.window_epsilon)),
                "window_steps": limits.window_steps,
            }
        self._lines.add(line)

    def add(self, step: StepPlan, released: tuple[float, ...] | None, slot: int, query: str = MAIN_QUERY) -> None:
        """Certify one more release.

        Parameters
        ----------
        step
            Plan of the release, from `dphmm.Releaser.prepare`.
        released
            The release, in the unit of the measurements; None if the timestep was withheld.
        slot
            Slot of the release.
        query
            Query that it answers.

        Raises
        ------
        InvalidInputError
            If `begin` was not called, the budget exceeds that of the settings, or the slot is not later than those of
            the user's earlier sessions.
        """
        if query not in self._engines:
            raise InvalidInputError(f"query {query!r} is unknown: call begin() with its engine first")
        engine = self._engines[query]
        if to_fraction(step.epsilon) > to_fraction(engine.settings.epsilon):
            raise InvalidInputError(
                f"epsilon of a certified release must be at most that of its settings, {engine.settings.epsilon:g}, "
                f"got {step.epsilon:g}"
            )
        account = self._accounts[self._user]
        # Queries at one timestep share its slot. A new session begins after it: sessions share no timestep.
        is_restart = self._count == 0 and not self._continues
        min_slot = None if account.slot is None else account.slot + int(is_restart)
        if min_slot is not None and slot < min_slot:
            bound = "later than" if is_restart else "at least"
            raise InvalidInputError(f"slot must be {bound} the last one of the user, {account.slot}, got {slot}")
        day = steps_per_day(engine.model.step_seconds)
        account.add(slot, step.epsilon, 0.0)  # a certificate has no levels of constrained differential privacy
        if self._count == 0:
            self._write_begin()
        line: dict[str, Any] = {
            "step": self._count,
            "slot": slot,
            "query": query,
            "epsilon": str(to_fraction(step.epsilon)) if step.epsilon else "0",
            "sum": str(account.epsilon),
            "day": None if day is None else str(account.sum_window_epsilon(slot, day)),
            **forms.encode_changes(self._possible[query], step.constraint),
        }
        if self._caps is not None and self._count == 0:
            line["events"] = self._caps.begin(slot)
        if step.withheld:
            line["withheld"] = step.reason
        else:
            if released is None:
                raise InvalidInputError(f"released must not be None at slot {slot}, because the plan is not withheld")
            line["noise"] = self._write_noise(step, engine, query)
            line["z"] = forms.encode_release(step, released, engine)
            if self._caps is not None:
                line["caps"] = self._caps.prove_caps(engine, step, slot)
        if self._caps is not None:
            self._caps.update(engine.log_likelihood(step, released), slot)
        self._possible[query] = step.constraint
        self._count += 1
        self._total += 1
        self._lines.add(line)

    def end(self) -> None:
        """Write the last line, which shows that the certificate is complete."""
        self._lines.add({"end": self._total})

    def _write_noise(self, step: StepPlan, engine: Releaser, query: str) -> str:
        # Plans of one repair and budget share their noise, which is compared by identity. Equal noise that was built
        # twice is encoded twice, and `Lines.write_part` writes it once.
        last = self._last_noise.get(query)
        added = step.protection.added
        if last is None or last[0] != step.noise or last[1] != added:
            last = self._last_noise[query] = step.noise, added, self._lines.write_part(forms.encode_noise(step, engine))
        return last[2]

    def _get_witness(self, engine: Releaser) -> CapsWitness:
        key = engine.settings.content_hash, engine.model.content_hash
        if key not in self._witnesses:
            self._witnesses[key] = CapsWitness(self._lines, engine)
        return self._witnesses[key]

    def _write_part(self, kind: str, key: str, make: Callable[[], dict[str, Any]]) -> str:
        """Return the short digest of a part, which is built and written if it is new."""
        if (kind, key) not in self._digests:
            self._digests[kind, key] = self._lines.write_part(make())
        return self._digests[kind, key]
