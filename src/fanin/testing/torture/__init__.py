"""Torture a database of your own: kill and freeze workers, cut COMMITs, move the clock; then judge what is left.

`plan` says what is submitted, `app`, `worker` and `driver` are the program under torture, `nursery` holds its
processes, `storm` does the harm, `judge` reads tables and histories with SQL of its own, `report` prints, and `run` is
the whole. `breaks` takes a guard out of the program, to show that the judge notices.
"""
