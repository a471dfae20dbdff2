-- Ended jobs can be removed, and work that a heartbeat stopped is noted.

CREATE TABLE fanin.attempt_log_next (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    idx integer NOT NULL,
    attempt integer NOT NULL,
    what text NOT NULL CHECK (what IN ('retried', 'failed', 'released', 'lease_lost', 'refused', 'stopped')),
    at real NOT NULL,
    worker text,
    holder integer,
    error text,
    PRIMARY KEY (bucket, job_id, idx, attempt, what)
) WITHOUT ROWID;
INSERT INTO fanin.attempt_log_next (bucket, job_id, idx, attempt, what, at, worker, holder, error)
    SELECT bucket, job_id, idx, attempt, what, at, worker, holder, error FROM fanin.attempt_log;
DROP TABLE fanin.attempt_log;
ALTER TABLE fanin.attempt_log_next RENAME TO fanin.attempt_log;
-- For counts over the last hour or day. The other rows are many, and nobody counts them.
CREATE INDEX fanin.attempt_log_recent ON fanin.attempt_log (bucket, at)
    WHERE what IN ('lease_lost', 'refused', 'stopped');

-- Jobs that were removed, with rows that still lie there: parts, history and outputs go in small portions.
-- outputs: whether the files that its parts left are to be removed too.
CREATE TABLE fanin.leftover (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    outputs boolean NOT NULL,
    at real NOT NULL,
    PRIMARY KEY (bucket, job_id)
) WITHOUT ROWID;
