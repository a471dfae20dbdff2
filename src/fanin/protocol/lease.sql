-- The right to run a part: claimed, renewed, and taken over when it runs out.
-- Lock order: parts by (job, idx) where a statement waits; SKIP LOCKED where it must not.

-- name: any_ready
-- A look before the claim, so that an idle worker never takes a write lock. The order is that of the index of ready
-- parts: without it the parts that have ended may be searched too, all of them, at every look.
SELECT 1 FROM fanin.part --pg
SELECT 1 FROM fanin.part INDEXED BY fanin.part_ready --lite
WHERE bucket = :bucket AND queue = :queue AND ready AND job_id NOT IN (
    SELECT j.id FROM fanin.job AS j --pg
    SELECT j.id FROM fanin.job AS j INDEXED BY fanin.job_paused --lite
    WHERE j.bucket = :bucket AND j.paused_at IS NOT NULL)
ORDER BY priority DESC, turn, job_id, idx LIMIT 1;

-- name: claim_parts --pg
-- The next parts of a queue, in the order of priority and turn. The CTE is materialised and locks what it takes: any
-- other form may claim more than the limit. SKIP LOCKED only saves waiting; the fence decides. The rows are found again
-- by their place on disk: one that moved since the snapshot is left for the next claim. Parts of a closed job are not
-- handed out; the index of unswept stripes that says so is empty as a rule. Nor are those of a paused job, or of one whose
-- deadline has passed and that nobody has given up yet, or that of its flow, nor does one start that is too old for it; these
-- four indexes are read once in a claim, up to now, and there is nothing in them as a rule. The items of a split job are parts
-- of the jobs of its batches. What a flow runs are the jobs of its steps, and those with which their parts end.
WITH next AS MATERIALIZED (
    SELECT ctid AS place FROM fanin.part AS p
    WHERE bucket = :bucket AND queue = :queue AND ready AND task = ANY(:tasks::text[]) AND NOT EXISTS (
        SELECT 1 FROM fanin.job_stripe AS s
        WHERE s.bucket = :bucket AND s.job_id = p.job_id AND s.closed AND s.remaining > 0)
        AND job_id NOT IN (SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket AND j.paused_at IS NOT NULL)
        AND job_id NOT IN (SELECT u.id FROM fanin.job AS j
            CROSS JOIN LATERAL (SELECT j.id UNION ALL
                SELECT n.id FROM fanin.job AS n
                WHERE n.bucket = :bucket AND n.waiter_id = j.id AND j.batch IS NOT NULL) AS u
            WHERE j.bucket = :bucket AND j.status IN ('open', 'running') AND j.give_up_at <= fanin.clock()
            ORDER BY j.give_up_at)
        AND job_id NOT IN (SELECT u.id FROM fanin.flow AS f
            CROSS JOIN LATERAL (SELECT t.job_id FROM fanin.flow_step AS t
                WHERE t.bucket = :bucket AND t.flow_id = f.id AND t.status = 'running' OFFSET 0) AS s
            CROSS JOIN LATERAL (SELECT s.job_id AS id UNION ALL
                SELECT n.id FROM fanin.job AS n WHERE n.bucket = :bucket AND n.waiter_id = s.job_id) AS u
            WHERE f.bucket = :bucket AND f.status = 'running' AND f.give_up_at <= fanin.clock()
            ORDER BY f.give_up_at)
        AND NOT (p.attempt = 0 AND p.job_id IN (SELECT j.id FROM fanin.job AS j
            WHERE j.bucket = :bucket AND j.stale_at <= fanin.clock() ORDER BY j.stale_at))
    ORDER BY priority DESC, turn, job_id, idx
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fanin.part AS p SET status = 'running', ready = false, attempt = p.attempt + 1, claim_id = :claim_id,
    worker = :worker,
    due_at = (SELECT fanin.clock()) + (:leases::double precision[])[array_position(:tasks::text[], p.task)]
FROM next AS n
WHERE p.ctid = n.place AND p.ready AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.task, p.attempt, p.attempts_allowed, p.payload, p.checkpoint, p.stripe;

-- name: claim_parts --lite
-- The next parts of a queue, in the order of priority and turn.
WITH next AS MATERIALIZED (
    SELECT bucket, job_id, idx FROM fanin.part AS p INDEXED BY fanin.part_ready
    WHERE bucket = :bucket AND queue = :queue AND ready AND task IN (SELECT value FROM json_each(:tasks))
        AND NOT EXISTS (SELECT 1 FROM fanin.job_stripe AS s INDEXED BY fanin.job_stripe_unswept
            WHERE s.bucket = :bucket AND s.job_id = p.job_id AND s.closed AND s.remaining > 0)
        AND job_id NOT IN (SELECT j.id FROM fanin.job AS j INDEXED BY fanin.job_paused
            WHERE j.bucket = :bucket AND j.paused_at IS NOT NULL)
        AND job_id NOT IN (SELECT j.id FROM fanin.job AS j INDEXED BY fanin.job_give_up WHERE j.bucket = :bucket
            AND j.status IN ('open', 'running') AND j.give_up_at <= fanin.clock())
        AND job_id NOT IN (SELECT n.id FROM fanin.job AS j INDEXED BY fanin.job_give_up
            CROSS JOIN fanin.job AS n INDEXED BY fanin.job_waiter ON n.bucket = :bucket AND n.waiter_id = j.id
            WHERE j.bucket = :bucket AND j.status IN ('open', 'running') AND j.give_up_at <= fanin.clock()
                AND j.batch IS NOT NULL)
        AND job_id NOT IN (SELECT s.job_id FROM fanin.flow AS f INDEXED BY fanin.flow_give_up
            CROSS JOIN fanin.flow_step AS s ON s.bucket = :bucket AND s.flow_id = f.id AND s.status = 'running'
            WHERE f.bucket = :bucket AND f.status = 'running' AND f.give_up_at <= fanin.clock())
        AND job_id NOT IN (SELECT n.id FROM fanin.flow AS f INDEXED BY fanin.flow_give_up
            CROSS JOIN fanin.flow_step AS s ON s.bucket = :bucket AND s.flow_id = f.id AND s.status = 'running'
            CROSS JOIN fanin.job AS n INDEXED BY fanin.job_waiter ON n.bucket = :bucket AND n.waiter_id = s.job_id
            WHERE f.bucket = :bucket AND f.status = 'running' AND f.give_up_at <= fanin.clock())
        AND NOT (p.attempt = 0 AND p.job_id IN (SELECT j.id FROM fanin.job AS j INDEXED BY fanin.job_stale
            WHERE j.bucket = :bucket AND j.stale_at IS NOT NULL AND j.stale_at <= fanin.clock()))
    ORDER BY priority DESC, turn, job_id, idx
    LIMIT :limit
)
UPDATE fanin.part AS p SET status = 'running', ready = false, attempt = p.attempt + 1, claim_id = :claim_id,
    worker = :worker,
    due_at = (SELECT fanin.clock()) + (SELECT l.value FROM json_each(:leases) l JOIN json_each(:tasks) t USING (key)
        WHERE t.value = p.task)
FROM next AS n
WHERE p.bucket = n.bucket AND p.job_id = n.job_id AND p.idx = n.idx AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.task, p.attempt, p.attempts_allowed, p.payload, p.checkpoint, p.stripe;

-- name: lost_before
-- rows: job_id, idx, attempt
-- Which of these parts lost a lease in this or an earlier attempt. Asked for parts on their last attempt only.
SELECT DISTINCT l.job_id, l.idx
FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[]) AS u (job_id, idx, attempt) --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt FROM json_each(:rows)) AS u --lite
JOIN fanin.attempt_log AS l ON l.bucket = :bucket AND l.job_id = u.job_id AND l.idx = u.idx AND l.attempt <= u.attempt
    AND l.what = 'lease_lost';

-- name: renew_parts --pg
-- rows: job_id, idx, attempt, claim_id, lease
-- The heartbeat, sorted by (job, idx). It changes no row for an attempt that does not hold its part, and that stops the
-- work. A part made ready because its lease had run out is held again, if nobody has claimed it. One that has begun to
-- wait for a nested job has no lease any more.
WITH mine AS MATERIALIZED (
    SELECT held.ctid AS place, u.lease
    FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[], :claim_id::uuid[], :lease::double precision[])
        AS u (job_id, idx, attempt, claim_id, lease)
    CROSS JOIN LATERAL (
        SELECT p.ctid FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = u.job_id AND p.idx = u.idx
            AND p.status = 'running' AND p.attempt = u.attempt AND p.claim_id = u.claim_id
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.part AS p SET ready = false,
    due_at = CASE WHEN p.waiting THEN p.due_at ELSE (SELECT fanin.clock()) + m.lease END
FROM mine AS m
WHERE p.ctid = m.place AND p.status = 'running'
RETURNING p.job_id, p.idx, p.attempt, p.claim_id;

-- name: renew_parts --lite
-- rows: job_id, idx, attempt, claim_id, lease
-- The same guarded write.
WITH mine AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt, value->>3 AS claim_id,
    value->>4 AS lease FROM json_each(:rows)
)
UPDATE fanin.part AS p SET ready = false,
    due_at = CASE WHEN p.waiting THEN p.due_at ELSE (SELECT fanin.clock()) + m.lease END
FROM mine AS m
WHERE p.bucket = m.bucket AND p.job_id = m.job_id AND p.idx = m.idx
    AND p.status = 'running' AND p.attempt = m.attempt AND p.claim_id = m.claim_id
RETURNING p.job_id, p.idx, p.attempt, p.claim_id;

-- name: still_held
-- Whether a claim that was not renewed is really lost: its row may only have moved while the renewal was under way.
SELECT 1 FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
    AND status = 'running' AND attempt = :attempt AND claim_id = :claim_id;

-- name: log_stopped
-- rows: job_id, idx, attempt, claim_id
-- Work that has to stop because its part is somebody else's, or its job was closed: with the attempt that holds it now.
-- An own report that was faster than the heartbeat has stopped nothing.
INSERT INTO fanin.attempt_log (bucket, job_id, idx, attempt, what, at, worker, holder)
SELECT :bucket, u.job_id, u.idx, u.attempt, 'stopped', fanin.clock(), :worker, p.attempt
FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[], :claim_id::uuid[]) --pg
    AS u (job_id, idx, attempt, claim_id) --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt, value->>3 AS claim_id --lite
    FROM json_each(:rows)) AS u --lite
JOIN fanin.part AS p ON p.bucket = :bucket AND p.job_id = u.job_id AND p.idx = u.idx
WHERE p.claim_id <> u.claim_id OR p.status = 'abandoned'
ON CONFLICT (bucket, job_id, idx, attempt, what) DO NOTHING;

-- name: save_checkpoint
-- A checkpoint is a renewal that leaves something behind for the next attempt.
UPDATE fanin.part SET checkpoint = :checkpoint, checkpoint_attempt = attempt, due_at = fanin.clock() + :lease,
    ready = false
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
    AND status = 'running' AND attempt = :attempt AND claim_id = :claim_id AND NOT waiting
RETURNING idx;

-- name: wake_parts --pg
-- Parts whose moment has come: a delayed one may be claimed, a running one has lost its lease and may be claimed too.
-- Its holder may still report, until somebody else has claimed it. Parts without an allowance are left to the reaper.
WITH due AS MATERIALIZED (
    SELECT ctid AS place FROM fanin.part
    WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready AND due_at <= fanin.clock()
        AND attempt < attempts_allowed
    ORDER BY due_at
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fanin.part AS p SET ready = true
FROM due AS d
WHERE p.ctid = d.place AND p.status IN ('pending', 'running') AND NOT p.ready AND p.due_at <= fanin.clock()
    AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.attempt, p.status, p.worker, p.queue;

-- name: wake_parts --lite
-- The same guarded write.
WITH due AS MATERIALIZED (
    SELECT bucket, job_id, idx FROM fanin.part
    WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready AND due_at <= fanin.clock()
        AND attempt < attempts_allowed
    ORDER BY due_at
    LIMIT :limit
)
UPDATE fanin.part AS p SET ready = true
FROM due AS d
WHERE p.bucket = d.bucket AND p.job_id = d.job_id AND p.idx = d.idx
    AND p.status IN ('pending', 'running') AND NOT p.ready AND p.due_at <= fanin.clock()
    AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.attempt, p.status, p.worker, p.queue;

-- name: spent_parts
-- Running parts whose last allowed attempt has run out of its lease: what the reaper will look at, each under a guard.
SELECT job_id, idx, attempt FROM fanin.part
WHERE bucket = :bucket AND status = 'running' AND status IN ('pending', 'running') AND NOT ready
    AND due_at <= fanin.clock() AND attempt >= attempts_allowed
ORDER BY due_at
LIMIT :limit;

-- name: look --pg
-- One cheap look at everything that waits for a moment: seconds to the next due part, the next deadline, the next
-- event about a job's progress and the next job that is too old to start, whether
-- a closed stripe is unswept, a nested job left behind, or a flow to be ended, and whether parts are still to be held
-- back or let go. An idle worker asks nothing else.
SELECT
    (SELECT min(due_at) - fanin.clock() FROM fanin.part
        WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready),
    (SELECT min(give_up_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND status IN ('open', 'running') AND give_up_at IS NOT NULL),
    (SELECT min(give_up_at) - fanin.clock() FROM fanin.flow
        WHERE bucket = :bucket AND status = 'running' AND give_up_at IS NOT NULL),
    (SELECT min(progress_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND progress_at IS NOT NULL),
    (SELECT min(stale_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND stale_at IS NOT NULL),
    EXISTS (SELECT 1 FROM fanin.flow WHERE bucket = :bucket AND status = 'ending'),
    EXISTS (SELECT 1 FROM fanin.job_stripe
        WHERE bucket = :bucket AND closed AND remaining > 0),
    EXISTS (SELECT 1 FROM fanin.part
        WHERE bucket = :bucket AND nested_id IS NOT NULL AND status IN ('succeeded', 'failed', 'abandoned')),
    EXISTS (SELECT 1 FROM fanin.job WHERE bucket = :bucket AND walk_from IS NOT NULL);

-- name: look --lite
-- The same look.
SELECT
    (SELECT min(due_at) - fanin.clock() FROM fanin.part
        WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready),
    (SELECT min(give_up_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND status IN ('open', 'running') AND give_up_at IS NOT NULL),
    (SELECT min(give_up_at) - fanin.clock() FROM fanin.flow
        WHERE bucket = :bucket AND status = 'running' AND give_up_at IS NOT NULL),
    (SELECT min(progress_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND progress_at IS NOT NULL),
    (SELECT min(stale_at) - fanin.clock() FROM fanin.job
        WHERE bucket = :bucket AND stale_at IS NOT NULL),
    EXISTS (SELECT 1 FROM fanin.flow WHERE bucket = :bucket AND status = 'ending'),
    EXISTS (SELECT 1 FROM fanin.job_stripe INDEXED BY fanin.job_stripe_unswept
        WHERE bucket = :bucket AND closed AND remaining > 0),
    EXISTS (SELECT 1 FROM fanin.part INDEXED BY fanin.part_orphaning
        WHERE bucket = :bucket AND nested_id IS NOT NULL AND status IN ('succeeded', 'failed', 'abandoned')),
    EXISTS (SELECT 1 FROM fanin.job INDEXED BY fanin.job_walk WHERE bucket = :bucket AND walk_from IS NOT NULL);

-- name: log_lost
-- rows: job_id, idx, attempt, worker
-- A lease that ran out, for people.
INSERT INTO fanin.attempt_log (bucket, job_id, idx, attempt, what, at, worker)
SELECT :bucket, u.job_id, u.idx, u.attempt, 'lease_lost', fanin.clock(), u.worker
FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[], :worker::text[]) --pg
    AS u (job_id, idx, attempt, worker) WHERE true --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt, value->>3 AS worker --lite
    FROM json_each(:rows)) AS u WHERE true --lite
ON CONFLICT (bucket, job_id, idx, attempt, what) DO NOTHING;
