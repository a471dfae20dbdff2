"""What to do about each rule that ``fanin check`` finds broken."""

from __future__ import annotations

REPAIR = "fanin repair puts it right (fanin repair JOB, if the job has ended)"
_PARTS = "nobody can know which parts should be there: fanin cancel JOB, or fanin finish JOB with what there is"
_STUCK = "the part can neither run nor end: fanin skip JOB PART"
_EVENT = "what consumers were told may differ: compare it with fanin explain JOB, and tell them"
_FOLLOW = "what should follow the end is missing, or there twice: fanin explain JOB; start or cancel it by hand"
_OUTPUT = "compare fanin outputs JOB with what lies there; a part can be run again after fanin redrive"
_EFFECT = "find out what happened outside; fanin effects lists them, and settles what is unknown"
_FLOW = "fanin flows FLOW shows it; cancel it, or settle its steps with fanin saga"
_SCHEDULE = "fanin schedules shows it; cancel a job that should not be, fire a slot that was missed"
_BY_HAND = "rows were put in or taken away by hand, and have to be so again"

ADVICE: dict[str, str] = {
    "c1": REPAIR, "c2": _PARTS, "c3": _PARTS, "c4": REPAIR, "c5": _PARTS, "c7": _BY_HAND, "c8": _BY_HAND,
    "t1": REPAIR, "t3": _STUCK, "t4": _EVENT,
    "j2": _FOLLOW, "j3": _FOLLOW, "j4": "the end stands: look what these parts still do, fanin explain JOB --part N",
    "j5": _FOLLOW, "j7": _STUCK, "j8": REPAIR,
    "f5": _OUTPUT, "f6": _OUTPUT, "f7": "the part goes on from a checkpoint that no attempt wrote: fanin skip JOB PART",
    "e2": _EFFECT, "e3": _EFFECT, "e4": _EFFECT, "e5": _EFFECT,
    "o1": _EVENT, "o2": _EVENT, "o3": "nothing depends on it but what is told about the progress of the job",
    "o4": _EVENT, "o5": _EVENT, "o6": _EVENT, "o7": _EVENT, "o8": _EVENT,
    "s1": REPAIR, "s2": REPAIR, "s3": REPAIR, "l2": REPAIR,
    "n1": REPAIR, "n2": "nobody waits for it: fanin cancel JOB",
    "k1": _SCHEDULE, "k2": _SCHEDULE, "k3": _SCHEDULE,
    "w1": _FLOW, "w2": _FLOW, "w3": _FLOW, "w4": _FLOW, "w5": _FLOW, "w6": _FLOW,
    "i7": REPAIR, "h1": REPAIR,
}  # fmt: skip
"""Name of the rule to what a person does. Some findings of a rule that can be repaired are damage: repair says so."""
