-- What people and programs read: never decided upon, so no locks.

-- name: job
-- One job by id.
SELECT id, bucket, task, queue, key, request_hash, status, outcome, reason, run, planned_parts, sealed_parts,
    open_stripes, stripes, turn, priority, attempts, policy, successor, parent_id, root_id, step, depth, meta,
    created_at, give_up_at, finished_at, succeeded_parts, failed_parts, abandoned_parts, width, paused_at, batch
FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: jobs
-- The newest jobs of a bucket, optionally of one state.
SELECT id, bucket, task, queue, key, request_hash, status, outcome, reason, run, planned_parts, sealed_parts,
    open_stripes, stripes, turn, priority, attempts, policy, successor, parent_id, root_id, step, depth, meta,
    created_at, give_up_at, finished_at, succeeded_parts, failed_parts, abandoned_parts, width, paused_at, batch
FROM fanin.job WHERE bucket = :bucket AND created_at > 0 AND (:status::text IS NULL OR status = :status) --pg
FROM fanin.job WHERE bucket = :bucket AND created_at > 0 AND (:status IS NULL OR status = :status) --lite
ORDER BY created_at DESC LIMIT :limit;

-- name: jobs_like
-- Jobs whose id or key begins with what a person typed.
SELECT id FROM fanin.job
WHERE bucket = :bucket AND created_at > 0 AND (id::text LIKE :prefix ESCAPE '!' OR key = :key) --pg
WHERE bucket = :bucket AND created_at > 0 AND (id LIKE :prefix ESCAPE '!' OR key = :key) --lite
ORDER BY created_at DESC LIMIT 3;

-- name: children
-- The jobs that follow a job, or were started by one of its parts.
SELECT id, step FROM fanin.job WHERE bucket = :bucket AND parent_id = :id ORDER BY created_at, id;

-- name: received
-- Who gets the results of a job: what follows it, the part that waits for it, the steps behind the one that it runs.
SELECT j.task, j.step, j.successor, j.waiter_id, j.waiter_idx, s.name, s.leads_to, s.undo
FROM fanin.job AS j
LEFT JOIN fanin.flow_step AS s ON s.bucket = :bucket AND s.flow_id = j.flow_id AND s.n = j.flow_step
WHERE j.bucket = :bucket AND j.id = :id;

-- name: progress
-- The sums of the stripes: a few rows, however many parts the job has.
SELECT j.status, j.outcome, j.run, coalesce(sum(s.created), 0), coalesce(sum(s.remaining), 0),
    coalesce(sum(s.succeeded), 0), coalesce(sum(s.failed), 0), coalesce(sum(s.abandoned), 0),
    coalesce(max(CASE WHEN s.closed THEN 1 ELSE 0 END), 0), max(j.batch)
FROM fanin.job AS j LEFT JOIN fanin.job_stripe AS s ON s.bucket = :bucket AND s.job_id = j.id
WHERE j.bucket = :bucket AND j.id = :id GROUP BY j.status, j.outcome, j.run;

-- name: tree
-- The sums over a job and all that its parts have ended with, and those in their turn: some rows for each of these jobs.
WITH RECURSIVE tree AS (
    SELECT t.id FROM fanin.job AS t WHERE t.bucket = :bucket AND t.id = :id
    UNION ALL
    SELECT j.id FROM tree AS a JOIN fanin.job AS j ON j.bucket = :bucket AND j.waiter_id = a.id
)
SELECT count(DISTINCT a.id), coalesce(sum(s.created), 0), coalesce(sum(CASE WHEN s.closed THEN 0 ELSE s.remaining END), 0),
    coalesce(sum(s.succeeded), 0), coalesce(sum(s.failed), 0),
    coalesce(sum(s.abandoned + CASE WHEN s.closed THEN s.remaining ELSE 0 END), 0)
FROM tree AS a LEFT JOIN fanin.job_stripe AS s ON s.bucket = :bucket AND s.job_id = a.id;

-- name: progress_below
-- The same sums over the jobs of a split job's batches.
SELECT coalesce(sum(s.created), 0), coalesce(sum(s.remaining), 0), coalesce(sum(s.succeeded), 0),
    coalesce(sum(s.failed), 0), coalesce(sum(s.abandoned), 0),
    coalesce(sum(CASE WHEN s.closed THEN s.remaining ELSE 0 END), 0)
FROM fanin.job AS j --pg
FROM fanin.job AS j INDEXED BY fanin.job_waiter --lite
JOIN fanin.job_stripe AS s ON s.bucket = :bucket AND s.job_id = j.id
WHERE j.bucket = :bucket AND j.waiter_id = :id;

-- name: results
-- A page of results in the order of the parts.
SELECT idx, status, result FROM fanin.part
WHERE bucket = :bucket AND job_id = :id AND idx >= :first ORDER BY idx LIMIT :limit;

-- name: failures
-- A page of parts without a result, with the last thing that was said of them. What the sweeper has not reached yet in
-- an ended job is abandoned already: a successor may look before it does.
SELECT p.idx, CASE WHEN p.status = 'failed' THEN p.status ELSE 'abandoned' END, p.attempt, l.error, p.payload
FROM fanin.part AS p
LEFT JOIN fanin.attempt_log AS l ON l.bucket = :bucket AND l.job_id = p.job_id AND l.idx = p.idx
    AND l.attempt = p.attempt AND l.what IN ('failed', 'retried')
WHERE p.bucket = :bucket AND p.job_id = :id AND p.idx >= :first AND (p.status IN ('failed', 'abandoned')
    OR p.status IN ('pending', 'running') AND EXISTS (SELECT 1 FROM fanin.job AS j
        WHERE j.bucket = :bucket AND j.id = :id AND j.finished_at IS NOT NULL))
ORDER BY p.idx LIMIT :limit;

-- name: below
-- Of the newest job that a part has ended badly with: its first failed part, and what was said of that at last.
SELECT n.id, n.idx, (SELECT l.error FROM fanin.attempt_log AS l
    WHERE l.bucket = :bucket AND l.job_id = n.id AND l.idx = n.idx AND l.what = 'failed'
    ORDER BY l.attempt DESC LIMIT 1)
FROM (SELECT j.id, (SELECT p.idx FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = j.id AND p.status = 'failed' ORDER BY p.idx LIMIT 1) AS idx
    FROM fanin.job AS j --pg
    FROM fanin.job AS j INDEXED BY fanin.job_waiter --lite
    WHERE j.bucket = :bucket AND j.waiter_id = :id AND j.waiter_idx = :idx AND j.status IN ('failed', 'cancelled')
    ORDER BY j.created_at DESC, j.id LIMIT 1) AS n;

-- name: part
-- One part, for people.
SELECT idx, status, attempt, attempts_allowed, due_at, worker, task, payload, result, checkpoint
FROM fanin.part WHERE bucket = :bucket AND job_id = :id AND idx = :idx;

-- name: running
-- The parts that are held now, or wait for a nested job.
SELECT idx, attempt, worker, CASE WHEN NOT waiting THEN due_at - fanin.clock() END,
    CASE WHEN waiting THEN nested_id END
FROM fanin.part
WHERE bucket = :bucket AND job_id = :id AND status = 'running' ORDER BY idx LIMIT :limit;

-- name: account
-- What a run of it cost: attempts made, leases lost, reports refused, ends and events.
SELECT
    (SELECT count(*) FROM fanin.part WHERE bucket = :bucket AND job_id = :id),
    (SELECT coalesce(sum(attempt), 0) FROM fanin.part WHERE bucket = :bucket AND job_id = :id),
    (SELECT count(*) FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :id AND what = 'lease_lost'),
    (SELECT count(*) FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :id AND what = 'refused'),
    (SELECT count(*) FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :id AND what = 'retried'),
    (SELECT count(*) FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :id AND what = 'released'),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND job_id = :id AND type = 'job.finished'),
    (SELECT count(*) FROM fanin.job WHERE bucket = :bucket AND parent_id = :id AND step NOT LIKE 'on/%');

-- name: history
-- The attempts of a job that did not simply succeed, in the order of time.
SELECT at, idx, attempt, what, worker, holder, error FROM fanin.attempt_log
WHERE bucket = :bucket AND job_id = :id ORDER BY at, idx, attempt LIMIT :limit;

-- name: events
-- The events of a job.
SELECT event_key, seq, type, payload, at, published_at FROM fanin.outbox
WHERE bucket = :bucket AND job_id = :id ORDER BY seq;

-- name: outgoing
-- The newest events of a bucket, optionally of one state.
SELECT event_key, job_id, seq, type, status, payload, at, due_at, published_at, parked_at, tries, relay, error
FROM fanin.outbox WHERE bucket = :bucket AND at > 0 AND (:status::text IS NULL OR status = :status) --pg
FROM fanin.outbox WHERE bucket = :bucket AND at > 0 AND (:status IS NULL OR status = :status) --lite
ORDER BY at DESC LIMIT :limit;

-- name: backlog --pg
-- How many of two kinds of parts of these tasks a queue still has: ready ones, and ones that wait or run. Those of paused
-- jobs that wait are left out: they wait for an operator. The orders are those of the two partial indexes: without them
-- all parts that have ended may be searched.
SELECT (SELECT count(*) FROM (SELECT 1 FROM fanin.part
        WHERE bucket = :bucket AND queue = :queue AND ready AND task = ANY(:tasks::text[])
            AND job_id NOT IN (SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket AND j.paused_at IS NOT NULL)
        ORDER BY priority DESC, turn, job_id, idx LIMIT 1) AS one_ready)
    + (SELECT count(*) FROM (SELECT 1 FROM fanin.part
        WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready AND queue = :queue
            AND task = ANY(:tasks::text[]) AND due_at < 1000000000000
        ORDER BY due_at LIMIT 1) AS one_waiting);

-- name: backlog --lite
-- The same two looks.
SELECT (SELECT count(*) FROM (SELECT 1 FROM fanin.part INDEXED BY fanin.part_ready
        WHERE bucket = :bucket AND queue = :queue AND ready AND task IN (SELECT value FROM json_each(:tasks))
            AND job_id NOT IN (SELECT j.id FROM fanin.job AS j INDEXED BY fanin.job_paused
                WHERE j.bucket = :bucket AND j.paused_at IS NOT NULL)
        ORDER BY priority DESC, turn, job_id, idx LIMIT 1) AS one_ready)
    + (SELECT count(*) FROM (SELECT 1 FROM fanin.part INDEXED BY fanin.part_due
        WHERE bucket = :bucket AND status IN ('pending', 'running') AND NOT ready AND queue = :queue
            AND task IN (SELECT value FROM json_each(:tasks)) AND due_at < 1000000000000
        ORDER BY due_at LIMIT 1) AS one_waiting);
