-- The right to run a part: claimed, renewed, and taken over when it runs out.
-- Lock order: parts by (job, idx) where a statement waits; SKIP LOCKED where it must not.

-- name: any_ready
-- A look before the claim, so that an idle worker never takes a write lock.
SELECT EXISTS (SELECT 1 FROM fanin.part WHERE bucket = :bucket AND queue = :queue AND ready);

-- name: claim_parts --pg
-- The next parts of a queue, in the order of priority and turn. The CTE is materialised and locks what it takes: any
-- other form may claim more than the limit. SKIP LOCKED only saves waiting; the fence decides. The rows are found again
-- by their place on disk: one that moved since the snapshot is left for the next claim.
WITH next AS MATERIALIZED (
    SELECT ctid FROM fanin.part
    WHERE bucket = :bucket AND queue = :queue AND ready AND task = ANY(:tasks::text[])
    ORDER BY priority DESC, turn, job_id, idx
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fanin.part AS p SET status = 'running', ready = false, attempt = p.attempt + 1, claim_id = :claim_id,
    worker = :worker,
    due_at = fanin.clock() + (:leases::double precision[])[array_position(:tasks::text[], p.task)]
WHERE p.bucket = :bucket AND p.ctid = ANY(ARRAY(SELECT ctid FROM next)) AND p.ready AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.task, p.attempt, p.attempts_allowed, p.payload, p.checkpoint;

-- name: claim_parts --lite
-- The next parts of a queue, in the order of priority and turn.
WITH next AS MATERIALIZED (
    SELECT job_id, idx FROM fanin.part INDEXED BY fanin.part_ready
    WHERE bucket = :bucket AND queue = :queue AND ready AND task IN (SELECT value FROM json_each(:tasks))
    ORDER BY priority DESC, turn, job_id, idx
    LIMIT :limit
)
UPDATE fanin.part AS p SET status = 'running', ready = false, attempt = p.attempt + 1, claim_id = :claim_id,
    worker = :worker,
    due_at = fanin.clock() + (SELECT l.value FROM json_each(:leases) l JOIN json_each(:tasks) t USING (key)
        WHERE t.value = p.task)
FROM next AS n
WHERE p.bucket = :bucket AND p.job_id = n.job_id AND p.idx = n.idx AND p.attempt < p.attempts_allowed
RETURNING p.job_id, p.idx, p.task, p.attempt, p.attempts_allowed, p.payload, p.checkpoint;

-- name: renew_parts
-- rows: idx, attempt, claim_id, lease
-- The heartbeat, for the parts of one job in the order of idx. It changes no row for an attempt that does not hold its
-- part, and that stops the work. A part that was made ready because its lease had run out is held again, if nobody
-- has claimed it.
UPDATE fanin.part AS p SET ready = false,
    due_at = fanin.clock() + (:lease::double precision[])[width_bucket(p.idx, :idx::int[])] --pg
    due_at = fanin.clock() + m.lease FROM (SELECT value->>0 AS idx, value->>1 AS attempt, value->>2 AS claim_id, --lite
    value->>3 AS lease FROM json_each(:rows)) AS m --lite
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.status = 'running'
    AND p.idx = ANY(:idx::int[]) AND (p.attempt, p.claim_id) = --pg
    ((:attempt::int[])[width_bucket(p.idx, :idx::int[])], (:claim_id::uuid[])[width_bucket(p.idx, :idx::int[])]) --pg
    AND p.idx = m.idx AND p.attempt = m.attempt AND p.claim_id = m.claim_id --lite
RETURNING p.idx;

-- name: save_checkpoint
-- A checkpoint is a renewal that leaves something behind for the next attempt.
UPDATE fanin.part SET checkpoint = :checkpoint, checkpoint_attempt = attempt, due_at = fanin.clock() + :lease,
    ready = false
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
    AND status = 'running' AND attempt = :attempt AND claim_id = :claim_id
RETURNING idx;

-- name: wake_parts
-- Parts whose moment has come: a delayed one may be claimed, a running one has lost its lease and may be claimed too.
-- Its holder may still report, until somebody else has claimed it. Parts without an allowance are left to the reaper.
WITH due AS MATERIALIZED (
    SELECT ctid FROM fanin.part --pg
    SELECT job_id, idx FROM fanin.part --lite
    WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready AND due_at <= fanin.clock()
        AND attempt < attempts_allowed
    ORDER BY due_at
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED --pg
)
UPDATE fanin.part AS p SET ready = true
WHERE p.bucket = :bucket AND p.ctid = ANY(ARRAY(SELECT ctid FROM due)) --pg
FROM due AS d WHERE p.bucket = :bucket AND p.job_id = d.job_id AND p.idx = d.idx --lite
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

-- name: next_due
-- When the next delayed part or lease comes due, in seconds from now. An idle worker sleeps no longer than that.
SELECT min(due_at) - fanin.clock() FROM fanin.part
WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready;

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
