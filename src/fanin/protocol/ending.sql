-- The end of a run: the state, its event, its successor and its listeners, in one transaction.
-- Lock order: jobs by id; inserts last.

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

-- name: ring
-- The doorbell of a queue. A hint only: a worker that misses it finds the parts by looking.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
