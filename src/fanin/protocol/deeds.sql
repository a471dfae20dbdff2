-- What was done to a job or a flow from outside its handlers, by whom and why. For people; and a deed that is said again
-- finds itself here.
-- Lock order: inserts last.

-- name: write_down
-- In the transaction of the deed, so that there is no deed without its line. job_id: of a job or a flow; of a flow, idx is
-- the step.
INSERT INTO fanin.job_log (bucket, job_id, id, run, at, what, idx, who, reason)
SELECT :bucket, r.id, :id, r.run, fanin.clock(), :what, :idx, :who, :reason
FROM (SELECT j.id, j.run FROM fanin.job AS j WHERE j.bucket = :bucket AND j.id = :job_id
    UNION ALL SELECT f.id, f.run FROM fanin.flow AS f WHERE f.bucket = :bucket AND f.id = :job_id) AS r;

-- name: written
-- The run in which this very deed was done: whoever says it again has lost the answer.
SELECT run FROM fanin.job_log WHERE bucket = :bucket AND job_id = :job_id AND id = :id;
