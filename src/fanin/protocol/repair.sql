-- Repair: counters and flags that do not fit the parts are written anew from them. What is checked is in check.sql.
-- Lock order: to recount, all stripes ascending, then the job, then as in ending; inserts last. To mend parts, the parts by
-- idx, and nothing else but inserts.
--
-- The rule of the room: lock first, and count in a later statement. A statement that locks and counts sees the counts of
-- the moment when it began, before it waited for whoever was counting; it breaks a counter that is right.

-- name: live_jobs
-- A page of the jobs that go on.
SELECT id FROM fanin.job --pg
SELECT id FROM fanin.job INDEXED BY fanin.job_live --lite
WHERE bucket = :bucket AND status IN ('open', 'running') AND created_at > 0 AND id > :after ORDER BY id LIMIT :limit;

-- name: unswept_jobs
-- A page of the closed jobs of which a counter says that parts of them live.
SELECT DISTINCT job_id FROM fanin.job_stripe --pg
SELECT DISTINCT job_id FROM fanin.job_stripe INDEXED BY fanin.job_stripe_unswept --lite
WHERE bucket = :bucket AND closed AND remaining > 0 AND job_id > :after ORDER BY job_id LIMIT :limit;

-- name: look
-- All that is to be compared, in one snapshot: a row for each counter as it is stored, and one as its parts say. A job of
-- which no row is wrong needs no lock. A part is wrong if it waits for a job that does not go on, or for a moment that no
-- part waits for; astray, if it is held back although its job is not paused and will not be walked through again.
SELECT j.status, j.outcome, j.run, j.planned_parts, j.sealed_parts, j.open_stripes, j.stripes, j.walk_from,
    j.succeeded_parts, j.failed_parts, j.abandoned_parts, j.paused_at IS NOT NULL, j.give_up_at - fanin.clock(),
    CASE WHEN j.width IS NOT NULL THEN
        (SELECT count(*) FROM fanin.part_key AS k WHERE k.bucket = j.bucket AND k.job_id = j.id) END,
    EXISTS (SELECT 1 FROM fanin.outbox AS o
        WHERE o.bucket = j.bucket AND o.event_key = 'job/' || j.id || '/finished/' || j.run),
    f.stored, f.stripe, f.created, f.remaining, f.succeeded, f.failed, f.abandoned, f.spawned, f.sealed, f.closed,
    f.wrong, f.astray
FROM fanin.job AS j LEFT JOIN (
    SELECT true AS stored, s.stripe, s.created, s.remaining, s.succeeded, s.failed, s.abandoned, s.spawned, s.sealed,
        s.closed, 0 AS wrong, 0 AS astray
    FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = :job_id
    UNION ALL
    SELECT false, p.stripe, count(*), count(*) FILTER (WHERE p.status IN ('pending', 'running')),
        count(*) FILTER (WHERE p.status = 'succeeded'), count(*) FILTER (WHERE p.status = 'failed'),
        count(*) FILTER (WHERE p.status = 'abandoned'), count(p.spawned_by), false, false,
        count(*) FILTER (WHERE p.status IN ('pending', 'running') AND CASE
            WHEN p.waiting THEN p.due_at <> 253402300799 OR NOT EXISTS (SELECT 1 FROM fanin.job AS n --pg
            WHEN p.waiting THEN p.due_at <> 253402300799 OR NOT EXISTS (SELECT 1 FROM fanin.job AS n INDEXED BY fanin.job_waiter --lite
                WHERE n.bucket = p.bucket AND n.waiter_id = p.job_id AND n.waiter_idx = p.idx
                    AND n.status IN ('open', 'running'))
            WHEN p.due_at >= 1000000000000 THEN p.ready OR p.status = 'running'
            ELSE NOT p.ready AND p.due_at > fanin.clock() + 63072000 END),
        count(*) FILTER (WHERE p.status = 'pending' AND p.due_at >= 1000000000000
            AND h.paused_at IS NULL AND (h.walk_from IS NULL OR h.walk_from > p.idx))
    FROM fanin.part AS p JOIN fanin.job AS h ON h.bucket = p.bucket AND h.id = p.job_id
    WHERE p.bucket = :bucket AND p.job_id = :job_id GROUP BY p.stripe
) AS f ON true
WHERE j.bucket = :bucket AND j.id = :job_id
ORDER BY f.stored, f.stripe;

-- name: lock_stripes
-- Whoever counts a part passes through one of these rows.
SELECT stripe FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id ORDER BY stripe
FOR NO KEY UPDATE --pg
;

-- name: lock_job
-- And whoever ends, opens or pauses a job through this one.
SELECT run FROM fanin.job WHERE bucket = :bucket AND id = :job_id
FOR NO KEY UPDATE --pg
;

-- name: rewrite_stripe
-- A counter as its parts say, in the place of what was seen there.
UPDATE fanin.job_stripe SET created = :created, remaining = :remaining, succeeded = :succeeded, failed = :failed,
    abandoned = :abandoned, spawned = :spawned, sealed = :sealed, closed = :closed
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe
    AND created = :seen_created AND remaining = :seen_remaining AND succeeded = :seen_succeeded
    AND failed = :seen_failed AND abandoned = :seen_abandoned AND spawned = :seen_spawned
    AND sealed = :seen_sealed AND closed = :seen_closed
RETURNING stripe;

-- name: rewrite_job
-- What the job row says about its counters, in the state and run that were seen.
UPDATE fanin.job SET open_stripes = :open_stripes, walk_from = :walk_from, succeeded_parts = :succeeded_parts,
    failed_parts = :failed_parts, abandoned_parts = :abandoned_parts
WHERE bucket = :bucket AND id = :job_id AND status = :status AND run = :run AND open_stripes = :seen_open_stripes
RETURNING id;

-- name: lock_wrong
-- The next parts that are wrong, in key order. Whether they still are is asked again under the locks.
SELECT p.idx FROM fanin.part AS p
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx >= :first AND p.status IN ('pending', 'running') AND (CASE
    WHEN p.waiting THEN p.due_at <> 253402300799 OR NOT EXISTS (SELECT 1 FROM fanin.job AS n --pg
    WHEN p.waiting THEN p.due_at <> 253402300799 OR NOT EXISTS (SELECT 1 FROM fanin.job AS n INDEXED BY fanin.job_waiter --lite
        WHERE n.bucket = p.bucket AND n.waiter_id = p.job_id AND n.waiter_idx = p.idx
            AND n.status IN ('open', 'running'))
    WHEN p.due_at >= 1000000000000 THEN p.ready OR p.status = 'running'
    ELSE NOT p.ready AND p.due_at > fanin.clock() + 63072000 END)
ORDER BY p.idx LIMIT :limit
FOR NO KEY UPDATE OF p --pg
;

-- name: look_at_wrong
-- What those parts wait for, read after they were locked.
SELECT p.idx, p.status, p.ready, p.waiting, p.due_at, p.due_at > fanin.clock() + 63072000,
    EXISTS (SELECT 1 FROM fanin.job AS n --pg
    EXISTS (SELECT 1 FROM fanin.job AS n INDEXED BY fanin.job_waiter --lite
        WHERE n.bucket = p.bucket AND n.waiter_id = p.job_id AND n.waiter_idx = p.idx
            AND n.status IN ('open', 'running'))
FROM fanin.part AS p WHERE p.bucket = :bucket AND p.job_id = :job_id
    AND p.idx = ANY(:chosen::int[]) --pg
    AND p.idx IN (SELECT value FROM json_each(:chosen)) --lite
;

-- name: set_moment
-- What the part waits for: a moment, or NULL for now, so that it is woken as any other whose moment has come.
UPDATE fanin.part SET ready = :ready, due_at = coalesce(:due_at, fanin.clock())
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status = :status AND waiting = :waiting
RETURNING due_at;

-- name: told
-- Whether this very damage stands in the log already. It is read under the locks of all stripes.
SELECT 1 FROM fanin.repair
WHERE bucket = :bucket AND job_id = :job_id AND what = 'damaged' AND before = :before;

-- name: write_down
-- rows: what, which, before, after
-- In the transaction of the repair, so that there is no repair without its line.
INSERT INTO fanin.repair (bucket, job_id, id, what, which, run, at, before, after)
SELECT :bucket, j.id, :id, u.what, u.which, j.run, fanin.clock(), u.before, u.after
FROM fanin.job AS j CROSS JOIN unnest(:what::text[], :which::int[], :before::text[], :after::text[]) --pg
    AS u (what, which, before, after) WHERE true --pg
FROM fanin.job AS j CROSS JOIN (SELECT value->>0 AS what, value->>1 AS which, value->>2 AS before, value->>3 AS after --lite
    FROM json_each(:rows)) AS u WHERE true --lite
AND j.bucket = :bucket AND j.id = :job_id;
