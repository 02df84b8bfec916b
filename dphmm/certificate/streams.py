"""Certificates of results about streams: leakage, landmark budgets, and repaired counts.

They contain matrices, budgets and probabilities as exact fractions, and results as decimal numbers that are correct to
the last digit. ``scripts/dphmm-verify`` checks them.
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

from dphmm.arrays import BoolArray, FloatArray, find_runs
from dphmm.certificate.canonical_forms import Lines, Plain
from dphmm.counts.map_estimate import Occupancy, solve_real_map
from dphmm.errors import InvalidInputError
from dphmm.leakage import Leakage, LossFunction, Supremum
from dphmm.leakage.loss_function import is_matrix
from dphmm.release.ledger import to_fraction
from dphmm.stochastic_matrix import MatrixLike, as_stochastic
from dphmm.tables import create_file

# One matrix for all steps, one for each step in order of time, or none.
Matrices = Sequence[MatrixLike] | MatrixLike | None

# The largest number of summands that a verifier must process, over all pairs of rows and slopes.
MAX_WORK = 4_000_000_000

_MAX_STATES = 1 << 12
_EPS = float(np.finfo(np.float64).eps)


class StreamCertificate:
    """A certificate of results about streams.

    Parameters
    ----------
    lines
        The lines of the certificate.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._times = 0
        self._work = 0
        self._losses: dict[str, tuple[str, LossFunction]] = {}

    def end(self) -> None:
        """Write the last line."""
        self._lines.add({"end": self._times})

    def certify_leakage(
        self,
        user: str,
        leakage: Leakage,
        backward: Matrices,
        forward: Matrices,
        suprema: Mapping[str, Supremum] | None = None,
        epsilon: float = 0.0,
    ) -> None:
        """Certify the temporal leakage of a user's stream.

        Parameters
        ----------
        user
            The user.
        leakage
            The leakage.
        backward, forward
            The correlations from which it follows.
        suprema
            Suprema of the ``"backward"`` and ``"forward"`` leakage under a constant budget.
        epsilon
            That budget.

        Raises
        ------
        InvalidInputError
            If the leakage is infinite, or the check would take too long.
        """
        if not np.isfinite(leakage.temporal).all():
            raise InvalidInputError("leakage must be finite to be certified; omit --certificate")
        budgets = [str(to_fraction(epsilon_at_time)) for epsilon_at_time in leakage.epsilons.tolist()]
        sides: Plain = {}
        for name, matrices, values in (("backward", backward, leakage.backward), ("forward", forward, leakage.forward)):
            bound = (suprema or {}).get(name)
            in_order = values if name == "backward" else values[::-1]
            sides[name] = self._encode_side(matrices, in_order, bound, epsilon, name == "forward")
        temporal = [_format_decimal(value) for value in leakage.temporal.tolist()]
        self._lines.add({"user": user, "budgets": budgets, **sides, "temporal": temporal})
        self._times += len(budgets)

    def certify_landmarks(
        self, epsilon: float, budgets: FloatArray, landmark: BoolArray, losses: FloatArray | None
    ) -> None:
        """Certify budgets of landmarks and of other timesteps.

        Parameters
        ----------
        epsilon
            Total budget of all landmarks and any one other timestep.
        budgets, landmark
            ``(T,)``: budget of each timestep, and whether it is a landmark.
        losses
            ``(T,)``: sum over all landmarks and each timestep; None if losses are not sums.
        """
        texts = [str(to_fraction(budget)) for budget in budgets.tolist()]
        sums = None if losses is None else [_format_decimal(loss) for loss in losses.tolist()]
        self._lines.add(
            {"epsilon": str(to_fraction(epsilon)), "budgets": texts, "landmarks": find_runs(landmark), "losses": sums}
        )
        self._times += len(texts)

    def certify_counts(
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
        """Certify that counts are the most probable ones of each time, up to a stated gap.

        Parameters
        ----------
        noisy, repaired
            ``(T, m)``.
        where
            Distribution of one user at each time.
        transition
            Transition matrix from which it follows.
        users
            Number of users.
        scales
            ``(T,)``: scales of the noise.
        prior
            Type of the initial distribution.
        integer
            Whether counts are integers.
        """
        first_line = {
            "counts": users,
            "prior": prior,
            "matrix": self._lines.write_part(_encode_matrix(transition)),
            "whole": integer,
        }
        self._lines.add(first_line)
        chances = np.where(where.possible, np.maximum(where.probabilities, np.finfo(np.float64).tiny), 0.0)
        drift = _bound_drift(chances, where, as_stochastic(transition, "transition matrix"))
        thetas = solve_real_map(noisy, where.log_probabilities, users, scales)[1]
        for t, slope in enumerate((1 / scales).tolist()):
            log_p = where.log_probabilities[t]
            y = noisy[t]
            r = repaired[t]
            price, gap = (
                _find_integer_gap(y, r, log_p, slope) if integer else _find_real_gap(y, r, log_p, slope, thetas[t])
            )
            margin = users * (2 * drift[t] + (1e-12 if integer else 1e-12 * (2 + slope + abs(float(thetas[t])))))
            self._lines.add(
                {
                    "time": t,
                    "noisy": [str(Fraction(count)) for count in y.tolist()],
                    "slope": str(Fraction(slope)),
                    "p": [str(Fraction(probability)) for probability in chances[t].tolist()],
                    "estimate": [str(Fraction(count)) for count in r.tolist()],
                    "price": str(price),
                    "gap": format(Context(prec=2, rounding=ROUND_UP).create_decimal(2 * gap * users + margin), "e"),
                }
            )
        self._times += len(noisy)

    def _encode_side(
        self, matrices: Matrices, values: FloatArray, bound: Supremum | None, epsilon: float, reverse: bool
    ) -> Plain | None:
        """Encode one side's matrices, leakage and witnesses, in the order of growth."""
        if matrices is None:
            return None
        if isinstance(matrices, LossFunction):
            raise InvalidInputError("a certificate needs a transition matrix, got a loss function")
        is_one = is_matrix(matrices)
        matrix_list: list[Any] = [matrices] if is_one else list(cast(Sequence[Any], matrices))
        finite = bound is not None and math.isfinite(bound.value)
        maximum = max(float(values.max()), bound.value if bound is not None and finite else 0.0)
        losses = [self._encode_loss(matrix, maximum) for matrix in (matrix_list[::-1] if reverse else matrix_list)]
        each = losses * (len(values) - 1) if is_one else losses
        witness = [_find_piece(loss, alpha) for (_, loss), alpha in zip(each, values.tolist(), strict=False)]
        leakage = [_format_decimal(value) for value in values.tolist()]
        side: Plain = {
            "steps": [digest for digest, _ in losses],
            "leakage": leakage,
            "witness": witness[: len(values) - 1],
        }
        if bound is not None:
            at = losses[0][1].q.size - 1 if not finite else _find_piece(losses[0][1], bound.value)
            value = _format_decimal(bound.value) if finite else "inf"
            side["supremum"] = {"epsilon": str(to_fraction(epsilon)), "value": value, "witness": at}
        return side

    def _encode_loss(self, matrix: Any, maximum: float) -> tuple[str, LossFunction]:
        """Encode the bound of a matrix's loss up to a leakage. Return its part, and the loss."""
        part = _encode_matrix(matrix)
        digest = self._lines.write_part(part)
        key = f"{digest} {maximum!r}"
        if key not in self._losses:
            loss = LossFunction(matrix)
            dense = _as_dense(matrix)
            top = float(loss(maximum)) if maximum else 0.0
            ends = [*loss.starts[1:].tolist(), max(maximum, float(loss.starts[-1]) + 1)]
            witnesses = []
            for start, end, (i, j) in zip(loss.starts.tolist(), ends, loss.rows.tolist(), strict=True):
                slope = math.exp(min(float(loss((start + end) / 2)), 600.0))
                witnesses.append([i, j, find_runs(dense[i] > slope * dense[j])])
            slopes = [1.0, *np.exp(np.minimum(loss(loss.starts[1:]), 600)), math.exp(min(top, 600.0)) * (1 + 1e-12)]
            kept = [] if loss.is_identity else sorted({slope for slope in slopes if slope <= slopes[-1]})
            self._work += len(kept) * len(dense) ** 3
            if self._work > MAX_WORK:
                raise InvalidInputError(
                    f"verifying the losses of matrices of {len(dense)} states would take too long; omit --certificate"
                )
            value = {
                "is": "loss",
                "matrix": digest,
                "slopes": [str(Fraction(slope)) for slope in kept],
                "witnesses": witnesses,
            }
            self._losses[key] = self._lines.write_part(value), loss
        return self._losses[key]


@contextmanager
def open_stream_certificate(
    path: str | Path, of: Literal["leakage", "landmarks", "counts"], overwrite: bool = False
) -> Iterator[StreamCertificate]:
    """Write a certificate of results about streams to a file.

    The file appears when the block ends without an error.

    Parameters
    ----------
    path
        The file.
    of
        Subject of the certificate.
    overwrite
        Whether an existing file may be replaced.

    Yields
    ------
    StreamCertificate
        The certificate, which takes the results.

    Raises
    ------
    OutputError
        If the file exists or cannot be written.
    """
    with create_file(path, overwrite) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        writer = StreamCertificate(Lines(file.write, of=of))
        yield writer
        writer.end()


def _format_decimal(value: float) -> str:
    return f"{value:.9e}"


def _as_dense(matrix: Any) -> FloatArray:
    stochastic: Any = as_stochastic(matrix, "transition matrix")
    is_sparse: bool = sp.issparse(stochastic)
    return np.asarray(stochastic.toarray() if is_sparse else stochastic, dtype=np.float64)


def _encode_matrix(matrix: Any) -> Plain:
    """Encode a matrix as integer weights with at least 60 binary digits.

    The rounding error goes to the largest entry of each row.
    """
    rows = _as_dense(matrix)
    if len(rows) > _MAX_STATES:
        raise InvalidInputError(f"a certificate can have at most {_MAX_STATES} states, got {len(rows)}")
    total = 1 << (60 + max(0, math.ceil(-math.log2(rows[rows > 0].min()))))
    encoded_rows = []
    for row in rows:
        columns = np.flatnonzero(row).tolist()
        weights = [int(Fraction(probability) * total) for probability in row[columns].tolist()]
        weights[int(np.argmax(row[columns]))] += total - sum(weights)
        encoded_rows.append([element for pair in zip(columns, map(str, weights), strict=True) for element in pair])
    return {"is": "matrix", "states": len(rows), "total": str(total), "rows": encoded_rows}


def _find_piece(loss: LossFunction, alpha: float) -> int:
    return int(np.searchsorted(loss.starts, alpha, side="right")) - 1


def _bound_drift(chances: FloatArray, where: Occupancy, transition: Any) -> FloatArray:
    """Bound the error of the log probabilities at each time, including rounding."""
    size = chances.shape[1]
    each = np.full(len(chances), (size + 8) * 4 * _EPS)
    for t in range(1, len(chances)):
        wanted = chances[t - 1] @ transition
        is_positive = where.possible[t] & (wanted > 0)
        if (where.possible[t] & ~is_positive).any():
            raise InvalidInputError(f"a probability at time {t} underflows and cannot be certified; omit --certificate")
        each[t] += np.abs(np.log(chances[t][is_positive] / wanted[is_positive])).max()
    return np.cumsum(each) * (1 + 1e-6)


def _find_integer_gap(y: FloatArray, r: FloatArray, log_p: FloatArray, slope: float) -> tuple[Fraction, float]:
    """Return a price that separates the chosen counts, and the error of the separation.

    The price is ``e`` to the multiplier.
    """
    possible = np.isfinite(log_p)

    def compute_cost(k: FloatArray) -> FloatArray:
        noise = np.clip(2.0 * (k - y[possible]) - 1.0, -1.0, 1.0) * slope
        return np.where(k > 0, np.log(np.maximum(k, 1.0)) - log_p[possible] + noise, -np.inf)

    inside = float(compute_cost(r[possible]).max())
    outside = float(compute_cost(r[possible] + 1).min())
    theta = (inside + outside) / 2 if math.isfinite(inside) else outside
    halves = math.floor(theta / math.log(2))
    price = Fraction(math.exp(theta - halves * math.log(2))) * Fraction(2) ** halves
    return price, max(0.0, inside - outside)


def _find_real_gap(
    y: FloatArray, r: FloatArray, log_p: FloatArray, slope: float, theta: float
) -> tuple[Fraction, float]:
    """Return the multiplier, and the largest deviation of the objective's slopes from it."""
    possible = np.isfinite(log_p)
    smooth = digamma(r[possible] + 1) - log_p[possible]
    side = np.sign(r[possible] - y[possible])
    low, high = (smooth + slope * np.where(side == 0, way, side) - theta for way in (-1, 1))
    above = np.where(r[possible] > 0, np.maximum(low, 0.0), 0.0)
    return Fraction(float(theta)), float(max(above.max(), np.maximum(-high, 0.0).max()))
