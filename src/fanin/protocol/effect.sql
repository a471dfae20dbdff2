-- What parts want done outside the database. The row is committed before the call, and its key has no attempt and no
-- run, so whoever wants the same done again meets it.
--
-- Lock order: the part, its stripe, then effects by (job, idx, name), last of all. Relays and people lock effects alone.
-- Every change of a state is guarded by the effect's own row; the claim says which caller is heard. An answer that says
-- that it has happened is heard from anybody: a late one is as true as one in time.

-- name: register
-- rows: job_id, idx, name, mode, request, attempt, calls_allowed
-- The intents of parts that this very transaction has accepted: losers have none. What stands there already is the same
-- effect. One that an earlier call of the part left open is now the relay's, unless it may not be called again.
INSERT INTO fanin.effect AS e (bucket, job_id, idx, name, mode, status, relayed, attempt, calls_allowed, due_at, at,
    request)
SELECT :bucket, u.job_id, u.idx, u.name, u.mode, 'registered', true, u.attempt, u.calls_allowed, fanin.clock(),
    fanin.clock(), u.request
FROM unnest(:job_id::uuid[], :idx::int[], :name::text[], :mode::text[], :request::text[], :attempt::int[], --pg
    :calls_allowed::int[]) AS u (job_id, idx, name, mode, request, attempt, calls_allowed) WHERE true --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS name, value->>3 AS mode, value->>4 AS request, --lite
    value->>5 AS attempt, value->>6 AS calls_allowed FROM json_each(:rows)) AS u WHERE true --lite
ON CONFLICT (bucket, job_id, idx, name) DO UPDATE
    SET status = CASE WHEN e.status = 'calling' THEN 'calling' ELSE 'registered' END,
        relayed = true, settled_at = NULL, calls_allowed = e.calls + excluded.calls_allowed,
        due_at = CASE WHEN e.status = 'calling' THEN e.due_at ELSE excluded.due_at END
    WHERE (e.status = 'calling' OR e.status IN ('failed', 'unknown')) AND e.mode <> 'at_most_once'
RETURNING name;

-- name: hold_part
-- A call by the part's own attempt, under the fence: only the holder of the running part, and it stays the holder until
-- the row is written. One that has handed its work to a nested job holds it no more.
SELECT p.stripe FROM fanin.part AS p
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx
    AND p.status = 'running' AND p.attempt = :attempt AND p.claim_id = :claim_id AND NOT p.waiting
FOR NO KEY UPDATE OF p --pg
;

-- name: hold_stripe
-- And only while its job is not closed: who closes it waits for us, and then sees the effect.
SELECT s.stripe FROM fanin.job_stripe AS s
WHERE s.bucket = :bucket AND s.job_id = :job_id AND s.stripe = :stripe AND NOT s.closed
FOR NO KEY UPDATE OF s --pg
;

-- name: name_effect
-- The intent of a call that is about to be made. One that stands there already is the same effect.
INSERT INTO fanin.effect (bucket, job_id, idx, name, mode, status, relayed, attempt, calls_allowed, due_at, at, request)
VALUES (:bucket, :job_id, :idx, :name, :mode, 'registered', false, :attempt, :calls_allowed, fanin.clock(),
    fanin.clock(), :request)
ON CONFLICT (bucket, job_id, idx, name) DO NOTHING
RETURNING name;

-- name: call_now
-- The part's own attempt is about to call. What another one is calling is left alone until its time is over, and what
-- may be called once alone is never called again.
UPDATE fanin.effect AS e SET status = 'calling', claim_id = :caller_id, caller = :caller, relayed = false,
    doubtful = (e.doubtful OR e.status = 'calling'), calls = e.calls + 1, settled_at = NULL,
    calls_allowed = CASE WHEN e.calls < e.calls_allowed THEN e.calls_allowed ELSE e.calls + 1 END,
    due_at = fanin.clock() + :seconds
WHERE e.bucket = :bucket AND e.job_id = :job_id AND e.idx = :idx AND e.name = :name AND (
    (e.status = 'registered' AND e.calls < e.calls_allowed)
    OR (e.mode <> 'at_most_once' AND (e.status IN ('failed', 'unknown')
        OR (e.status = 'calling' AND e.due_at <= fanin.clock()))))
RETURNING e.doubtful;

-- name: find
-- One effect: before a call, and to say why a report changed nothing. A statement of its own, after the write.
SELECT e.status, e.mode, e.request, e.response, e.error, e.doubtful, e.claim_id, e.due_at - fanin.clock()
FROM fanin.effect AS e WHERE e.bucket = :bucket AND e.job_id = :job_id AND e.idx = :idx AND e.name = :name;

-- name: due_effects
-- A look before the claim, so that an idle relay never takes a write lock: seconds until the next one may be called.
SELECT e.due_at - fanin.clock() FROM fanin.effect AS e --pg
SELECT e.due_at - fanin.clock() FROM fanin.effect AS e INDEXED BY fanin.effect_due --lite
WHERE e.bucket = :bucket AND e.name = :name AND e.status IN ('registered', 'calling') AND e.due_at >= 0
    AND e.relayed AND e.calls < e.calls_allowed AND (e.status = 'registered' OR e.mode <> 'at_most_once')
ORDER BY e.due_at LIMIT 1;

-- name: claim_effects --pg
-- The next effects to be called, and those whose caller did not come back, if they may be called again.
WITH next AS MATERIALIZED (
    SELECT e.ctid AS place FROM fanin.effect AS e
    WHERE e.bucket = :bucket AND e.name = :name AND e.status IN ('registered', 'calling') AND e.due_at >= 0
        AND e.due_at <= fanin.clock() AND e.relayed AND e.calls < e.calls_allowed
        AND (e.status = 'registered' OR e.mode <> 'at_most_once')
    ORDER BY e.due_at
    LIMIT :limit
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE fanin.effect AS e SET status = 'calling', claim_id = :caller_id, caller = :caller, calls = e.calls + 1,
    doubtful = (e.doubtful OR e.status = 'calling'), due_at = fanin.clock() + :seconds
FROM next AS n
WHERE e.ctid = n.place AND e.status IN ('registered', 'calling') AND e.due_at <= fanin.clock()
RETURNING e.name;

-- name: claim_effects --lite
-- The next effects to be called, and those whose caller did not come back, if they may be called again.
WITH next AS MATERIALIZED (
    SELECT e.bucket, e.job_id, e.idx, e.name FROM fanin.effect AS e INDEXED BY fanin.effect_due
    WHERE e.bucket = :bucket AND e.name = :name AND e.status IN ('registered', 'calling') AND e.due_at >= 0
        AND e.due_at <= fanin.clock() AND e.relayed AND e.calls < e.calls_allowed
        AND (e.status = 'registered' OR e.mode <> 'at_most_once')
    ORDER BY e.due_at
    LIMIT :limit
)
UPDATE fanin.effect AS e SET status = 'calling', claim_id = :caller_id, caller = :caller, calls = e.calls + 1,
    doubtful = (e.doubtful OR e.status = 'calling'), due_at = fanin.clock() + :seconds
FROM next AS n
WHERE e.bucket = n.bucket AND e.job_id = n.job_id AND e.idx = n.idx AND e.name = n.name
    AND e.status IN ('registered', 'calling') AND e.due_at <= fanin.clock()
RETURNING e.name;

-- name: held_effects
-- What stands under a claim id: also what an earlier try of the same claim took, whose answer was lost.
SELECT e.job_id, e.idx, e.name, e.mode, e.request, e.calls, e.doubtful FROM fanin.effect AS e
WHERE e.bucket = :bucket AND e.status = 'calling' AND e.due_at >= 0 AND e.claim_id = :caller_id;

-- name: settle_effects --pg
-- rows: job_id, idx, name, caller_id, verb, final, doubtful, delay, response, error
-- What became of calls, in one guarded write, each for itself. That it has happened is heard from any caller; a refusal
-- only from the one that holds the effect. What may have happened is never called failed.
WITH mine AS MATERIALIZED (
    SELECT held.ctid AS place, u.verb, u.final, u.doubtful, u.delay, u.response, u.error
    FROM unnest(:job_id::uuid[], :idx::int[], :name::text[], :caller_id::uuid[], :verb::text[], :final::boolean[],
        :doubtful::boolean[], :delay::double precision[], :response::text[], :error::text[])
        AS u (job_id, idx, name, caller_id, verb, final, doubtful, delay, response, error)
    CROSS JOIN LATERAL (
        SELECT e.ctid FROM fanin.effect AS e
        WHERE e.bucket = :bucket AND e.job_id = u.job_id AND e.idx = u.idx AND e.name = u.name
            AND (u.verb = 'mark' OR e.claim_id = u.caller_id)
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.effect AS e SET
    status = CASE WHEN m.verb = 'mark' THEN 'done'
        WHEN e.relayed AND NOT m.final AND e.calls < e.calls_allowed AND e.mode <> 'at_most_once' THEN 'registered'
        WHEN m.doubtful THEN 'unknown' ELSE 'failed' END,
    settled_at = CASE WHEN m.verb = 'mark' OR NOT (e.relayed AND NOT m.final AND e.calls < e.calls_allowed
        AND e.mode <> 'at_most_once') THEN fanin.clock() END,
    doubtful = m.doubtful, due_at = fanin.clock() + m.delay, response = m.response, error = m.error
FROM mine AS m
WHERE e.ctid = m.place AND ((m.verb = 'mark' AND e.status IN ('registered', 'calling', 'failed', 'unknown'))
    OR (m.verb = 'refuse' AND e.status = 'calling'))
RETURNING e.job_id, e.idx, e.name, e.status;

-- name: settle_effects --lite
-- rows: job_id, idx, name, caller_id, verb, final, doubtful, delay, response, error
-- The same guarded write.
WITH mine AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS job_id, value->>1 AS idx, value->>2 AS name, value->>3 AS caller_id,
        value->>4 AS verb, value->>5 AS final, value->>6 AS doubtful, value->>7 AS delay, value->>8 AS response,
        value->>9 AS error
    FROM json_each(:rows)
)
UPDATE fanin.effect AS e SET
    status = CASE WHEN m.verb = 'mark' THEN 'done'
        WHEN e.relayed AND NOT m.final AND e.calls < e.calls_allowed AND e.mode <> 'at_most_once' THEN 'registered'
        WHEN m.doubtful THEN 'unknown' ELSE 'failed' END,
    settled_at = CASE WHEN m.verb = 'mark' OR NOT (e.relayed AND NOT m.final AND e.calls < e.calls_allowed
        AND e.mode <> 'at_most_once') THEN fanin.clock() END,
    doubtful = m.doubtful, due_at = fanin.clock() + m.delay, response = m.response, error = m.error
FROM mine AS m
WHERE e.bucket = m.bucket AND e.job_id = m.job_id AND e.idx = m.idx AND e.name = m.name
    AND ((m.verb = 'mark' AND e.status IN ('registered', 'calling', 'failed', 'unknown'))
    OR (m.verb = 'refuse' AND e.status = 'calling' AND e.claim_id = m.caller_id))
RETURNING e.job_id, e.idx, e.name, e.status;

-- name: overdue_effects
-- A look before the next one: whether a caller that nobody may replace has not come back in its time.
SELECT e.name FROM fanin.effect AS e --pg
SELECT e.name FROM fanin.effect AS e INDEXED BY fanin.effect_calling --lite
WHERE e.bucket = :bucket AND e.status = 'calling' AND e.due_at >= 0 AND e.due_at <= fanin.clock()
    AND (e.mode = 'at_most_once' OR NOT e.relayed OR e.calls >= e.calls_allowed)
LIMIT 1;

-- name: expire_effects --pg
-- Whether it has happened nobody can say: a person decides. An attempt that calls in any other mode than at_most_once
-- may still take it up.
WITH gone AS MATERIALIZED (
    SELECT e.ctid AS place FROM fanin.effect AS e
    WHERE e.bucket = :bucket AND e.status = 'calling' AND e.due_at >= 0 AND e.due_at <= fanin.clock()
        AND (e.mode = 'at_most_once' OR NOT e.relayed OR e.calls >= e.calls_allowed)
    ORDER BY e.due_at
    LIMIT :limit
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE fanin.effect AS e SET status = 'unknown', doubtful = true, settled_at = fanin.clock(), error = :error
FROM gone AS g
WHERE e.ctid = g.place AND e.status = 'calling' AND e.due_at <= fanin.clock()
RETURNING e.job_id, e.idx, e.name;

-- name: expire_effects --lite
-- Whether it has happened nobody can say: a person decides.
WITH gone AS MATERIALIZED (
    SELECT e.bucket, e.job_id, e.idx, e.name FROM fanin.effect AS e INDEXED BY fanin.effect_calling
    WHERE e.bucket = :bucket AND e.status = 'calling' AND e.due_at >= 0 AND e.due_at <= fanin.clock()
        AND (e.mode = 'at_most_once' OR NOT e.relayed OR e.calls >= e.calls_allowed)
    ORDER BY e.due_at
    LIMIT :limit
)
UPDATE fanin.effect AS e SET status = 'unknown', doubtful = true, settled_at = fanin.clock(), error = :error
FROM gone AS g
WHERE e.bucket = g.bucket AND e.job_id = g.job_id AND e.idx = g.idx AND e.name = g.name AND e.status = 'calling'
    AND e.due_at <= fanin.clock()
RETURNING e.job_id, e.idx, e.name;

-- name: settle_by_hand
-- A person has found out whether it happened. While somebody calls, nobody can know.
UPDATE fanin.effect AS e SET status = CASE WHEN :done THEN 'done' ELSE 'failed' END, doubtful = false,
    settled_at = fanin.clock(), response = :response, note = :note
WHERE e.bucket = :bucket AND e.job_id = :job_id AND e.idx = :idx AND e.name = :name
    AND (e.status = 'registered' OR e.status = 'unknown' OR (e.status = 'failed' AND :done))
RETURNING e.name;

-- name: retry_effects --pg
-- rows: job_id, idx, name
-- A person wants them called again, by the relay. What may have happened, and may not happen twice, has to be settled
-- as failed before.
WITH stuck AS MATERIALIZED (
    SELECT held.ctid AS place
    FROM unnest(:job_id::uuid[], :idx::int[], :name::text[]) AS u (job_id, idx, name)
    CROSS JOIN LATERAL (
        SELECT e.ctid FROM fanin.effect AS e
        WHERE e.bucket = :bucket AND e.job_id = u.job_id AND e.idx = u.idx AND e.name = u.name
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE fanin.effect AS e SET status = 'registered', relayed = true, due_at = fanin.clock(), settled_at = NULL,
    calls_allowed = e.calls + CASE WHEN e.mode = 'at_most_once' THEN 1 ELSE :allowance END
FROM stuck AS k
WHERE e.ctid = k.place AND (e.status = 'failed' OR (e.status = 'unknown' AND e.mode <> 'at_most_once'))
RETURNING e.job_id, e.idx, e.name;

-- name: retry_effects --lite
-- rows: job_id, idx, name
-- A person wants them called again, by the relay.
WITH stuck AS MATERIALIZED (
    SELECT :bucket AS bucket, value->>0 AS job_id, value->>1 AS idx, value->>2 AS name FROM json_each(:rows)
)
UPDATE fanin.effect AS e SET status = 'registered', relayed = true, due_at = fanin.clock(), settled_at = NULL,
    calls_allowed = e.calls + CASE WHEN e.mode = 'at_most_once' THEN 1 ELSE :allowance END
FROM stuck AS k
WHERE e.bucket = k.bucket AND e.job_id = k.job_id AND e.idx = k.idx AND e.name = k.name
    AND (e.status = 'failed' OR (e.status = 'unknown' AND e.mode <> 'at_most_once'))
RETURNING e.job_id, e.idx, e.name;

-- name: cancel_effects
-- A compensation comes before the call: what nobody has called, or was surely refused, will not be called any more. Nor
-- will what has failed, though somebody asks for it.
UPDATE fanin.effect AS e SET status = 'cancelled', settled_at = fanin.clock()
WHERE e.bucket = :bucket AND e.job_id = :job_id AND e.status IN ('registered', 'failed') AND NOT e.doubtful
RETURNING e.idx, e.name;

-- name: of_job
-- A page of a job's effects, by part and name.
SELECT e.job_id, e.idx, e.name, e.mode, e.status, e.relayed, e.doubtful, e.attempt, e.calls, e.calls_allowed, e.due_at,
    e.at, e.settled_at, e.request, e.response, e.error, e.note
FROM fanin.effect AS e
WHERE e.bucket = :bucket AND e.job_id = :job_id AND (e.idx > :idx OR (e.idx = :idx AND e.name > :name))
ORDER BY e.idx, e.name LIMIT :limit;

-- name: newest
-- The effects that changed last, of one state or of all.
SELECT e.job_id, e.idx, e.name, e.mode, e.status, e.relayed, e.doubtful, e.attempt, e.calls, e.calls_allowed, e.due_at,
    e.at, e.settled_at, e.request, e.response, e.error, e.note
FROM fanin.effect AS e
WHERE e.bucket = :bucket AND (:everything OR e.status = :status)
ORDER BY coalesce(e.settled_at, e.at) DESC, e.job_id, e.idx, e.name LIMIT :limit;

-- name: refused
-- Where the effects are that were surely not performed, for a person who wants all of them called again.
SELECT e.job_id, e.idx, e.name FROM fanin.effect AS e
WHERE e.bucket = :bucket AND e.status = 'failed' ORDER BY e.settled_at LIMIT :limit;

-- name: counts
-- How many effects are in each state, and the age of the oldest in seconds.
SELECT e.status, count(*), max(fanin.clock() - coalesce(e.settled_at, e.at)) FROM fanin.effect AS e
WHERE e.bucket = :bucket GROUP BY e.status;
