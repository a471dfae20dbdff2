-- Repairs: what was found to be wrong in a job, and what was done about it. And the jobs that go on, found by index.

-- For people; it decides only that damage which was told once is not told again. which: the part, or the counter.
CREATE TABLE fanin.repair (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    id uuid NOT NULL,
    what text NOT NULL CHECK (what IN ('stripe', 'job', 'part', 'ended', 'damaged')),
    which integer NOT NULL CHECK (which >= 0),
    run integer NOT NULL,
    at double precision NOT NULL,
    before text NOT NULL,
    after text NOT NULL,
    PRIMARY KEY (bucket, job_id, id, what, which)
);

-- created_at > 0 holds for all, and keeps the index to those who ask for it: others find a job by its key.
CREATE INDEX job_live ON fanin.job (bucket, id) WHERE status IN ('open', 'running') AND created_at > 0;
