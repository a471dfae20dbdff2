-- The invariants as queries. Each is one SELECT, therefore one snapshot, therefore valid at any instant on a live
-- database without locks. A row that comes back breaks the sentence above its query.

-- name: c1
-- all buckets
-- The counters equal the parts.
SELECT s.job_id, s.stripe, s.created, s.remaining, s.succeeded, s.failed, s.abandoned, s.spawned,
    c.n, c.live, c.succeeded AS counted_succeeded, c.failed AS counted_failed
FROM fanin.job_stripe AS s LEFT JOIN (
    SELECT p.bucket, p.job_id, p.stripe, count(*) AS n,
        sum(CASE WHEN p.status IN ('pending', 'running') THEN 1 ELSE 0 END) AS live,
        sum(CASE WHEN p.status = 'succeeded' THEN 1 ELSE 0 END) AS succeeded,
        sum(CASE WHEN p.status = 'failed' THEN 1 ELSE 0 END) AS failed,
        count(p.spawned_by) AS spawned
    FROM fanin.part AS p GROUP BY p.bucket, p.job_id, p.stripe
) AS c ON c.bucket = s.bucket AND c.job_id = s.job_id AND c.stripe = s.stripe
WHERE s.created <> coalesce(c.n, 0) OR s.remaining <> coalesce(c.live, 0)
    OR s.succeeded <> coalesce(c.succeeded, 0) OR s.failed <> coalesce(c.failed, 0)
    OR s.spawned <> coalesce(c.spawned, 0) OR s.created <> s.remaining + s.succeeded + s.failed + s.abandoned;

-- name: c2
-- all buckets
-- A sealed job has as many parts as were planned and sealed.
SELECT j.id, j.planned_parts, j.sealed_parts FROM fanin.job AS j
WHERE j.status <> 'open' AND coalesce(j.outcome, '') <> 'refused' AND j.sealed_parts IS NOT NULL
    AND (j.sealed_parts <> coalesce(j.planned_parts, j.sealed_parts) OR j.sealed_parts <>
        (SELECT count(*) FROM fanin.part AS p
            WHERE p.bucket = j.bucket AND p.job_id = j.id AND p.spawned_by IS NULL));

-- name: c3
-- all buckets
-- A part that was not planned was spawned in a job that grows, by a part that has run.
SELECT p.job_id, p.idx, p.spawned_by FROM fanin.part AS p
JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id
LEFT JOIN fanin.part AS s ON s.bucket = p.bucket AND s.job_id = p.job_id AND s.idx = p.spawned_by AND s.attempt > 0
WHERE (p.spawned_by IS NULL) <> (p.idx < coalesce(j.spawn_from, p.idx + 1))
    OR (p.spawned_by IS NOT NULL AND (j.width IS NULL OR s.idx IS NULL));

-- name: c5
-- all buckets
-- A job that grows has a key for each of its parts, and no more than its width; no other job has keys.
SELECT j.id, j.width, k.n AS keys, s.created FROM fanin.job AS j
LEFT JOIN (SELECT bucket, job_id, count(*) AS n FROM fanin.part_key GROUP BY bucket, job_id) AS k
    ON k.bucket = j.bucket AND k.job_id = j.id
LEFT JOIN (SELECT bucket, job_id, sum(created) AS created FROM fanin.job_stripe GROUP BY bucket, job_id) AS s
    ON s.bucket = j.bucket AND s.job_id = j.id
WHERE coalesce(k.n, 0) <> CASE WHEN j.width IS NULL THEN 0 ELSE coalesce(s.created, 0) END
    OR coalesce(s.created, 0) > coalesce(j.width, s.created);

-- name: c4
-- all buckets
-- A job without live parts ends in the transaction that seals or empties it.
SELECT id, open_stripes FROM fanin.job WHERE status = 'running' AND open_stripes = 0;

-- name: c7
-- all buckets
-- Every part belongs to a stripe of its job, or to a job that was purged.
SELECT p.job_id, p.idx, p.stripe FROM fanin.part AS p WHERE NOT EXISTS
    (SELECT 1 FROM fanin.job_stripe AS s WHERE s.bucket = p.bucket AND s.job_id = p.job_id AND s.stripe = p.stripe)
    AND NOT EXISTS (SELECT 1 FROM fanin.leftover AS l WHERE l.bucket = p.bucket AND l.job_id = p.job_id);

-- name: c8
-- all buckets
-- A job of which rows are left is gone, with its counters and events and what was above it.
SELECT l.job_id, l.parent_id FROM fanin.leftover AS l
WHERE EXISTS (SELECT 1 FROM fanin.job AS j WHERE j.bucket = l.bucket AND j.id = l.job_id)
    OR EXISTS (SELECT 1 FROM fanin.job AS j WHERE j.bucket = l.bucket AND j.id = l.parent_id)
    OR EXISTS (SELECT 1 FROM fanin.flow AS f WHERE f.bucket = l.bucket AND f.id IN (l.job_id, l.parent_id))
    OR EXISTS (SELECT 1 FROM fanin.job_stripe AS s WHERE s.bucket = l.bucket AND s.job_id = l.job_id)
    OR EXISTS (SELECT 1 FROM fanin.outbox AS o WHERE o.bucket = l.bucket AND o.job_id = l.job_id);

-- name: t1
-- all buckets
-- The counts written at the end equal the stripes.
SELECT j.id, j.succeeded_parts, j.failed_parts, j.abandoned_parts FROM fanin.job AS j
WHERE j.status IN ('completed', 'failed', 'cancelled') AND j.outcome <> 'refused'
    AND (coalesce(j.succeeded_parts, -1) <>
            (SELECT coalesce(sum(s.succeeded), 0) FROM fanin.job_stripe AS s WHERE s.bucket = j.bucket AND s.job_id = j.id)
        OR coalesce(j.failed_parts, -1) <>
            (SELECT coalesce(sum(s.failed), 0) FROM fanin.job_stripe AS s WHERE s.bucket = j.bucket AND s.job_id = j.id)
        OR coalesce(j.abandoned_parts, -1) <> (SELECT coalesce(sum(s.abandoned + s.remaining), 0)
            FROM fanin.job_stripe AS s WHERE s.bucket = j.bucket AND s.job_id = j.id));

-- name: t3
-- all buckets
-- No part runs past its allowance, however it dies.
SELECT job_id, idx, attempt, attempts_allowed FROM fanin.part WHERE attempt > attempts_allowed;

-- name: t4 --pg
-- all buckets
-- The event of an end carries the outcome and all counts.
SELECT job_id, event_key FROM fanin.outbox WHERE type = 'job.finished'
    AND NOT (payload::jsonb ?& ARRAY['succeeded', 'failed', 'abandoned', 'outcome']);

-- name: t4 --lite
-- all buckets
-- The event of an end carries the outcome and all counts.
SELECT job_id, event_key FROM fanin.outbox WHERE type = 'job.finished'
    AND (payload->>'succeeded' IS NULL OR payload->>'failed' IS NULL OR payload->>'abandoned' IS NULL
        OR payload->>'outcome' IS NULL);

-- name: j2
-- all buckets
-- Each run that ended has exactly one event, a run that goes on has none.
SELECT j.id, j.run, j.status FROM fanin.job AS j
WHERE (SELECT count(*) FROM fanin.outbox AS o --pg
WHERE (SELECT count(*) FROM fanin.outbox AS o INDEXED BY fanin.outbox_job --lite
        WHERE o.bucket = j.bucket AND o.job_id = j.id AND o.type = 'job.finished')
    <> j.run - (CASE WHEN j.status IN ('completed', 'failed', 'cancelled') THEN 0 ELSE 1 END);

-- name: j3
-- all buckets
-- A completed run has its successor, and no run has two.
SELECT j.id, j.run, j.status FROM fanin.job AS j
WHERE j.successor IS NOT NULL AND (
    (j.status = 'completed' AND NOT EXISTS (SELECT 1 FROM fanin.job AS c --pg
    (j.status = 'completed' AND NOT EXISTS (SELECT 1 FROM fanin.job AS c INDEXED BY fanin.job_family --lite
        WHERE c.bucket = j.bucket AND c.parent_id = j.id AND c.step NOT LIKE 'on/%'))
    OR (SELECT count(*) FROM fanin.job AS c --pg
    OR (SELECT count(*) FROM fanin.job AS c INDEXED BY fanin.job_family --lite
        WHERE c.bucket = j.bucket AND c.parent_id = j.id AND c.step NOT LIKE 'on/%')
        > j.run - (CASE WHEN j.status = 'completed' THEN 0 ELSE 1 END));

-- name: j5
-- all buckets
-- Each run that ended has one job for each listener, and no run has two.
SELECT j.id, j.run, j.status FROM fanin.job AS j WHERE j.listeners IS NOT NULL AND
    (SELECT count(*) FROM fanin.job AS c --pg
    (SELECT count(*) FROM fanin.job AS c INDEXED BY fanin.job_family --lite
        WHERE c.bucket = j.bucket AND c.parent_id = j.id AND c.step LIKE 'on/%')
    <> (j.run - (CASE WHEN j.status IN ('completed', 'failed', 'cancelled') THEN 0 ELSE 1 END))
        * json_array_length(j.listeners::json); --pg
        * json_array_length(j.listeners); --lite

-- name: j4
-- all buckets
-- A job that was not closed early has no live part when it ends.
SELECT j.id, j.outcome FROM fanin.job AS j
WHERE j.status IN ('completed', 'failed', 'cancelled') AND j.outcome IN ('all_ok', 'with_failures')
    AND EXISTS (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = j.bucket AND p.job_id = j.id AND p.status IN ('pending', 'running'));

-- name: j7
-- all buckets
-- A pending part has an attempt left.
SELECT job_id, idx, attempt, attempts_allowed FROM fanin.part WHERE status = 'pending' AND attempt >= attempts_allowed;

-- name: j8
-- all buckets
-- An ended job is closed or empty.
SELECT j.id, s.stripe, s.remaining FROM fanin.job AS j
JOIN fanin.job_stripe AS s ON s.bucket = j.bucket AND s.job_id = j.id
WHERE j.status IN ('completed', 'failed', 'cancelled') AND NOT s.closed AND s.remaining > 0;

-- name: f7
-- all buckets
-- A checkpoint was written by an attempt that was current then.
SELECT job_id, idx, checkpoint_attempt, attempt FROM fanin.part WHERE checkpoint_attempt > attempt;

-- name: f5
-- all buckets
-- An output that counts was not removed, and only outputs that count are kept.
SELECT o.job_id, o.idx, o.name, o.status FROM fanin.staged_output AS o
LEFT JOIN fanin.part AS p
    ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
WHERE (o.status = 'kept' AND (p.status IS NULL OR p.status <> 'succeeded'))
    OR (o.status = 'swept' AND p.status = 'succeeded' AND o.digest IS NOT NULL);

-- name: f6
-- all buckets
-- An output belongs to an attempt that its part has had.
SELECT o.job_id, o.idx, o.name, o.attempt FROM fanin.staged_output AS o
LEFT JOIN fanin.part AS p ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx
WHERE p.attempt IS NULL OR p.attempt < o.attempt OR (p.attempt = o.attempt AND p.claim_id <> o.claim_id);

-- name: e2
-- all buckets
-- An effect belongs to an attempt that its part has had, and one never called to the attempt that succeeded.
SELECT e.job_id, e.idx, e.name, e.status, e.attempt FROM fanin.effect AS e
LEFT JOIN fanin.part AS p ON p.bucket = e.bucket AND p.job_id = e.job_id AND p.idx = e.idx
WHERE p.attempt IS NULL OR p.attempt < e.attempt
    OR (e.calls = 0 AND (p.status <> 'succeeded' OR p.attempt <> e.attempt));

-- name: e3
-- all buckets
-- An effect is not called more often than it may be.
SELECT job_id, idx, name, mode, calls, calls_allowed FROM fanin.effect
WHERE calls > calls_allowed OR (status = 'registered' AND calls >= calls_allowed);

-- name: e4
-- all buckets
-- An effect that is being called has its claim, and one that was called has a call that was begun.
SELECT job_id, idx, name, status, calls FROM fanin.effect
WHERE (status = 'calling' AND claim_id IS NULL) OR ((status = 'calling' OR status = 'unknown') AND calls = 0)
    OR (status = 'registered' AND calls = 0 AND doubtful);

-- name: o1
-- all buckets
-- An event's key says its job and one of its runs.
SELECT o.job_id, o.event_key FROM fanin.outbox AS o
WHERE o.type IN ('job.finished', 'part.failed', 'job.progress') AND NOT EXISTS
    (SELECT 1 FROM fanin.job AS j WHERE j.bucket = o.bucket AND j.id = o.job_id AND CASE o.type
        WHEN 'job.finished' THEN o.event_key = 'job/' || o.job_id || '/finished/' || (
            SELECT count(*) FROM fanin.outbox AS e --pg
            SELECT count(*) FROM fanin.outbox AS e INDEXED BY fanin.outbox_job --lite
            WHERE e.bucket = o.bucket AND e.job_id = o.job_id AND e.type = 'job.finished' AND e.seq <= o.seq)
        WHEN 'part.failed' THEN o.event_key LIKE 'job/' || o.job_id || '/failed/%'
        ELSE o.event_key LIKE 'job/' || o.job_id || '/progress/%/' || o.seq END);

-- name: o2
-- all buckets
-- A part that failed has an event, where the job tells its failures.
SELECT p.job_id, p.idx FROM fanin.part AS p JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id
WHERE j.failure_events AND p.status = 'failed' AND NOT EXISTS
    (SELECT 1 FROM fanin.outbox AS o --pg
    (SELECT 1 FROM fanin.outbox AS o INDEXED BY fanin.outbox_job --lite
        WHERE o.bucket = p.bucket AND o.job_id = p.job_id AND o.type = 'part.failed' AND o.event_key LIKE 'job/' || p.job_id || '/failed/%/' || p.idx);

-- name: o3
-- all buckets
-- A job that tells its progress has a moment for it exactly while it is live.
SELECT id, status FROM fanin.job
WHERE (progress_at IS NOT NULL) <> (progress_every IS NOT NULL AND status IN ('open', 'running'));

-- name: o4
-- all buckets
-- An event has been published exactly if it says when.
SELECT job_id, event_key, status, published_at FROM fanin.outbox
WHERE (status = 'published') <> (published_at IS NOT NULL);

-- name: o5
-- all buckets
-- A claimed event has its claim and a try.
SELECT job_id, event_key, tries FROM fanin.outbox WHERE status = 'claimed' AND (claim_id IS NULL OR tries < 1);

-- name: o6
-- all buckets
-- A job's events are numbered from 1 without holes.
SELECT job_id, count(*) AS n, max(seq) AS top FROM fanin.outbox GROUP BY bucket, job_id
HAVING count(*) <> max(seq) OR count(DISTINCT seq) <> count(*);

-- name: o7
-- all buckets
-- A job's events are published in their order, unless one was parked.
SELECT o.job_id, o.event_key, o.seq FROM fanin.outbox AS o WHERE o.status = 'published' AND EXISTS
    (SELECT 1 FROM fanin.outbox AS e WHERE e.bucket = o.bucket AND e.job_id = o.job_id AND e.seq < o.seq
        AND e.status IN ('waiting', 'claimed') AND e.parked_at IS NULL);

-- name: o8
-- all buckets
-- A parked event says since when and why.
SELECT job_id, event_key FROM fanin.outbox WHERE status = 'parked' AND (parked_at IS NULL OR error IS NULL);

-- name: s1
-- all buckets
-- A running job's open stripes are those that are not closed and still have live parts.
SELECT j.id, j.open_stripes FROM fanin.job AS j WHERE j.status = 'running' AND j.open_stripes <>
    (SELECT count(*) FROM fanin.job_stripe AS s
        WHERE s.bucket = j.bucket AND s.job_id = j.id AND NOT s.closed AND s.remaining > 0);

-- name: s2
-- all buckets
-- The stripes of a job are sealed together and closed together.
SELECT job_id FROM fanin.job_stripe GROUP BY bucket, job_id
HAVING count(DISTINCT sealed) > 1 OR count(DISTINCT closed) > 1;

-- name: s3
-- all buckets
-- A running job's stripes are sealed, an open job's are not.
SELECT j.id, j.status FROM fanin.job AS j JOIN fanin.job_stripe AS s ON s.bucket = j.bucket AND s.job_id = j.id
WHERE (j.status = 'running' AND NOT s.sealed) OR (j.status = 'open' AND s.sealed);

-- name: l2
-- all buckets
-- A running job has a live part.
SELECT j.id FROM fanin.job AS j WHERE j.status = 'running' AND NOT EXISTS
    (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = j.bucket AND p.job_id = j.id AND p.status IN ('pending', 'running'));

-- name: n1
-- all buckets
-- A part that waits has a job that goes on for it.
SELECT p.job_id, p.idx, p.nested_id FROM fanin.part AS p WHERE p.waiting AND NOT EXISTS
    (SELECT 1 FROM fanin.job AS j --pg
    (SELECT 1 FROM fanin.job AS j INDEXED BY fanin.job_waiter --lite
        WHERE j.bucket = p.bucket AND j.waiter_id = p.job_id AND j.waiter_idx = p.idx AND j.status IN ('open', 'running'));

-- name: n2
-- all buckets
-- A nested job that goes on has a part that waits for it, or will be cancelled.
SELECT j.id, j.waiter_id, j.waiter_idx FROM fanin.job AS j
JOIN fanin.part AS p ON p.bucket = j.bucket AND p.job_id = j.waiter_id AND p.idx = j.waiter_idx
WHERE j.waiter_id IS NOT NULL AND j.status IN ('open', 'running') AND p.nested_id IS NULL;

-- name: w1
-- all buckets
-- A flow counts the steps whose job goes on.
SELECT f.id, f.status, f.running FROM fanin.flow AS f WHERE f.running <> (SELECT count(*) FROM fanin.flow_step AS s
    WHERE s.bucket = f.bucket AND s.flow_id = f.id AND s.status IN ('running', 'undoing'));

-- name: w2
-- all buckets
-- The job of a step that runs goes on, and so does what undoes one.
SELECT s.flow_id, s.name, s.status FROM fanin.flow_step AS s WHERE s.status IN ('running', 'undoing') AND NOT EXISTS
    (SELECT 1 FROM fanin.job AS j WHERE j.bucket = s.bucket AND j.status IN ('open', 'running')
        AND j.id = CASE WHEN s.status = 'running' THEN s.job_id ELSE s.undo_job_id END);

-- name: w3
-- all buckets
-- An ended flow has no step that runs, waits or is being undone.
SELECT f.id, f.status, s.name, s.status AS step_status FROM fanin.flow AS f
JOIN fanin.flow_step AS s ON s.bucket = f.bucket AND s.flow_id = f.id
WHERE f.status NOT IN ('running', 'ending', 'compensating') AND s.status IN ('running', 'waiting', 'undoing');

-- name: w4
-- all buckets
-- A compensated flow has undone, found nothing to undo in, or given up by a person, all that had ended.
SELECT f.id, s.name, s.status FROM fanin.flow AS f
JOIN fanin.flow_step AS s ON s.bucket = f.bucket AND s.flow_id = f.id
WHERE f.status = 'compensated' AND s.status NOT IN ('undone', 'nothing_to_undo', 'not_undone', 'skipped');

-- name: w5
-- all buckets
-- Each run of a flow that ended has exactly one event, a run that goes on has none.
SELECT f.id, f.run, f.status FROM fanin.flow AS f WHERE (SELECT count(*)
    FROM fanin.outbox AS o --pg
    FROM fanin.outbox AS o INDEXED BY fanin.outbox_job --lite
    WHERE o.bucket = f.bucket AND o.job_id = f.id AND o.type = 'flow.finished')
    <> f.run - (CASE WHEN f.status IN ('completed', 'failed', 'cancelled', 'compensated') THEN 0 ELSE 1 END);

-- name: w6 --pg
-- all buckets
-- Each event of a flow has one job for each task that listens to it.
SELECT f.id, f.status FROM fanin.flow AS f WHERE f.listeners IS NOT NULL AND
    (SELECT count(*) FROM fanin.job AS c WHERE c.bucket = f.bucket AND c.parent_id = f.id)
    <> (SELECT coalesce(sum(json_array_length(f.listeners::json->o.type)), 0) FROM fanin.outbox AS o
        WHERE o.bucket = f.bucket AND o.job_id = f.id);

-- name: w6 --lite
-- all buckets
-- Each event of a flow has one job for each task that listens to it.
SELECT f.id, f.status FROM fanin.flow AS f WHERE f.listeners IS NOT NULL AND
    (SELECT count(*) FROM fanin.job AS c INDEXED BY fanin.job_family WHERE c.bucket = f.bucket AND c.parent_id = f.id)
    <> (SELECT coalesce(sum(json_array_length(f.listeners, '$."' || o.type || '"')), 0)
        FROM fanin.outbox AS o INDEXED BY fanin.outbox_job WHERE o.bucket = f.bucket AND o.job_id = f.id);

-- name: e5
-- all buckets
-- What a step that is undone had done outside is cancelled or reversed, also what its nested jobs had.
WITH RECURSIVE family (bucket, flow_id, step, job_id) AS (
    SELECT s.bucket, s.flow_id, s.name, s.job_id FROM fanin.flow_step AS s WHERE s.status = 'undone'
    UNION ALL
    SELECT f.bucket, f.flow_id, f.step, j.id FROM family AS f
    JOIN fanin.job AS j ON j.bucket = f.bucket AND j.waiter_id = f.job_id
)
SELECT f.flow_id, f.step, e.job_id, e.idx, e.name AS effect, e.status FROM family AS f
JOIN fanin.effect AS e ON e.bucket = f.bucket AND e.job_id = f.job_id
WHERE e.status NOT IN ('cancelled', 'reversed');

-- name: i7
-- all buckets
-- A live part is ready, or waits for a stated moment, or for a nested job and then for no moment.
SELECT job_id, idx, status, due_at FROM fanin.part
WHERE status IN ('pending', 'running') AND NOT ready AND due_at < 1000000000000
    AND CASE WHEN waiting THEN due_at < 253402300799 ELSE due_at > fanin.clock() + 63072000 END;

-- name: k1
-- all buckets
-- The job of a slot is a job of its schedule.
SELECT f.name, f.slot, f.job_id FROM fanin.firing AS f
JOIN fanin.job AS j ON j.bucket = f.bucket AND j.id = f.job_id
WHERE j.step IS NULL OR j.step <> 'at/' || f.name;

-- name: k2
-- all buckets
-- No slot is decided beyond its schedule's mark.
SELECT f.name, f.slot, f.job_id, s.mark FROM fanin.firing AS f
JOIN fanin.schedule AS s ON s.bucket = f.bucket AND s.name = f.name
WHERE f.slot > s.mark AND NOT f.by_hand;

-- name: k3
-- all buckets
-- Each slot that was fired has a job of its own.
SELECT name, job_id, count(*) AS n FROM fanin.firing WHERE what = 'fired' GROUP BY bucket, name, job_id
HAVING count(*) > 1;

-- name: h1
-- all buckets
-- A part is held back only while its job is paused, or until it is let go.
SELECT p.job_id, p.idx, p.status, p.ready FROM fanin.part AS p
JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id
WHERE p.status IN ('pending', 'running') AND p.due_at >= 1000000000000
    AND (p.ready OR (j.paused_at IS NULL AND (j.walk_from IS NULL OR j.walk_from > p.idx)));
