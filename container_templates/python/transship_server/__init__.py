"""The fixed server of the Python template: answers docs/protocol.md for the functions of a user's handler."""

__version__ = "0.2.0"
