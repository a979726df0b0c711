"""What needs torchvision, which may be built for another device than torch; run by `make test-vision`."""

from __future__ import annotations

from contextlib import suppress

from gescl.networks.external import declare_missing_operators

with suppress(ImportError):  # without torchvision the tests are skipped
    declare_missing_operators()
