"""When it happens: workers, heartbeats, upkeep. Threads with one wait each; a handler cannot stop its own heartbeat."""
