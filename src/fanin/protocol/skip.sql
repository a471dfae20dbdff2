-- An operator declares that a part has ended, without a run of it.
-- Lock order: the part, then as in counting and ending; inserts last. It may be one that waits for a nested job.

-- name: lock_part
-- The same deed that is still under way is waited for, and found to be done.
SELECT status FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
FOR NO KEY UPDATE --pg
;

-- name: skip_part
-- The operator takes the part over with an attempt of their own, which ends at once. So whoever holds it is a late one
-- from now on: its report is refused, its files are removed.
UPDATE fanin.part SET status = CASE WHEN :failed THEN 'failed' ELSE 'succeeded' END, ready = false,
    waiting = false, attempt = attempt + 1,
    attempts_allowed = CASE WHEN attempt < attempts_allowed THEN attempts_allowed ELSE attempt + 1 END,
    claim_id = :claim_id, worker = :who, due_at = fanin.clock(), result = :result
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status IN ('pending', 'running')
RETURNING stripe, attempt;

-- name: job_exists
-- Whether it is the job that is missing, or the part.
SELECT id FROM fanin.job WHERE bucket = :bucket AND id = :job_id;

-- name: undoes
-- Whether the job undoes a step: it does so by the jobs that its one part makes. That never changes.
SELECT 1 FROM fanin.job AS j
JOIN fanin.flow_step AS s ON s.bucket = :bucket AND s.flow_id = j.flow_id AND s.n = j.flow_step
WHERE j.bucket = :bucket AND j.id = :job_id AND s.undo_job_id = j.id;

-- name: said
-- The event of the run in which a skip was heard that is said again: whether it ended the job.
SELECT payload FROM fanin.outbox WHERE bucket = :bucket AND event_key = :event_key;
