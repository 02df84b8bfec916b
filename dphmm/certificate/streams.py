"""Certificates of figures about streams: temporal leakage, budgets of landmarks, and counts repaired by mobility.

Matrices, budgets and probabilities stand in them as exact fractions, and figures as decimal numbers that are right to
their last digit. They are checked by ``scripts/dphmm-verify``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import ROUND_UP, Context
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import scipy.sparse as sp
from scipy.special import digamma

from dphmm.arrays import BoolArray, FloatArray, runs
from dphmm.certificate.canonical_forms import Lines, Plain
from dphmm.counts.map_estimate import Occupancy, real_map
from dphmm.errors import InvalidInputError
from dphmm.leakage import Leakage, LossFunction, Supremum
from dphmm.leakage.loss_function import is_matrix
from dphmm.release.ledger import exactly
from dphmm.stochastic import MatrixLike, as_stochastic
from dphmm.tables import new_file

Matrices = Sequence[MatrixLike] | MatrixLike | None
"""One matrix for all steps, one for each in order of time, or none."""

MOST_WORK = 4_000_000_000
"""Sums of more terms than this, over all pairs of rows and slopes, are not asked of a verifier."""

_MOST_STATES = 1 << 12
_EPS = float(np.finfo(np.float64).eps)


class StreamCertificate:
    """Writes what figures about streams follow from.

    Parameters
    ----------
    lines
        What takes its lines.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines, self._times, self._work = lines, 0, 0
        self._losses: dict[str, tuple[str, LossFunction]] = {}

    def end(self) -> None:
        """Say that nothing follows."""
        self._lines.add({"end": self._times})

    def leakage(
        self,
        user: str,
        found: Leakage,
        backward: Matrices,
        forward: Matrices,
        suprema: Mapping[str, Supremum] | None = None,
        epsilon: float = 0.0,
    ) -> None:
        """Certify temporal leakage of a user's stream.

        Parameters
        ----------
        user
            Whose.
        found
            What leaks.
        backward, forward
            What it follows from.
        suprema
            ``"backward"``, ``"forward"`` → what leakage stays below under the same budget at every time.
        epsilon
            That budget.

        Raises
        ------
        InvalidInputError
            When leakage is infinite, or the check would take too long.
        """
        if not np.isfinite(found.temporal).all():
            raise InvalidInputError("leakage is infinite, and a certificate is of a limit; leave --certificate out")
        budgets = [str(exactly(one)) for one in found.epsilons.tolist()]
        sides: Plain = {}
        for name, matrices, values in (("backward", backward, found.backward), ("forward", forward, found.forward)):
            bound = (suprema or {}).get(name)
            in_order = values if name == "backward" else values[::-1]
            sides[name] = self._side(matrices, in_order, bound, epsilon, name == "forward")
        temporal = [_digits(one) for one in found.temporal.tolist()]
        self._lines.add({"user": user, "budgets": budgets, **sides, "temporal": temporal})
        self._times += len(budgets)

    def landmarks(self, epsilon: float, budgets: FloatArray, landmark: BoolArray, losses: FloatArray | None) -> None:
        """Certify budgets of landmarks and of the times beside them.

        Parameters
        ----------
        epsilon
            What all landmarks and any one other time may spend.
        budgets, landmark
            ``(T,)`` what each time spends, and which are landmarks.
        losses
            ``(T,)`` the sums of landmarks with each time; None where losses are something else.
        """
        told = [str(exactly(one)) for one in budgets.tolist()]
        sums = None if losses is None else [_digits(one) for one in losses.tolist()]
        self._lines.add(
            {"epsilon": str(exactly(epsilon)), "budgets": told, "landmarks": runs(landmark), "losses": sums}
        )
        self._times += len(told)

    def counts(
        self,
        noisy: FloatArray,
        repaired: FloatArray,
        where: Occupancy,
        transition: MatrixLike,
        users: int,
        scales: FloatArray,
        prior: Literal["frequency", "uniform", "given"],
        integer: bool,
    ) -> None:
        """Certify that counts are the most probable ones of each time, but for a gap that is stated.

        Parameters
        ----------
        noisy, repaired
            ``(T, m)``.
        where
            Where one user is at each time.
        transition
            The matrix that it follows from.
        users
            How many there are.
        scales
            ``(T,)`` of the noise.
        prior
            What the first time's distribution is.
        integer
            Whether counts are whole numbers.
        """
        begun = {"counts": users, "prior": prior, "matrix": self._lines.part(_matrix(transition)), "whole": integer}
        self._lines.add(begun)
        chances = np.where(where.possible, np.maximum(where.probabilities, np.finfo(np.float64).tiny), 0.0)
        drift = _drift(chances, where, as_stochastic(transition, "transition matrix"))
        thetas = real_map(noisy, where.log_probabilities, users, scales)[1]
        for t, slope in enumerate((1 / scales).tolist()):
            log_p, y, r = where.log_probabilities[t], noisy[t], repaired[t]
            price, gap = _whole_gap(y, r, log_p, slope) if integer else _real_gap(y, r, log_p, slope, thetas[t])
            margin = users * (2 * drift[t] + (1e-12 if integer else 1e-12 * (2 + slope + abs(float(thetas[t])))))
            self._lines.add(
                {
                    "time": t,
                    "noisy": [str(Fraction(one)) for one in y.tolist()],
                    "slope": str(Fraction(slope)),
                    "p": [str(Fraction(one)) for one in chances[t].tolist()],
                    "estimate": [str(Fraction(one)) for one in r.tolist()],
                    "price": str(price),
                    "gap": format(Context(prec=2, rounding=ROUND_UP).create_decimal(2 * gap * users + margin), "e"),
                }
            )
        self._times += len(noisy)

    def _side(
        self, matrices: Matrices, values: FloatArray, bound: Supremum | None, epsilon: float, reverse: bool
    ) -> Plain | None:
        """One side's matrices, leakage and witnesses, in the order in which it grows."""
        if matrices is None:
            return None
        if isinstance(matrices, LossFunction):
            raise InvalidInputError("a loss function is no matrix, of which a certificate is; give the matrix")
        is_one = is_matrix(matrices)
        given: list[Any] = [matrices] if is_one else list(cast(Sequence[Any], matrices))
        finite = bound is not None and math.isfinite(bound.value)
        most = max(float(values.max()), bound.value if bound is not None and finite else 0.0)
        losses = [self._loss(one, most) for one in (given[::-1] if reverse else given)]
        each = losses * (len(values) - 1) if is_one else losses
        witness = [_piece(loss, alpha) for (_, loss), alpha in zip(each, values.tolist(), strict=False)]
        leakage = [_digits(one) for one in values.tolist()]
        side: Plain = {
            "steps": [digest for digest, _ in losses],
            "leakage": leakage,
            "witness": witness[: len(values) - 1],
        }
        if bound is not None:
            at = losses[0][1].q.size - 1 if not finite else _piece(losses[0][1], bound.value)
            value = _digits(bound.value) if finite else "inf"
            side["supremum"] = {"epsilon": str(exactly(epsilon)), "value": value, "witness": at}
        return side

    def _loss(self, matrix: Any, most: float) -> tuple[str, LossFunction]:
        """The part that bounds a matrix's loss up to a leakage, and the loss."""
        part = _matrix(matrix)
        digest = self._lines.part(part)
        key = f"{digest} {most!r}"
        if key not in self._losses:
            loss = LossFunction(matrix)
            dense = _dense(matrix)
            top = float(loss(most)) if most else 0.0
            ends = [*loss.starts[1:].tolist(), max(most, float(loss.starts[-1]) + 1)]
            witnesses = []
            for start, end, (i, j) in zip(loss.starts.tolist(), ends, loss.rows.tolist(), strict=True):
                slope = math.exp(min(float(loss((start + end) / 2)), 600.0))
                witnesses.append([i, j, runs(dense[i] > slope * dense[j])])
            slopes = [1.0, *np.exp(np.minimum(loss(loss.starts[1:]), 600)), math.exp(min(top, 600.0)) * (1 + 1e-12)]
            kept = [] if loss.is_identity else sorted({one for one in slopes if one <= slopes[-1]})
            self._work += len(kept) * len(dense) ** 3
            if self._work > MOST_WORK:
                raise InvalidInputError(
                    f"to check the losses of matrices of {len(dense)} states takes too long; leave --certificate out"
                )
            value = {
                "is": "loss",
                "matrix": digest,
                "slopes": [str(Fraction(one)) for one in kept],
                "witnesses": witnesses,
            }
            self._losses[key] = self._lines.part(value), loss
        return self._losses[key]


@contextmanager
def stream_certificate(
    path: str | Path, of: Literal["leakage", "landmarks", "counts"], overwrite: bool = False
) -> Iterator[StreamCertificate]:
    """What writes a certificate of figures about streams to a file, which appears when the block ends well.

    Parameters
    ----------
    path
        The file.
    of
        What it is about.
    overwrite
        Whether one that exists may be replaced.

    Yields
    ------
    StreamCertificate
        What takes the figures.

    Raises
    ------
    OutputError
        When the file exists or cannot be written.
    """
    with new_file(path, overwrite) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        writer = StreamCertificate(Lines(file.write, of=of))
        yield writer
        writer.end()


def _digits(value: float) -> str:
    return f"{value:.9e}"


def _dense(matrix: Any) -> FloatArray:
    found: Any = as_stochastic(matrix, "transition matrix")
    is_sparse: bool = sp.issparse(found)
    return np.asarray(found.toarray() if is_sparse else found, dtype=np.float64)


def _matrix(matrix: Any) -> Plain:
    """A matrix in whole weights, with at least 60 binary digits each; what rounding left goes to the largest entry."""
    rows = _dense(matrix)
    if len(rows) > _MOST_STATES:
        raise InvalidInputError(f"a certificate is of {_MOST_STATES} states at most, and there are {len(rows)}")
    total = 1 << (60 + max(0, math.ceil(-math.log2(rows[rows > 0].min()))))
    found = []
    for row in rows:
        columns = np.flatnonzero(row).tolist()
        weights = [int(Fraction(one) * total) for one in row[columns].tolist()]
        weights[int(np.argmax(row[columns]))] += total - sum(weights)
        found.append([one for pair in zip(columns, map(str, weights), strict=True) for one in pair])
    return {"is": "matrix", "states": len(rows), "total": str(total), "rows": found}


def _piece(loss: LossFunction, alpha: float) -> int:
    return int(np.searchsorted(loss.starts, alpha, side="right")) - 1


def _drift(chances: FloatArray, where: Occupancy, transition: Any) -> FloatArray:
    """By how much the logarithms of stated probabilities may be off at each time, rounding included."""
    size = chances.shape[1]
    each = np.full(len(chances), (size + 8) * 4 * _EPS)
    for t in range(1, len(chances)):
        wanted = chances[t - 1] @ transition
        some = where.possible[t] & (wanted > 0)
        if (where.possible[t] & ~some).any():
            raise InvalidInputError(f"at time {t} a place is too improbable for floats; leave --certificate out")
        each[t] += np.abs(np.log(chances[t][some] / wanted[some])).max()
    return np.cumsum(each) * (1 + 1e-6)


def _whole_gap(y: FloatArray, r: FloatArray, log_p: FloatArray, slope: float) -> tuple[Fraction, float]:
    """A price, ``e`` to the multiplier, between what is in and what is out; and how much that fails by."""
    possible = np.isfinite(log_p)

    def cost(k: FloatArray) -> FloatArray:
        noise = np.clip(2.0 * (k - y[possible]) - 1.0, -1.0, 1.0) * slope
        return np.where(k > 0, np.log(np.maximum(k, 1.0)) - log_p[possible] + noise, -np.inf)

    inside, outside = float(cost(r[possible]).max()), float(cost(r[possible] + 1).min())
    theta = (inside + outside) / 2 if math.isfinite(inside) else outside
    halves = math.floor(theta / math.log(2))
    price = Fraction(math.exp(theta - halves * math.log(2))) * Fraction(2) ** halves
    return price, max(0.0, inside - outside)


def _real_gap(y: FloatArray, r: FloatArray, log_p: FloatArray, slope: float, theta: float) -> tuple[Fraction, float]:
    """The multiplier, and by how much the objective's slopes are off it at most."""
    possible = np.isfinite(log_p)
    smooth = digamma(r[possible] + 1) - log_p[possible]
    side = np.sign(r[possible] - y[possible])
    low, high = (smooth + slope * np.where(side == 0, way, side) - theta for way in (-1, 1))
    above = np.where(r[possible] > 0, np.maximum(low, 0.0), 0.0)
    return Fraction(float(theta)), float(max(above.max(), np.maximum(-high, 0.0).max()))
