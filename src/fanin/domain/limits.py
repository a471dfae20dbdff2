"""Every bound of the product in one place; the unit stands last in the name."""

from __future__ import annotations

JOB_WIDTH_PARTS = 10_000_000
"""Parts of one job, unless the application sets a lower ``max_parts``."""
INDEX_PARTS = 2 * JOB_WIDTH_PARTS
"""Indexes of the parts of one job: those that a part spawns come after all that may be planned."""
TREE_PARTS = 100_000_000
"""Parts, and jobs, below one job that was submitted from outside any handler; more are refused. It is an estimate."""
TREE_UNIT_PARTS = 100_000
"""Trees are counted in units of so many parts: a smaller job counts for one unit, or for none, by a draw."""
FLOW_STEPS = 10_000
"""Steps of one flow."""
NAMED_STEPS = 100
"""Steps that the event of a flow's end names, beside their counts."""
JOB_DEPTH_LEVELS = 50
"""How deep a job may stand below the one that was submitted from outside any handler."""
PAYLOAD_BYTES = 1_000_000
"""One part's arguments as JSON."""
RESULT_BYTES = 1_000_000
"""One part's result as JSON in its row; a larger one lies outside, as an output."""
LARGE_RESULT_BYTES = 256_000_000
"""A result that lies outside: it is still made and read as a whole."""
ERROR_BYTES = 16_000
"""One recorded failure: type, message and traceback as JSON. Longer ones are cut in the middle."""
CHECKPOINT_BYTES = 1_000_000
NAME_CHARS = 200
"""Task, queue and step names, and worker names."""
KEY_CHARS = 500
"""A job's request key."""
REASON_CHARS = 1_000
"""Why an operator ended a job."""
ATTEMPTS = 1_000
"""The allowance that a caller may give to one part."""
CHUNK_PARTS = 2_000
"""Parts written by one INSERT."""
CHUNK_BYTES = 2_000_000
"""Payload bytes written by one INSERT."""
SPOOL_BYTES = 16_000_000
"""Payloads held in memory by a submit before they go to a temporary file."""
SPAWN_PARTS = 2_000
"""Parts that one part adds to its job in its own commit; with ``now=True`` there may be more."""
SPAWN_BYTES = 2_000_000
"""Payload bytes of those."""
CLAIM_PARTS = 256
"""Parts taken by one claim."""
JOB_LISTENERS = 20
"""Jobs that the end of one run creates beside its successor."""
PROGRESS_SECONDS_MIN = 1.0
"""The least time between two events that tell how far a job is."""
CLAIM_EVENTS = 1_000
"""Events taken by one claim of a relay."""
EVENT_TRIES = 20
"""An event that was refused so often, or lost with its relay, is parked."""
PART_EFFECTS = 100
"""Effects of one part."""
EFFECT_BYTES = 256_000
"""The request, or the response, of one effect as JSON."""
EFFECT_CALLS = 20
"""Calls of one effect, unless its handler says otherwise."""
CALL_SECONDS_MAX = 3_600.0
"""The longest that one call of an effect may take."""
CLAIM_EFFECTS = 100
"""Effects taken by one claim."""
SWEEP_PARTS = 2_000
"""Parts abandoned by one sweep transaction."""
WAKE_PARTS = 1_000
"""Parts made ready by one wake transaction."""
REAP_PARTS = 100
REPAIR_PARTS = 1_000
"""Parts mended by one transaction of a repair."""
REPAIR_PAGE_MAX = 1_000
"""Jobs that a repair lists at once."""
REPAIRS_TOLD_MAX = 1_000
"""Lines that a repair returns; all of them are kept with their jobs."""
OVERDUE_SECONDS = 86_400.0
"""An open job that nobody has given up so long after its deadline is told as damaged."""
LOOK_ROWS = 1_000_000
"""Jobs, flows, or slots of a schedule that one call may ask for."""
STRIPES = 64
STRIPE_RUN_PARTS = 64
"""Neighbouring parts share a stripe, so that a batch of one claim counts down on few rows."""
LEASE_SECONDS_MIN = 0.5
LEASE_SECONDS_MAX = 7 * 86_400.0
DELAY_SECONDS_MAX = 365 * 86_400.0
"""Back-off, delay and give-up times are cut to a year: no arithmetic on them can overflow."""
INSTANT_SECONDS_MAX = 253_402_300_799
"""The end of the year 9999, the last that a datetime knows."""
NEVER_SECONDS = 253_402_300_799.0
"""The last second of the year 9999: when a part is due that waits for a nested job."""
HELD_SECONDS = 1e12
"""Added to the moment for which a part of a paused job waits: some thirty thousand years, and far from any other."""
OPEN_SECONDS = 7 * 86_400.0
"""An open job whose creator never seals it is given up after this."""
PRIORITY_MAX = 1_000
TRANSACTION_TRIES = 12
BUCKETS = 1_024
SCHEDULES = 1_000
"""Schedules of one application."""
SCHEDULE_CATCH_UP_SLOTS = 1_000
"""Missed slots that one schedule may make up for."""
SCHEDULE_MISSED_SLOTS = 10_000
"""Missed slots are counted up to here; of a longer absence the earlier ones are not told apart."""
SCHEDULE_FIRINGS = 200
"""Slots of one schedule whose fate is kept, the newest."""
SCHEDULE_BACKFILL_SLOTS = 1_000
"""Slots that one call may fill in afterwards."""
