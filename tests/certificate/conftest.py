"""What tests of verifiers in JavaScript share."""

import shutil

import pytest


@pytest.fixture(scope="session")
def node() -> str:
    """The command of Node, which is not needed otherwise."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found
