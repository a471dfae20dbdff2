"""Fan out, fan in, exactly once: durable parallel jobs with a join."""

__version__ = "0.1.0"
