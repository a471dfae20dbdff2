-- A job of one part that the end of another job makes: a successor, a listener, a step of a flow.
-- Nothing is locked: these are inserts, and the last that their transactions write.

-- name: create
-- No ON CONFLICT: two successors of one run are a bug and must abort.
INSERT INTO fanin.job (bucket, id, task, queue, status, planned_parts, sealed_parts, open_stripes, stripes, turn,
    priority, attempts, policy, parent_id, root_id, step, depth, waiter_id, waiter_idx, flow_id, flow_step, give_up_at,
    stale_at, stale, created_at)
VALUES (:bucket, :id, :task, :queue, 'running', 1, 1, 1, 1, 0, :priority, :attempts, '{}', :parent_id, :root_id, :step,
    :depth, :waiter_id, :waiter_idx, :flow_id, :flow_step, fanin.clock() + :give_up_after,
    fanin.clock() + :stale_after, :stale, fanin.clock());

-- name: refuse
-- A successor that would stand too deep is born refused, visible and with its event; its parent's finish never fails.
INSERT INTO fanin.job (bucket, id, task, queue, status, outcome, reason, planned_parts, sealed_parts, open_stripes,
    stripes, turn, priority, attempts, policy, parent_id, root_id, step, depth, waiter_id, waiter_idx, flow_id,
    flow_step, created_at, finished_at, succeeded_parts, failed_parts, abandoned_parts, events)
VALUES (:bucket, :id, :task, :queue, 'failed', 'refused', :reason, 0, 0, 0, 1, 0, :priority, :attempts, '{}',
    :parent_id, :root_id, :step, :depth, :waiter_id, :waiter_idx, :flow_id, :flow_step, fanin.clock(), fanin.clock(),
    0, 0, 0, 1);

-- name: create_stripe
-- The counter of the successor's one part.
INSERT INTO fanin.job_stripe
    (bucket, job_id, stripe, created, remaining, succeeded, failed, abandoned, sealed, closed, judged)
VALUES (:bucket, :id, 0, 1, 1, 0, 0, 0, true, false, false);

-- name: create_part
-- The part. Turn 0 and a raised priority: a successor never waits behind the parts of a giant neighbour.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
VALUES (:bucket, :id, 0, 0, 'pending', true, :queue, :task, :priority, 0, 0, :attempts, fanin.clock(), :payload);

-- name: ring
-- The doorbell of a queue. A hint only: a worker that misses it finds the parts by looking.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
