-- How far the jobs are that tell their progress.
-- Lock order: one job row, and nothing else.

-- name: overdue
-- Jobs whose next event about their progress is due.
SELECT id FROM fanin.job WHERE bucket = :bucket AND progress_at IS NOT NULL AND progress_at <= fanin.clock()
ORDER BY progress_at LIMIT :limit;

-- name: take_moment
-- Of several workers that see the moment one has it. The row is held until the event is written, so that a later event
-- never tells of less. A job that has ended has no moment.
UPDATE fanin.job SET progress_at = fanin.clock() + progress_every
WHERE bucket = :bucket AND id = :job_id AND progress_at <= fanin.clock()
RETURNING run, status, key, task;

-- name: counts
-- How many parts have ended, and how many have not. The stripes go on meanwhile.
SELECT sum(succeeded), sum(failed), sum(remaining) FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id;

-- name: tell
-- The event's place in the order of those of the job, which this transaction holds.
UPDATE fanin.job SET events = events + 1, progress_told = :told
WHERE bucket = :bucket AND id = :job_id AND progress_told < :told
RETURNING events;

-- name: announce
-- No ON CONFLICT: two events with one place in the order of their job are a bug and must abort.
INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at)
VALUES (:bucket, :event_key, :job_id, :seq, 'job.progress', :payload, fanin.clock(), fanin.clock());
