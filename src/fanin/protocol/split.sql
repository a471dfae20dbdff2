-- A job that is too wide for one is split: its parts are batches, each of which ends with a job of its own. All of these jobs
-- are made with it, in one transaction.
-- Nothing is locked: these are inserts.

-- name: create_batches
-- rows: idx, nested_id
-- The parts of the split job. They name their jobs from the beginning: if they end otherwise, those are cancelled.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload, nested_id)
SELECT :bucket, :job_id, u.idx, 0, 'pending', true, :queue, :task, :priority, :turn + u.idx, 0, :attempts,
    (SELECT fanin.clock()), '[' || u.idx || ']', u.nested_id
FROM unnest(:idx::int[], :nested_id::uuid[]) AS u (idx, nested_id); --pg
FROM (SELECT value->>0 AS idx, value->>1 AS nested_id FROM json_each(:rows)) AS u; --lite
