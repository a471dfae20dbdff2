-- A part hands its work to a job of its own and waits for it as a row, without a worker and without a lease.
-- Lock order: the nested job first (it is new, or its row is locked, or its redrive locks all of it), then the part that
-- waits, as the end of the nested job does. Neither waits for the part if somebody else has locked it: that may be
-- somebody who has locked parts alone, and waits for the nested job. All of it is said again then.

-- name: standing
-- The nested job, or the last one that followed it: what there is to wait for.
SELECT status, outcome, run, successor, attempts FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: lock_live
-- It cannot end while we begin to wait: who ends it finds the part waiting, or we find it ended.
SELECT id FROM fanin.job WHERE bucket = :bucket AND id = :id AND status IN ('open', 'running')
FOR NO KEY UPDATE --pg
;

-- name: pause_as_above
-- A batch of a later run: its job was opened again just now, or goes on from an earlier run, of which it may have kept the
-- pause. It is paused if the whole is. Asked under the lock of its row, which who pauses the whole takes first.
UPDATE fanin.job SET paused_at = (SELECT u.paused_at FROM fanin.job AS u
    WHERE u.bucket = :bucket AND u.id = :above_id), walk_from = 0
WHERE bucket = :bucket AND id = :id AND status IN ('open', 'running') AND (paused_at IS NULL) <> (
    SELECT u.paused_at IS NULL FROM fanin.job AS u WHERE u.bucket = :bucket AND u.id = :above_id)
RETURNING id;

-- name: take_held
-- The holder's part, if it is still his.
SELECT idx FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
    AND status = 'running' AND attempt = :attempt AND claim_id = :claim_id AND NOT waiting
FOR NO KEY UPDATE NOWAIT --pg
;

-- name: begin_to_wait
-- It keeps its attempt and claim, and loses its lease: it is due at the end of all times.
UPDATE fanin.part SET waiting = true, ready = false, nested_id = :nested_id, due_at = :never
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx
    AND status = 'running' AND attempt = :attempt AND claim_id = :claim_id AND NOT waiting
RETURNING idx;

-- name: look_at_waiter
-- Why that changed nothing.
SELECT status, attempt, claim_id, waiting FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx;

-- name: refuse
-- A job that may not be is born ended, with the reason for all to see. It has no parts and no counters.
INSERT INTO fanin.job (bucket, id, task, queue, status, outcome, reason, planned_parts, sealed_parts, open_stripes,
    stripes, turn, priority, attempts, policy, parent_id, root_id, depth, waiter_id, waiter_idx, created_at, finished_at,
    succeeded_parts, failed_parts, abandoned_parts, events)
VALUES (:bucket, :id, :task, :queue, 'failed', 'refused', :reason, 0, 0, 0, 1, 0, :priority, :attempts, '{}',
    :parent_id, :root_id, :depth, :waiter_id, :waiter_idx, fanin.clock(), fanin.clock(), 0, 0, 0, 1)
ON CONFLICT (bucket, id) DO NOTHING
RETURNING id;

-- name: orphaning
-- Parts that have ended otherwise than by the job that they once waited for.
SELECT job_id, idx FROM fanin.part --pg
SELECT job_id, idx FROM fanin.part INDEXED BY fanin.part_orphaning --lite
WHERE bucket = :bucket AND nested_id IS NOT NULL AND status IN ('succeeded', 'failed', 'abandoned')
ORDER BY job_id, idx LIMIT :limit;

-- name: has_ended
-- Its part has ended, asked under the lock of the nested job: one that is run again comes to that lock before it waits.
SELECT 1 FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND nested_id IS NOT NULL
    AND status IN ('succeeded', 'failed', 'abandoned');

-- name: live_nested
-- The jobs that go on although nobody waits for them any more.
SELECT id FROM fanin.job --pg
SELECT id FROM fanin.job INDEXED BY fanin.job_waiter --lite
WHERE bucket = :bucket AND waiter_id = :job_id AND waiter_idx = :idx AND status IN ('open', 'running');

-- name: forget_nested
-- Nothing goes on for this part. One that was redriven meanwhile keeps its note.
UPDATE fanin.part SET nested_id = NULL
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND nested_id IS NOT NULL
    AND status IN ('succeeded', 'failed', 'abandoned')
RETURNING idx;
