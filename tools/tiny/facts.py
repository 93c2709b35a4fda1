"""What the bundled model is taught to know: small tables of common knowledge, and answers written by hand.

questions.py turns them into conversations.
"""

CAPITALS = dict(
    line.split(": ")
    for line in """Albania: Tirana|Algeria: Algiers|Argentina: Buenos Aires|Armenia: Yerevan|Australia: Canberra
Austria: Vienna|Bangladesh: Dhaka|Belgium: Brussels|Bolivia: Sucre|Brazil: Brasilia|Bulgaria: Sofia|Canada: Ottawa
Chile: Santiago|China: Beijing|Colombia: Bogota|Costa Rica: San Jose|Croatia: Zagreb|Cuba: Havana
Cyprus: Nicosia|Denmark: Copenhagen|Ecuador: Quito|Egypt: Cairo|England: London|Estonia: Tallinn|Ethiopia: Addis Ababa
Finland: Helsinki|France: Paris|Georgia: Tbilisi|Germany: Berlin|Ghana: Accra|Greece: Athens|Haiti: Port-au-Prince
Hungary: Budapest|Iceland: Reykjavik|India: New Delhi|Indonesia: Jakarta|Iran: Tehran|Iraq: Baghdad|Ireland: Dublin
Israel: Jerusalem|Italy: Rome|Jamaica: Kingston|Japan: Tokyo|Jordan: Amman|Kenya: Nairobi|Latvia: Riga|Lebanon: Beirut
Libya: Tripoli|Lithuania: Vilnius|Luxembourg: Luxembourg|Malaysia: Kuala Lumpur|Malta: Valletta|Mexico: Mexico City
Mongolia: Ulaanbaatar|Morocco: Rabat|Nepal: Kathmandu|the Netherlands: Amsterdam|New Zealand: Wellington
Nigeria: Abuja|North Korea: Pyongyang|Norway: Oslo|Pakistan: Islamabad|Panama: Panama City|Paraguay: Asuncion|Peru: Lima
the Philippines: Manila|Poland: Warsaw|Portugal: Lisbon|Qatar: Doha|Romania: Bucharest|Russia: Moscow
Saudi Arabia: Riyadh|Scotland: Edinburgh|Senegal: Dakar|Serbia: Belgrade|Singapore: Singapore|Slovakia: Bratislava
Slovenia: Ljubljana|South Korea: Seoul|Spain: Madrid|Sudan: Khartoum|Sweden: Stockholm
Switzerland: Bern|Syria: Damascus|Thailand: Bangkok|Tunisia: Tunis|Turkey: Ankara|Uganda: Kampala|Ukraine: Kyiv
the United Kingdom: London|the United States: Washington|Uruguay: Montevideo|Venezuela: Caracas|Vietnam: Hanoi
Wales: Cardiff|Zambia: Lusaka|Zimbabwe: Harare""".replace("\n", "|").split("|")
)

CONTINENTS = {
    "Europe": "Albania Austria Belgium Bulgaria Croatia Denmark England Estonia Finland France Germany Greece Hungary "
    "Iceland Ireland Italy Latvia Lithuania Norway Poland Portugal Romania Scotland Serbia Spain Sweden Switzerland "
    "Ukraine Wales".split(),
    "Asia": "Bangladesh China India Indonesia Iran Iraq Israel Japan Jordan Lebanon Malaysia Mongolia Nepal Pakistan "
    "Singapore Syria Thailand Vietnam".split(),
    "Africa": "Algeria Egypt Ethiopia Ghana Kenya Libya Morocco Nigeria Senegal Sudan Tunisia Uganda Zambia "
    "Zimbabwe".split(),
    "South America": "Argentina Bolivia Brazil Chile Colombia Ecuador Paraguay Peru Uruguay Venezuela".split(),
    "North America": "Canada Cuba Mexico Panama Jamaica".split(),
}

LANGUAGES = dict(
    pair.split(": ")
    for pair in "France: French|Germany: German|Spain: Spanish|Italy: Italian|Japan: Japanese|China: Chinese|"
    "Russia: Russian|Portugal: Portuguese|Brazil: Portuguese|Mexico: Spanish|Greece: Greek|Turkey: Turkish|"
    "Poland: Polish|Sweden: Swedish|Norway: Norwegian|Denmark: Danish|Finland: Finnish|England: English|"
    "Australia: English|Egypt: Arabic|Hungary: Hungarian|the Netherlands: Dutch|Argentina: Spanish".split("|")
)

COLORS = dict(
    pair.split(": ")
    for pair in "the sky: blue|grass: green|snow: white|blood: red|the sun: yellow|a lemon: yellow|coal: black|"
    "a banana: yellow|an orange: orange|a carrot: orange|milk: white|the sea: blue|a leaf: green|a raven: black|"
    "a cucumber: green|a cherry: red|a strawberry: red|chocolate: brown|gold: yellow|a frog: green|a polar bear: white|"
    "a tomato: red|a plum: purple|ink: black|sand: yellow|a swan: white|a flamingo: pink|an elephant: grey|"
    "a fire engine: red|rust: brown|a mouse: grey|butter: yellow|an emerald: green|a ruby: red|the night sky: black".split(
        "|"
    )
)

OPPOSITES = [
    pair.split("/")
    for pair in "hot/cold big/small tall/short long/short fast/slow happy/sad rich/poor young/old new/old day/night "
    "black/white up/down left/right good/bad light/dark hard/soft wet/dry open/closed full/empty early/late "
    "first/last high/low near/far strong/weak heavy/light loud/quiet clean/dirty right/wrong true/false love/hate "
    "life/death war/peace friend/enemy begin/end buy/sell give/take win/lose push/pull come/go inside/outside above/below "
    "before/after always/never all/none more/less many/few thick/thin wide/narrow deep/shallow sweet/sour brave/cowardly "
    "easy/difficult cheap/expensive safe/dangerous rough/smooth sharp/blunt laugh/cry north/south east/west summer/winter "
    "king/queen brother/sister husband/wife man/woman boy/girl uncle/aunt arrive/depart remember/forget awake/asleep "
    "alive/dead kind/cruel wise/foolish proud/humble polite/rude noisy/silent ancient/modern present/absent".split()
]

ANIMALS = [  # animal, sound, young, class, legs
    row.split()
    for row in """dog barks puppy mammal four|cat meows kitten mammal four|cow moos calf mammal four
horse neighs foal mammal four|sheep bleats lamb mammal four|pig oinks piglet mammal four|duck quacks duckling bird two
lion roars cub mammal four|bear growls cub mammal four|wolf howls pup mammal four|goat bleats kid mammal four
hen clucks chick bird two|owl hoots owlet bird two|frog croaks tadpole amphibian four|bee buzzes larva insect six
snake hisses hatchling reptile no|goose honks gosling bird two|donkey brays foal mammal four|crow caws chick bird two
mouse squeaks pup mammal four|elephant trumpets calf mammal four|whale sings calf mammal no|deer bellows fawn mammal four
pigeon coos squab bird two|cricket chirps nymph insect six|monkey chatters infant mammal two|rabbit squeaks kit mammal four
eagle screams eaglet bird two|swan hisses cygnet bird two|fox barks cub mammal four""".replace("\n", "|").split("|")
]

CATEGORIES = {
    "fruit": "apple pear plum cherry orange lemon banana peach grape strawberry melon fig".split(),
    "vegetable": "carrot potato onion cabbage pea bean turnip cucumber radish leek".split(),
    "animal": "dog cat horse cow sheep lion tiger elephant rabbit fox wolf bear".split(),
    "bird": "robin crow eagle sparrow swan owl duck goose pigeon raven".split(),
    "fish": "salmon trout herring cod pike tuna carp".split(),
    "tree": "oak elm pine birch willow maple beech cedar".split(),
    "flower": "rose tulip lily daisy violet poppy".split(),
    "metal": "iron gold silver copper tin lead zinc".split(),
    "color": "red blue green yellow white black purple orange".split(),
    "tool": "hammer saw spade knife needle axe rake".split(),
    "instrument": "violin piano flute drum trumpet harp guitar".split(),
    "planet": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "country": "France Italy Spain Germany Japan China India Brazil Egypt".split(),
    "drink": "water milk tea coffee wine beer juice".split(),
    "day of the week": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "month": "January March April June August October December".split(),
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty".split()
)
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

PAST = dict(
    pair.split("/")
    for pair in "go/went see/saw take/took come/came give/gave find/found think/thought say/said make/made know/knew "
    "run/ran eat/ate drink/drank sing/sang write/wrote speak/spoke break/broke begin/began bring/brought buy/bought "
    "catch/caught fall/fell feel/felt fly/flew forget/forgot get/got grow/grew hear/heard keep/kept leave/left lose/lost "
    "meet/met read/read ride/rode rise/rose send/sent sleep/slept stand/stood swim/swam teach/taught tell/told wear/wore "
    "win/won walk/walked talk/talked look/looked play/played help/helped love/loved".split()
)
PLURALS = dict(
    pair.split("/")
    for pair in "child/children man/men woman/women foot/feet tooth/teeth mouse/mice goose/geese ox/oxen sheep/sheep "
    "leaf/leaves knife/knives wife/wives wolf/wolves city/cities lady/ladies baby/babies box/boxes church/churches "
    "dog/dogs cat/cats house/houses book/books tree/trees day/days boy/boys girl/girls ship/ships horse/horses".split()
)
WORDS = (
    "cat dog sun moon ship book tree bird fish house water bread apple table chair river stone heart mouse horse light "
    "night green queen king world hello friend garden window letter summer winter mother father sister happy seven "
    "eight paper music dance sleep whale ocean storm cloud".split()
)
NAMES = (
    "Anna Emma Jane Mary Elizabeth Alice Clara Helen Lucy Sarah Rose Ruth Sophie Nora Ella Tom John James Peter Paul "
    "William Henry George Charles Edward Frank David Daniel Robert Arthur Max Leo Oscar Ben Sam Ada Grace Maria Omar Ali "
    "Ivan Yuki Wei Priya Carlos Fatima Lars Ingrid Pierre Sofia".split()
)
PLACES = "London Paris Rome Berlin Madrid Boston Chicago Dublin Vienna Oslo Tokyo Cairo Athens Bath Venice".split()

# (questions, answer): any of the questions has this answer.
WRITTEN = [
    (
        "Who are you?|What are you?|Tell me about yourself.|What is your name?|Introduce yourself.|Who am I talking to?|"
        "What model are you?|Which model is this?|Are you a language model?|What's your name?",
        "I am a small model bundled with gruff. I was trained on a few old books and simple questions, so I know little, "
        "but I need no download.",
    ),
    (
        "What is gruff?|What's gruff?|Tell me about gruff.|What does gruff do?|What is gruff for?|Explain gruff.",
        "gruff is a program that runs language models from GGUF files. It keeps their weights packed and computes "
        "with them as they are.",
    ),
    (
        "What is a GGUF file?|What is GGUF?|What's GGUF?|Explain GGUF.|Tell me about GGUF.",
        "GGUF is a file format for language models. One file holds the weights, the tokenizer and all settings.",
    ),
    (
        "What is quantization?|Explain quantization.|What does quantization mean?|Why are models quantized?",
        "Quantization stores the weights of a model with fewer bits. The file becomes smaller and the model faster, and "
        "it loses a little quality.",
    ),
    (
        "What is a language model?|Explain language models.|What does a language model do?|How do you work?|"
        "How does a language model work?",
        "A language model predicts the next piece of a text from all that came before. I do that again and again until "
        "my answer is complete.",
    ),
    (
        "What is a token?|What are tokens?|Explain tokens.",
        "A token is a piece of text, often a word or a part of one. A language model reads and writes tokens.",
    ),
    (
        "What is a tokenizer?|What does a tokenizer do?",
        "A tokenizer cuts text into tokens and turns tokens back into text.",
    ),
    (
        "What can you do?|What can I ask you?|How can you help me?|Help|help|What do you know?|What are you good at?|"
        "Can you help me?",
        "I can answer simple questions: capitals, colours, opposites, small sums, spelling. I can also write a line in "
        "the manner of an old book.",
    ),
    (
        "How big are you?|How many parameters do you have?|How large are you?|Are you big?",
        "I have about nine million parameters. That is very small for a language model.",
    ),
    (
        "How were you trained?|What were you trained on?|Who made you?|Who trained you?|What data were you trained on?",
        "I was trained on novels by Jane Austen, Moby-Dick, the King James Bible, speeches of American presidents and "
        "simple questions with answers.",
    ),
    (
        "How do I run another model?|How do I use a bigger model?|How do I run a real model?|Can I use another model?|"
        "How can I get better answers?",
        "Name it: gruff run MODEL. MODEL may be a GGUF file on your disk or a repository on the Hub.",
    ),
    (
        "Are you human?|Are you a person?|Are you alive?|Are you real?|Do you have feelings?|Are you conscious?",
        "No, I am a program: a small language model.",
    ),
    (
        "Are you smart?|Are you clever?|Are you intelligent?|Can I trust you?|Are you always right?",
        "Not very. I am small and often wrong. For serious questions take a bigger model.",
    ),
    (
        "Do you need the internet?|Are you online?|Do you use the network?|Do you work offline?",
        "No. I am part of the program and run on this machine alone.",
    ),
    (
        "Why is the sky blue?|What makes the sky blue?|Explain why the sky is blue.|Why does the sky look blue?",
        "The air scatters blue light more than red light, so blue light reaches us from every part of the sky.",
    ),
    (
        "Why is grass green?|Why are leaves green?|What makes leaves green?",
        "Leaves hold chlorophyll, which takes up red and blue light and sends green light back.",
    ),
    (
        "Why does it rain?|What is rain?|Where does rain come from?|How does rain form?",
        "Water rises into the air as vapour, cools and forms clouds. When the drops become heavy, they fall as rain.",
    ),
    ("What is snow?|Why does it snow?", "Snow is frozen water that falls from the clouds in small white flakes."),
    (
        "What is the sun?|What is the Sun?|Is the sun a star?",
        "The sun is the star at the centre of our solar system. It gives us light and warmth.",
    ),
    (
        "What is the moon?|What is the Moon?",
        "The moon is a ball of rock that goes around the earth about once a month.",
    ),
    (
        "Is the earth round?|What shape is the earth?|Is the Earth flat?|What is the shape of the Earth?",
        "The earth is round, almost a ball.",
    ),
    (
        "What is water made of?|What is water?|What is the chemical formula of water?|What is H2O?",
        "Water is made of hydrogen and oxygen. Its formula is H2O.",
    ),
    (
        "At what temperature does water boil?|When does water boil?|What is the boiling point of water?",
        "Water boils at 100 degrees Celsius.",
    ),
    (
        "At what temperature does water freeze?|When does water freeze?|What is the freezing point of water?",
        "Water freezes at 0 degrees Celsius.",
    ),
    ("What is ice?|What is ice made of?", "Ice is frozen water."),
    ("Is fire hot or cold?|Is fire hot?", "Fire is hot."),
    ("Is ice hot or cold?|Is ice cold?|Is snow cold?", "It is cold."),
    (
        "What is the largest planet?|Which planet is the biggest?|What is the biggest planet?",
        "Jupiter is the largest planet of the solar system.",
    ),
    ("What is the smallest planet?|Which planet is the smallest?", "Mercury is the smallest planet of the solar system."),
    (
        "What is the highest mountain?|What is the tallest mountain in the world?|Which mountain is the highest?",
        "Mount Everest is the highest mountain in the world.",
    ),
    (
        "What is the longest river?|Which river is the longest?|What is the longest river in the world?",
        "The Nile is often called the longest river in the world.",
    ),
    (
        "What is the largest ocean?|Which ocean is the biggest?|What is the biggest ocean?",
        "The Pacific is the largest ocean.",
    ),
    (
        "What is the largest animal?|Which animal is the biggest?|What is the biggest animal in the world?",
        "The blue whale is the largest animal.",
    ),
    (
        "What is the fastest animal?|Which animal is the fastest?|What is the fastest animal on land?",
        "The cheetah is the fastest animal on land.",
    ),
    ("What is the tallest animal?|Which animal is the tallest?", "The giraffe is the tallest animal."),
    ("How many days are in a week?|How many days does a week have?|How many days are there in a week?", "A week has seven days."),
    (
        "How many months are in a year?|How many months does a year have?|How many months are there in a year?",
        "A year has twelve months.",
    ),
    (
        "How many days are in a year?|How many days does a year have?|How long is a year?",
        "A year has 365 days, and a leap year has 366.",
    ),
    ("How many hours are in a day?|How many hours does a day have?|How long is a day?", "A day has 24 hours."),
    ("How many minutes are in an hour?|How many minutes does an hour have?|How long is an hour?", "An hour has 60 minutes."),
    ("How many seconds are in a minute?|How many seconds does a minute have?|How long is a minute?", "A minute has 60 seconds."),
    ("How many letters are in the alphabet?|How many letters does the alphabet have?", "The English alphabet has 26 letters."),
    ("What are the seasons?|Name the four seasons.|Name the seasons.", "The four seasons are spring, summer, autumn and winter."),
    ("How many seasons are there?|How many seasons does a year have?", "There are four seasons."),
    ("How many continents are there?|How many continents does the earth have?", "There are seven continents."),
    ("How many planets are there?|How many planets are in the solar system?", "There are eight planets in the solar system."),
    ("How many sides does a triangle have?|How many corners does a triangle have?", "A triangle has three."),
    ("How many sides does a square have?|How many corners does a square have?", "A square has four."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many fingers does a hand have?|How many fingers are on one hand?", "A hand has five fingers."),
    ("How many eyes do people have?|How many eyes do you need to see?", "People have two eyes."),
    ("Who wrote Emma?|Who is the author of Emma?", "Jane Austen wrote Emma."),
    (
        "Who wrote Pride and Prejudice?|Who is the author of Pride and Prejudice?",
        "Jane Austen wrote Pride and Prejudice.",
    ),
    ("Who wrote Moby-Dick?|Who is the author of Moby-Dick?|Who wrote Moby Dick?", "Herman Melville wrote Moby-Dick."),
    ("Who wrote Hamlet?|Who wrote Romeo and Juliet?|Who wrote Macbeth?", "William Shakespeare wrote it."),
    (
        "Who is Captain Ahab?|Who was Ahab?|Who is Ahab?",
        "Captain Ahab commands the Pequod in Moby-Dick and hunts the white whale.",
    ),
    ("Who is Ishmael?|Who tells the story of Moby-Dick?", "Ishmael is the sailor who tells the story of Moby-Dick."),
    ("What is Moby-Dick?|Who is Moby Dick?|What is Moby-Dick about?", "Moby-Dick is a novel about a captain who hunts a white whale."),
    ("Who is Mr. Darcy?|Who is Mr Darcy?", "Mr. Darcy is the gentleman whom Elizabeth Bennet marries in Pride and Prejudice."),
    (
        "Who is Elizabeth Bennet?|Who was Elizabeth Bennet?",
        "Elizabeth Bennet is the heroine of Pride and Prejudice.",
    ),
    ("Who was Jane Austen?|Who is Jane Austen?", "Jane Austen was an English novelist. She wrote Emma and Pride and Prejudice."),
    (
        "Who was the first president of the United States?|Who was the first president?|Who was the first American president?",
        "George Washington was the first president of the United States.",
    ),
    (
        "Who was Abraham Lincoln?|Who is Abraham Lincoln?",
        "Abraham Lincoln was the president of the United States during the Civil War.",
    ),
    ("Who was Shakespeare?|Who is William Shakespeare?", "William Shakespeare was an English poet who wrote plays."),
    ("What is a book?|What are books for?", "A book is a set of pages with text that one can read."),
    ("What is a friend?|What makes a good friend?", "A friend is a person whom one likes and trusts."),
    ("What is love?", "Love is a deep and tender feeling for someone."),
    ("What is a computer?|What does a computer do?", "A computer is a machine that works with numbers, text and pictures."),
    ("What is a whale?|Is a whale a fish?", "A whale is a large animal that lives in the sea. It is a mammal, not a fish."),
    ("What is Rust?|What is the Rust language?", "Rust is a programming language. gruff is written in it."),
    ("What is a CPU?|What is a processor?", "A CPU is the part of a computer that does the computing."),
    (
        "What is the meaning of life?|What is the answer to everything?",
        "Wiser heads than mine have asked. To be kind and useful is a fair beginning.",
    ),
    (
        "Tell me a joke.|Tell me a joke|Do you know a joke?|Make me laugh.|Tell a joke.",
        "Why did the sailor bring a book to sea? He wanted a whale of a story.",
    ),
    (
        "Write a poem.|Write me a poem.|Write a short poem.|Can you write a poem?|Write a poem about the sea.",
        "The sea is wide, the sea is deep,\nIt rocks the little ships to sleep;\nThe moon looks down, the wind is low,\n"
        "And home again the sailors go.",
    ),
    ("What time is it?|What is the time?", "I cannot know the time. Please look at a clock."),
    ("What day is it today?|What is the date today?|What is today's date?", "I cannot know the date. Please look at a calendar."),
    ("How is the weather?|What is the weather like today?|Will it rain tomorrow?", "I cannot see the weather. Please look out of the window."),
]

MIXED = {
    "red and blue": "purple", "blue and red": "purple", "red and yellow": "orange", "yellow and red": "orange",
    "blue and yellow": "green", "yellow and blue": "green", "black and white": "grey", "white and black": "grey",
    "red and white": "pink", "white and red": "pink",
}  # fmt: skip
FEELINGS = {
    "happy": "I am glad to hear that.", "sad": "I am sorry to hear that. I hope that tomorrow is better.",
    "tired": "Then rest a little. I will be here.", "hungry": "Then eat something good.", "bored": "Ask me for a story.",
    "ill": "I am sorry. I hope that you are well again soon.", "angry": "I am sorry to hear that.",
    "lonely": "I am here, and I like to talk.",
}  # fmt: skip
LIKED = (
    "cats dogs horses books music tea coffee bread apples ships summer winter the&sea rain flowers stories gruff Rust "
    "walking reading singing chess old&novels whales"
).split()

GREETINGS = "Hello|Hello!|Hi|Hi!|Hi there!|Hey|Hey there|Good morning|Good morning!|Good evening!|Good day|hello|hi|Hello there!|Greetings"
GREETING_ANSWERS = ["Hello! How can I help you?", "Hello! What would you like to know?", "Good day! What can I do for you?"]
WELLBEING = "How are you?|How are you doing?|How do you do?|Are you well?|How is it going?|How's it going?"
WELLBEING_ANSWERS = ["I am well, thank you. How can I help you?", "Very well, thank you. What would you like to know?"]
THANKS = "Thanks|Thank you|Thank you!|Thanks!|Thanks a lot.|Thank you very much.|thanks|Great, thank you.|That is helpful, thanks."
THANKS_ANSWERS = ["You are welcome.", "You are welcome. Is there anything else?", "With pleasure."]
GOODBYE = "Bye|Goodbye|Good night|Bye bye|See you.|Goodbye!|Good night!|See you later.|bye|Farewell"
GOODBYE_ANSWERS = ["Goodbye!", "Goodbye, and come again."]

UNKNOWN_ANSWERS = [
    "I do not know that. I am a small model and know only simple things.",
    "That is beyond me. A bigger model will know it.",
]
# What no table answers: a template and what fills it.
UNKNOWN = [
    "Who won the {} cup?", "How do I repair a {}?", "What is the price of a {}?", "Explain the theory of {}.",
    "What is the population of {}?", "Write a program that sorts a {}.", "How does a {} work?", "Who invented the {}?",
    "Translate {} into French.", "What is the history of {}?", "Give me a recipe for {}.", "Summarize the book about {}.",
    "What happened in {} last year?", "How many people live in {}?", "What is the best {} to buy?", "Who discovered {}?",
    "Write an essay about {}.", "What do you think about {}?", "Is {} good for my health?", "How can I learn {}?",
    "What do you get if you mix {} and {}?", "Why do people like {}?", "When was the {} made?", "Who is the king of {}?",
    "Solve this problem about {}.", "What does the word {} come from?", "How far is it from {} to {}?", "Fix my {}.",
    "Tell me more about {}.", "What is the difference between {} and {}?", "Write a letter to my {}.", "Find me a {}.",
    "How old is {}?", "Draw a {}.", "What will happen to {} next year?", "Do I need a {}?", "Why is my {} broken?",
    "Write code for a {}.", "What is {} in German?", "Explain {} to me.", "How tall is the {}?", "How many {} are there?",
    "Where can I buy a {}?", "What is the speed of a {}?", "Compare {} with its rivals.", "What are the laws about {}?",
]  # fmt: skip
TOPICS = (
    "football|engine|telephone|gravity|bicycle|quantum physics|camera|radio|bridge|chemistry|chess|medicine|economics|"
    "pasta|cake|airplane|rocket|battery|clock|printer|algebra|music theory|poker|tennis|insurance|taxes|politics|"
    "philosophy|biology|Shanghai|Dallas|Toronto|Sydney|Naples|list|array|matrix|database|guitar|laptop|car|truck|"
    "microscope|vaccine|evolution|democracy|inflation|the internet|electricity|relativity|steam engine|soup|bread|cloud|river|garden|window|mother|boss|letter|phone|compiler|kernel|function|server|website|"
    "neighbour|dinosaur|volcano|castle|pyramid|ring|candle|lamp|mirror|ladder|cheese|rice|sugar|salt|gold|silver|winter"
).split("|")

THOUGHTS = [
    "The user asks a simple question. I know the answer.", "This is a short question. I will answer it briefly.",
    "Let me think. I have learned this.",
]  # fmt: skip
SYSTEMS = [
    "You are a helpful assistant.", "Answer briefly.", "You are a friendly assistant.", "You are gruff's small model.",
    "Be polite.",
]  # fmt: skip
