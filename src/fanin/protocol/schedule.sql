-- Schedules: their marks, and what became of their slots.
-- Lock order: the schedule's row before everything else, then the inserts of its job. Nobody else locks that row.

-- name: declare
-- A schedule is known from the moment when a worker first brings it along, and has no slots before that.
INSERT INTO fanin.schedule (bucket, name, timing, spec, mark, declared_at)
VALUES (:bucket, :name, :timing, :spec, fanin.clock(), fanin.clock())
ON CONFLICT (bucket, name) DO NOTHING
RETURNING name;

-- name: redeclare
-- What the code says now. Another timing begins anew: what the old one has missed is not made up for.
UPDATE fanin.schedule SET timing = :timing, spec = :spec, declared_at = fanin.clock(),
    mark = CASE WHEN timing <> :timing AND mark < fanin.clock() THEN fanin.clock() ELSE mark END
WHERE bucket = :bucket AND name = :name AND (timing <> :timing OR spec <> :spec)
RETURNING name;

-- name: look
-- All schedules of a bucket and the time.
SELECT name, timing, spec, mark, job_id, paused_at, note, asked_at, error, fanin.clock() FROM fanin.schedule
WHERE bucket = :bucket ORDER BY name;

-- name: lock
-- Whoever holds this row decides the next slot.
SELECT mark, job_id, paused_at, asked_at, fanin.clock() FROM fanin.schedule WHERE bucket = :bucket AND name = :name
FOR NO KEY UPDATE --pg
;

-- name: latest_job
-- Whether the job of the latest firing, or a successor of it, is live, and when the last of them ended. Read after the
-- schedule's row was locked, so that no firing lies between.
WITH RECURSIVE family (id, status, finished_at) AS (
    SELECT id, status, finished_at FROM fanin.job WHERE bucket = :bucket AND id = :job_id
    UNION ALL
    SELECT j.id, j.status, j.finished_at FROM family AS f
    JOIN fanin.job AS j ON j.bucket = :bucket AND j.parent_id = f.id
    WHERE substr(j.step, 1, 3) <> 'on/'
)
SELECT coalesce(max(CASE WHEN status IN ('open', 'running') THEN 1 ELSE 0 END), 0), max(finished_at) FROM family;

-- name: advance
-- The slot is decided: the mark moves on from where it was seen, if nobody has paused.
UPDATE fanin.schedule SET mark = :slot, job_id = coalesce(:job_id, job_id), error = NULL
WHERE bucket = :bucket AND name = :name AND mark = :seen AND paused_at IS NULL
RETURNING name;

-- name: answer
-- What an operator asked for is done.
UPDATE fanin.schedule SET asked_at = NULL, job_id = coalesce(:job_id, job_id), error = NULL
WHERE bucket = :bucket AND name = :name AND asked_at = :slot
RETURNING name;

-- name: log_firing
-- No ON CONFLICT: a slot that is decided twice is a bug and must abort.
INSERT INTO fanin.firing (bucket, name, slot, by_hand, what, job_id, missed, at)
VALUES (:bucket, :name, :slot, :by_hand, :what, :job_id, :missed, fanin.clock());

-- name: log_filled
-- A slot that is filled in afterwards may have been skipped or missed before.
INSERT INTO fanin.firing AS f (bucket, name, slot, by_hand, what, job_id, missed, at)
VALUES (:bucket, :name, :slot, false, 'fired', :job_id, 0, fanin.clock())
ON CONFLICT (bucket, name, slot, by_hand) DO UPDATE SET what = 'fired', job_id = excluded.job_id, at = excluded.at
WHERE f.what <> 'fired'
RETURNING slot;

-- name: oldest_kept
-- Of the slots' fates the newest are kept.
SELECT at, slot FROM fanin.firing WHERE bucket = :bucket AND name = :name
ORDER BY at DESC, slot DESC LIMIT 1 OFFSET :keep;

-- name: trim
-- The others are forgotten; their jobs are not.
DELETE FROM fanin.firing WHERE bucket = :bucket AND name = :name
    AND (at < :at OR (at = :at AND slot <= :slot));

-- name: pause
-- From now on no slot is fired.
UPDATE fanin.schedule SET paused_at = fanin.clock(), note = :note
WHERE bucket = :bucket AND name = :name AND paused_at IS NULL
RETURNING name;

-- name: resume
-- Slots that passed while it was paused are not made up for.
UPDATE fanin.schedule SET paused_at = NULL, note = NULL,
    mark = CASE WHEN mark < fanin.clock() THEN fanin.clock() ELSE mark END
WHERE bucket = :bucket AND name = :name AND paused_at IS NOT NULL
RETURNING name;

-- name: ask
-- An operator wants it fired now; a worker does it, and this moment is its slot. No two requests have the same one, though
-- the clock stands still or was put back: the next begins a millisecond after the last.
UPDATE fanin.schedule SET asked_at = coalesce((SELECT max(f.slot) + 0.001 FROM fanin.firing AS f
    WHERE f.bucket = :bucket AND f.name = :name AND f.by_hand AND f.slot >= fanin.clock()), fanin.clock())
WHERE bucket = :bucket AND name = :name AND asked_at IS NULL
RETURNING asked_at;

-- name: note_error
-- Why a slot that has come is not fired yet, for people.
UPDATE fanin.schedule SET error = :error WHERE bucket = :bucket AND name = :name AND coalesce(error, '') <> :error
RETURNING name;

-- name: forget_firings
-- A schedule that is forgotten takes its history along.
DELETE FROM fanin.firing WHERE bucket = :bucket AND name = :name;

-- name: forget
-- Its jobs stay. If the code still declares it, it begins anew.
DELETE FROM fanin.schedule WHERE bucket = :bucket AND name = :name
RETURNING name;

-- name: firings
-- What became of the latest slots, by their time: those that were filled in afterwards stand where they belong.
SELECT slot, what, job_id, missed, by_hand, at FROM fanin.firing WHERE bucket = :bucket AND name = :name
ORDER BY slot DESC, by_hand DESC LIMIT :limit;
