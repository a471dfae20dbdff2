-- Flows: steps that a person has given up to undo, tasks that listen to ends, and their removal.

-- By the type of the event, the jobs that its transaction makes.
ALTER TABLE fanin.flow ADD COLUMN listeners text;

ALTER TABLE fanin.flow_step DROP CONSTRAINT flow_step_status_check;
ALTER TABLE fanin.flow_step ADD CONSTRAINT flow_step_status_check CHECK (status IN ('waiting', 'running', 'done', 'failed',
    'skipped', 'undoing', 'undone', 'nothing_to_undo', 'not_undone', 'manual', 'undo_failed'));

-- Of a job that was removed with its flow. A flow with the same key has to wait until none of them is left.
ALTER TABLE fanin.leftover ADD COLUMN flow_id uuid;
CREATE INDEX leftover_flow ON fanin.leftover (bucket, flow_id) WHERE flow_id IS NOT NULL;
