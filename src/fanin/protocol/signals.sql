-- What an operator watches. Read only, each by an index that holds little: what lately happened, and what still waits.

-- name: now
-- all buckets
-- The database's time, to which the ages refer.
SELECT fanin.clock();

-- name: attempts
-- Reports refused, leases lost and work stopped. A holder with a higher attempt has overtaken the speaker; else the job
-- was closed.
SELECT count(CASE WHEN what = 'refused' AND holder > attempt THEN 1 END),
    count(CASE WHEN what = 'refused' AND (holder IS NULL OR holder <= attempt) THEN 1 END),
    count(CASE WHEN what = 'lease_lost' THEN 1 END), count(CASE WHEN what = 'stopped' THEN 1 END)
FROM fanin.attempt_log --pg
FROM fanin.attempt_log INDEXED BY fanin.attempt_log_recent --lite
WHERE bucket = :bucket AND what IN ('lease_lost', 'refused', 'stopped') AND at >= fanin.clock() - :since;

-- name: outputs
-- Outputs of which it is not noted that they count: all but the swept, those that never can, and those swept lately.
SELECT count(CASE WHEN o.status <> 'swept' THEN 1 END),
    count(CASE WHEN o.lost THEN 1 END), max(CASE WHEN o.lost THEN fanin.clock() - o.at END),
    count(CASE WHEN o.status = 'swept' AND o.at >= fanin.clock() - :since THEN 1 END)
FROM (
    SELECT s.status, s.at, s.status <> 'swept' AND (p.status IS NULL OR p.status <> 'running')
        AND (s.status = 'staged' OR p.status IS NULL OR p.status <> 'succeeded') AS lost
    FROM fanin.staged_output AS s LEFT JOIN fanin.part AS p
        ON p.bucket = s.bucket AND p.job_id = s.job_id AND p.idx = s.idx AND p.claim_id = s.claim_id
    WHERE s.bucket = :bucket AND s.status <> 'kept'
) AS o;

-- name: events
-- Events on their way, and those that wait for a person.
SELECT
    (SELECT count(*) FROM fanin.outbox
        WHERE bucket = :bucket AND status IN ('waiting', 'claimed') AND due_at >= 0),
    (SELECT max(fanin.clock() - at) FROM fanin.outbox
        WHERE bucket = :bucket AND status IN ('waiting', 'claimed') AND due_at >= 0),
    (SELECT count(*) FROM fanin.outbox WHERE bucket = :bucket AND status = 'parked'),
    (SELECT max(fanin.clock() - parked_at) FROM fanin.outbox WHERE bucket = :bucket AND status = 'parked');

-- name: effects
-- Effects that wait for their call or are in it, and those that wait for a person.
SELECT
    count(CASE WHEN status IN ('registered', 'calling') THEN 1 END),
    max(CASE WHEN status IN ('registered', 'calling') THEN fanin.clock() - at END),
    count(CASE WHEN status = 'failed' THEN 1 END), count(CASE WHEN status = 'unknown' THEN 1 END),
    max(CASE WHEN status IN ('failed', 'unknown') THEN fanin.clock() - settled_at END)
FROM (
    SELECT status, at, settled_at FROM fanin.effect
    WHERE bucket = :bucket AND status IN ('registered', 'calling') AND due_at >= 0
    UNION ALL
    SELECT status, at, settled_at FROM fanin.effect WHERE bucket = :bucket AND status IN ('failed', 'unknown')
) AS e;
