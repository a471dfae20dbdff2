-- Events on their way out: claimed by a relay, published by it outside any transaction, then marked.
-- No watermark: an event is found because it has not been published, never because its number or its transaction is
-- newer than another, so none is skipped, in whatever order transactions commit.
-- Lock order: events by key, where a statement waits. Claims and retries skip what is locked.

-- name: due_events
-- A look before the claim, so that an idle relay never takes a write lock: seconds until the next event may be claimed.
SELECT o.due_at - fanin.clock() FROM fanin.outbox AS o --pg
SELECT o.due_at - fanin.clock() FROM fanin.outbox AS o INDEXED BY fanin.outbox_due --lite
WHERE o.bucket = :bucket AND o.status IN ('waiting', 'claimed') AND o.due_at >= 0 ORDER BY o.due_at, o.event_key LIMIT 1;

-- name: claim_events --pg
-- The next events, and those of relays that did not come back. An event is held back while an earlier one of its job
-- is still on its way: it is asked in a snapshot, which is enough, because an earlier event that is published stays so,
-- and is there before a later one is written.
WITH next AS MATERIALIZED (
    SELECT o.ctid AS place FROM fanin.outbox AS o
    WHERE o.bucket = :bucket AND o.status IN ('waiting', 'claimed') AND o.due_at >= 0 AND o.due_at <= fanin.clock()
        AND (o.seq = 1 OR NOT EXISTS (
            SELECT 1 FROM fanin.outbox AS e WHERE e.bucket = :bucket AND e.job_id = o.job_id AND e.seq < o.seq
                AND e.status IN ('waiting', 'claimed')))
    ORDER BY o.due_at, o.event_key
    LIMIT :limit
    FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE fanin.outbox AS o SET status = 'claimed', claim_id = :claim_id, due_at = fanin.clock() + :lease,
    tries = o.tries + 1, relay = :relay
FROM next AS n
WHERE o.ctid = n.place AND o.status IN ('waiting', 'claimed') AND o.due_at <= fanin.clock()
RETURNING o.event_key, o.job_id, o.seq, o.type, o.payload, o.at, o.tries;

-- name: claim_events --lite
-- The next events, and those of relays that did not come back.
WITH next AS MATERIALIZED (
    SELECT o.bucket, o.event_key FROM fanin.outbox AS o INDEXED BY fanin.outbox_due
    WHERE o.bucket = :bucket AND o.status IN ('waiting', 'claimed') AND o.due_at >= 0 AND o.due_at <= fanin.clock()
        AND (o.seq = 1 OR NOT EXISTS (
            SELECT 1 FROM fanin.outbox AS e INDEXED BY fanin.outbox_job
            WHERE e.bucket = :bucket AND e.job_id = o.job_id AND e.seq < o.seq
                AND e.status IN ('waiting', 'claimed')))
    ORDER BY o.due_at, o.event_key
    LIMIT :limit
)
UPDATE fanin.outbox AS o SET status = 'claimed', claim_id = :claim_id, due_at = fanin.clock() + :lease,
    tries = o.tries + 1, relay = :relay
FROM next AS n
WHERE o.bucket = n.bucket AND o.event_key = n.event_key AND o.status IN ('waiting', 'claimed')
    AND o.due_at <= fanin.clock()
RETURNING o.event_key, o.job_id, o.seq, o.type, o.payload, o.at, o.tries;

-- name: settle_events --pg
-- rows: event_key, verb, delay, error
-- What became of the events of a claim, in one guarded write, each for itself. A relay that was taken for lost is not
-- heard: another holds the event, and will say what became of it. A release costs no try.
WITH mine AS MATERIALIZED (
    SELECT held.ctid AS place, u.verb, u.delay, u.error
    FROM unnest(:event_key::text[], :verb::text[], :delay::double precision[], :error::text[])
        AS u (event_key, verb, delay, error)
    CROSS JOIN LATERAL (
        SELECT o.ctid FROM fanin.outbox AS o
        WHERE o.bucket = :bucket AND o.event_key = u.event_key AND o.claim_id = :claim_id
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.outbox AS o SET
    status = CASE WHEN m.verb = 'mark' THEN 'published' WHEN m.verb = 'park' THEN 'parked' ELSE 'waiting' END,
    published_at = CASE WHEN m.verb = 'mark' THEN fanin.clock() END,
    parked_at = CASE WHEN m.verb = 'park' THEN fanin.clock() ELSE o.parked_at END,
    tries = o.tries - CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = fanin.clock() + m.delay,
    error = CASE WHEN m.verb = 'release' THEN o.error ELSE m.error END
FROM mine AS m
WHERE o.ctid = m.place AND o.status = 'claimed'
RETURNING o.event_key;

-- name: settle_events --lite
-- rows: event_key, verb, delay, error
-- The same guarded write.
WITH mine AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS event_key, value->>1 AS verb, value->>2 AS delay, value->>3 AS error
    FROM json_each(:rows)
)
UPDATE fanin.outbox AS o SET
    status = CASE WHEN m.verb = 'mark' THEN 'published' WHEN m.verb = 'park' THEN 'parked' ELSE 'waiting' END,
    published_at = CASE WHEN m.verb = 'mark' THEN fanin.clock() END,
    parked_at = CASE WHEN m.verb = 'park' THEN fanin.clock() ELSE o.parked_at END,
    tries = o.tries - CASE WHEN m.verb = 'release' THEN 1 ELSE 0 END,
    due_at = fanin.clock() + m.delay,
    error = CASE WHEN m.verb = 'release' THEN o.error ELSE m.error END
FROM mine AS m
WHERE o.bucket = m.bucket AND o.event_key = m.event_key AND o.status = 'claimed' AND o.claim_id = :claim_id
RETURNING o.event_key;

-- name: look_at_event
-- Why a report changed nothing: said before under the same claim, or another relay holds the event.
SELECT o.claim_id, o.status FROM fanin.outbox AS o WHERE o.bucket = :bucket AND o.event_key = :event_key;

-- name: retry_parked --pg
-- A person has looked: parked events wait again, as if they had never been tried.
WITH stuck AS MATERIALIZED (
    SELECT o.ctid AS place FROM fanin.outbox AS o
    WHERE o.bucket = :bucket AND o.status = 'parked' AND (:everything OR o.event_key = ANY(:keys::text[]))
    ORDER BY o.event_key
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fanin.outbox AS o SET status = 'waiting', due_at = fanin.clock(), tries = 0
FROM stuck AS k
WHERE o.ctid = k.place AND o.status = 'parked'
RETURNING o.event_key;

-- name: retry_parked --lite
-- A person has looked: parked events wait again, as if they had never been tried.
WITH stuck AS MATERIALIZED (
    SELECT o.bucket, o.event_key FROM fanin.outbox AS o INDEXED BY fanin.outbox_parked
    WHERE o.bucket = :bucket AND o.status = 'parked'
        AND (:everything OR o.event_key IN (SELECT value FROM json_each(:keys)))
    ORDER BY o.event_key
    LIMIT :limit
)
UPDATE fanin.outbox AS o SET status = 'waiting', due_at = fanin.clock(), tries = 0
FROM stuck AS k
WHERE o.bucket = k.bucket AND o.event_key = k.event_key AND o.status = 'parked'
RETURNING o.event_key;
