-- Create a job with its parts: all at once, or open, append, seal.
-- Lock order: stripes, then the job; inserts last. Before all, the job whose handler asks, which a purge alone takes away.

-- name: find_job
-- The job of an id, to tell "the same request again" from "the same key, another content".
SELECT id, request_hash, status, planned_parts FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: tree_size
-- How many units of parts stand below a root. Few rows: most jobs count for no whole unit.
SELECT coalesce(sum(tree_weight), 0) FROM fanin.job --pg
SELECT coalesce(sum(tree_weight), 0) FROM fanin.job INDEXED BY fanin.job_tree --lite
WHERE bucket = :bucket AND root_id = :root_id AND tree_weight IS NOT NULL;

-- name: hold_parent
-- The job whose handler asks for one: it is not purged until that stands below it, or it was purged before. Others may
-- hold it too, and its end does not wait.
SELECT id FROM fanin.job WHERE bucket = :bucket AND id = :id
FOR KEY SHARE --pg
;

-- name: create_job
-- The primary key decides between two callers with one key: the second waits, inserts nothing and looks again. The job's
-- first turn is the smallest that still waits in the queue: a new job starts beside it, not behind everything.
INSERT INTO fanin.job (bucket, id, task, queue, key, request_hash, status, planned_parts, sealed_parts, open_stripes,
    stripes, turn, priority, attempts, policy, successor, parent_id, root_id, step, depth, meta, listeners,
    waiter_id, waiter_idx, flow_id, flow_step, width, tree_weight, batch, spawn_from, failure_events, progress_every,
    progress_at, created_at, give_up_at, stale_at, stale)
VALUES (:bucket, :id, :task, :queue, :key, :request_hash, :status, :planned, :sealed, :open_stripes,
    :stripes, (SELECT coalesce(min(p.turn), 0) FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.queue = :queue AND p.priority = :priority AND p.ready),
    :priority, :attempts, :policy, :successor, :parent_id, :root_id, :step, :depth, :meta, :listeners,
    :waiter_id, :waiter_idx, :flow_id, :flow_step, :width, :tree_weight, :batch, :spawn_from, :failure_events,
    :progress_every, fanin.clock() + :progress_every, fanin.clock(),
    coalesce(:give_up_at, fanin.clock() + :give_up_after),
    fanin.clock() + :stale_after, :stale)
ON CONFLICT (bucket, id) DO NOTHING
RETURNING turn;

-- name: rows_left
-- Whether rows of a purged job of this id still lie there. Asked once the new row stands: from then on no purge can leave
-- any.
SELECT 1 FROM fanin.leftover WHERE bucket = :bucket AND job_id = :id;

-- name: create_stripes
-- rows: job_id, stripe, created, sealed, judged
-- The counters, written together with the parts that they count.
INSERT INTO fanin.job_stripe
    (bucket, job_id, stripe, created, remaining, succeeded, failed, abandoned, sealed, closed, judged)
SELECT :bucket, u.job_id, u.stripe, u.created, u.created, 0, 0, 0, u.sealed, false, u.judged
FROM unnest(:job_id::uuid[], :stripe::smallint[], :created::int[], :sealed::bool[], :judged::bool[]) --pg
    AS u (job_id, stripe, created, sealed, judged); --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS stripe, value->>2 AS created, value->>3 AS sealed, --lite
    value->>4 AS judged FROM json_each(:rows)) AS u; --lite

-- name: create_parts --pg
-- One chunk of the parts of a job that this transaction has created. None of them can stand there already; one that does
-- is a bug and must abort. So all are written, and no row is asked back.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
SELECT :bucket, :job_id, :first + u.n - 1, ((:first + u.n - 1) / :run_parts) % :stripes, 'pending',
    :delay::double precision <= 0, :queue, :task, :priority, :turn + :first + u.n - 1, 0,
    :attempts, (SELECT fanin.clock() + :delay), u.payload
FROM unnest(:payloads::text[]) WITH ORDINALITY AS u (payload, n);

-- name: create_parts --lite
-- One chunk of the parts of a job that this transaction has created. None of them can stand there already; one that does
-- is a bug and must abort. So all are written, and no row is asked back.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
SELECT :bucket, :job_id, :first + u.key, ((:first + u.key) / :run_parts) % :stripes, 'pending',
    :delay <= 0, :queue, :task, :priority, :turn + :first + u.key, 0,
    :attempts, (SELECT fanin.clock() + :delay), u.value
FROM json_each(:payloads) AS u;

-- name: append_parts --pg
-- One chunk of parts with consecutive indexes. A part that stands already is left alone and not counted again.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
SELECT :bucket, :job_id, :first + u.n - 1, ((:first + u.n - 1) / :run_parts) % :stripes, 'pending',
    :delay::double precision <= 0, :queue, :task, :priority, :turn + :first + u.n - 1, 0,
    :attempts, (SELECT fanin.clock() + :delay), u.payload
FROM unnest(:payloads::text[]) WITH ORDINALITY AS u (payload, n)
ON CONFLICT (bucket, job_id, idx) DO NOTHING
RETURNING stripe;

-- name: append_parts --lite
-- One chunk of parts with consecutive indexes. A part that stands already is left alone and not counted again.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload)
SELECT :bucket, :job_id, :first + u.key, ((:first + u.key) / :run_parts) % :stripes, 'pending',
    :delay <= 0, :queue, :task, :priority, :turn + :first + u.key, 0,
    :attempts, (SELECT fanin.clock() + :delay), u.value
FROM json_each(:payloads) AS u
WHERE true
ON CONFLICT (bucket, job_id, idx) DO NOTHING
RETURNING stripe;

-- name: standing_parts
-- What stands already where an append found some of its parts: a continued stream must bring the same payloads again.
SELECT idx, payload FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND idx >= :first AND idx < :past ORDER BY idx;

-- name: held_job
-- What an append or seal must know of the job. None of these columns changes while the job is open.
SELECT status, request_hash, stripes, turn, priority, attempts, queue, task, policy, planned_parts, width, key
FROM fanin.job WHERE bucket = :bucket AND id = :id;

-- name: add_created
-- rows: stripe, created
-- An append counts what it really inserted, on stripes that are neither sealed nor closed.
WITH mine AS MATERIALIZED (
    SELECT s.stripe, u.created
    FROM unnest(:stripe::smallint[], :created::int[]) AS u (stripe, created) --pg
    FROM (SELECT value->>0 AS stripe, value->>1 AS created FROM json_each(:rows)) AS u --lite
    JOIN fanin.job_stripe AS s ON s.bucket = :bucket AND s.job_id = :job_id AND s.stripe = u.stripe
    ORDER BY s.stripe
    FOR NO KEY UPDATE OF s --pg
)
UPDATE fanin.job_stripe AS s SET created = s.created + m.created, remaining = s.remaining + m.created
FROM mine AS m
WHERE s.bucket = :bucket AND s.job_id = :job_id AND s.stripe = m.stripe AND NOT s.sealed AND NOT s.closed
RETURNING s.stripe;

-- name: lock_for_seal
-- All stripes, ascending, before any of them is written. Planned parts are those that were not spawned.
SELECT stripe, created - spawned, remaining, sealed, closed FROM fanin.job_stripe
WHERE bucket = :bucket AND job_id = :job_id ORDER BY stripe
FOR NO KEY UPDATE --pg
;

-- name: seal_stripes
-- From here on nothing can be appended.
UPDATE fanin.job_stripe SET sealed = true WHERE bucket = :bucket AND job_id = :job_id AND NOT sealed AND NOT closed
RETURNING stripe;

-- name: seal_job
-- The start of the run: the countdown begins with the stripes that still have live parts.
UPDATE fanin.job SET status = 'running', sealed_parts = :created, open_stripes = :open_stripes,
    request_hash = coalesce(:request_hash, request_hash), give_up_at = CASE WHEN :keep THEN give_up_at END
WHERE bucket = :bucket AND id = :id AND status = 'open'
RETURNING id;

-- name: ring
-- The doorbell of a queue. A hint only: a worker that misses it finds the parts by looking.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
