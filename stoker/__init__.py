"""Stoker serves open-weight mixture-of-experts models to agents, cheaply and at scale."""

__version__ = "0.1.0"
