"""What pytest runs: tests marked `long` with `./headroom test --all` only, or where HEADROOM_TEST_ALL is 1.

Here and not in tests/, which pytest would put on sys.path: tests/torch would then pass for PyTorch.
"""

import os


def pytest_collection_modifyitems(config, items):
    """Takes the long tests out, uncounted: they are no tests that could not run."""
    if os.environ.get("HEADROOM_TEST_ALL") == "1":
        return
    long_ones = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long_ones)
    items[:] = [item for item in items if not item.get_closest_marker("long")]
