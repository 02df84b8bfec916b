"""Values that are wrong for almost all arguments: public calls must refuse them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from scipy import sparse

from dphmm.errors import DphmmError

# Name → value. Some calls may accept some of them; any error must be one of the package.
WEIRD = {
    "none": None,
    "text": "abc",
    "number as text": "1e999",
    "bytes": b"x",
    "empty": [],
    "nested and empty": [[]],
    "three dimensions": np.zeros((2, 2, 2)),
    "not a number": np.nan,
    "rows with NaN": [[np.nan, 1.0], [1.0, 0.0]],
    "infinite": np.inf,
    "negative": -1,
    "zero": 0,
    "huge": 1e308,
    "hugely negative": -1e308,
    "tiny": 1e-320,
    "ragged": [[1, 2], [3]],
    "mixed": [1, "a"],
    "dictionary": {},
    "object": object(),
    "complex": [1 + 2j],
    "objects": np.array([None, None]),
    "sparse": sparse.csr_array(np.eye(2)),
    "beyond floats": [10**400],
    "rows beyond floats": [[10**400, 1], [1, 1]],
    "no time": [np.datetime64("NaT", "us")],
    "times": ["2020-01-01"],
    "one number": np.array(5),
    "fraction": Fraction(1, 3),
}


def count_refusals(call, arguments, spared=()):
    """Set every argument in turn to every weird value. Return the number of refusals.

    Arguments in `spared` stay as they are. Any error other than a `DphmmError` is raised.
    """
    call(**arguments)
    refused = 0
    for name in arguments.keys() - set(spared):
        for value in WEIRD.values():
            try:
                call(**{**arguments, name: value})
            except DphmmError:
                refused += 1
    return refused
