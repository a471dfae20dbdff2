-- Files and large results that parts leave in an object store. The row is written before the object, so that nothing
-- lies there of which no row knows; an object of which the part's accepted claim does not speak is removed.

CREATE TABLE fanin.staged_output (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    idx integer NOT NULL,
    claim_id uuid NOT NULL,
    name text NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 1),
    status text NOT NULL CHECK (status IN ('staged', 'ready', 'kept', 'swept')),
    root text NOT NULL,
    size bigint,
    digest text,
    at double precision NOT NULL,
    PRIMARY KEY (bucket, job_id, idx, claim_id, name),
    CHECK (status NOT IN ('ready', 'kept') OR (size IS NOT NULL AND digest IS NOT NULL))
);
CREATE INDEX staged_output_undecided ON fanin.staged_output (bucket, at) WHERE status <> 'kept';
