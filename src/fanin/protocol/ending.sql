-- The end of a run: the state, its event, its successor and its listeners, in one transaction.
-- Lock order: jobs by id; inserts last.

-- name: end_job
-- The one transition out of open or running. A pause ends with the run; what it held back is let go, for a later run. So does
-- the age at which it would not have started: who asks for a later run wants it now.
UPDATE fanin.job SET status = :status, outcome = :outcome, reason = :reason, open_stripes = 0,
    succeeded_parts = :succeeded, failed_parts = :failed, abandoned_parts = :abandoned,
    finished_at = fanin.clock(), events = events + 1, progress_at = NULL,
    walk_from = CASE WHEN paused_at IS NULL THEN walk_from ELSE 0 END, paused_at = NULL, stale_at = NULL
WHERE bucket = :bucket AND id = :job_id AND status IN ('open', 'running')
RETURNING run, events, successor, root_id, depth, key, task, listeners, waiter_id, waiter_idx, flow_id,
    flow_step;

-- name: announce
-- No ON CONFLICT: a second end of the same run is a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at)
VALUES (:bucket, :event_key, :job_id, :seq, 'job.finished', :payload, fanin.clock(), fanin.clock());
