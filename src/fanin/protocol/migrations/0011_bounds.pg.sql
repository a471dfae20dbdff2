-- The bound of a tree of jobs, and jobs that are split because they are too wide for one.

-- tree_weight: how many units of parts the job counts for in the tree below its root; null for none, as for most jobs. Small
-- jobs count for a whole unit or for nothing, by a draw that follows from their id.
-- batch: the job was split; its parts are batches of so many items, each a job of its own.
ALTER TABLE fanin.job ADD COLUMN tree_weight integer CHECK (tree_weight > 0);
ALTER TABLE fanin.job ADD COLUMN batch integer CHECK (batch > 0);
-- root_id stands before bucket: so it is not used to find a job by its id.
CREATE INDEX job_tree ON fanin.job (root_id, bucket, tree_weight) WHERE tree_weight IS NOT NULL;
