"""fanin: fan a job out over workers and join it exactly once."""

__version__ = "0.1.0"
