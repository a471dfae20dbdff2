-- Parts that have ended are counted down: their stripe, then the job's open stripes. Who takes the last one ends the job.
-- Lock order: stripes by (job, stripe); jobs by id.

-- name: policy
-- The join policy of a job, whether its failures have events, and the most parts that it may come to have if it grows. None
-- of it changes, so no lock is needed.
SELECT policy, failure_events, width FROM fanin.job WHERE bucket = :bucket AND id = :job_id;

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

-- name: number_failures
-- The next places in the order of the job's events. Asked in the order of the jobs, like the count above. The counter
-- that this transaction has written is the fence: until it commits the run cannot end without it.
UPDATE fanin.job SET events = events + :many WHERE bucket = :bucket AND id = :job_id
RETURNING events, run, key, task;

-- name: announce_failures
-- rows: event_key, job_id, seq, payload
-- No ON CONFLICT: a part that fails twice in a run is a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at)
SELECT :bucket, u.event_key, u.job_id, u.seq, 'part.failed', u.payload, fanin.clock(), fanin.clock()
FROM unnest(:event_key::text[], :job_id::uuid[], :seq::int[], :payload::text[]) AS u (event_key, job_id, seq, payload); --pg
FROM (SELECT value->>0 AS event_key, value->>1 AS job_id, value->>2 AS seq, value->>3 AS payload --lite
    FROM json_each(:rows)) AS u; --lite

-- name: sums
-- The totals of a job whose stripes this transaction holds or has emptied: nobody else can change them now.
SELECT sum(s.created), sum(s.remaining), sum(s.succeeded), sum(s.failed), min(CASE WHEN s.sealed THEN 1 ELSE 0 END)
FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = :job_id;

-- name: close_stripes
-- After this no commit, failure, append or seal of the run is accepted. The parts are left to the sweeper. All
-- stripes are locked by an earlier statement.
UPDATE fanin.job_stripe SET closed = true WHERE bucket = :bucket AND job_id = :job_id AND NOT closed
RETURNING stripe;
