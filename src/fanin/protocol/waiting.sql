-- A part that waits for a nested job is settled by the end of that job, in the same transaction.
-- Lock order: this transaction holds the nested job and nothing else. Then the stripe of the waiting part (all stripes,
-- where the policy of its job judges), then the part, then the job above. Nobody who holds a waiting part waits for its
-- stripe: no worker holds it, the sweeper skips it, and a redrive finds it ended.

-- name: waiting_part
-- Where the waiting part is counted. Its stripe never changes.
SELECT p.stripe, s.judged FROM fanin.part AS p
JOIN fanin.job_stripe AS s ON s.bucket = p.bucket AND s.job_id = p.job_id AND s.stripe = p.stripe
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx AND p.waiting;

-- name: lock_open_stripe
-- A closed one matches no row: the job above has ended, and its part is left to the sweeper.
SELECT stripe FROM fanin.job_stripe
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed
FOR NO KEY UPDATE --pg
;

-- name: settle_waiting
-- The part gets its end. Its nested job has ended, so nothing is left behind of which it would have to know.
UPDATE fanin.part SET status = :status, result = :result, waiting = false, nested_id = NULL, due_at = fanin.clock()
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status = 'running' AND waiting
RETURNING attempt;

-- name: log_failed
-- For people: why the part failed.
INSERT INTO fanin.attempt_log (bucket, job_id, idx, attempt, what, at, error)
VALUES (:bucket, :job_id, :idx, :attempt, 'failed', fanin.clock(), :error)
ON CONFLICT (bucket, job_id, idx, attempt, what) DO NOTHING;
