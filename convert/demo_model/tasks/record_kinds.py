"""The kinds of record that the describe task knows, and how each attribute is put into words.

Each kind is a block of text. Its first line holds the noun, the relative pronoun and the patterns
of the record's name. Every other line is one attribute, or one group of an attribute's values:

- ``A name: value=adjective; ...``: stands before the noun ("an expensive restaurant");
- ``B name: verb phrase for yes / verb phrase for no``;
- ``P name: verb phrase / modifier : values``: place or time; the modifier can open a sentence;
- ``V name: verb phrase / modifier : values``: anything else.

``{}`` stands for the value and ``<word>`` for a word of that list, ``<8-90>`` for a number and
``<100-900/50>`` for one in steps of 50. A ``+`` or ``-`` after the letter or the adjective says
that the value is welcome or unwelcome. The value alone decides which group's wording applies.
"""

import random
import re
from dataclasses import dataclass

from . import names

LISTS = {
    key: [word.strip() for word in " ".join(words.split()).split(",")]
    for key, words in {
        "day": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
        "month": """January, February, March, April, May, June, July, August, September, October,
            November, December""",
        "city": """Lisbon, Oslo, Berlin, Madrid, Paris, London, Dublin, Vienna, Prague, Warsaw,
            Athens, Rome, Milan, Turin, Zurich, Geneva, Lyon, Porto, Seville, Bergen, Helsinki,
            Riga, Tallinn, Cairo, Nairobi, Lagos, Accra, Tunis, Delhi, Mumbai, Tokyo, Osaka,
            Seoul, Taipei, Manila, Jakarta, Sydney, Perth, Toronto, Montreal, Boston, Chicago,
            Denver, Austin, Seattle, Lima, Bogota, Quito, Santiago, Havana""",
        "cuisine": """Thai, Greek, Italian, French, Indian, Mexican, Spanish, Turkish, Korean,
            Chinese, Japanese, Lebanese, Moroccan, Persian, Polish, German, Vietnamese, Peruvian,
            Brazilian, Ethiopian, Russian, Swedish, Cuban, Portuguese""",
        "dish": """sushi, pizza, grilled fish, noodle soup, burgers, roast duck, fresh pasta,
            seafood, dumplings, curries, vegan bowls, pancakes, salads, lamb stew, tacos, oysters,
            steaks, pies, waffles, tapas""",
        "skill": """accounting, web design, data analysis, public speaking, translation, welding,
            photography, negotiation, contract law, statistics, network security, recruiting,
            video editing, budget planning, copywriting, electronics, logistics, market research,
            cloud computing, chemistry, animation, sales training, risk analysis, cooking""",
        "language": """English, Spanish, French, German, Italian, Arabic, Hindi, Polish, Dutch,
            Swedish, Korean, Japanese, Mandarin, Turkish, Greek, Portuguese, Finnish, Danish""",
        "team": """sales, finance, legal, design, support, research, marketing, security, payroll,
            logistics, quality, training, purchasing, hardware, analytics, catering""",
        "gadget": """camera, kettle, lamp, speaker, printer, backpack, headset, keyboard, blender,
            heater, drill, tent, tripod, router, monitor, scooter, watch, toaster, fan, scanner""",
        "material": """steel, oak, bamboo, glass, recycled plastic, copper, leather, aluminium,
            ceramic, cotton, carbon fiber, walnut, canvas, titanium, rubber, wool, cork, brass""",
        "color": """black, white, red, blue, green, silver, yellow, orange, purple, brown, grey,
            pink, turquoise, beige, gold, dark green, light blue, dark red""",
        "gear": """projector, whiteboard, video screen, flip chart, sound system, webcam, printer,
            coffee machine, microphone, standing desk, conference phone, smart board""",
        "topic": """solar energy, modern art, jazz, local history, robotics, bird watching, chess,
            tax law, public health, gardening, street food, ocean science, poetry, astronomy,
            game design, wine making, urban planning, beekeeping, pottery, mountain rescue,
            sailing, typography, river ecology, film music, folk dance, railway history""",
        "industry": """furniture, software, medical devices, organic food, bicycles, toys,
            insurance, wind turbines, shoes, batteries, cosmetics, paper, sensors, kitchen tools,
            sportswear, ceramics, water filters, textbooks, elevators, garden tools, ferries""",
        "genre": """crime novel, love story, travel diary, biography, fantasy saga, ghost story,
            cookbook, war novel, comedy, fable, thriller, family saga, memoir, sea adventure""",
        "feature": """balcony, fireplace, roof terrace, cellar, garden, bathtub, walk-in closet,
            bay window, storage room, large kitchen, guest room, laundry room, winter garden""",
        "exhibit": """old coins, steam engines, oil paintings, fossils, ship models, masks, maps,
            vintage cars, sculptures, meteorites, musical instruments, dolls, tapestries, clocks,
            medieval armor, rare stamps, butterflies, photographs, silver jewelry, glassware""",
        "extra": """roof rack, tow bar, sunroof, rear camera, child seat, bike rack,
            navigation system, spare wheel, tool kit, car alarm""",
        "place": """Park, Station, Bridge, Market, Square, Museum, Tower, Library, Theater, School,
            Hospital, Harbor, Cathedral, Stadium, Castle, Mall""",
        "area": """riverside, old town, harbor, city center, university, market, station, lakeside,
            garden, museum, airport, hillside""",
        "benefit": """company car, free lunch, gym pass, yearly bonus, train ticket, laptop,
            pension plan, training budget, four-day week, phone, child care place""",
        "meal": """sandwiches, fruit, hot soup, coffee, tea, pastries, pasta, a light dinner,
            a full breakfast, snacks, rice dishes, juice""",
        "goal": """cut energy costs, replace the old website, train new staff, open a second shop,
            reduce paper waste, speed up deliveries, merge two databases, renovate the lobby,
            automate invoices, test a new sensor, plant more trees, improve customer support,
            map the river, translate the manuals, secure the network, digitize the archive""",
        "job": """Analyst, Cook, Editor, Driver, Designer, Teacher, Nurse, Engineer, Clerk,
            Baker, Lawyer, Plumber, Tutor, Gardener, Florist, Courier, Architect, Welder""",
        "animal": """goats, sheep, horses, ducks, hens, llamas, pigs, rabbits, cows, bees, donkeys,
            alpacas, turkeys, geese""",
        "crop": """apples, potatoes, cherries, wheat, grapes, tomatoes, pumpkins, lavender, olives,
            strawberries, carrots, hops, barley, pears, plums, onions, mint""",
    }.items()
}

KINDS_TEXT = """
restaurant | that | <coined>; <coined> Grill; <coined> Kitchen; Casa <coined>; <coined> House
A price range: high=expensive-; moderate=mid-priced; low=cheap+; very low=very affordable+
A rating: 5 out of 5=highly rated+; 4 out of 5=well rated+; 1 out of 5=poorly rated-
V food: serves {} food / serving {} food : <cuisine>
V food: is known for its {} / known for its {} : <dish>
P area: is in the {} area / set in the {} area : <area>
P near: is close to {} / located close to {} : Cafe <coined>; <coined> <place>; the <coined> Hotel
B family friendly: welcomes families with children / does not cater to children
V- seats: has only {} seats / with only {} seats : <8-29>
V+ seats: can seat up to {} guests / seating up to {} guests : <60-250>
V chef: is run by chef {} / run by chef {} : <person> <coined>
V closed: stays closed on {}s / closed on {}s : <day>
=
hotel | that | <coined> Inn; <coined> Palace; <coined> Lodge; <coined> Plaza; Villa <coined>
A stars: 5=luxurious+; 4=upscale+; 3=standard; 2=simple; 1=very basic-
A noise: low=quiet+; high=noisy-; medium=fairly calm
P city: is in {} / located in {} : <city>
P near: is a short walk from {} / situated a short walk from {} : <coined> <place>; <coined> Beach
V- rooms: has just {} rooms / with just {} rooms : <6-30>
V rooms: offers {} rooms / offering {} rooms : <60-480>
B pool: has its own swimming pool / lacks a swimming pool
B pets: lets guests bring pets / turns pets away
V breakfast: serves breakfast from {} / serving breakfast from {} : <5-7>:00; <6-8>:30
V price: charges {} per night / charging {} per night : <40-390/5> dollars
=
employee | who | <person> <coined>; <person> <coined>
A level: entry=junior; expert=highly experienced+; mid=fairly experienced; lead=senior+
A hours: 40=full-time; 20=part-time; variable=freelance
V team: works in the {} team / working in the {} team : <team>
V skill: is an expert in {} / with expert knowledge of {} : <skill>
P office: is based in {} / based in {} : <city>
P hired: joined in {} / hired in {} : <month> <2004-2024>
V manager: reports to {} / reporting to {} : <person> <coined>
V languages: speaks {} / speaking {} : <language> and <language>
B remote: works from home every week / always works on site
V- leave: is away until {} / on leave until {} : <1-28> <month>
=
product | that | <coined> <100-990/10>; <coined> Pro; <coined> Mini; <coined> X<2-9>
A weight: low=lightweight+; high=heavy-; very high=bulky-
A demand: high=popular+; low=little known; very high=best-selling+
V type: works as a {} / designed as a {} : <gadget>
V material: is made of {} / made of {} : <material>
V color: comes in {} / available in {} : <color>; <color> and <color>
P made in: is built in {} / built in {} : <city>
P released: went on sale in {} / released in {} : <month> <2012-2025>
B waterproof: resists water / suffers damage from water
V price: costs {} / priced at {} : <5-990> dollars; <5-990> euros
V- warranty: has a warranty of only {} / with a warranty of only {} : <2-6> months
V+ warranty: carries a long warranty of {} / carrying a long warranty of {} : <3-12> years
=
meeting room | that | <coined>; Salon <coined>; <coined> Hall; Studio <coined>
A light: good=bright+; poor=dark-; fair=dimly lit
A size: big=spacious+; small=cramped-; medium=mid-sized
P floor: is on floor {} / found on floor {} : <2-48>
P next to: is right beside {} / located right beside {} : the <team> office; the <coined> Lounge
V capacity: holds {} people / holding {} people : <4-90>
V equipment: comes with a {} / equipped with a {} : <gear> and a <gear>
V- equipment: provides nothing but a {} / providing nothing but a {} : <gear>
B air conditioning: keeps cool in summer / gets hot in summer
V contact: is managed by {} / managed by {} : <person> <coined>
V free: is free from {} / open for booking from {} : <day> at <8-16>:00; <day> at <8-16>:30
=
event | that | <coined> Fest; <coined> Summit; <coined> Forum; <coined> Night; <coined> Days
A crowd: big=crowded-; small=intimate+; medium=well attended+
A frequency: every year=annual; every month=monthly; every day=daily; every week=weekly
V topic: is all about {} / devoted to {} : <topic>
P date: takes place on {} / held on {} : <1-28> <month>
P venue: is hosted at {} / hosted at {} : the <coined> <place>; <coined> Hall
V host: is organized by {} / organized by {} : <person> <coined>; the <coined> Club
B free entry: lets everyone in for free / requires a paid ticket
V starts: begins at {} / beginning at {} : <7-20>:00; <7-20>:15; <7-20>:30
V food: offers {} to visitors / offering {} to visitors : <meal> and <meal>
V guests: expects {} guests / expecting {} guests : <40-950/10>
=
course | that | <coined> Basics; <coined> Skills; <coined> Method; <coined> Lab
A difficulty: high=demanding-; low=easy+; medium=moderately hard; very low=beginner-friendly+
A format: web=online; classroom=in-person; mixed=hybrid
V subject: teaches {} / teaching {} : <skill>; <topic>
V teacher: is taught by {} / taught by {} : <person> <coined>
P starts: starts on {} / starting on {} : <1-28> <month>
P room: meets in {} / held in {} : room <100-490>; <coined> Hall
V length: lasts {} / lasting {} : <2-20> weeks; <2-9> months
B certificate: ends with a certificate / awards no certificate
V- fee: costs as much as {} / costing as much as {} : <600-1900/50> dollars
V+ fee: costs a mere {} / costing a mere {} : <20-95> dollars
V language: is given in {} / given in {} : <language>
=
company | that | <coined>; <coined> Group; <coined> Labs; <coined> Works; <coined> and <coined>
A size: large=big; small=small; very large=huge; tiny=very small
A trend: up=fast-growing+; down=struggling-; flat=stable
V sells: makes {} / making {} : <industry>
P base: has its head office in {} / headquartered in {} : <city>
P founded: dates back to {} / founded in {} : <1890-2022>
V boss: is led by {} / led by {} : <person> <coined>
V staff: employs {} people / employing {} people : <30-990>; <1-40> thousand
B hiring: looks for new staff / has frozen all hiring
V revenue: earns {} a year / earning {} a year : <2-95> million dollars
V- debts: owes {} to banks / owing {} to banks : <2-95> million dollars
V rival: competes with {} / competing with {} : <coined>; <coined> Corp
=
flight | that | <letter><letter> <100-990>; <letter><letter> <1000-9900>
A status: on time=punctual+; late=delayed-; very late=heavily delayed-
A seats left: none=fully booked-; few=nearly full; many=half-empty
P from: departs from {} / departing from {} : <city>
V to: goes to {} / bound for {} : <city>
V airline: is operated by {} / operated by {} : <coined> Air; Air <coined>; <coined> Wings
P leaves: takes off at {} / taking off at {} : <5-23>:<10-55/5>
V gate: boards at gate {} / boarding at gate {} : <letter><2-48>
B meals: includes a hot meal / serves no meals
V+ stops: makes no stops / with no stops on the way : 0
V- stops: makes a stop in {} / with a stop in {} : <coined>
V pilot: is flown by captain {} / flown by captain {} : <coined>
=
train | that | <coined> Express; <letter><letter> <20-990>; <coined> Line; <coined> Arrow
A speed: high=fast+; low=slow-; medium=fairly quick
A comfort: high=comfortable+; low=uncomfortable-; medium=decent
P from: starts in {} / coming from {} : <city>
V to: travels to {} / traveling to {} : <city>
P leaves: departs at {} / departing at {} : <5-23>:<10-55/5>
V platform: uses platform {} / using platform {} : <2-24>
V- platform: has no platform assigned yet / with no platform assigned yet : unknown
V coaches: pulls {} coaches / pulling {} coaches : <3-16>
B wifi: offers free internet / has no internet on board
B bikes: carries bicycles / does not take bicycles
V price: costs {} per seat / costing {} per seat : <9-180> euros
=
book | that | The <coined> Secret; <coined> Rising; Return to <coined>; The <coined> Letters
A length: short=short; long=lengthy; very long=massive
A reviews: great=acclaimed+; bad=badly reviewed-; mixed=controversial-
V genre: reads like a {} / written as a {} : <genre>
V author: was written by {} / written by {} : <person> <coined>
P setting: is set in {} / set in {} : <city>; <coined>
P published: came out in {} / published in {} : <1920-2025>
V pages: runs to {} pages / running to {} pages : <90-890>
V hero: follows {} / following {} : a fan of <topic> named <person>; <person> and <person>
B illustrated: contains many pictures / contains no pictures
V sold: sold {} copies / with {} copies sold : <2-95> thousand; <2-9> million
V publisher: appeared with {} / issued by {} : <coined> Press; <coined> Books
=
apartment | that | <coined> <10-99>; Flat <2-90>; <coined> Court; Unit <letter><2-60>
A rent: high=costly-; low=inexpensive+; fair=reasonably priced+
A condition: new=brand-new+; old=run-down-; good=well-kept+
P street: is on {} / located on {} : <coined> Street; <coined> Road; <coined> Avenue
P near: lies near {} / lying near {} : <coined> <place>; the <area>
V rooms: has {} rooms / with {} rooms : <2-9>
V size: covers {} square meters / covering {} square meters : <28-190>
V extra: features a {} / featuring a {} : <feature>; <feature> and a <feature>
B furnished: comes fully furnished / comes without furniture
V owner: belongs to {} / owned by {} : <person> <coined>
V free from: is available from {} / available from {} : <1-28> <month>
=
project | that | Mission <coined>; <coined> Plan; Operation <coined>
A progress: ahead=fast-moving+; behind=delayed-; stuck=stalled-; normal=steady
A priority: high=urgent; low=low-priority; top=critical
V goal: aims to {} / meant to {} : <goal>
V leader: is headed by {} / headed by {} : <person> <coined>
P started: began in {} / launched in {} : <month>; <month> <2018-2025>
P site: is run from {} / run from {} : <city>; the <coined> office
V team: involves {} people / involving {} people : <3-60>
V budget: has a budget of {} / with a budget of {} : <10-950/5> thousand dollars
B approved: has the approval of the board / still needs approval
V deadline: must end by {} / due to end by {} : <1-28> <month>
V partner: relies on help from {} / relying on help from {} : <coined>; <coined> Labs
=
vehicle | that | <coined> <letter><2-9>; <coined> GT; <coined> <200-900/10>; <coined> Van
A age: new=nearly new+; old=aging-; very old=antique
A fuel: diesel=diesel-powered; battery=electric; gas and battery=hybrid
V color: is painted {} / painted {} : <color>
V seats: has room for {} passengers / with room for {} passengers : <2-16>
V extra: comes with {} / fitted with {} : a <extra> and a <extra>; heated seats; winter tires
P parked: is parked at {} / parked at {} : lot <letter><2-80>; <coined> Garage
V driver: is assigned to {} / assigned to {} : <person> <coined>
V- mileage: has already covered {} miles / with already {} miles covered : <100-290> thousand
V mileage: has gone {} miles / driven for {} miles : <3-90> thousand
B insured: has full insurance / lacks insurance
P bought: was bought in {} / bought in {} : <month> <2008-2025>
V- repair: needs a new {} / needing a new {} : battery; mirror; clutch; door; gearbox; windshield
=
museum | that | <coined> House; <coined> Gallery; Museo <coined>; <coined> Collection
A fame: high=famous+; low=little-known; medium=respected+
A building: modern=modern; old=historic; bad=crumbling-
V shows: displays {} / displaying {} : <exhibit>; <exhibit> and <exhibit>
P city: stands in {} / standing in {} : <city>
P near: is next to {} / situated next to {} : <coined> <place>
V ticket: charges {} for entry / charging {} for entry : <4-45> dollars; <4-45> euros
V+ ticket: lets visitors in for free / letting visitors in for free : 0
V hours: is open until {} / open until {} : <15-22>:00; <15-22>:30
B guided tours: offers guided tours / has no guided tours
B cafe: runs its own cafe / lacks a cafe
V director: is directed by {} / directed by {} : <person> <coined>
V- closed: shuts on {}s / shut on {}s : <day>
=
position | that | <job> at <coined>
A contract: permanent=permanent+; fixed=temporary-; seasonal=seasonal
A pay: high=well-paid+; low=badly paid-; average=fairly paid
P city: is located in {} / located in {} : <city>
P start: opens on {} / opening on {} : <1-28> <month>
V skill: calls for {} / calling for {} : <skill>; <skill> and <skill>
V experience: requires {} of experience / requiring {} of experience : <2-12> years
V+ experience: suits complete beginners / suiting complete beginners : none
V benefit: includes a {} / including a {} : <benefit>; <benefit> and a <benefit>
V contact: is handled by {} / handled by {} : <person> <coined>
B remote: allows work from home / demands daily presence
V hours: takes {} hours a week / taking {} hours a week : <8-42>
=
farm | that | <coined> Grange; <coined> Acres; <coined> Fields; <coined> Ranch
A methods: natural=organic+; modern=highly automated; old=traditional
A land: much=sprawling; little=tiny; some=medium-sized
P region: lies in {} / lying in {} : the <coined> Valley; the <coined> Hills; <coined> County
P since: has existed since {} / established in {} : <1780-2015>
V animals: keeps {} / keeping {} : <animal>; <animal> and <animal>
V crops: grows {} / growing {} : <crop>; <crop> and <crop>
V farmer: is owned by {} / owned by {} : <person> <coined>
V shop: sells its goods on {}s / selling its goods on {}s : <day>
B visitors: welcomes school groups / accepts no visitors
V area: spans {} acres / spanning {} acres : <12-900>
V workers: employs {} helpers / employing {} helpers : <2-45>
"""

_TOKEN = re.compile(r"<(\w+)(?:-(\d+))?(?:/(\d+))?>")


@dataclass(frozen=True)
class Group:
    """Values of one attribute that share their wording; ``mood`` is 1, 0 or -1."""

    verb: str
    modifier: str
    patterns: tuple[str, ...]
    mood: int


@dataclass
class Attribute:
    """An attribute's name, its role (A, B, P or V) and its groups of values."""

    name: str
    role: str
    groups: list[Group]


@dataclass(frozen=True)
class Kind:
    """A kind of record."""

    noun: str
    relative: str
    name_patterns: tuple[str, ...]
    attributes: tuple[Attribute, ...]


def fill(rng: random.Random, pattern: str) -> str:
    """``pattern`` with every ``<...>`` replaced by a random word, name or number."""
    used: list[str] = []

    def draw(match: re.Match[str]) -> str:
        key, stop, step = match.groups()
        if stop:
            return str(rng.randrange(int(key), int(stop) + 1, int(step or 1)))
        if key == "coined":
            return names.coined(rng)
        if key == "letter":
            return rng.choice("ABCDEFGHKLMNPRSTVW")
        words = names.FIRST_NAMES if key == "person" else LISTS[key]
        word = rng.choice(words)
        while word in used:
            word = rng.choice(words)
        used.append(word)
        return word

    return _TOKEN.sub(draw, pattern)


def _mood(mark: str) -> int:
    return {"+": 1, "-": -1}.get(mark, 0)


def _groups(role: str, mark: str, text: str, relative: str) -> list[Group]:
    """The groups of values that one line of a kind's block describes."""
    if role == "A":
        groups = []
        for entry in text.split("; "):
            value, adjective = entry.split("=")
            mood = _mood(adjective[-1])
            groups.append(Group(adjective.rstrip("+-"), "", (value,), mood))
        return groups
    if role == "B":
        yes, no = text.split(" / ")
        return [
            Group(yes, f"{relative} {yes}", ("yes",), 1),
            Group(no, f"{relative} {no}", ("no",), -1),
        ]
    wording, values = text.split(" : ")
    verb, modifier = wording.split(" / ")
    return [Group(verb, modifier, tuple(values.split("; ")), _mood(mark))]


def _kind(block: str) -> Kind:
    head, *lines = block.strip().splitlines()
    noun, relative, patterns = head.split(" | ")
    attributes: dict[str, Attribute] = {}
    for line in lines:
        label, text = line.split(": ", 1)
        letter, name = label.split(" ", 1)
        attribute = attributes.setdefault(name, Attribute(name, letter[0], []))
        attribute.groups.extend(_groups(letter[0], letter[1:], text, relative))
    return Kind(noun, relative, tuple(patterns.split("; ")), tuple(attributes.values()))


KINDS = tuple(_kind(block) for block in KINDS_TEXT.split("\n=\n"))
