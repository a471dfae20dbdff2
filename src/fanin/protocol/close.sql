-- End a run early: cancel, finish, or give up at the deadline. And the sweep of what a closed job leaves behind.
-- Lock order: all stripes ascending, then the job; inserts last. Parts are not touched: locking them here deadlocks
-- with workers that hold a part and wait for its stripe. Only of a job that is too old to start the one part is locked,
-- before its stripe.

-- name: lock_all_stripes
-- Whoever holds these rows decides the end of the run; every commit of a part passes through one of them.
SELECT stripe FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id ORDER BY stripe
FOR NO KEY UPDATE --pg
;

-- name: standing
-- The job under the locks of its stripes, read in a later statement than they were taken.
SELECT status, policy, give_up_at <= fanin.clock() FROM fanin.job WHERE bucket = :bucket AND id = :job_id
FOR NO KEY UPDATE --pg
;

-- name: overdue_jobs
-- Jobs whose deadline has passed. Each is closed in a transaction of its own, under its guard.
SELECT id FROM fanin.job
WHERE bucket = :bucket AND status IN ('open', 'running') AND give_up_at IS NOT NULL AND give_up_at <= fanin.clock()
ORDER BY give_up_at LIMIT :limit;

-- name: stale_jobs
-- Jobs that were to start before now. Each is asked about once, in a transaction of its own: afterwards it has ended, or
-- has started.
SELECT id FROM fanin.job
WHERE bucket = :bucket AND stale_at IS NOT NULL AND stale_at <= fanin.clock()
ORDER BY stale_at LIMIT :limit;

-- name: start_in_time
-- Its part has been claimed before it was too old, so its age says nothing any more. An attempt never falls.
UPDATE fanin.job SET stale_at = NULL
WHERE bucket = :bucket AND id = :job_id AND EXISTS (
    SELECT 1 FROM fanin.part AS p WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = 0 AND p.attempt > 0)
RETURNING id;

-- name: lock_unstarted
-- The one part of such a job, if nobody has ever claimed it. Who is claiming it now is waited for, and has started it.
SELECT idx FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = 0 AND attempt = 0
FOR NO KEY UPDATE --pg
;

-- name: stale
-- What is to become of it, under the locks of its part and its stripe. One that has ended has no age.
SELECT stale FROM fanin.job WHERE bucket = :bucket AND id = :job_id AND stale_at <= fanin.clock();

-- name: unswept
-- Stripes of closed jobs that still have live parts.
SELECT job_id, stripe FROM fanin.job_stripe --pg
SELECT job_id, stripe FROM fanin.job_stripe INDEXED BY fanin.job_stripe_unswept --lite
WHERE bucket = :bucket AND closed AND remaining > 0
ORDER BY job_id, stripe LIMIT :limit;

-- name: lock_closed_stripe
-- The sweeper works under the lock of a stripe that is closed now: a redrive that opened a new run has opened it.
SELECT remaining FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND closed
FOR NO KEY UPDATE --pg
;

-- name: sweep_parts --pg
-- Live parts of the closed stripe become abandoned. The only write that takes parts after a stripe; it skips what is
-- locked and therefore never waits.
WITH live AS MATERIALIZED (
    SELECT ctid AS place FROM fanin.part
    WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND status IN ('pending', 'running')
    ORDER BY idx
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fanin.part AS p SET status = 'abandoned', ready = false, waiting = false
FROM live AS l
WHERE p.ctid = l.place AND p.status IN ('pending', 'running')
RETURNING p.idx;

-- name: sweep_parts --lite
-- Live parts of the closed stripe become abandoned.
WITH live AS MATERIALIZED (
    SELECT bucket, job_id, idx FROM fanin.part
    WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND status IN ('pending', 'running')
    ORDER BY idx
    LIMIT :limit
)
UPDATE fanin.part AS p SET status = 'abandoned', ready = false, waiting = false
FROM live AS l
WHERE p.bucket = l.bucket AND p.job_id = l.job_id AND p.idx = l.idx AND p.status IN ('pending', 'running')
RETURNING p.idx;

-- name: count_swept
-- What was swept moves from remaining to abandoned; a stripe is done when nothing remains.
UPDATE fanin.job_stripe SET remaining = remaining - :swept, abandoned = abandoned + :swept
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND closed
RETURNING remaining;
