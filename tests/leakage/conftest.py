"""Fixtures of the leakage tests."""

from __future__ import annotations

import pytest

from tests.leakage.oracles import ODD_MATRICES


@pytest.fixture(params=list(ODD_MATRICES))
def odd_matrix(request):
    return ODD_MATRICES[request.param]
