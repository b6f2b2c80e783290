"""What a handler may import: the shared tables of its call."""

from transship_server.offers import table
from transship_server.tables import Table

__all__ = ["Table", "table"]
