-- Jobs, their counters, their parts, the history of attempts, and the outbox.
--
-- Every key begins with bucket, the stable hash of the job id, so that all rows of a job live together on a sharded
-- database. Times are seconds since the epoch, read through fanin.clock() alone, so that a test can move them.

CREATE FUNCTION fanin.clock() RETURNS double precision LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT extract(epoch FROM statement_timestamp())::double precision $$;

CREATE TABLE fanin.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE fanin.job (
    bucket smallint NOT NULL,
    id uuid NOT NULL,
    task text NOT NULL,
    queue text NOT NULL,
    key text,
    request_hash text,
    status text NOT NULL CHECK (status IN ('open', 'running', 'completed', 'failed', 'cancelled')),
    outcome text CHECK (outcome IN
        ('all_ok', 'with_failures', 'partial', 'gave_up', 'too_many_failures', 'cancelled', 'refused')),
    reason text,
    run integer NOT NULL DEFAULT 1 CHECK (run >= 1),
    planned_parts integer CHECK (planned_parts >= 0),
    sealed_parts integer CHECK (sealed_parts >= 0),
    open_stripes integer NOT NULL CHECK (open_stripes >= 0),
    stripes smallint NOT NULL CHECK (stripes >= 1),
    turn bigint NOT NULL,
    priority smallint NOT NULL,
    attempts integer NOT NULL CHECK (attempts >= 1),
    policy text NOT NULL,
    successor text,
    parent_id uuid,
    root_id uuid,
    step text,
    depth integer NOT NULL CHECK (depth >= 0),
    meta text,
    created_at double precision NOT NULL,
    give_up_at double precision,
    finished_at double precision,
    succeeded_parts integer,
    failed_parts integer,
    abandoned_parts integer,
    events integer NOT NULL DEFAULT 0 CHECK (events >= 0),
    PRIMARY KEY (bucket, id),
    CHECK ((status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((finished_at IS NOT NULL) = (outcome IS NOT NULL)),
    CHECK (status <> 'open' OR give_up_at IS NOT NULL)
) WITH (fillfactor = 50);
-- Always true, but not known to be: a small table's planner would else take this index to look up one job by its id,
-- and go on doing so in a prepared statement when the table has grown.
CREATE INDEX job_recent ON fanin.job (bucket, created_at) WHERE created_at > 0;
CREATE INDEX job_give_up ON fanin.job (bucket, give_up_at)
    WHERE status IN ('open', 'running') AND give_up_at IS NOT NULL;
CREATE INDEX job_family ON fanin.job (bucket, parent_id) WHERE parent_id IS NOT NULL;

-- One slice of a job's counters. remaining counts the live parts of the slice, always, also after a close.
CREATE TABLE fanin.job_stripe (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    stripe smallint NOT NULL,
    created integer NOT NULL CHECK (created >= 0),
    remaining integer NOT NULL CHECK (remaining >= 0),
    succeeded integer NOT NULL CHECK (succeeded >= 0),
    failed integer NOT NULL CHECK (failed >= 0),
    abandoned integer NOT NULL CHECK (abandoned >= 0),
    sealed boolean NOT NULL,
    closed boolean NOT NULL,
    judged boolean NOT NULL,
    PRIMARY KEY (bucket, job_id, stripe),
    FOREIGN KEY (bucket, job_id) REFERENCES fanin.job (bucket, id) ON DELETE CASCADE,
    CHECK (created = remaining + succeeded + failed + abandoned)
) WITH (fillfactor = 50);
CREATE INDEX job_stripe_unswept ON fanin.job_stripe (bucket, job_id, stripe) WHERE closed AND remaining > 0;

-- ready: may be claimed now, in the order of (priority, turn). Else due_at says when a pending part becomes ready or
-- when the lease of a running one ends.
CREATE TABLE fanin.part (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    idx integer NOT NULL CHECK (idx >= 0),
    stripe smallint NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'running', 'succeeded', 'failed', 'abandoned')),
    ready boolean NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    priority smallint NOT NULL,
    turn bigint NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_allowed integer NOT NULL,
    due_at double precision NOT NULL,
    claim_id uuid,
    worker text,
    checkpoint_attempt integer,
    payload text NOT NULL,
    checkpoint text,
    result text,
    PRIMARY KEY (bucket, job_id, idx),
    CHECK (NOT ready OR status IN ('pending', 'running')),
    CHECK (attempt <= attempts_allowed),
    CHECK (status <> 'pending' OR attempt < attempts_allowed),
    CHECK (NOT ready OR attempt < attempts_allowed),
    CHECK ((status = 'succeeded') = (result IS NOT NULL)),
    CHECK (checkpoint_attempt IS NULL OR checkpoint_attempt <= attempt),
    CHECK (attempt = 0 OR claim_id IS NOT NULL)
) WITH (fillfactor = 70, toast_tuple_target = 256,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE fanin.part ALTER payload SET STORAGE EXTERNAL, ALTER checkpoint SET STORAGE EXTERNAL,
    ALTER result SET STORAGE EXTERNAL;
CREATE INDEX part_ready ON fanin.part (bucket, queue, priority DESC, turn, job_id, idx) WHERE ready;
CREATE INDEX part_due ON fanin.part (bucket, due_at) WHERE status IN ('pending', 'running') AND NOT ready;

-- What happened to attempts that did not simply succeed: retried, failed, released, lease_lost, refused.
CREATE TABLE fanin.attempt_log (
    bucket smallint NOT NULL,
    job_id uuid NOT NULL,
    idx integer NOT NULL,
    attempt integer NOT NULL,
    what text NOT NULL CHECK (what IN ('retried', 'failed', 'released', 'lease_lost', 'refused')),
    at double precision NOT NULL,
    worker text,
    holder integer,
    error text,
    PRIMARY KEY (bucket, job_id, idx, attempt, what)
);

-- Events leave through here, written by the transaction that made them true. xid lets an ordered reader wait.
CREATE TABLE fanin.outbox (
    bucket smallint NOT NULL,
    event_key text NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL CHECK (seq >= 1),
    type text NOT NULL,
    payload text NOT NULL,
    at double precision NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    claimed_until double precision,
    published_at double precision,
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    PRIMARY KEY (bucket, event_key)
);
CREATE INDEX outbox_unpublished ON fanin.outbox (bucket, at) WHERE published_at IS NULL;
CREATE INDEX outbox_job ON fanin.outbox (bucket, job_id);
