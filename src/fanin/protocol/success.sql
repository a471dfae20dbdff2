-- A batch of successes that are expected to be heard. Parts are written by finish.settle_parts.
-- Lock order: as in finish.

-- name: count_expected
-- Said before it is known whether the reports were heard. A counter that is closed, judged, or too low for them is left
-- alone, and that is noticed: all is rolled back, and the batch is settled step by step.
UPDATE fanin.job_stripe SET remaining = remaining - :succeeded, succeeded = succeeded + :succeeded
WHERE bucket = :bucket AND job_id = :job_id AND stripe = :stripe AND NOT closed AND NOT judged
    AND remaining >= :succeeded
RETURNING remaining, sealed;
