-- What operators do: pause a job, take over a part, and say why.

-- While paused_at is set, no part of the job is claimed. walk_from: the parts from this index on are still to be held
-- back, or let go again.
ALTER TABLE fanin.job ADD COLUMN paused_at real CHECK (paused_at IS NULL OR finished_at IS NULL);
ALTER TABLE fanin.job ADD COLUMN walk_from integer CHECK (walk_from >= 0);
CREATE INDEX fanin.job_paused ON fanin.job (bucket, id) WHERE paused_at IS NOT NULL;
CREATE INDEX fanin.job_walk ON fanin.job (bucket, id) WHERE walk_from IS NOT NULL;

-- What was done to a job from outside its handlers, by whom and why. For people; nothing is decided by it.
CREATE TABLE fanin.job_log (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    id text NOT NULL,
    run integer NOT NULL,
    at real NOT NULL,
    what text NOT NULL,
    idx integer,
    who text,
    reason text,
    PRIMARY KEY (bucket, job_id, id)
) WITHOUT ROWID;
