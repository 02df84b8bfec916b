"""Numerical tolerances that several packages share, and the range of lengths and budgets."""

# The relative tolerance of geometry: a point is in a convex body if its norm is at most ``1 + RELATIVE_TOLERANCE``.
#
# It is used only for real-valued input; decisions about integers and lattice points are exact. Its cost is at most a
# factor ``1 + 1e-9`` on epsilon, for a state that counts as protected although it lies slightly outside. Rounding of
# real-valued hulls comes on top: the norms of a hull's own differences were at most ``1 + 2e-7`` among 1,000 random
# hulls that were 10^4 to 10^8 times as long as wide, and at most ``1 + 1e-9`` up to 10^6 times. From about 10^9 times
# on, hulls are segments; if differences lie off a segment, the release is refused.
RELATIVE_TOLERANCE = 1e-9

# The bounds of lengths and budgets of noise. No square, volume or ratio of them overflows or underflows a double.
MIN_SCALE = 1e-30
MAX_SCALE = 1e30

# The largest accepted deviation of a sum of probabilities from 1.
PROBABILITY_TOLERANCE = 1e-9

# Sums this close to 1 are not normalised again, so that normalisation is idempotent to the last bit.
NORMALISATION_TOLERANCE = 1e-12
