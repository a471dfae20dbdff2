-- What parts want done outside the database. The row is there before the first call, and one row stands for one effect
-- whichever attempt or run of the part names it.
--
-- relayed: a relay calls, else the part's own attempt. doubtful: a call of it ended without a clear answer.

CREATE TABLE fanin.effect (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    idx integer NOT NULL,
    name text NOT NULL,
    mode text NOT NULL CHECK (mode IN ('idempotent', 'probe', 'at_most_once')),
    status text NOT NULL CHECK (status IN ('registered', 'calling', 'done', 'failed', 'unknown', 'cancelled',
        'reversed')),
    relayed boolean NOT NULL,
    doubtful boolean NOT NULL DEFAULT false,
    attempt integer NOT NULL CHECK (attempt >= 1),
    calls integer NOT NULL DEFAULT 0 CHECK (calls >= 0),
    calls_allowed integer NOT NULL CHECK (calls_allowed >= calls),
    due_at double precision NOT NULL,
    claim_id uuid,
    caller text,
    at double precision NOT NULL,
    settled_at double precision,
    request text NOT NULL,
    response text,
    error text,
    note text,
    PRIMARY KEY (bucket, job_id, idx, name),
    CHECK (status <> 'calling' OR (claim_id IS NOT NULL AND calls >= 1)),
    CHECK ((status IN ('registered', 'calling')) = (settled_at IS NULL))
) WITH (fillfactor = 70);
-- As for the outbox: due_at is never below 0, which the planner does not know; so none of them is used to find an effect
-- by its key.
CREATE INDEX effect_due ON fanin.effect (bucket, name, due_at)
    WHERE status IN ('registered', 'calling') AND due_at >= 0;
CREATE INDEX effect_calling ON fanin.effect (bucket, due_at) WHERE status = 'calling' AND due_at >= 0;
CREATE INDEX effect_stuck ON fanin.effect (bucket, settled_at) WHERE status IN ('failed', 'unknown');
