-- Events beside those of the ends, for the jobs that ask for them.
--
-- failure_events: whether each part that fails for good has an event. progress_every: seconds between two events that tell
-- how far the job is; null for none. progress_at: when the next one is due; null unless the job is live. progress_told: how
-- many parts had ended by the last one.

ALTER TABLE fanin.job ADD COLUMN failure_events integer NOT NULL DEFAULT 0;
ALTER TABLE fanin.job ADD COLUMN progress_every real CHECK (progress_every > 0);
ALTER TABLE fanin.job ADD COLUMN progress_at real;
ALTER TABLE fanin.job ADD COLUMN progress_told integer NOT NULL DEFAULT 0;
CREATE INDEX fanin.job_progress ON fanin.job (bucket, progress_at) WHERE progress_at IS NOT NULL;
