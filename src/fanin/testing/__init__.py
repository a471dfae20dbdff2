"""Tools to test the joins of a program, and with which fanin tests its own.

`stepper` drives transactions statement by statement on a real database, `explorer` runs every order in which several
can meet, or some that `priorities` draws by seeds, `invariants` judges the rows and the history, `cuts` lets a
transaction die at a chosen place, `state` puts a database back, and `mutate` takes a guard out of the SQL to show that
the others notice.

For processes: `crashpoints` stops, kills or fails them at named places, `proxy` cuts connections around COMMIT, `clock`
moves the database's time, `barrier` lets them start together, `fakes` receive events and effects, `tap` sees every
statement. `plugin` and `inline` run handlers and joins in a test, and `torture` does all of it at once.
"""
