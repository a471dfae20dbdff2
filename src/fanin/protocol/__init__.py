"""What must be true: every transaction as a generator of SQL statements. No driver, no sleep, no log, no clock."""
