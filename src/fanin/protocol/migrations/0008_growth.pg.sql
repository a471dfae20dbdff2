-- Growing jobs: a part that runs adds parts to its own job.
--
-- width: the most parts that the job may have, spawned ones included; null in a job that does not grow. spawn_from: the
-- index of its first spawned part. spawned: how many of a counter's created parts were spawned. spawned_by: the index of
-- the part that spawned this one; null where it was planned.

ALTER TABLE fanin.job ADD COLUMN width integer CHECK (width >= 0);
ALTER TABLE fanin.job ADD COLUMN spawn_from integer CHECK ((spawn_from IS NULL) = (width IS NULL));
ALTER TABLE fanin.job_stripe ADD COLUMN spawned integer NOT NULL DEFAULT 0 CHECK (spawned BETWEEN 0 AND created);
ALTER TABLE fanin.part ADD COLUMN spawned_by integer;

-- What a growing job has seen: one key for each of its parts. key: the first half of a SHA-256.
CREATE TABLE fanin.part_key (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    key uuid NOT NULL,
    PRIMARY KEY (bucket, job_id, key)
);
