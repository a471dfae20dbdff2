-- Parts that wait for a job of their own, and flows: jobs that follow one another by a plan.

-- A waiting part is running without a lease: the end of its nested job, or of the last one that follows that, settles it.
-- nested_id stays until somebody has seen to it that the nested job is not left behind.
ALTER TABLE fanin.part ADD COLUMN nested_id text;
ALTER TABLE fanin.part ADD COLUMN waiting boolean NOT NULL DEFAULT false
    CHECK (NOT waiting OR (status = 'running' AND NOT ready AND nested_id IS NOT NULL));
CREATE INDEX fanin.part_orphaning ON fanin.part (bucket, job_id, idx)
    WHERE nested_id IS NOT NULL AND status IN ('succeeded', 'failed', 'abandoned');

ALTER TABLE fanin.job ADD COLUMN waiter_id text;
ALTER TABLE fanin.job ADD COLUMN waiter_idx integer CHECK ((waiter_idx IS NULL) = (waiter_id IS NULL));
ALTER TABLE fanin.job ADD COLUMN flow_id text;
ALTER TABLE fanin.job ADD COLUMN flow_step integer CHECK ((flow_step IS NULL) = (flow_id IS NULL));
-- waiter_id stands before bucket: so none of them is used to find a job by its id.
CREATE INDEX fanin.job_waiter ON fanin.job (waiter_id, waiter_idx, bucket) WHERE waiter_id IS NOT NULL;

-- running counts the steps whose job (or whose undo) goes on; ended gives the steps their order of ending; cause says why
-- a flow that is ending or was undone did not complete.
CREATE TABLE fanin.flow (
    bucket integer NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    key text,
    request_hash text NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'ending', 'compensating', 'completed', 'failed', 'cancelled',
        'compensated', 'needs_attention')),
    cause text CHECK (cause IN ('failed', 'cancelled', 'gave_up')),
    reason text,
    run integer NOT NULL DEFAULT 1 CHECK (run >= 1),
    fail_fast boolean NOT NULL,
    give_up_policy text NOT NULL CHECK (give_up_policy IN ('abandon', 'proceed')),
    running integer NOT NULL CHECK (running >= 0),
    failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    ended integer NOT NULL DEFAULT 0 CHECK (ended >= 0),
    events integer NOT NULL DEFAULT 0 CHECK (events >= 0),
    meta text,
    created_at real NOT NULL,
    give_up_at real,
    finished_at real,
    PRIMARY KEY (bucket, id),
    CHECK ((status IN ('running', 'ending', 'compensating')) = (finished_at IS NULL)),
    CHECK (status IN ('running', 'completed') OR cause IS NOT NULL)
) WITHOUT ROWID;
CREATE INDEX fanin.flow_recent ON fanin.flow (bucket, created_at) WHERE created_at > 0;
CREATE INDEX fanin.flow_ending ON fanin.flow (bucket, id) WHERE status = 'ending';
CREATE INDEX fanin.flow_give_up ON fanin.flow (bucket, give_up_at) WHERE status = 'running' AND give_up_at IS NOT NULL;

-- after and leads_to are JSON lists of step numbers; needs counts the steps before this one that have not ended.
CREATE TABLE fanin.flow_step (
    bucket integer NOT NULL,
    flow_id text NOT NULL,
    n integer NOT NULL CHECK (n >= 0),
    name text NOT NULL,
    status text NOT NULL CHECK (status IN ('waiting', 'running', 'done', 'failed', 'skipped', 'undoing', 'undone',
        'nothing_to_undo', 'manual', 'undo_failed')),
    needs integer NOT NULL CHECK (needs >= 0),
    condition text NOT NULL CHECK (condition IN ('ok', 'any', 'failed')),
    after text NOT NULL,
    leads_to text NOT NULL,
    spec text NOT NULL,
    undo text,
    job_id text,
    undo_job_id text,
    ended_no integer,
    note text,
    PRIMARY KEY (bucket, flow_id, n),
    FOREIGN KEY (bucket, flow_id) REFERENCES fanin.flow (bucket, id) ON DELETE CASCADE,
    CHECK (status IN ('waiting', 'skipped') OR job_id IS NOT NULL),
    CHECK (status <> 'undoing' OR undo_job_id IS NOT NULL)
) WITHOUT ROWID;
