-- A step of a flow has ended: what follows it is decided and started in the transaction of its end.
-- Lock order: the job that ended, then its flow, then steps, then effects; jobs of steps that start are inserted last. Whoever
-- writes a step holds its flow, so steps need no order among themselves. Nor do effects, of which none is waited for: several
-- steps are undone at once, in the order of their ends.

-- name: lock_flow
-- All that happens to the steps of a flow happens one after the other.
SELECT name, key, status, cause, reason, run, fail_fast, give_up_policy, running, failures, ended, events,
    listeners
FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id
FOR NO KEY UPDATE --pg
;

-- name: end_step
-- A step ends once, by the job that it runs.
UPDATE fanin.flow_step SET status = :status, ended_no = :ended_no
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'running' AND job_id = :job_id
RETURNING leads_to, name;

-- name: undoing
-- The job of the step that this one undoes.
SELECT job_id FROM fanin.flow_step
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'undoing' AND undo_job_id = :job_id;

-- name: incomplete
-- A job of an undo that has left something standing, whatever its end is called. What was refused in an earlier run is not
-- one: it never had parts, and a job that may be has come after it.
SELECT status FROM fanin.job
WHERE bucket = :bucket AND id = :job_id
    AND (status <> 'completed' OR failed_parts > 0 OR abandoned_parts > 0) AND coalesce(outcome, '') <> 'refused';

-- name: end_undo
-- So does what undoes it. If it failed: why.
UPDATE fanin.flow_step SET status = :status, note = :note
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'undoing' AND undo_job_id = :job_id
RETURNING name;

-- name: need_less
-- One of the steps that this one waits for has ended.
UPDATE fanin.flow_step SET needs = needs - 1
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'waiting' AND needs > 0
RETURNING name, needs, condition, after, leads_to, spec, job_id;

-- name: condition
-- How this step takes the ends of those before it.
SELECT condition FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n;

-- name: before --pg
-- The steps before one that may start now, and how their jobs ended. Each is found by its key, however many there are.
SELECT s.n, s.status, j.id, j.run, j.status, j.outcome, j.reason, j.succeeded_parts, j.failed_parts, j.abandoned_parts,
    j.task
FROM unnest(:steps::int[]) AS u (n)
CROSS JOIN LATERAL (SELECT t.n, t.status, t.job_id FROM fanin.flow_step AS t
    WHERE t.bucket = :bucket AND t.flow_id = :flow_id AND t.n = u.n OFFSET 0) AS s
LEFT JOIN LATERAL (SELECT k.* FROM fanin.job AS k WHERE k.bucket = :bucket AND k.id = s.job_id OFFSET 0) AS j ON true;

-- name: before --lite
-- The steps before one that may start now, and how their jobs ended.
SELECT t.n, t.status, j.id, j.run, j.status, j.outcome, j.reason, j.succeeded_parts, j.failed_parts, j.abandoned_parts,
    j.task
FROM fanin.flow_step AS t
LEFT JOIN fanin.job AS j ON j.bucket = :bucket AND j.id = t.job_id
WHERE t.bucket = :bucket AND t.flow_id = :flow_id AND t.n IN (SELECT value FROM json_each(:steps));

-- name: refused
-- What the own job of a mapping step was refused.
SELECT id, reason FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: made
-- The job that a mapping step made, which its own job ended with. Those that it made in earlier runs of other items are left
-- behind, and wait for nothing.
SELECT id, run, status, outcome, reason, succeeded_parts, failed_parts, abandoned_parts, task
FROM fanin.job --pg
FROM fanin.job INDEXED BY fanin.job_waiter --lite
WHERE bucket = :bucket AND waiter_id = :job_id AND waiter_idx = 0 AND coalesce(outcome, '') <> 'refused'
ORDER BY id LIMIT 1;

-- name: so_far
-- What that job has come to, if it goes on although the step has ended without it.
SELECT coalesce(sum(succeeded), 0), coalesce(sum(failed), 0), coalesce(sum(remaining + abandoned), 0)
FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id;

-- name: start_step
-- Its job is made in this transaction, or gets a new run.
UPDATE fanin.flow_step SET status = 'running', job_id = :job_id, ended_no = NULL
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'waiting' AND needs = 0
RETURNING n;

-- name: skip_step
-- Its condition is not met, and never will be in this run.
UPDATE fanin.flow_step SET status = 'skipped'
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status = 'waiting' AND needs = 0
RETURNING n;

-- name: skip_waiting
-- The flow ends early: nothing more starts. What has failed in an earlier run, and was to be run again, stays as it was.
UPDATE fanin.flow_step SET status = CASE WHEN job_id IS NULL THEN 'skipped' ELSE 'failed' END
WHERE bucket = :bucket AND flow_id = :flow_id AND status = 'waiting'
RETURNING n;

-- name: next_undo
-- Of the steps that have ended and are not undone yet, the last: undoing goes back in the exact order of the ends.
SELECT n, name, undo, job_id FROM fanin.flow_step
WHERE bucket = :bucket AND flow_id = :flow_id AND status IN ('done', 'failed')
ORDER BY ended_no DESC LIMIT 1;

-- name: family
-- The job of a step, and those nested below it.
WITH RECURSIVE family (id) AS (
    SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = :job_id
    UNION ALL
    SELECT j.id FROM family AS f CROSS JOIN LATERAL (SELECT c.id FROM fanin.job AS c --pg
        WHERE c.bucket = :bucket AND c.waiter_id = f.id OFFSET 0) AS j --pg
    SELECT j.id FROM family AS f CROSS JOIN fanin.job AS j --lite
    WHERE j.bucket = :bucket AND j.waiter_id = f.id --lite
)
SELECT id FROM family;

-- name: took_effect
-- Whether a job of the family has left anything behind, or may still: parts that succeeded or have not been swept, or
-- effects that were, or may have been, called.
SELECT EXISTS (SELECT 1 FROM fanin.job_stripe WHERE bucket = :bucket
        AND job_id = :job_id
        AND (succeeded > 0 OR remaining > 0))
    OR EXISTS (SELECT 1 FROM fanin.effect WHERE bucket = :bucket
        AND job_id = :job_id
        AND status <> 'cancelled');

-- name: restless
-- Whether it is a job with parts that still live. They may succeed, or call, until they have been swept.
SELECT job_id FROM fanin.job_stripe WHERE bucket = :bucket
    AND job_id = :job_id
    AND remaining > 0 LIMIT 1;

-- name: unsure
-- An effect of it of which it is not known yet whether it was done, or will be.
SELECT idx, name, status FROM fanin.effect WHERE bucket = :bucket
    AND job_id = :job_id
    AND status IN ('registered', 'calling', 'unknown') LIMIT 1;

-- name: nested_below
-- The jobs that parts of a job ended with, or were to end with.
SELECT id, waiter_idx FROM fanin.job WHERE bucket = :bucket AND waiter_id = :job_id ORDER BY waiter_idx, depth, id;

-- name: hold_effects
-- All effects of a job: none of them is called, settled or asked for again until it is said that they are undone. One that
-- somebody is just writing is not waited for: he may hold others, of steps that this transaction undoes before or after.
SELECT idx, name FROM fanin.effect WHERE bucket = :bucket AND job_id = :job_id ORDER BY idx, name
FOR NO KEY UPDATE NOWAIT --pg
;

-- name: reverse_effects
-- What was done has been undone: by the undo of parts that succeeded, or all of it by a person.
UPDATE fanin.effect AS e SET status = 'reversed', settled_at = fanin.clock()
WHERE e.bucket = :bucket AND e.status = 'done'
    AND e.job_id = :job_id
    AND (:by_hand OR EXISTS (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = e.job_id AND p.idx = e.idx AND p.status = 'succeeded'))
RETURNING e.idx;

-- name: standing_effect
-- An effect of it that is still done: no part that has succeeded accounts for it, so no undo has taken it back. Or one of
-- which that is not known.
SELECT idx, name, status FROM fanin.effect WHERE bucket = :bucket
    AND job_id = :job_id
    AND status IN ('registered', 'calling', 'done', 'unknown') LIMIT 1;

-- name: begin_undo
-- What undoes it is made in this transaction.
UPDATE fanin.flow_step SET status = 'undoing', undo_job_id = :job_id
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status IN ('done', 'failed')
RETURNING n;

-- name: settle_step
-- There is nothing to undo, or a person has to do it.
UPDATE fanin.flow_step SET status = :status
WHERE bucket = :bucket AND flow_id = :flow_id AND n = :n AND status IN ('done', 'failed')
RETURNING n;

-- name: unsettled
-- The steps that a person has to look at.
SELECT count(*) FROM fanin.flow_step
WHERE bucket = :bucket AND flow_id = :flow_id AND status IN ('manual', 'undo_failed');

-- name: undoable
-- Whether any step of the flow can be undone.
SELECT EXISTS (SELECT 1 FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id AND undo IS NOT NULL);

-- name: counts
-- What the event of the end says of the steps, however many there are.
SELECT status, count(*) FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id GROUP BY status;

-- name: notable
-- The first of the steps that say why.
SELECT name, status FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id
    AND status IN ('failed', 'manual', 'undo_failed', 'not_undone')
ORDER BY n LIMIT :limit;

-- name: save_flow
-- The flow under its lock, which was in the state that is named.
UPDATE fanin.flow SET status = :status, cause = :cause, reason = :reason, running = :running, failures = :failures,
    ended = :ended, events = :events, finished_at = CASE WHEN :live THEN NULL ELSE fanin.clock() END
WHERE bucket = :bucket AND id = :flow_id AND status = :was
RETURNING id;

-- name: announce
-- No ON CONFLICT: a second end of the same run of a flow is a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at)
VALUES (:bucket, :event_key, :flow_id, :seq, :type, :payload, fanin.clock(), fanin.clock());
