-- Schedules by name, and what became of their slots. What a schedule does is declared in code; here stands what must
-- outlive it: the mark up to which all slots are decided, and what an operator said.

CREATE TABLE fanin.schedule (
    bucket smallint NOT NULL,
    name text NOT NULL,
    timing text NOT NULL,
    spec text NOT NULL,
    mark double precision NOT NULL,
    job_id uuid,
    paused_at double precision,
    note text,
    asked_at double precision,
    error text,
    declared_at double precision NOT NULL,
    PRIMARY KEY (bucket, name),
    CHECK (note IS NULL OR paused_at IS NOT NULL)
);

-- One row for each slot that was decided: fired with its job, skipped because that job was still live, or missed. missed
-- counts the slots before it that were passed over unfired, itself included if it was missed. The newest are kept.
CREATE TABLE fanin.firing (
    bucket smallint NOT NULL,
    name text NOT NULL,
    slot double precision NOT NULL,
    by_hand boolean NOT NULL,
    what text NOT NULL CHECK (what IN ('fired', 'skipped', 'missed')),
    job_id uuid CHECK (what = 'missed' OR job_id IS NOT NULL),
    missed bigint NOT NULL CHECK (missed >= 0),
    at double precision NOT NULL,
    PRIMARY KEY (bucket, name, slot, by_hand),
    FOREIGN KEY (bucket, name) REFERENCES fanin.schedule (bucket, name) ON DELETE CASCADE
);
