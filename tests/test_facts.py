"""What a field says of a result holds for numbers of numpy, too, which tables of releases give."""

from __future__ import annotations

import numpy as np

from dphmm.facts import factor_in_words, guarantees_in_words


def test_levels_may_be_numbers_of_numpy():
    assert factor_in_words(np.float64(242.41)) == "at most e^242.5 times as likely, which limits nothing"
    levels = np.array([1.0, 242.41, 12345.6])
    assert guarantees_in_words(*levels) == guarantees_in_words(*levels.tolist())
