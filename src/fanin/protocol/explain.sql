-- What happened to a job or a flow and why: for people, never decided upon, so no locks. However wide a job is, few rows
-- come.

-- name: attempts
-- The first and the last of each kind of line in the history of attempts, with the number of all of its kind.
SELECT at, idx, attempt, what, worker, holder, error, of_kind FROM (
    SELECT at, idx, attempt, what, worker, holder, error, count(*) OVER (PARTITION BY what) AS of_kind,
        row_number() OVER (PARTITION BY what ORDER BY at, idx, attempt) AS from_first,
        row_number() OVER (PARTITION BY what ORDER BY at DESC, idx DESC, attempt DESC) AS from_last
    FROM fanin.attempt_log
    WHERE bucket = :bucket AND job_id = :job_id AND (:everything OR idx = :idx)
) AS numbered
WHERE from_first <= :shown OR from_last <= :shown ORDER BY at, idx, attempt, what;

-- name: deeds
-- The same of what was done from outside, to each of these jobs, or a flow.
SELECT job_id, at, idx, what, who, reason, run, of_kind FROM (
    SELECT job_id, at, idx, what, who, reason, run, id, count(*) OVER (PARTITION BY job_id, what) AS of_kind,
        row_number() OVER (PARTITION BY job_id, what ORDER BY at, id) AS from_first,
        row_number() OVER (PARTITION BY job_id, what ORDER BY at DESC, id DESC) AS from_last
    FROM fanin.job_log
    WHERE bucket = :bucket AND (:everything OR idx = :idx)
        AND job_id = ANY(:jobs::uuid[]) --pg
        AND job_id IN (SELECT value FROM json_each(:jobs)) --lite
) AS numbered
WHERE from_first <= :shown OR from_last <= :shown ORDER BY at, id;

-- name: repairs
-- The same of what was repaired, or is damaged.
SELECT at, what, which, before, after, run, of_kind FROM (
    SELECT at, what, which, before, after, run, count(*) OVER (PARTITION BY what) AS of_kind,
        row_number() OVER (PARTITION BY what ORDER BY at, id, which) AS from_first,
        row_number() OVER (PARTITION BY what ORDER BY at DESC, id DESC, which DESC) AS from_last
    FROM fanin.repair
    WHERE bucket = :bucket AND job_id = :job_id AND (:everything OR (what = 'part' AND which = :idx))
) AS numbered
WHERE from_first <= :shown OR from_last <= :shown ORDER BY at, what, which;

-- name: ends
-- The newest ends of runs of each of these jobs, or of a flow, with what became of their events.
SELECT job_id, type, payload, at, status, published_at FROM (
    SELECT job_id, seq, type, payload, at, status, published_at,
        row_number() OVER (PARTITION BY job_id ORDER BY seq DESC) AS from_last
    FROM fanin.outbox
    WHERE bucket = :bucket AND type IN ('job.finished', 'flow.finished', 'flow.needs_attention')
        AND job_id = ANY(:jobs::uuid[]) --pg
        AND job_id IN (SELECT value FROM json_each(:jobs)) --lite
) AS numbered
WHERE from_last <= :shown ORDER BY at, job_id, seq;

-- name: ends_early
-- Whether the first failure stops a flow.
SELECT fail_fast FROM fanin.flow WHERE bucket = :bucket AND id = :flow_id;

-- name: family
-- The oldest of the jobs that follow a job, or were started by its parts.
SELECT id, step, task, created_at, status, outcome, count(*) OVER () FROM fanin.job
WHERE bucket = :bucket AND parent_id = :job_id ORDER BY created_at, id LIMIT :shown;

-- name: workers
-- Who ended the parts, and from when to when. All parts are read.
SELECT coalesce(worker, ''), count(*), sum(attempt), min(due_at), max(due_at) FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND status IN ('succeeded', 'failed')
GROUP BY coalesce(worker, '') ORDER BY count(*) DESC, coalesce(worker, '');

-- name: live
-- The live parts by how they stand, with the earliest moment of each kind, and now. All parts are read.
SELECT stands, count(*), min(due_at), fanin.clock() FROM (
    SELECT CASE WHEN waiting THEN 'nested' WHEN due_at >= :held THEN 'held' WHEN ready THEN 'ready'
            WHEN status = 'running' THEN 'running' ELSE 'later' END AS stands, due_at
    FROM fanin.part WHERE bucket = :bucket AND job_id = :job_id AND status IN ('pending', 'running')
) AS standing
GROUP BY stands;

-- name: troubled
-- The parts with most lines in the history.
SELECT idx, count(*), max(attempt) FROM fanin.attempt_log WHERE bucket = :bucket AND job_id = :job_id
GROUP BY idx ORDER BY count(*) DESC, idx LIMIT :shown;

-- name: part
-- One part as it stands. Since a part that has ended is not written again, its moment is that of its end.
SELECT status, attempt, attempts_allowed, worker, due_at, ready FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx;
