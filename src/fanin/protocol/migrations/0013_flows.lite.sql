-- Flows: steps that a person has given up to undo, tasks that listen to ends, and their removal.

-- By the type of the event, the jobs that its transaction makes.
ALTER TABLE fanin.flow ADD COLUMN listeners text;

-- SQLite changes no constraint of a table that stands: it is written anew.
ALTER TABLE fanin.flow_step RENAME TO flow_step_before;
CREATE TABLE fanin.flow_step (
    bucket integer NOT NULL,
    flow_id text NOT NULL,
    n integer NOT NULL CHECK (n >= 0),
    name text NOT NULL,
    status text NOT NULL CHECK (status IN ('waiting', 'running', 'done', 'failed', 'skipped', 'undoing', 'undone',
        'nothing_to_undo', 'not_undone', 'manual', 'undo_failed')),
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
INSERT INTO fanin.flow_step SELECT * FROM flow_step_before;
DROP TABLE flow_step_before;

-- Of a job that was removed with its flow. A flow with the same key has to wait until none of them is left.
ALTER TABLE fanin.leftover ADD COLUMN flow_id text;
CREATE INDEX fanin.leftover_flow ON fanin.leftover (bucket, flow_id) WHERE flow_id IS NOT NULL;
