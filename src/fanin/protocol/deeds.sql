-- What was done to a job from outside its handlers, by whom and why. For people; nothing is decided by it.
-- Lock order: inserts last.

-- name: write_down
-- In the transaction of the deed, so that there is no deed without its line.
INSERT INTO fanin.job_log (bucket, job_id, id, run, at, what, idx, who, reason)
SELECT :bucket, j.id, :id, j.run, fanin.clock(), :what, :idx, :who, :reason
FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = :job_id;
