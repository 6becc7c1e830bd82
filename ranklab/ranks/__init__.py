"""Engines as ranks: start, run, pull, push, reset, restart, close, `%%px`."""

from ranklab.ranks.ranks import Ranks

__all__ = ["Ranks"]
