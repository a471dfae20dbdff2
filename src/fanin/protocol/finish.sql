-- The centre: reports about parts are settled, counted down, and the last one ends the job.
-- Lock order, in every transaction of this room: parts by (job, idx); stripes by (job, stripe); jobs by id; inserts.
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
            AND p.status = 'running' AND p.attempt = u.attempt AND p.claim_id = u.claim_id
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.part AS p SET
    status = CASE WHEN m.verb = 'succeed' THEN 'succeeded'
        WHEN m.verb = 'fail' OR (m.verb = 'retry' AND p.attempt >= p.attempts_allowed) THEN 'failed'
        ELSE 'pending' END,
    ready = m.delay <= 0 AND (m.verb = 'release' OR (m.verb = 'retry' AND p.attempt < p.attempts_allowed)),
    attempts_allowed = p.attempts_allowed + CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = fanin.clock() + m.delay,
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
    due_at = fanin.clock() + m.delay,
    result = m.result
FROM mine AS m
WHERE p.bucket = m.bucket AND p.job_id = m.job_id AND p.idx = m.idx
    AND p.status = 'running' AND p.attempt = m.attempt AND p.claim_id = m.claim_id
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
SELECT p.status, p.attempt, p.claim_id, p.result = :result
FROM fanin.part AS p WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx;

-- name: policy
-- The join policy of a job. It never changes, so no lock is needed.
SELECT policy FROM fanin.job WHERE bucket = :bucket AND id = :job_id;

-- name: lock_stripes
-- A transaction that may close a job locks all of its stripes, ascending, before it writes one of them.
SELECT s.stripe FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = :job_id ORDER BY s.stripe
FOR NO KEY UPDATE OF s --pg
;

-- name: count_down
-- The stripe is the fence: a closed one matches no row, and the whole batch is rolled back. A stripe of a job whose
-- successes are judged (a quorum) is written under the locks of all: two transactions that together make the quorum
-- would else not see each other, and a count that is judged could still grow.
UPDATE fanin.job_stripe SET remaining = remaining - :succeeded - :failed, succeeded = succeeded + :succeeded,
    failed = failed + :failed
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed AND (:locked OR NOT judged)
RETURNING remaining, sealed;

-- name: judged
-- Whether the successes of a job are judged. It never changes, so no lock is needed.
SELECT judged FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe;

-- name: count_stripes
-- The second level: of the job's stripes, so many have just become empty. Who takes it to zero ends the job.
UPDATE fanin.job SET open_stripes = open_stripes - :emptied
WHERE bucket = :bucket AND id = :job_id AND status = 'running' AND open_stripes >= :emptied
RETURNING open_stripes;

-- name: sums
-- The totals of a job whose stripes this transaction holds or has emptied: nobody else can change them now.
SELECT sum(s.created), sum(s.remaining), sum(s.succeeded), sum(s.failed), min(CASE WHEN s.sealed THEN 1 ELSE 0 END)
FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = :job_id;

-- name: close_stripes
-- After this no commit, failure, append or seal of the run is accepted. The parts are left to the sweeper. All
-- stripes are locked by an earlier statement.
UPDATE fanin.job_stripe SET closed = true WHERE bucket = :bucket AND job_id = :job_id AND NOT closed
RETURNING stripe;

-- name: end_job
-- The one transition out of open or running.
UPDATE fanin.job SET status = :status, outcome = :outcome, reason = :reason, open_stripes = 0,
    succeeded_parts = :succeeded, failed_parts = :failed, abandoned_parts = :abandoned,
    finished_at = fanin.clock(), events = events + 1
WHERE bucket = :bucket AND id = :job_id AND status IN ('open', 'running')
RETURNING run, events, successor, root_id, depth, key, task, listeners;

-- name: announce
-- No ON CONFLICT: a second end of the same run is a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at)
VALUES (:bucket, :event_key, :job_id, :seq, 'job.finished', :payload, fanin.clock(), fanin.clock());

-- name: create_successor
-- No ON CONFLICT: two successors of one run are a bug and must abort.
INSERT INTO fanin.job (bucket, id, task, queue, status, planned_parts, sealed_parts, open_stripes, stripes, turn,
    priority, attempts, policy, parent_id, root_id, step, depth, created_at)
VALUES (:bucket, :id, :task, :queue, 'running', 1, 1, 1, 1, 0, :priority, :attempts, '{}', :parent_id, :root_id, :step,
    :depth, fanin.clock());

-- name: refuse_successor
-- A successor that would stand too deep is born refused, visible and with its event; its parent's finish never fails.
INSERT INTO fanin.job (bucket, id, task, queue, status, outcome, reason, planned_parts, sealed_parts, open_stripes,
    stripes, turn, priority, attempts, policy, parent_id, root_id, step, depth, created_at, finished_at,
    succeeded_parts, failed_parts, abandoned_parts, events)
VALUES (:bucket, :id, :task, :queue, 'failed', 'refused', :reason, 0, 0, 0, 1, 0, :priority, :attempts, '{}',
    :parent_id, :root_id, :step, :depth, fanin.clock(), fanin.clock(), 0, 0, 0, 1);

-- name: create_successor_stripe
-- The counter of the successor's one part.
INSERT INTO fanin.job_stripe
    (bucket, job_id, stripe, created, remaining, succeeded, failed, abandoned, sealed, closed, judged)
VALUES (:bucket, :id, 0, 1, 1, 0, 0, 0, true, false, false);

-- name: create_successor_part
-- The part. Turn 0 and a raised priority: a successor never waits behind the parts of a giant neighbour.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
VALUES (:bucket, :id, 0, 0, 'pending', true, :queue, :task, :priority, 0, 0, :attempts, fanin.clock(), :payload);

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

-- name: ring
-- The doorbell of a queue. A hint only: a worker that misses it finds the parts by looking.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
