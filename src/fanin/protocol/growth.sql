-- A live part adds parts to its own job: in its own commit (called by the count-down), or at once under its fence.
-- Lock order: the part, then all stripes of its job ascending, then inserts. Whoever adds a key or a part to a growing
-- job holds all stripes of that job, so two of them never wait for each other's keys.

-- name: hold_part
-- The fence of a spawn at once: only the holder of a running part adds to its job, and it stays the holder until the end.
SELECT stripe FROM fanin.part
WHERE bucket = :bucket AND job_id = :job_id AND idx = :idx AND status = 'running' AND attempt = :attempt
    AND claim_id = :claim_id AND NOT waiting
FOR NO KEY UPDATE --pg
;

-- name: lock_stripes
-- All stripes, ascending. A closed one takes no more parts.
SELECT stripe, sealed, closed FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id ORDER BY stripe
FOR NO KEY UPDATE --pg
;

-- name: growing
-- How the job grows, and what its parts have in common. None of these columns ever changes.
SELECT task, queue, priority, attempts, turn, stripes, width, spawn_from FROM fanin.job
WHERE bucket = :bucket AND id = :job_id;

-- name: totals
-- How many parts there are, and how many of them were spawned, under the locks of all stripes.
SELECT coalesce(sum(created), 0), coalesce(sum(spawned), 0) FROM fanin.job_stripe
WHERE bucket = :bucket AND job_id = :job_id;

-- name: first_turn
-- The smallest turn still waiting in the queue: what is added late does not overtake what waits there.
SELECT coalesce(min(turn), 0) FROM fanin.part WHERE bucket = :bucket AND queue = :queue AND priority = :priority AND ready;

-- name: add_keys
-- What the job has not seen before. A key that is there already comes not back, and its part is not made.
INSERT INTO fanin.part_key (bucket, job_id, key)
SELECT :bucket, :job_id, u.key FROM unnest(:keys::uuid[]) AS u (key) WHERE true --pg
SELECT :bucket, :job_id, u.value FROM json_each(:keys) AS u WHERE true --lite
ON CONFLICT (bucket, job_id, key) DO NOTHING
RETURNING key;

-- name: add_parts --pg
-- rows: idx, stripe, turn, spawned_by, payload
-- The parts of new keys. No ON CONFLICT: a second part with one index is a bug and must abort.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload, spawned_by)
SELECT :bucket, :job_id, u.idx, u.stripe, 'pending', :delay::double precision <= 0, :queue, :task, :priority, u.turn, 0,
    :attempts, fanin.clock() + :delay, u.payload, u.spawned_by
FROM unnest(:idx::int[], :stripe::smallint[], :turn::bigint[], :spawned_by::int[], :payload::text[])
    AS u (idx, stripe, turn, spawned_by, payload);

-- name: add_parts --lite
-- rows: idx, stripe, turn, spawned_by, payload
-- The parts of new keys. No ON CONFLICT: a second part with one index is a bug and must abort.
INSERT INTO fanin.part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt,
    attempts_allowed, due_at, payload, spawned_by)
SELECT :bucket, :job_id, u.value->>0, u.value->>1, 'pending', :delay <= 0, :queue, :task, :priority, u.value->>2, 0,
    :attempts, fanin.clock() + :delay, u.value->>4, u.value->>3
FROM json_each(:rows) AS u;

-- name: count_spawned
-- What was added is live at once. All stripes are locked by an earlier statement.
UPDATE fanin.job_stripe SET created = created + :fresh, spawned = spawned + :fresh, remaining = remaining + :fresh
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed
RETURNING remaining, sealed;

-- name: ring
-- The doorbell of the queue.
SELECT pg_notify('fanin.bell', :queue); --pg
SELECT :queue WHERE false; --lite
