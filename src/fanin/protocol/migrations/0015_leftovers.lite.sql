-- What is left of a purged job goes after what is left below it, so that its key is free only when all of it is gone.

-- The job above it in its tree, or its flow, which has a row too.
ALTER TABLE fanin.leftover ADD COLUMN parent_id text;
UPDATE fanin.leftover SET parent_id = flow_id;
INSERT INTO fanin.leftover (bucket, job_id, outputs, at)
    SELECT bucket, flow_id, false, min(at) FROM fanin.leftover WHERE flow_id IS NOT NULL GROUP BY bucket, flow_id;
DROP INDEX fanin.leftover_flow;
ALTER TABLE fanin.leftover DROP COLUMN flow_id;
CREATE INDEX fanin.leftover_parent ON fanin.leftover (parent_id) WHERE parent_id IS NOT NULL;
