-- Flows as a whole: made with all of their steps, stopped, run again, and set right by a person.
-- Lock order: jobs of steps (a redrive locks their parts and stripes before them), then the flow, then its steps.

-- name: find_flow
-- The flow of an id, to tell "the same request again" from "the same key, another content".
SELECT request_hash FROM fanin.flow WHERE bucket = :bucket AND id = :id;

-- name: create_flow
-- The primary key decides between two callers with one key: the second waits, inserts nothing and looks again.
INSERT INTO fanin.flow (bucket, id, name, key, request_hash, status, fail_fast, give_up_policy, running, meta, created_at,
    give_up_at, listeners)
VALUES (:bucket, :id, :name, :key, :request_hash, 'running', :fail_fast, :give_up_policy, :running, :meta,
    fanin.clock(), coalesce(:give_up_at, fanin.clock() + :give_up_after), :listeners)
ON CONFLICT (bucket, id) DO NOTHING
RETURNING id;

-- name: rows_left
-- Whether rows of a purged flow of this id still lie there. Asked once the new row stands: from then on no purge can leave
-- any.
SELECT 1 FROM fanin.leftover WHERE bucket = :bucket AND job_id = :id;

-- name: create_steps --pg
-- rows: n, name, status, needs, condition, after, leads_to, spec, undo, job_id
-- All steps, those that run at once among them.
INSERT INTO fanin.flow_step (bucket, flow_id, n, name, status, needs, condition, after, leads_to, spec, undo, job_id)
SELECT :bucket, :flow_id, u.n, u.name, u.status, u.needs, u.condition, u.after, u.leads_to, u.spec, u.undo, u.job_id
FROM unnest(:n::int[], :name::text[], :status::text[], :needs::int[], :condition::text[], :after::text[],
    :leads_to::text[], :spec::text[], :undo::text[], :job_id::uuid[])
    AS u (n, name, status, needs, condition, after, leads_to, spec, undo, job_id);

-- name: create_steps --lite
-- rows: n, name, status, needs, condition, after, leads_to, spec, undo, job_id
-- All steps, those that run at once among them.
INSERT INTO fanin.flow_step (bucket, flow_id, n, name, status, needs, condition, after, leads_to, spec, undo, job_id)
SELECT :bucket, :flow_id, value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7,
    value->>8, value->>9
FROM json_each(:rows);

-- name: overdue_flows
-- Flows whose deadline has passed. Each is stopped in a transaction of its own, under its guard.
SELECT id FROM fanin.flow
WHERE bucket = :bucket AND status = 'running' AND give_up_at IS NOT NULL AND give_up_at <= fanin.clock()
ORDER BY give_up_at LIMIT :limit;

-- name: overdue
-- Under the flow's lock: whether the deadline still stands.
SELECT give_up_at <= fanin.clock() FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id;

-- name: left_running
-- Jobs of flows that are ending: each is cancelled in a transaction of its own, under its guard, and its end moves the flow
-- on.
SELECT s.job_id FROM fanin.flow AS f --pg
SELECT s.job_id FROM fanin.flow AS f INDEXED BY fanin.flow_ending --lite
JOIN fanin.flow_step AS s ON s.bucket = :bucket AND s.flow_id = f.id AND s.status = 'running'
WHERE f.bucket = :bucket AND f.status = 'ending'
ORDER BY s.job_id LIMIT :limit;

-- name: is_stopped
-- Whether the flow of a job is still to be ended, asked under the locks of all stripes of the job.
SELECT 1 FROM fanin.job AS j JOIN fanin.flow AS f ON f.bucket = :bucket AND f.id = j.flow_id
WHERE j.bucket = :bucket AND j.id = :job_id AND f.status = 'ending';

-- name: steps
-- All steps, for a new run: of those that stand first what they run, of the others that have failed whether their one part
-- can be run again.
SELECT s.n, s.status, s.after, s.job_id, s.ended_no, CASE WHEN s.after = '[]' THEN s.spec END,
    CASE WHEN s.status = 'failed' THEN EXISTS (SELECT 1 FROM fanin.part AS p WHERE p.bucket = :bucket
        AND p.job_id = s.job_id AND p.idx = 0 AND p.status <> 'succeeded') END
FROM fanin.flow_step AS s WHERE s.bucket = :bucket AND s.flow_id = :flow_id ORDER BY s.n;

-- name: job_of
-- The run of a step's job that is to be followed by another.
SELECT run, status, attempts FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: run_again
-- The job of a failed step that stands first runs again.
UPDATE fanin.flow_step SET status = 'running', ended_no = NULL
WHERE bucket = :bucket AND flow_id = :flow_id AND status = 'failed'
    AND n = ANY(:steps::int[]) --pg
    AND n IN (SELECT value FROM json_each(:steps)) --lite
RETURNING n;

-- name: wait_again
-- rows: n, needs
-- What has failed behind others, or was skipped, waits again for those before it that are not done. What was skipped by its
-- age has had its job, and no number of its end.
UPDATE fanin.flow_step AS s SET status = 'waiting', needs = u.needs
FROM unnest(:n::int[], :needs::int[]) AS u (n, needs) --pg
FROM (SELECT value->>0 AS n, value->>1 AS needs FROM json_each(:rows)) AS u --lite
WHERE s.bucket = :bucket AND s.flow_id = :flow_id AND s.n = u.n AND s.status IN ('failed', 'skipped')
    AND (s.job_id IS NULL OR s.ended_no IS NOT NULL)
RETURNING s.n;

-- name: reopen_flow
-- The next run. What was undone stays undone: only a flow that failed or was cancelled as it stood can go on.
UPDATE fanin.flow SET status = 'running', cause = NULL, reason = NULL, run = run + 1, running = :running, failures = 0,
    finished_at = NULL, give_up_at = fanin.clock() + :give_up_after
WHERE bucket = :bucket AND id = :flow_id AND status IN ('failed', 'cancelled') AND run = :run
RETURNING run;

-- name: settle_by_hand
-- A person has done, found needless or given up what could not be undone here.
UPDATE fanin.flow_step SET status = :status, note = :note
WHERE bucket = :bucket AND flow_id = :flow_id AND name = :name AND status IN ('manual', 'undo_failed')
RETURNING n, job_id;

-- name: step_named
-- A step of a flow that needs attention.
SELECT n, status, undo_job_id FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id AND name = :name;

-- name: undo_again
-- What failed to undo it runs again.
UPDATE fanin.flow_step SET status = 'undoing', note = NULL
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'undo_failed'
RETURNING n;

-- name: row
-- One flow, for people.
SELECT id, bucket, name, key, status, cause, reason, run, running, failures, meta, created_at, give_up_at, finished_at
FROM fanin.flow WHERE bucket = :bucket AND id = :id;

-- name: newest
-- The newest flows of a bucket, optionally of one state.
SELECT id, bucket, name, key, status, cause, reason, run, running, failures, meta, created_at, give_up_at, finished_at
FROM fanin.flow WHERE bucket = :bucket AND created_at > 0 AND (:status::text IS NULL OR status = :status) --pg
FROM fanin.flow WHERE bucket = :bucket AND created_at > 0 AND (:status IS NULL OR status = :status) --lite
ORDER BY created_at DESC LIMIT :limit;

-- name: like
-- Flows whose id begins so.
SELECT id FROM fanin.flow WHERE bucket = :bucket AND CAST(id AS text) LIKE :prefix ESCAPE '!' ORDER BY id LIMIT 3;

-- name: step_rows
-- The steps of a flow, for people.
SELECT n, name, status, needs, condition, after, spec, undo, job_id, undo_job_id, ended_no, note
FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id ORDER BY n;
