-- Events are delivered by relays. An event waits, is claimed by a relay until due_at, and is then published, or waits
-- again until due_at, or is parked for a person after too many refusals.
--
-- Whoever writes an event needs none of these columns.

ALTER TABLE fanin.outbox ADD COLUMN status text NOT NULL DEFAULT 'waiting'
    CHECK (status IN ('waiting', 'claimed', 'published', 'parked'));
ALTER TABLE fanin.outbox ADD COLUMN due_at real NOT NULL DEFAULT 0;
ALTER TABLE fanin.outbox ADD COLUMN relay text;
ALTER TABLE fanin.outbox ADD COLUMN error text;
UPDATE fanin.outbox SET due_at = at, status = CASE WHEN published_at IS NULL THEN 'waiting' ELSE 'published' END;
ALTER TABLE fanin.outbox ADD COLUMN claim_id text CHECK (status <> 'claimed' OR claim_id IS NOT NULL)
    CHECK ((status = 'published') = (published_at IS NOT NULL));
ALTER TABLE fanin.outbox ADD COLUMN parked_at real CHECK (status <> 'parked' OR parked_at IS NOT NULL)
    CHECK (status <> 'parked' OR error IS NOT NULL);
DROP INDEX fanin.outbox_unpublished;
ALTER TABLE fanin.outbox DROP COLUMN claimed_until;
-- Neither index is of use to find an event by its key, and a small table's planner must see that: due_at is never below
-- 0, which it does not know, and job_id stands before bucket.
CREATE INDEX fanin.outbox_due ON fanin.outbox (bucket, due_at, event_key)
    WHERE status IN ('waiting', 'claimed') AND due_at >= 0;
DROP INDEX fanin.outbox_job;
CREATE INDEX fanin.outbox_job ON fanin.outbox (job_id, bucket);
CREATE INDEX fanin.outbox_parked ON fanin.outbox (bucket, event_key) WHERE status = 'parked';
CREATE INDEX fanin.outbox_recent ON fanin.outbox (bucket, at) WHERE at > 0;

-- What is to be run when a run of the job ends, however it ends: a JSON list, written with the job.
ALTER TABLE fanin.job ADD COLUMN listeners text;
