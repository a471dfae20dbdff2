-- Jobs, their counters, their parts, the history of attempts, and the outbox.
--
-- Every key begins with bucket, the stable hash of the job id, so that all rows of a job live together on a sharded
-- database. Times are seconds since the epoch, read through fanin.clock() alone (a function that each connection
-- registers), so that a test can move them.

CREATE TABLE fanin.setting (
    name text PRIMARY KEY,
    value text NOT NULL
) WITHOUT ROWID;

CREATE TABLE fanin.job (
    bucket integer NOT NULL,
    id text NOT NULL,
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
    stripes integer NOT NULL CHECK (stripes >= 1),
    turn integer NOT NULL,
    priority integer NOT NULL,
    attempts integer NOT NULL CHECK (attempts >= 1),
    policy text NOT NULL,
    successor text,
    parent_id text,
    root_id text,
    step text,
    depth integer NOT NULL CHECK (depth >= 0),
    meta text,
    created_at real NOT NULL,
    give_up_at real,
    finished_at real,
    succeeded_parts integer,
    failed_parts integer,
    abandoned_parts integer,
    events integer NOT NULL DEFAULT 0 CHECK (events >= 0),
    PRIMARY KEY (bucket, id),
    CHECK ((status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((finished_at IS NOT NULL) = (outcome IS NOT NULL)),
    CHECK (status <> 'open' OR give_up_at IS NOT NULL)
) WITHOUT ROWID;
-- Always true, but not known to be: a small table's planner would else take this index to look up one job by its id,
-- and go on doing so in a prepared statement when the table has grown.
CREATE INDEX fanin.job_recent ON fanin.job (bucket, created_at) WHERE created_at > 0;
CREATE INDEX fanin.job_give_up ON fanin.job (bucket, give_up_at)
    WHERE status IN ('open', 'running') AND give_up_at IS NOT NULL;
CREATE INDEX fanin.job_family ON fanin.job (bucket, parent_id) WHERE parent_id IS NOT NULL;

-- One slice of a job's counters. remaining counts the live parts of the slice, always, also after a close.
CREATE TABLE fanin.job_stripe (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    stripe integer NOT NULL,
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
) WITHOUT ROWID;
CREATE INDEX fanin.job_stripe_unswept ON fanin.job_stripe (bucket, job_id, stripe) WHERE closed AND remaining > 0;

-- ready: may be claimed now, in the order of (priority, turn). Else due_at says when a pending part becomes ready or
-- when the lease of a running one ends.
CREATE TABLE fanin.part (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    idx integer NOT NULL CHECK (idx >= 0),
    stripe integer NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'running', 'succeeded', 'failed', 'abandoned')),
    ready boolean NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    priority integer NOT NULL,
    turn integer NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_allowed integer NOT NULL,
    due_at real NOT NULL,
    claim_id text,
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
) WITHOUT ROWID;
CREATE INDEX fanin.part_ready ON fanin.part (bucket, queue, priority DESC, turn, job_id, idx) WHERE ready;
CREATE INDEX fanin.part_due ON fanin.part (bucket, due_at) WHERE status IN ('pending', 'running') AND NOT ready;

-- What happened to attempts that did not simply succeed: retried, failed, released, lease_lost, refused.
CREATE TABLE fanin.attempt_log (
    bucket integer NOT NULL,
    job_id text NOT NULL,
    idx integer NOT NULL,
    attempt integer NOT NULL,
    what text NOT NULL CHECK (what IN ('retried', 'failed', 'released', 'lease_lost', 'refused')),
    at real NOT NULL,
    worker text,
    holder integer,
    error text,
    PRIMARY KEY (bucket, job_id, idx, attempt, what)
) WITHOUT ROWID;

-- Events leave through here, written by the transaction that made them true.
CREATE TABLE fanin.outbox (
    bucket integer NOT NULL,
    event_key text NOT NULL,
    job_id text NOT NULL,
    seq integer NOT NULL CHECK (seq >= 1),
    type text NOT NULL,
    payload text NOT NULL,
    at real NOT NULL,
    claimed_until real,
    published_at real,
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    PRIMARY KEY (bucket, event_key)
) WITHOUT ROWID;
CREATE INDEX fanin.outbox_unpublished ON fanin.outbox (bucket, at) WHERE published_at IS NULL;
CREATE INDEX fanin.outbox_job ON fanin.outbox (bucket, job_id);
