"""English word lists and forms: nouns by kind of entity, verb forms, demonyms and dates."""

import re
from enum import StrEnum


class Kind(StrEnum):
    """Semantic kind of an entity or answer."""

    PERSON = "person"
    PLACE = "place"
    GROUP = "group"
    WORK = "work"
    THING = "thing"
    YEAR = "year"
    DATE = "date"
    NUMBER = "number"
    AMOUNT = "amount"
    OCCUPATION = "occupation"
    NATIONALITY = "nationality"
    GENRE = "genre"


PERSON_NOUNS = frozenset(
    """
    actor actress author writer novelist poet playwright screenwriter director filmmaker producer singer songwriter
    rapper musician guitarist drummer bassist pianist violinist composer conductor dancer choreographer comedian
    model artist painter sculptor photographer architect designer journalist editor publisher broadcaster presenter
    host politician diplomat lawyer judge jurist attorney statesman activist economist historian philosopher
    theologian scientist physicist chemist biologist botanist zoologist astronomer mathematician statistician
    engineer inventor physician surgeon nurse psychologist psychiatrist psychoanalyst sociologist anthropologist
    linguist geologist geographer explorer teacher professor academic educator scholar businessman businesswoman
    entrepreneur banker industrialist merchant philanthropist soldier officer general admiral colonel captain pilot
    aviator astronaut cosmonaut footballer cricketer golfer boxer wrestler swimmer skater skier cyclist rower
    sprinter athlete player goalkeeper striker midfielder defender forward quarterback linebacker pitcher catcher
    outfielder coach manager referee jockey driver racer sailor gymnast fencer bishop archbishop cardinal priest
    pastor missionary monk nun rabbi saint king queen prince princess emperor empress duke duchess earl count
    countess baron baronet nobleman noblewoman peer knight president premier chancellor minister governor senator
    mayor congressman congresswoman ambassador animator cartoonist illustrator cinematographer critic essayist
    biographer translator librettist lyricist organist cellist trumpeter saxophonist vocalist frontman bandleader
    hurler jurist baritone tenor soprano man woman member leader founder wife husband son daughter brother sister
    father mother
    """.split()  # noqa: SIM905 - read as lines
)
NON_OCCUPATIONS = frozenset(
    {"wife", "husband", "son", "daughter", "brother", "sister", "father", "mother"}
    | {"member", "man", "woman", "leader", "founder"}
)
AGENT_SUFFIX = re.compile(
    r"(?:player|worker|maker|writer|ologist|ographer|ician|keeper|holder|skater|ballplayer|person)$"
)
WORK_NOUNS = frozenset(
    """
    film movie documentary drama comedy thriller album song single novel novella book series sitcom play musical
    opera ballet symphony poem story magazine newspaper journal episode show soundtrack painting comic manga anime
    telenovela EP mixtape miniseries sculpture cantata sonata concerto
    """.split()  # noqa: SIM905
)
PLACE_NOUNS = frozenset(
    """
    city town village county district river lake mountain island islands country municipality region state province
    neighborhood neighbourhood commune township suburb settlement hamlet parish borough capital peninsula sea bay
    valley desert park street road highway airport station square bridge castle church cathedral stadium territory
    republic community
    """.split()  # noqa: SIM905
)
GROUP_NOUNS = frozenset(
    """
    band company university college school club team organization organisation party label group duo trio quartet
    orchestra corporation agency institute association airline manufacturer network channel league conference
    government army regiment institution museum bank brand studio publisher
    """.split()  # noqa: SIM905
)
# The last word of a name often gives its kind: Orange County, Island Records, University of Kent.
KIND_BY_LAST_WORD: dict[str, tuple[Kind, str]] = {
    **{
        each.title(): (Kind.PLACE, each)
        for each in PLACE_NOUNS - {"state", "capital", "community", "station", "islands"}
    },
    **dict.fromkeys(("University", "Universität", "Université"), (Kind.GROUP, "university")),
    **dict.fromkeys(("Records", "Recordings"), (Kind.GROUP, "record label")),
    **dict.fromkeys(("Inc", "Inc.", "Ltd", "Ltd.", "Corporation", "Company"), (Kind.GROUP, "company")),
    **dict.fromkeys(("Entertainment", "Pictures"), (Kind.GROUP, "company")),
    **dict.fromkeys(("School", "Academy"), (Kind.GROUP, "school")),
    **dict.fromkeys(("Award", "Awards", "Prize", "Medal"), (Kind.THING, "award")),
    "War": (Kind.THING, "war"),
    **{each.title(): (Kind.GROUP, each) for each in ("college", "league", "party", "club", "museum", "institute")},
    **{each.title(): (Kind.GROUP, each) for each in ("orchestra", "conference")},
    **{each.title(): (Kind.THING, each) for each in ("festival", "championship", "championships", "cup", "tournament")},
    **{each.title(): (Kind.THING, each) for each in ("language", "treaty", "battle")},
}
KIND_BY_FIRST_WORD: dict[str, tuple[Kind, str]] = {
    "University": (Kind.GROUP, "university"),
    "Lake": (Kind.PLACE, "lake"),
    "Mount": (Kind.PLACE, "mountain"),
    "Battle": (Kind.THING, "battle"),
    "Treaty": (Kind.THING, "treaty"),
}

REGULAR_VERBS = """
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
DOUBLED_CONSONANT = (
    "star", "plan", "stop", "drop", "permit", "admit", "commit", "submit", "refer", "transfer", "prefer", "occur",
    "ban", "enrol", "fulfil", "grab", "rob", "compel", "expel", "travel", "model", "cancel",
)  # fmt: skip
IRREGULAR_PAST = {
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
PRESENT_TO_BASE = {
    "plays": "play", "stars": "star", "lives": "live", "works": "work", "serves": "serve", "features": "feature",
    "contains": "contain", "includes": "include", "represents": "represent", "tells": "tell", "follows": "follow",
    "borders": "border", "lies": "lie", "covers": "cover", "teaches": "teach", "writes": "write", "owns": "own",
    "operates": "operate", "offers": "offer", "hosts": "host", "holds": "hold", "competes": "compete",
    "has": "have", "flows": "flow", "publishes": "publish", "produces": "produce", "depicts": "depict",
    "explores": "explore", "focuses": "focus", "belongs": "belong", "refers": "refer", "consists": "consist",
    "occurs": "occur", "resides": "reside",
}  # fmt: skip
PARTICIPLE_TO_PAST = {
    "written": "wrote", "drawn": "drew", "sung": "sang", "given": "gave", "shown": "showed", "driven": "drove",
    "built": "built", "made": "made", "held": "held", "led": "led", "won": "won", "sold": "sold", "taken": "took",
    "run": "ran", "bought": "bought",
}  # fmt: skip
# Agent noun phrase for a past participle: directed by X -> X is the director of.
AGENT_NOUN_PHRASES = {
    "directed": "the director of", "written": "the writer of", "composed": "the composer of",
    "founded": "the founder of", "produced": "the producer of", "published": "the publisher of",
    "developed": "the developer of", "created": "the creator of", "designed": "the designer of",
    "recorded": "the performer of", "painted": "the painter of",
}  # fmt: skip


def _past_tense(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + (base[-1] if base in DOUBLED_CONSONANT else "") + "ed"


PAST_TO_BASE = {**{_past_tense(base): base for base in REGULAR_VERBS}, **IRREGULAR_PAST}


def do_support(verb: str) -> tuple[str, str] | None:
    """Return auxiliary and base form for a question: won -> (did, win); None for an unknown verb."""
    if verb in PAST_TO_BASE:
        return "did", PAST_TO_BASE[verb]
    return ("does", PRESENT_TO_BASE[verb]) if verb in PRESENT_TO_BASE else None


def active_past(participle: str) -> str | None:
    """Return the simple past of a participle: written -> wrote, directed -> directed; None if unknown."""
    regular = participle if PAST_TO_BASE.get(participle) and participle.endswith("ed") else None
    return PARTICIPLE_TO_PAST.get(participle) or regular


# demonym -> names of the country, the current one first
COUNTRIES_BY_DEMONYM: dict[str, tuple[str, ...]] = {
    "Afghan": ("Afghanistan",), "Albanian": ("Albania",), "Algerian": ("Algeria",),
    "American": ("United States", "United States of America", "USA", "U.S."), "Angolan": ("Angola",),
    "Argentine": ("Argentina",), "Argentinian": ("Argentina",), "Armenian": ("Armenia",), "Australian": ("Australia",),
    "Austrian": ("Austria",), "Azerbaijani": ("Azerbaijan",), "Bahamian": ("Bahamas",), "Bahraini": ("Bahrain",),
    "Bangladeshi": ("Bangladesh",), "Barbadian": ("Barbados",), "Belarusian": ("Belarus",), "Belgian": ("Belgium",),
    "Bermudian": ("Bermuda",), "Bolivian": ("Bolivia",), "Bosnian": ("Bosnia and Herzegovina", "Bosnia"),
    "Brazilian": ("Brazil",), "British": ("United Kingdom", "UK", "Great Britain", "Britain"),
    "Bulgarian": ("Bulgaria",), "Burmese": ("Myanmar", "Burma"), "Cambodian": ("Cambodia",),
    "Cameroonian": ("Cameroon",), "Canadian": ("Canada",), "Chilean": ("Chile",), "Chinese": ("China",),
    "Colombian": ("Colombia",), "Congolese": ("Congo",), "Croatian": ("Croatia",), "Cuban": ("Cuba",),
    "Cypriot": ("Cyprus",), "Czech": ("Czech Republic",), "Czechoslovak": ("Czechoslovakia",), "Danish": ("Denmark",),
    "Dominican": ("Dominican Republic",), "Dutch": ("Netherlands", "the Netherlands"), "Ecuadorian": ("Ecuador",),
    "Egyptian": ("Egypt",), "English": ("England",), "Eritrean": ("Eritrea",), "Estonian": ("Estonia",),
    "Ethiopian": ("Ethiopia",), "Fijian": ("Fiji",), "Filipino": ("Philippines", "the Philippines"),
    "Finnish": ("Finland",), "French": ("France",), "Georgian": ("Georgia",), "German": ("Germany",),
    "Ghanaian": ("Ghana",), "Greek": ("Greece",), "Guatemalan": ("Guatemala",), "Haitian": ("Haiti",),
    "Honduran": ("Honduras",), "Hungarian": ("Hungary",), "Icelandic": ("Iceland",), "Indian": ("India",),
    "Indonesian": ("Indonesia",), "Iranian": ("Iran",), "Iraqi": ("Iraq",), "Irish": ("Ireland",),
    "Israeli": ("Israel",), "Italian": ("Italy",), "Ivorian": ("Ivory Coast",), "Jamaican": ("Jamaica",),
    "Japanese": ("Japan",), "Jordanian": ("Jordan",), "Kazakhstani": ("Kazakhstan",), "Kenyan": ("Kenya",),
    "Kuwaiti": ("Kuwait",), "Latvian": ("Latvia",), "Lebanese": ("Lebanon",), "Liberian": ("Liberia",),
    "Libyan": ("Libya",), "Lithuanian": ("Lithuania",), "Luxembourgian": ("Luxembourg",), "Malagasy": ("Madagascar",),
    "Malaysian": ("Malaysia",), "Malian": ("Mali",), "Maltese": ("Malta",), "Mexican": ("Mexico",),
    "Moldovan": ("Moldova",), "Mongolian": ("Mongolia",), "Moroccan": ("Morocco",), "Namibian": ("Namibia",),
    "Nepalese": ("Nepal",), "Nepali": ("Nepal",), "New Zealand": ("New Zealand",), "Nicaraguan": ("Nicaragua",),
    "Nigerian": ("Nigeria",), "North Korean": ("North Korea",), "Northern Irish": ("Northern Ireland",),
    "Norwegian": ("Norway",), "Pakistani": ("Pakistan",), "Palestinian": ("Palestine",), "Panamanian": ("Panama",),
    "Paraguayan": ("Paraguay",), "Peruvian": ("Peru",), "Polish": ("Poland",), "Portuguese": ("Portugal",),
    "Prussian": ("Prussia",), "Puerto Rican": ("Puerto Rico",), "Romanian": ("Romania",), "Russian": ("Russia",),
    "Rwandan": ("Rwanda",), "Salvadoran": ("El Salvador",), "Saudi": ("Saudi Arabia",), "Scottish": ("Scotland",),
    "Senegalese": ("Senegal",), "Serbian": ("Serbia",), "Singaporean": ("Singapore",), "Slovak": ("Slovakia",),
    "Slovene": ("Slovenia",), "Slovenian": ("Slovenia",), "Somali": ("Somalia",), "South African": ("South Africa",),
    "South Korean": ("South Korea",), "Soviet": ("Soviet Union",), "Spanish": ("Spain",), "Sri Lankan": ("Sri Lanka",),
    "Sudanese": ("Sudan",), "Swedish": ("Sweden",), "Swiss": ("Switzerland",), "Syrian": ("Syria",),
    "Taiwanese": ("Taiwan",), "Tanzanian": ("Tanzania",), "Thai": ("Thailand",),
    "Trinidadian": ("Trinidad and Tobago",), "Tunisian": ("Tunisia",), "Turkish": ("Turkey",),
    "Ugandan": ("Uganda",), "Ukrainian": ("Ukraine",), "Uruguayan": ("Uruguay",), "Uzbekistani": ("Uzbekistan",),
    "Venezuelan": ("Venezuela",), "Vietnamese": ("Vietnam",), "Welsh": ("Wales",), "West German": ("West Germany",),
    "East German": ("East Germany",), "Yugoslav": ("Yugoslavia",), "Zambian": ("Zambia",), "Zimbabwean": ("Zimbabwe",),
}  # fmt: skip
COUNTRIES = frozenset(name for names in COUNTRIES_BY_DEMONYM.values() for name in names) - {"U.S.", "UK"}
# Different nationalities that can apply to the same person.
OVERLAPPING_NATIONALITIES: tuple[frozenset[str], ...] = (
    frozenset({"British", "English", "Scottish", "Welsh", "Northern Irish", "Irish"}),
    frozenset({"Soviet", "Russian", "Ukrainian", "Belarusian", "Georgian", "Armenian", "Lithuanian", "Latvian"}
              | {"Estonian", "Azerbaijani", "Kazakhstani", "Moldovan", "Uzbekistani"}),
    frozenset({"German", "West German", "East German", "Prussian", "Austrian"}),
    frozenset({"Czech", "Czechoslovak", "Slovak"}),
    frozenset({"Yugoslav", "Serbian", "Croatian", "Bosnian", "Slovene", "Slovenian"}),
    frozenset({"Indian", "Pakistani", "Bangladeshi"}),
    frozenset({"Chinese", "Taiwanese"}),
    frozenset({"Argentine", "Argentinian"}),
    frozenset({"American", "Puerto Rican"}),
    frozenset({"Nepalese", "Nepali"}),
)  # fmt: skip
DEMONYM = rf"(?:{'|'.join(sorted(COUNTRIES_BY_DEMONYM, key=len, reverse=True))})"
DEMONYM_WORD = re.compile(rf"(?<![\w-]){DEMONYM}(?![\w])")
MIXED_NATIONALITY = re.compile(
    rf"{DEMONYM}(?:[-–/]|,? and )[A-Z]|\b(?=[^\WA-Z]*+[A-Z]\w)\w++[-–/]{DEMONYM}|{DEMONYM}[- ]born"
)

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
MONTH_NUMBERS = {month: number for number, month in enumerate(MONTHS, 1)}
MONTH = rf"(?:{'|'.join(MONTHS)})"
FULL_DATE = rf"(?:\d{{1,2}} {MONTH},? \d{{4}}|{MONTH} \d{{1,2}}, \d{{4}})"
DATE = rf"(?:{FULL_DATE}|{MONTH} \d{{4}}|\d{{4}})"
DATE_TOKEN = re.compile(r"[A-Za-z]+|\d+")


def kind_of_noun(noun: str) -> Kind | None:
    """Return the kind of entity that a noun denotes, or None."""
    if noun in PERSON_NOUNS or AGENT_SUFFIX.search(noun):
        return Kind.PERSON
    table = ((WORK_NOUNS, Kind.WORK), (PLACE_NOUNS, Kind.PLACE), (GROUP_NOUNS, Kind.GROUP))
    return next((kind for nouns, kind in table if noun in nouns), None)


def kind_of_name(name: str) -> tuple[Kind, str] | None:
    """Return the kind and noun that the words of a name reveal, or None."""
    words = name.split()
    if len(words) < 2:
        return None
    return KIND_BY_LAST_WORD.get(name.partition(" of ")[0].split()[-1]) or KIND_BY_FIRST_WORD.get(words[0])


def nationality_of(phrase: str) -> str | None:
    """Return the only demonym in a phrase; None if there are none, several, or a compound (French-American)."""
    found = set(DEMONYM_WORD.findall(phrase))
    return found.pop() if len(found) == 1 and not MIXED_NATIONALITY.search(phrase) else None


def nationalities_differ(one: str, other: str) -> bool:
    """Whether two nationalities certainly differ."""
    return one != other and not any(one in each and other in each for each in OVERLAPPING_NATIONALITIES)


def date_aliases(date: str) -> tuple[str, ...]:
    """Return a full date with day and month swapped; empty if the date is not a full date."""
    day_first = re.fullmatch(r"(\d{1,2}) ([A-Z]\w+),? (\d{4})", date)
    if day_first:
        return (f"{day_first[2]} {day_first[1]}, {day_first[3]}",)
    month_first = re.fullmatch(r"([A-Z]\w+) (\d{1,2}), (\d{4})", date)
    return (f"{month_first[2]} {month_first[1]} {month_first[3]}",) if month_first else ()


def is_earlier(one: str, other: str) -> bool | None:
    """Whether one date precedes the other; None if undecidable, such as a year and a day in that year."""
    for first, second in zip(_parse_date(one), _parse_date(other), strict=True):
        if first is None or second is None:
            return None
        if first != second:
            return first < second
    return None


def year_of(date: str) -> int:
    """Return the year of a date, or 0 if it has none."""
    return _parse_date(date)[0] or 0


def _parse_date(date: str) -> tuple[int | None, int | None, int | None]:
    """Split a date into year, month and day."""
    tokens = DATE_TOKEN.findall(date)
    numbers = [int(token) for token in tokens if token.isdigit()]
    year = next((number for number in numbers if number > 31), None)
    month = next((MONTH_NUMBERS[token] for token in tokens if token in MONTH_NUMBERS), None)
    day = next((number for number in numbers if number <= 31), None)
    return year, month, day
