-- What parts leave in an object store. A row comes before its object and is kept longer, so every object is known.
--
-- Which objects count is decided by nothing but the part: those of the claim under which it succeeded. So the commit of
-- a part needs no statement here, and two attempts can never both have outputs. Claim ids are never used twice: an
-- output whose claim does not hold its part, and did not succeed, can never count again.
-- Lock order: outputs alone; the part is only read.

-- name: stage
-- Before an upload: only the holder of the running part leaves a row. Saying it again begins that output afresh. No lock
-- is needed: whoever loses the part a moment later leaves what he would have left a moment before. An attempt that has
-- handed its work to a nested job has said all: what it left by then counts with the end of that job.
INSERT INTO fanin.staged_output AS o (bucket, job_id, idx, claim_id, name, attempt, status, root, at)
SELECT p.bucket, p.job_id, p.idx, p.claim_id, :name, p.attempt, 'staged', :root, fanin.clock()
FROM fanin.part AS p
WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx
    AND p.status = 'running' AND p.attempt = :attempt AND p.claim_id = :claim_id AND NOT p.waiting
ON CONFLICT (bucket, job_id, idx, claim_id, name) DO UPDATE
    SET status = 'staged', root = excluded.root, size = NULL, digest = NULL, at = excluded.at
    WHERE o.status IN ('staged', 'ready')
RETURNING name;

-- name: mark_ready
-- After the upload. An attempt that has lost its part meanwhile leaves the row as it is, and the sweeper finds it.
UPDATE fanin.staged_output AS o SET status = 'ready', size = :size, digest = :digest, at = fanin.clock()
WHERE o.bucket = :bucket AND o.job_id = :job_id AND o.idx = :idx AND o.claim_id = :claim_id AND o.name = :name
    AND o.status IN ('staged', 'ready')
    AND EXISTS (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = :idx
            AND p.status = 'running' AND p.attempt = :attempt AND p.claim_id = :claim_id AND NOT p.waiting)
RETURNING o.name;

-- name: counting
-- A page of the outputs that count, in the order of the parts and by name.
SELECT o.idx, o.name, o.root, o.size, o.digest, o.attempt, o.claim_id
FROM fanin.staged_output AS o
JOIN fanin.part AS p ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
WHERE o.bucket = :bucket AND o.job_id = :job_id AND p.status = 'succeeded' AND o.status IN ('ready', 'kept')
    AND (o.idx > :idx OR (o.idx = :idx AND o.name > :name))
ORDER BY o.idx, o.name LIMIT :limit;

-- name: one_counting
-- One output of one part, if it counts.
SELECT o.idx, o.name, o.root, o.size, o.digest, o.attempt, o.claim_id
FROM fanin.staged_output AS o
JOIN fanin.part AS p ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
WHERE o.bucket = :bucket AND o.job_id = :job_id AND o.idx = :idx AND o.name = :name
    AND p.status = 'succeeded' AND o.status IN ('ready', 'kept');

-- name: keep
-- The outputs that count are decided: nobody looks at them again.
UPDATE fanin.staged_output AS o SET status = 'kept'
WHERE o.bucket = :bucket AND o.status = 'ready' AND o.at <= fanin.clock() - :grace
    AND EXISTS (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
            AND p.status = 'succeeded')
RETURNING o.name;

-- name: lost
-- Outputs whose claim neither holds its part nor succeeded with it, and unfinished ones of claims that have ended. That
-- cannot change again, so reading it is enough to remove the object.
SELECT o.job_id, o.idx, o.claim_id, o.name, o.attempt, o.root
FROM fanin.staged_output AS o
LEFT JOIN fanin.part AS p
    ON p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
WHERE o.bucket = :bucket AND o.status IN ('staged', 'ready') AND o.at <= fanin.clock() - :grace
    AND (p.status IS NULL OR p.status <> 'running')
    AND (o.status = 'staged' OR p.status IS NULL OR p.status <> 'succeeded')
ORDER BY o.at LIMIT :limit;

-- name: mark_swept
-- rows: job_id, idx, claim_id, name
-- The object is gone. The row stays until a late upload of the same attempt could not come any more.
UPDATE fanin.staged_output AS o SET status = 'swept', at = fanin.clock()
FROM unnest(:job_id::uuid[], :idx::int[], :claim_id::uuid[], :name::text[]) AS u (job_id, idx, claim_id, name) --pg
FROM (SELECT value->>0 AS job_id, value->>1 AS idx, value->>2 AS claim_id, value->>3 AS name FROM json_each(:rows)) AS u --lite
WHERE o.bucket = :bucket AND o.job_id = u.job_id AND o.idx = u.idx AND o.claim_id = u.claim_id AND o.name = u.name
    AND o.status IN ('staged', 'ready')
    AND NOT EXISTS (SELECT 1 FROM fanin.part AS p
        WHERE p.bucket = o.bucket AND p.job_id = o.job_id AND p.idx = o.idx AND p.claim_id = o.claim_id
            AND (p.status = 'running' OR (p.status = 'succeeded' AND o.status = 'ready')))
RETURNING o.name;

-- name: swept_before
-- Swept outputs whose object may have come back by a late upload, and has to be removed once more.
SELECT o.job_id, o.idx, o.claim_id, o.name, o.attempt, o.root
FROM fanin.staged_output AS o
WHERE o.bucket = :bucket AND o.status = 'swept' AND o.at <= fanin.clock() - :longest
ORDER BY o.at LIMIT :limit;

-- name: forget
-- rows: job_id, idx, claim_id, name
-- Nothing of them is left anywhere.
DELETE FROM fanin.staged_output AS o
USING unnest(:job_id::uuid[], :idx::int[], :claim_id::uuid[], :name::text[]) AS u (job_id, idx, claim_id, name) --pg
WHERE o.bucket = :bucket AND o.status = 'swept'
    AND o.job_id = u.job_id AND o.idx = u.idx AND o.claim_id = u.claim_id AND o.name = u.name --pg
    AND (o.job_id, o.idx, o.claim_id, o.name) IN ( --lite
        SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(:rows)) --lite
RETURNING o.name;

-- name: undecided
-- How many outputs lie there of which it is not decided whether they count, and the age of the oldest in seconds.
SELECT count(*), max(fanin.clock() - o.at) FROM fanin.staged_output AS o
WHERE o.bucket = :bucket AND o.status <> 'kept';
