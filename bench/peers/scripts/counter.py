"""The fan-in that users of a queue without one write by hand: a counter and a table of results, one transaction for
each part. It is not the transaction in which the queue notes that the part is done, so a crash between the two runs
the part again, and a crash between the last part and the callback loses the callback."""

TABLES = """
    CREATE TABLE fan (id serial PRIMARY KEY, left_over int NOT NULL);
    CREATE TABLE fan_value (fan int NOT NULL, n int NOT NULL, value int NOT NULL, PRIMARY KEY (fan, n))"""
NEW = "INSERT INTO fan (left_over) VALUES ($1) RETURNING id"
DONE = """
    WITH added AS (INSERT INTO fan_value VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING fan)
    UPDATE fan SET left_over = left_over - 1 FROM added WHERE id = added.fan RETURNING left_over"""
VALUES = "SELECT value FROM fan_value WHERE fan = $1 ORDER BY n"
