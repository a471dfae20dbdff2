"""The same fan-out and fan-in on other libraries, each in a virtual environment of its own: `make bench-peers`."""
