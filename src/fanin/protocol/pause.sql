-- Pause a job and let it go on. Its pending parts are held back behind the claim, and let go again, in portions.
-- Lock order: parts by idx, then the job; the jobs of a split job's batches by id, then that job; inserts last.
--
-- A claim asks for paused jobs by itself, and this is what keeps the promise. The parts are held back only so that they
-- do not lie in the way of other claims: a part that is not held although its job is paused is passed over, but one that
-- is held although its job goes on would never run. So whoever holds or lets go writes the job row last, guarded by what
-- it has seen there.

-- name: batches
-- How many batches a job has that was split and goes on. Their jobs have ids that follow from their places.
SELECT sealed_parts FROM fanin.job
WHERE bucket = :bucket AND id = :job_id AND batch IS NOT NULL AND status IN ('open', 'running');

-- name: lock_batches
-- Their jobs, in key order; also those that have ended, because one may be about to be run again. Their ends take them
-- before the job above, and so do we.
SELECT held.id FROM unnest(:ids::uuid[]) AS u (id) --pg
CROSS JOIN LATERAL (SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.id FOR NO KEY UPDATE) AS held; --pg
SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id IN (SELECT value FROM json_each(:ids)); --lite

-- name: pause_batches
-- The items are parts of these jobs. Some may be paused already, by themselves.
UPDATE fanin.job SET paused_at = fanin.clock(), walk_from = 0 --pg
UPDATE fanin.job INDEXED BY fanin.job_waiter SET paused_at = fanin.clock(), walk_from = 0 --lite
WHERE bucket = :bucket AND waiter_id = :job_id AND status IN ('open', 'running') AND paused_at IS NULL
RETURNING id;

-- name: resume_batches
-- Those too that were paused by themselves.
UPDATE fanin.job SET paused_at = NULL, walk_from = 0 --pg
UPDATE fanin.job INDEXED BY fanin.job_waiter SET paused_at = NULL, walk_from = 0 --lite
WHERE bucket = :bucket AND waiter_id = :job_id AND paused_at IS NOT NULL
RETURNING queue;

-- name: lock_job
-- The same deed that is still under way is waited for, and found to be done.
SELECT status FROM fanin.job WHERE bucket = :bucket AND id = :job_id
FOR NO KEY UPDATE --pg
;

-- name: pause_job
-- From the commit of this on, no claim that begins takes a part of the job.
UPDATE fanin.job SET paused_at = fanin.clock(), walk_from = 0
WHERE bucket = :bucket AND id = :job_id AND status IN ('open', 'running') AND paused_at IS NULL
RETURNING id;

-- name: resume_job
-- Parts that were not held can be claimed at once, the others when the walk has come to them.
UPDATE fanin.job SET paused_at = NULL, walk_from = 0
WHERE bucket = :bucket AND id = :job_id AND paused_at IS NOT NULL
RETURNING queue;

-- name: walking
-- Jobs whose parts are still to be held back or let go.
SELECT id FROM fanin.job --pg
SELECT id FROM fanin.job INDEXED BY fanin.job_walk --lite
WHERE bucket = :bucket AND walk_from IS NOT NULL ORDER BY id LIMIT :limit;

-- name: walking_of
-- Those of a job and its batches.
SELECT id FROM fanin.job --pg
SELECT id FROM fanin.job INDEXED BY fanin.job_walk --lite
WHERE bucket = :bucket AND walk_from IS NOT NULL AND (id = :job_id OR waiter_id = :job_id) ORDER BY id LIMIT :limit;

-- name: place
-- How far a walk has come, and which way it goes.
SELECT walk_from, paused_at IS NOT NULL, queue FROM fanin.job
WHERE bucket = :bucket AND id = :job_id AND walk_from IS NOT NULL;

-- name: lock_portion
-- The parts of a portion that may have to be written, in key order.
SELECT idx FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND idx >= :first AND idx < :past AND status = 'pending'
ORDER BY idx
FOR NO KEY UPDATE --pg
;

-- name: hold_parts
-- A part that is held waits for a moment that does not come, and keeps its own in it. Parts that run are left alone.
UPDATE fanin.part SET ready = false, due_at = due_at + :held
WHERE bucket = :bucket AND job_id = :job_id AND idx >= :first AND idx < :past AND status = 'pending' AND due_at < :held
RETURNING idx;

-- name: free_parts
-- What was held waits for its own moment again, which may be over.
UPDATE fanin.part SET ready = due_at - :held <= fanin.clock(), due_at = due_at - :held
WHERE bucket = :bucket AND job_id = :job_id AND idx >= :first AND idx < :past AND status = 'pending' AND due_at >= :held
RETURNING idx;

-- name: first_from
-- Where the walk goes on; no row at its end.
SELECT idx FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx >= :past ORDER BY idx LIMIT 1;

-- name: advance
-- The job row decides: if it was resumed or paused meanwhile, or another walker was here, the portion is taken back.
UPDATE fanin.job SET walk_from = :next
WHERE bucket = :bucket AND id = :job_id AND walk_from = :first AND (paused_at IS NOT NULL) = :paused
RETURNING id;

-- name: came
-- Parts were added to a job that is paused: the walk must come to them too.
UPDATE fanin.job SET walk_from = CASE WHEN walk_from < :first THEN walk_from ELSE :first END
WHERE bucket = :bucket AND id = :job_id AND paused_at IS NOT NULL
RETURNING id;

-- name: ring
-- The doorbell of the queue.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
