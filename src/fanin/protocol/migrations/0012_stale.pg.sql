-- What is too old when it would start: a successor or a step of one part, which nobody claims any more from then on.

ALTER TABLE fanin.job ADD COLUMN stale_at double precision;
ALTER TABLE fanin.job ADD COLUMN stale text CHECK (stale IN ('skip', 'fail'));
-- Judged once, soon after the moment: one that has started in time does not stay in this index, nor does one that ended.
CREATE INDEX job_stale ON fanin.job (bucket, stale_at) WHERE stale_at IS NOT NULL;
