-- Open a new run for the parts that failed or were abandoned.
-- Lock order: parts by idx, then all stripes ascending, then the job; inserts last. The job of a step that stands behind
-- others is opened by whoever ends these, who holds jobs and the flow: its part and its counter are not waited for.

-- name: lock_ended_parts
-- The parts that may run again, in key order. succeeded is final for ever.
SELECT idx, stripe, status FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND status IN ('failed', 'abandoned')
    AND (:everything OR idx = ANY(:chosen::int[])) --pg
    AND (:everything OR idx IN (SELECT value FROM json_each(:chosen))) --lite
ORDER BY idx
FOR NO KEY UPDATE --pg
;

-- name: lock_stripes
-- All stripes, ascending.
SELECT stripe, remaining, closed FROM fanin.job_stripe
WHERE bucket = :bucket AND job_id = :job_id ORDER BY stripe
FOR NO KEY UPDATE --pg
;

-- name: count_ended
-- How many parts there are to run again, asked under the stripes' locks: one may have ended, or been swept, after the
-- parts were locked. No other can follow while the stripes are held.
SELECT count(*) FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND status IN ('failed', 'abandoned')
    AND (:everything OR idx = ANY(:chosen::int[])) --pg
    AND (:everything OR idx IN (SELECT value FROM json_each(:chosen))) --lite
;

-- name: standing
-- The job under those locks.
SELECT status, run, queue, waiter_id, flow_id FROM fanin.job WHERE bucket = :bucket AND id = :job_id
FOR NO KEY UPDATE --pg
;

-- name: revive_parts
-- A new allowance on top of the attempts made: the attempt number itself never falls, so no old token is valid again.
UPDATE fanin.part SET status = 'pending', ready = true, attempts_allowed = attempt + :attempts,
    due_at = fanin.clock()
WHERE bucket = :bucket AND job_id = :job_id AND status IN ('failed', 'abandoned')
    AND idx = ANY(:chosen::int[]) --pg
    AND idx IN (SELECT value FROM json_each(:chosen)) --lite
RETURNING idx, turn;

-- name: reopen_stripe
-- The revived parts are live again, and so is whatever the sweeper had not reached.
UPDATE fanin.job_stripe SET closed = false, sealed = true, failed = failed - :failed, abandoned = abandoned - :abandoned,
    remaining = remaining + :failed + :abandoned
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe
RETURNING remaining;

-- name: reopen_job
-- A new run; its end will have an event key and a successor of its own. A job that was closed while it was open is
-- sealed with the parts that came, whatever was planned.
UPDATE fanin.job SET status = 'running', run = run + 1, outcome = NULL, reason = NULL, finished_at = NULL,
    open_stripes = :open_stripes, succeeded_parts = NULL, failed_parts = NULL, abandoned_parts = NULL,
    planned_parts = CASE WHEN sealed_parts IS NULL THEN :created ELSE planned_parts END,
    sealed_parts = coalesce(sealed_parts, :created), give_up_at = fanin.clock() + :give_up_after,
    progress_at = fanin.clock() + progress_every, progress_told = 0
WHERE bucket = :bucket AND id = :job_id AND status IN ('completed', 'failed', 'cancelled')
    AND outcome <> 'refused'
RETURNING run;

-- name: lock_only_part
-- The one part of the job of a step, and whether it has been told this.
SELECT status, payload IN (:told, :anew) FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = 0
FOR NO KEY UPDATE NOWAIT --pg
;

-- name: lock_only_stripe
-- Its counter.
SELECT stripe FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id
FOR NO KEY UPDATE NOWAIT --pg
;

-- name: tell_part
-- What it was told before does not hold any more, nor does how far it came with that. Whoever still holds it has lost it.
UPDATE fanin.part SET status = 'pending', ready = true, waiting = false, attempts_allowed = attempt + :attempts,
    due_at = fanin.clock(), payload = :payload, checkpoint = NULL, checkpoint_attempt = NULL
WHERE bucket = :bucket AND job_id = :job_id AND idx = 0 AND status IN ('pending', 'running')
RETURNING idx;

-- name: leave_behind
-- The jobs with other items that its part has ended with before. They stay below it, and nobody reads them. One that goes
-- on is cancelled by the part, before it begins to wait for another.
UPDATE fanin.job SET waiter_id = NULL, waiter_idx = NULL
WHERE bucket = :bucket AND waiter_id = :job_id AND waiter_idx = 0 AND id <> :kept
    AND status IN ('completed', 'failed', 'cancelled')
RETURNING id;

-- name: created
-- How many parts of the job were planned.
SELECT sum(created - spawned) FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id;

-- name: ring
-- The doorbell of the queue.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
