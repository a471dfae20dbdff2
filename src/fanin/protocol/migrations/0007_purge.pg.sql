-- Ended jobs can be removed, and work that a heartbeat stopped is noted.

ALTER TABLE fanin.attempt_log DROP CONSTRAINT attempt_log_what_check;
ALTER TABLE fanin.attempt_log ADD CONSTRAINT attempt_log_what_check
    CHECK (what IN ('retried', 'failed', 'released', 'lease_lost', 'refused', 'stopped'));
-- For counts over the last hour or day. The other rows are many, and nobody counts them.
CREATE INDEX attempt_log_recent ON fanin.attempt_log (bucket, at) WHERE what IN ('lease_lost', 'refused', 'stopped');

-- Jobs that were removed, with rows that still lie there: parts, history and outputs go in small portions.
-- outputs: whether the files that its parts left are to be removed too.
CREATE TABLE fanin.leftover (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    outputs boolean NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (bucket, job_id)
);
