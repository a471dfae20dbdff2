-- The centre: reports about parts are settled. Then they are counted (counting.sql), and the last one ends the job
-- (ending.sql).
-- Lock order, in every transaction of the three: parts by (job, idx); stripes by (job, stripe); jobs by id; inserts.
-- A batch goes through its jobs in ascending order once per class; a statement locks the rows of one job in index order.
--
-- A batch is found and locked row by row in the order of its list (the LATERAL cannot be planned otherwise), then
-- written by the rows' places. Any other form may be planned as a scan of all parts of a job, and was. A row that moved
-- since the statement began is not found by its place: then the whole transaction is run again.

-- name: settle_parts --pg
-- rows: job_id, idx, attempt, claim_id, verb, result, delay
-- One guarded write for all reports of a batch, sorted by (job, idx). Only the holder of a running part is heard.
WITH mine AS MATERIALIZED (
    SELECT held.ctid AS place, u.verb, u.result, u.delay
    FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[], :claim_id::uuid[], :verb::text[], :result::text[],
        :delay::double precision[]) AS u (job_id, idx, attempt, claim_id, verb, result, delay)
    CROSS JOIN LATERAL (
        SELECT p.ctid FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = u.job_id AND p.idx = u.idx
            AND p.status = 'running' AND p.attempt = u.attempt AND p.claim_id = u.claim_id AND NOT p.waiting
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.part AS p SET
    status = CASE WHEN m.verb = 'succeed' THEN 'succeeded'
        WHEN m.verb = 'fail' OR (m.verb = 'retry' AND p.attempt >= p.attempts_allowed) THEN 'failed'
        ELSE 'pending' END,
    ready = m.delay <= 0 AND (m.verb = 'release' OR (m.verb = 'retry' AND p.attempt < p.attempts_allowed)),
    attempts_allowed = p.attempts_allowed + CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = (SELECT fanin.clock()) + m.delay,
    result = m.result
FROM mine AS m
WHERE p.ctid = m.place AND p.status = 'running'
RETURNING p.job_id, p.idx, p.attempt, p.claim_id, p.stripe, p.status;

-- name: settle_parts --lite
-- rows: job_id, idx, attempt, claim_id, verb, result, delay
-- The same guarded write. The bucket comes with the list, so that each part is found by its whole key.
WITH mine AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt, value->>3 AS claim_id,
    value->>4 AS verb, value->>5 AS result, value->>6 AS delay FROM json_each(:rows)
)
UPDATE fanin.part AS p SET
    status = CASE WHEN m.verb = 'succeed' THEN 'succeeded'
        WHEN m.verb = 'fail' OR (m.verb = 'retry' AND p.attempt >= p.attempts_allowed) THEN 'failed'
        ELSE 'pending' END,
    ready = m.delay <= 0 AND (m.verb = 'release' OR (m.verb = 'retry' AND p.attempt < p.attempts_allowed)),
    attempts_allowed = p.attempts_allowed + CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = (SELECT fanin.clock()) + m.delay,
    result = m.result
FROM mine AS m
WHERE p.bucket = m.bucket AND p.job_id = m.job_id AND p.idx = m.idx
    AND p.status = 'running' AND p.attempt = m.attempt AND p.claim_id = m.claim_id AND NOT p.waiting
RETURNING p.job_id, p.idx, p.attempt, p.claim_id, p.stripe, p.status;

-- name: reap_parts --pg
-- rows: job_id, idx, attempt
-- Parts whose last allowed attempt ran out of its lease have failed, however their workers died. The guard repeats
-- what was seen: a holder that renewed or reported meanwhile wins.
WITH spent AS MATERIALIZED (
    SELECT held.ctid AS place
    FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[]) AS u (job_id, idx, attempt)
    CROSS JOIN LATERAL (
        SELECT p.ctid FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = u.job_id AND p.idx = u.idx AND p.status = 'running'
            AND p.attempt = u.attempt AND p.attempt >= p.attempts_allowed AND p.due_at <= fanin.clock()
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.part AS p SET status = 'failed', ready = false
FROM spent AS s
WHERE p.ctid = s.place AND p.status = 'running' AND p.attempt >= p.attempts_allowed AND p.due_at <= fanin.clock()
RETURNING p.job_id, p.idx, p.stripe, p.attempt, p.worker;

-- name: reap_parts --lite
-- rows: job_id, idx, attempt
-- The same guarded write.
WITH mine AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt FROM json_each(:rows)
)
UPDATE fanin.part AS p SET status = 'failed', ready = false
FROM mine AS m
WHERE p.bucket = m.bucket AND p.job_id = m.job_id AND p.idx = m.idx AND p.status = 'running'
    AND p.attempt = m.attempt AND p.attempt >= p.attempts_allowed AND p.due_at <= fanin.clock()
RETURNING p.job_id, p.idx, p.stripe, p.attempt, p.worker;

-- name: look_at_part
-- Why a report changed nothing: read in a statement of its own, after the write that found no row.
SELECT p.status, p.attempt, p.claim_id, p.result = :result, p.waiting
FROM fanin.part AS p WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx;

-- name: log_attempts
-- rows: job_id, idx, attempt, what, worker, holder, error
-- The history of attempts that did not simply succeed. It is for people; nothing is decided by it.
INSERT INTO fanin.attempt_log (bucket, job_id, idx, attempt, what, at, worker, holder, error)
SELECT :bucket, u.job_id, u.idx, u.attempt, u.what, fanin.clock(), u.worker, u.holder, u.error
FROM unnest(:job_id::uuid[], :idx::int[], :attempt::int[], :what::text[], :worker::text[], :holder::int[], --pg
    :error::text[]) AS u (job_id, idx, attempt, what, worker, holder, error) WHERE true --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS attempt, value->>3 AS what, value->>4 AS worker, --lite
    value->>5 AS holder, value->>6 AS error FROM json_each(:rows)) AS u WHERE true --lite
ON CONFLICT (bucket, job_id, idx, attempt, what) DO NOTHING;
