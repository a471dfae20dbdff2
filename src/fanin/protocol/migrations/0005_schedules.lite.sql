-- Schedules by name, and what became of their slots. What a schedule does is declared in code; here stands what must
-- outlive it: the mark up to which all slots are decided, and what an operator said.

CREATE TABLE fanin.schedule (
    bucket integer NOT NULL,
    name text NOT NULL,
    timing text NOT NULL,
    spec text NOT NULL,
    mark real NOT NULL,
    job_id text,
    paused_at real,
    note text,
    asked_at real,
    error text,
    declared_at real NOT NULL,
    PRIMARY KEY (bucket, name),
    CHECK (note IS NULL OR paused_at IS NOT NULL)
) WITHOUT ROWID;

-- One row for each slot that was decided: fired with its job, skipped because that job was still live, or missed. missed
-- counts the slots before it that were passed over unfired, itself included if it was missed. The newest are kept.
CREATE TABLE fanin.firing (
    bucket integer NOT NULL,
    name text NOT NULL,
    slot real NOT NULL,
    by_hand boolean NOT NULL,
    what text NOT NULL CHECK (what IN ('fired', 'skipped', 'missed')),
    job_id text CHECK (what = 'missed' OR job_id IS NOT NULL),
    missed integer NOT NULL CHECK (missed >= 0),
    at real NOT NULL,
    PRIMARY KEY (bucket, name, slot, by_hand),
    FOREIGN KEY (bucket, name) REFERENCES fanin.schedule (bucket, name) ON DELETE CASCADE
) WITHOUT ROWID;
