-- Remove trees of ended jobs. One transaction takes a whole tree out of sight: its counters, its jobs and its events. What
-- is many (parts, history, outputs) then goes in small portions, of which `leftover` says that they are left.
-- Lock order: all stripes of the tree by (bucket, job), then its jobs, then its flow; deletes of events; inserts last.
-- Portions: the leftover, then its rows; then the leftover above it, before its own goes.

-- name: old_roots
-- Jobs without a parent that ended so long ago, oldest first. A job cannot have ended before it was created, so the
-- index of the creation is enough.
SELECT id, created_at FROM fanin.job
WHERE bucket = :bucket AND created_at > 0 AND created_at <= fanin.clock() - :age AND created_at >= :after
    AND (created_at > :after OR id > :after_id) AND parent_id IS NULL AND flow_id IS NULL
    AND finished_at <= fanin.clock() - :age
ORDER BY created_at, id LIMIT :limit;

-- name: old_flows
-- Flows that ended so long ago, oldest first. Those that wait for a person are among them: to say that they stay.
SELECT id, created_at FROM fanin.flow
WHERE bucket = :bucket AND created_at > 0 AND created_at <= fanin.clock() - :age AND created_at >= :after
    AND (created_at > :after OR id > :after_id) AND finished_at <= fanin.clock() - :age
ORDER BY created_at, id LIMIT :limit;

-- name: jobs_of_flow
-- The jobs that its steps have run, those that have undone them, and those that listened to it.
SELECT job_id, undo_job_id FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id
UNION ALL
SELECT id, NULL FROM fanin.job WHERE bucket = :bucket AND parent_id = :flow_id;

-- name: lock_flow
-- Whoever lets a flow go on goes through this row, after the stripes of its jobs.
SELECT id FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id
FOR NO KEY UPDATE --pg
;

-- name: standing_flow
-- How the flow stands. Asked in a later statement than its lock.
SELECT status, finished_at <= fanin.clock() - :age FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id;

-- name: children
-- The next level of a tree, in one bucket. Jobs that parts have started lie in any.
SELECT id FROM fanin.job WHERE bucket = :bucket
    AND parent_id = ANY(:jobs::uuid[]); --pg
    AND parent_id IN (SELECT value FROM json_each(:jobs)); --lite

-- name: lock_tree_stripes
-- Whatever changes a job that has ended goes through these rows. Who waited for this lock finds no stripe and no job.
SELECT job_id, stripe FROM fanin.job_stripe WHERE bucket = :bucket
    AND job_id = ANY(:jobs::uuid[]) --pg
    AND job_id IN (SELECT value FROM json_each(:jobs)) --lite
ORDER BY job_id, stripe
FOR NO KEY UPDATE --pg
;

-- name: assess --pg
-- What the tree has in one bucket, and what still needs it. Asked in a later statement than the locks.
SELECT
    (SELECT count(*) FROM fanin.job WHERE bucket = :bucket AND id = ANY(:jobs::uuid[])
        AND finished_at <= fanin.clock() - :age),
    (SELECT count(*) FROM fanin.job WHERE bucket = :bucket AND id = ANY(:jobs::uuid[]) AND flow_id IS NOT NULL
        AND (:flow_id::uuid IS NULL OR flow_id <> :flow_id)),
    (SELECT coalesce(sum(created), 0) FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])),
    (SELECT coalesce(sum(remaining), 0) FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])
        AND status = 'claimed'),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])
        AND status <> 'published'),
    (SELECT count(*) FROM fanin.staged_output WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])),
    (SELECT count(*) FROM fanin.staged_output AS o
        LEFT JOIN fanin.part AS p
            ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
        WHERE o.bucket = :bucket AND o.job_id = ANY(:jobs::uuid[]) AND (o.status IN ('staged', 'swept')
            OR (o.status = 'ready' AND (p.status IS NULL OR p.status <> 'succeeded')))),
    (SELECT count(*) FROM fanin.effect WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])
        AND status IN ('registered', 'calling')),
    (SELECT count(*) FROM fanin.effect WHERE bucket = :bucket AND job_id = ANY(:jobs::uuid[])
        AND status IN ('failed', 'unknown'));

-- name: assess --lite
-- What the tree has, and what still needs it.
WITH mine AS MATERIALIZED (SELECT value AS id FROM json_each(:jobs))
SELECT
    (SELECT count(*) FROM fanin.job WHERE bucket = :bucket AND id IN (SELECT id FROM mine)
        AND finished_at <= fanin.clock() - :age),
    (SELECT count(*) FROM fanin.job WHERE bucket = :bucket AND id IN (SELECT id FROM mine) AND flow_id IS NOT NULL
        AND (:flow_id IS NULL OR flow_id <> :flow_id)),
    (SELECT coalesce(sum(created), 0) FROM fanin.job_stripe WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)),
    (SELECT coalesce(sum(remaining), 0) FROM fanin.job_stripe
        WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)
        AND status = 'claimed'),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)
        AND status <> 'published'),
    (SELECT count(*) FROM fanin.staged_output WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)),
    (SELECT count(*) FROM fanin.staged_output AS o
        LEFT JOIN fanin.part AS p
            ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
        WHERE o.bucket = :bucket AND o.job_id IN (SELECT id FROM mine) AND (o.status IN ('staged', 'swept')
            OR (o.status = 'ready' AND (p.status IS NULL OR p.status <> 'succeeded')))),
    (SELECT count(*) FROM fanin.effect WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)
        AND status IN ('registered', 'calling')),
    (SELECT count(*) FROM fanin.effect WHERE bucket = :bucket AND job_id IN (SELECT id FROM mine)
        AND status IN ('failed', 'unknown'));

-- name: remove_stripes
-- The counters, of which none may have a live part.
DELETE FROM fanin.job_stripe WHERE bucket = :bucket
    AND job_id = ANY(:jobs::uuid[]) --pg
    AND job_id IN (SELECT value FROM json_each(:jobs)) --lite
    AND remaining = 0
RETURNING stripe;

-- name: remove_jobs
-- The jobs, all of which must have ended so long ago; and what stands above each.
DELETE FROM fanin.job WHERE bucket = :bucket
    AND id = ANY(:jobs::uuid[]) --pg
    AND id IN (SELECT value FROM json_each(:jobs)) --lite
    AND finished_at <= fanin.clock() - :age
RETURNING id, coalesce(parent_id, flow_id);

-- name: remove_steps
-- The steps of a flow that has ended, and does not wait for a person.
DELETE FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id
RETURNING n;

-- name: remove_flow
-- The flow itself.
DELETE FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id
    AND status IN ('completed', 'failed', 'cancelled', 'compensated')
RETURNING id;

-- name: remove_events
-- Events that have left; where it was asked for, those that wait or are parked too. One that a relay has in hand stays,
-- and so does the tree.
DELETE FROM fanin.outbox WHERE bucket = :bucket
    AND job_id = ANY(:jobs::uuid[]) --pg
    AND job_id IN (SELECT value FROM json_each(:jobs)) --lite
    AND (status = 'published' OR (:unsent AND status <> 'claimed'))
RETURNING event_key;

-- name: leave
-- rows: job_id, parent_id
-- From here on the jobs are gone, and their rows are to follow. No ON CONFLICT: nobody creates a job of which rows are
-- left.
INSERT INTO fanin.leftover (bucket, job_id, outputs, at, parent_id)
SELECT :bucket, u.job_id, :outputs, fanin.clock(), u.parent_id
FROM unnest(:job_id::uuid[], :parent_id::uuid[]) AS u (job_id, parent_id); --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS parent_id FROM json_each(:rows)) AS u; --lite

-- name: leftovers
-- Jobs and flows that are gone and still have rows.
SELECT job_id FROM fanin.leftover WHERE bucket = :bucket AND job_id > :after ORDER BY job_id LIMIT :limit;

-- name: left_outputs
-- A page of the outputs that a purged job has left, and whether they are to be removed. None of a job that stands: it may
-- have come since its id was seen among the leftovers.
SELECT o.idx, o.claim_id, o.name, o.attempt, o.root, l.outputs FROM fanin.leftover AS l
JOIN fanin.staged_output AS o ON o.bucket = :bucket AND o.job_id = l.job_id
WHERE l.bucket = :bucket AND l.job_id = :job_id ORDER BY o.idx, o.claim_id, o.name LIMIT :limit;

-- name: lock_leftover
-- Portions of one job are removed by one purge at a time; another goes on with the next job.
SELECT parent_id FROM fanin.leftover WHERE bucket = :bucket AND job_id = :job_id
FOR NO KEY UPDATE SKIP LOCKED --pg
;

-- name: remove_outputs
-- rows: idx, claim_id, name
-- Outputs whose objects have been removed, or were to stay where they are.
DELETE FROM fanin.staged_output AS o
WHERE o.bucket = :bucket AND o.job_id = :job_id
    AND (o.idx, o.claim_id, o.name) IN (SELECT u.idx, u.claim_id, u.name FROM --pg
        unnest(:idx::int[], :claim_id::uuid[], :name::text[]) AS u (idx, claim_id, name)) --pg
    AND (o.idx, o.claim_id, o.name) IN (SELECT value->>0, value->>1, value->>2 FROM json_each(:rows)) --lite
RETURNING o.name;

-- name: first_left
-- Where the parts that are left begin, and whether there are outputs before them.
SELECT (SELECT min(idx) FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id),
    EXISTS (SELECT 1 FROM fanin.staged_output WHERE bucket = :bucket AND job_id = :job_id);

-- name: remove_parts
-- A portion of the parts.
DELETE FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx < :past
RETURNING idx;

-- name: remove_history
-- The history of those parts.
DELETE FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :job_id AND idx < :past
RETURNING idx;

-- name: remove_effects
-- And their effects.
DELETE FROM fanin.effect WHERE bucket = :bucket AND job_id = :job_id AND idx < :past
RETURNING idx;

-- name: next_keys
-- The last key of a portion of those of a job that grew.
SELECT k.key FROM (SELECT key FROM fanin.part_key
    WHERE bucket = :bucket AND job_id = :job_id ORDER BY key LIMIT :limit) AS k
ORDER BY k.key DESC LIMIT 1;

-- name: remove_keys
-- That portion.
DELETE FROM fanin.part_key WHERE bucket = :bucket AND job_id = :job_id AND key <= :last
RETURNING key;

-- name: remove_log
-- What operators did to it, or to a flow.
DELETE FROM fanin.job_log WHERE bucket = :bucket AND job_id = :job_id
RETURNING id;

-- name: remove_repairs
-- What was repaired in it.
DELETE FROM fanin.repair WHERE bucket = :bucket AND job_id = :job_id
RETURNING id;

-- name: left_below
-- all buckets
-- Whether anything is left of what was below a job. A new job of its id would make jobs of the same ids.
SELECT 1 FROM fanin.leftover WHERE parent_id = :job_id LIMIT 1;

-- name: hold_above
-- Two that go at once could each see the other, and none go on with the job above.
SELECT job_id FROM fanin.leftover WHERE bucket = :bucket AND job_id = :job_id
FOR NO KEY UPDATE --pg
;

-- name: remove_leftover
-- Nothing of the job is left, nor of what was below it.
DELETE FROM fanin.leftover WHERE bucket = :bucket AND job_id = :job_id
RETURNING job_id;
