-- How far a flow is: for people who watch it, never decided upon, so no locks. However many steps it has, few rows come.

-- name: states
-- How many steps are in each state.
SELECT status, count(*) FROM fanin.flow_step WHERE bucket = :bucket AND flow_id = :flow_id GROUP BY status;

-- name: steps
-- The first steps of which a job goes on, or of all, each with its job, or that which undoes it.
SELECT n, name, status, coalesce(undo_job_id, job_id) FROM fanin.flow_step
WHERE bucket = :bucket AND flow_id = :flow_id AND (:everything OR status IN ('running', 'undoing'))
ORDER BY n LIMIT :limit;

-- name: jobs
-- rows: id
-- When each of these jobs began and ended, and how, and the sums of the job whose parts are meant: that which was made,
-- of a step that maps over another. Each is looked up by itself: a join of all would read a bucket where it has no statistics yet.
SELECT id, meant,
    (SELECT j.created_at FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.id),
    (SELECT j.finished_at FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.id),
    (SELECT j.status FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.id),
    (SELECT j.paused_at FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.id),
    (SELECT j.paused_at FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = u.meant),
    (SELECT coalesce(sum(s.created), 0) FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = u.meant),
    (SELECT coalesce(sum(CASE WHEN s.closed THEN 0 ELSE s.remaining END), 0) FROM fanin.job_stripe AS s
        WHERE s.bucket = :bucket AND s.job_id = u.meant),
    (SELECT coalesce(sum(s.failed), 0) FROM fanin.job_stripe AS s WHERE s.bucket = :bucket AND s.job_id = u.meant),
    (SELECT coalesce(sum(s.abandoned + CASE WHEN s.closed THEN s.remaining ELSE 0 END), 0) FROM fanin.job_stripe AS s
        WHERE s.bucket = :bucket AND s.job_id = u.meant)
FROM (SELECT given.id, coalesce((SELECT m.id
        FROM fanin.job AS m --pg
        FROM fanin.job AS m INDEXED BY fanin.job_waiter --lite
        WHERE m.bucket = :bucket AND m.waiter_id = given.id AND m.waiter_idx = 0 AND (SELECT j.task FROM fanin.job AS j
            WHERE j.bucket = :bucket AND j.id = given.id) = :expand
        LIMIT 1), given.id) AS meant
    FROM unnest(:id::uuid[]) AS given (id)) AS u; --pg
    FROM (SELECT value->>0 AS id FROM json_each(:rows)) AS given) AS u; --lite
