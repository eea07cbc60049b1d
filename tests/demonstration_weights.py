"""The mark of tests that need the weights of the demonstration model's base."""

from importlib import metadata

import pytest

from specstream_mlx import demonstration


def installed() -> bool:
    """Whether the package that brings them is installed, in the version that is wanted."""
    try:
        return metadata.version(demonstration.PACKAGE) == demonstration.VERSION
    except metadata.PackageNotFoundError:
        return False


needs_weights = pytest.mark.skipif(
    not installed(), reason=f"needs the base's weights: {demonstration.INSTALL}"
)
