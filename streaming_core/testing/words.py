"""Word lists the synthetic prompts are made of: one `Topic` per subject, and the words all subjects share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OPENERS", "REQUESTS", "TIMES", "TOPICS", "Topic"]


@dataclass(frozen=True)
class Topic:
    """Words of one subject.  Verbs are transitive and in the plain form, so that templates may put "to" before them."""

    name: str
    people: tuple[str, ...]
    things: tuple[str, ...]
    verbs: tuple[str, ...]
    qualities: tuple[str, ...]
    places: tuple[str, ...]


def _topic(name: str, people: str, things: str, verbs: str, qualities: str, places: str) -> Topic:
    return Topic(name, *(tuple(words.split()) for words in (people, things, verbs, qualities, places)))


TOPICS: tuple[Topic, ...] = (
    _topic(
        "cooking",
        "cook baker chef butcher waiter pastrymaker",
        "onion garlic butter dough broth saucepan oven basil lentil pepper flour yeast skillet whisk vinegar honey"
        " custard dumpling risotto gravy marinade crust ladle stew cinnamon noodle",
        "simmer knead roast chop season whisk braise caramelise taste marinate",
        "salty tender crispy golden bitter fragrant creamy spicy overcooked buttery",
        "kitchen pantry bakery restaurant larder",
    ),
    _topic(
        "astronomy",
        "astronomer observer physicist cosmologist stargazer",
        "telescope nebula galaxy comet orbit eclipse pulsar supernova spectrum redshift asteroid planet moon crater"
        " quasar mirror lens parallax constellation meteor corona satellite photon eyepiece magnitude",
        "observe measure resolve photograph track detect calibrate magnify catalogue eclipse",
        "distant luminous faint dense gravitational ringed stellar icy spiral binary",
        "observatory hemisphere horizon summit planetarium",
    ),
    _topic(
        "law",
        "judge lawyer plaintiff defendant juror notary solicitor",
        "contract statute verdict appeal evidence clause damages injunction testimony precedent lease liability"
        " affidavit subpoena hearing settlement trustee negligence warranty tort deposition treaty mortgage bail",
        "sue appeal enforce testify arbitrate overturn acquit sign breach prosecute",
        "binding void unlawful contractual admissible guilty pending statutory joint disputed",
        "court courtroom chambers tribunal registry",
    ),
    _topic(
        "gardening",
        "gardener florist botanist landscaper beekeeper",
        "seedling compost tomato trellis rose hedge mulch lawn shovel bulb orchard fern lavender weed aphid root"
        " pruner wheelbarrow blossom soil fertiliser tulip watering shrub ivy cucumber",
        "plant prune water weed mulch graft harvest fertilise transplant rake",
        "leafy shady perennial fertile thorny drought rooted evergreen wilted blooming",
        "garden greenhouse allotment meadow nursery",
    ),
    _topic(
        "programming",
        "programmer maintainer reviewer engineer administrator",
        "compiler function thread buffer pointer loop cache socket database query parser variable exception stack"
        " mutex server branch commit test module iterator kernel lambda schema endpoint bytecode",
        "compile debug refactor deploy parse allocate benchmark merge optimise cache",
        "recursive asynchronous typed immutable deprecated nullable concurrent generic verbose flaky",
        "repository terminal cluster datacentre namespace",
    ),
    _topic(
        "medicine",
        "doctor nurse surgeon patient pharmacist midwife radiologist",
        "fever artery vaccine symptom antibiotic fracture lung insulin biopsy tumour bandage stethoscope pulse"
        " allergy dosage kidney infection scan anaesthetic virus syringe migraine tendon plasma inflammation",
        "diagnose treat prescribe inject bandage vaccinate examine sedate monitor heal",
        "chronic acute swollen benign infectious sterile feverish cardiac painful contagious",
        "clinic hospital ward pharmacy ambulance",
    ),
    _topic(
        "sailing",
        "skipper sailor helmsman navigator bosun deckhand",
        "mast keel rudder jib halyard anchor compass spinnaker tide hull winch buoy rigging gale mainsail tiller"
        " chart current squall mooring lifejacket barometer bowline cleat dinghy lighthouse",
        "steer moor reef hoist tack navigate anchor launch bail trim",
        "windward leeward choppy seaworthy nautical stormy tidal becalmed starboard slack",
        "harbour marina cove estuary boatyard",
    ),
    _topic(
        "music",
        "violinist conductor singer drummer pianist composer organist",
        "melody chord rhythm sonata cello trumpet quartet scale tempo overture drum harmony choir flute symphony"
        " guitar bow score refrain encore tuning bassoon octave ballad metronome bridge",
        "rehearse compose tune sing conduct improvise record transpose perform strum",
        "minor sharp rhythmic lyrical dissonant acoustic slow orchestral loud syncopated",
        "concert studio stage conservatory auditorium",
    ),
    _topic(
        "finance",
        "banker trader auditor broker investor accountant",
        "dividend bond ledger invoice interest inflation portfolio deposit budget tax pension loan currency audit"
        " premium hedge equity deficit yield surplus asset credit receipt turnover annuity overdraft",
        "invest audit borrow refund hedge deposit budget insure depreciate reconcile",
        "liquid taxable solvent quarterly volatile overdue fiscal risky compound profitable",
        "bank exchange treasury branch market",
    ),
    _topic(
        "railways",
        "signalman driver conductor stationmaster engineer dispatcher",
        "locomotive carriage signal platform timetable boiler sleeper coupling tunnel viaduct junction ticket piston"
        " brake siding axle pantograph gauge wagon whistle embankment turntable bogie freight semaphore ballast",
        "shunt couple brake dispatch electrify derail ferry timetable reroute board",
        "punctual diesel narrow delayed elevated steam suburban express loaded disused",
        "station depot yard terminus crossing",
    ),
)

TIMES: tuple[str, ...] = (
    "in the morning", "after a week", "before winter", "every second day", "last year", "for an hour", "until noon",
    "at night", "in early spring", "a month later",
)  # fmt: skip

OPENERS: tuple[str, ...] = (
    "however", "meanwhile", "as a rule", "in practice", "to be fair", "for this reason", "most of the time", "at first",
    "in the end", "by contrast", "above all", "of course",
)  # fmt: skip

REQUESTS: tuple[str, ...] = (
    "Explain why", "Describe how", "Write a short story in which", "Give three reasons why", "Summarise the case where",
    "Tell a beginner how", "Ask yourself whether", "List the steps by which",
)  # fmt: skip
