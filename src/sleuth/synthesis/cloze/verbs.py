"""English verbs in the past, and their plain forms: what "did" is followed by."""

BASES = """
    accept accuse achieve acquire act add adopt advance announce appear appoint approve arrest arrive ask assist
    attack attempt attend award base battle believe belong bomb border capture carry cause celebrate challenge
    champion change chart claim coach collaborate collect command commission compete complete compose concede
    conclude conduct confirm connect conquer consider contain continue contribute convert cover create cross debut
    decide declare defeat defend deliver demonstrate depart depict deploy describe design destroy develop devote die
    direct discover dismiss donate earn edit educate elect embark emerge employ enact encourage end endorse enjoy
    enlist enrol ensure enter escape establish evolve exceed execute exhibit expand experience explain explore
    express extend face fail feature finish fire follow force found fulfil gain gather graduate guest happen head
    help host hunt identify illustrate imprison improve include incorporate increase influence inherit inspire
    install intend introduce invade invent invest invite involve issue join judge kill land last launch licence link
    list live locate manage manufacture mark marry mention migrate model move name narrate nominate note number
    obtain occupy occur offer open operate oppose order organise organize originate own paint participate pass
    perform pioneer place play portray possess practise practice praise preach premiere prepare present prevent
    print proceed produce promote propose prove provide publish purchase pursue question qualify race raise rank
    reach realise realize receive recognise recognize record recover recruit refer reform refuse regard reign reject
    relate release relocate remain remember remove rename renew replace report represent require research resemble
    reside resign resolve respond restore result retain retire return reveal revise rule sail score search secure
    seek select separate serve settle share sign star start state stay study succeed suffer suggest supervise supply
    support surrender survive target test tour trace train translate travel treat turn undergo unite use visit voice
    vote wait want warn watch witness work
""".split()  # noqa: SIM905 - read as lines
DOUBLED = (
    "star", "plan", "stop", "drop", "permit", "admit", "commit", "submit", "refer", "transfer", "prefer", "occur",
    "ban", "enrol", "fulfil", "grab", "rob", "compel", "expel", "travel", "model", "cancel",
)  # fmt: skip
IRREGULAR = {
    "won": "win", "wrote": "write", "became": "become", "began": "begin", "made": "make", "led": "lead",
    "left": "leave", "took": "take", "held": "hold", "went": "go", "sang": "sing", "spent": "spend",
    "met": "meet", "lost": "lose", "built": "build", "taught": "teach", "fought": "fight", "ran": "run",
    "gave": "give", "got": "get", "saw": "see", "came": "come", "grew": "grow", "sold": "sell", "bought": "buy",
    "brought": "bring", "sent": "send", "beat": "beat", "fell": "fall", "rose": "rise", "stood": "stand",
    "drew": "draw", "flew": "fly", "fled": "flee", "knew": "know", "broke": "break", "chose": "choose",
    "drove": "drive", "kept": "keep", "laid": "lay", "paid": "pay", "said": "say", "shot": "shoot",
    "spoke": "speak", "struck": "strike", "swam": "swim", "wore": "wear", "found": "find", "bore": "bear",
    "sought": "seek", "underwent": "undergo", "overcame": "overcome", "withdrew": "withdraw", "told": "tell",
    "put": "put", "set": "set", "cut": "cut", "hit": "hit", "lay": "lie", "thought": "think",
    "understood": "understand", "had": "have",
}  # fmt: skip
PRESENT = {
    "plays": "play", "stars": "star", "lives": "live", "works": "work", "serves": "serve", "features": "feature",
    "contains": "contain", "includes": "include", "represents": "represent", "tells": "tell", "follows": "follow",
    "borders": "border", "lies": "lie", "covers": "cover", "teaches": "teach", "writes": "write", "owns": "own",
    "operates": "operate", "offers": "offer", "hosts": "host", "holds": "hold", "competes": "compete",
    "has": "have", "flows": "flow", "publishes": "publish", "produces": "produce", "depicts": "depict",
    "explores": "explore", "focuses": "focus", "belongs": "belong", "refers": "refer", "consists": "consist",
    "occurs": "occur", "resides": "reside",
}  # fmt: skip
SIMPLE_PAST = {
    "written": "wrote", "drawn": "drew", "sung": "sang", "given": "gave", "shown": "showed", "driven": "drove",
    "built": "built", "made": "made", "held": "held", "led": "led", "won": "won", "sold": "sold", "taken": "took",
    "run": "ran", "bought": "bought",
}  # fmt: skip

# What someone is called of whose doing something is.
MAKERS = {
    "directed": "the director of", "written": "the writer of", "composed": "the composer of",
    "founded": "the founder of", "produced": "the producer of", "published": "the publisher of",
    "developed": "the developer of", "created": "the creator of", "designed": "the designer of",
    "recorded": "the performer of", "painted": "the painter of",
}  # fmt: skip


def _past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + (base[-1] if base in DOUBLED else "") + "ed"


PAST = {**{_past(base): base for base in BASES}, **IRREGULAR}


def supported(verb: str) -> tuple[str, str] | None:
    """The word that a question takes before its subject, and the plain verb: won is did and win; None if unknown."""
    if verb in PAST:
        return "did", PAST[verb]
    return ("does", PRESENT[verb]) if verb in PRESENT else None


def active(participle: str) -> str | None:
    """What someone did, of what was done by them: directed is directed, written is wrote; None if unknown."""
    return SIMPLE_PAST.get(participle) or (participle if PAST.get(participle) and participle.endswith("ed") else None)
