-- A part that waits for a nested job is settled by the end of that job, in the same transaction.
-- Lock order: this transaction holds the nested job, and jobs that stand before it. Then the waiting part, its stripe (all
-- stripes, where the policy of its job judges), and the job above. Nobody waits for a part while he holds a stripe or a
-- job, this transaction neither: a part that is locked by somebody else means that all of it is said again.

-- name: take_waiting
-- Where the waiting part is counted. From here on nobody else ends it.
SELECT p.stripe, s.judged FROM fanin.part AS p
JOIN fanin.job_stripe AS s ON s.bucket = p.bucket AND s.job_id = p.job_id AND s.stripe = p.stripe
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx AND p.waiting
FOR NO KEY UPDATE OF p NOWAIT --pg
;

-- name: lock_open_stripe
-- A closed one matches no row: the job above has ended, and counts nothing any more.
SELECT stripe FROM fanin.job_stripe
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed
FOR NO KEY UPDATE --pg
;

-- name: settle_waiting
-- The part gets its end. Its nested job has ended, so nothing is left behind of which it would have to know.
UPDATE fanin.part SET status = :status, result = :result, waiting = false, nested_id = NULL, due_at = fanin.clock()
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status = 'running' AND waiting
RETURNING attempt;

-- name: let_go
-- The part of a closed job waits for nothing any more. The sweeper abandons it; if a redrive is faster, it is run again,
-- and finds its nested job.
UPDATE fanin.part SET status = 'pending', ready = true, waiting = false, attempts_allowed = attempts_allowed + 1,
    due_at = fanin.clock()
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status = 'running' AND waiting
RETURNING idx;

-- name: log_failed
-- For people: why the part failed.
INSERT INTO fanin.attempt_log (bucket, job_id, idx, attempt, what, at, error)
VALUES (:bucket, :job_id, :idx, :attempt, 'failed', fanin.clock(), :error)
ON CONFLICT (bucket, job_id, idx, attempt, what) DO NOTHING;
