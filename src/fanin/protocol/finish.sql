-- The centre: reports about parts are settled, counted down, and the last one ends the job.
-- Lock order, in every transaction of this room: parts by (job, idx); stripes by (job, stripe); jobs by id; inserts.
-- A batch goes through its jobs in ascending order once per class; a statement locks the rows of one job in index order.
-- No write joins a list of keys: such a join may be planned as a scan of all parts. idx = ANY is an index condition.

-- name: settle_parts --pg
-- rows: idx, attempt, claim_id, verb, result, delay
-- One guarded write for all reports about one job, in the order of idx. Only the holder (attempt and claim id) of a
-- running part is heard. width_bucket finds the place of an idx in the sorted list.
UPDATE fanin.part AS p SET
    status = CASE WHEN (:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'succeed' THEN 'succeeded'
        WHEN (:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'fail'
            OR ((:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'retry' AND p.attempt >= p.attempts_allowed)
        THEN 'failed' ELSE 'pending' END,
    ready = (:delay::double precision[])[width_bucket(p.idx, :idx::int[])] <= 0
        AND ((:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'release'
            OR ((:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'retry' AND p.attempt < p.attempts_allowed)),
    attempts_allowed = p.attempts_allowed
        + CASE WHEN (:verb::text[])[width_bucket(p.idx, :idx::int[])] = 'release' THEN 1 ELSE 0 END,
    due_at = fanin.clock() + (:delay::double precision[])[width_bucket(p.idx, :idx::int[])],
    result = (:result::text[])[width_bucket(p.idx, :idx::int[])]
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = ANY(:idx::int[]) AND p.status = 'running'
    AND p.attempt = (:attempt::int[])[width_bucket(p.idx, :idx::int[])]
    AND p.claim_id = (:claim_id::uuid[])[width_bucket(p.idx, :idx::int[])]
RETURNING p.idx, p.stripe, p.status;

-- name: settle_parts --lite
-- rows: idx, attempt, claim_id, verb, result, delay
-- The same guarded write.
UPDATE fanin.part AS p SET
    status = CASE WHEN m.verb = 'succeed' THEN 'succeeded'
        WHEN m.verb = 'fail' OR (m.verb = 'retry' AND p.attempt >= p.attempts_allowed) THEN 'failed'
        ELSE 'pending' END,
    ready = m.delay <= 0 AND (m.verb = 'release' OR (m.verb = 'retry' AND p.attempt < p.attempts_allowed)),
    attempts_allowed = p.attempts_allowed + CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = fanin.clock() + m.delay,
    result = m.result
FROM (SELECT value->>0 AS idx, value->>1 AS attempt, value->>2 AS claim_id, value->>3 AS verb, value->>4 AS result,
    value->>5 AS delay FROM json_each(:rows)) AS m
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = m.idx
    AND p.status = 'running' AND p.attempt = m.attempt AND p.claim_id = m.claim_id
RETURNING p.idx, p.stripe, p.status;

-- name: reap_parts
-- rows: idx, attempt
-- Parts whose last allowed attempt ran out of its lease have failed, however their workers died. The guard repeats
-- what was seen: a holder that renewed or reported meanwhile wins.
UPDATE fanin.part AS p SET status = 'failed', ready = false
FROM (SELECT value->>0 AS idx, value->>1 AS attempt FROM json_each(:rows)) AS m --lite
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.status = 'running'
    AND p.idx = ANY(:idx::int[]) AND p.attempt = (:attempt::int[])[width_bucket(p.idx, :idx::int[])] --pg
    AND p.idx = m.idx AND p.attempt = m.attempt --lite
    AND p.attempt >= p.attempts_allowed AND p.due_at <= fanin.clock()
RETURNING p.idx, p.stripe, p.attempt, p.worker;

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
-- The stripe is the fence: a closed one matches no row, and the whole batch is rolled back.
UPDATE fanin.job_stripe SET remaining = remaining - :succeeded - :failed, succeeded = succeeded + :succeeded,
    failed = failed + :failed
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed
RETURNING remaining, sealed, judged;

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
RETURNING run, events, successor, root_id, depth, key, task;

-- name: announce
-- No ON CONFLICT: a second end of the same run is a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at)
VALUES (:bucket, :event_key, :job_id, :seq, 'job.finished', :payload, fanin.clock());

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
