"""The client actors that other tests share, too."""

from tests.end_to_end.conftest import pools

__all__ = ["pools"]
